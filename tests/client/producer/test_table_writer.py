"""Conversion of table columns for native code."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from pylog.client.columns.arrow import as_bytes
from pylog.client.producer.table_writer import (
    found_columns, native_headers, native_partitions, native_timestamps,
)

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
def test_categoricals_are_written_as_their_categories(words):
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


def run_end_encoded(values):
    """Return a column with values[0] twice and values[1] once."""
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), values)


@pytest.mark.parametrize("kind", [
    pa.string_view(), pa.binary_view(), pa.binary(1), pa.large_utf8(),
    pa.dictionary(pa.int8(), pa.utf8()), pa.dictionary(pa.int32(), pa.string_view())])
def test_run_end_encoded_columns_of_each_kind_are_decoded(kind):
    if pa.types.is_dictionary(kind):
        values = pa.DictionaryArray.from_arrays(
            pa.array([1, 0], kind.index_type), pa.array(["y", "x"]).cast(kind.value_type))
    else:
        values = pa.array(["x", "y"]).cast(pa.binary()).cast(kind)
    column = run_end_encoded(values)
    for start in range(4):
        found = found_columns(pa.record_batch({"value": column.slice(start)}), ROLES)["value"]
        assert found.cast(pa.large_binary()).to_pylist() == [b"x", b"x", b"y"][start:]


def test_encoded_timestamps_partitions_and_headers_are_decoded():
    times = pa.array([5, None], pa.timestamp("ms"))
    headers = pa.array([[{"key": "a", "value": b"1"}], None], pa.list_(ITEM))
    found = found_columns(pa.record_batch({
        "value": pa.array(["a", "b", "c"]), "timestamp": run_end_encoded(times.dictionary_encode()),
        "partition": run_end_encoded(pa.array([3, None])), "headers": run_end_encoded(headers)}),
        ROLES)
    assert native_timestamps(found["timestamp"], NOW).tolist() == [5, 5, NOW]
    assert native_partitions(found["partition"]).tolist() == [3, 3, -1]
    assert native_headers(found["headers"])[0].tolist() == [0, 1, 2, 2]


def test_encoded_columns_that_pyarrow_cannot_decode_are_named():
    column = run_end_encoded(pa.array([["x"], ["y"]], pa.list_(pa.string_view())))
    with pytest.raises(TypeError, match="the value column is run_end_encoded.*: pass it decoded"):
        found_columns(pa.record_batch({"value": column}), ROLES)


ITEM = pa.struct([("key", pa.utf8()), ("value", pa.binary())])


@pytest.mark.parametrize("kind", [pa.list_(ITEM), pa.large_list(ITEM), pa.list_(ITEM, 1)])
def test_headers_are_lists_of_each_kind(kind):
    rows = [[{"key": "a", "value": b"1"}], [{"key": "b", "value": None}]]
    found = native_headers(pa.array(rows, kind))
    assert found is not None and found[0].dtype == np.int32 and found[0].tolist() == [0, 1, 2]


OTHERS = [pa.array([1.5]), pa.array([1.0], pa.float32()), pa.array(["2026-01-01"]),
          pa.array(["2026-01-01"], pa.string_view()), pa.array([[1]]), pa.array([True]),
          pa.array([datetime.timedelta(1)]), pa.array([datetime.time(1)], pa.time32("s")),
          pa.array([datetime.time(1)], pa.time64("us")), pa.array([1], pa.decimal128(3))]


@pytest.mark.parametrize("column", OTHERS, ids=lambda column: str(column.type))
def test_unsuitable_timestamps_and_partitions_are_named_with_a_solution(column):
    with pytest.raises(TypeError, match="the timestamp column is .*: make it timestamp, date or "):
        native_timestamps(column, NOW)
    with pytest.raises(TypeError, match="the partition column is .*: make it an integer"):
        native_partitions(column)


def test_dates_and_timestamps_are_no_partitions():
    for kind in (pa.date32(), pa.date64(), pa.timestamp("ms")):
        with pytest.raises(TypeError, match="the partition column is"):
            native_partitions(pa.array([None], kind))


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.null()])
def test_integers_are_timestamps_in_milliseconds_and_partitions(kind):
    given = [None] if pa.types.is_null(kind) else [7, None]
    assert native_timestamps(pa.array(given, kind), NOW).tolist() == [7, NOW][-len(given):]
    assert native_partitions(pa.array(given, kind)).tolist() == [7, -1][-len(given):]


def test_numbers_out_of_range_are_named_with_their_column():
    for column in (pa.array([2**63], pa.uint64()), pa.array([2**60], pa.timestamp("s"))):
        with pytest.raises(ValueError, match="the timestamp column .* out of range"):
            native_timestamps(column, NOW)
    with pytest.raises(ValueError, match="the partition column .* out of range"):
        native_partitions(pa.array([2**31]))


def test_non_binary_columns_are_named_with_a_solution():
    with pytest.raises(TypeError, match="the column for value is fixed_size_list.*serialize it"):
        as_bytes(pa.array([[1, 2]], pa.list_(pa.int32(), 2)), "value")
    with pytest.raises(TypeError, match="the headers column is int64: make it list"):
        native_headers(pa.array([1]))
