"""Contract of the Avro kernel: a column of values in Confluent's wire format in, columns out.

    decoder = Decoder([(LONG, 0), (BYTES, 0)], rows)
    while decoder.row < decoder.rows:
        number = decoder.schema_id(values)
        decoder.decode(values, program_of(number), -1 if number is None else number)
    for validity, offsets, data, null_count in decoder.finish(): ...
"""

from collections.abc import Iterable, Sequence

from pylog._native.builder import Column
from pylog._native.columns import ColumnBuffer

NULL_KIND: int
BOOLEAN: int
INT: int
LONG: int
FLOAT: int
DOUBLE: int
BYTES: int
FIXED: int
ENUM: int
NO_UNION: int

class AvroError(ValueError):
    row: int
    def __init__(self, error: int, row: int) -> None: ...

class Program:
    """How values of one schema are read."""

    def __init__(self, fields: Iterable[tuple[int, int, int, int, Sequence[str]]]) -> None:
        """fields, as they were written: (kind, null branch 0 or 1 of a union or NO_UNION, column
        or -1 for none, size of a fixed, symbols of an enum)."""

class Decoder:
    """Columns of `rows` rows, filled from front to end. A null row is null in all of them; a
    column that no field writes holds zeros, and nulls where rows are null; one of bytes or of an
    enum has to be written by every program."""

    rows: int
    row: int  # the next one
    def __init__(self, columns: Iterable[tuple[int, int]], rows: int) -> None:
        """columns: (kind, size of a fixed)."""

    def schema_id(self, values: Column) -> int | None:
        """Of the next row that is not null; None when there is none. Raises AvroError."""

    def decode(self, values: Column, program: Program | None, schema_id: int) -> int:
        """Takes the rows from `row` on that are null or of this schema, without the GIL; the row
        to go on with. program None: only null ones. Raises AvroError; the decoder is of no use
        then."""

    def finish(
        self,
    ) -> list[tuple[ColumnBuffer | None, ColumnBuffer | None, ColumnBuffer, int]]:
        """Per column (validity or None, offsets or None, values, null count); once."""
