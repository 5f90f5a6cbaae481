"""Find the range for a fetch: after the previous one, at the end of the log, at random."""

import random

import pytest

from bench.native import note_rate
from pylog._native.log import log
from pylog._native.records import batch

NOW = 1_700_000_000_000
BATCHES = 20_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    directory = log.LogDir(tmp_path_factory.mktemp("read"), 2)
    one = log.Log.open(directory, "t", 0, bytes(16), {"segment.bytes": 64 << 20}, now_ms=NOW)
    one.become_leader(0)
    data = batch.build([(None, bytes(10_000), NOW, [])])
    for _ in range(BATCHES):
        one.append(data, NOW, trusted=True)
    yield one
    one.delete(NOW)


@pytest.mark.parametrize("step", [16 << 10, 1 << 20])
def test_read_on(benchmark, filled, step):
    reads = 0

    def work():
        nonlocal reads
        at = reads = 0
        while at < BATCHES:
            at = filled.read_range(at, step)[3]
            reads += 1

    benchmark(work)
    note_rate(benchmark, "reads/s", reads)


def test_read_at_the_end(benchmark, filled):
    def work():
        for _ in range(10_000):
            filled.read_range(BATCHES)

    benchmark(work)
    note_rate(benchmark, "reads/s", 10_000)


def test_read_anywhere(benchmark, filled):
    chance = random.Random(4711)
    wanted = [chance.randrange(BATCHES) for _ in range(10_000)]

    def work():
        for offset in wanted:
            filled.read_range(offset, 100_000)

    benchmark(work)
    note_rate(benchmark, "reads/s", len(wanted))


def test_offset_for_time(benchmark, filled):
    benchmark(filled.offset_for_time, NOW)
