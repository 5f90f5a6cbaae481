"""A start's use of directories and checkpoints, and the guarantees of a stop."""

import os

import pytest

from pylog._native.log.log import Shortage
from pylog.log import checkpoint_files, recovery
from pylog.log.partition_logs import NOTHING_KNOWN, Checkpoint, Role
from pylog.log.upkeep import CHECKPOINT_MS
from tests.log.played import AT_REST, KNOWN, LEADS, NOW, World, failure, topic_id

FOLLOWS = Role(False, 3, 1, True, False)


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path)


@pytest.fixture
def two(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path, disks=2)


# Trusted checkpoints.

def test_clean_stop_avoids_reading_files_at_the_start(world):
    world.made_before(0, "t-0", "t-2")
    world.start(("t", [LEADS, None, LEADS]), checkpoints={
        (topic_id(), 0): AT_REST, (topic_id(), 2): AT_REST._replace(log_end_offset=0)})
    assert world.opened == [(0, "t", 0, AT_REST, True),
                            (0, "t", 2, AT_REST._replace(log_end_offset=0), True)]
    assert world.logs.get("t", 1) is None and world.logs.get("t", 0).leader_epoch == 3
    assert world.logs.disks.loads == [2] and world.logs.recovering == 0


def test_a_checkpoint_of_a_log_in_use_is_not_trusted_also_after_a_clean_stop(world):
    world.made_before(0, "t-0", "t-1")
    world.start(("t", [LEADS, LEADS]), checkpoints={(topic_id(), 0): KNOWN})
    assert world.opened == [(0, "t", 0, KNOWN, False), (0, "t", 1, NOTHING_KNOWN, False)]


def test_each_directory_is_trusted_by_itself(two):
    two.made_before(0, "t-0")
    two.made_before(1, "t-1")
    two.start(("t", [LEADS, LEADS]), clean=frozenset({1}), checkpoints={
        (topic_id(), 0): AT_REST, (topic_id(), 1): AT_REST})
    two.logs._wait_ready("t")
    assert sorted(two.opened) == [(0, "t", 0, AT_REST, False), (1, "t", 1, AT_REST, True)]
    assert two.logs.take_recovered() == {"t"} and two.logs.take_recovered() == set()
    assert two.logs.dir_index("t", 1) == 1 and two.logs.dir_index("t", 0) == 0


def test_after_a_crash_kafkas_files_count_beside_the_store(world):
    world.made_before(0, "t-0", "u-0")
    for name, offset in ((checkpoint_files.RECOVERY_POINT, 3), (checkpoint_files.LOG_START, 8)):
        checkpoint_files.write_offsets(os.path.join(world.paths[0], name), [
            ("t", 0, offset), ("gone", 0, offset)])
    world.start(("t", [LEADS]), ("u", [LEADS]), clean=frozenset(),
                checkpoints={(topic_id(), 0): KNOWN})
    for name in "tu":
        world.logs._wait_ready(name)
    assert sorted(world.opened) == [(0, "t", 0, Checkpoint(3, 8, 4, -1, -1, b""), False),
                                    (0, "u", 0, NOTHING_KNOWN, False)]
    assert ("gone", 0) not in world.rows(checkpoint_files.LOG_START)


@pytest.mark.parametrize(("segments", "trusted"), [(b"", True), (b"segments", False)])
def test_new_log_without_a_directory_is_trusted_but_a_lost_one_is_not(
        world, segments, trusted):
    known = AT_REST._replace(recovery_point=0, segments=segments)
    world.start(("t", [LEADS]), checkpoints={(topic_id(), 0): known})
    assert world.opened == [(0, "t", 0, known, trusted)] and not world.store.saved


@pytest.mark.parametrize("role", [LEADS, Role(False, 3, 1, True, True)])
def test_a_replica_that_may_lead_stays_offline_if_its_directory_is_missing(world, role, caplog):
    world.start(("t", [role]), checkpoints={(topic_id(), 0): AT_REST})
    assert not world.opened and world.logs.get("t", 0) is None
    assert world.logs.take_failed() == [("t", 0)] and world.logs.lacks_files("t", 0)
    assert "its directory is missing" in [record.reason for record in caplog.records
                                          if record.levelname == "ERROR"]
    world.logs.upkeep(NOW + CHECKPOINT_MS)
    assert all(not gone for _, gone in world.store.saved)  # The next start has the checkpoint too.
    world.logs.delete("t")
    assert not world.logs.lacks_files("t", 0) and not world.logs.is_offline("t", 0)


@pytest.mark.parametrize(("role", "overrides"), [
    (FOLLOWS, {}), (LEADS, {"unclean.leader.election.enable": "true"})])
def test_flushed_state_of_a_missing_directory_is_removed_first(
        world, role, overrides):
    world.start(("t", [role], overrides), checkpoints={(topic_id(), 0): AT_REST})
    left = NOTHING_KNOWN._replace(log_start_offset=2)
    assert world.store.saved == [([((topic_id(), 0), left)], [])]
    assert world.opened == [(0, "t", 0, left, False)]


@pytest.mark.parametrize("away", [True, False])
def test_a_partition_that_may_be_in_a_directory_that_is_away_is_offline(two, away):
    two.disks[1].offline = away
    two.made_before(0, "t-0")
    two.start(("t", [LEADS, LEADS]), clean=frozenset({0}), checkpoints={
        (topic_id(), 0): AT_REST, (topic_id(), 1): AT_REST._replace(recovery_point=0)})
    two.logs._wait_ready("t")
    assert [entry[2] for entry in two.opened] == ([0] if away else [0, 1])
    assert two.logs.is_offline("t", 1) == two.logs.any_offline("t") == away
    assert not two.logs.is_offline("t", 0) and not two.logs.any_offline("u")
    assert two.logs.offline == [("t", 1)] * away
    assert two.logs.take_failed() == [("t", 1)] * away and two.logs.take_failed() == []


def test_checkpoints_of_deleted_topics_are_removed_with_the_next_write(world):
    world.start(("t", [LEADS]), checkpoints={(topic_id(7), 0): AT_REST, (topic_id(), 0): AT_REST})
    world.logs.upkeep(NOW + CHECKPOINT_MS)
    assert world.store.saved[-1][1] == [(topic_id(7), 0)]
    saved = len(world.store.saved)
    world.logs.upkeep(NOW + 2 * CHECKPOINT_MS)
    assert len(world.store.saved) == saved


@pytest.mark.parametrize(("away", "numbers"), [(False, [0, 1, 0]), (True, [0])])
def test_after_a_crash_partitions_are_recovered_by_directory(two, monkeypatch, away, numbers):
    """Returns the topics of the first start plus new ones, without those of a missing directory."""
    made = []

    class Recovery:
        left = 3

        def __init__(self, *given):
            made.append(given)

        def begin(self):
            made.append("begun")

    monkeypatch.setattr("pylog.log.recovery.Recovery", Recovery)
    two.made_before(0, "t-0")
    if away:
        two.logs.disks.natives[1] = None
    else:
        two.made_before(1, "t-1")
    used = [disk for disk in two.logs.directories if disk is not None]
    two.start(("t", [LEADS, LEADS, LEADS]), clean=frozenset())
    (entries, directories, threads, _), begun = made
    assert [(name, number) for name, number, _ in entries] == [("t", one) for one in numbers]
    assert (directories, threads, begun) == (used, 2, "begun")
    assert two.opened == [] and two.logs.recovering == 3


# Directories without a topic.

def test_unknown_partitions_are_set_aside_and_deleted_ones_removed_later(world):
    world.made_before(0, "t-0", "other-0", f"old-0.{'ab' * 16}-delete", "notes")
    world.start(("t", [LEADS]))
    names = sorted(os.listdir(world.paths[0]))
    assert names[:2] == ["notes", f"old-0.{'ab' * 16}-delete"] and names[3] == "t-0"
    assert names[2].startswith("other-0.") and names[2].endswith("-stray")
    world.logs.upkeep(NOW)
    assert f"old-0.{'ab' * 16}-delete" not in os.listdir(world.paths[0])
    assert len(os.listdir(world.paths[0])) == 3


def test_a_manager_that_closes_removes_nothing_more(world):
    world.made_before(0, f"old-0.{'ab' * 16}-delete")
    world.start()
    world.logs._upkeep.closing = True
    world.logs.upkeep(NOW)
    assert os.listdir(world.paths[0])


@pytest.mark.parametrize(("names", "held"), [
    (("t-0",), True), (("meta.properties", "t-0"), True), ((), False),
    (("__cluster_metadata-0",), False), ((f"t-0.{'ab' * 16}-stray",), False)])
def test_directory_holds_partitions_if_one_name_matches_a_topic(two, names, held):
    two.logs.disks.listings[1] = set(names)
    assert two.logs.holds_partitions() == held


# Logs that cannot be opened.

@pytest.mark.parametrize(("error", "known", "again"), [
    (failure(), AT_REST, False), (failure(), KNOWN, False), (failure(), None, True),
    (Shortage(-110, 56, "short"), AT_REST, True), (OSError("short"), AT_REST, True)])
def test_log_open_is_retried_after_a_shortage(world, error, known, again):
    world.made_before(0, "t-0")
    world.refusals["t", 0] = error
    world.start(("t", [LEADS]), checkpoints={(topic_id(), 0): known} if known else {})
    assert world.logs.get("t", 0) is None and world.logs.lacks_files("t", 0) == (not again)
    assert world.logs.take_failed() == [("t", 0)] * (not again)
    assert world.logs.finish_moves() == []
    world.refusals.clear()
    assert world.logs.finish_moves() == ["t"] * again and world.logs.finish_moves() == []
    assert world.opened == [(0, "t", 0, known or NOTHING_KNOWN, known is AT_REST)] * again
    assert world.logs.disks.loads == [1]


def test_log_open_is_not_retried_on_a_full_disk_or_for_a_deleted_topic(world):
    world.refusals["t", 0] = world.refusals["u", 0] = failure()
    world.start(("t", [LEADS]), ("u", [LEADS]))
    world.refusals.clear()
    world.disks[0].short_of_space = True
    assert world.logs.finish_moves() == []
    world.disks[0].short_of_space = False
    world.logs.delete("t")
    assert world.logs.finish_moves() == ["u"] and [entry[1] for entry in world.opened] == ["u"]


def test_unopened_log_keeps_its_checkpoint_rows(world):
    world.made_before(0, "t-0")
    world.refusals["t", 0] = Shortage(-110, 56, "short")
    world.start(("t", [LEADS]), checkpoints={(topic_id(), 0): KNOWN})
    assert world.logs._hints.unread(0) == [("t", 0, KNOWN)]
    world.refusals.clear()
    world.logs.finish_moves()
    assert world.logs._hints.unread(0) == []


def test_unknown_log_has_no_checkpoint_rows(world):
    world.refusals["t", 0] = failure()
    world.start(("t", [LEADS]))
    assert world.logs._hints.unread(0) == []


def test_log_with_a_disk_error_at_opening_is_offline_and_not_retried(world):
    world.start()
    world.refusals["t", 0] = failure()
    world.disks[0].offline = True
    world.logs.create("t", topic_id(), [LEADS], {})
    assert world.logs.is_offline("t", 0) and world.logs.take_failed() == [("t", 0)]
    world.disks[0].offline = False
    world.refusals.clear()
    assert world.logs.finish_moves() == []


# Stop.

def test_stop_saves_every_clean_log(two):
    two.made_before(1, "t-1")
    two.start(("t", [LEADS, LEADS, None]))
    entries = two.logs.close_partitions()
    assert sorted(key for key, _ in entries) == [(topic_id(), 0), (topic_id(), 1)]
    assert [entry.log_end_offset for _, entry in entries] == [9, 9]
    assert two.logs.stopped == {0, 1}
    assert all(two.logs.get("t", index).steps[-1] == ("settle", NOW) for index in (0, 1))
    assert [disk.steps for disk in two.disks] == [["settle"]] * 2
    assert two.rows(checkpoint_files.RECOVERY_POINT, 1) == {("t", 1): 0}


@pytest.mark.parametrize("what", ["disk", "log"])
def test_a_directory_that_could_not_be_flushed_is_not_cleanly_stopped(two, what):
    two.made_before(1, "t-1")
    two.start(("t", [LEADS, LEADS]))
    (two.disks[1] if what == "disk" else two.logs.get("t", 1)).refuses.add("settle")
    assert [key for key, _ in two.logs.close_partitions()] == [(topic_id(), 0)]
    assert two.logs.stopped == {0}


def test_log_without_files_is_offline_and_its_directory_stops_cleanly(two):
    two.made_before(0, "t-0", "t-1")
    two.made_before(1, "t-2")
    two.start(("t", [LEADS, LEADS, LEADS]))
    two.logs._wait_ready("t")
    assert two.logs.take_failed() == []
    two.logs.get("t", 1).lose_files()
    assert two.logs.take_failed() == [("t", 1)] and two.logs.take_failed() == []
    assert two.logs.is_offline("t", 1) and two.logs.lacks_files("t", 1)
    assert [row[:2] for _, _, rows in two.logs.describe() for row in rows] == [("t", 0), ("t", 2)]
    entries = dict(two.logs.close_partitions())
    assert two.logs.stopped == {0, 1}
    assert entries[topic_id(), 1].log_end_offset == -1 and not entries[topic_id(), 1].segments
    assert entries[topic_id(), 0].log_end_offset == 9
    assert two.logs._topics.entries["t"].logs[1].steps == []


def test_failed_directory_is_excluded_from_a_clean_stop(two):
    two.made_before(1, "t-1")
    two.start(("t", [LEADS, LEADS]))
    two.disks[1].offline = True
    assert [key for key, _ in two.logs.close_partitions()] == [(topic_id(), 0)]
    assert two.logs.stopped == {0} and two.disks[1].steps == []
    assert ("settle", NOW) not in two.logs.get("t", 1).steps


def test_offline_partition_is_not_reported_again_when_its_directory_returns(two):
    two.made_before(1, "t-1")
    two.start(("t", [LEADS, LEADS]))
    two.disks[1].offline = True
    assert two.logs.take_failed() == [("t", 1)]
    two.disks[1].offline = False
    assert [key for key, _ in two.logs.close_partitions()] == [(topic_id(), 0)]


def test_stop_during_recovery_writes_no_marks_or_files(world):
    world.start(("t", [LEADS]))

    class Unfinished:
        left = 1

        def stop(self):
            return False

    world.logs._recovery = Unfinished()
    assert world.logs.recovering == 1 and world.logs.close_partitions() == []
    assert world.logs.stopped == frozenset() and not world.rows(checkpoint_files.RECOVERY_POINT)


def test_no_checkpoint_is_written_during_recovery(world):
    world.start(("t", [LEADS]))
    world.logs.get("t", 0).recovery_point = 5

    class Unfinished:
        left = 1

    world.logs._recovery = Unfinished()
    world.logs.write_checkpoints()
    world.logs.upkeep(NOW + CHECKPOINT_MS)
    assert not world.store.saved
    world.logs._recovery = None
    world.logs.write_checkpoints()
    assert len(world.store.saved) == 1


def test_background_work_ends_before_logs_are_closed(world):
    world.start(("t", [LEADS]))
    order = []
    world.logs.cleaner.stop = lambda: order.append(("cleaner", world.logs._upkeep.closing))
    world.logs.moves.stop = lambda: order.append("moves")
    world.disks[0].settle = lambda: order.append("settle")
    world.logs.close_partitions()
    assert order == [("cleaner", True), "moves", "settle"]


def test_a_manager_that_is_closed_has_no_log_and_no_directory(world, monkeypatch):
    forgotten = []
    monkeypatch.setattr("pylog.log.log_directories.restart_checkpoint.forget", forgotten.append)
    world.start(("t", [LEADS], {"flush.ms": "5"}))
    native = world.disks[0]
    world.logs.close()
    assert world.logs.get("t", 0) is None and world.logs.by_topic() == []
    assert forgotten == [native] and world.logs.directories == []
    assert not world.logs._topics.timed


def test_recovery_has_the_configured_threads(monkeypatch, tmp_path):
    found = []

    class Recovery(recovery.Recovery):
        def __init__(self, entries, directories, threads, open_one):
            found.append(threads)
            super().__init__(entries, directories, threads, open_one)

    monkeypatch.setattr(recovery, "Recovery", Recovery)
    world = World(monkeypatch, tmp_path, **{"num.recovery.threads.per.data.dir": "3"})
    world.made_before(0, "t-0")
    world.start(("t", [LEADS]), clean=frozenset(), checkpoints={(topic_id(), 0): KNOWN})
    world.logs._wait_ready("t")
    assert found == [3]
