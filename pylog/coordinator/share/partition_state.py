"""What is kept of one share partition, and as records of `__share_group_state`.

Owns: the state of one share partition.
Invariants: (1) batches ascend, do not overlap, and none ends before the start offset; (2) of two
  states of an offset the one of the later delivery counts, then the one that ends it; (3) what
  decode gives for an encoded snapshot is equal to it; (4) batches that are not combined yet are
  PENDING_MIN, or twice as many as there are combined ones, and those of one update.
Source: KIP-932 (schemas, ShareSnapshot and ShareUpdate); Kafka's PersisterStateBatchCombiner (2).
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
PENDING_MIN = 256      # Fewer are not worth the work.


class Batch(NamedTuple):
    """Offsets first to last."""

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
        """What its coordinator is found by."""
        topic = base64.urlsafe_b64encode(self.topic_id).decode().rstrip("=")
        return f"{self.group_id}:{topic}:{self.partition}"


def is_key(text: str) -> bool:
    """Whether it is one that ShareKey.text gives."""
    group_id, _, rest = text.partition(":")
    topic, _, index = rest.partition(":")
    if not group_id or not index.isdecimal():
        return False
    try:
        return len(base64.urlsafe_b64decode(topic + "==")) == 16
    except ValueError:
        return False


class ShareState:
    """See the module's head. updates: records since the last snapshot."""

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
        """Later states of some offsets."""
        self._pending += batches
        if len(self._pending) > self._pending_max:
            # Keeps (4), however often is written between two snapshots.
            self._combine()

    def update(self, row: Any) -> None:
        """What a ShareUpdateValue says."""
        self.write(row.start_offset, row.delivery_complete_count, row.leader_epoch,
                   _batches_of(row))

    def write(self, start_offset: int, complete_count: int, leader_epoch: int,
              batches: Iterable[Batch]) -> None:
        """Later states of some offsets, and what else one update says. NO_OFFSET: as before."""
        if start_offset != NO_OFFSET:
            self.start_offset = start_offset
        if leader_epoch > self.leader_epoch:
            self.leader_epoch = leader_epoch
        self.complete_count = complete_count
        self.add(batches)
        self.updates += 1


def combined(batches: Iterable[Batch], start: int) -> list[Batch]:
    """The states of all offsets from `start` on, each once. Keeps (1), (2)."""
    edges: list[tuple[int, int, Batch]] = []
    for row in batches:
        if row.last >= start:
            clipped = row if row.first >= start else row._replace(first=start)
            edges += [(clipped.first, 1, clipped), (clipped.last + 1, 0, clipped)]
    edges.sort(key=lambda edge: edge[0])
    found: list[Batch] = []
    open_: dict[tuple[int, int], int] = {}      # (deliveries, state) -> how many cover it.
    before = 0
    for at, begins, row in edges:
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
    """(whose, whether it is a snapshot, the value's message or None); None for a record of another
    kind. Raises ProtocolError."""
    try:
        row = records.decode_key(STEM, key)
    except UnsupportedVersion:
        return None
    found = ShareKey(row.group_id, bytes(row.topic_id), row.partition)
    return (found, type(row).__name__ == "ShareSnapshotKey",
            None if value is None else records.decode_value(row, value)[1])


def state_from(row: Any) -> ShareState:
    """The state that a ShareSnapshotValue holds."""
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
