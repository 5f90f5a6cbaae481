"""Conversion of table columns for native code."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from pylog.client.columns.arrow import as_bytes
from pylog.client.producer.table_writer import found_columns, native_headers, native_timestamps

NOW = 1_700_000_000_000
ROLES = dict.fromkeys(("key", "value", "partition", "timestamp", "headers"))


@pytest.mark.parametrize(("unit", "given", "ms"), [
    ("ns", [-1_500_000, -1, 0, 1_999_999, None], [-2, -1, 0, 1, NOW]),
    ("us", [-1_500, -1, 0, 1_999, None], [-2, -1, 0, 1, NOW]),
    ("ms", [-2, -1, None], [-2, -1, NOW]), ("s", [-2, 3, None], [-2000, 3000, NOW])])
@pytest.mark.parametrize("tz", [None, "UTC"])
def test_timestamps_are_rounded_down_before_and_after_1970(unit, given, ms, tz):
    column = pa.array(given, pa.timestamp(unit, tz=tz))
    assert native_timestamps(column, NOW).tolist() == ms


def test_dates_are_timestamps_of_their_midnight():
    days = [datetime.date(1969, 12, 31), datetime.date(1970, 1, 2), None]
    for kind in (pa.date32(), pa.date64()):
        assert native_timestamps(pa.array(days, kind), NOW).tolist() == [
            -86_400_000, 86_400_000, NOW]


@pytest.mark.parametrize("words", [pa.utf8(), pa.large_utf8(), pa.string_view(), pa.binary()])
def test_categoricals_are_their_words(words):
    column = pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0, 1], pa.uint32()), pa.array(["a", "b"]).cast(words))
    plain = as_bytes(column).cast(pa.large_binary()).to_pylist()
    assert plain == [b"b", None, b"a", b"b"]
    assert as_bytes(column.slice(2)).cast(pa.large_binary()).to_pylist() == [b"a", b"b"]


def test_run_end_encoded_columns_are_decoded():
    batch = pa.record_batch({
        name: pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(values))
        for name, values in (("value", [b"x", None]), ("partition", [1, 0]))})
    found = found_columns(batch, ROLES)
    assert found["value"].to_pylist() == [b"x", b"x", None]
    assert found["partition"].to_pylist() == [1, 1, 0]


ITEM = pa.struct([("key", pa.utf8()), ("value", pa.binary())])


@pytest.mark.parametrize("kind", [pa.list_(ITEM), pa.large_list(ITEM), pa.list_(ITEM, 1)])
def test_headers_are_lists_of_each_kind(kind):
    rows = [[{"key": "a", "value": b"1"}], [{"key": "b", "value": None}]]
    found = native_headers(pa.array(rows, kind))
    assert found is not None and found[0].dtype == np.int32 and found[0].tolist() == [0, 1, 2]


def test_non_binary_columns_are_named_with_a_solution():
    with pytest.raises(TypeError, match="the column for value is fixed_size_list.*serialize it"):
        as_bytes(pa.array([[1, 2]], pa.list_(pa.int32(), 2)), "value")
    with pytest.raises(TypeError, match="the headers column is int64: make it list"):
        native_headers(pa.array([1]))
