"""A consumer's kernels: fetched bytes to columns and to Record objects, from memory."""

import pytest

from bench.native import note_rate
from pylog._native.client.columns import ColumnReader, Fetched, fixed_width, records
from pylog._native.records.batch import build

RECORDS = 200_000
BATCH = 1000
CHUNK = 50_000
CODECS = {"none": 0, "lz4": 3, "zstd": 4}
KEYS = {"no key": None, "key": b"key-1234"}


def fetched_bytes(codec: int, key: bytes | None, headers=()) -> bytes:
    rows = [(key, (b"%08d" % i) * 12 + b"abcd", 1_700_000_000_000 + i, headers)
            for i in range(BATCH)]
    return b"".join(build(rows, base_offset=first, codec=codec)
                    for first in range(0, RECORDS, BATCH))


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_columns(benchmark, codec, key):
    data, reader = fetched_bytes(codec, key), ColumnReader()

    def work():
        fetched = Fetched(data)
        while reader.read(fetched, CHUNK):
            reader.finish()

    benchmark(work)
    note_rate(benchmark, "records/s", RECORDS)


@pytest.mark.parametrize("headers", [(), (("trace", b"0123456789abcdef"),)],
                         ids=["plain", "headers"])
def test_records(benchmark, headers):
    data = fetched_bytes(0, b"key-1234", headers)

    def work():
        fetched = Fetched(data)
        while records(fetched, "topic", 0, 500):
            pass

    benchmark(work)
    note_rate(benchmark, "records/s", RECORDS)


def test_fixed_width(benchmark):
    reader = ColumnReader()
    data = build([(None, i.to_bytes(8, "big"), 0, []) for i in range(RECORDS)])
    reader.read(Fetched(data), RECORDS)
    c = reader.finish()
    benchmark(fixed_width, c.value_offsets, c.value_data, None, RECORDS, 8, True)
    note_rate(benchmark, "values/s", RECORDS)
