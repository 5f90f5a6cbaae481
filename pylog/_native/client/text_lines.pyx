"""Columns as lines of text, and lines as columns, for the command line.

Owns: the columns of Lines, and the text during formatting.
Invariants: row ranges are inside their columns; each accepted line is completely in the columns,
  and bad_row is the first rejected one.
Source: Arrow columnar format 1.4; RFC 8259 (JSON).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pylog._native.client.columns cimport ColumnBuffer, Columns, taken
from pylog._native.client.text_lines cimport (
    lines_column, lines_count, lines_json, lines_raw, lines_rows, lines_split, lines_text,
    lines_values,
)


cdef ColumnBuffer room(size_t nbytes):
    """Allocate zeroed memory."""
    cdef void *data = calloc(1, nbytes if nbytes > 0 else 8)
    if data == NULL:
        raise MemoryError
    return taken(data, nbytes)


@cython.final
cdef class Lines:
    """The result of `split`, in Arrow's layout."""

    cdef readonly Py_ssize_t count, nbytes, bad_row
    cdef readonly ColumnBuffer key_offsets, key_data
    cdef readonly ColumnBuffer value_offsets, value_data, value_validity

    @property
    def record_bytes(self) -> int:
        cdef int64_t total = (<int32_t *>self.value_offsets.data)[self.count]
        if self.key_offsets is not None:
            total += (<int32_t *>self.key_offsets.data)[self.count]
        return total


def split(data, *, bint last=False, bytes separator=b"", bint tombstones=False,
          int64_t rows_max=INT64_MAX) -> Lines:
    """Split the complete lines at the start of data; with `last`, an unterminated rest is also a
    line. Raises ValueError for data above 2 GiB.
    """
    cdef Lines out = Lines.__new__(Lines)
    cdef Py_buffer view
    cdef lines_column key, value
    cdef const uint8_t *cut = <const uint8_t *><char *>separator
    cdef size_t cut_len = len(separator), nbytes = 0
    cdef int64_t rows, done
    memset(&key, 0, sizeof(key))
    memset(&value, 0, sizeof(value))
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len > INT32_MAX:
            raise ValueError("lines of 2 GiB")
        with nogil:
            rows = lines_count(<const uint8_t *>view.buf, <size_t>view.len, last, rows_max,
                               &nbytes)
        out.value_offsets = room((rows + 1) * sizeof(int32_t))
        out.value_data = room(nbytes)
        value.offsets = <int32_t *>out.value_offsets.data
        value.data = out.value_data.data
        if tombstones:
            out.value_validity = room((rows + 7) // 8)
            value.validity = out.value_validity.data
        if cut_len > 0:
            out.key_offsets = room((rows + 1) * sizeof(int32_t))
            out.key_data = room(nbytes)
            key.offsets = <int32_t *>out.key_offsets.data
            key.data = out.key_data.data
        with nogil:
            done = lines_split(<const uint8_t *>view.buf, nbytes, rows, cut, cut_len, &key, &value)
    finally:
        PyBuffer_Release(&view)
    out.bad_row = done if done < rows else -1  # The first rejected line.
    out.count = done
    out.nbytes = <Py_ssize_t>nbytes
    return out


cdef const uint8_t *data_of(ColumnBuffer buffer):
    return NULL if buffer is None else buffer.data


cdef void point(lines_values *values, ColumnBuffer offsets, ColumnBuffer data,
                ColumnBuffer validity) noexcept:
    values.offsets = <const int32_t *>data_of(offsets)
    values.data = data_of(data)
    values.validity = data_of(validity)


cdef void look(lines_rows *rows, Columns columns) noexcept:
    memset(rows, 0, sizeof(lines_rows))
    rows.offsets = <const int64_t *>columns.offsets.data
    rows.timestamps = <const int64_t *>columns.timestamps.data
    point(&rows.key, columns.key_offsets, columns.key_data, columns.key_validity)
    point(&rows.value, columns.value_offsets, columns.value_data, columns.value_validity)
    if columns.header_offsets is not None:
        rows.header_offsets = <const int32_t *>columns.header_offsets.data
        point(&rows.header_key, columns.header_key_offsets, columns.header_key_data, None)
        point(&rows.header_value, columns.header_value_offsets, columns.header_value_data,
              columns.header_value_validity)


cdef int check(Columns columns, int64_t start, int64_t stop) except -1:
    """Check that a row range is inside the columns. Raises IndexError."""
    if not 0 <= start <= stop <= columns.count:
        raise IndexError(f"rows {start} to {stop} of {columns.count}")
    return 0


def raw(Columns columns not None, stretches, bint keys=False) -> ColumnBuffer:
    """Format the values of rows [start, stop) as lines, with `keys` after their key and a tab."""
    cdef lines_rows rows
    cdef lines_text text
    cdef int64_t start, stop
    cdef bint fits = True
    memset(&text, 0, sizeof(text))
    look(&rows, columns)
    try:
        for start, stop in stretches:
            check(columns, start, stop)
            with nogil:
                fits = lines_raw(&rows, start, stop, keys, &text)
            if not fits:
                raise MemoryError
    except BaseException:
        free(text.bytes)
        raise
    return taken(text.bytes, text.len)


def documents(Columns columns not None, stretches) -> ColumnBuffer:
    """Format rows as JSON lines. stretches: (start, stop, beginning of each line)."""
    cdef lines_rows rows
    cdef lines_text text
    cdef int64_t start, stop
    cdef bytes head
    cdef const uint8_t *head_at
    cdef size_t head_len
    cdef bint fits = True
    memset(&text, 0, sizeof(text))
    look(&rows, columns)
    try:
        for start, stop, head in stretches:
            check(columns, start, stop)
            head_at = <const uint8_t *><char *>head
            head_len = len(head)
            with nogil:
                fits = lines_json(&rows, start, stop, head_at, head_len, &text)
            if not fits:
                raise MemoryError
    except BaseException:
        free(text.bytes)
        raise
    return taken(text.bytes, text.len)
