"""Rows of Kafka's checkpoint files: trusted rows, removed rows, and state after a rejection."""

import errno
import os
from types import SimpleNamespace

import pytest

from pylog._native.log.log import StorageError
from pylog.log import checkpoint_files
from pylog.log.checkpoint_files import HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from pylog.log.cleaner import CHECKPOINT as CLEANER
from pylog.log.errors import StartError
from pylog.log.partition_logs import NOTHING_KNOWN, Checkpoint
from pylog.log.recovery_hints import Hints
from pylog.log.topic_branches import Part

A, B, GONE = ("a", 0), ("b", 1), ("gone", 0)
KNOWN = Checkpoint(5, 3, 9, -1, -1, b"")
SHORT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
         errno.EAGAIN)


class World:
    """Hints in real directories. refuses: (name of a file or None for all, error number), on read
    or write.
    """

    def __init__(self, path, monkeypatch):
        self.paths = [str(path / "one"), str(path / "two")]
        for one in self.paths:
            os.mkdir(one)
        self.failed, self.away, self.refuses, self.written = [], set(), None, []
        self.hints = Hints(SimpleNamespace(
            paths=self.paths, online=lambda number: number not in self.away,
            fail=lambda number, error: self.failed.append((number, error.errno))))
        self.write, self.read = checkpoint_files.write_offsets, checkpoint_files.read_offsets
        monkeypatch.setattr(checkpoint_files, "write_offsets", self._write)
        monkeypatch.setattr(checkpoint_files, "read_offsets", self._read)

    def _check(self, path, what):
        name, number = self.refuses or (None, None)
        if number is not None and name in (None, f"{what} {os.path.basename(path)}"):
            raise OSError(number, "planted")

    def _write(self, path, rows):
        self._check(path, "write")
        self.written.append(os.path.basename(path))
        self.write(path, rows)

    def _read(self, path):
        self._check(path, "read")
        return self.read(path)

    def put(self, name, rows, place=0):
        self.write(os.path.join(self.paths[place], name), [(*key, row) for key, row in
                                                           rows.items()])

    def rows(self, name, place=0):
        return self.read(os.path.join(self.paths[place], name))


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


# At a start.

def test_each_file_names_the_partitions_of_its_directory(world):
    world.put(RECOVERY_POINT, {A: 5})
    world.put(LOG_START, {B: 3})
    world.put(HIGH_WATERMARK, {A: 9, ("c", 0): 1})
    assert world.hints.take(0, {A, B, ("d", 0)}) == {
        A: Checkpoint(5, -1, 9, -1, -1, b""), B: Checkpoint(0, 3, -1, -1, -1, b"")}


@pytest.mark.parametrize("name", [RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER])
def test_rows_of_partitions_that_lie_elsewhere_go_at_a_start(world, name):
    world.put(name, {A: 5, GONE: 7})
    world.put(name, {GONE: 7}, place=1)
    world.hints.take(0, {A})
    assert world.rows(name) == {A: 5} and world.rows(name, 1) == {GONE: 7}
    assert world.written == [name]


def test_a_start_writes_no_file_in_which_nothing_is_too_much(world):
    for name in (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER):
        world.put(name, {A: 5})
    world.hints.take(0, {A, B})
    assert world.written == []


@pytest.mark.parametrize("code", SHORT)
@pytest.mark.parametrize("number", [0, 1])
def test_shortage_stops_the_start(world, number, code):
    world.refuses = f"read {LOG_START}", code
    with pytest.raises(StartError, match=f"checkpoints in {world.paths[number]}: planted"):
        world.hints.take(number, {A})
    assert not world.failed


def test_unreadable_checkpoint_stops_the_start_only_in_the_first_directory(world):
    world.refuses = f"read {CLEANER}", errno.EIO
    with pytest.raises(StartError):
        world.hints.take(0, {A})
    world.put(LOG_START, {A: 3}, place=1)
    assert not world.failed and world.hints.take(1, {A}) == {}
    assert world.failed == [(1, errno.EIO)]


# Logs that could not be opened.

def test_rows_of_a_closed_log_are_kept_until_it_opens_or_is_deleted(world):
    for key in (A, B, GONE):
        world.hints.set_unread(0, key, KNOWN)
    world.hints.set_unread(1, A, NOTHING_KNOWN)
    world.hints.set_read(0, A)
    world.hints.set_read(0, ("other", 0))
    world.hints.forget([(0, GONE), (1, B)])
    assert world.hints.unread(0) == [("b", 1, KNOWN)]
    assert world.hints.unread(1) == [("a", 0, NOTHING_KNOWN)]


def test_a_deleted_topic_loses_the_rows_of_its_logs_and_of_those_that_are_not_open(world):
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        world.put(name, {A: 5, B: 6, ("a", 1): 7})
        world.put(name, {("a", 2): 5}, place=1)
    world.hints.set_unread(0, ("a", 1), KNOWN)
    world.hints.set_unread(0, B, KNOWN)
    world.hints.forget_topic("a", [(0, 0), (1, 2)])
    world.hints.tend()
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        assert (world.rows(name), world.rows(name, 1)) == ({B: 6}, {})
    assert world.hints.unread(0) == [("b", 1, KNOWN)]


# Removed rows.

def test_rows_go_with_the_next_look_and_once(world):
    world.put(LOG_START, {A: 5, B: 6})
    world.hints.forget([(0, A)])
    assert world.rows(LOG_START) == {A: 5, B: 6}
    world.hints.tend()
    assert world.rows(LOG_START) == {B: 6}
    world.put(LOG_START, {A: 5})
    world.hints.tend()
    assert world.rows(LOG_START) == {A: 5}


def test_rows_of_an_offline_directory_are_left_to_the_next_start(world):
    world.put(LOG_START, {A: 5})
    world.put(LOG_START, {A: 5}, place=1)
    world.hints.forget([(0, A), (1, A)])
    world.away = {0}
    world.hints.tend()
    world.away.clear()
    world.hints.tend()
    assert (world.rows(LOG_START), world.rows(LOG_START, 1)) == ({A: 5}, {})
    assert world.hints.is_free(0, A)


@pytest.mark.parametrize(("code", "failed"), [(errno.EIO, True), *((one, False) for one in SHORT)])
def test_topic_name_is_blocked_until_its_stale_rows_are_removed(world, code, failed):
    world.put(LOG_START, {A: 5})
    world.hints.forget([(0, A)])
    world.refuses = f"write {LOG_START}", code
    assert not world.hints.is_free(0, A) and world.rows(LOG_START) == {A: 5}
    assert world.failed == [(0, code)] * failed
    world.refuses = None
    assert world.hints.is_free(0, A) and world.rows(LOG_START) == {}


def test_other_names_and_directories_are_free_without_reading_files(world):
    world.put(LOG_START, {A: 5})
    world.hints.forget([(0, A)])
    assert world.hints.is_free(0, B) and world.hints.is_free(1, A) and not world.written
    assert world.hints.is_free(0, A) and world.written == [LOG_START]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_removes_the_file_but_a_descriptor_shortage_does_not(world, code):
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        world.put(name, {A: 5, B: 6})
    world.hints.forget([(0, A)])
    world.refuses = None, errno.EMFILE
    assert not world.hints.is_free(0, A)
    assert world.rows(RECOVERY_POINT) == {A: 5, B: 6}
    world.refuses = f"write {RECOVERY_POINT}", code
    assert world.hints.is_free(0, A)
    assert not os.path.exists(os.path.join(world.paths[0], RECOVERY_POINT))
    assert world.rows(HIGH_WATERMARK) == {B: 6} and not world.failed


# Added rows.

def test_existing_recovery_point_is_kept_and_a_start_offset_replaced(world):
    world.put(RECOVERY_POINT, {A: 2, GONE: 1})
    world.put(LOG_START, {A: 1, GONE: 1})
    world.hints.write(0, {A: KNOWN, B: KNOWN._replace(recovery_point=8)})
    assert world.rows(RECOVERY_POINT) == {A: 2, B: 8, GONE: 1}
    assert world.rows(LOG_START) == {A: 3, B: 3, GONE: 1}


def test_unchanged_row_is_not_written_again(world):
    world.put(RECOVERY_POINT, {A: 2, B: 2})
    world.put(LOG_START, {A: 3})
    world.hints.write(0, {A: KNOWN, B: KNOWN._replace(log_start_offset=0)})
    assert world.written == []
    world.hints.write(0, {A: KNOWN._replace(log_start_offset=4)})
    assert world.written == [LOG_START]


def test_no_row_is_added_beside_one_of_a_deleted_topic(world):
    world.put(LOG_START, {A: 5})
    world.hints.forget([(0, A)])
    world.refuses = f"write {LOG_START}", errno.EMFILE
    with pytest.raises(OSError, match="rows of a deleted topic") as raised:
        world.hints.write(0, {B: KNOWN, A: KNOWN})
    assert raised.value.errno == errno.EAGAIN and world.rows(RECOVERY_POINT) == {}


def partition_log(recovery_point, start):
    return SimpleNamespace(recovery_point=recovery_point, start_offset=start, high_watermark=9)


def test_start_offset_is_written_with_the_existing_recovery_point(world):
    world.hints.write_start(0, A, partition_log(5, 3))
    world.hints.write_start(1, A, partition_log(5, 3), copy=partition_log(4, 2))
    assert [world.rows(RECOVERY_POINT, place) for place in (0, 1)] == [{A: 5}, {A: 4}]
    assert [world.rows(LOG_START, place) for place in (0, 1)] == [{A: 3}, {A: 3}]


@pytest.mark.parametrize(("code", "failed"), [(errno.EIO, True), *((one, False) for one in SHORT)])
def test_a_start_that_cannot_be_written_fails_its_directory_but_for_a_shortage(
        world, code, failed):
    world.refuses = f"write {LOG_START}", code
    with pytest.raises(StorageError, match="a-0: planted"):
        world.hints.write_start(1, A, partition_log(5, 3))
    assert world.failed == [(1, code)] * failed


def test_branch_has_rows_in_each_directory_despite_a_failure(world, caplog):
    parts = [Part(place, "", KNOWN._replace(recovery_point=index))
             for index, place in enumerate((0, 1, 0))]
    world.hints.forget([(0, ("b", 2))])
    world.refuses = None, errno.EMFILE
    world.hints.write_branch("b", parts)
    assert caplog.text.count("a branch's checkpoints could not be written") == 2
    world.refuses = None
    world.hints.write_branch("b", parts)
    assert [world.rows(RECOVERY_POINT, place) for place in (0, 1)] == [
        {("b", 0): 0, ("b", 2): 2}, {("b", 1): 1}]
