"""Offsets committed in a transaction: they wait in their group for the transaction's marker.

Owns: nothing; they are in Group.unstable, and indexed by producer in the state machine.
Invariants: a producer's offsets are applied when its commit marker arrives, and discarded with an
  abort marker; of several commits for a partition the one written last wins, whatever the order of
  the markers; every change is covered by a record or a marker.
Source: KIP-98, KIP-447; Kafka's pending transactional offsets.
"""

from typing import Any

from pylog.coordinator.groups.state import classic_records
from pylog.coordinator.groups.state.classic_group import NO_TIME, Group, Offset
from pylog.coordinator.runtime.transactional_batches import Marker, TransactionalRecords
from pylog.protocol.errors import Error, ErrorCode

TopicPartition = tuple[str, int]


def end(groups: Any, marker: Marker) -> Error:
    """Write the producer's marker and apply its effect on the offsets."""
    groups.records.append(marker)
    _apply(groups, marker)
    return ErrorCode.NONE


def replay(groups: Any, written: TransactionalRecords | Marker) -> None:
    """Apply a transactional batch of the log, in order, before loaded(). Raises ProtocolError."""
    if isinstance(written, Marker):
        _apply(groups, written)
        return
    for key, value in written.records:
        decoded = classic_records.decode(key, value)
        if decoded is None or decoded[0] != "offset" or decoded[3] is None:
            continue
        _, group_id, partition, entry = decoded
        group = groups.find(group_id)
        if group is None:
            group = groups.groups[group_id] = Group(group_id, NO_TIME)
        add(groups, group, written.producer_id, partition, entry)


def add(groups: Any, group: Group, producer_id: int, partition: TopicPartition,
        entry: Offset) -> None:
    """Add an offset to an open transaction, without a record."""
    groups.written += 1
    group.unstable.setdefault(partition, {})[producer_id] = groups.written, entry
    groups.open_offsets.setdefault(producer_id, set()).add((group.id, *partition))


def supersede(group: Group, partition: TopicPartition) -> None:
    """Void the open transactional commits for a partition, because a plain commit came later."""
    entries = group.unstable.get(partition)
    if entries is not None:
        for producer_id in entries:
            entries[producer_id] = entries[producer_id][0], None


def forget(groups: Any, group: Group, partition: TopicPartition) -> bool:
    """Remove the open commits for a partition, without a record; return False if there are none."""
    entries = group.unstable.pop(partition, None)
    for producer_id in entries or ():
        _close(groups, producer_id, (group.id, *partition))
    return entries is not None


def _close(groups: Any, producer_id: int, where: tuple[str, str, int]) -> None:
    partitions = groups.open_offsets.get(producer_id)
    if partitions is not None:
        partitions.discard(where)
        if not partitions:
            del groups.open_offsets[producer_id]


def _apply(groups: Any, marker: Marker) -> None:
    """Apply or discard the producer's offsets."""
    # Sorted, so that a replay applies them in the same order.
    for group_id, topic, partition in sorted(groups.open_offsets.pop(marker.producer_id, ())):
        group = groups.groups[group_id]
        key = topic, partition
        entries = group.unstable[key]
        order, entry = entries.pop(marker.producer_id)
        if marker.committed and entry is not None:
            group.offsets[key] = entry
            groups.changed.add((group_id, topic))
            for other, (when, _) in list(entries.items()):
                if when < order:
                    entries[other] = when, None
        if not entries:
            del group.unstable[key]
        if group.is_spent and not group.generation:
            groups.groups.pop(group_id, None)
