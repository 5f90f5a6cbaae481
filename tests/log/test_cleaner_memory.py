"""The cleaner's state per log: stored, removed and reported; without logs."""

import errno
import os
import threading
from types import SimpleNamespace

import pytest

from pylog._native.log.log import LogError
from pylog.log import cleaner
from pylog.log.cleaner import CHECKPOINT, checkpoint_files
from pylog.protocol.errors import ErrorCode
from tests.log.test_cleaner_choices import World

DONE = {"end_offset": 8, "bytes_read": 1, "bytes_written": 2, "records_read": 3, "records_kept": 4,
        "segments_before": 5, "segments_after": 6, "bytes_damaged": 0}


@pytest.fixture
def world(monkeypatch, tmp_path):
    made = World(monkeypatch, tmp_path)
    made.paths = [str(tmp_path / name) for name in "ab"]
    for path in made.paths:
        checkpoint_files.make_directory(path)
    return made


def rows(world, place=0):
    return checkpoint_files.read_offsets(os.path.join(world.paths[place], CHECKPOINT))


def clean(world, topic, partition=0, place=0, end=8):
    """Simulate that a pass has cleaned a partition up to `end`."""
    candidate = world.add(topic, partition=partition)._replace(dir_index=place)
    world.candidates[-1] = candidate
    world.one._note(candidate, {**DONE, "end_offset": end}, 5)
    return candidate


# Deleted topics.

def test_topic_deletion_resets_its_cleaner_checkpoints_only(world):
    clean(world, "t", 0)
    clean(world, "t", 1, place=1)
    clean(world, "u", 0, end=5)
    assert (rows(world), rows(world, 1)) == ({("t", 0): 8, ("u", 0): 5}, {("t", 1): 8})
    world.one.forget("t")
    assert (rows(world), rows(world, 1)) == ({("u", 0): 5}, {})
    assert world.one._clean_until == {("u", 0): 5}


def test_a_deleted_topic_that_was_never_clean_writes_nothing(world):
    clean(world, "u")
    os.unlink(os.path.join(world.paths[0], CHECKPOINT))
    world.one.forget("t")
    assert os.listdir(world.paths[0]) == []


def test_clean_offsets_of_a_deleted_topic_from_an_earlier_start_are_removed(world):
    checkpoint_files.write_offsets(os.path.join(world.paths[0], CHECKPOINT),
                                   [("t", 0, 7), ("u", 0, 6)])
    world.add("u")
    world.one.forget("t")
    assert rows(world) == {("u", 0): 6}


@pytest.fixture
def refused(monkeypatch):
    def write_offsets(path, offsets):
        raise OSError(errno.ENOSPC, "no space", path)

    monkeypatch.setattr(checkpoint_files, "write_offsets", write_offsets)


def test_cleaner_checkpoint_that_cannot_be_rewritten_is_removed(world, refused):
    for place, path in enumerate(world.paths):
        with open(os.path.join(path, CHECKPOINT), "w") as file:
            file.write(f"0\n1\nt {place} 7\n")
    world.one.forget("t")
    assert [os.listdir(path) for path in world.paths] == [[], []]
    assert world.failed_disks == [(0, errno.ENOSPC), (1, errno.ENOSPC)]


def test_checkpoint_that_cannot_be_written_or_removed_is_logged(world, refused, caplog):
    world.one._clean_until, world.one._loaded = {("t", 0): 7}, True
    world.one.forget("t")
    told = [line.message for line in caplog.records]
    assert told == ["the cleaner's checkpoint could not be written",
                    "the cleaner's checkpoint could not be removed"] * 2
    assert {line.reason for line in caplog.records} == {"no space", os.strerror(errno.ENOENT)}


def test_unreadable_cleaner_checkpoint_makes_its_directory_dirty(world):
    os.mkdir(os.path.join(world.paths[0], CHECKPOINT))
    checkpoint_files.write_offsets(os.path.join(world.paths[1], CHECKPOINT), [("t", 0, 7)])
    assert world.one._load() == {("t", 0): 7}


def test_checkpoints_are_read_once(world):
    world.add("t", 100, 0, 0, 9, world.now)
    seen = []
    world.usable = lambda: seen.append(1) or list(enumerate(world.paths))
    for _ in range(2):
        world.one.clean_next()
        world.one.forget("t")
    assert len(seen) == 1


def test_next_check_starts_at_the_clean_offset(world, monkeypatch):
    checkpoint_files.write_offsets(os.path.join(world.paths[0], CHECKPOINT), [("t", 0, 7)])
    world.add("t", min_compaction_lag_ms=33)
    world.add("t", partition=1)
    asked = []
    monkeypatch.setattr(cleaner.compaction, "look", lambda log, **given: asked.append(
        (given["first_dirty"], given["min_compaction_lag_ms"])) or (1, 0, 0, 0, 0))
    assert not world.one.clean_next()
    assert asked == [(7, 33), (0, 0)]


def test_cleaner_checkpoint_follows_a_moved_partition(world):
    candidate = clean(world, "t")
    world.candidates[0] = candidate._replace(dir_index=1)
    world.one._note(world.candidates[0], {**DONE, "end_offset": 9}, 5)
    assert rows(world, 1) == {("t", 0): 9}


# Reports.

def test_pass_is_logged_with_its_duration_and_findings(world, monkeypatch, caplog):
    candidate = world.add("t", partition=2)

    def one_pass(*_, **__):
        def step(count):
            world.now += 40
            return False
        return SimpleNamespace(step=step, close=lambda: None,
                               figures=lambda: {**DONE, "bytes_mapped": 0})

    monkeypatch.setattr(cleaner.compaction, "CleaningPass", one_pass)
    with caplog.at_level("INFO"):
        world.one._clean(cleaner.Choice(candidate, 3, 9, 1, 1.0))
    line, = caplog.records
    assert (line.message, line.topic, line.partition, line.ms) == ("compacted", "t", 2, 40)
    assert {name: getattr(line, name) for name in DONE if name != "bytes_damaged"} == {
        name: value for name, value in DONE.items() if name != "bytes_damaged"}
    assert not hasattr(line, "damaged_bytes")


def test_damage_found_by_a_pass_is_logged(world, caplog):
    with caplog.at_level("INFO"):
        world.one._note(world.add("t"), {**DONE, "bytes_damaged": 77}, 5)
    assert caplog.records[0].damaged_bytes == 77


@pytest.mark.parametrize(("error", "level", "traced"), [
    (MemoryError(), "WARNING", False), (ValueError("ours"), "ERROR", True),
    (LogError(1, ErrorCode.UNKNOWN_SERVER_ERROR, "odd"), "ERROR", False)])
def test_skipped_log_is_an_error_and_a_waiting_one_a_warning(
        world, caplog, error, level, traced):
    candidate = world.add("t")
    world.one._note_failure(candidate, ("t", 4), error)
    line, = caplog.records
    assert (line.levelname, line.topic, line.partition) == (level, "t", 4)
    assert line.reason == str(error) and bool(line.exc_info) == traced


# Waiting threads.

def test_log_is_released_before_waiters_are_woken(world, monkeypatch):
    woken = []
    idle = SimpleNamespace(notify_all=lambda: woken.append(len(world.one._at_work)))
    monkeypatch.setattr(world.one, "_idle", idle)
    monkeypatch.setattr(world.one, "_clean", lambda choice: None)
    world.add("t")
    assert world.one.clean_next() and woken == [0]


def test_stop_signals_all_threads_before_it_waits(world):
    joined = []
    world.one._threads = [SimpleNamespace(join=lambda: joined.append(world.waits.stopped))
                          for _ in range(2)]
    world.one.stop()
    assert joined == [True, True]


def test_a_process_that_ends_does_not_wait_for_the_cleaner(world, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(world.one, "_run", gate.wait)
    world.add("t")
    world.one.tend()
    gate.set()
    assert [thread.daemon for thread in world.one._threads] == [True]
    world.one.stop()
