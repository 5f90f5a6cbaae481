"""The position of the next read if the log changed during the previous one."""

import ctypes
from array import array

import pytest

from pylog._native.log import log
from pylog._native.records import batch
from pylog._native.server import metrics
from tests.native.log.test_compaction import CONFIG, append, cleaned, content, fill
from tests.native.log.test_compaction import opened as compacted
from tests.native.log.test_log import NOW, make, offsets, opened

PREAD = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t,
                         ctypes.c_int64)
CALLS = ("openat", "pread", "pwrite", "ftruncate", "fallocate", "fsync", "fdatasync", "syncfs",
         "renameat", "unlinkat", "mkdirat")

MAGIC_AT = 16  # in a batch
BUDGET_NS = 10**18


class PausedDisk:
    """The system's disk. `then` is called once, after the next pread."""

    def __init__(self, directory):
        libc = ctypes.CDLL(None)
        self.then = None
        self._pread = PREAD(ctypes.cast(libc.pread, ctypes.c_void_p).value)
        self._paused = PREAD(self._read)
        self._table = (ctypes.c_void_p * len(CALLS))(*[
            ctypes.cast(self._paused if name == "pread" else getattr(libc, name),
                        ctypes.c_void_p).value for name in CALLS])
        directory.set_disk(ctypes.addressof(self._table))

    def _read(self, descriptor, to, count, at):
        got = self._pread(descriptor, to, count, at)
        then, self.then = self.then, None
        if then is not None:
            then()
        return got


@pytest.fixture
def directory(tmp_path):
    made = log.LogDir(tmp_path, 2)
    yield made
    made.set_disk(log.DISK_SYSTEM)


def test_reader_continues_at_its_offset_after_a_truncation_during_a_read(directory):
    one, disk = opened(directory), PausedDisk(directory)
    for _ in range(10):
        one.append(make(1, size=100), NOW)

    def truncate():
        assert one.truncate(2) == 2
        for _ in range(30):
            one.append(make(1, size=37), NOW)

    disk.then = truncate
    # The read ends at offset 10, the log's end when it began.
    one.read(3)
    assert disk.then is None and one.end_offset == 32
    data = one.read(10)
    assert offsets(data) == list(range(10, 32))
    assert all(batch.crc_ok(data[position:]) for position, _ in batch.walk(data))


def test_reader_misses_nothing_after_a_compaction_during_a_read(directory):
    one, disk = compacted(directory, {**CONFIG, "segment.bytes": 20_000}), PausedDisk(directory)
    for number in range(100):
        append(one, [(b"k%d" % (number if number > 90 else number % 5), b"v" * 100)])
    fill(one, count=300)
    figures = []
    disk.then = lambda: figures.append(cleaned(one, segment_bytes=20_000))
    data = one.read(40, max_bytes=8_000)
    last = list(batch.walk(data))[-1][1]
    after = last.base_offset + last.last_offset_delta + 1
    assert figures[0]["records_kept"] < figures[0]["records_read"] and 60 < after <= 91
    wanted = next(row[0] for row in content(one) if row[0] >= after)
    again = next(header for _, header in batch.walk(one.read(after)))
    assert again.base_offset <= wanted <= again.base_offset + again.last_offset_delta


def test_header_damaged_between_two_reads_gives_no_time(directory, tmp_path):
    one, disk = opened(directory), PausedDisk(directory)
    for _ in range(3):
        one.append(make(1, size=100), NOW)
    second = [position for position, _ in batch.walk(one.read(0))][1]
    file, found = tmp_path / "t-0" / f"{0:020d}.log", array("q", [0])

    def damage():
        with open(file, "r+b") as opened_again:
            opened_again.seek(second + MAGIC_AT)
            opened_again.write(b"\x05")

    assert metrics.times([one], array("q", [1]), found, BUDGET_NS) == 1 and found[0] == NOW
    disk.then = damage
    assert metrics.times([one], array("q", [1]), found, BUDGET_NS) == 1
    assert disk.then is None and found[0] == metrics.NO_TIME
