"""Native columns as rows of Python objects, without pyarrow and NumPy.

Owns: nothing.
Invariants: a row has copies of its bytes, so it stays valid after the columns are released.
Source: Arrow columnar format 1.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pylog._native.client.columns import ColumnBuffer, Columns


class Row(NamedTuple):
    """One record. partition: the caller's number for the source of its columns."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


class _Bytes:
    """A binary column."""

    def __init__(self, offsets: ColumnBuffer, data: ColumnBuffer, validity: ColumnBuffer | None):
        self._offsets = memoryview(offsets).cast("i")
        self._data = memoryview(data)
        self._validity = None if validity is None else memoryview(validity)

    def at(self, row: int) -> bytes | None:
        if self._validity is not None and not self._validity[row >> 3] >> (row & 7) & 1:
            return None
        return bytes(self._data[self._offsets[row]:self._offsets[row + 1]])


def rows_of(columns: Columns) -> Iterator[Row]:
    """Yield the rows in order."""
    offsets, times = memoryview(columns.offsets).cast("q"), memoryview(columns.timestamps).cast("q")
    keys = _Bytes(columns.key_offsets, columns.key_data, columns.key_validity)
    values = _Bytes(columns.value_offsets, columns.value_data, columns.value_validity)
    names = contents = ends = None
    if columns.header_offsets is not None:
        assert columns.header_key_offsets is not None and columns.header_key_data is not None
        assert columns.header_value_offsets is not None and columns.header_value_data is not None
        ends = memoryview(columns.header_offsets).cast("i")
        names = _Bytes(columns.header_key_offsets, columns.header_key_data, None)
        contents = _Bytes(columns.header_value_offsets, columns.header_value_data,
                          columns.header_value_validity)
    first = 0
    for source, count in columns.runs:
        for row in range(first, first + count):
            headers: list[tuple[str, bytes | None]] = []
            if ends is not None and names is not None and contents is not None:
                headers = [((names.at(i) or b"").decode(), contents.at(i))
                           for i in range(ends[row], ends[row + 1])]
            yield Row(source, offsets[row], times[row], keys.at(row), values.at(row), headers)
        first += count
