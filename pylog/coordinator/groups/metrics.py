"""What the groups look like at a moment, for whoever watches them.

Owns: nothing.
Invariants: (1) nothing is changed, nor brought into memory; (2) the event loop is held for a few
  groups at a time.
Source: none but coordinator.groups.
"""

import asyncio
from collections import namedtuple

from pylog.coordinator.groups.state import consumer_protocol as embedded
from pylog.coordinator.groups.state.classic_group import CLASSIC, STREAMS
from pylog.protocol.errors import ProtocolError

STEP = 200              # Groups looked at in one go,
STEP_OFFSETS = 2000     # and their committed offsets.

Row = namedtuple("Row", ("id", "state", "generation", "members", "offsets"))
Row.__doc__ = """One group. members: how many. offsets: {(topic, partition): group.Offset}, a
copy.
"""


class Room:
    """How much may still be taken: once something finds no place, nothing does, and is counted."""

    def __init__(self, groups: int, offsets: int):
        self._groups = groups
        self._offsets = offsets
        self.left_out = 0

    def is_full(self) -> bool:
        return self._groups < 1

    def take(self, offsets: int) -> bool:
        if self._groups < 1 or self._offsets < offsets:
            self._groups = 0
            self.left_out += 1
            return False
        self._groups -= 1
        self._offsets -= offsets
        return True


def row(group) -> Row:
    return Row(group.id, group.state, group.generation, len(group.members), dict(group.offsets))


async def rows(coordinator, room: Room) -> tuple:
    """([Row] of the groups in memory for which there is room, all their ids, the shards, ids of
    groups that were dropped)."""
    found, ids, gone = [], set(), set()
    shards, _ = coordinator.shards()
    looked = 0
    for shard in shards:
        machine = shard.machine
        gone |= machine.gone
        for group_id in list(machine.groups):
            group = machine.groups.get(group_id)
            if group is None:
                continue
            ids.add(group_id)
            looked += 1
            if room.take(len(group.offsets)):
                found.append(row(group))
                looked += len(group.offsets) * STEP // STEP_OFFSETS
            if looked >= STEP:
                looked = 0
                await asyncio.sleep(0)
    return found, ids, shards, gone


async def members(coordinator, group_id: str) -> list:
    """[{field: value}] of the members of one group, with the partitions that each was given."""
    found, _ = coordinator.look(group_id, lambda machine: (
        machine.groups.get(group_id), machine.image().topics_by_id))
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
    """Event -> how often, over all groups, since the start."""
    return coordinator.events


def kept_rows(shards, known: dict, elsewhere: set, room: Room) -> dict:
    """{group id: Row} of the groups that are in state.lmdb only; those in `elsewhere` are not.

    known: what the last call gave: what is there only does not change.
    """
    found = {}
    for shard in shards:
        for group_id, _, _ in shard.snapshot.names():
            if group_id in elsewhere:
                continue
            one = known.get(group_id)
            if one is None:
                group = None if room.is_full() else shard.snapshot.find(group_id)
                one = None if group is None else row(group)
            if one is None:
                room.left_out += room.is_full()
            elif room.take(len(one.offsets)):
                found[group_id] = one
    return found


def assigned(assignment: bytes) -> list:
    """[(topic, partition)] of a member's assignment; [] of what is not a consumer's."""
    try:
        return [(part.topic, index) for part in embedded.assignment(assignment).assigned_partitions
                for index in part.partitions]
    except ProtocolError:
        return []
