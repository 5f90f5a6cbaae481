import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pylog._native.client.columns import ColumnReader, Fetched
from pylog._native.records.batch import build

from pylog.client.columns.arrow import COLUMNS, numpy_batch, record_batch, schema
from pylog.client.columns.fixed_width import numbers

pa = pytest.importorskip("pyarrow")
NOW = 1_700_000_000_000

_bytes = st.one_of(st.none(), st.binary(max_size=30))
_headers = st.lists(st.tuples(st.text(max_size=6), _bytes), max_size=3)
_rows = st.lists(st.tuples(_bytes, _bytes, st.integers(0, 2**41), _headers),
                 min_size=1, max_size=20)


def columns_of(*sources):
    reader = ColumnReader()
    for number, rows in sources:
        reader.read(Fetched(build(rows), source=number), 1 << 30)
    return reader.finish()


@settings(max_examples=100, deadline=None)
@given(_rows, _rows)
def test_a_record_batch_is_valid_and_holds_every_field(first, second):
    batch = record_batch(columns_of((0, first), (3, second)), {0: ("a", 5), 3: ("b", 1)})
    gc.collect()
    batch.validate(full=True)
    assert batch.schema == schema() and batch.schema.names == list(COLUMNS)
    rows = batch.to_pylist()
    wanted = [("a", 5, i, row) for i, row in enumerate(first)]
    wanted += [("b", 1, i, row) for i, row in enumerate(second)]
    found = [(r["topic"], r["partition"], r["offset"],
              (r["key"], r["value"], round(r["timestamp"].timestamp() * 1000),
               [(h["key"], h["value"]) for h in r["headers"]])) for r in rows]
    assert found == wanted


def test_only_requested_columns_are_built():
    columns = columns_of((0, [(b"k", b"v", NOW, [])]))
    batch = record_batch(columns, [("t", 0)], ["value", "offset"])
    assert batch.schema.names == ["offset", "value"]
    with pytest.raises(ValueError, match="no such columns"):
        record_batch(columns, [("t", 0)], ["colour"])


def test_nothing_is_an_empty_batch_of_the_same_schema():
    batch = record_batch(ColumnReader().finish(), [])
    batch.validate(full=True)
    assert batch.num_rows == 0 and batch.schema == schema()


def test_numbers_come_as_plain_arrays():
    wanted = np.arange(6, dtype=">i8")
    rows = [(b"%d" % i, wanted[i:i + 1].tobytes(), NOW + i, []) for i in range(6)]
    columns = columns_of((1, rows))
    found = numpy_batch(columns, {1: ("t", 4)}, value_dtype=">i8")
    assert found["value"].tolist() == wanted.tolist() and found["value"].dtype == np.int64
    assert found["partition"].tolist() == [4] * 6 and found["topics"] == ["t"]
    assert found["timestamp"].tolist() == [NOW + i for i in range(6)]
    assert bytes(found["key_data"]) == b"012345" and "value_null" not in found
    sliced = record_batch(columns, {1: ("t", 4)}).column("value").slice(2, 3)
    assert numbers(sliced, ">i8").tolist() == [2, 3, 4]


def test_null_numbers_are_distinguished_from_zero():
    rows = [(None, b"\0\0\0\7", NOW, []), (None, None, NOW, [])]
    found = numpy_batch(columns_of((0, rows)), [("t", 0)], value_dtype=">i4")
    assert found["value"].tolist() == [7, 0] and found["value_null"].tolist() == [False, True]
    with pytest.raises(ValueError, match="8 bytes long"):
        numpy_batch(columns_of((0, rows)), [("t", 0)], value_dtype=">i8")
