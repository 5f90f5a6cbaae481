"""The rows of groups in state.lmdb: written, deleted, and unchanged rows."""

from types import SimpleNamespace

import pytest

from pylog.coordinator.groups import describe as group_describe
from pylog.coordinator.groups import snapshot
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.snapshot import ShardSnapshot
from pylog.coordinator.groups.state.classic_group import CLASSIC, CONSUMER, NO_TIME, Offset
from pylog.metadata.image.state_store import Store
from tests.coordinator.groups.consumer.test_heartbeat import Machine as Consumers
from tests.coordinator.groups.share.test_group_records import full, told
from tests.coordinator.groups.test_shard import LIMITS, Machine
from tests.coordinator.world import Clock

TOPIC_ID = bytes(15) + b"\x05"


@pytest.fixture
def store(tmp_path):
    store = Store(str(tmp_path))
    yield store
    store.close()


@pytest.fixture
def kept(store):
    return ShardSnapshot(store, TOPIC_ID, 7)


def write(kept, groups, applied=(10, 0), changed=None) -> list:
    """Update the map; return the written rows, a list for each step."""
    steps = list(kept.rows(groups, groups.changed if changed is None else changed))
    for rows in steps:
        kept.write(rows, None)
    kept.write([], applied)
    groups.changed.clear()
    return steps


def prefixes(steps) -> list[tuple[bytes, bool]]:
    """Return (kind, True if there is a value) of each row."""
    return [(key[:4], value is not None) for rows in steps for key, value in rows]


@pytest.mark.parametrize("applied", [(0, 0), (10, 3), (2**40, 2**30)])
def test_the_applied_offset_is_read_back_of_this_topic_and_partition_only(kept, store, applied):
    assert kept.applied() == (-1, -1)
    kept.write([], applied)
    assert kept.applied() == applied
    assert ShardSnapshot(store, TOPIC_ID, 8).applied() == (-1, -1)
    assert ShardSnapshot(store, bytes(16), 7).applied() == (-1, -1)


@pytest.mark.parametrize("applied", [(-1, 0), (0, -1)])
def test_undefined_offset_is_not_written(kept, applied):
    with pytest.raises(AssertionError):
        kept.write([], applied)


def test_rows_without_an_applied_offset_keep_the_previous_one(kept):
    kept.write([], (3, 1))
    kept.write([(b"cg/g" + bytes(20), b"")], None)
    assert kept.applied() == (3, 1)


def test_only_topics_whose_offsets_changed_are_written(kept):
    state_machine = Machine()
    state_machine.commit(5)
    state_machine.commit(6, topic="u")
    write(kept, state_machine.groups)
    state_machine.commit(7, topic="u")
    assert prefixes(write(kept, state_machine.groups)) == [
        (b"cg/g", True), (b"cg/m", False), (b"cg/o", True)]
    assert {place: entry.offset for place, entry in kept.find("g").offsets.items()} \
        == {("t", 0): 5, ("u", 0): 7}


def test_a_topic_that_has_no_offsets_any_more_has_no_row(kept):
    state_machine = Machine()
    state_machine.commit(5)
    state_machine.commit(6, topic="u")
    write(kept, state_machine.groups)
    state_machine.group.offsets.pop(("u", 0))
    write(kept, state_machine.groups, changed={("g", "u")})
    assert list(kept.find("g").offsets) == [("t", 0)]


def test_deleted_group_removes_only_its_own_offsets(kept):
    state_machine = Machine()
    for topic in "tuv":
        state_machine.commit(5, topic=topic)
    write(kept, state_machine.groups)
    state_machine.groups.find_or_make("h").offsets["t", 0] = Offset(1, 0, "", 1, NO_TIME, bytes(16))
    write(kept, state_machine.groups, changed={("h", "t")})
    state_machine.groups.groups.pop("g")
    write(kept, state_machine.groups, changed={("g", None)})
    assert kept.find("g") is None and list(kept.find("h").offsets) == [("t", 0)]
    assert [name for name, *_ in kept.names()] == ["h"]


def test_offsets_are_read_as_they_were_with_and_without_metadata(kept):
    state_machine = Machine()
    found = {
        ("t", 0): Offset(2**40, 7, "", 11, NO_TIME, b"i" * 16),
        ("t", 1): Offset(1, -1, "m\u00fc\udc80", 12, 13, bytes(16)),
        ("t", 2**20): Offset(0, 0, "x" * 9000, 14, 15, b"j" * 16)}
    state_machine.groups.find_or_make("\u00fc" * 9).offsets.update(found)
    write(kept, state_machine.groups, changed={("\u00fc" * 9, "t")})
    assert kept.find("\u00fc" * 9).offsets == found


def test_a_group_without_a_record_has_no_time_and_no_state(kept):
    state_machine = Machine()
    state_machine.commit(5)
    write(kept, state_machine.groups)
    found = kept.find("g")
    assert (found.generation, found.state_ms, found.kind) == (0, NO_TIME, CLASSIC)


def test_members_are_restored_and_groups_without_stay_in_the_map(kept):
    state_machine = Machine()
    member, = state_machine.stable("a")
    state_machine.groups.find_or_make("h").offsets["t", 0] = Offset(1, 0, "", 1, NO_TIME, bytes(16))
    write(kept, state_machine.groups, changed={*state_machine.groups.changed, ("h", "t")})
    again = GroupShard(LIMITS, Clock(), str, kept.find, kept.names)
    kept.restore(again)
    assert list(again.groups) == ["g"] and list(again.groups["g"].members) == [member]
    assert again.changed == set()
    assert sorted(name for name, *_ in kept.names()) == ["g", "h"]
    state_machine.groups.leave("g", [(member, None)])
    write(kept, state_machine.groups)
    assert kept.with_members() == [] and kept.find("g").generation == 2


def test_a_share_group_is_restored_from_its_records(kept):
    groups = GroupShard(LIMITS, Clock(), str)
    groups.shares["g"] = full()
    assert prefixes(write(kept, groups, changed={("g", None)})) == [
        (b"cg/g", False), (b"cg/m", False), (b"cg/o", False), (b"cg/s", True)]
    again = GroupShard(LIMITS, Clock(), str, kept.find, kept.names)
    kept.restore(again)
    row, wanted = told(again.shares["g"]), told(full())
    for name in ("initializing", "initialized"):
        assert {key: places[:2] for key, places in row.pop(name).items()} \
            == {key: places[:2] for key, places in wanted.pop(name).items()}
    assert row == wanted and again.changed == set() and again.groups == {}
    del groups.shares["g"]
    write(kept, groups, changed={("g", None)})
    last = GroupShard(LIMITS, Clock(), str, kept.find, kept.names)
    kept.restore(last)
    assert last.shares == {}


# ---- newer groups -------------------------------------------------------------------------------

def test_changed_members_are_written_with_their_group(kept):
    state_machine = Consumers()
    state_machine.join("a")
    state_machine.join("b")
    write(kept, state_machine.groups)
    state_machine.beat("a", state_machine.group.members["a"].epoch, rack_id="r")
    assert state_machine.groups.changed == {("g", ("a",))}
    assert prefixes(write(kept, state_machine.groups)) == [
        (b"cg/g", True), (b"cg/m", True), (b"cg/c", True)]
    found = kept.find("g")
    assert found.kind == CONSUMER and set(found.members) == {"a", "b"}
    assert found.members["a"].rack_id == "r"


def test_departed_and_downgraded_members_have_no_rows(kept):
    state_machine = Consumers()
    state_machine.join("a")
    state_machine.join("b")
    write(kept, state_machine.groups)
    state_machine.beat("b", -1)
    assert (b"cg/c", False) in prefixes(write(kept, state_machine.groups))
    assert set(kept.find("g").members) == {"a"}
    state_machine.groups.groups["g"] = SimpleNamespace(kind=CLASSIC)
    (_, value), = kept._member_rows(state_machine.groups, "g", ["a"])
    assert value is None
    del state_machine.groups.groups["g"]
    (_, value), = kept._member_rows(state_machine.groups, "g", ["a"])
    assert value is None


@pytest.mark.parametrize("count, steps", [(500, 1), (501, 2), (1001, 3)])
def test_many_members_are_written_in_steps(kept, count, steps):
    groups = GroupShard(LIMITS, Clock(), str)
    changed = {("g", (f"m{number}",)) for number in range(count)}
    rows = list(kept.rows(groups, changed))
    assert len(rows) == 1 + steps
    assert sum(map(len, rows[1:])) == count == len({key for some in rows[1:] for key, _ in some})


# ---- other logs ---------------------------------------------------------------------------------

def test_to_clear_forgets_this_partition_whole_and_no_other(kept, store):
    other = ShardSnapshot(store, TOPIC_ID, 8)
    state_machine, shares = Machine(), GroupShard(LIMITS, Clock(), str)
    member, = state_machine.stable("a")
    state_machine.commit(5, member, 1)
    shares.shares["s"] = full()
    for place in (kept, other):
        write(place, state_machine.groups, changed={("g", None), ("g", "t")})
        write(place, shares, changed={("s", None)})
    kept.clear()
    assert kept.applied() == (-1, -1) and kept.names() == [] and kept.find("g") is None
    again = GroupShard(LIMITS, Clock(), str)
    kept.restore(again)
    assert again.groups == again.shares == {}
    assert other.applied() == (10, 0) and other.find("g").offsets
    with store.transaction() as txn:
        left = [key for prefix in snapshot.EVERY
                for key, _ in snapshot._walk(txn, prefix + (7).to_bytes(4, "big"))]
    assert left == []


def test_clearing_an_empty_partition_writes_nothing(kept, store, monkeypatch):
    begun = []
    transaction = store.transaction
    monkeypatch.setattr(store, "transaction", lambda write=False: (
        begun.append(write), transaction(write=write))[1])
    kept.clear()
    assert begun == [False]
    kept.write([], (1, 1))
    begun.clear()
    kept.clear()
    assert begun == [False, True]


def test_deletion_of_a_stored_group_removes_its_rows(kept):
    state_machine = Machine()
    state_machine.commit(5)
    write(kept, state_machine.groups)
    again = GroupShard(LIMITS, Clock(), str, kept.find, kept.names)
    kept.restore(again)
    list(group_describe.delete(again, "g"))
    write(kept, again)
    assert kept.find("g") is None and kept.names() == []
