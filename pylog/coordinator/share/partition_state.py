"""The persistent state of one share partition, in memory and as records of `__share_group_state`.

Owns: the state of one share partition.
Invariants: batches are ascending, do not overlap, and none ends before the start offset; of two
  states of an offset, the one with more deliveries wins, then the one with the higher (more final)
  delivery state; decoding an encoded snapshot gives an equal state; uncombined batches number at
  most PENDING_MIN or twice the combined ones, plus those of one update.
Source: KIP-932 (schemas, ShareSnapshot and ShareUpdate); Kafka's PersisterStateBatchCombiner
  (precedence of states).
"""

import base64
from collections.abc import Iterable
from typing import Any, NamedTuple

from pylog.protocol import messages, records
from pylog.protocol.errors import UnsupportedVersion

STEM = "records_share"
NO_EPOCH = -1
NO_OFFSET = -1
NOT_COUNTED = -1
VALUE_VERSION = 0
PENDING_MIN = 256  # Combining fewer batches is not worth the CPU time.


class Batch(NamedTuple):
    """The delivery state of an offset range; `last` is inclusive."""

    first: int
    last: int
    state: int
    deliveries: int


class ShareKey(NamedTuple):
    """A share partition. topic_id: 16 bytes."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def text(self) -> str:
        """Return the key for finding the coordinator."""
        topic = base64.urlsafe_b64encode(self.topic_id).decode().rstrip("=")
        return f"{self.group_id}:{topic}:{self.partition}"


def is_key(text: str) -> bool:
    """Return True if `text` has the format of ShareKey.text."""
    group_id, _, rest = text.partition(":")
    topic, _, index = rest.partition(":")
    if not group_id or not index.isdecimal():
        return False
    try:
        return len(base64.urlsafe_b64decode(topic + "==")) == 16
    except ValueError:
        return False


class ShareState:
    """The state of a share partition. updates: number of records since the last snapshot."""

    __slots__ = ("_batches", "_pending", "_pending_max", "complete_count", "create_ms",
                 "leader_epoch", "snapshot_epoch", "start_offset", "state_epoch", "updates",
                 "write_ms")

    def __init__(self, snapshot_epoch: int = 0, state_epoch: int = 0):
        self.snapshot_epoch = snapshot_epoch
        self.state_epoch = state_epoch
        self.leader_epoch = 0
        self.start_offset = NO_OFFSET
        self.complete_count = NOT_COUNTED
        self.create_ms = self.write_ms = 0
        self.updates = 0
        self._batches: list[Batch] = []
        self._pending: list[Batch] = []
        self._pending_max = PENDING_MIN

    @property
    def batches(self) -> list[Batch]:
        if self._pending or self._batches and self._batches[0].first < self.start_offset:
            self._combine()
        return self._batches

    def _combine(self) -> None:
        self._batches = combined([*self._batches, *self._pending], self.start_offset)
        self._pending = []
        self._pending_max = max(PENDING_MIN, 2 * len(self._batches))

    def add(self, batches: Iterable[Batch]) -> None:
        """Add newer states of some offsets."""
        self._pending += batches
        if len(self._pending) > self._pending_max:
            # Bounds the memory, however many updates come between two snapshots.
            self._combine()

    def update(self, row: Any) -> None:
        """Apply a ShareUpdateValue."""
        self.write(row.start_offset, row.delivery_complete_count, row.leader_epoch,
                   _batches_of(row))

    def write(self, start_offset: int, complete_count: int, leader_epoch: int,
              batches: Iterable[Batch]) -> None:
        """Apply one update. start_offset: NO_OFFSET keeps the current one."""
        if start_offset != NO_OFFSET:
            self.start_offset = start_offset
        if leader_epoch > self.leader_epoch:
            self.leader_epoch = leader_epoch
        self.complete_count = complete_count
        self.add(batches)
        self.updates += 1


def combined(batches: Iterable[Batch], start: int) -> list[Batch]:
    """Merge batches so that each offset from `start` on occurs once. The latest state wins."""
    boundaries: list[tuple[int, int, Batch]] = []
    for row in batches:
        if row.last >= start:
            clipped = row if row.first >= start else row._replace(first=start)
            boundaries += [(clipped.first, 1, clipped), (clipped.last + 1, 0, clipped)]
    boundaries.sort(key=lambda boundary: boundary[0])
    found: list[Batch] = []
    open_: dict[tuple[int, int], int] = {}  # (deliveries, state) -> open batches.
    before = 0
    for at, begins, row in boundaries:
        if open_ and at > before:
            deliveries, state = max(open_)
            last = found[-1] if found else None
            if last is not None and last.last + 1 == before and \
                    (last.deliveries, last.state) == (deliveries, state):
                found[-1] = last._replace(last=at - 1)
            else:
                found.append(Batch(before, at - 1, state, deliveries))
        before = at
        rank = row.deliveries, row.state
        covering = open_.get(rank, 0) + (1 if begins else -1)
        if covering:
            open_[rank] = covering
        else:
            del open_[rank]
    assert not open_, open_
    return found


# ---- records ------------------------------------------------------------------------------------


def snapshot_key(key: ShareKey) -> bytes:
    return records.encode_key(messages.ShareSnapshotKey(
        group_id=key.group_id, topic_id=key.topic_id, partition=key.partition))


def update_key(key: ShareKey) -> bytes:
    return records.encode_key(messages.ShareUpdateKey(
        group_id=key.group_id, topic_id=key.topic_id, partition=key.partition))


def snapshot_value(state: ShareState) -> bytes:
    new = messages.ShareSnapshotValue
    return records.encode_value(VALUE_VERSION, new(
        snapshot_epoch=state.snapshot_epoch, state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch, start_offset=state.start_offset,
        delivery_complete_count=state.complete_count, create_timestamp=state.create_ms,
        write_timestamp=state.write_ms,
        state_batches=[new.StateBatch(first_offset=row.first, last_offset=row.last,
                                      delivery_state=row.state, delivery_count=row.deliveries)
                       for row in state.batches]))


def decode(key: bytes, value: bytes | None) -> tuple[ShareKey, bool, Any] | None:
    """Parse a record into (key, True for a snapshot, value message or None).

    Returns None for other kinds of records. Raises ProtocolError.
    """
    try:
        row = records.decode_key(STEM, key)
    except UnsupportedVersion:
        return None
    found = ShareKey(row.group_id, bytes(row.topic_id), row.partition)
    return (found, type(row).__name__ == "ShareSnapshotKey",
            None if value is None else records.decode_value(row, value)[1])


def state_from(row: Any) -> ShareState:
    """Return the state stored in a ShareSnapshotValue."""
    state = ShareState(row.snapshot_epoch, row.state_epoch)
    state.leader_epoch = row.leader_epoch
    state.start_offset = row.start_offset
    state.complete_count = row.delivery_complete_count
    state.create_ms, state.write_ms = row.create_timestamp, row.write_timestamp
    state.add(_batches_of(row))
    return state


def _batches_of(row: Any) -> list[Batch]:
    return [Batch(cell.first_offset, cell.last_offset, cell.delivery_state, cell.delivery_count)
            for cell in row.state_batches]
