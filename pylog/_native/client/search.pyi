"""Contract of the search kernel: fetched bytes in, columns of the matching records out.

    search = Search([Test(0, "key", "prefix", b"order-"),
                     Test(1, "value_json", ">", b"7", path=(b"customer", b"id"), kind="number")])
    search.append(fetched, reader, records_max=500, bytes_max=1 << 20)

Call `append` again until `fetched.exhausted` or `fetched.next_offset` is end_offset.
`reader.finish()` returns the matches.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

from pylog._native.client.columns import ColumnReader, Fetched

Field: TypeAlias = Literal["key", "value", "header", "key_json", "value_json", "record_bytes",
                           "batch_bytes", "producer_id", "timestamp"]
Operator: TypeAlias = Literal["exists", "is_null", "==", "!=", "prefix", "contains", "<", "<=",
                              ">", ">=", "between"]
Kind: TypeAlias = Literal["string", "number", "literal"]

TESTS_MAX: int
STEPS_MAX: int

class Test(NamedTuple):
    """One comparison. Tests of one group are alternatives, and every group must have a match.

    key, value: exists, is_null, ==, prefix, contains. header: exists, ==, prefix, contains; `name`
    is the header's. key_json, value_json: exists, ==, !=, contains, <, <=, >, >=; `path` has
    members as bytes and indexes as int, and `text` is a string without quotes and escapes, a number
    or a literal, as `kind` says. A record without the path does not match !=. The other fields:
    between, with low and high included.
    """

    group: int
    field: Field
    op: Operator
    text: bytes = ...
    name: bytes = ...
    path: tuple[bytes | int, ...] = ...
    kind: Kind = ...
    low: int = ...
    high: int = ...

class Search:
    """A compiled predicate. Not thread-safe; no tests: all records match."""

    records: int  # compared so far
    bytes: int  # of their keys, values and headers
    def __init__(self, tests: Iterable[Test] = ()) -> None:
        """Raises ValueError for tests that cannot be evaluated."""

    def append(
        self,
        fetched: Fetched,
        reader: ColumnReader,
        *,
        end_offset: int = ...,
        records_max: int,
        bytes_max: int,
    ) -> int:
        """Append up to records_max matches before end_offset to the reader; return their number.

        bytes_max: about the bytes to compare before returning, so that the caller can stop.
        `reader.full`: finish() first. fetched.next_offset is the first offset that was not
        compared. The GIL is released. Raises RecordsError, MemoryError.
        """
