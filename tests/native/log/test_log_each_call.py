"""A log's life in which each call to the disk in turn fails once.

Either the directory goes offline and the caller gets an error, or the call is one that may fail.
Acknowledged records exist when the directory is opened again.
"""

import ctypes
import errno
import functools

import pytest

from pylog._native.log import log
from pylog._native.records import batch
from tests.native.log.test_log import NOW, TOPIC_ID, checkpoint_of

LIBC = ctypes.CDLL(None, use_errno=True)
INT, SIZE, LONG, PATH = ctypes.c_int, ctypes.c_size_t, ctypes.c_long, ctypes.c_char_p
# In the order of csrc/os/disk.h: what each returns, and what it is given.
BYTES = ctypes.c_void_p
CALLS = {
    "openat": (INT, INT, PATH, INT, ctypes.c_uint), "pread": (LONG, INT, BYTES, SIZE, LONG),
    "pwrite": (LONG, INT, BYTES, SIZE, LONG), "ftruncate": (INT, INT, LONG),
    "fallocate": (INT, INT, INT, LONG, LONG), "fsync": (INT, INT), "fdatasync": (INT, INT),
    "syncfs": (INT, INT), "renameat": (INT, INT, PATH, INT, PATH),
    "unlinkat": (INT, INT, PATH, INT), "mkdirat": (INT, INT, PATH, ctypes.c_uint)}
CONFIG = {"internal.segment.bytes": 700, "index.interval.bytes": 100, "retention.ms": -1,
          "file.delete.delay.ms": 0}


class Disk:
    """A disk that fails call number `at`. calls: the name and the file of each call."""

    def __init__(self, at=-1):
        self.at, self.calls, self.paths = at, [], {}
        self._kept = []
        places = []
        for name, (result, *given) in CALLS.items():
            function = getattr(LIBC, name)
            function.restype, function.argtypes = result, given
            kind = ctypes.CFUNCTYPE(result, *given, use_errno=True)
            self._kept.append(kind(functools.partial(self._call, name, function)))
            places.append(ctypes.cast(self._kept[-1], ctypes.c_void_p).value)
        self._table = (ctypes.c_void_p * len(places))(*places)
        self.table = ctypes.addressof(self._table)

    def _call(self, name, function, *given):
        path = next((one for one in given if type(one) is bytes), b"").decode()
        self.calls.append((name, path or self.paths.get(given[0], "")))
        if len(self.calls) - 1 == self.at:
            ctypes.set_errno(errno.EIO)
            return -1
        result = function(*given)
        if name == "openat" and result >= 0:
            self.paths[result] = path
        return result


class Life:
    """The steps of a log's life. made: (base offset, value) of acknowledged and not yet removed
    batches.
    """

    def __init__(self, path, disk):
        self.directory = log.LogDir(path, 2)
        self.directory.set_disk(disk.table)
        self.made, self.count, self.start, self.log, self.point = [], 0, 0, None, 0

    def open(self, **saved):
        self.log = log.Log.open(self.directory, "t", 0, TOPIC_ID, CONFIG, now_ms=NOW, **saved)
        self.log.become_leader(self.count)

    def append(self):
        self.count += 1
        value = b"%4d" % self.count * 30
        base, _ = self.log.append(batch.build([(None, value, NOW + self.count, [])]), NOW)
        self.made.append((base, value))

    def flush(self):
        self.log.flush()
        assert self.log.flushed_offset == self.log.end_offset
        self.point = self.log.recovery_point

    def truncate(self, records=2):
        end = self.log.end_offset - records
        self.made = [row for row in self.made if row[0] < end]
        assert self.log.truncate(end) == end
        self.log.become_leader(self.count)

    def truncate_more(self):
        """Truncate to the end of a segment."""
        self.truncate(4)

    def move_start(self):
        self.start = self.log.start_offset + 4
        assert self.log.move_start(self.start, NOW) == self.start

    def collect(self):
        assert self.log.offset_for_time(NOW + 1)[0] >= self.start
        at = self.start
        while at < self.log.end_offset:
            at += sum(1 for _ in batch.walk(self.log.read(at, 10**6)))

    def stop_and_start(self):
        self.log.settle(NOW)
        saved = checkpoint_of(self.log)
        self.log.close(NOW)
        self.open(**saved)

    def crash(self):
        self.log.release()
        self.open(recovery_point=self.point, log_start_offset=self.start)

    def steps(self):
        yield self.open
        for _ in range(2):
            yield from [self.append] * 5
            yield self.flush
            yield self.append
        yield from (self.collect, self.truncate, self.append, self.truncate_more,
                    self.append, self.flush, self.collect, self.move_start,
                    self.append, self.stop_and_start, self.append, self.collect, self.flush,
                    self.crash, self.collect, self.append, self.flush)


def lived(path, disk):
    """Return (the life, its error or None, the step that failed)."""
    life = Life(path, disk)
    for step in life.steps():
        try:
            step()
        except log.LogError as error:
            return life, error, step.__name__
    return life, None, ""


def read_again(path, life):
    """Return offset -> value, read with a new directory and log on the system's disk."""
    again = log.Log.open(log.LogDir(path, 2), "t", 0, TOPIC_ID, CONFIG, now_ms=NOW,
                         log_start_offset=life.start)
    found, at = {}, again.start_offset
    while at < again.end_offset:
        data = again.read(at, 10**6)
        for position, header in batch.walk(data):
            assert batch.crc_ok(data[position:])
            for row in batch.records(data[position:position + header.batch_length + 12]):
                found[header.base_offset] = row[3]
            at = header.base_offset + header.last_offset_delta + 1
    return found


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The calls of a life without failures."""
    disk = Disk()
    path = tmp_path_factory.mktemp("whole")
    life, error, _ = lived(path, disk)
    assert error is None
    assert read_again(path, life) == {base: value for base, value in life.made
                                      if base >= life.start}
    assert {name for name, *_ in disk.calls} >= {
        "openat", "pread", "pwrite", "ftruncate", "renameat", "unlinkat", "mkdirat"}
    return disk.calls


def may_be_silent(name, path):
    """Return True for removals, and for files that are rebuilt from the log."""
    return name == "unlinkat" or path.endswith((
        ".deleted", ".index", ".timeindex", ".snapshot", ".snapshot.tmp",
        "leader-epoch-checkpoint"))


@pytest.mark.parametrize("part", range(4))
def test_every_failed_call_is_reported_and_no_acknowledged_record_is_lost(tmp_path, calls, part):
    silent = []
    for at in range(part, len(calls), 8):  # Half of the calls: most are in pairs.
        path = tmp_path / str(at)
        path.mkdir()
        disk = Disk(at)
        life, error, step = lived(path, disk)
        if len(disk.calls) <= at:
            continue  # A background flush came a little earlier or later.
        name, file = disk.calls[at]
        if error is not None:
            assert life.directory.offline and error.code == 56, (at, name, file, step, error)
            assert life.directory.failure[:2] == (errno.EIO, "EIO"), (at, name, file, step)
        elif not life.directory.offline and not may_be_silent(name, file):
            silent.append((at, name, file))
        kept = {base: value for base, value in life.made if base >= life.start}
        found = read_again(path, life)
        assert {base: found.get(base) for base in kept} == kept, (at, name, file, step)
    assert not silent, silent
