"""A producer's batches, built from single records or from Arrow columns.

Owns: the memory of open and closed batches.
Invariants: records keep their order within a partition; a batch has at most bytes_max bytes, header
  included, unless it holds a single longer record; readers of a batch's bytes see a valid checksum.
Source: KIP-98 (batches), KIP-480 and KIP-794 (sticky partitions), KIP-360 (new epochs).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MIN, INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from pylog._native.client cimport csrc

MURMUR2 = csrc.BUILDER_MURMUR2
CRC32 = csrc.BUILDER_CRC32
FULL = -1

cdef enum:
    NO_GIL_BYTES_MIN = 128 * 1024
    SEALED_AT_ONCE_MAX = 64
    RECORD_BYTES_MAX = 1 << 30
    PARTITIONS_MAX = 1 << 20


class RowError(ValueError):
    """A row that cannot be sent. row: its index. `too_large`: above record_bytes_max."""

    def __init__(self, error: int, row: int) -> None:
        texts = {
            csrc.BUILDER_E_SIZE: "is larger than a record may be",
            csrc.BUILDER_E_PARTITION: "names a partition that the topic does not have",
            csrc.BUILDER_E_COLUMN: "has offsets outside its column, or a header without key",
        }
        super().__init__(f"row {row} {texts.get(error, f'fails with {error}')}")
        self.row = row
        self.too_large = error == csrc.BUILDER_E_SIZE


def murmur2(const uint8_t[::1] key not None) -> int:
    """Return the hash of Java's default partitioner, made non-negative."""
    cdef const uint8_t *p = NULL
    if key.shape[0]:
        p = &key[0]
    return csrc.builder_murmur2(p, <size_t>key.shape[0])


def crc32(const uint8_t[::1] key not None) -> int:
    """Return the hash of librdkafka's `consistent` partitioner."""
    cdef const uint8_t *p = NULL
    if key.shape[0]:
        p = &key[0]
    return csrc.builder_crc32(p, <size_t>key.shape[0])


cdef int raise_error(int rc) except -1:
    if rc == csrc.BUILDER_E_MEMORY:
        raise MemoryError
    if rc == csrc.BUILDER_E_CODEC:
        raise ValueError("the codec does not exist, or rejects the level")
    raise ValueError("a record or batch would be larger than 1 GiB")


@cython.final
cdef class Pool:
    """Reuses the memory of freed batches."""

    def __cinit__(self, int64_t bytes_max):
        csrc.builder_pool_begin(&self.state, <size_t>max(bytes_max, 0))
        self.begun = True

    def __dealloc__(self):
        if self.begun:
            csrc.builder_pool_end(&self.state)

    @property
    def nbytes(self) -> int:
        return self.state.bytes


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Batch:
    """One closed batch, ready to send.

    Not tracked by the garbage collector, so that creating a batch never runs finalizers.
    """

    def __dealloc__(self):
        csrc.builder_pool_give(pool_state(self.pool), self.data, self.room)

    cpdef seal(self):
        """Compute the checksum. The bytes may be read from now on."""
        if not self.sealed:
            csrc.builder_seal(self.data, <size_t>self.nbytes)
            self.sealed = True

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        self.seal()  # Readers see a valid checksum.
        PyBuffer_FillInfo(buffer, self, self.data, self.nbytes, 1, flags)

    def __len__(self):
        return self.nbytes

    def stamp(self, int64_t producer_id, int16_t epoch, int32_t base_sequence,
              bint transactional=False):
        """Set the producer fields. Must not be called while the bytes are being sent."""
        csrc.builder_stamp(self.data, producer_id, epoch, base_sequence, transactional)
        self.sealed = False


cdef inline csrc.builder_pool *pool_state(Pool pool) noexcept:
    return NULL if pool is None else &pool.state


cdef Batch batch_of(const csrc.builder_batch *made, Pool pool):
    cdef Batch batch = Batch.__new__(Batch)
    batch.pool = pool
    batch.room = made.room
    batch.data = made.bytes
    batch.nbytes = <Py_ssize_t>made.len
    batch.record_count = made.count
    batch.max_timestamp = made.max_timestamp
    batch.partition = made.partition
    return batch


def copied(data, int32_t partition) -> Batch:
    """Return a batch with the records of `data`, one whole batch as a broker returned it.

    It has no producer and is in no transaction. Raises ValueError for other bytes, MemoryError.
    """
    cdef const uint8_t[::1] view = memoryview(data).cast("B")
    cdef csrc.batch_header header
    cdef csrc.builder_batch made
    if view.shape[0] <= csrc.BATCH_HEADER_BYTES or csrc.batch_parse(
            &view[0], <size_t>view.shape[0], &header) < 0 \
            or csrc.batch_bytes(&header) != <size_t>view.shape[0] or header.magic != 2:
        raise ValueError("not a whole batch of magic 2")
    if csrc.batch_check_crc(&view[0], &header) < 0:
        raise ValueError(f"the batch at offset {header.base_offset} has a wrong checksum")
    made.len = made.room = <size_t>view.shape[0]
    made.bytes = <uint8_t *>malloc(made.len)
    if made.bytes == NULL:
        raise MemoryError
    made.count, made.max_timestamp = header.record_count, header.max_timestamp
    made.partition = partition
    with nogil:
        memcpy(made.bytes, &view[0], made.len)
        csrc.batch_stamp(made.bytes, 0, -1)
        csrc.builder_stamp(made.bytes, -1, -1, -1, False)
    return batch_of(&made, None)


def seal(list batches not None):
    """Compute the checksums of all batches; releases the GIL if that takes long."""
    cdef (uint8_t *)[SEALED_AT_ONCE_MAX] data
    cdef size_t[SEALED_AT_ONCE_MAX] sizes
    cdef Py_ssize_t at, i, count, nbytes
    cdef Batch batch
    for at in range(0, len(batches), SEALED_AT_ONCE_MAX):
        count = nbytes = 0
        part = batches[at:at + SEALED_AT_ONCE_MAX]  # Keeps the batches alive.
        for batch in part:
            if not batch.sealed:
                data[count] = batch.data
                sizes[count] = <size_t>batch.nbytes
                nbytes += batch.nbytes
                count += 1
        if nbytes < NO_GIL_BYTES_MIN:
            for i in range(count):
                csrc.builder_seal(data[i], sizes[i])
        else:
            with nogil:
                for i in range(count):
                    csrc.builder_seal(data[i], sizes[i])
        for batch in part:
            batch.sealed = True


cdef inline int64_t plain_bytes(object data, const uint8_t **at) except? -2:
    """Return the length of bytes or None (-1); -2 if `data` needs the buffer protocol."""
    if data is None:
        at[0] = NULL
        return -1
    if type(data) is bytes:
        at[0] = <const uint8_t *>PyBytes_AS_STRING(data)
        return PyBytes_GET_SIZE(data)
    return -2


@cython.final
cdef class BatchBuilder:
    """The open batch of one partition."""

    def __cinit__(self, int64_t bytes_max, int32_t partition=0, Pool pool=None):
        if not csrc.BATCH_HEADER_BYTES <= bytes_max <= RECORD_BYTES_MAX:
            bytes_max = csrc.BATCH_HEADER_BYTES if bytes_max < csrc.BATCH_HEADER_BYTES \
                else RECORD_BYTES_MAX
        self.state.bytes_max = <size_t>bytes_max
        self.pool = pool
        self.state.pool = pool_state(pool)
        self.partition = partition

    def __dealloc__(self):
        csrc.builder_free(&self.state)

    @property
    def count(self) -> int:
        return self.state.count

    @property
    def nbytes(self) -> int:
        return self.state.len

    def append(self, key, value, int64_t timestamp, headers=None) -> int:
        """Return the record's index in the batch, or -1 if it would exceed bytes_max."""
        cdef csrc.builder_record record
        cdef record_views views
        cdef bytes encoded = None
        cdef int rc
        record.timestamp = timestamp
        record.headers = NULL
        record.headers_len = 0
        if headers:
            encoded = encoded_headers(headers)
            record.headers = <const uint8_t *>PyBytes_AS_STRING(encoded)
            record.headers_len = <size_t>PyBytes_GET_SIZE(encoded)
        view_record(&views, &record, key, value)
        rc = csrc.builder_append(&self.state, &record)
        release_views(&views)
        if rc == csrc.BUILDER_FULL:
            return -1
        if rc < 0:
            raise_error(rc)
        return self.state.count - 1

    def close(self, int codec=csrc.CODEC_NONE, level: int | None = None) -> Batch:
        """Return the batch and empty the builder. Raises ValueError, MemoryError."""
        cdef int error = 0
        if self.state.count == 0:
            raise ValueError("a batch needs records")
        made = self.closed(codec, INT32_MIN if level is None else level, &error)
        if error < 0:
            raise_error(error)
        return made

    cdef Batch closed(self, int codec, int level, int *error):
        """Return the batch and empty the builder; return None and set *error on failure.

        Runs no Python code, but releases the GIL to compress.
        """
        cdef csrc.builder_batch made
        if codec == csrc.CODEC_NONE:
            error[0] = csrc.builder_close(&self.state, codec, level, &made)
        else:
            with nogil:
                error[0] = csrc.builder_close(&self.state, codec, level, &made)
        if error[0] < 0:
            return None
        made.partition = self.partition
        return batch_of(&made, self.pool)


cdef int view_record(record_views *views, csrc.builder_record *record, key, value) except -1:
    """Point the record at key and value. Raises TypeError for objects without a buffer.

    Call release_views() after appending the record.
    """
    views.has_key = views.has_value = False
    record.key_len = plain_bytes(key, &record.key)
    record.value_len = plain_bytes(value, &record.value)
    try:
        if record.key_len == -2:
            PyObject_GetBuffer(key, &views.key, PyBUF_SIMPLE)
            views.has_key = True
            record.key = <const uint8_t *>views.key.buf
            record.key_len = views.key.len
        if record.value_len == -2:
            PyObject_GetBuffer(value, &views.value, PyBUF_SIMPLE)
            views.has_value = True
            record.value = <const uint8_t *>views.value.buf
            record.value_len = views.value.len
    except BaseException:
        release_views(views)
        raise
    return 0


cdef void release_views(record_views *views):
    if views.has_key:
        PyBuffer_Release(&views.key)
    if views.has_value:
        PyBuffer_Release(&views.value)


cdef bytes encoded_headers(headers):
    """Return the headers as encoded in a record: their count, then names and values."""
    cdef bytearray out = bytearray()
    pairs = list(headers.items()) if isinstance(headers, dict) else list(headers)
    put_varint(out, len(pairs))
    for key, value in pairs:
        name = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else bytes(key)
        put_varint(out, len(name))
        out += name
        if value is None:
            put_varint(out, -1)
            continue
        content = value.encode() if isinstance(value, str) else memoryview(value).cast("B")
        put_varint(out, len(content))
        out += content
    return bytes(out)


cdef int put_varint(bytearray out, int64_t v) except -1:
    cdef uint8_t[10] encoded
    cdef size_t n = csrc.put_uvarint(encoded, csrc.zigzag_encode(v))
    out += (<const char *>encoded)[:n]
    return 0


# ---- columns


@cython.final
cdef class Column:
    """A binary or string column in Arrow's layout, borrowed."""

    def __cinit__(self, Py_ssize_t length, offsets, data, validity, int width=4,
                  Py_ssize_t start=0):
        if width not in (4, 8) or length < 0 or start < 0:
            raise ValueError("offsets are 4 or 8 bytes wide")
        self.length = length
        self.state.width = width
        self.state.start = start
        self.state.offsets = self.borrow(offsets, (start + length + 1) * width)
        if data is not None:
            self.state.data = <const uint8_t *>self.borrow(data, 0)
            self.state.data_len = self.views[self.view_count - 1].len
        if validity is not None:
            self.state.validity = <const uint8_t *>self.borrow(
                validity, (start + length + 7) // 8)

    cdef const void *borrow(self, object buffer, Py_ssize_t nbytes_min) except? NULL:
        cdef Py_buffer *view = &self.views[self.view_count]
        PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
        self.view_count += 1
        if view.len < nbytes_min:
            raise ValueError(f"a buffer of {view.len} bytes, {nbytes_min} are needed")
        return view.buf

    def __dealloc__(self):
        cdef int i
        for i in range(self.view_count):
            PyBuffer_Release(&self.views[i])


cdef int check_length(Column column, Py_ssize_t stop) except -1:
    if column is not None and column.length < stop:
        raise ValueError(f"a column of {column.length} rows, {stop} are wanted")
    return 0


@cython.final
cdef class BatchWriter:
    """Distributes rows of columns to one open batch per partition."""

    def __cinit__(self, int32_t partition_count, int64_t bytes_max, int codec=csrc.CODEC_NONE,
                  level: int | None = None, sticky=(), int partitioner=csrc.BUILDER_MURMUR2,
                  int64_t record_bytes_max=RECORD_BYTES_MAX, Pool pool=None):
        cdef int32_t *list_ = NULL
        cdef int rc
        if not 0 < partition_count <= PARTITIONS_MAX:
            raise ValueError("a topic has partitions")
        if not 0 <= codec <= csrc.CODEC_ZSTD:
            raise ValueError("there is no such codec")
        self.pool = pool
        self.state.pool = pool_state(pool)
        self.state.bytes_max = <size_t>min(
            max(bytes_max, csrc.BATCH_HEADER_BYTES), RECORD_BYTES_MAX)
        self.state.record_bytes_max = <size_t>record_bytes_max
        self.state.codec = codec
        self.state.level = INT32_MIN if level is None else level
        self.state.partitioner = <csrc.builder_partitioner>partitioner
        given = list(sticky) or list(range(partition_count))
        list_ = <int32_t *>calloc(len(given), sizeof(int32_t))
        if list_ == NULL:
            raise MemoryError
        try:
            for i, partition in enumerate(given):
                if not 0 <= partition < partition_count:
                    raise ValueError(f"there is no partition {partition}")
                list_[i] = partition
            rc = csrc.builder_writer_begin(&self.state, partition_count, list_,
                                           <int32_t>len(given))
        finally:
            free(list_)
        if rc < 0:
            raise MemoryError

    def __dealloc__(self):
        csrc.builder_writer_end(&self.state)

    def write(
        self, int64_t start, int64_t stop, *, Column key=None, Column value=None,
        const int64_t[::1] timestamps=None, int64_t now=-1, const int32_t[::1] partitions=None,
        headers=None, int64_t closed_bytes_max=INT64_MAX,
    ) -> int:
        """Append rows [start, stop) and return the row to continue with. Raises RowError at an
        invalid row, after appending the rows before it.
        """
        cdef csrc.builder_rows *rows = &self.rows
        cdef Column header_key, header_value
        cdef const int32_t[::1] header_offsets
        cdef int64_t row
        cdef int error = 0
        if not 0 <= start <= stop:
            raise ValueError("rows are counted from 0")
        memset(rows, 0, sizeof(csrc.builder_rows))
        rows.now = now
        check_length(key, stop)
        check_length(value, stop)
        if key is not None:
            rows.key = key.state
        if value is not None:
            rows.value = value.state
        if timestamps is not None and timestamps.shape[0]:
            if timestamps.shape[0] < stop:
                raise ValueError("fewer timestamps than rows")
            rows.timestamps = &timestamps[0]
        if partitions is not None and partitions.shape[0]:
            if partitions.shape[0] < stop:
                raise ValueError("fewer partitions than rows")
            rows.partitions = &partitions[0]
        if headers is not None and stop > 0:
            header_offsets, header_key, header_value = headers
            if header_offsets.shape[0] < stop + 1 or header_key.length != header_value.length:
                raise ValueError("fewer header offsets than rows")
            rows.header_offsets = &header_offsets[0]
            rows.header_key = header_key.state
            rows.header_value = header_value.state
            rows.header_count = header_key.length
        with nogil:
            row = csrc.builder_write(&self.state, rows, start, stop, <size_t>closed_bytes_max,
                                     &error)
        if error in (csrc.BUILDER_E_MEMORY, csrc.BUILDER_E_CODEC):
            raise_error(error)
        if error < 0:
            raise RowError(error, row)
        return row

    @property
    def closed_bytes(self) -> int:
        return self.state.closed_bytes

    def take(self) -> list:
        """Return the batches closed so far, in order per partition."""
        cdef size_t i, count = self.state.closed_count
        # Each batch has one owner at any time, even if memory runs out in between.
        cdef list out = []
        self.state.closed_count = 0
        self.state.closed_bytes = 0
        for i in range(count):
            out.append(batch_of(&self.state.closed[i], self.pool))
        return out

    def flush(self):
        """Close the open batches."""
        cdef int rc
        with nogil:
            rc = csrc.builder_flush(&self.state)
        if rc < 0:
            raise_error(rc)
