"""What figures take of groups: how many with their offsets, and what their members have."""

import asyncio
from types import SimpleNamespace

from pylog.coordinator import group_metrics
from pylog.coordinator.consumer_group import ConsumerMember
from pylog.coordinator.group_metrics import Room

KNOWN, GONE = b"t" * 16, b"g" * 16


def test_groups_and_their_offsets_are_taken_to_the_last_that_has_room():
    room = Room(groups=2, offsets=5)
    assert room.take(3) and not room.is_full()
    assert room.take(2) and room.is_full()
    assert not room.take(0) and room.left_out == 1


def test_once_a_group_finds_no_room_for_its_offsets_no_later_one_is_taken():
    room = Room(groups=10, offsets=5)
    assert room.take(5) and not room.take(1)
    assert room.is_full() and not room.take(0)
    assert room.left_out == 2


def test_a_member_has_what_it_is_given_and_what_it_gives_back_of_topics_that_are_there():
    member = ConsumerMember("m")
    member.assigned = {KNOWN: {0: 3, 2: 3}, GONE: {0: 3}}
    member.revoking = {KNOWN: {1: 2}}
    machine = SimpleNamespace(
        groups={"g": SimpleNamespace(kind="consumer", members={"m": member})},
        image=lambda: SimpleNamespace(topics_by_id={KNOWN: SimpleNamespace(name="t")}))
    coordinator = SimpleNamespace(look=lambda group_id, look: (look(machine), 0))
    [row] = asyncio.run(group_metrics.members(coordinator, "g"))
    assert (row["member_id"], row["partitions"]) == ("m", [("t", 0), ("t", 2), ("t", 1)])
    assert asyncio.run(group_metrics.members(coordinator, "h")) == []
