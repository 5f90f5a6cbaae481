"""Contract of the text kernels: columns as lines, and lines as columns."""

from collections.abc import Sequence

from typing_extensions import Buffer

from pylog._native.client.columns import ColumnBuffer, Columns

class Lines:
    """The result of `split`, in Arrow's layout: offsets int32[count + 1], data, validity bits.

    nbytes: of the input, including line ends. key_offsets, key_data: None without a separator.
    value_validity: None unless empty values are null. bad_row: the first line without a separator,
    -1: none; it and later lines are not in the columns.
    """

    count: int
    nbytes: int
    bad_row: int
    key_offsets: ColumnBuffer | None
    key_data: ColumnBuffer | None
    value_offsets: ColumnBuffer
    value_data: ColumnBuffer
    value_validity: ColumnBuffer | None
    @property
    def record_bytes(self) -> int:
        """Return the bytes of all keys and values."""

def split(
    data: Buffer,
    *,
    last: bool = False,
    separator: bytes = b"",
    tombstones: bool = False,
    rows_max: int = ...,
) -> Lines:
    """Split the complete lines at the beginning of data; with `last`, the rest is a line too.

    tombstones: empty values are null. Raises ValueError above 2 GiB, MemoryError.
    """

def raw(columns: Columns, stretches: Sequence[tuple[int, int]], keys: bool = False
        ) -> ColumnBuffer:
    """Return the values of rows [start, stop), a line each; with `keys` the key and a tab before
    each.

    Raises IndexError for rows that do not exist.
    """

def documents(columns: Columns, stretches: Sequence[tuple[int, int, bytes]]) -> ColumnBuffer:
    """Return rows [start, stop) as a line of JSON each; the third argument is its beginning, up to
    the offset: b'{"topic": "t", "partition": 0, "offset": '. Raises IndexError for rows that do not
    exist.
    """
