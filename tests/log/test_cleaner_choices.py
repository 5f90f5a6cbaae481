"""The cleaner's decisions, without logs: next log, memory, pace."""

import errno
import threading
from types import SimpleNamespace

import pytest

from pylog import supervisor
from pylog._native.log.log import LogError, StorageError
from pylog.log import cleaner
from pylog.log.cleaner import Candidate, Choice, Cleaner
from pylog.protocol.errors import ErrorCode

DAY_MS = 24 * 3_600_000
CONFIG = {"min.compaction.lag.ms": 0, "max.compaction.lag.ms": DAY_MS,
          "min.cleanable.dirty.ratio": 0.5, "delete.retention.ms": 7, "segment.bytes": 99}
SETTINGS = {"log.cleaner.enable": True, "log.cleaner.threads": 1,
            "log.cleaner.backoff.ms": 15_000, "log.cleaner.dedupe.buffer.size": 128 << 20,
            "log.cleaner.io.buffer.load.factor": 0.9,
            "log.cleaner.io.max.bytes.per.second": 1000.0}


class Waits:
    """The stop event of the threads; waiting advances the clock."""

    def __init__(self, world):
        self.world, self.stopped, self.waits = world, False, []

    def is_set(self):
        return self.stopped

    def set(self):
        self.stopped = True

    def wait(self, seconds):
        self.waits.append(seconds)
        self.world.now += round(seconds * 1000)
        assert len(self.waits) < 1000
        self.stopped = self.stopped or self.world.stop_after == len(self.waits)


class World:
    """looks: topic -> (clean bytes, dirty bytes, first offset, end, time of the first record)."""

    def __init__(self, monkeypatch, tmp_path=None, **more):
        self.now, self.stop_after = 10 * DAY_MS, 0
        self.settings = {**SETTINGS, **{name.replace("_", "."): value
                                        for name, value in more.items()}}
        self.looks, self.candidates, self.failed_disks = {}, [], []
        self.paths = [str(tmp_path)]
        self.one = Cleaner(self.settings, lambda: self.now, self, lambda: list(self.candidates))
        self.waits = self.one._stopping = Waits(self)
        monkeypatch.setattr(cleaner.compaction, "look", self.look)

    # The interface of Directories.

    def usable(self):
        return list(enumerate(self.paths))

    def fail(self, place, error):
        self.failed_disks.append((place, error.errno))

    def add(self, topic, *look, partition=0, **config):
        self.candidates.append(Candidate(topic, partition, 0, SimpleNamespace(
            name=topic, offline=False), {**CONFIG, **{
                name.replace("_", "."): value for name, value in config.items()}}))
        self.looks[topic] = look or (100, 200, 3, 9, self.now)
        return self.candidates[-1]

    def look(self, log, now_ms, first_dirty, min_compaction_lag_ms):
        found = self.looks[log.name]
        if isinstance(found, Exception):
            raise found
        assert now_ms == self.now
        return found

    def chosen(self):
        choice = self.one._choose()
        return choice and choice.candidate.topic


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path)


# Choice of the log.

@pytest.mark.parametrize(("clean", "dirty", "due"), [
    (100, 100, False), (100, 101, True), (0, 1, True), (100, 0, False), (0, 0, False)])
def test_a_log_is_due_when_more_of_it_is_dirty_than_the_ratio(world, clean, dirty, due):
    """min.cleanable.dirty.ratio: exactly the ratio is not enough, as in Kafka."""
    world.add("t", clean, dirty, 0, 9, world.now)
    choice = world.one._choose()
    assert (choice is not None) == due
    if due:
        assert choice[1:] == (0, 9, dirty, dirty / (clean + dirty))


@pytest.mark.parametrize(("age_ms", "due"), [
    (DAY_MS - 1, False), (DAY_MS, False), (DAY_MS + 1, True)])
def test_record_older_than_the_maximum_lag_makes_its_log_due(world, age_ms, due):
    """max.compaction.lag.ms (KIP-354)."""
    world.add("t", 1000, 1, 0, 9, world.now - age_ms)
    assert (world.chosen() == "t") == due


def test_time_zero_is_a_time_and_none_is_not(world):
    world.add("none", 1000, 1, 0, 9, -1)
    assert world.chosen() is None
    world.add("t", 1000, 1, 0, 9, 0)
    assert world.chosen() == "t"


def test_dirtiest_log_is_cleaned_first(world):
    for topic, dirty in (("a", 200), ("b", 300), ("c", 300), ("d", 299)):
        world.add(topic, 100, dirty, 0, 9, world.now)
    assert [world.chosen() for _ in range(5)] == ["b", "c", "d", "a", None]


def test_unreadable_log_does_not_hide_others(world):
    world.add("broken")
    world.looks["broken"] = LogError(1, ErrorCode.UNKNOWN_SERVER_ERROR, "gone")
    world.add("t")
    assert world.chosen() == "t"


def test_partitions_of_one_topic_are_cleaned_concurrently(world):
    world.add("t")
    world.add("t", partition=1)
    first, second = world.one._choose(), world.one._choose()
    assert (first.candidate.partition, second.candidate.partition) == (0, 1)
    assert world.one._choose() is None and world.one.stats()["at_work"] == 2


# Failures.

def storage_error():
    return StorageError(28, ErrorCode.KAFKA_STORAGE_ERROR, "no room")


@pytest.mark.parametrize(("error", "offline", "again"), [
    (MemoryError(), False, True), (MemoryError(), True, True), (storage_error(), False, True),
    (storage_error(), True, False), (LogError(1, ErrorCode.UNKNOWN_SERVER_ERROR, "odd"), False,
     False), (ValueError("ours"), False, False)])
def test_shortage_is_retried_and_a_failed_log_is_skipped(
        world, monkeypatch, error, offline, again):
    world.add("t").log.offline = offline

    def fail(choice):
        raise error

    monkeypatch.setattr(world.one, "_clean", fail)
    assert world.one.clean_next()
    assert world.one.stats() == {**dict.fromkeys(world.one._totals, 0), "failures": 1, "at_work": 0,
                                 "uncleanable": int(not again)}
    assert world.chosen() is None
    world.now += cleaner.SHORTAGE_MS
    assert (world.chosen() == "t") == again


@pytest.mark.parametrize(("passed_ms", "due"), [
    (9_999, False), (10_000, True), (0, False), (-1, True)])
def test_cleaning_is_retried_ten_seconds_after_a_full_disk(world, passed_ms, due):
    """A clock that was set back delays nothing."""
    candidate = world.add("t")
    world.one._note_failure(candidate, ("t", 0), MemoryError())
    world.now += passed_ms
    assert (world.chosen() == "t") == due


@pytest.mark.parametrize("error", [cleaner.compaction.Interrupted("moved"), None])
def test_cancelled_cleaning_is_not_a_failure(world, monkeypatch, error):
    def clean(choice):
        if error is not None:
            raise error

    monkeypatch.setattr(world.one, "_clean", clean)
    world.add("t")
    assert world.one.clean_next() and world.one.clean_next()
    assert world.one.stats()["failures"] == world.one.stats()["at_work"] == 0


def test_recreated_topic_starts_without_state_of_the_old_one(world):
    for key in (("t", 0), ("t", 1), ("u", 0)):
        world.one._failed.add(key)
        world.one._short_until[key] = world.now + 5
    world.one.forget("t")
    assert world.one._failed == {("u", 0)} and set(world.one._short_until) == {("u", 0)}


# Stored offsets.

def test_of_two_directories_that_know_a_partition_the_later_offset_counts(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path)
    world.paths = [str(tmp_path / name) for name in "abc"]
    for path, rows in zip(world.paths, ([("t", 0, 5)], [("t", 0, 9), ("u", 1, 1)], [("t", 0, 7)])):
        cleaner.checkpoint_files.make_directory(path)
        cleaner.checkpoint_files.write_offsets(f"{path}/{cleaner.CHECKPOINT}", rows)
    assert world.one._load() == {("t", 0): 9, ("u", 1): 1}


def test_unreadable_checkpoint_is_reported_and_counted(monkeypatch, tmp_path, caplog):
    world = World(monkeypatch, tmp_path)
    (tmp_path / cleaner.CHECKPOINT).mkdir()
    before = supervisor.failures().get(cleaner.WORK, 0)
    assert world.one._load() == {}
    assert world.failed_disks == [(0, errno.EISDIR)]
    assert supervisor.failures()[cleaner.WORK] == before + 1
    assert caplog.records[-1].path == str(tmp_path / cleaner.CHECKPOINT)


def test_cleaned_offset_is_written_per_directory_and_counted(world, tmp_path):
    candidate = world.add("t")
    world.one._clean_until = {("gone", 0): 4}
    done = {"end_offset": 8, "bytes_read": 1, "bytes_written": 2, "records_read": 3,
            "records_kept": 4, "segments_before": 2, "segments_after": 1, "bytes_damaged": 0}
    world.one._note(candidate, done, 5)
    world.one._note(candidate, {**done, "end_offset": 9}, 5)
    assert cleaner.checkpoint_files.read_offsets(str(tmp_path / cleaner.CHECKPOINT)) == {("t",
                                                                                          0): 9}
    assert world.one.stats() == {
        "passes": 2, "bytes_read": 2, "bytes_written": 4, "records_read": 6, "records_kept": 8,
        "failures": 0, "at_work": 0, "uncleanable": 0}
    world.candidates.clear()
    world.one._note(candidate, {**done, "end_offset": 10}, 5)
    assert world.one._clean_until["t", 0] == 9 and world.one.stats()["passes"] == 2


def test_failed_checkpoint_write_is_reported_to_the_directory(world, tmp_path):
    world.paths = [str(tmp_path / "missing")]
    assert world.one._store(0) is False
    assert world.failed_disks == [(0, 2)]


# Memory.

@pytest.mark.parametrize(("load_factor", "slots"), [(1, 10_001), (0.8, 12_501), (0.9, 11_112)])
def test_key_map_size_is_limited_by_its_keys(world, load_factor, slots):
    """One slot stays free, so that probing ends."""
    world.settings["log.cleaner.io.buffer.load.factor"] = load_factor
    size, _ = world.one._map_size(Choice(None, 5, 10_005, 0, 0))
    assert size == slots * cleaner.compaction.SLOT_BYTES > cleaner.MAP_BYTES_MIN


@pytest.mark.parametrize(("records", "threads", "buffer", "slots"), [
    (0, 1, 128 << 20, None), (1_000_000, 1, 128 << 20, 1_111_112), (1_000_000, 1, 4_800_000, 0),
    (1_000_000, 2, 9_600_000, 0), (1_000_000, 0, 4_800_000, 0)])
def test_map_size_is_limited_by_dirty_records_and_the_threads_share(
        world, records, threads, buffer, slots):
    world.settings |= {"log.cleaner.threads": threads, "log.cleaner.dedupe.buffer.size": buffer}
    size, load_factor = world.one._map_size(Choice(None, 10, 10 + records, 0, 0))
    expected = {None: cleaner.MAP_BYTES_MIN, 0: 4_800_000}.get(
        slots, (slots or 0) * cleaner.compaction.SLOT_BYTES)
    assert load_factor == 0.9 and size == pytest.approx(expected, abs=2 * 48)
    if slots is not None and slots > 0:
        assert size // cleaner.compaction.SLOT_BYTES * load_factor >= records


@pytest.mark.parametrize(("given", "used"), [
    (0.9, 0.9), (1, 1), (0.001, 0.001), (0, 0.9), (1.001, 0.9), (-1, 0.9)])
def test_a_load_factor_without_sense_is_kafkas_default(world, given, used):
    world.settings["log.cleaner.io.buffer.load.factor"] = given
    assert world.one._map_size(Choice(None, 0, 9, 0, 0))[1] == used


# Pace.

def test_bytes_wait_for_as_long_as_they_take_at_the_limit(world):
    world.one._hold_back(1200)
    assert world.waits.waits == [0.5, 0.5, pytest.approx(0.2)]


def test_time_without_work_is_no_credit_for_later(world):
    world.now += 3_600_000
    world.one._hold_back(1000)
    assert not world.waits.waits
    world.one._hold_back(400)
    assert world.waits.waits == [pytest.approx(0.4)]


def test_a_clock_that_was_set_back_holds_nothing_up(world):
    world.now -= 3_600_000
    world.one._hold_back(10_000)
    assert not world.waits.waits
    world.one._hold_back(100)
    assert world.waits.waits == [pytest.approx(0.1)]


@pytest.mark.parametrize("limit", [-1, float("inf"), float("nan")])
def test_unlimited_rate_does_not_throttle(world, limit):
    world.settings["log.cleaner.io.max.bytes.per.second"] = limit
    world.one._hold_back(10**9)
    assert not world.waits.waits


def test_rate_of_zero_pauses_until_it_changes(world):
    world.settings["log.cleaner.io.max.bytes.per.second"] = 0
    world.stop_after = 4
    world.one._hold_back(1)
    assert world.waits.waits == [0.5] * 4


# Threads.

def threads_after(world, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(world.one, "_run", gate.wait)
    world.one.tend()
    world.one.tend()
    gate.set()
    found = world.one._threads
    for thread in found:
        thread.join()
    return len(found)


@pytest.mark.parametrize(("wanted", "enabled", "candidates", "stopped", "expected"), [
    (1, True, 1, False, 1), (3, True, 1, False, 3), (0, True, 1, False, 0), (1, False, 1, False, 0),
    (1, True, 0, False, 0), (1, True, 1, True, 0)])
def test_cleaner_threads_start_with_the_first_compacted_log(
        world, monkeypatch, wanted, enabled, candidates, stopped, expected):
    world.settings |= {"log.cleaner.threads": wanted, "log.cleaner.enable": enabled}
    world.waits.stopped = stopped
    for _ in range(candidates):
        world.add("t")
    assert threads_after(world, monkeypatch) == expected
    # Threads that ended are replaced.
    assert threads_after(world, monkeypatch) == expected


def test_idle_cleaner_thread_checks_again_after_the_backoff(world):
    world.stop_after = 3
    world.one._threads = [None]
    world.one._run()
    assert world.waits.waits == [15.0] * 3


def test_a_thread_ends_when_fewer_are_wanted(world):
    world.one._threads = [None, None]
    world.one._run()
    assert not world.waits.waits


def test_work_is_followed_by_work_without_a_pause(world, monkeypatch):
    left = [True, True, False]
    world.stop_after = 1
    world.one._threads = [None]
    monkeypatch.setattr(world.one, "clean_next", lambda: left.pop(0))
    world.one._run()
    assert not left and world.waits.waits == [15.0]


def test_catching_up_cleans_all_due_logs_and_waits_for_running_passes(
        world, monkeypatch):
    cleaned = []

    def clean(choice):
        cleaned.append(choice.candidate.topic)
        world.looks[choice.candidate.topic] = (100, 0, 9, 9, world.now)

    def wait():
        # A thread finished its log while another log became dirty.
        assert cleaned == ["a", "b"]
        world.one._at_work.clear()
        world.add("later")

    monkeypatch.setattr(world.one, "_clean", clean)
    monkeypatch.setattr(world.one, "_idle", SimpleNamespace(wait=wait, notify_all=lambda: None))
    for topic in ("a", "b", "elsewhere"):
        world.add(topic)
    world.one._at_work.add(("elsewhere", 0))
    world.looks["elsewhere"] = (100, 0, 9, 9, world.now)
    world.one.catch_up()
    assert cleaned == ["a", "b", "later"]


# Cleaning pass.

class Pass:
    """Counts its steps; statistics are available from the second on."""

    def __init__(self, steps):
        self.left, self.given, self.closed = steps, None, 0

    def __call__(self, log, offset_map, **given):
        self.given = given
        return self

    def step(self, count):
        assert count == 4 << 20
        self.left -= 1
        return self.left > 0

    def figures(self):
        return {"bytes_mapped": 1, "bytes_read": 20, "bytes_written": 300, "bytes_damaged": 0,
                "end_offset": 7, "records_read": 0, "records_kept": 0, "segments_before": 1,
                "segments_after": 1}

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(("more", "segment_bytes"), [
    ({}, 99), ({"internal_segment_bytes": 5}, 5), ({"internal_segment_bytes": None}, 99)])
def test_cleaning_uses_the_topics_settings(world, monkeypatch, more, segment_bytes):
    one_pass = Pass(1)
    monkeypatch.setattr(cleaner.compaction, "CleaningPass", one_pass)
    world.one._clean(Choice(world.add("t", **more), 3, 9, 1, 1.0))
    assert one_pass.given == {"now_ms": 10 * DAY_MS, "first_dirty": 3, "delete_retention_ms": 7,
                              "min_compaction_lag_ms": 0, "segment_bytes": segment_bytes}
    assert one_pass.closed == 1 and world.one._clean_until == {("t", 0): 7}


def test_each_byte_of_a_pass_counts_once_against_the_limit(world, monkeypatch):
    monkeypatch.setattr(cleaner.compaction, "CleaningPass", Pass(3))
    held = []
    monkeypatch.setattr(world.one, "_hold_back", held.append)
    world.one._clean(Choice(world.add("t"), 0, 9, 1, 1.0))
    assert held == [321, 0, 0]


def test_a_pass_that_a_stop_cut_short_changes_nothing(world, monkeypatch):
    one_pass = Pass(9)
    monkeypatch.setattr(cleaner.compaction, "CleaningPass", one_pass)
    world.settings["log.cleaner.io.max.bytes.per.second"] = 0
    world.stop_after = 2
    world.one._clean(Choice(world.add("t"), 0, 9, 1, 1.0))
    assert (one_pass.left, one_pass.closed) == (8, 1) and not world.one._clean_until
