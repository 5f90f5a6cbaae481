"""Conversion between lines and columns, compared with Python's own parsing."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as of_hypothesis
from hypothesis import strategies as st

from pylog._native.client import text_lines
from pylog._native.client.columns import ColumnReader, Fetched
from pylog.tools.segments.segment_file import text_of
from tests.native.client.test_columns import binary_rows, joined

HEAD = b'{"topic": "t", "partition": 4, "offset": '


def settings(max_examples: int):
    """Return hypothesis settings without a check for slow examples, which occur on a busy machine.
    """
    return of_hypothesis(max_examples=max_examples, deadline=None,
                         suppress_health_check=[HealthCheck.too_slow])


def rows_of(found: text_lines.Lines) -> list:
    values = binary_rows(found.value_offsets, found.value_data, found.value_validity, found.count)
    if found.key_offsets is None:
        return values
    return list(zip(binary_rows(found.key_offsets, found.key_data, None, found.count), values))


def columns_of(batches) -> tuple:
    data, wanted = joined(batches)
    reader = ColumnReader()
    reader.read(Fetched(data), 1_000_000)
    return reader.finish(), wanted


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=20),
       st.binary(max_size=5).map(lambda rest: rest.replace(b"\n", b"")))
@settings(max_examples=100)
def test_complete_lines_are_rows_and_the_rest_remains(whole, rest):
    data = b"".join(line + b"\n" for line in whole) + rest
    found = text_lines.split(data)
    assert rows_of(found) == whole and found.nbytes == len(data) - len(rest)
    assert found.record_bytes == sum(map(len, whole)) and found.bad_row == -1
    last = text_lines.split(data, last=True)
    assert rows_of(last) == [*whole, *([rest] if rest else [])] and last.nbytes == len(data)


def test_number_of_lines_is_limited():
    found = text_lines.split(b"a\nb\nc\n", rows_max=2)
    assert rows_of(found) == [b"a", b"b"] and found.nbytes == 4


def test_line_is_split_at_its_first_separator():
    found = text_lines.split(b"k::v::w\n::\nlong key::\n", separator=b"::")
    assert rows_of(found) == [(b"k", b"v::w"), (b"", b""), (b"long key", b"")]


def test_line_without_a_separator_is_reported_and_earlier_lines_are_kept():
    found = text_lines.split(b"a:1\nb:2\nc\nd:4\n", separator=b":")
    assert found.bad_row == 2 and rows_of(found) == [(b"a", b"1"), (b"b", b"2")]


def test_empty_values_are_null_if_configured():
    found = text_lines.split(b"a\n\nb\n" * 5, tombstones=True)
    assert rows_of(found) == [b"a", None, b"b"] * 5


_texts = st.one_of(st.none(), st.text(max_size=60).map(str.encode), st.binary(max_size=60),
                   st.text('\0\x07\x08\t\n\x0b\f\r\x1f "\\/\x7f\x80é€\U0001f600', max_size=30).map(
                       str.encode))
_rows = st.lists(st.tuples(_texts, _texts, st.integers(-1, 2**62), st.lists(
    st.tuples(st.text(max_size=6), _texts), max_size=3)), min_size=1, max_size=20)


@given(_rows)
@settings(max_examples=60)
def test_raw_lines_are_the_values(rows):
    columns, wanted = columns_of([(0, rows)])
    cut = columns.count // 2
    stretches = [(0, cut), (cut, columns.count)]
    values = [value or b"" for _, (_, value, _, _) in wanted]
    keys = [key or b"" for _, (key, _, _, _) in wanted]
    assert bytes(text_lines.raw(columns, stretches)) == b"".join(value + b"\n" for value in values)
    assert bytes(text_lines.raw(columns, stretches, keys=True)) == b"".join(
        key + b"\t" + value + b"\n" for key, value in zip(keys, values))


@given(_rows)
@example([(b"0x41", b"\xed\xa0\x80", 0, []), (b"\xf4\x90\x80\x80", b"\xe0\x9f\xbf", -1, [])])
@example([(b"\xf0\x8f\xbf\xbf", b"\xc1\xbf", 0, []), (b"\xe2\x82", b"12345678\xff", 0, [])])
@settings(max_examples=200)
def test_documents_equal_json_dumps(rows):
    columns, wanted = columns_of([(0, rows)])
    texts = bytes(text_lines.documents(columns, [(0, columns.count, HEAD)])).decode().split("\n")
    assert texts.pop() == ""
    assert texts == [json.dumps(
        {"topic": "t", "partition": 4, "offset": offset, "timestamp": timestamp,
         "key": text_of(key), "value": text_of(value),
         "headers": [{"key": name, "value": text_of(given)} for name, given in headers]},
        ensure_ascii=False) for offset, (key, value, timestamp, headers) in wanted]


def test_missing_rows_are_rejected():
    columns, _ = columns_of([(0, [(None, b"v", 0, [])])])
    for stretch in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(IndexError):
            text_lines.raw(columns, [stretch])
        with pytest.raises(IndexError):
            text_lines.documents(columns, [(*stretch, HEAD)])


def test_a_long_text_grows_its_memory():
    value = bytes(np.arange(256, dtype=np.uint8)) * 4000
    columns, _ = columns_of([(0, [(None, value, 0, [])] * 3)])
    found = [json.loads(line) for line in
             bytes(text_lines.documents(columns, [(0, 3, HEAD)])).decode().splitlines()]
    assert [row["value"] for row in found] == ["0x" + value.hex()] * 3
