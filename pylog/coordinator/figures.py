"""What the groups look like at a moment, for whoever watches them.

Owns: nothing.
Called by: monitor.lag: rows() and members() on the event loop, kept_rows() on any thread.
Invariants: (1) nothing is changed, nor brought into memory; (2) the event loop is held for a few
  groups at a time.
Source: none but coordinator.groups.
"""

import asyncio
from collections import namedtuple

from pylog.coordinator import groups
from pylog.protocol import codec
from pylog.protocol.errors import ProtocolError

STEP = 200      # Groups looked at in one go.
ASSIGNMENT = "ConsumerProtocolAssignment"
ASSIGNMENT_VERSION_MAX = 3

Row = namedtuple("Row", ("id", "state", "generation", "members", "offsets"))
Row.__doc__ = """One group. members: how many. offsets: {(topic, partition): group.Offset}, a
copy.
"""


def row(group) -> Row:
    return Row(group.id, group.state, group.generation, len(group.members), dict(group.offsets))


async def rows(coordinator) -> tuple:
    """([Row] of the groups in memory, the shards, ids of groups that were dropped)."""
    found, gone = [], set()
    shards, _ = coordinator.shards()
    for shard in shards:
        machine = shard.groups
        gone |= machine.gone
        ids = list(machine.groups)
        for first in range(0, len(ids), STEP):
            found += [row(machine.groups[group_id]) for group_id in ids[first:first + STEP]
                      if group_id in machine.groups]
            if first + STEP < len(ids):
                await asyncio.sleep(0)
    return found, shards, gone


async def members(coordinator, group_id: str) -> list:
    """[{field: value}] of the members of one group, with the partitions that each was given."""
    shard, _ = coordinator.shard_of(group_id)
    group = None if shard is None else shard.groups.groups.get(group_id)
    if group is None:
        return []
    return [{"member_id": member.id, "client_id": member.client_id, "host": member.client_host,
             "instance_id": member.instance_id, "partitions": assigned(member.assignment)}
            for member in group.members.values()]


async def events(coordinator) -> dict:
    """Event -> how often, over all groups, since they were loaded."""
    totals = dict.fromkeys(groups.EVENTS, 0)
    for shard in coordinator.shards()[0]:
        for name, count in shard.groups.events.items():
            totals[name] += count
    return totals


def kept_rows(shards, known, count_max: int):
    """Yields Rows of groups that are in state.lmdb only, but for those whose ids are `known`."""
    for shard in shards:
        for group_id, _ in shard.kept.names():
            if count_max <= 0:
                return
            if group_id not in known:
                group = shard.kept.find(group_id)
                if group is not None:
                    count_max -= 1
                    yield row(group)


def assigned(assignment: bytes) -> list:
    """[(topic, partition)] of a member's assignment; [] of what is not a consumer's."""
    if len(assignment) < 2:
        return []
    version = min(int.from_bytes(assignment[:2], "big", signed=True), ASSIGNMENT_VERSION_MAX)
    try:
        message = codec.program(ASSIGNMENT, version).decode(bytes(assignment), 2)
        return [(part.topic, index) for part in message.assigned_partitions
                for index in part.partitions]
    except ProtocolError:
        return []
