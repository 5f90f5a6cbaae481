"""Contract of the Avro kernel: a column of values in Confluent's wire format in, columns out.

    decoder = Decoder([(LONG, 0), (BYTES, 0)], rows)
    while decoder.row < decoder.rows:
        number = decoder.schema_id(values)
        decoder.decode(values, program_of(number), -1 if number is None else number)
    for validity, offsets, data, null_count in decoder.finish(): ...
"""

from collections.abc import Iterable, Sequence

from pylog._native.client.batch_builder import Column
from pylog._native.client.columns import ColumnBuffer

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
    """Decodes values of one schema."""

    def __init__(self, fields: Iterable[tuple[int, int, int, int, Sequence[str]]]) -> None:
        """fields in the writer's order: (kind, null branch 0 or 1 of a union or NO_UNION, column or
        -1 for none, size of a fixed, symbols of an enum).
        """

class Decoder:
    """Columns of `rows` rows, filled from front to end. A null row is null in all of them; a column
    without a field holds zeros, and nulls for null rows; every program must write each column of
    bytes or enums.
    """

    rows: int
    row: int  # the next row
    def __init__(self, columns: Iterable[tuple[int, int]], rows: int) -> None:
        """columns: (kind, size of a fixed)."""

    def schema_id(self, values: Column) -> int | None:
        """Return the schema id of the next non-null row, None if there is none. Raises AvroError.
        """

    def decode(self, values: Column, program: Program | None, schema_id: int) -> int:
        """Decode the rows from `row` on that are null or have this schema, without the GIL; return
        the next row. program None: only null rows. Raises AvroError; the decoder must not be used
        afterwards.
        """

    def finish(
        self,
    ) -> list[tuple[ColumnBuffer | None, ColumnBuffer | None, ColumnBuffer, int]]:
        """Return (validity or None, offsets or None, values, null count) per column; call it once.
        """
