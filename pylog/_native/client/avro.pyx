"""Columns of Avro values decoded into Arrow buffers.

Owns: the columns of each Decoder until finish(); the fields of each Program.
Invariants: invalid bytes raise AvroError and never crash; a program names only columns of its
  decoder, of kinds that can hold the values.
Source: Avro 1.11 (binary encoding), Confluent's wire format, Arrow columnar format 1.4.
"""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from pylog._native.client cimport csrc
from pylog._native.client.batch_builder cimport Column
from pylog._native.client.columns cimport ColumnBuffer, taken

NULL_KIND = csrc.AVRO_NULL
BOOLEAN = csrc.AVRO_BOOLEAN
INT = csrc.AVRO_INT
LONG = csrc.AVRO_LONG
FLOAT = csrc.AVRO_FLOAT
DOUBLE = csrc.AVRO_DOUBLE
BYTES = csrc.AVRO_BYTES
FIXED = csrc.AVRO_FIXED
ENUM = csrc.AVRO_ENUM
NO_UNION = csrc.AVRO_NO_UNION

cdef enum:
    FIELDS_MAX = 1 << 16
    NO_SCHEMA = -1


class AvroError(ValueError):
    """A row whose bytes do not match its schema. row: its index."""

    def __init__(self, error: int, row: int) -> None:
        texts = {
            csrc.AVRO_E_VALUE: "is no value of its schema",
            csrc.AVRO_E_SIZE: "has more bytes than an Arrow column can hold",
            csrc.AVRO_E_COLUMN: "has offsets outside its column",
        }
        super().__init__(f"row {row} {texts.get(error, f'fails with {error}')}")
        self.row = row


cdef int raise_error(int error, int64_t row) except -1:
    if error == csrc.AVRO_E_MEMORY:
        raise MemoryError
    raise AvroError(error, row)


@cython.final
cdef class Program:
    """How to read values of one schema: its fields in the order of the writer's schema."""

    cdef csrc.avro_field *fields
    cdef size_t count
    cdef int32_t column_max

    def __cinit__(self, fields):
        """fields: (kind, null branch or NO_UNION, column or -1, size of a fixed, symbols)."""
        cdef csrc.avro_field *field
        given = list(fields)
        if len(given) > FIELDS_MAX:
            raise ValueError("too many fields")
        self.fields = <csrc.avro_field *>calloc(len(given) + 1, sizeof(csrc.avro_field))
        if self.fields == NULL:
            raise MemoryError
        self.column_max = -1
        for kind, null_branch, column, size, symbols in given:
            field = &self.fields[self.count]
            self.count += 1  # So that __dealloc__ frees it.
            field.kind = kind
            field.null_branch = null_branch
            field.column = column
            field.size = size
            if not csrc.AVRO_NULL <= field.kind <= csrc.AVRO_ENUM or field.size < 0:
                raise ValueError(f"no such field: {kind}, {size}")
            if field.kind == csrc.AVRO_ENUM:
                self.take_symbols(field, [symbol.encode() for symbol in symbols])
            self.column_max = max(self.column_max, field.column)

    cdef int take_symbols(self, csrc.avro_field *field, list symbols) except -1:
        cdef bytes text = b"".join(symbols)
        cdef int32_t *ends
        cdef uint8_t *bytes_
        cdef int32_t end = 0
        if len(text) > INT32_MAX:
            raise ValueError("symbols of 2 GiB")
        ends = <int32_t *>malloc((len(symbols) + 1) * sizeof(int32_t))
        bytes_ = <uint8_t *>malloc(len(text) + 1)
        field.symbol_ends, field.symbols = ends, bytes_
        if ends == NULL or bytes_ == NULL:
            raise MemoryError
        memcpy(bytes_, <const char *>text, len(text))
        field.size = <int32_t>len(symbols)
        for i, symbol in enumerate(symbols):
            end += <int32_t>len(symbol)
            ends[i] = end
        return 0

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.count):
            free(<void *>self.fields[i].symbol_ends)
            free(<void *>self.fields[i].symbols)
        free(self.fields)


cdef bint holds(const csrc.avro_column *column, const csrc.avro_field *field) noexcept:
    """Return True if the column can hold the field's values."""
    if field.kind == csrc.AVRO_INT and column.kind == csrc.AVRO_LONG:
        return True
    if field.kind == csrc.AVRO_FIXED and field.size != column.size:
        return False
    return field.kind == column.kind


@cython.final
cdef class Decoder:
    """Columns of `rows` rows, filled from front to end."""

    cdef csrc.avro_column *columns
    cdef size_t count
    cdef bint finished
    cdef readonly int64_t rows
    cdef readonly int64_t row

    def __cinit__(self, columns, int64_t rows):
        """columns: (kind, size of a fixed)."""
        cdef csrc.avro_column *column
        given = list(columns)
        if not 0 <= rows <= INT32_MAX or len(given) > FIELDS_MAX:
            raise ValueError(f"{rows} rows of {len(given)} columns")
        self.columns = <csrc.avro_column *>calloc(len(given) + 1, sizeof(csrc.avro_column))
        if self.columns == NULL:
            raise MemoryError
        self.rows = rows
        for kind, size in given:
            column = &self.columns[self.count]
            column.kind, column.size = kind, size
            if not csrc.AVRO_NULL <= column.kind <= csrc.AVRO_ENUM or column.size < 0:
                raise ValueError(f"no such column: {kind}, {size}")
            if csrc.avro_column_begin(column, <size_t>rows) < 0:
                raise MemoryError
            self.count += 1

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.count):
            csrc.avro_column_end(&self.columns[i])
        free(self.columns)

    def schema_id(self, Column values not None):
        """Return the schema id of the next row that is not null, or None without one. Raises
        AvroError.
        """
        cdef int64_t row = self.row, found = -1
        self.check(values)
        while row < self.rows and found == -1:
            found = csrc.avro_schema_id(&values.state, row)
            row += 1
        if found < -1:
            raise_error(<int>(found + 1), row - 1)
        return None if found == -1 else found

    def decode(self, Column values not None, Program program, int64_t schema_id):
        """Decode the rows from `row` on that are null or have this schema id. Return the next row.
        Raises AvroError.
        """
        cdef int error = 0
        self.check(values)
        if program is None:
            program, schema_id = Program(()), NO_SCHEMA
        else:
            self.check_program(program)
        with nogil:
            self.row = csrc.avro_decode(
                program.fields, program.count, schema_id, self.columns, self.count, &values.state,
                self.row, self.rows, &error)
        if error < 0:
            raise_error(error, self.row)
        return self.row

    cdef int check_program(self, Program program) except -1:
        cdef bytearray written = bytearray(self.count)
        cdef int32_t place
        cdef size_t i
        if program.column_max >= <int64_t>self.count:
            raise ValueError("the program names a column that does not exist")
        for i in range(program.count):
            place = program.fields[i].column
            if place >= 0:
                written[place] = 1
                if not holds(&self.columns[place], &program.fields[i]):
                    raise ValueError("the program writes a value that its column cannot hold")
        for i in range(self.count):
            # Offset columns are valid only if every row is written.
            if self.columns[i].kind in (csrc.AVRO_BYTES, csrc.AVRO_ENUM) and not written[i]:
                raise ValueError("the program omits a column of bytes")
        return 0

    cdef int check(self, Column values) except -1:
        if values.length < self.rows:
            raise ValueError(f"a column of {values.length} rows, {self.rows} are wanted")
        return 0

    def finish(self) -> list:
        """Return (validity or None, offsets or None, values, null count) per column; once."""
        cdef csrc.avro_column *column
        cdef size_t i
        cdef list out = []
        if self.finished:
            raise ValueError("the columns are taken")
        if self.row != self.rows:
            raise ValueError(f"{self.rows - self.row} rows are not decoded")
        self.finished = True
        for i in range(self.count):
            column = &self.columns[i]
            out.append((self.validity(column), self.offsets(column), self.values(column),
                        column.null_count))
        return out

    cdef ColumnBuffer validity(self, csrc.avro_column *column):
        cdef uint8_t *bits = column.validity
        column.validity = NULL
        if column.null_count == 0:
            free(bits)
            return None
        return taken(bits, <size_t>(self.rows + 7) // 8)

    cdef ColumnBuffer offsets(self, csrc.avro_column *column):
        cdef int32_t *offsets = column.offsets
        if offsets == NULL:
            return None
        column.offsets = NULL
        return taken(offsets, <size_t>(self.rows + 1) * sizeof(int32_t))

    cdef ColumnBuffer values(self, csrc.avro_column *column):
        cdef uint8_t *values = column.values
        cdef size_t size = column.len
        column.values = NULL
        if column.kind == csrc.AVRO_BOOLEAN:
            size = <size_t>(self.rows + 7) // 8
        elif column.kind in (csrc.AVRO_INT, csrc.AVRO_FLOAT):
            size = <size_t>self.rows * 4
        elif column.kind in (csrc.AVRO_LONG, csrc.AVRO_DOUBLE):
            size = <size_t>self.rows * 8
        elif column.kind == csrc.AVRO_FIXED:
            size = <size_t>self.rows * <size_t>column.size
        return taken(values, size)
