"""Rows of native columns, compared with the records in the batches."""

from hypothesis import given, settings

from pylog._native.client.columns import ColumnReader, Fetched
from pylog.client.columns.rows import rows_of
from tests.native.client.test_columns import _batches, joined


@settings(max_examples=50, deadline=None)
@given(_batches)
def test_rows_are_the_records_of_each_source(batches):
    data, rows = joined(batches)
    reader = ColumnReader()
    for source in (3, 1):
        reader.read(Fetched(data, source=source), 1 << 30)
    found = [(row.partition, row.offset, (row.key, row.value, row.timestamp, row.headers))
             for row in rows_of(reader.finish())]
    assert found == [(source, *row) for source in (3, 1) for row in rows]
