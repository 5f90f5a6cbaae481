"""Lack of descriptors, memory or space is rejected and retried; it is never a disk failure."""

import ctypes
import errno
import os
import struct
import time

import pytest

from pylog._native.log import log, replica_move
from pylog._native.records import batch
from tests.fixtures.waits import until
from tests.native.log.test_compaction import plain, transaction
from tests.native.log.test_log import NOW, checkpoint_of, make, offsets, opened

SHORT = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT]
CALLS = ("openat", "pread", "pwrite", "ftruncate", "fallocate", "fsync", "fdatasync", "syncfs",
         "renameat", "unlinkat", "mkdirat")
LIBC = ctypes.CDLL(None, use_errno=True)
OPEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint,
                        use_errno=True)
SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, use_errno=True)
WRITE = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t,
                         ctypes.c_long, use_errno=True)
LIBC.pwrite.restype = ctypes.c_ssize_t


class Short:
    """A disk that fails with `error`, while set, to open paths for which `wanted` returns True.

    creates: only if the open would create the file. syncs: fdatasync and fsync fail too. writes:
    every pwrite fails too.
    """

    def __init__(self, error=0, wanted=lambda path: True, syncs=False):
        self.error, self.wanted, self.syncs = error, wanted, syncs
        self.creates = self.writes = False
        self.refused = 0
        self._keep = [OPEN(self._open), SYNC(self._sync), WRITE(self._write)]
        places = [ctypes.cast(getattr(LIBC, name), ctypes.c_void_p).value for name in CALLS]
        places[0] = ctypes.cast(self._keep[0], ctypes.c_void_p).value
        places[5] = places[6] = ctypes.cast(self._keep[1], ctypes.c_void_p).value
        places[2] = ctypes.cast(self._keep[2], ctypes.c_void_p).value
        self._table = (ctypes.c_void_p * len(CALLS))(*places)
        self.table = ctypes.addressof(self._table)

    def _open(self, folder, path, flags, mode):
        makes = bool(flags & os.O_CREAT) or not self.creates
        if self.error and makes and self.wanted(path.decode()):
            self.refused += 1
            ctypes.set_errno(self.error)
            return -1
        return LIBC.openat(folder, path, flags, ctypes.c_uint(mode))

    def _write(self, file, data, size, position):
        if self.error and self.writes:
            self.refused += 1
            ctypes.set_errno(self.error)
            return -1
        return LIBC.pwrite(file, ctypes.c_void_p(data), ctypes.c_size_t(size),
                           ctypes.c_long(position))

    def _sync(self, file):
        if self.error and self.syncs:
            ctypes.set_errno(self.error)
            return -1
        return LIBC.fdatasync(file)


@pytest.fixture
def short(tmp_path):
    """(directory, disk): the disk can be made to fail."""
    directory, disk = log.LogDir(tmp_path, 2), Short()
    directory.set_disk(disk.table)
    yield directory, disk
    disk.error = 0
    directory.set_disk(log.DISK_SYSTEM)


@pytest.mark.parametrize("code", SHORT, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("what", ["append", "flush", "roll", "open", "truncate"])
def test_shortage_is_rejected_and_the_directory_stays_online(short, what, code):
    directory, disk = short
    one = opened(directory, config={"internal.segment.bytes": 2_000})
    one.append(make(1, size=1_500), NOW)
    calls = {
        "append": lambda: opened(directory, "v").append(make(1), NOW),
        "flush": one.flush,
        "roll": lambda: one.append(make(1, size=1_500), NOW),
        "open": lambda: opened(directory, "u"),
        "truncate": lambda: one.truncate(0),
    }
    disk.error = code
    with pytest.raises(log.Shortage) as caught:
        calls[what]()
    assert caught.value.code == 56 and disk.refused
    assert not directory.offline and directory.stats()["shortages"] > 0
    disk.error = 0
    calls[what]()
    one.append(make(1), NOW)
    one.flush()
    assert one.flushed_offset == one.end_offset and not directory.offline


@pytest.mark.parametrize("code", SHORT, ids=lambda code: errno.errorcode[code])
def test_failed_sync_is_never_a_shortage(short, code):
    directory, disk = short
    one = opened(directory)
    one.append(make(1), NOW)
    disk.error, disk.wanted, disk.syncs = code, lambda path: False, True
    with pytest.raises(log.StorageError):
        one.flush()
    assert directory.offline and directory.failure[0] == code


def test_awaited_flush_is_retried_after_the_shortage(short):
    directory, disk = short
    one = opened(directory, config={"flush.messages": 1})
    disk.error, disk.wanted = errno.EMFILE, lambda path: path == "."
    one.append(make(1), NOW)
    until(lambda: disk.refused > 2)
    assert one.flushed_offset == 0 and not directory.offline
    disk.error = 0
    until(lambda: one.flushed_offset == 1)


@pytest.mark.parametrize("flushed", [True, False])
def test_retention_keeps_the_state_of_producers_without_a_snapshot(short, flushed):
    directory, disk = short
    config = {"internal.segment.bytes": 2_000, "retention.bytes": 2_000,
              "file.delete.delay.ms": 0}
    one = opened(directory, config=config)
    one.append(make(1, size=1_500, producer_id=7, producer_epoch=3, base_sequence=5), NOW)
    disk.error, disk.creates = errno.ENOSPC, True
    disk.wanted = lambda path: ".snapshot" in path
    for _ in range(2):
        one.append(make(1, size=1_500), NOW)
    assert disk.refused == 2
    if flushed:
        one.flush()
    with pytest.raises(log.Shortage):
        one.upkeep(NOW)
    assert one.start_offset == 0
    disk.error = 0
    assert one.upkeep(NOW) > 0 and one.start_offset > 0
    point = one.recovery_point
    one.release()
    again = opened(directory, config=config, recovery_point=point)
    with pytest.raises(log.SequenceError):
        again.append(make(1, producer_id=7, producer_epoch=2, base_sequence=0), NOW)
    again.append(make(1, producer_id=7, producer_epoch=3, base_sequence=6), NOW)
    again.release()


def test_retention_deletes_up_to_an_older_snapshot_while_there_is_no_room_for_a_new_one(short):
    directory, disk = short
    config = {"internal.segment.bytes": 2_000, "retention.bytes": 100,
              "file.delete.delay.ms": 0}
    one = opened(directory, config=config)
    one.append(make(1, size=1_500, producer_id=7, producer_epoch=3, base_sequence=5), NOW)
    for _ in range(6):
        one.append(make(1, size=1_500), NOW)
    one.flush()
    disk.error, disk.creates = errno.ENOSPC, True
    disk.wanted = lambda path: ".snapshot" in path
    one.append(make(1, size=1_500), NOW)
    one.append(make(1, size=200), NOW)
    one.flush()
    assert one.upkeep(NOW) == 6 and one.start_offset == 6
    with pytest.raises(log.Shortage):
        one.upkeep(NOW)
    point = one.recovery_point
    one.release()
    disk.error = 0
    again = opened(directory, config=config, recovery_point=point)
    again.append(make(1, producer_id=7, producer_epoch=3, base_sequence=6), NOW)
    again.release()


def test_batches_in_flight_are_not_forgotten_because_descriptors_are_short(short):
    directory, disk = short
    config = {"internal.segment.bytes": 2_000}
    one = opened(directory, config=config)
    sent = [make(1, size=1_500, producer_id=7, producer_epoch=0, base_sequence=sequence)
            for sequence in range(4)]
    for batch_ in sent:
        one.append(batch_, NOW)
    one.close(NOW)
    checkpoint = checkpoint_of(opened(directory, config=config, recovery_point=4))
    again = opened(directory, config=config, **checkpoint)
    disk.error, disk.wanted = errno.EMFILE, lambda path: f"{0:020}.log" in path
    with pytest.raises(log.Shortage):
        again.append(sent[0], NOW)
    disk.error = 0
    assert again.append(sent[0], NOW) == (0, 0)  # A duplicate.
    assert again.end_offset == 4


def test_temporarily_unreadable_snapshot_is_kept(short, tmp_path):
    directory, disk = short
    one = opened(directory, config={"internal.segment.bytes": 2_000})
    for sequence in range(4):
        one.append(make(1, size=1_500, producer_id=7, producer_epoch=0, base_sequence=sequence),
                   NOW)
    one.close(NOW)
    kept = sorted(path.name for path in tmp_path.glob("t-0/*.snapshot"))
    disk.error, disk.wanted = errno.EMFILE, lambda path: path.endswith(".snapshot")
    with pytest.raises(log.Shortage):
        opened(directory, recovery_point=4)
    assert sorted(path.name for path in tmp_path.glob("t-0/*.snapshot")) == kept
    disk.error = 0
    again = opened(directory, recovery_point=4)
    assert again.end_offset == 4 and offsets(again.read(3)) == [3]


def test_files_of_a_deleted_log_are_removed_when_descriptors_are_available(short, tmp_path):
    directory, disk = short
    one = opened(directory, config={"file.delete.delay.ms": 0})
    one.append(make(1), NOW)
    disk.error, disk.wanted = errno.EMFILE, lambda path: path.endswith("-delete")
    one.delete(NOW)
    until(lambda: disk.refused)
    assert list(tmp_path.glob("t-0.*-delete"))
    disk.error = 0
    until(lambda: not list(tmp_path.glob("t-0.*-delete")))


def test_idle_files_are_closed_for_every_opened_file(short):
    directory, disk = short
    logs = [opened(directory, "t", partition) for partition in range(3)]
    for one in logs:
        one.append(make(1), NOW)
        one.flush()
    before = directory.stats()["open_files"]
    disk.error = errno.EMFILE
    disk.wanted = lambda path: path.startswith("u-0/") and disk.refused < 2
    opened(directory, "u")
    assert disk.refused and directory.stats()["open_files"] < before == 3


def test_index_entries_wait_in_memory_until_the_file_can_be_opened(short, tmp_path):
    directory, disk = short
    one = opened(directory, config={"internal.segment.bytes": 6_000, "index.interval.bytes": 0})
    one.append(make(1, size=1_500), NOW)
    disk.error, disk.wanted = errno.EMFILE, lambda path: path.endswith("index")
    for _ in range(11):
        one.append(make(1, size=1_500), NOW)
    assert disk.refused and not directory.offline
    disk.error = 0
    one.flush()
    sealed = sorted(path.name for path in tmp_path.glob("t-0/*.log"))[:-1]
    assert len(sealed) >= 2
    for name in sealed:
        assert (tmp_path / "t-0" / name).with_suffix(".index").stat().st_size
    assert [offsets(one.read(at))[0] for at in range(12)] == list(range(12))


def test_indexes_without_space_are_written_by_a_later_flush(short, tmp_path):
    directory, disk = short
    one = opened(directory, config={"internal.segment.bytes": 6_000, "index.interval.bytes": 0})
    one.append(make(1, size=1_500), NOW)
    disk.error, disk.creates = errno.ENOSPC, True
    disk.wanted = lambda path: path.endswith("index")
    for _ in range(11):
        one.append(make(1, size=1_500), NOW)
    one.flush()
    assert disk.refused and one.flushed_offset == 12
    assert not list(tmp_path.glob("t-0/*.index"))
    disk.error = 0
    one.flush()
    sealed = sorted(tmp_path.glob("t-0/*.log"))[:-1]
    assert len(sealed) >= 2
    for file in sealed:
        assert file.with_suffix(".index").stat().st_size


def follower_at(data, offset):
    """Return the batches with offsets moved so that the first begins at `offset`."""
    moved = bytearray(data)
    for position, header in batch.walk(data):
        struct.pack_into(">q", moved, position, header.base_offset + offset)
    return moved


@pytest.mark.parametrize("alone", [1, 2])
def test_copy_whose_earlier_start_was_rejected_can_become_leader(short, alone):
    directory, disk = short
    one = opened(directory, leader=False, log_start_offset=1_000)
    disk.error, disk.wanted, disk.writes = errno.ENOSPC, lambda path: False, True
    with pytest.raises(log.Shortage):
        one.append_as_follower(follower_at(make(20), 990), NOW)
    disk.error = 0
    one.become_leader(3, alone)
    assert one.start_offset <= one.last_stable_offset <= one.high_watermark <= one.end_offset
    one.become_follower(4)
    one.append_as_follower(follower_at(make(20), 990), NOW)
    assert one.end_offset == 1_010
    assert offsets(one.read(one.start_offset)) == [990]


def test_gap_between_segments_survives_a_later_shortage(short):
    directory, disk = short
    one = opened(directory, leader=False)
    one.append_as_follower(follower_at(make(1), 0), NOW)
    far = 1 << 33
    disk.error, disk.wanted, disk.writes = errno.ENOSPC, lambda path: False, True
    with pytest.raises(log.Shortage):
        one.append_as_follower(follower_at(make(1), far), NOW)
    disk.error = 0
    directory.settle()
    one.become_leader(1)
    first, _last = one.append(make(1), NOW)
    assert offsets(one.read(first)) == [first] and one.end_offset == first + 1


def test_log_postponed_by_both_flush_lanes_waits_once(short):
    directory, disk = short
    logs = [opened(directory, "t", partition, config={
        "flush.messages": 1, "internal.segment.bytes": 2_000}) for partition in range(3)]
    disk.error, disk.wanted = errno.EMFILE, lambda path: path == "."
    # Each append belongs to a group commit, and each roll to the other lane.
    for _ in range(20):
        for one in logs:
            one.append(make(1, size=1_500), NOW)
    before = disk.refused
    until(lambda: disk.refused > before + 20)
    disk.error = 0
    until(lambda: all(one.flushed_offset == 20 for one in logs))


def test_retention_of_a_segment_during_its_flush_is_no_error(short):
    directory, disk = short
    one = opened(directory, config={"internal.segment.bytes": 2_000, "index.interval.bytes": 0})
    disk.error, disk.wanted = errno.EMFILE, lambda path: path.endswith("index")
    for _ in range(4):
        one.append(make(1, size=1_500), NOW)
    taken = []

    def wanted(path):
        if path.endswith(".snapshot") and not taken:
            taken.append(path)
            one.move_start(3, NOW)
        return path.endswith("index") and not taken

    disk.wanted = wanted
    until(lambda: _flushed(one))
    assert taken and not directory.offline


def _flushed(one):
    try:
        one.flush()
    except log.Shortage:
        return False
    return True


def test_rejected_rename_keeps_the_logs_name(short, tmp_path):
    directory, disk = short
    one = opened(directory)
    one.append(make(1), NOW)
    one.flush()
    disk.error, disk.wanted = errno.EMFILE, lambda path: path == "."
    with pytest.raises(log.Shortage):
        replica_move.rename(one, "u-0")
    assert not directory.offline
    assert (tmp_path / "t-0").exists() and not (tmp_path / "u-0").exists()
    disk.error = 0
    one.append(make(1), NOW)
    one.flush()
    replica_move.rename(one, "u-0")
    assert (tmp_path / "u-0").exists() and offsets(one.read(1)) == [1]


def test_temporarily_unreadable_epochs_are_neither_returned_nor_lost(short):
    directory, disk = short
    one = opened(directory)
    for epoch in (1, 3):
        one.become_leader(epoch)
        one.append(make(1), NOW)
    one.settle(NOW)
    known = checkpoint_of(one)
    one.close(NOW)
    again = opened(directory, leader=False, **known)
    again.become_leader(5)
    disk.error, disk.wanted = errno.EMFILE, lambda path: path.endswith("leader-epoch-checkpoint")
    assert again.end_for_epoch(1) == (1, 2) and again.epoch_of(0) == -1
    assert disk.refused and not directory.offline
    disk.error = 0
    assert [again.end_for_epoch(epoch) for epoch in (1, 3, 5)] == [(1, 1), (3, 2), (5, 2)]
    assert again.epoch_of(0) == 1


def test_temporarily_unreadable_aborted_transactions_are_an_error(short):
    directory, disk = short
    one = opened(directory, config={"internal.segment.bytes": 2_000}, leader=False)
    one.become_follower(0)
    transaction(one, 7, [(b"a", b"1")], 0, commit=False)
    for _ in range(20):
        plain(one, [(b"filler", b"x" * 200)])
    one.flush()
    disk.error, disk.wanted = errno.EMFILE, lambda path: path.endswith("txnindex")
    with pytest.raises(log.Shortage):
        one.aborted_between(0, 2)
    assert disk.refused and not directory.offline
    disk.error = 0
    assert one.aborted_between(0, 2) == [(7, 0)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=["ENOSPC", "EDQUOT"])
def test_a_truncation_that_cannot_be_synced_takes_the_directory_offline(short, code):
    directory, disk = short
    one = opened(directory)
    for _ in range(2):
        one.append(make(1), NOW)
    disk.error, disk.wanted, disk.syncs = code, lambda path: False, True
    with pytest.raises(log.StorageError):
        one.truncate(1)
    assert directory.offline and directory.failure[0] == code


@pytest.mark.parametrize("what", ["time", "read"])
def test_lookup_in_a_temporarily_unreadable_index_is_rejected(short, what):
    directory, disk = short
    one = opened(directory, config={"internal.segment.bytes": 6_000, "index.interval.bytes": 0})
    for number in range(8):
        one.append(make(1, size=1_500, now=NOW + number), NOW)
    one.flush()
    calls = {"time": lambda: one.offset_for_time(NOW + 1)[0],
             "read": lambda: offsets(one.read(1))[0]}
    disk.error, disk.wanted = errno.EMFILE, lambda path: path.endswith("index")
    with pytest.raises(log.Shortage):
        calls[what]()
    assert disk.refused and not directory.offline
    disk.error = 0
    assert calls[what]() == 1


def test_failed_flush_of_one_log_does_not_affect_the_others(short):
    directory, disk = short
    logs = [opened(directory, "t", partition) for partition in range(3)]
    for one in logs:
        one.append(make(1), NOW)
    disk.error, disk.wanted = errno.EMFILE, lambda path: path.startswith("t-1")
    with pytest.raises(log.Shortage):
        directory.flush()
    assert [one.flushed_offset for one in logs] == [1, 0, 1]


def sealed(directory, batches=40, **config):
    """Return the checkpoint of a log with a sealed first segment, after a clean stop."""
    one = opened(directory, config={"index.interval.bytes": 0, "internal.segment.bytes": 1 << 20,
                                    "segment.ms": 1_000, **config})
    for number in range(batches):
        one.append(make(1, now=NOW + number, size=200), NOW)
    one.upkeep(NOW + 10_000)
    one.settle(NOW)
    state = checkpoint_of(one)
    one.close(NOW)
    return state


def test_temporarily_unreadable_index_is_not_treated_as_missing(short, tmp_path):
    directory, disk = short
    state = sealed(directory)
    index = tmp_path / "t-0" / f"{0:020}.index"
    before, inode = index.read_bytes(), index.stat().st_ino
    again = opened(directory, leader=False, **state)
    disk.error, disk.wanted = errno.EMFILE, lambda path: path.endswith("index")
    with pytest.raises(log.LogError):
        again.read(20)
    assert disk.refused
    disk.error = 0
    assert offsets(again.read(20))[0] == 20
    assert (index.read_bytes(), index.stat().st_ino) == (before, inode)


def test_index_is_rebuilt_after_a_shortage_in_the_first_attempt(short, tmp_path):
    directory, disk = short
    state = sealed(directory)
    index = tmp_path / "t-0" / f"{0:020}.index"
    index.unlink()
    again = opened(directory, leader=False, **state)
    # The file is written but cannot be opened for reading.
    disk.error = errno.EMFILE
    disk.wanted = lambda path: path.endswith(".index") and index.exists() and index.stat().st_size
    with pytest.raises(log.LogError):
        again.read(20)
    disk.error = 0
    assert offsets(again.read(20))[0] == 20
    os.truncate(index, 0)
    for offset in (20, 30):
        assert offsets(again.read(offset))[0] == offset
    assert index.stat().st_size > 0


def test_retention_ignores_timestamps_of_an_index_being_rebuilt(
        short, tmp_path):
    directory, disk = short
    state = sealed(directory, batches=700)
    (tmp_path / "t-0" / f"{0:020}.index").unlink()
    again = opened(directory, config={"index.interval.bytes": 0}, leader=False, **state)
    seen = []

    def look(path):
        if path.endswith("index"):
            seen.append(int.from_bytes(again.segments()[16:24], "little", signed=True))
        return False

    disk.error, disk.wanted = errno.EMFILE, look
    assert offsets(again.read(600))[0] == 600
    # Opened for reading first, then for writing, twice while the entries are created.
    assert len(seen) > 4 and set(seen) == {NOW + 699}


def test_unawaited_logs_are_flushed_when_too_many_files_are_open(tmp_path):
    """Otherwise acknowledged but unflushed logs would hold their descriptors until none are left.
    """
    directory = log.LogDir(tmp_path, 1, open_files_max=4)
    logs = [opened(directory, partition=number) for number in range(40)]
    for one in logs:
        one.append(make(1), NOW)
    end_s = time.monotonic() + 60
    while directory.stats()["open_files"] > 8 and time.monotonic() < end_s:
        logs[-1].append(make(1), NOW)  # Flushed files are closed at the next check.
        time.sleep(0.01)
    assert directory.stats()["open_files"] <= 8
