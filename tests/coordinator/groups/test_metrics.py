"""Memory metrics of groups: the number of groups with their offsets, and their members' data."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.coordinator.groups import metrics as group_metrics
from pylog.coordinator.groups.consumer.group import ConsumerMember
from pylog.coordinator.groups.metrics import Room

KNOWN, GONE = b"t" * 16, b"g" * 16


def test_metrics_include_groups_and_offsets_up_to_the_limit():
    room = Room(groups=2, offsets=5, names=99)
    assert room.take("g", 3) and not room.is_full("g")
    assert room.take("g", 2) and room.is_full("g")
    assert not room.take("g", 0) and room.left_out == 1


def test_first_group_over_the_offset_limit_ends_the_offset_metrics():
    room = Room(groups=10, offsets=5, names=99)
    assert room.take("g", 5) and not room.take("g", 1)
    assert room.is_full("g") and not room.take("g", 0)
    assert room.left_out == 2


def test_groups_with_oversized_names_are_skipped():
    room = Room(groups=10, offsets=100, names=20)
    assert room.take("g" * 5, 2)  # Three times the name.
    assert not room.take("g" * 3, 1) and not room.is_full("g" * 3) and room.is_full("g" * 6)
    assert room.take("g" * 5, 0) and room.left_out == 1


def test_members_memory_covers_existing_assigned_and_revoked_partitions():
    member = ConsumerMember("m")
    member.assigned = {KNOWN: {0: 3, 2: 3}, GONE: {0: 3}}
    member.revoking = {KNOWN: {1: 2}}
    state_machine = SimpleNamespace(
        groups={"g": SimpleNamespace(kind="consumer", members={"m": member})},
        image=lambda: SimpleNamespace(topics_by_id={KNOWN: SimpleNamespace(name="t")}))
    coordinator = SimpleNamespace(query=lambda group_id, look: (look(state_machine), 0))
    [row] = asyncio.run(group_metrics.members(coordinator, "g"))
    assert (row["member_id"], row["partitions"]) == ("m", [("t", 0), ("t", 2), ("t", 1)])
    assert asyncio.run(group_metrics.members(coordinator, "h")) == []


# Groups in memory, and groups that are only in the snapshot.

def group(id_, offsets=1, members=2):
    return SimpleNamespace(
        id=id_, state="Stable", generation=4, members=dict.fromkeys(range(members)),
        offsets={("t", number): number for number in range(offsets)})


def shard(*groups, gone=(), kept=()):
    """kept: groups in its snapshot."""
    known = {one.id: one for one in kept}
    return SimpleNamespace(
        state_machine=SimpleNamespace(groups={one.id: one for one in groups}, gone=set(gone)),
        snapshot=SimpleNamespace(names=lambda: [(id_, "", "classic") for id_ in known],
                                 find=lambda id_: known[id_]))


def rows(room, *shards, meanwhile=None):
    """Return the result of rows(), and the number of event loop iterations during it."""
    turns = []

    async def work():
        going = asyncio.ensure_future(group_metrics.rows(
            SimpleNamespace(shards=lambda: (list(shards), False)), room))
        while not going.done():
            await asyncio.sleep(0)
            turns.append(1)
            if meanwhile is not None:
                meanwhile()
        return going.result()
    return asyncio.run(work()), len(turns)


def test_metrics_include_groups_of_all_shards():
    one, two = shard(group("a", 2), gone=["x"]), shard(group("b", 0, 0), gone=["y"])
    (found, ids, shards, gone), _ = rows(Room(9, 9, 99), one, two)
    assert [(row.id, row.state, row.generation, row.members, len(row.offsets)) for row in found] \
        == [("a", "Stable", 4, 2, 2), ("b", "Stable", 4, 0, 0)]
    assert (ids, shards, gone) == ({"a", "b"}, [one, two], {"x", "y"})
    assert found[0].offsets is not one.state_machine.groups["a"].offsets


def test_groups_over_the_limit_are_still_counted():
    room = Room(1, 9, 99)
    (found, ids, _, _), _ = rows(room, shard(group("a"), group("b"), group("c")))
    assert [row.id for row in found] == ["a"] and ids == {"a", "b", "c"} and room.left_out == 2


@pytest.mark.parametrize(("groups", "offsets", "more"), [
    (group_metrics.STEP - 1, 0, 0), (group_metrics.STEP, 0, 1), (2 * group_metrics.STEP, 0, 2),
    (1, group_metrics.STEP_OFFSETS, 1), (1, group_metrics.STEP_OFFSETS // 2, 0),
    (2, group_metrics.STEP_OFFSETS // 2, 1)])
def test_metrics_collection_yields_to_the_event_loop(groups, offsets, more):
    _, turns = rows(Room(10**9, 10**9, 10**9), shard(*[
        group(str(number), offsets) for number in range(groups)]))
    _, least = rows(Room(1, 1, 99), shard())
    assert turns - least == more


def test_group_deleted_during_the_iteration_is_skipped():
    one = shard(*[group(f"{number:04}", 0) for number in range(group_metrics.STEP + 1)])
    last = f"{group_metrics.STEP:04}"
    (found, ids, _, _), _ = rows(Room(10**9, 10**9, 10**9), one,
                                 meanwhile=lambda: one.state_machine.groups.pop(last, None))
    assert len(found) == group_metrics.STEP and last not in ids


def test_stored_groups_are_read_once():
    known = {"a": group_metrics.row(group("a", 3))}
    room = Room(9, 9, 99)
    kept = shard(kept=[group("a"), group("b"), group("c")])
    found = group_metrics.stored_rows([kept], known, {"c"}, room)
    assert found["a"] is known["a"] and set(found) == {"a", "b"} and room.left_out == 0


def test_stored_groups_over_the_limit_are_counted_but_not_read():
    room = Room(1, 9, 99)
    kept = shard(kept=[group("a"), group("b"), group("c")])
    read = []
    find = kept.snapshot.find
    kept.snapshot.find = lambda id_: read.append(id_) or find(id_)
    assert set(group_metrics.stored_rows([kept], {}, set(), room)) == {"a"}
    assert (room.left_out, read) == (2, ["a"])


def test_stored_groups_with_oversized_names_are_counted_but_not_read():
    room = Room(9, 9, 3)
    kept = shard(kept=[group("long name", 0), group("a", 0)])
    read = []
    find = kept.snapshot.find
    kept.snapshot.find = lambda id_: read.append(id_) or find(id_)
    assert set(group_metrics.stored_rows([kept], {}, set(), room)) == {"a"}
    assert (room.left_out, read) == (1, ["a"])


def test_stored_group_that_was_deleted_is_not_counted():
    room = Room(9, 9, 99)
    kept = shard(kept=[group("a")])
    kept.snapshot.find = lambda id_: None
    assert group_metrics.stored_rows([kept], {}, set(), room) == {} and room.left_out == 0
