"""Open logs after a clean stop, and recover them after a kill."""

import pytest

from bench.native import note_rate
from pylog._native.log import log
from pylog._native.records import batch

NOW = 1_700_000_000_000
PARTITIONS = 1000


def test_open_clean(benchmark, tmp_path):
    directory = log.LogDir(tmp_path, 1)
    saved = [(f"t{i}", memoryview(b"").cast("B")) for i in range(PARTITIONS)]

    def work():
        for name, segments in saved:
            log.Log.open(
                directory, name, 0, bytes(16), None, now_ms=NOW, clean=True, segments=segments
            )

    benchmark(work)
    note_rate(benchmark, "partitions/s", PARTITIONS)


def test_open_after_a_kill(benchmark, tmp_path):
    directory = log.LogDir(tmp_path, 1)
    data = batch.build([(None, bytes(100), NOW, [])])
    for i in range(PARTITIONS):
        one = log.Log.open(directory, "t", i, bytes(16), None, now_ms=NOW)
        one.become_leader(0)
        one.append(data, NOW)
        one.release()

    def work():
        for i in range(PARTITIONS):
            log.Log.open(directory, "t", i, bytes(16), None, now_ms=NOW).release()

    benchmark.pedantic(work, rounds=3, warmup_rounds=1)
    note_rate(benchmark, "partitions/s", PARTITIONS)


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_recover_a_large_segment(benchmark, tmp_path, size):
    directory = log.LogDir(tmp_path, 1)
    data = batch.build([(None, bytes(size), NOW, [])])
    one = log.Log.open(directory, "t", 0, bytes(16), None, now_ms=NOW)
    one.become_leader(0)
    for _ in range((128 << 20) // len(data)):
        one.append(data, NOW, trusted=True)
    total = one.size_bytes
    one.release()
    benchmark.pedantic(
        lambda: log.Log.open(directory, "t", 0, bytes(16), None, now_ms=NOW).release(),
        rounds=3,
        warmup_rounds=1,
    )
    note_rate(benchmark, "GB/s", total / 1e9)
