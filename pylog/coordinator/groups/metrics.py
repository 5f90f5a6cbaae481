"""Snapshots of the groups for monitoring.

Owns: nothing.
Invariants: nothing is changed or loaded into memory; the event loop is blocked for a few groups at
  a time.
Source: none, specific to the group coordinator.
"""

import asyncio
from collections import namedtuple

from pylog.coordinator.groups.state import consumer_protocol
from pylog.coordinator.groups.state.classic_group import CLASSIC, STREAMS
from pylog.protocol.errors import ProtocolError

STEP = 200  # Groups per step,
STEP_OFFSETS = 2000  # and committed offsets per step.

Row = namedtuple("Row", ("id", "state", "generation", "members", "offsets"))
Row.__doc__ = """One group. members: their number. offsets: a copy, {(topic, partition):
group.Offset}.
"""


class Room:
    """The remaining capacity. Once the offsets of a group do not fit, every later group is only
    counted.

    names: characters. A group uses its name's length once for itself and once for each offset,
    because each of their metrics contains the name. A group whose name does not fit is counted, and
    later groups with shorter names are still taken.
    """

    def __init__(self, groups: int, offsets: int, names: int):
        self._groups = groups
        self._offsets = offsets
        self._names = names
        self.left_out = 0

    def is_full(self, group_id: str) -> bool:
        """Return True if there is no room for this group, whatever its offsets."""
        return self._groups < 1 or self._names < len(group_id)

    def take(self, group_id: str, offsets: int) -> bool:
        characters = len(group_id) * (1 + offsets)
        if self._offsets < offsets:
            self._groups = 0
        if self._groups < 1 or self._names < characters:
            self.left_out += 1
            return False
        self._groups -= 1
        self._offsets -= offsets
        self._names -= characters
        return True


def row(group) -> Row:
    return Row(group.id, group.state, group.generation, len(group.members), dict(group.offsets))


async def rows(coordinator, room: Room) -> tuple:
    """Return ([Row] of groups in memory that fit, ids of all groups in memory, the shards, ids of
    dropped groups).
    """
    found, ids, gone = [], set(), set()
    shards, _ = coordinator.shards()
    visited = 0
    for shard in shards:
        store = shard.state_machine
        gone |= store.gone
        for group_id in list(store.groups):
            group = store.groups.get(group_id)
            if group is None:
                continue
            ids.add(group_id)
            visited += 1
            if room.take(group_id, len(group.offsets)):
                found.append(row(group))
                visited += len(group.offsets) * STEP // STEP_OFFSETS
            if visited >= STEP:
                visited = 0
                await asyncio.sleep(0)
    return found, ids, shards, gone


async def members(coordinator, group_id: str) -> list:
    """Return [{field: value}] of the members of one group, with their assigned partitions."""
    found, _ = coordinator.query(group_id, lambda store: (
        store.groups.get(group_id), store.image().topics_by_id))
    if found is None or found[0] is None:
        return []
    group, topics = found
    return [{"member_id": member.id, "client_id": member.client_id, "host": member.client_host,
             "instance_id": member.instance_id, "partitions": assigned(member.assignment)
             if group.kind == CLASSIC else _held(group, member, topics)}
            for member in group.members.values()]


def _held(group, member, topics: dict) -> list:
    if group.kind == STREAMS:
        return [(topic, index) for held in (member.assigned, member.revoking)
                for id_, partitions in held.active.items()
                for topic, subtopology in group.topology.sources().items() if subtopology == id_
                for index in partitions]
    return [(topics[topic_id].name, index) for held in (member.assigned, member.revoking)
            for topic_id, partitions in held.items() if topic_id in topics for index in partitions]


async def events(coordinator) -> dict:
    """Return {event: count since the start, over all groups}."""
    return coordinator.events


def stored_rows(shards, known: dict, elsewhere: set, room: Room) -> dict:
    """Return {group id: Row} of the groups that are only in state.lmdb, without `elsewhere`.

    known: the previous result; these groups do not change while they are only on disk.
    """
    found = {}
    for shard in shards:
        for group_id, _, _ in shard.snapshot.names():
            if group_id in elsewhere:
                continue
            known_row = known.get(group_id)
            if known_row is None:
                if room.is_full(group_id):
                    room.left_out += 1
                    continue
                group = shard.snapshot.find(group_id)
                if group is None:
                    continue
                known_row = row(group)
            if room.take(group_id, len(known_row.offsets)):
                found[group_id] = known_row
    return found


def assigned(assignment: bytes) -> list:
    """Return [(topic, partition)] of a member's assignment; [] if it is no consumer assignment."""
    try:
        assigned = consumer_protocol.assignment(assignment).assigned_partitions
        return [(topic.topic, index) for topic in assigned for index in topic.partitions]
    except ProtocolError:
        return []
