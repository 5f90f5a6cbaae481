"""Append through the log, CPU per GB and per batch, compared with a bare pwrite loop on a growing
file and on a preallocated file (the floor of a broker).
"""

import os
import time

import pytest

from bench.native import note_rate
from pylog._native.log import log
from pylog._native.records import batch

NOW = 1_700_000_000_000
TOTAL = 64 << 20
SIZES = [16 << 10, 128 << 10, 1 << 20]


def batch_of(size: int) -> bytes:
    return batch.build([(None, bytes(size - 80), NOW, [])])


def note_cpu(benchmark, work, amount: int) -> None:
    begin = time.process_time()
    work()
    benchmark.extra_info["CPU s/GB"] = round((time.process_time() - begin) / (amount / 1e9), 3)


@pytest.fixture
def opened(tmp_path):
    directory = log.LogDir(tmp_path, 2)
    one = log.Log.open(directory, "t", 0, bytes(16), {"max.message.bytes": 2 << 20}, now_ms=NOW)
    one.become_leader(0)
    yield one
    one.delete(NOW)


@pytest.mark.parametrize("size", SIZES)
def test_append(benchmark, opened, size):
    data = batch_of(size)
    count = TOTAL // len(data)

    def work():
        for _ in range(count):
            opened.append(data, NOW, trusted=True)

    benchmark.pedantic(work, rounds=5, warmup_rounds=1)
    note_rate(benchmark, "GB/s", count * len(data) / 1e9)
    note_cpu(benchmark, work, count * len(data))


def test_append_small(benchmark, opened):
    data = batch_of(200)

    def work():
        for _ in range(20_000):
            opened.append(data, NOW, trusted=True)

    benchmark.pedantic(work, rounds=5, warmup_rounds=1)
    note_rate(benchmark, "batches/s", 20_000)


@pytest.mark.parametrize("known", [0, 50_000, 200_000])
def test_append_transactional(benchmark, opened, known):
    """Append transactions of one record and its marker while `known` other producers have one open.
    """
    records = [(None, bytes(100), NOW, [])]
    for producer in range(1, known + 1):
        opened.append(batch.build(records, producer_id=producer, producer_epoch=0,
                                  base_sequence=0, attributes=batch.TRANSACTIONAL),
                      NOW, trusted=True)
    data = bytes(batch.build(records, producer_id=0, producer_epoch=0, base_sequence=-1,
                             attributes=batch.TRANSACTIONAL))
    marker = bytes(batch.build([(b"\0\0\0\1", bytes(6), NOW, [])], producer_id=0,
                               producer_epoch=0, base_sequence=-1,
                               attributes=batch.TRANSACTIONAL | batch.CONTROL))

    def work():
        for _ in range(1000):
            opened.append(data, NOW, trusted=True)
            opened.append(marker, NOW, trusted=True)

    benchmark.pedantic(work, rounds=5, warmup_rounds=1)
    note_rate(benchmark, "transactions/s", 1000)


@pytest.mark.parametrize("ahead", [False, True], ids=["growing", "allocated"])
@pytest.mark.parametrize("size", SIZES)
def test_bare_pwrite(benchmark, tmp_path, size, ahead):
    data = bytes(size)
    count = TOTAL // size
    rounds = iter(range(100))

    def work():
        file = os.open(tmp_path / str(next(rounds)), os.O_RDWR | os.O_CREAT)
        if ahead:
            os.posix_fallocate(file, 0, TOTAL)
        for i in range(count):
            os.pwrite(file, data, i * size)
        os.close(file)

    benchmark.pedantic(work, rounds=5, warmup_rounds=1)
    note_rate(benchmark, "GB/s", TOTAL / 1e9)
    note_cpu(benchmark, work, TOTAL)


@pytest.mark.parametrize("partitions", [1, 6, 64])
def test_group_commit(benchmark, tmp_path, partitions):
    """Append one small batch per partition, then flush all of them, as acks=all does."""
    directory = log.LogDir(tmp_path, 2)
    logs = [log.Log.open(directory, "t", p, bytes(16), {}, now_ms=NOW) for p in range(partitions)]
    data = batch_of(1000)
    for one in logs:
        one.become_leader(0)

    def work():
        for one in logs:
            one.append(data, NOW, trusted=True)
        directory.flush()

    benchmark.pedantic(work, rounds=30, warmup_rounds=2)
    note_rate(benchmark, "commits/s", partitions)
