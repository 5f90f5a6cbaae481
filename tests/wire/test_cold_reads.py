"""Reads of data outside the page cache: results, and their effect on the page cache."""

import ctypes
import mmap
import os
import struct
import time
from pathlib import Path

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire.raw import Connection, batch, record
from tests.wire.talk import append, create_topic, fetch, unique

MIB = 1 << 20
COLD_MIB, HOT_MIB = 24, 8
LIBC = ctypes.CDLL(None, use_errno=True)
CACHESTAT = 451
SCHED_GETATTR = 315 if os.uname().machine == "x86_64" else 275


@pytest.fixture
def broker(tmp_path):
    with Brokerd(tmp_path) as started:
        yield started
        assert started.alarms() == []


def resident(path: Path, begin: int, end: int) -> int:
    """Return the number of bytes of [begin, end) of a file in the page cache; both page-aligned."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        page = mmap.PAGESIZE
        vector = (ctypes.c_ubyte * (-(-len(pages) // page)))()
        first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        assert LIBC.mincore(ctypes.c_void_p(first), ctypes.c_size_t(len(pages)), vector) == 0
        return page * sum(entry & 1 for entry in vector[begin // page:end // page])


def forget(path: Path, begin: int, end: int) -> None:
    """Evict [begin, end) of a file from the page cache; skip if the kernel does not."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), begin, end - begin, os.POSIX_FADV_DONTNEED)
        area = (ctypes.c_uint64 * 2)(0, MIB)
        counts = (ctypes.c_uint64 * 5)()
        if LIBC.syscall(CACHESTAT, file.fileno(), area, counts, 0) != 0:
            pytest.skip("this kernel cannot tell what is resident")
    if resident(path, begin, end) > MIB:
        pytest.skip("this file system keeps its pages")


def filled(broker) -> tuple[str, Path]:
    """Return a topic of 32 MiB of which the first 24 are not resident, and its segment."""
    topic = unique("cold")
    create_topic(broker.port, topic)
    for number in range(4 * (COLD_MIB + HOT_MIB)):
        append(broker.port, topic, batch([record(value=bytes([number]) * (256 << 10))]))
    [path] = (Path(broker.data_dir) / f"{topic}-0").glob("*.log")
    forget(path, 0, COLD_MIB * MIB)
    return topic, path


def read(port: int, topic: str, offset: int, end: int) -> bytes:
    """Return the bytes of the batches from `offset` up to the one that ends at `end`."""
    with Connection(port) as connection:
        taken = b""
        while offset < end:
            row = fetch(connection, topic, offset, bytes_max=MIB)
            assert row["error_code"] == 0 and row["records"]
            taken += row["records"]
            offset = int.from_bytes(last_base(row["records"])) + 1
    return taken


def last_base(records: bytes) -> bytes:
    at = 0
    while at + 12 + int.from_bytes(records[at + 8:at + 12]) < len(records):
        at += 12 + int.from_bytes(records[at + 8:at + 12])
    return records[at:at + 8]


def settled(path: Path, begin: int, end: int) -> int:
    """Return the resident bytes after they stop shrinking, within ten seconds."""
    end_s = time.monotonic() + 10
    while (left := resident(path, begin, end)) > 2 * MIB and time.monotonic() < end_s:
        time.sleep(0.1)
    return left


def calls_that_read(broker) -> int:
    """Return the number of file reads by the broker's io workers so far."""
    tasks = Path(f"/proc/{broker.process.pid}/task").iterdir()
    workers = [task for task in tasks if (task / "comm").read_text().startswith("io-worker")]
    lines = [line for task in workers for line in (task / "io").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("syscr:"))


def test_cold_data_is_read_ahead_by_range_without_copies(broker):
    topic, _ = filled(broker)
    before = calls_that_read(broker)
    read(broker.port, topic, 0, 4 * COLD_MIB)
    assert calls_that_read(broker) - before <= 4 * COLD_MIB


def slices_ns(broker, name: str) -> list[int]:
    """Return the scheduler slices that the broker's threads of this name request; skip if the
    kernel does not support it.
    """
    slices = []
    for task in Path(f"/proc/{broker.process.pid}/task").iterdir():
        if not (task / "comm").read_text().startswith(name):
            continue
        attributes = (ctypes.c_uint8 * 64)()
        if LIBC.syscall(SCHED_GETATTR, int(task.name), attributes, 64, 0) != 0:
            pytest.skip("this machine does not tell of slices")
        slices.append(struct.unpack_from("Q", attributes, 24)[0])
    if not any(slices):
        pytest.skip("this kernel has no slices to ask for")
    return slices


def test_cold_read_workers_have_lower_priority_than_reactors(broker):
    topic, _ = filled(broker)
    usual = max(slices_ns(broker, "io-worker"))
    with Connection(broker.port) as connection:
        assert fetch(connection, topic, 0, bytes_max=8 * MIB)["records"]
    assert max(slices_ns(broker, "io-worker")) > 2 * usual
    end_s = time.monotonic() + 10
    while max(slices_ns(broker, "reactor")) >= usual and time.monotonic() < end_s:
        time.sleep(0.01)
    assert max(slices_ns(broker, "reactor")) < usual


def test_a_reactor_is_as_nice_as_the_process_that_it_is_of(tmp_path):
    niceness = os.nice(0) + 1
    with Brokerd(tmp_path, preexec=lambda: os.nice(1)) as started:
        reactors = []
        while not reactors:
            # A thread sets its name when it first runs, which may be after the broker is ready.
            tasks = list(Path(f"/proc/{started.process.pid}/task").iterdir())
            reactors = [task for task in tasks if (task / "comm").read_text().startswith("reactor")]
        found = {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in reactors}
    assert found == {niceness}


def test_cold_reads_return_written_bytes_and_leave_the_page_cache_unchanged(broker):
    topic, path = filled(broker)
    count = 4 * (COLD_MIB + HOT_MIB)
    taken = read(broker.port, topic, 0, count)
    assert settled(path, 0, COLD_MIB * MIB) <= 2 * MIB
    assert taken == path.read_bytes()[:len(taken)]
    assert int.from_bytes(last_base(taken)) == count - 1


def test_cold_reader_does_not_evict_resident_pages(broker):
    topic, path = filled(broker)
    before = resident(path, COLD_MIB * MIB, (COLD_MIB + HOT_MIB) * MIB)
    assert before == HOT_MIB * MIB
    read(broker.port, topic, 0, 4 * (COLD_MIB + HOT_MIB))
    assert settled(path, 0, COLD_MIB * MIB) <= 2 * MIB
    assert resident(path, COLD_MIB * MIB, (COLD_MIB + HOT_MIB) * MIB) == before


def test_cold_read_of_a_closed_connection_is_released(broker):
    topic, path = filled(broker)
    read(broker.port, topic, 8, 24)
    assert settled(path, 0, COLD_MIB * MIB) <= 2 * MIB


def test_oversized_first_batch_is_returned_whole_from_cold_data(broker):
    topic, path = filled(broker)
    with Connection(broker.port) as connection:
        row = fetch(connection, topic, 40, bytes_max=1)
    records = row["records"]
    assert int.from_bytes(records[:8]) == 40
    assert len(records) == 12 + int.from_bytes(records[8:12])
