"""A producer's kernels: batches built record by record, and from Arrow columns, checksum included.
"""

import pyarrow as pa
import pytest

from bench.native import note_rate
from pylog._native.client.batch_builder import BatchBuilder, BatchWriter, Column

ROWS = 200_000
RECORDS = 50_000
NOW = 1_700_000_000_000
CODECS = {"none": 0, "lz4": 3, "zstd": 4}


def column(array) -> Column:
    validity, offsets, data = array.buffers()
    return Column(len(array), offsets, data, validity)


def test_append(benchmark):
    builder, value = BatchBuilder(131_072), b"x" * 100

    def work():
        append = builder.append
        for _ in range(RECORDS):
            if append(None, value, NOW) < 0:
                builder.close().seal()
                append(None, value, NOW)

    benchmark(work)
    note_rate(benchmark, "records/s", RECORDS)


@pytest.mark.parametrize("keyed", [False, True], ids=["no key", "key"])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_columns(benchmark, codec, keyed):
    values = column(pa.array([(b"%08d" % i) * 12 + b"abcd" for i in range(ROWS)]))
    keys = column(pa.array([b"key-%d" % (i % 1000) for i in range(ROWS)])) if keyed else None
    writer = BatchWriter(12, 262_144, codec)

    def work():
        row = 0
        while row < ROWS:
            row = writer.write(row, ROWS, key=keys, value=values, now=NOW,
                               closed_bytes_max=4 << 20)
            for batch in writer.take():
                batch.seal()

    benchmark(work)
    note_rate(benchmark, "rows/s", ROWS)
