"""Partitions that are created, changed and deleted while a node runs: effects of each step."""

import os

import pytest

from pylog._native.log.log import StorageError
from pylog.log import checkpoint_files
from pylog.log import partition_logs
from pylog.log import topic_branches
from pylog.log.partition_logs import NOTHING_KNOWN, Role
from tests.log.played import AT_REST, KNOWN, LEADS, NOW, World, failure, topic_id

FOLLOWS = Role(False, 4, 1)


@pytest.fixture
def world(monkeypatch, tmp_path):
    one = World(monkeypatch, tmp_path)
    one.start()
    return one


@pytest.fixture
def two(monkeypatch, tmp_path):
    one = World(monkeypatch, tmp_path, disks=2)
    one.start()
    return one


# New topics.

def test_new_partitions_use_the_emptiest_directory(two):
    two.logs.disks.loads = [1, 0]
    two.logs.create("t", topic_id(), [LEADS, None, FOLLOWS], {})
    assert two.opened == [(1, "t", 0, NOTHING_KNOWN, False), (0, "t", 2, NOTHING_KNOWN, False)]
    assert [two.logs.dir_index("t", index) for index in (0, 2)] == [1, 0]
    assert two.logs.get("t", 0).is_leader and not two.logs.get("t", 2).is_leader
    assert two.logs.disks.loads == [2, 1] and two.logs.get("t", 0).id == topic_id()
    assert two.logs.by_topic() == [
        ("t", [two.logs.get("t", 0), None, two.logs.get("t", 2)])]


def test_all_logs_are_described_by_directory(two):
    two.logs.create("t", topic_id(), [LEADS, LEADS, LEADS], {})
    two.disks[1].offline = True
    first, second, third = (two.logs.get("t", index) for index in range(3))
    assert two.logs.describe() == [
        (two.paths[0], False, [("t", 0, first), ("t", 2, third)]),
        (two.paths[1], True, [("t", 1, second)])]


@pytest.fixture
def branched(two, monkeypatch):
    """Prepare a branch `t` of `source`. Returns its parts' results."""
    two.logs.create("source", topic_id(1), [LEADS, LEADS], {})
    two.done, two.parts = [], []

    def prepare(sources, name, id_, cut, config, now_ms):
        two.asked = sources, name, id_, cut, now_ms
        two.parts[:] = [topic_branches.Part(place, "path", KNOWN._replace(recovery_point=index))
                        for index, (_, place) in enumerate(sources)]
        return list(two.parts)

    monkeypatch.setattr(topic_branches, "prepare", prepare)
    monkeypatch.setattr(topic_branches, "discard",
                        lambda parts: two.done.append(("discard", parts)))
    monkeypatch.setattr(topic_branches, "publish",
                        lambda name, parts: two.done.append((name, parts)))
    two.opened.clear()
    return two


def test_branch_opens_in_its_sources_directory_with_flushed_data(branched):
    two = branched
    two.logs.prepare_branch("t", topic_id(2), "source", "cut", {})
    assert two.asked == ([(two.logs.get("source", 0), 0), (two.logs.get("source", 1), 1)],
                         "t", topic_id(2), "cut", NOW)
    assert two.store.saved == [([((topic_id(2), index), part.checkpoint)
                                 for index, part in enumerate(two.parts)], [])]
    two.logs.create("t", topic_id(2), [LEADS, LEADS], {})
    assert two.done == [("t", two.parts)]
    assert two.opened == [(index, "t", index, part.checkpoint, False)
                          for index, part in enumerate(two.parts)]
    assert two.rows(checkpoint_files.RECOVERY_POINT, 1) == {("t", 1): 1}


def test_a_branch_of_which_the_store_cannot_know_is_discarded(branched):
    branched.store.refuses = True
    with pytest.raises(OSError, match="planted"):
        branched.logs.prepare_branch("t", topic_id(2), "source", "cut", {})
    assert branched.done == [("discard", branched.parts)]
    branched.logs.create("t", topic_id(2), [LEADS], {})
    assert branched.opened == [(0, "t", 0, NOTHING_KNOWN, False)]


def test_branch_without_its_topic_is_discarded_once(branched):
    branched.logs.prepare_branch("t", topic_id(2), "source", "cut", {})
    branched.logs.discard_branch(topic_id(3))
    for _ in range(2):
        branched.logs.discard_branch(topic_id(2))
    assert branched.done == [("discard", branched.parts)]


def test_unpublishable_branch_is_left_to_the_next_start(branched, monkeypatch):
    def publish(name, parts):
        raise OSError(5, "planted")

    monkeypatch.setattr(topic_branches, "publish", publish)
    branched.logs.prepare_branch("t", topic_id(2), "source", "cut", {})
    branched.logs.create("t", topic_id(2), [LEADS, LEADS], {})
    assert branched.opened == [] and branched.logs.get("t", 0) is None
    assert branched.logs.finish_moves() == []


def test_topic_waits_until_stale_checkpoint_rows_are_removed(world, monkeypatch):
    is_free = []
    monkeypatch.setattr(world.logs._hints, "is_free", lambda place, key: bool(is_free))
    world.logs.create("t", topic_id(1), [LEADS], {})
    assert world.logs.get("t", 0) is None and world.logs.finish_moves() == []
    is_free.append(True)
    assert world.logs.finish_moves() == ["t"] and len(world.opened) == 1
    assert world.logs.disks.loads == [1] and not world.logs.any_offline("t")


# Deleted topics and partitions.

def test_a_deleted_topic_leaves_nothing_behind(two):
    two.logs.create("t", topic_id(1), [LEADS, None, LEADS], {"flush.ms": "5"})
    two.logs.create("u", topic_id(2), [LEADS, LEADS], {"flush.ms": "5"})
    first, third = two.logs.get("t", 0), two.logs.get("t", 2)
    forgotten = []
    two.logs.cleaner.forget = forgotten.append
    two.logs.move("t", 0, 1)
    two.logs.delete("t")
    assert first.steps[-1] == third.steps[-1] == ("delete", NOW)
    assert two.logs.get("t", 0) is None and not two.logs.moves.all() and forgotten == ["t"]
    assert two.logs.disks.loads == [1, 1]
    assert two.logs._topics.directories == {two.logs.get("u", 1): 1}
    assert two.logs._topics.timed == {two.logs.get("u", 0), two.logs.get("u", 1)}


def test_a_deleted_topics_checkpoints_go_from_store_and_files(two):
    two.logs.create("t", topic_id(1), [LEADS, LEADS], {})
    two.logs.create("u", topic_id(2), [LEADS, LEADS], {})
    for name in "tu":
        for index in (0, 1):
            two.logs.get(name, index).recovery_point = 5
    two.logs.write_checkpoints()
    two.logs.delete("t")
    two.logs.upkeep(NOW)
    assert [two.rows(checkpoint_files.RECOVERY_POINT, place) for place in (0, 1)] == [
        {("u", 0): 5}, {("u", 1): 5}]
    two.logs.write_checkpoints()
    assert two.store.saved[-1] == ([], [(topic_id(1), 0), (topic_id(1), 1)])


def test_recreated_topic_is_not_offline(two):
    two.logs.create("t", topic_id(1), [LEADS, LEADS], {"flush.ms": "5"})
    two.disks[1].offline = True
    assert two.logs.take_failed() == [("t", 1)] and two.logs.take_failed() == []
    assert two.logs._topics.timed == {two.logs.get("t", 0)} and two.logs.any_offline("t")
    two.logs.delete("t")
    assert not two.logs.any_offline("t") and two.logs.offline == []


def test_undeletable_log_is_removed_from_the_lists(world, caplog):
    world.logs.create("t", topic_id(1), [LEADS], {})
    world.logs.get("t", 0).refuses.add("delete")
    world.logs.delete("t")
    assert world.logs.get("t", 0) is None and world.logs.disks.loads == [0]
    assert "a partition could not be deleted" in caplog.text


@pytest.mark.parametrize("call", ["delete", "drop", "assume"])
def test_change_waits_for_recovery_of_the_partition(world, call):
    world.logs.create("t", topic_id(1), [LEADS], {})
    waited = []

    class Recovery:
        left = 0

        def wait(self, topic):
            waited.append((topic, world.logs.get("t", 0) is not None))

    world.logs._recovery = Recovery()
    {"delete": lambda: world.logs.delete("t"), "drop": lambda: world.logs.drop("t", [0]),
     "assume": lambda: world.logs.assume("t", [LEADS])}[call]()
    assert waited == [("t", True)]


def test_dropping_a_partition_keeps_its_topic(two):
    two.logs.create("t", topic_id(1), [LEADS, LEADS, None], {"flush.ms": "5"})
    for index in (0, 1):
        two.logs.get("t", index).recovery_point = 5
    two.logs.write_checkpoints()
    gone, left = two.logs.get("t", 1), two.logs.get("t", 0)
    two.logs.move("t", 1, 0)
    two.logs.drop("t", [1, 2])
    assert [two.logs.get("t", index) for index in range(3)] == [left, None, None]
    assert gone.steps[-1] == ("delete", NOW) and not two.logs.moves.all()
    assert two.logs.disks.loads == [1, 0] and two.logs._topics.timed == {left}
    two.logs.upkeep(NOW)
    assert [two.rows(checkpoint_files.RECOVERY_POINT, place) for place in (0, 1)] == [
        {("t", 0): 5}, {}]
    two.logs.write_checkpoints()
    assert two.store.saved[-1] == ([], [(topic_id(1), 1)])


def test_dropped_partition_is_neither_offline_nor_reopened(two):
    two.refusals["t", 0] = failure()
    two.logs.create("t", topic_id(1), [LEADS, LEADS], {})
    two.disks[1].offline = True
    two.logs.take_failed()
    two.logs.drop("t", [0, 1])
    two.refusals.clear()
    assert two.logs.offline == [] and two.logs.finish_moves() == []


# Roles and new partitions.

def test_partition_changes_open_new_logs_and_update_roles(two):
    two.logs.create("t", topic_id(1), [LEADS, None], {})
    first = two.logs.get("t", 0)
    two.logs.assume("t", [FOLLOWS, None, LEADS, None])
    assert two.logs.get("t", 0) is first and first.leader_epoch == 4 and not first.is_leader
    assert two.opened[1:] == [(1, "t", 2, NOTHING_KNOWN, False)]
    assert [two.logs.get("t", index) is None for index in range(5)] == [
        False, True, False, True, True]
    assert len(two.logs.by_topic()[0][1]) == 4


@pytest.mark.parametrize(("added", "opened"), [((), []), ({1}, [1]), ({1, 2}, [1, 2])])
def test_an_older_partition_is_opened_only_when_this_node_gets_a_replica(world, added, opened):
    """A partition that is not open could not be opened: it stays that way."""
    world.refusals.update({("t", index): failure() for index in (1, 2)})
    world.logs.create("t", topic_id(1), [LEADS, LEADS, LEADS], {})
    world.refusals.clear()
    world.opened.clear()
    world.logs.assume("t", [LEADS, LEADS, LEADS], added)
    assert [entry[2] for entry in world.opened] == opened


# Settings.

def test_topic_settings_reach_its_logs_and_the_timed_flusher(world):
    world.logs.create("t", topic_id(1), [LEADS, None], {})
    world.logs.create("u", topic_id(2), [LEADS], {})
    one, other = world.logs.get("t", 0), world.logs.get("u", 0)
    assert one.steps == [] and one.config is other.config
    world.logs.configure("t", {"flush.ms": "5"})
    assert one.steps[-1][1]["flush.ms"] == 5 and other.steps == []
    assert world.logs._topics.timed == {one}
    world.logs.configure("t", {})
    assert one.steps[-1][1] == other.config and world.logs._topics.timed == set()


def test_broker_settings_apply_below_topic_settings(world):
    world.logs.create("t", topic_id(1), [LEADS], {"segment.bytes": "2000000"})
    world.logs.create("u", topic_id(2), [LEADS], {})
    world.settings._values["log.segment.bytes"] = 3_000_000
    world.settings._values["log.flush.interval.ms"] = 7
    world.settings._topic_defaults = None
    world.logs.reconfigure()
    assert [world.logs.get(name, 0).steps[-1][1]["segment.bytes"] for name in "tu"] == [
        2_000_000, 3_000_000]
    assert world.logs._topics.timed == {world.logs.get("t", 0), world.logs.get("u", 0)}


def test_log_opened_during_a_settings_change_has_the_new_ones(world, monkeypatch):
    opened = partition_logs.open_log

    def open_log(*given):
        world.logs.configure("t", {"flush.ms": "5"})
        return opened(*given)

    monkeypatch.setattr(partition_logs, "open_log", open_log)
    world.logs.create("t", topic_id(1), [LEADS], {})
    one = world.logs.get("t", 0)
    assert [step[1]["flush.ms"] for step in one.steps] == [5] and world.logs._topics.timed == {one}


@pytest.mark.parametrize(("default", "compacted"), [
    ("delete", ["own", "both"]), ("compact", ["own", "both", "plain"])])
def test_cleaner_gets_only_logs_with_a_compact_policy(
        monkeypatch, tmp_path, default, compacted):
    world = World(monkeypatch, tmp_path, disks=2, **{"log.cleanup.policy": default})
    world.start()
    for number, (name, overrides) in enumerate((
            ("own", {"cleanup.policy": "compact"}), ("plain", {}),
            ("not", {"cleanup.policy": "delete"}), ("both", {"cleanup.policy": "compact,delete"}))):
        world.logs.create(name, topic_id(number), [LEADS, LEADS, None], overrides)
    found = list(world.logs._topics.compacted())
    assert sorted({one.topic for one in found}) == sorted(compacted)
    assert [(one.partition, one.dir_index) for one in found if one.topic == "own"] == [(0, 0),
                                                                                       (1, 1)]
    assert all(one.log is world.logs.get(one.topic, one.partition) for one in found)


# Deleted records.

def test_a_start_that_moved_is_on_disk_beside_the_log(two):
    two.logs.create("t", topic_id(1), [LEADS, LEADS], {})
    assert two.logs.move_start("t", 1, 7) == 7
    assert two.logs.get("t", 1).steps == [("move_start", 7, NOW)]
    assert [two.rows(checkpoint_files.LOG_START, place) for place in (0, 1)] == [{}, {("t", 1): 7}]


def test_start_offset_change_during_topic_deletion_leaves_no_row(two):
    two.logs.create("t", topic_id(1), [LEADS, LEADS], {})
    one = two.logs.get("t", 1)

    def move_start(offset, now_ms):
        two.logs.delete("t")
        return offset

    one.move_start = move_start
    with pytest.raises(KeyError):
        two.logs.move_start("t", 1, 7)
    assert two.rows(checkpoint_files.LOG_START, 1) == {}


def test_a_start_that_cannot_be_written_is_an_error_of_the_disk(world):
    world.logs.create("t", topic_id(1), [LEADS], {})
    os.mkdir(os.path.join(world.paths[0], checkpoint_files.LOG_START))
    with pytest.raises(StorageError, match="t-0"):
        world.logs.move_start("t", 0, 7)
    assert world.disks[0].offline


# Upkeep.

def tended(logs):
    return [one for one in logs if ("upkeep", NOW) in one.steps]


def test_between_rounds_only_logs_that_flush_by_time_or_lack_room_are_tended(two):
    two.logs.create("t", topic_id(1), [LEADS, LEADS], {})
    two.logs.create("timed", topic_id(2), [LEADS, LEADS], {"flush.ms": "5"})
    every = [two.logs.get(name, index) for name in ("t", "timed") for index in (0, 1)]
    two.logs.upkeep(NOW)
    assert tended(every) == every[2:]
    for one in every:
        one.steps.clear()
    two.disks[1].short_of_space = True
    two.logs.upkeep(NOW)
    assert tended(every) == every[1:] and every[3].steps == [("upkeep", NOW)]


def test_a_full_disk_that_is_offline_has_no_log_to_tend(two):
    two.logs.create("t", topic_id(1), [LEADS, LEADS], {})
    two.disks[1].short_of_space = two.disks[1].offline = True
    two.logs.upkeep(NOW)
    assert not tended([two.logs.get("t", 0), two.logs.get("t", 1)])


def test_the_first_round_is_after_the_initial_delay_and_of_all_logs(two):
    two.logs.create("t", topic_id(1), [LEADS, LEADS], {})
    every = [two.logs.get("t", index) for index in (0, 1)]
    two.logs.upkeep(NOW + 29_999)
    assert not any(one.steps for one in every)
    two.logs.upkeep(NOW + 30_000)
    assert [one.steps for one in every] == [[("upkeep", NOW + 30_000)]] * 2


def test_a_checkpoint_is_written_a_minute_after_the_start(world):
    world.logs.create("t", topic_id(1), [LEADS], {})
    world.logs.get("t", 0).recovery_point = AT_REST.recovery_point
    world.logs.upkeep(NOW + 59_999)
    assert world.store.saved == []
    world.logs.upkeep(NOW + 60_000)
    assert [key for key, _ in world.store.saved[0][0]] == [(topic_id(1), 0)]
