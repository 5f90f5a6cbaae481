"""Offsets that are committed with a transaction: they wait in their group for its marker.

Owns: nothing; they lie in their groups (Group.unstable), and by producer in the machine.
Invariants: (1) what a producer wrote becomes the group's offset when its marker commits, and goes
  when it aborts; (2) of several commits for a partition the one that was written last counts,
  whatever the order of the markers; (3) every change has its record or its marker.
Source: KIP-98, KIP-447; Kafka's pending transactional offsets.
"""

from typing import Any

from pylog.coordinator.groups.state import classic_records
from pylog.coordinator.groups.state.classic_group import NO_TIME, Group, Offset
from pylog.coordinator.runtime.transactional_batches import Marker, TransactionalRecords
from pylog.protocol.errors import Error, ErrorCode

Place = tuple[str, int]


def end(groups: Any, marker: Marker) -> Error:
    """The producer's transaction is over: its marker, and what that does."""
    groups.records.append(marker)
    _apply(groups, marker)
    return ErrorCode.NONE


def replay(groups: Any, written: TransactionalRecords | Marker) -> None:
    """What the log has of a transaction, in order, before loaded(). Raises ProtocolError."""
    if isinstance(written, Marker):
        _apply(groups, written)
        return
    for key, value in written.records:
        decoded = classic_records.decode(key, value)
        if decoded is None or decoded[0] != "offset" or decoded[3] is None:
            continue
        _, group_id, place, entry = decoded
        group = groups.find(group_id)
        if group is None:
            group = groups.groups[group_id] = Group(group_id, NO_TIME)
        add(groups, group, written.producer_id, place, entry)


def add(groups: Any, group: Group, producer_id: int, place: Place, entry: Offset) -> None:
    """Without a record."""
    groups.written += 1
    group.unstable.setdefault(place, {})[producer_id] = groups.written, entry
    groups.open_offsets.setdefault(producer_id, set()).add((group.id, *place))


def supersede(group: Group, place: Place) -> None:
    """A later commit, not of a transaction: what is open for the place changes nothing any more.
    Keeps (2)."""
    entries = group.unstable.get(place)
    if entries is not None:
        for producer_id in entries:
            entries[producer_id] = entries[producer_id][0], None


def forget(groups: Any, group: Group, place: Place) -> bool:
    """Without a record. False when nothing is open for the place."""
    entries = group.unstable.pop(place, None)
    for producer_id in entries or ():
        _close(groups, producer_id, (group.id, *place))
    return entries is not None


def _close(groups: Any, producer_id: int, where: tuple[str, str, int]) -> None:
    places = groups.open_offsets.get(producer_id)
    if places is not None:
        places.discard(where)
        if not places:
            del groups.open_offsets[producer_id]


def _apply(groups: Any, marker: Marker) -> None:
    """Keeps (1)."""
    # In one order, whatever a set's is: a replay does the same.
    for group_id, topic, partition in sorted(groups.open_offsets.pop(marker.producer_id, ())):
        group = groups.groups[group_id]
        place = topic, partition
        entries = group.unstable[place]
        order, entry = entries.pop(marker.producer_id)
        if marker.committed and entry is not None:
            group.offsets[place] = entry
            groups.changed.add((group_id, topic))
            for other, (when, _) in list(entries.items()):
                if when < order:
                    entries[other] = when, None
        if not entries:
            del group.unstable[place]
        if group.is_spent and not group.generation:
            groups.groups.pop(group_id, None)
