"""The cost of checking a producer's batch: checksum only, iteration over plain records, iteration
over decompressed records. kafka-python's reader is the reference for pure Python.
"""

import pytest
from kafka.record import MemoryRecords

from bench.native import note_rate
from pylog._native.records.batch import build, check, find_timestamp, records

NOW = 1_700_000_000_000
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
CALLS = range(20)


def given(value_bytes: int, batch_bytes: int = 1_000_000) -> list:
    count = batch_bytes // value_bytes
    line = b'{"id":%08d,"event":"page_view","path":"/item/%05d"}'
    values = [(line % (i, i * 31 % 977) * 20)[:value_bytes] for i in range(count)]
    return [(None, value, NOW + i // 20, []) for i, value in enumerate(values)]


def measure(benchmark, batch: bytes, count: int, **rules) -> None:
    def work():
        for _ in CALLS:
            check(batch, now_ms=NOW, **rules)

    assert check(batch, now_ms=NOW, **rules)[0] == 0
    benchmark(work)
    note_rate(benchmark, "records/s", len(CALLS) * count)
    note_rate(benchmark, "GB/s", len(CALLS) * len(batch) / 1e9)
    if benchmark.stats is not None:
        nanoseconds = benchmark.stats.stats.min / len(CALLS) / count * 1e9
        benchmark.extra_info["ns/record"] = round(nanoseconds, 2)


@pytest.mark.parametrize("value_bytes", [90, 1000])
@pytest.mark.parametrize("walk", [False, True], ids=["crc only", "crc and walk"])
def test_check_plain(benchmark, value_bytes, walk):
    benchmark.group = f"check plain, {value_bytes} B values"
    records_given = given(value_bytes)
    measure(benchmark, build(records_given), len(records_given), walk_records=walk)


@pytest.mark.parametrize("codec", list(CODECS)[1:])
def test_check_compressed(benchmark, codec):
    benchmark.group = "check compressed, 90 B values"
    records_given = given(90)
    batch = build(records_given, codec=CODECS[codec])
    measure(benchmark, batch, len(records_given))
    benchmark.extra_info["ratio"] = round(len(build(records_given)) / len(batch), 2)


def kafka_python_records(batch: bytes) -> list:
    [kafka] = MemoryRecords(batch)
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in kafka]


@pytest.mark.parametrize("by", ["ours", "kafka-python"])
def test_read_records_into_python(benchmark, by):
    benchmark.group = "records into Python, 90 B values"
    records_given = given(90, 100_000)
    batch = build(records_given)
    read = records if by == "ours" else kafka_python_records
    assert len(benchmark(read, batch)) == len(records_given)
    note_rate(benchmark, "records/s", len(records_given))


def test_build_from_python(benchmark):
    records_given = given(90, 100_000)
    benchmark(build, records_given)
    note_rate(benchmark, "records/s", len(records_given))


def test_find_the_last_timestamp(benchmark):
    records_given = given(90)
    batch = build(records_given)
    assert benchmark(find_timestamp, batch, records_given[-1][2]) is not None
    note_rate(benchmark, "records/s", len(records_given))
