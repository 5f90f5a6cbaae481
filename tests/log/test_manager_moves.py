"""A replica that moves to another directory: the manager's lists and Kafka's files."""

import contextlib

import pytest

from pylog._native.log.log import LogError
from pylog.log import checkpoint_files
from pylog.log import manager
from pylog.log import replica_moves
from pylog.replication.truncation import Cut
from tests.log.played import LEADS, NOW, World, failure, topic_id


@pytest.fixture
def world(monkeypatch, tmp_path):
    """`t` has its partitions in the directories 0, 1 and 2."""
    one = World(monkeypatch, tmp_path, disks=3)
    one.start()
    one.logs.create("t", topic_id(), [LEADS, LEADS, LEADS], {})
    return one


def ready(world, index=0, place=1):
    """Return a move that only needs its end."""
    world.logs.move("t", index, place)
    move = world.logs.moves.find("t", index)
    move.ready = True
    return move


def test_a_move_fills_a_log_of_the_same_beginning_and_settings_beside_the_partition(world):
    source = world.logs.get("t", 0)
    source.start_offset = 4
    world.logs.move("t", 0, 2)
    move = world.logs.moves.find("t", 0)
    assert (move.source, move.dir_index, move.target.log_dir) == (source, 2, world.disks[2])
    assert (move.target.id, move.target.config) == (topic_id(), source.config)
    assert (move.target.known["log_start_offset"], move.target.known["now_ms"]) == (4, NOW)
    assert move.target.known["directory"].startswith("t-0.")
    assert move.target.known["directory"].endswith("-future")
    assert world.logs.get("t", 0) is source and world.logs.dir_index("t", 0) == 0


def test_repeated_move_request_continues_the_move(world):
    world.logs.move("t", 0, 2)
    move = world.logs.moves.find("t", 0)
    world.logs.move("t", 0, 2)
    assert world.logs.moves.find("t", 0) is move and move.target.steps == []


def test_move_to_a_third_directory_replaces_the_first_move(world):
    world.logs.move("t", 0, 2)
    first = world.logs.moves.find("t", 0)
    world.logs.move("t", 0, 1)
    assert first.target.steps == [("delete", NOW)]
    assert world.logs.moves.find("t", 0).dir_index == 1 and len(world.logs.moves.all()) == 1


def test_move_back_to_the_current_directory_cancels_the_move(world):
    world.logs.move("t", 1, 2)
    first = world.logs.moves.find("t", 1)
    world.logs.move("t", 1, 1)
    assert first.target.steps == [("delete", NOW)] and world.logs.moves.all() == []


def test_finished_move_updates_all_lookups(world):
    world.logs.configure("t", {"flush.ms": "5"})
    move = ready(world)
    world.logs.configure("t", {"flush.ms": "6"})
    assert world.logs.finish_moves() == ["t"]
    assert world.logs.get("t", 0) is move.target and world.logs.dir_index("t", 0) == 1
    assert world.logs.disks.loads == [0, 2, 1]
    # Settings changed during the copy are applied.
    assert move.target.steps[-1][0] == "set_config" and move.target.steps[-1][1]["flush.ms"] == 6
    assert move.target in world.logs._topics.timed and move.source not in world.logs._topics.timed
    assert move.source not in world.logs._topics.directories


def test_a_partition_can_move_on_from_a_directory_that_is_not_the_first(world):
    move = ready(world, index=1, place=0)
    assert world.logs.finish_moves() == ["t"]
    assert world.logs.dir_index("t", 1) == 0 and world.logs.disks.loads == [2, 0, 1]
    assert move.source not in world.logs._topics.directories


def test_requests_leave_the_source_and_its_files_go_with_the_next_look(world):
    move = ready(world)
    move.source.is_leader = True
    world.logs.finish_moves()
    assert move.source.steps == []
    world.logs.leave_moved()
    assert not move.source.is_leader and move.source.leader_epoch == 3
    assert world.logs.finish_moves() == [] and move.source.steps == [("delete", NOW)]
    world.logs.finish_moves()
    assert move.source.steps == [("delete", NOW)]


def test_failure_to_remove_a_source_is_logged_and_others_are_removed(world, caplog):
    first, second = ready(world, 0, 1), ready(world, 1, 2)
    world.logs.finish_moves()
    first.source.refuses.add("delete")
    second.source.refuses.add("delete")
    world.logs.finish_moves()
    assert first.source.steps == second.source.steps == [("delete", NOW)]
    assert caplog.text.count("a moved log could not be removed") == 2


def test_the_rows_of_kafkas_files_move_with_the_partition(world):
    source = world.logs.get("t", 0)
    source.recovery_point, source.start_offset = 5, 3
    world.logs.write_checkpoints()
    move = ready(world)
    move.target.recovery_point, move.target.start_offset = 4, 2
    world.logs.finish_moves()
    # The copy has its own recovery point; records deleted in the source during the move are deleted
    # in the copy.
    assert world.rows(checkpoint_files.RECOVERY_POINT, 1)["t", 0] == 4
    assert world.rows(checkpoint_files.LOG_START, 1)["t", 0] == 3
    world.logs.upkeep(NOW)
    assert world.rows(checkpoint_files.RECOVERY_POINT, 0) == {}
    assert world.rows(checkpoint_files.LOG_START, 0) == {}


def test_damaged_copy_is_finished_after_a_checkpoint(
        world, monkeypatch):
    steps = []
    monkeypatch.setattr(manager, "finish", lambda move, now_ms: steps.append((
        move.partition, now_ms)))
    monkeypatch.setattr(world.logs.checkpointer, "write", lambda store: steps.append(store))
    ready(world, 0, 1).damaged_bytes = 1
    world.logs.finish_moves()
    assert steps == [world.store, (0, NOW)]
    ready(world, 1, 2)
    world.logs.finish_moves()
    assert steps[2:] == [(1, NOW)]


def test_move_of_a_recreated_topic_is_cancelled(world):
    move = ready(world)
    new = object()
    world.logs._topics.entries["t"].logs[0] = new
    assert world.logs.finish_moves() == []
    assert world.logs.get("t", 0) is new and move.target.steps == [("delete", NOW)]
    assert move.source.steps == [] and world.logs.disks.loads == [1, 1, 1]


def test_nothing_is_finished_before_it_is_ready(world):
    world.logs.move("t", 0, 1)
    assert world.logs.finish_moves() == [] and world.logs.dir_index("t", 0) == 0


@pytest.mark.parametrize("refused", [False, True])
def test_truncated_log_restarts_its_copy(world, monkeypatch, refused):
    first, cuts = ready(world, place=2), []

    def cut(*given):
        assert world.logs.moves.find("t", 0) is None
        cuts.append(given)
        if refused:
            raise failure()

    monkeypatch.setattr(world.logs.checkpointer, "cut", cut)
    given = topic_id(), 0, first.source, Cut(3, None), 7
    with pytest.raises(LogError) if refused else contextlib.nullcontext():
        replica_moves.cut(world.logs, *given)
    second = world.logs.moves.find("t", 0)
    assert cuts == [given] and first.target.steps == [("delete", NOW)]
    assert (second.source, second.dir_index, second.ready) == (first.source, 2, False)


def test_copies_of_other_or_untruncated_logs_are_kept(world, monkeypatch):
    move, cuts = ready(world), []
    monkeypatch.setattr(world.logs.checkpointer, "cut", lambda *given: cuts.append(given))
    replica_moves.cut(world.logs, topic_id(), 0, move.source, Cut(None, None), 7)
    replica_moves.cut(world.logs, topic_id(), 1, world.logs.get("t", 1), Cut(3, None), 7)
    assert world.logs.moves.all() == [move] and len(cuts) == 2
