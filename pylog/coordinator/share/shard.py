"""Share partition states as a pure state machine: takes requests and a clock, produces records.

Owns: the share partitions of one partition of `__share_group_state`.
Invariants: a write with an older leader epoch or state epoch is fenced and changes nothing; a share
  partition has at most updates_max updates after its last snapshot; records before the offset of
  mark() are redundant once `unsaved` is empty.
Source: KIP-932; Kafka's ShareCoordinatorShard (response behaviour).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pylog.coordinator.runtime.journal import Token, Written
from pylog.coordinator.runtime.timers import Time, Timers
from pylog.coordinator.share import partition_state
from pylog.coordinator.share.partition_state import NO_EPOCH, NO_OFFSET, Batch, ShareKey, ShareState
from pylog.protocol import messages, records
from pylog.protocol.errors import Error, ErrorCode

UNINITIALIZED = "The share partition is not initialized."
Fault = tuple[Error, str | None]
FINE: Fault = ErrorCode.NONE, None


class ShareStates:
    """The share states of one partition of the topic.

    leader_epoch_of: (topic id, partition) -> its leader epoch, or None if it does not exist.
    updates_max: updates between two snapshots. cold_ms: the age at which a snapshot is rewritten.
    See shard.StateMachine for the other attributes.
    """

    def __init__(self, clock: Time,
                 leader_epoch_of: Callable[[bytes, int], int | None],
                 updates_max: int, cold_ms: int):
        self.records: list[Written] = []
        self.responses: list[tuple[Token, Any]] = []
        self.cleanups = 0
        self.timers = Timers()
        self.changed: set[Any] = set()
        self.states: dict[ShareKey, ShareState] = {}
        # Share partitions without a snapshot since mark().
        self.unsaved: set[ShareKey] = set()
        self._clock = clock
        self._leader_epoch_of = leader_epoch_of
        self._updates_max = updates_max
        self._cold_ms = cold_ms

    # ---- the log --------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order, before loaded(). Raises ProtocolError."""
        found = partition_state.decode(key, value)
        if found is None:
            return
        whose, is_snapshot, row = found
        if row is None:
            self.states.pop(whose, None)
        elif is_snapshot:
            self.states[whose] = partition_state.state_from(row)
        else:
            self.states.setdefault(whose, ShareState(row.snapshot_epoch)).update(row)

    def loaded(self) -> None:
        self.mark()

    def tick(self) -> None:
        """Do nothing: there are no timers. See save_cold()."""

    def open_tokens(self) -> Iterable[Token]:
        return ()

    def saved(self, changed: set[Any]) -> None:
        """Do nothing: there is no snapshot outside the log."""

    def mark(self) -> None:
        """Start collecting snapshots: once `unsaved` is empty, earlier records are redundant."""
        self.unsaved = set(self.states)

    def _record_snapshot(self, key: ShareKey, state: ShareState) -> None:
        state.updates = 0
        self.unsaved.discard(key)
        self.records.append((partition_state.snapshot_key(key),
                             partition_state.snapshot_value(state)))

    def _record_gone(self, key: ShareKey) -> None:
        del self.states[key]
        self.unsaved.discard(key)
        self.records.append((partition_state.snapshot_key(key), None))

    # ---- requests -------------------------------------------------------------------------------

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> Fault:
        """Replace the state with an empty one that starts at an offset.

        start_offset: with NO_OFFSET the leader chooses it from the group's settings. The state gets
        the partition's current leader epoch, because the start offset belongs to the log of that
        epoch: a later leader compares the two to detect a truncated log.
        """
        known = self.states.get(key)
        if known is not None and NO_EPOCH != state_epoch < known.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH, None
        fault = self._fault(key)
        if fault != FINE:
            return fault
        state = ShareState(0 if known is None else known.snapshot_epoch + 1, state_epoch)
        state.leader_epoch = self._leader_epoch_of(key.topic_id, key.partition) or 0
        state.start_offset = start_offset
        state.complete_count = partition_state.NOT_COUNTED if start_offset == NO_OFFSET else 0
        state.create_ms = state.write_ms = self._clock.wall_ms()
        self.states[key] = state
        self._record_snapshot(key, state)
        return FINE

    def read(self, key: ShareKey, leader_epoch: int) -> tuple[Fault, ShareState | None]:
        """Return (FINE, state) for the leader with this epoch. Fences leaders with older epochs."""
        fault, state = self._known(key, leader_epoch, NO_EPOCH)
        if state is not None and leader_epoch > state.leader_epoch:
            state.leader_epoch = leader_epoch
            self._write(key, state, NO_OFFSET, state.complete_count, leader_epoch, ())
        return fault, state

    def write(self, key: ShareKey, state_epoch: int, leader_epoch: int, start_offset: int,
              complete_count: int, batches: list[Batch]) -> Fault:
        """Apply newer states of some offsets. Fences older leader epochs and state epochs."""
        fault, state = self._known(key, leader_epoch, state_epoch)
        if state is not None:
            if any(not 0 <= row.first <= row.last or row.deliveries < 0 for row in batches):
                return ErrorCode.INVALID_REQUEST, "The state batches are no ranges of offsets."
            self._write(key, state, start_offset, complete_count, state.leader_epoch, batches)
        return fault

    def _write(self, key: ShareKey, state: ShareState, start_offset: int, complete_count: int,
               leader_epoch: int, batches: Sequence[Batch]) -> None:
        is_full = state.updates >= self._updates_max
        state.write(start_offset, complete_count, leader_epoch, batches)
        if is_full:
            # Limits the updates after a snapshot.
            self._snapshot(key, state)
            return
        new = messages.ShareUpdateValue
        row = new(
            snapshot_epoch=state.snapshot_epoch, leader_epoch=leader_epoch,
            start_offset=start_offset, delivery_complete_count=complete_count,
            state_batches=[new.StateBatch(
                first_offset=cell.first, last_offset=cell.last, delivery_state=cell.state,
                delivery_count=cell.deliveries) for cell in batches])
        self.records.append((partition_state.update_key(key),
                             records.encode_value(partition_state.VALUE_VERSION, row)))

    def _snapshot(self, key: ShareKey, state: ShareState) -> None:
        state.snapshot_epoch += 1
        state.create_ms = state.write_ms = self._clock.wall_ms()
        self._record_snapshot(key, state)

    def summary(self, key: ShareKey) -> tuple[Fault, ShareState | None]:
        """Return (FINE, state), (FINE, None) if there is no state, or (fault, None)."""
        fault = self._fault(key)
        return fault, self.states.get(key) if fault == FINE else None

    def delete(self, key: ShareKey) -> Fault:
        fault = self._fault(key)
        if fault == FINE and key in self.states:
            self._record_gone(key)
        return fault

    def _known(self, key: ShareKey, leader_epoch: int,
               state_epoch: int) -> tuple[Fault, ShareState | None]:
        state = self.states.get(key)
        if key.partition < 0 or state is None:
            return (ErrorCode.INVALID_REQUEST, UNINITIALIZED), None
        if NO_EPOCH != leader_epoch < state.leader_epoch:
            return (ErrorCode.FENCED_LEADER_EPOCH, None), None
        if NO_EPOCH != state_epoch < state.state_epoch:
            return (ErrorCode.FENCED_STATE_EPOCH, None), None
        fault = self._fault(key)
        return fault, state if fault == FINE else None

    def _fault(self, key: ShareKey) -> Fault:
        if key.partition < 0:
            return ErrorCode.INVALID_REQUEST, "The partition is negative."
        if self._leader_epoch_of(key.topic_id, key.partition) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        return FINE

    # ---- upkeep ---------------------------------------------------------------------------------

    def forget_gone(self) -> None:
        """Delete share partitions of deleted topics."""
        for key in [key for key in self.states
                    if self._leader_epoch_of(key.topic_id, key.partition) is None]:
            self._record_gone(key)

    def save_cold(self) -> Iterator[None]:
        """Write snapshots of share partitions without a recent one, to empty `unsaved`."""
        now_ms = self._clock.wall_ms()
        for key in list(self.unsaved):
            state = self.states.get(key)
            if state is not None and now_ms - state.write_ms >= self._cold_ms:
                state.snapshot_epoch += 1
                state.write_ms = now_ms
                self._record_snapshot(key, state)
                yield
