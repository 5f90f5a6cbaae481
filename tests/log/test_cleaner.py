"""Choice of the log to compact, pace of the cleaner, and its stored state."""

import errno
import os
import random
import time

import pytest

from pylog._native.log.log import DISK_FULL, DISK_SYSTEM
from pylog._native.records import batch
from pylog.log import checkpoint_files, cleaner
from pylog.log.cleaner import CHECKPOINT
from tests.metadata.node import Node
from tests.native.log.test_compaction import follow, marker, plain, transaction
from tests.native.log.test_damage_upkeep import DAMAGES, spoil

MIB = 1 << 20
SETTINGS = {"log_cleaner_enable": "false", "log_cleaner_backoff_ms": "10"}
COMPACT = {"cleanup.policy": "compact", "segment.bytes": str(MIB),
           "min.cleanable.dirty.ratio": "0.5"}


def append(node, topic, keys, size=50_000):
    log = node.logs.get(topic, 0)
    for key in keys:
        record = (b"%d" % key, random.randbytes(size), node.now_ms(), ())
        log.append(batch.build([record]), node.now_ms())


def keys_of(node, topic):
    log, found = node.logs.get(topic, 0), []
    offset = log.start_offset
    while offset < log.end_offset:
        data = memoryview(log.read(offset))
        for position, header in batch.walk(data):
            found += [int(row[2]) for row in batch.records(data[position:])]
            offset = header.base_offset + header.last_offset_delta + 1
    return found


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path, **SETTINGS)
    yield made
    made.stop()


def test_only_compacted_logs_that_are_dirty_enough_are_cleaned(node):
    node.create("deleted")
    node.create("compacted", configs=COMPACT)
    node.create("patient", configs={**COMPACT, "min.compaction.lag.ms": "3600000"})
    for topic in ("deleted", "compacted", "patient"):
        append(node, topic, [1, 2] * 30)
    assert node.logs.cleaner.clean_next()
    assert not node.logs.cleaner.clean_next()
    assert len(keys_of(node, "compacted")) < 30
    assert len(keys_of(node, "deleted")) == len(keys_of(node, "patient")) == 60
    # Few new records: below the ratio. Many: above it.
    append(node, "compacted", range(100, 200))
    node.logs.cleaner.clean_next()
    append(node, "compacted", range(200, 230))
    assert not node.logs.cleaner.clean_next()
    append(node, "compacted", range(300, 460))
    assert node.logs.cleaner.clean_next()


def test_dirtiest_log_is_compacted_first(node):
    node.create("some", "more", configs=COMPACT)
    for topic in ("some", "more"):
        append(node, topic, range(60))
    while node.logs.cleaner.clean_next():
        pass
    append(node, "some", range(60))
    append(node, "more", list(range(60)) * 3)
    before = len(keys_of(node, "some"))
    assert node.logs.cleaner.clean_next()
    assert len(keys_of(node, "some")) == before
    assert len(keys_of(node, "more")) < 180


def test_a_longest_lag_overrules_the_ratio_and_rolls_the_active_segment(node):
    node.create("late", configs={**COMPACT, "min.cleanable.dirty.ratio": "1",
                                 "max.compaction.lag.ms": "1"})
    append(node, "late", [1, 1, 1], size=10)
    time.sleep(0.01)
    node.logs.get("late", 0).upkeep(node.now_ms() + 10)
    assert node.logs.cleaner.clean_next()
    assert keys_of(node, "late") == [1]


def test_clean_offset_survives_a_restart_and_is_removed_with_its_topic(tmp_path):
    node = Node(tmp_path, **SETTINGS)
    node.create("kept", "gone", configs=COMPACT)
    for topic in ("kept", "gone"):
        append(node, topic, [1, 2, 3] * 20)
    assert node.logs.cleaner.clean_next() and node.logs.cleaner.clean_next()
    path = os.path.join(tmp_path, CHECKPOINT)
    found = checkpoint_files.read_offsets(path)
    assert set(found) == {("kept", 0), ("gone", 0)} and min(found.values()) > 0
    node.delete("gone")
    node.create("gone", configs=COMPACT)
    append(node, "gone", [1, 2, 3] * 20)
    assert node.logs.cleaner.clean_next()
    node.stop()
    node = Node(tmp_path, **SETTINGS)
    assert not node.logs.cleaner.clean_next()
    node.stop()


def test_damaged_log_is_compacted_and_logged(node, tmp_path, caplog):
    node.create("broken", configs=COMPACT)
    append(node, "broken", [1, 2] * 40)
    with open(sorted((tmp_path / "broken-0").glob("*.log"))[0], "r+b") as file:
        file.seek(1000)
        file.write(b"\xff" * 100)
    before = node.logs.get("broken", 0).size_bytes
    with caplog.at_level("INFO"):
        while node.logs.cleaner.clean_next():
            pass
    stats = node.logs.cleaner.stats()
    assert (stats["passes"], stats["uncleanable"]) == (1, 0)
    assert node.logs.get("broken", 0).size_bytes < before / 2
    assert [line.damaged_bytes for line in caplog.records if line.message == "compacted"][0] > 0


def test_uncompactable_log_is_skipped(node, tmp_path):
    node.create("broken", "sound", configs=COMPACT)
    one = node.logs.get("broken", 0)
    one.become_follower(0)
    transaction(one, 5, [(b"1", b"v")], 0)
    plain(one, [(b"3", b"v" * 100)])
    follow(one, marker(5, True))
    one.become_leader(0)
    for topic in ("broken", "sound"):
        append(node, topic, [1, 2] * 40)
    # The unreadable part may have contained the transaction's marker.
    spoil(sorted((tmp_path / "broken-0").glob("*.log"))[0], 1, *DAMAGES["zeros"])
    while node.logs.cleaner.clean_next():
        pass
    assert node.logs.cleaner.stats()["uncleanable"] == 1
    assert len(keys_of(node, "sound")) < 40


def test_log_is_compacted_once_a_shortage_ends(node):
    node.create("full", configs=COMPACT)
    append(node, "full", [1, 2] * 40)
    disk = node.logs.directories[0]
    disk.set_disk(DISK_FULL)
    assert node.logs.cleaner.clean_next()
    assert not node.logs.cleaner.clean_next() and not disk.offline
    stats = node.logs.cleaner.stats()
    assert (stats["failures"], stats["uncleanable"], stats["passes"]) == (1, 0, 0)
    disk.set_disk(DISK_SYSTEM)
    node.logs.cleaner._short_until.clear()
    assert node.logs.cleaner.clean_next()
    assert len(keys_of(node, "full")) < 40


def test_a_pass_that_ends_with_a_bug_of_ours_costs_that_log_and_no_other(node, monkeypatch):
    node.create("broken", "sound", configs=COMPACT)
    for topic in ("broken", "sound"):
        append(node, topic, [1, 2] * 40)
    clean = node.logs.cleaner._clean

    def failing(choice):
        if choice.candidate.topic == "broken":
            raise TypeError("planted")
        clean(choice)

    monkeypatch.setattr(node.logs.cleaner, "_clean", failing)
    while node.logs.cleaner.clean_next():
        pass
    assert node.logs.cleaner.stats()["uncleanable"] == 1
    assert len(keys_of(node, "sound")) < 40


def test_threads_follow_the_setting_and_the_limit_slows_them(tmp_path):
    node = Node(tmp_path, log_cleaner_threads="1", log_cleaner_backoff_ms="10",
                log_cleaner_io_max_bytes_per_second=str(20 * MIB))
    node.create("plain")
    node.logs.cleaner.tend()
    assert node.logs.cleaner._threads == []
    node.create("compacted", configs=COMPACT)
    append(node, "compacted", [1, 2] * 120)
    begin_s = time.monotonic()
    node.logs.cleaner.tend()
    while not node.logs.cleaner.stats()["passes"] and time.monotonic() < begin_s + 20:
        time.sleep(0.01)
    # 12 MB are mapped, then read again; little of it is written.
    assert time.monotonic() - begin_s > 0.8
    assert len(keys_of(node, "compacted")) < 40
    node.stop()


@pytest.mark.parametrize("limit, passes", [("0", False), ("-5", True), ("NaN", True),
                                           ("Infinity", True)])
@pytest.mark.parametrize("load_factor", ["0.9", "0", "-1", "2", "NaN"])
def test_cleaner_thread_survives_every_valid_setting(tmp_path, limit, passes, load_factor):
    node = Node(tmp_path, log_cleaner_threads="1", log_cleaner_backoff_ms="10",
                log_cleaner_io_max_bytes_per_second=limit,
                log_cleaner_io_buffer_load_factor=load_factor)
    node.create("compacted", configs=COMPACT)
    append(node, "compacted", [1, 2] * 60)
    end_s = time.monotonic() + (20 if passes else 0.3)
    node.logs.cleaner.tend()
    while not node.logs.cleaner.stats()["passes"] and time.monotonic() < end_s:
        time.sleep(0.01)
    assert bool(node.logs.cleaner.stats()["passes"]) is passes
    assert node.logs.cleaner._threads[0].is_alive()
    # A setting takes effect also while the cleaner is throttled.
    node.settings.set_dynamic({"log.cleaner.io.max.bytes.per.second": "1e9"}, {})
    end_s = time.monotonic() + 20
    while not node.logs.cleaner.stats()["passes"]:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    node.stop()


def test_compact_and_delete_together_also_delete(node):
    node.create("both", configs={**COMPACT, "cleanup.policy": "compact,delete",
                                 "retention.bytes": str(2 * MIB)})
    append(node, "both", range(100))
    node.logs.cleaner.clean_next()
    node.logs.upkeep(node.now_ms() + 400_000)
    assert min(keys_of(node, "both")) > 0
    assert node.logs.get("both", 0).size_bytes < 4 * MIB


def test_deletion_on_a_full_disk_leaves_no_cleaner_checkpoint(
        node, tmp_path, monkeypatch):
    node.create("a", configs=COMPACT)
    append(node, "a", [1, 2] * 30)
    assert node.logs.cleaner.clean_next()
    assert ("a", 0) in checkpoint_files.read_offsets(tmp_path / CHECKPOINT)
    with monkeypatch.context() as patched:
        def refused(path, offsets):
            raise OSError(errno.ENOSPC, "no space", path)

        patched.setattr(checkpoint_files, "write_offsets", refused)
        node.delete("a")
    assert checkpoint_files.read_offsets(tmp_path / CHECKPOINT) == {}


def test_bytes_of_a_pass_count_once_for_the_throttle(node, monkeypatch):
    node.create("compacted", configs=COMPACT)
    append(node, "compacted", [1, 2] * 60)
    size, counted = node.logs.get("compacted", 0).size_bytes, []
    monkeypatch.setattr(cleaner, "STEP_BYTES", 100_000)
    monkeypatch.setattr(node.logs.cleaner, "_hold_back", counted.append)
    node.logs.cleaner.clean_next()
    stats = node.logs.cleaner.stats()
    # The bytes mapped do not exceed the bytes read.
    assert len(counted) > 20 and min(counted) >= 0
    assert size < sum(counted) <= 2 * size + stats["bytes_written"]


@pytest.mark.parametrize("first_ms, is_late", [(-1, False), (0, True), (4_999, True),
                                               (5_000, False)])
def test_log_dirty_longer_than_the_maximum_lag_is_due(node, monkeypatch, first_ms, is_late):
    monkeypatch.setattr(cleaner.compaction, "look", lambda *_, **__: (99, 1, 0, 5, first_ms))
    candidate = cleaner.Candidate(*[None] * len(cleaner.Candidate._fields))._replace(config={
        "min.compaction.lag.ms": 0, "max.compaction.lag.ms": 1000,
        "min.cleanable.dirty.ratio": 0.5})
    chosen = node.logs.cleaner._evaluate(candidate, ("t", 0), 6000)
    assert (chosen is not None) is is_late
