"""Checkpoints, upkeep and openings, log by log: written and skipped logs."""

import errno
import os
from types import SimpleNamespace

import pytest

from pylog._native.log.log import LogDeleted
from pylog.config import Settings
from pylog.log import checkpoint_files, partition_logs
from pylog.log.partition_logs import BROKER_SETTINGS, Checkpoint
from tests.log.played import AT_REST, KNOWN, LEADS, NOW, Log, World, failure, topic_id


@pytest.fixture
def two(monkeypatch, tmp_path):
    """`t` has a partition in each of two directories, with a recovery point of 5."""
    world = World(monkeypatch, tmp_path, disks=2)
    world.start()
    world.logs.create("t", topic_id(), [LEADS, LEADS], {})
    world.first, world.second = (world.logs.get("t", index) for index in (0, 1))
    world.first.recovery_point = world.second.recovery_point = 5
    return world


def saved(world):
    """Return the last save: partition -> recovery point, the deleted keys."""
    entries, gone = world.store.saved[-1]
    return {index: entry.recovery_point for (_, index), entry in entries}, gone


# Checkpoints.

def test_checkpoint_contains_the_just_flushed_offsets(two):
    flush = two.disks[1].flush

    def flush_and_move():
        flush()
        two.second.recovery_point = 7

    two.disks[1].flush = flush_and_move
    two.logs.write_checkpoints()
    assert saved(two) == ({0: 5, 1: 7}, []) and two.disks[0].steps == ["flush"]
    assert two.rows(checkpoint_files.RECOVERY_POINT, 1) == {("t", 1): 7}


def test_only_changes_are_saved_and_nothing_without_changes(two):
    two.logs.write_checkpoints()
    os.unlink(os.path.join(two.paths[0], checkpoint_files.RECOVERY_POINT))
    two.logs.write_checkpoints()
    assert len(two.store.saved) == 1
    assert not os.path.exists(os.path.join(two.paths[0], checkpoint_files.RECOVERY_POINT))
    two.first.high_watermark = 6
    two.logs.write_checkpoints()
    assert saved(two) == ({0: 5}, []) and len(two.store.saved) == 2
    assert two.rows(checkpoint_files.RECOVERY_POINT) == {("t", 0): 5}


def test_a_log_without_a_recovery_point_has_nothing_to_promise(two):
    two.first.recovery_point = 0
    two.logs.write_checkpoints()
    assert saved(two) == ({1: 5}, [])


def test_failed_flush_of_one_directory_does_not_block_others(two, caplog):
    two.disks[0].refuses.add("flush")
    two.logs.write_checkpoints()
    assert two.disks[1].steps == ["flush"] and "a flush failed" in caplog.text
    assert saved(two) == ({0: 5, 1: 5}, [])


def test_failed_directory_is_neither_flushed_nor_written(two):
    two.disks[1].offline = True
    two.logs.write_checkpoints()
    assert two.disks[1].steps == [] and two.rows(checkpoint_files.RECOVERY_POINT, 1) == {}


def test_partition_deleted_during_a_save_is_removed_by_the_next(two):
    save, checkpointer = two.store.save, two.logs.checkpointer

    def save_and_delete(*given):
        save(*given)
        checkpointer.gone.append("later")

    checkpointer.gone.append("first")
    two.store.save = save_and_delete
    two.logs.write_checkpoints()
    two.store.save = save
    assert saved(two)[1] == ["first"] and checkpointer.gone == ["later"]
    two.logs.write_checkpoints()
    assert saved(two) == ({}, ["later"]) and checkpointer.gone == []


@pytest.mark.parametrize("failed", [False, True])
def test_files_that_met_a_shortage_are_written_next_time_and_of_a_failed_disk_never(
        two, monkeypatch, caplog, failed):
    write, refused = partition_logs.write_checkpoint_files, []

    def refuse(path, rows):
        if path == two.paths[0] and not refused:
            refused.append(path)
            raise OSError(errno.ENOSPC, "planted")
        write(path, rows)

    monkeypatch.setattr(partition_logs, "write_checkpoint_files", refuse)
    monkeypatch.setattr(two.logs.disks, "fail", lambda number, error: failed)
    two.logs.write_checkpoints()
    assert two.rows(checkpoint_files.RECOVERY_POINT, 1) == {("t", 1): 5}
    assert "a checkpoint could not be written" in caplog.text
    for _ in range(2):
        two.logs.write_checkpoints()
    assert len(two.store.saved) == (1 if failed else 2)
    assert bool(two.rows(checkpoint_files.RECOVERY_POINT)) != failed


def test_rows_of_logs_that_are_not_open_stay_in_the_files(two):
    two.logs._hints.set_unread(1, ("u", 4), KNOWN)
    two.logs.checkpointer.write_files()
    assert two.rows(checkpoint_files.RECOVERY_POINT, 1) == {("t", 1): 5, ("u", 4): 5}
    assert two.rows(checkpoint_files.LOG_START, 1) == {("u", 4): 2}
    assert two.rows(checkpoint_files.RECOVERY_POINT) == {("t", 0): 5}


def test_recreated_partition_is_saved_again(two):
    two.logs.write_checkpoints()
    two.logs.checkpointer.forget((topic_id(), 0))
    two.logs.write_checkpoints()
    assert saved(two) == ({0: 5}, [(topic_id(), 0)])


# Truncations.

CUTS = [(3, None, 3, 3), (9, None, 5, 4), (5, None, 5, 4), (None, 70, 0, 4), (None, 2, 0, 2),
        (3, 70, 0, 3)]


@pytest.mark.parametrize(("truncate_to", "restart_at", "point", "watermark"), CUTS)
@pytest.mark.parametrize("stored", [True, False])
def test_checkpoint_is_lowered_before_a_truncation(
        two, truncate_to, restart_at, point, watermark, stored):
    steps, one = [], two.first
    one.high_watermark = 4
    two.store.save = lambda image, entries, gone=(): steps.append(entries)
    one.truncate = lambda offset, epoch: steps.append(("truncate", offset, epoch))
    one.restart_at = lambda offset, epoch: steps.append(("restart_at", offset, epoch))
    if not stored:
        two.logs.checkpointer.store = None
    cut = SimpleNamespace(truncate_to=truncate_to, restart_at=restart_at)
    two.logs.checkpointer.cut(topic_id(), 0, one, cut, 7)
    left = Checkpoint(point, one.start_offset, watermark, -1, -1, b"")
    assert steps == [[((topic_id(), 0), left)]] * stored \
        + [("truncate", truncate_to, 7)] * (truncate_to is not None) \
        + [("restart_at", restart_at, 7)] * (restart_at is not None)


def test_checkpoint_after_a_truncation_contains_the_new_end(two):
    two.logs.write_checkpoints()
    two.first.truncate = lambda offset, epoch: None
    two.logs.checkpointer.cut(
        topic_id(), 0, two.first, SimpleNamespace(truncate_to=3, restart_at=None), 7)
    assert saved(two)[0] == {0: 3}
    two.logs.write_checkpoints()
    assert saved(two)[0] == {0: 5}


# Upkeep of each log.

def logs(*kinds):
    made = []
    for kind in kinds:
        disk = SimpleNamespace(offline=kind == "offline")
        one = Log(disk, "t", 0, AT_REST)
        error = {"deleted": LogDeleted(-1, 3, "planted"), "broken": failure()}.get(kind)
        if error is not None:
            def upkeep(now_ms, error=error):
                raise error
            one.upkeep = upkeep
        made.append(one)
    return made


def test_failed_upkeep_of_a_log_is_logged_and_others_continue(caplog):
    made = logs("offline", "deleted", "broken", "good")
    partition_logs.tend(made, NOW, lambda: False)
    assert made[3].steps == [("upkeep", NOW)] and made[0].steps == []
    assert [record.message for record in caplog.records] == ["upkeep failed"]


def test_upkeep_ends_between_two_logs_when_the_manager_closes():
    made = logs("good", "good", "good")
    partition_logs.tend(made, NOW, lambda: bool(made[1].steps))
    assert [len(one.steps) for one in made] == [1, 1, 0]


# Openings.

def test_trusted_log_is_opened_from_its_saved_state(monkeypatch):
    asked = []
    monkeypatch.setattr(partition_logs, "Log", SimpleNamespace(
        open=lambda *given, **known: asked.append((given, known))))
    for trusted in (True, False):
        partition_logs.open_log("disk", "t", 4, b"id", "config", AT_REST, trusted, NOW)
    read = {"now_ms": NOW, "recovery_point": 5, "log_start_offset": 2, "high_watermark": 4}
    assert asked == [
        (("disk", "t", 4, b"id", "config"), {
            **read, "clean": True, "segments": b"segments", "log_end_offset": 9,
            "last_epoch": 3}),
        (("disk", "t", 4, b"id", "config"), read)]


def test_a_log_has_its_topics_settings_and_some_of_the_brokers():
    settings = Settings({"producer.id.expiration.ms": "77"})
    config = partition_logs.native_config({"retention.ms": 5}, settings)
    assert config == {"retention.ms": 5, "producer.id.expiration.ms": 77, **{
        name: settings[name] for name in BROKER_SETTINGS if name != "producer.id.expiration.ms"}}


def test_unknown_or_invalid_settings_are_ignored(caplog):
    assert partition_logs.usable({"retention.ms": "5", "of.a.later.version": "1",
                                  "segment.bytes": "many"}) == {"retention.ms": "5"}
    assert caplog.text.count("an invalid topic setting is ignored") == 2


def test_undeletable_log_is_logged(caplog):
    one = Log(None, "t", 4, AT_REST)
    one.refuses.add("delete")
    partition_logs.delete(one, NOW)
    assert one.steps == [("delete", NOW)] and "a partition could not be deleted" in caplog.text


@pytest.mark.parametrize(("field", "value"), [("end_offset", 1), ("recovery_point", 10)])
def test_closed_log_state_beyond_its_records_is_an_assertion_error(field, value):
    one = Log(None, "t", 0, AT_REST)
    setattr(one, field, value)
    with pytest.raises(AssertionError):
        partition_logs.at_rest(one)
