"""The search kernel: records of 1 KiB from memory that do not match."""

import json

import pytest

from bench.native import note_rate
from pylog._native.client.columns import ColumnReader, Fetched
from pylog._native.client.search import Search, Test
from pylog._native.records.batch import build

RECORDS, BATCH, PAD_BYTES = 20_000, 250, 950
CODECS = {"none": 0, "lz4": 3, "zstd": 4}
TESTS = {
    "key": Test(0, "key", "==", b"key-x"),
    "value contains": Test(0, "value", "contains", b"not there"),
    "JSON field": Test(0, "value_json", "==", b"-1", path=(b"customer", b"id"), kind="number"),
    "JSON string": Test(0, "value_json", "contains", b"not there", path=(b"pad",)),
    "header": Test(0, "header", "==", b"not there", name=b"trace"),
}


def fetched_bytes(codec: int) -> bytes:
    rows = []
    for i in range(BATCH):
        value = json.dumps({"pad": f"{i:08d}" * (PAD_BYTES // 8), "customer": {"id": i}})
        rows.append((b"key-%d" % i, value.encode(), 1_700_000_000_000 + i, [("trace", b"%d" % i)]))
    return b"".join(build(rows, base_offset=first, codec=codec)
                    for first in range(0, RECORDS, BATCH))


@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_search(benchmark, codec, test):
    data, reader = fetched_bytes(codec), ColumnReader()

    def work():
        fetched, search = Fetched(data), Search([test])
        while not fetched.exhausted:
            assert search.append(fetched, reader, records_max=500, bytes_max=1 << 30) == 0
        assert search.records == RECORDS

    benchmark(work)
    note_rate(benchmark, "records/s", RECORDS)
