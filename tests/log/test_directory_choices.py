"""Log directories without disks: next directory, failures, reserved space."""

import errno
import os

import pytest

from pylog.log import checkpoint_files
from pylog.log import log_directories, partition_logs
from pylog.log.log_directories import Directories
from pylog.log.partition_logs import NOTHING_KNOWN, Checkpoint, Role

GIB = 1 << 30


class Native:
    """The part of a LogDir that the directories use."""

    def __init__(self, offline=False, short=False, free=0, total=100 * GIB):
        self.offline, self.short_of_space = offline, short
        self.free, self.total, self.reserves, self.errors = free, total, [], []
        self.failure = (0, "EIO", "fsync")
        self.shortages, self.short_error = 0, 0

    def fail(self, code):
        self.errors.append(code)
        self.offline = code not in (errno.ENOSPC, errno.EMFILE)
        return self.offline

    def stats(self):
        return {"shortages": self.shortages, "short_error": self.short_error}

    def check_free_space(self, reserve=None):
        if reserve is not None:
            self.reserves.append(reserve)
            self.short_of_space = self.free < reserve
        return self.free, self.total


def disks(*natives, cordoned=(), free_min=-1, paths=None):
    class Settings(dict):
        cordoned_log_dirs = frozenset(cordoned)

    made = Directories(paths or [f"/d{number}" for number in range(len(natives))],
                       Settings({"log.dir.min.free.bytes": free_min}), None)
    made.natives, made.loads = list(natives), [0] * len(natives)
    made.listings = [set() for _ in natives]
    return made


# Next directory.

def test_next_partition_uses_the_first_emptiest_directory():
    made = disks(Native(), Native(), Native())
    made.loads = [2, 1, 1]
    assert made.least_loaded() == 1


def test_full_and_cordoned_directories_are_last_choices():
    made = disks(Native(), Native(short=True), Native(), cordoned=["/d0"])
    made.loads = [0, 1, 9]
    assert made.least_loaded() == 2
    made.natives[2].offline = True
    assert made.least_loaded() == 1
    made.natives[1].offline = True
    assert made.least_loaded() == 0


def test_without_any_directory_online_the_first_is_named():
    made = disks(Native(offline=True), None)
    assert made.least_loaded() == 0 and made.usable() == []
    assert [made.online(number) for number in (0, 1)] == [False, False]


def test_a_directory_is_cordoned_by_its_path():
    made = disks(Native(), Native(), cordoned=["/d1", "/other"])
    assert [made.is_cordoned(0), made.is_cordoned(1)] == [False, True]


# Failures.

def test_each_failure_is_reported_once():
    made = disks(Native(), Native(offline=True), Native())
    assert made.newly_failed() == [1]
    made.natives[2].offline = True
    assert made.newly_failed() == [2] and made.newly_failed() == []


def test_directory_failed_at_the_start_is_not_reported_again():
    made = disks(Native(), None)
    made._reported.add(1)
    assert made.newly_failed() == []


@pytest.mark.parametrize(("offline", "text"), [
    ((), None), ((1,), None),
    ((0,), "the log directory that holds the metadata has failed: /d0"),
    ((0, 1), "all log directories have failed: /d0, /d1")])
def test_broker_runs_while_its_metadata_directory_is_online(offline, text):
    made = disks(*(Native(offline=number in offline) for number in range(2)))
    assert made.fatal() == text


@pytest.mark.parametrize(("code", "told", "failed"), [
    (errno.EIO, errno.EIO, True), (errno.ENOSPC, errno.ENOSPC, False), (None, errno.EIO, True)])
def test_shortages_do_not_fail_a_directory_but_unknown_errors_do(
        code, told, failed):
    made = disks(Native())
    assert made.fail(0, OSError(code, "planted") if code else OSError("planted")) == failed
    assert made.natives[0].errors == [told]


def test_missing_directory_does_not_fail():
    assert disks(Native(), None).fail(1, OSError(errno.EIO, "planted")) is False


# Marks of clean stops.

@pytest.fixture
def marked(tmp_path):
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        checkpoint_files.make_directory(path)
    return disks(Native(), Native(), Native(), paths=paths)


def test_a_mark_is_trusted_once_and_only_as_it_was_written(marked):
    stored = marked.write_clean_marks([0, 1], 5)
    assert [len(mark) for mark in stored] == [2, 2, 0]
    stored[1] = [0, 0]
    assert marked.take_clean_marks(stored) == {0}
    assert marked.take_clean_marks(stored) == frozenset()
    assert [checkpoint_files.clean_mark(path) for path in marked.paths] == [()] * 3


def test_a_directory_that_was_added_since_has_no_mark_to_trust(marked):
    stored = marked.write_clean_marks([0, 1, 2], 5)
    assert marked.take_clean_marks(stored[:2]) == {0, 1}


def test_without_a_mark_nothing_is_trusted_also_when_none_is_stored(marked):
    assert marked.take_clean_marks([[], [], []]) == frozenset()


def test_failed_clean_stop_mark_affects_only_its_directory(marked, monkeypatch):
    write = checkpoint_files.write_clean_mark

    def refuse(path, epoch):
        if path == marked.paths[1]:
            raise OSError(errno.EIO, "planted")
        return write(path, epoch)

    monkeypatch.setattr(checkpoint_files, "write_clean_mark", refuse)
    stored = marked.write_clean_marks([0, 1, 2], 5)
    assert stored[1] == [] and marked.natives[1].errors == [errno.EIO]
    assert marked.take_clean_marks(stored) == {0, 2}


# Disk space.

@pytest.mark.parametrize(("wanted", "total", "reserve"), [
    (-1, 50 * GIB, GIB), (-1, 50 * GIB - 50, GIB - 1), (-1, 500 * GIB, GIB), (-1, 5000, 100),
    (0, 50 * GIB, 0), (7, 50 * GIB, 7)])
def test_disk_reserve_is_two_percent_up_to_a_gibibyte(wanted, total, reserve):
    """log.dir.min.free.bytes; -1 derives it from the disk's size."""
    made = disks(Native(free=total, total=total), Native(offline=True), free_min=wanted)
    made.check_free_space()
    assert made.natives[0].reserves == [reserve] and made.natives[1].reserves == []


def test_nearly_full_disk_is_logged_once_and_once_when_it_has_space(caplog):
    made = disks(Native(free=9), free_min=10)
    with caplog.at_level("INFO", logger="pylog.log"):
        for free in (9, 9, 10, 11):
            made.natives[0].free = free
            made.check_free_space()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    full, free = caplog.records
    assert "produce requests are rejected" in full.message
    assert (full.directory, full.free_bytes, full.threshold_bytes) == ("/d0", 9, 10)
    assert "produce requests are accepted again" in free.message


def test_full_disk_found_by_an_append_is_logged(caplog):
    made = disks(Native(free=9), free_min=10)
    made.natives[0].short_of_space = True
    with caplog.at_level("INFO", logger="pylog.log"):
        made.check_free_space()
        made.check_free_space()
    assert len(caplog.records) == 1


def _shortages(made, caplog, *counts):
    """Return the log lines of checks before which this many shortages occurred."""
    caplog.clear()
    with caplog.at_level("INFO", logger="pylog.log"):
        for count in counts:
            made.natives[0].shortages = count
            made.check_free_space()
    return [record.message.split(" a log directory ")[1] for record in caplog.records]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM])
def test_a_shortage_is_logged_once_and_once_more_when_writes_succeed(tmp_path, caplog, code):
    made = disks(Native(free=9), free_min=0, paths=[str(tmp_path)])
    made.natives[0].short_error = code
    quiet = log_directories.QUIET_LOOKS
    assert _shortages(made, caplog, 0, 0) == []
    assert _shortages(made, caplog, 1, 2, 3, 3, 4) == ["fail and are retried"]
    assert caplog.records[0].reason == os.strerror(code)
    assert _shortages(made, caplog, *[4] * (quiet - 1)) == []
    assert _shortages(made, caplog, 4) == ["succeed again"]
    assert _shortages(made, caplog, *[4] * 9) == []
    assert _shortages(made, caplog, 5) == ["fail and are retried"]
    assert os.listdir(tmp_path) == []


def test_shortage_lasts_until_a_file_can_be_written(tmp_path, caplog, monkeypatch):
    made = disks(Native(), free_min=0, paths=[str(tmp_path)])
    made.natives[0].short_error = errno.ENOSPC

    def full(descriptor, data, position):
        raise OSError(errno.ENOSPC, "planted")

    with monkeypatch.context() as patched:
        patched.setattr(log_directories.os, "pwrite", full)
        assert _shortages(made, caplog, 1, *[1] * 20) == ["fail and are retried"]
    assert os.listdir(tmp_path) == []
    assert _shortages(made, caplog, 1) == ["succeed again"]


def test_later_shortage_is_logged_again(tmp_path, caplog):
    made = disks(Native(), free_min=0, paths=[str(tmp_path)])
    made.natives[0].short_error = errno.ENOSPC
    assert _shortages(made, caplog, 1, 2) == ["fail and are retried"]
    made.natives[0].short_error = errno.EMFILE
    assert _shortages(made, caplog, 3, 4) == ["fail and are retried"]


@pytest.mark.parametrize(("descriptors", "told"), [(2 * 1024, None), (2, True)])
def test_low_descriptor_limit_is_logged(monkeypatch, caplog, descriptors, told):
    monkeypatch.setattr(log_directories.limits, "descriptors", lambda: descriptors)
    monkeypatch.setattr(log_directories.limits, "SEGMENT_FILES_LOW", 1024)
    log_directories._open_files_max(1)
    assert bool(caplog.records) == bool(told)


# Checkpoints and roles.

def test_of_two_checkpoints_the_lower_recovery_point_and_the_higher_rest_count():
    stored, hinted = Checkpoint(5, 3, 9, 20, 1, b"x"), Checkpoint(7, 2, 8, 30, 2, b"y")
    merged = NOTHING_KNOWN._replace(recovery_point=5, log_start_offset=3, high_watermark=9)
    assert partition_logs.after_crash(stored, hinted) == merged
    assert partition_logs.after_crash(hinted, stored) == merged
    assert partition_logs.after_crash(stored, None) == stored
    assert partition_logs.after_crash(None, hinted) == hinted
    assert partition_logs.after_crash(None, None) == NOTHING_KNOWN == (0, -1, -1, -1, -1, b"")


def test_log_of_a_missing_directory_keeps_only_its_start_offset():
    assert partition_logs.without_files(Checkpoint(5, 3, 9, 20, 1, b"x")) == (0, 3, -1, -1, -1, b"")


class Log:
    """A partition's log; records the roles that it gets."""

    def __init__(self, leads=True, epoch=3, in_sync=1, open_transaction=-1):
        self.is_leader, self.leader_epoch, self.in_sync_count = leads, epoch, in_sync
        self.recovery_point, self.start_offset, self.high_watermark, self.end_offset = 4, 2, 5, 6
        self.last_epoch, self.open_transaction, self.roles = 3, open_transaction, []

    def segments(self):
        return b"s"

    def become_leader(self, *role, replicated=False):
        self.roles.append(("leader", *role, replicated))

    def become_follower(self, epoch, readable):
        self.roles.append(("follower", epoch, readable))


@pytest.mark.parametrize(("log", "role", "expected"), [
    ({}, Role(True, 3, 1), []), ({}, Role(True, 4, 1), [("leader", 4, 1, False)]),
    ({}, Role(True, 3, 2), [("leader", 3, 2, False)]), ({}, Role(True, 3, 0), []),
    ({"leads": False}, Role(True, 3, 1), [("leader", 3, 1, False)]),
    ({}, Role(True, 3, 9, True), []), ({}, Role(True, 4, 2, True), [("leader", 4, 2, True)]),
    ({"leads": False}, Role(True, 3, 0, True), [("leader", 3, 1, True)]),
    ({}, Role(False, 3, 1), [("follower", 3, False)]),
    ({"leads": False}, Role(False, 3, 1, True), []),
    ({"leads": False}, Role(False, 4, 1, True), [("follower", 4, True)])])
def test_only_changed_roles_are_applied(log, role, expected):
    one = Log(**log)
    partition_logs.assume(one, role)
    assert one.roles == expected


@pytest.mark.parametrize(("transaction", "expected"), [
    (-1, (4, 2, 5, 6, 3, b"s")), (0, (4, 2, 5, -1, -1, b"")), (1, (4, 2, 5, -1, -1, b""))])
def test_log_with_an_open_transaction_is_not_marked_clean(transaction, expected):
    assert partition_logs.at_rest(Log(open_transaction=transaction)) == expected


def test_checkpoint_files_contain_a_row_for_each_known_offset(tmp_path):
    rows = [("t", 0, Checkpoint(0, 0, 0, -1, -1, b"")), ("t", 1, Checkpoint(7, 1, -1, -1, -1, b""))]
    partition_logs.write_checkpoint_files(str(tmp_path), rows)
    assert [checkpoint_files.read_offsets(str(tmp_path / name)) for name in (
        checkpoint_files.RECOVERY_POINT, checkpoint_files.HIGH_WATERMARK,
        checkpoint_files.LOG_START)] == [
        {("t", 0): 0, ("t", 1): 7}, {("t", 0): 0}, {("t", 1): 1}]


@pytest.mark.parametrize(("text", "found"), [
    ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n", bytes(15) + b"\1"),
    ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAA\n", None), ("version: 0\n", None), ("", None),
    ("version 0\n", None), ("version: 0\ntopic_id: \u00e4\n", None)])
def test_a_topic_id_is_whole_or_none(tmp_path, text, found):
    (tmp_path / "partition.metadata").write_text(text)
    assert partition_logs.topic_id_in(str(tmp_path)) == found
    assert partition_logs.topic_id_in(str(tmp_path / "missing")) is None
