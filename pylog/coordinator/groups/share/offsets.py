"""Describe, alter and delete share group offsets, and delete share groups: the group coordinator's
part before and after the share coordinator's.

Owns: nothing; the groups belong to the state machine.
Invariants: a rejected step changes nothing; offsets are altered or deleted only while the group has
  no members; a deletion is recorded before the state is deleted, so that the next deletion
  completes an interrupted one.
Source: KIP-932; Kafka 4.4's group coordinator (response behaviour).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pylog.coordinator.groups.share import group as share_group
from pylog.coordinator.groups.share.group import TopicPartitions, ShareGroup
from pylog.protocol.errors import Error, ErrorCode

TYPE_CHECKING = False  # Importing typing would cost 6 ms at startup.
if TYPE_CHECKING:
    from pylog.coordinator.groups.state.group_store import GroupStore
    from pylog.metadata.image.image import Topic

NOTHING_TEXT = "There is no offset information to delete."


class Fault(NamedTuple):
    """The error that rejects a step, or NONE."""

    error: Error
    text: str | None = None


class Altering(NamedTuple):
    """The result of alter(). state_epoch: the initial epoch of the share partitions."""

    fault: Fault
    state_epoch: int = 0


class Deleting(NamedTuple):
    """The result of a deletion step.

    partitions: share partitions whose state must be deleted, by topic id. refused: topic -> error.
    """

    fault: Fault
    partitions: dict[bytes, list[int]]
    refused: dict[str, Fault]


FINE = Fault(ErrorCode.NONE)


def exists(store: GroupStore, group_id: str) -> bool:
    return group_id in store.shares


def initialized(store: GroupStore, group_id: str) -> dict[bytes, list[int]]:
    """Return the initialized share partitions of a group; empty if there is no group."""
    group = store.shares.get(group_id)
    return {} if group is None else {
        topic: sorted(row.partitions) for topic, row in group.initialized.items()}


def alter(store: GroupStore, group_id: str, partitions: Mapping[bytes, Iterable[int]],
          names: Mapping[bytes, str]) -> Altering:
    """Start re-initializing share partitions at another offset.

    Creates the group if needed. Rejected while the group has members.
    """
    group = store.shares.get(group_id)
    if group is None:
        if store.find(group_id) is not None:
            return Altering(Fault(ErrorCode.GROUP_ID_NOT_FOUND,
                                  f"Group {group_id} is not a share group."))
        if group_id in store.deleting:
            return Altering(Fault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        group = ShareGroup(group_id)
    fault = _empty_fault(group)
    if fault != FINE or not partitions:
        return Altering(fault, group.epoch)
    store.shares[group_id] = group
    now_ms = store.clock.wall_ms()
    for topic, indexes in partitions.items():
        old = group.initializing.get(topic)
        group.initializing[topic] = TopicPartitions(names[topic], frozenset(indexes) | (
            old.partitions if old is not None else frozenset()), now_ms)
        group.deleting.pop(topic, None)
    _record(store, group)
    return Altering(FINE, group.epoch)


def begin_deletion(store: GroupStore, group_id: str, names: Iterable[str],
                   topics: Mapping[str, Topic]) -> Deleting:
    """Record that share partitions are being deleted. topics: the image's, by name."""
    group = store.shares.get(group_id)
    if group is None:
        return Deleting(Fault(ErrorCode.GROUP_ID_NOT_FOUND,
                              f"Group {group_id} not found."), {}, {})
    fault = _empty_fault(group)
    if fault != FINE:
        return Deleting(fault, {}, {})
    partitions: dict[bytes, list[int]] = {}
    refused: dict[str, Fault] = {}
    for name in names:
        topic = topics.get(name)
        if topic is None:
            refused[name] = Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                                  ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.message)
        elif topic.id in group.initialized:
            partitions[topic.id] = sorted(group.initialized.pop(topic.id).partitions)
            group.deleting[topic.id] = name
        elif topic.id in group.deleting:
            partitions[topic.id] = list(range(len(topic.partitions)))
        else:
            refused[name] = Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOTHING_TEXT)
    if partitions:
        _record(store, group)
    return Deleting(FINE, partitions, refused)


def deleted(store: GroupStore, group_id: str, topic_ids: Iterable[bytes]) -> Error:
    """Complete the deletion of topics whose state was deleted."""
    group = store.shares.get(group_id)
    if group is None:
        return ErrorCode.NONE
    for topic in topic_ids:
        group.deleting.pop(topic, None)
    _record(store, group)
    return ErrorCode.NONE


def begin_group_deletion(store: GroupStore, group_id: str,
                         topics: Mapping[bytes, Topic]) -> Deleting:
    """Record that all share partitions of a group are being deleted. topics: by id."""
    group = store.shares.get(group_id)
    if group is None:
        return Deleting(Fault(ErrorCode.GROUP_ID_NOT_FOUND), {}, {})
    fault = _empty_fault(group)
    if fault != FINE:
        return Deleting(fault, {}, {})
    found: dict[bytes, set[int]] = {
        topic: set(range(len(topics[topic].partitions))) for topic in group.deleting
        if topic in topics}
    for rows in (group.initialized, group.initializing):
        for topic, row in rows.items():
            found.setdefault(topic, set()).update(row.partitions)
            group.deleting[topic] = row.name
    group.initialized, group.initializing = {}, {}
    if found:
        _record(store, group)
    return Deleting(FINE, {topic: sorted(indexes) for topic, indexes in found.items()}, {})


def delete_group(store: GroupStore, group_id: str) -> Error:
    """Remove a group whose share partition state was deleted."""
    group = store.shares.get(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    error = _empty_fault(group).error
    if error == ErrorCode.NONE:
        del store.shares[group_id]
        store.records += share_group.group_tombstones(group_id)
        store.changed.add((group_id, None))
    return error


def _empty_fault(group: ShareGroup) -> Fault:
    """Return the error if the group has members."""
    return Fault(ErrorCode.NON_EMPTY_GROUP, ErrorCode.NON_EMPTY_GROUP.message) \
        if group.members else FINE


def _record(store: GroupStore, group: ShareGroup) -> None:
    store.records.append(share_group.partitions_record(group))
    store.changed.add((group.id, None))
