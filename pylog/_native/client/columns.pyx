"""Fetched record bytes as Arrow columns or as Record objects.

Owns: the column memory of each ColumnReader and of each result of finish(); the borrowed bytes and
  inflater of each Fetched.
Invariants: invalid bytes from a broker raise RecordsError and never crash; next_offset never
  decreases; records before an invalid one are returned before the error.
Source: KIP-98 (batches, aborted transactions), KIP-82 (headers), Arrow columnar format 1.4.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from types import GenericAlias

from pylog._native.client cimport csrc
from pylog._native.records.compress cimport borrow_inflater, return_inflater

NO_TIMESTAMP_TYPE = -1
CREATE_TIME = 0
LOG_APPEND_TIME = 1
INFLATED_BYTES_MAX = 1 << 30


class RecordsError(ValueError):
    """Fetched bytes that are not valid records, from `offset` on."""

    def __init__(self, error: int, offset: int) -> None:
        super().__init__(f"{csrc.batch_error_text(error).decode()} (at offset {offset})")
        self.error = error
        self.code = csrc.batch_error_code(error)
        self.offset = offset


cdef int raise_error(int rc, int64_t offset) except -1:
    if rc == csrc.BATCH_E_MEMORY:
        raise MemoryError
    raise RecordsError(rc, offset)


# ---- fetched bytes


@cython.final
# no_gc: the collector could clear the underlying buffer before this object releases it.
@cython.no_gc
cdef class Fetched:
    """The record bytes of one fetched partition, read once from front to end."""

    def __cinit__(
        self, data, *, int32_t source=0, int64_t next_offset=0, aborted=(),
        bint read_committed=False, bint check_crc=True,
        uint64_t inflated_bytes_max=INFLATED_BYTES_MAX,
    ):
        if source < 0:
            raise ValueError("a source is at least 0")
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.state.p = <const uint8_t *>self.view.buf
        self.size = self.view.len
        self.state.end = self.state.p + self.size
        if isinstance(data, memoryview) and isinstance(data.obj, (bytes, bytearray)):
            # CPython clears a memoryview that is part of a garbage cycle even if it is exported,
            # and crashes when the export ends. So hold the underlying bytes, not the view.
            PyBuffer_Release(&self.view)
            PyObject_GetBuffer(data.obj, &self.view, PyBUF_SIMPLE)
        self.viewed = True
        self.source = source
        self.state.next_offset = next_offset
        self.state.read_committed = read_committed
        self.state.check_crc = check_crc
        self.state.inflated_bytes_max = inflated_bytes_max
        self.state.exhausted = self.size == 0
        self.begin(aborted if read_committed else ())

    cdef int begin(self, aborted) except -1:
        cdef size_t count = len(aborted), i = 0
        cdef csrc.columns_aborted *list_ = NULL
        cdef int rc
        if count > 0:
            list_ = <csrc.columns_aborted *>calloc(count, sizeof(csrc.columns_aborted))
            if list_ == NULL:
                raise MemoryError
        try:
            for producer_id, first_offset in aborted:
                list_[i].producer_id = producer_id
                list_[i].first_offset = first_offset
                i += 1
            rc = csrc.columns_source_begin(&self.state, list_, count)
        finally:
            free(list_)
        if rc < 0:
            raise MemoryError
        return 0

    def __dealloc__(self):
        csrc.columns_source_end(&self.state)
        if self.viewed:
            PyBuffer_Release(&self.view)
        if self.owner is not None:
            return_inflater(self.owner)

    cdef int borrow(self) except -1:
        self.owner = borrow_inflater()
        self.state.inflater = self.owner.inflater
        return 0

    cdef int give_back(self) except -1:
        """Return the inflater if there is nothing left to decompress."""
        if self.owner is not None:
            owner = self.owner
            self.owner = None
            self.state.inflater = NULL
            return_inflater(owner)
        return 0

    cdef int look(self) except? -1:
        """Return the number of views; 0 at the end; a negative error."""
        cdef int rc
        while True:
            with nogil:
                rc = csrc.columns_source_next(&self.state)
            if rc != csrc.COLUMNS_NEEDS_INFLATER:
                return rc
            self.borrow()

    @property
    def next_offset(self) -> int:
        return self.state.next_offset

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def exhausted(self) -> bool:
        return self.state.exhausted

    @property
    def bytes_left(self) -> int:
        return self.state.end - self.state.p

    @property
    def is_cut(self) -> bool:
        return self.state.exhausted and not self.state.any_batch and self.size > 0


# ---- columns


@cython.final
@cython.freelist(64)
cdef class ColumnBuffer:
    """Native memory with the buffer protocol."""

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.nbytes, 1, flags)

    def __len__(self):
        return self.nbytes

    @property
    def address(self) -> int:
        return <size_t>self.data


cdef ColumnBuffer taken(void *data, size_t nbytes):
    """Wrap `data`, which the ColumnBuffer will free."""
    cdef ColumnBuffer buffer = ColumnBuffer.__new__(ColumnBuffer)
    if data == NULL:
        # Arrow needs an address even for an empty buffer.
        data = calloc(1, 8)
        if data == NULL:
            raise MemoryError
    buffer.data = <uint8_t *>data
    buffer.nbytes = <Py_ssize_t>nbytes
    return buffer


cdef ColumnBuffer room(size_t nbytes):
    cdef void *data = malloc(nbytes if nbytes > 0 else 8)
    if data == NULL:
        raise MemoryError
    return taken(data, nbytes)


cdef ColumnBuffer taken_validity(csrc.columns_bytes *b, size_t rows):
    cdef uint8_t *validity = b.validity
    b.validity = NULL
    if b.null_count == 0:
        free(validity)
        return None
    return taken(validity, (rows + 7) // 8)


cdef ColumnBuffer taken_offsets(int32_t **offsets, size_t rows):
    cdef int32_t *at = offsets[0]
    offsets[0] = NULL
    if at == NULL:
        at = <int32_t *>calloc(2, sizeof(int32_t))
        if at == NULL:
            raise MemoryError
    return taken(at, (rows + 1) * sizeof(int32_t))


cdef ColumnBuffer taken_data(csrc.columns_bytes *b):
    cdef uint8_t *data = b.data
    b.data = NULL
    return taken(data, b.len)


@cython.final
cdef class ColumnReader:
    """Native columns that grow record by record."""

    def __cinit__(self, *, bint headers=True, int64_t bytes_max=INT32_MAX):
        if not 0 < bytes_max <= INT32_MAX:
            raise ValueError("bytes_max is at least 1 and below 2**31")
        self.state.with_headers = headers
        self.state.bytes_max = <size_t>bytes_max

    def __dealloc__(self):
        csrc.columns_clear(&self.state)

    def read(self, Fetched fetched not None, int64_t records_max) -> int:
        """Append up to records_max records and return how many. Fewer: `exhausted` or `full` is
        set, or the next call raises.
        """
        cdef int64_t count = 0, total = 0
        self.full = False
        while total < records_max:
            with nogil:
                count = csrc.columns_append(
                    &self.state, &fetched.state, fetched.source, records_max - total)
            if count > 0:
                total += count
            elif count == csrc.COLUMNS_NEEDS_INFLATER:
                fetched.borrow()
            else:
                break
        self.full = count == csrc.COLUMNS_FULL
        if fetched.state.exhausted:
            fetched.give_back()
        if count < 0 and total == 0 and not self.full:
            raise_error(<int>count, fetched.state.next_offset)
        return total

    @property
    def count(self) -> int:
        return self.state.rows

    @property
    def bytes(self) -> int:
        return self.state.key.len + self.state.value.len

    def finish(self) -> Columns:
        """Return the columns read so far and empty the reader."""
        cdef Columns out = Columns.__new__(Columns)
        cdef csrc.columns *c = &self.state
        csrc.columns_note_sizes(c)
        out.take(c)
        csrc.columns_clear(c)
        self.full = False
        return out


@cython.final
cdef class Columns:
    """The result of one finish(), in Arrow's layout."""

    def __dealloc__(self):
        free(self.run_list)

    cdef int take(self, csrc.columns *c) except -1:
        cdef size_t rows = c.rows
        cdef void *at = c.offsets
        self.count = <Py_ssize_t>rows
        c.offsets = NULL
        self.offsets = taken(at, rows * sizeof(int64_t))
        at = c.timestamps
        c.timestamps = NULL
        self.timestamps = taken(at, rows * sizeof(int64_t))
        self.key_null_count = c.key.null_count
        self.key_validity = taken_validity(&c.key, rows)
        self.key_offsets = taken_offsets(&c.key.offsets, rows)
        self.key_data = taken_data(&c.key)
        self.value_null_count = c.value.null_count
        self.value_validity = taken_validity(&c.value, rows)
        self.value_offsets = taken_offsets(&c.value.offsets, rows)
        self.value_data = taken_data(&c.value)
        self.run_list = c.runs
        self.run_count = c.run_count
        c.runs = NULL
        if c.with_headers and c.headers > 0:
            self.take_headers(c)
        return 0

    cdef int take_headers(self, csrc.columns *c) except -1:
        cdef size_t count = c.headers
        self.header_count = <Py_ssize_t>count
        self.header_offsets = taken_offsets(&c.header_offsets, self.count)
        self.header_key_offsets = taken_offsets(&c.header_key.offsets, count)
        self.header_key_data = taken_data(&c.header_key)
        self.header_value_null_count = c.header_value.null_count
        self.header_value_validity = taken_validity(&c.header_value, count)
        self.header_value_offsets = taken_offsets(&c.header_value.offsets, count)
        self.header_value_data = taken_data(&c.header_value)
        return 0

    def __len__(self):
        return self.count

    @property
    def runs(self) -> list:
        return [(self.run_list[i].source, self.run_list[i].count) for i in range(self.run_count)]

    def spread(self, values) -> ColumnBuffer:
        """Return values[source] for each record, as int32[count]. Raises IndexError."""
        cdef size_t count = len(values), i
        cdef ColumnBuffer table = room(count * sizeof(int32_t))
        cdef ColumnBuffer out = room(<size_t>self.count * sizeof(int32_t))
        cdef bint known
        for i in range(count):
            (<int32_t *>table.data)[i] = values[i]
        with nogil:
            known = csrc.columns_spread(self.run_list, self.run_count, <int32_t *>table.data,
                                        count, <int32_t *>out.data)
        if not known:
            raise IndexError("a source has no value")
        return out


def fixed_width(
    offsets, data, validity, Py_ssize_t count, size_t width, bint swap, Py_ssize_t start=0,
) -> ColumnBuffer:
    """Return a binary column whose values all have `width` bytes as one plain array.

    start: the first row, for a sliced column; nulls become zero. Raises ValueError.
    """
    cdef const uint8_t[::1] offset_bytes = memoryview(offsets).cast("B")
    cdef const uint8_t[::1] data_bytes = memoryview(data).cast("B")
    cdef const uint8_t[::1] bits = None if validity is None else memoryview(validity).cast("B")
    cdef const uint8_t *valid = NULL
    cdef const uint8_t *values = &data_bytes[0] if data_bytes.shape[0] else NULL
    cdef const int32_t *at
    cdef bint same
    cdef Py_ssize_t i
    if width not in (1, 2, 4, 8) or count < 0 or start < 0:
        raise ValueError("a width is 1, 2, 4 or 8")
    if offset_bytes.shape[0] // 4 < start + count + 1:
        raise ValueError("fewer offsets than rows")
    if validity is not None:
        if bits.shape[0] * 8 < start + count:
            raise ValueError("fewer validity bits than rows")
        valid = &bits[0]
    at = <const int32_t *>&offset_bytes[0] + start
    with nogil:
        same = at[0] >= 0 and at[count] <= data_bytes.shape[0]
        for i in range(count):
            same = same and at[i] <= at[i + 1]
    if not same:
        raise ValueError("offsets leave the data")
    cdef ColumnBuffer out = room(<size_t>count * width)
    with nogil:
        same = csrc.columns_fixed(at, values, valid, start, count, width, swap, out.data)
    if not same:
        raise ValueError(f"a value is not {width} bytes long")
    return out


# ---- records


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Record:
    """One consumed record.

    Not tracked by the garbage collector, which would have to traverse all records that a program
    keeps. A value must therefore not refer to its own record.
    """

    @classmethod
    def __class_getitem__(cls, parameters) -> GenericAlias:
        """Return Record[K, V], for annotations."""
        return GenericAlias(cls, parameters)

    def __init__(
        self, str topic not None, int32_t partition=0, int64_t offset=-1, int64_t timestamp=-1,
        int16_t timestamp_type=NO_TIMESTAMP_TYPE, key=None, value=None, headers=(),
        int32_t leader_epoch=-1,
    ):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.raw_headers = list(headers) if headers else None
        self.leader_epoch = leader_epoch

    @property
    def headers(self) -> list:
        if self.raw_headers is None:
            return []
        if type(self.raw_headers) is bytes:
            self.raw_headers = headers_of(self.raw_headers)
        return self.raw_headers

    def __repr__(self):
        return (f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
                f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, "
                f"headers={self.headers!r})")

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self.identity() == other.identity()

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def identity(self) -> tuple:
        """Return the fields that __eq__ compares."""
        return (self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type,
                self.key, self.value, self.headers)


cdef object header_field(const uint8_t **p, const uint8_t *end):
    cdef uint64_t bits = 0
    cdef int64_t size
    p[0] += csrc.get_uvarint(p[0], end, 5, &bits)
    size = csrc.zigzag_decode(bits)
    if size < 0:
        return None
    # The reader has validated these bytes. In case of a bug, the assertion prevents reading past
    # them.
    assert size <= end - p[0], (size, end - p[0])
    field = PyBytes_FromStringAndSize(<const char *>p[0], <Py_ssize_t>size)
    p[0] += size
    return field


cdef list headers_of(bytes raw):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(raw)
    cdef const uint8_t *end = p + len(raw)
    cdef list headers = []
    while p < end:
        key = header_field(&p, end)
        headers.append((key.decode("utf-8", "replace"), header_field(&p, end)))
    return headers


cdef inline object bytes_of(const uint8_t *p, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *>p, size)


cdef Record record_of(const csrc.columns_view *view, str topic, int32_t partition,
                      int16_t timestamp_type, int32_t leader_epoch):
    cdef Record record = Record.__new__(Record)
    record.topic = topic
    record.partition = partition
    record.offset = view.offset
    record.timestamp = view.timestamp
    record.timestamp_type = timestamp_type
    record.leader_epoch = leader_epoch
    record.key = bytes_of(view.key, view.key_len)
    record.value = bytes_of(view.value, view.value_len)
    if view.header_count > 0:
        record.raw_headers = bytes_of(view.headers, view.headers_len)
    return record


def records(Fetched fetched not None, str topic not None, int32_t partition,
            Py_ssize_t records_max) -> list:
    """Return up to records_max Records. Raises RecordsError if the next one is invalid."""
    cdef csrc.columns_source *s = &fetched.state
    cdef list out = []
    cdef Py_ssize_t left = records_max
    cdef int32_t count, i, epoch
    cdef int16_t timestamp_type
    while left > 0:
        count = fetched.look()
        if count < 0 and not out:
            raise_error(count, s.next_offset)
        if count <= 0:
            break
        if count > left:
            count = <int32_t>left
        # Views never span two batches, so these values apply to all of them.
        timestamp_type = 1 if s.append_time else 0
        epoch = s.leader_epoch
        for i in range(count):
            out.append(record_of(&s.views[s.view_at + i], topic, partition, timestamp_type, epoch))
        with nogil:
            csrc.columns_source_consume(s, count)
        left -= count
    if s.exhausted:
        fetched.give_back()
    return out
