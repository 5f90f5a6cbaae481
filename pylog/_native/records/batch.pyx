"""Record batches of magic 2 for Python callers: build, read, check, stamp, search.

Owns: nothing beyond a call.
Invariants: `check` accepts every batch from `build`; damaged bytes raise BatchError and never
  crash.
Source: KIP-98 (message format 2), KIP-82 (headers).
"""

cimport cython

from collections import namedtuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from pylog._native.records cimport csrc
from pylog._native.records.compress cimport Inflater, borrow_inflater, return_inflater

cdef enum:
    NO_GIL_BYTES_MIN = 64 * 1024  # about 2 us for the checksum

HEADER_BYTES = csrc.BATCH_HEADER_BYTES
LOG_OVERHEAD = csrc.BATCH_LOG_OVERHEAD  # Bytes that a batch's length does not include.
BYTES_MAX = csrc.BATCH_BYTES_MAX
LENGTH_AT = csrc.BATCH_LENGTH_AT
MAGIC_AT = csrc.BATCH_MAGIC_AT
ATTRIBUTES_AT = csrc.BATCH_ATTRIBUTES_AT
LAST_OFFSET_DELTA_AT = csrc.BATCH_LAST_OFFSET_DELTA_AT
RECORD_COUNT_AT = csrc.BATCH_RECORD_COUNT_AT
CODEC_MASK = csrc.BATCH_CODEC_MASK
LOG_APPEND_TIME = csrc.BATCH_LOG_APPEND_TIME
DELETE_HORIZON = csrc.BATCH_DELETE_HORIZON
TRANSACTIONAL = csrc.BATCH_TRANSACTIONAL
CONTROL = csrc.BATCH_CONTROL
INFLATED_BYTES_MAX = 1 << 30

Header = namedtuple("Header", (
    "base_offset", "batch_length", "leader_epoch", "magic", "crc", "attributes",
    "last_offset_delta", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch",
    "base_sequence", "record_count",
))


class BatchError(ValueError):
    """Bytes that are not a valid batch. `error`: negative batch_error; `code`: Kafka's code."""

    def __init__(self, error: int) -> None:
        super().__init__(csrc.batch_error_text(error).decode())
        self.error = error
        self.code = csrc.batch_error_code(error)


# ---- checksums


def crc32c(data, uint32_t crc=0) -> int:
    """Return the CRC-32C of `data`, continued from `crc`."""
    cdef Py_buffer view
    # A typed memoryview would take five times as long as the checksum of 1 KiB.
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < NO_GIL_BYTES_MIN:
        crc = csrc.crc32c_extend(crc, view.buf, <size_t>view.len)
    else:
        with nogil:
            crc = csrc.crc32c_extend(crc, view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return crc


def crc32c_portable(const uint8_t[::1] data not None, uint32_t crc=0) -> int:
    """Same as crc32c, without special CPU instructions."""
    cdef size_t size = data.shape[0]
    cdef const uint8_t *p = &data[0] if size else NULL
    with nogil:
        crc = csrc.crc32c_extend_portable(crc, p, size)
    return crc


# ---- reading


cdef object header_tuple(const csrc.batch_header *h):
    return Header(
        h.base_offset, h.batch_length, h.leader_epoch, h.magic, h.crc, h.attributes,
        h.last_offset_delta, h.base_timestamp, h.max_timestamp, h.producer_id, h.producer_epoch,
        h.base_sequence, h.record_count,
    )


cdef int parse_whole(const uint8_t[::1] data, csrc.batch_header *h) except -1:
    """Parse the header of the batch at the start of `data`; the whole batch must be present."""
    cdef size_t size = data.shape[0]
    cdef int rc = csrc.batch_parse(&data[0], size, h) if size else csrc.BATCH_E_SHORT
    if rc == 0 and csrc.batch_bytes(h) > size:
        rc = csrc.BATCH_E_SHORT
    if rc < 0:
        raise BatchError(rc)
    return 0


def header(const uint8_t[::1] batch not None):
    """Return the Header at the start of `batch`; 61 bytes suffice. Raises BatchError."""
    cdef csrc.batch_header h
    cdef size_t size = batch.shape[0]
    cdef int rc = csrc.batch_parse(&batch[0], size, &h) if size else csrc.BATCH_E_SHORT
    if rc < 0:
        raise BatchError(rc)
    return header_tuple(&h)


def walk(const uint8_t[::1] buffer not None):
    """Yield (position, Header) for each batch of a concatenation; stop before a truncated batch.

    Does not verify checksums. Raises BatchError at bytes that are not a batch.
    """
    cdef csrc.batch_header h
    cdef Py_ssize_t position = 0
    cdef size_t left
    while position < buffer.shape[0]:
        left = <size_t>(buffer.shape[0] - position)
        rc = csrc.batch_parse(&buffer[position], left, &h)
        if rc == csrc.BATCH_E_SHORT or (rc == 0 and csrc.batch_bytes(&h) > left):
            return
        if rc < 0:
            raise BatchError(rc)
        yield position, header_tuple(&h)
        position += <Py_ssize_t>csrc.batch_bytes(&h)


def edges(const uint8_t[::1] buffer not None):
    """Return [(base offset, last offset)] and [position] of the batches that walk() yields."""
    cdef csrc.batch_header h
    cdef Py_ssize_t position = 0
    cdef size_t left
    cdef list offsets = [], positions = []
    while position < buffer.shape[0]:
        left = <size_t>(buffer.shape[0] - position)
        rc = csrc.batch_parse(&buffer[position], left, &h)
        if rc == csrc.BATCH_E_SHORT or (rc == 0 and csrc.batch_bytes(&h) > left):
            break
        if rc < 0:
            raise BatchError(rc)
        offsets.append((h.base_offset, h.base_offset + h.last_offset_delta))
        positions.append(position)
        position += <Py_ssize_t>csrc.batch_bytes(&h)
    return offsets, positions


cdef int take_varint(const uint8_t **p, const uint8_t *end, size_t bytes_max, int64_t *v) except -1:
    cdef uint64_t bits = 0
    cdef size_t used = csrc.get_uvarint(p[0], end, bytes_max, &bits)
    if used == 0:
        raise BatchError(csrc.BATCH_E_RECORD)
    p[0] += used
    v[0] = csrc.zigzag_decode(bits)
    return 0


cdef object take_bytes(const uint8_t **p, const uint8_t *end):
    cdef int64_t size
    take_varint(p, end, 5, &size)
    if size < 0:
        return None
    if size > end - p[0]:
        raise BatchError(csrc.BATCH_E_RECORD)
    taken = PyBytes_FromStringAndSize(<const char *>p[0], <Py_ssize_t>size)
    p[0] += size
    return taken


cdef object take_headers(const uint8_t **p, const uint8_t *end):
    cdef int64_t count
    take_varint(p, end, 5, &count)
    if count < 0 or count > (end - p[0]) // 2:
        raise BatchError(csrc.BATCH_E_RECORD)
    headers = []
    for _ in range(count):
        key = take_bytes(p, end)
        if key is None:
            raise BatchError(csrc.BATCH_E_RECORD)
        headers.append((key.decode("utf-8", "surrogateescape"), take_bytes(p, end)))
    return headers


cdef list take_records(const uint8_t *p, size_t size, const csrc.batch_header *h):
    cdef const uint8_t *end = p + size
    cdef const uint8_t *record_end
    cdef int64_t length, delta, offset_delta, timestamp
    cdef bint append_time = h.attributes & csrc.BATCH_LOG_APPEND_TIME
    cdef list out = []
    while p < end:
        take_varint(&p, end, 5, &length)
        if length < 1 or length > end - p:
            raise BatchError(csrc.BATCH_E_RECORD)
        record_end = p + length
        p += 1
        take_varint(&p, record_end, 10, &delta)
        take_varint(&p, record_end, 5, &offset_delta)
        timestamp = <int64_t>(<uint64_t>h.base_timestamp + <uint64_t>delta)
        key = take_bytes(&p, record_end)
        value = take_bytes(&p, record_end)
        headers = take_headers(&p, record_end)
        if p != record_end:
            raise BatchError(csrc.BATCH_E_RECORD)
        out.append((
            <int64_t>(<uint64_t>h.base_offset + <uint64_t>offset_delta),
            h.max_timestamp if append_time else timestamp, key, value, headers,
        ))
    return out


def records(
    const uint8_t[::1] batch not None, inflated_bytes_max: int = INFLATED_BYTES_MAX,
) -> list:
    """Return the records of one batch: (offset, timestamp ms, key, value, [(header key, value)]).

    Does not verify the checksum or the order of offsets (`check` does). Raises BatchError.
    """
    cdef csrc.batch_header h
    cdef uint8_t *plain = NULL
    cdef size_t plain_size = 0
    cdef uint64_t cap = inflated_bytes_max
    cdef Inflater owner
    cdef const uint8_t *p
    cdef int rc
    parse_whole(batch, &h)
    p = &batch[0]
    if csrc.batch_codec(&h) == csrc.CODEC_NONE:
        return take_records(
            p + csrc.BATCH_HEADER_BYTES, csrc.batch_bytes(&h) - csrc.BATCH_HEADER_BYTES, &h)
    owner = borrow_inflater()
    with nogil:
        rc = csrc.batch_inflate(p, &h, cap, owner.inflater, &plain, &plain_size)
    return_inflater(owner)
    if rc < 0:
        raise BatchError(rc)
    try:
        return take_records(plain, plain_size, &h)
    finally:
        free(plain)


# ---- checking and stamping


def check(
    const uint8_t[::1] batch not None, *, int64_t now_ms=0,
    int64_t timestamp_before_max_ms=INT64_MAX,
    int64_t timestamp_after_max_ms=INT64_MAX, int64_t inflated_bytes_max=INFLATED_BYTES_MAX,
    int32_t batch_bytes_max=INT32_MAX, bint key_required=False, bint log_append_time=False,
    bint walk_records=True,
) -> tuple:
    """Check the batch by the rules for producers; return (error, summary).

    error: 0 or a negative batch_error. summary: header (None if it is invalid), max_timestamp,
    max_timestamp_delta, inflated_bytes, bad_records, code, text.
    """
    cdef csrc.batch_rules rules
    cdef csrc.batch_summary summary
    cdef Inflater owner = borrow_inflater()
    cdef size_t size = batch.shape[0]
    cdef const uint8_t *p = &batch[0] if size else NULL
    cdef int rc
    rules.now_ms = now_ms
    rules.timestamp_before_max_ms = timestamp_before_max_ms
    rules.timestamp_after_max_ms = timestamp_after_max_ms
    rules.inflated_bytes_max = inflated_bytes_max
    rules.batch_bytes_max = batch_bytes_max
    rules.key_required = key_required
    rules.log_append_time = log_append_time
    rules.walk_records = walk_records
    with nogil:
        rc = csrc.batch_check(p, size, &rules, owner.inflater, &summary)
    return_inflater(owner)
    parsed = summary.header.magic == 2
    return rc, {
        "header": header_tuple(&summary.header) if parsed else None,
        "max_timestamp": summary.max_timestamp,
        "max_timestamp_delta": summary.max_timestamp_delta,
        "inflated_bytes": summary.inflated_bytes,
        "bad_records": [summary.bad_records[i] for i in range(summary.bad_record_count)],
        "code": csrc.batch_error_code(rc),
        "text": csrc.batch_error_text(rc).decode(),
    }


def crc_ok(const uint8_t[::1] batch not None) -> bool:
    """Return True if the checksum of the first batch is valid. Raises BatchError."""
    cdef csrc.batch_header h
    parse_whole(batch, &h)
    cdef const uint8_t *p = &batch[0]
    cdef int rc
    with nogil:
        rc = csrc.batch_check_crc(p, &h)
    return rc == 0


def stamp(uint8_t[::1] batch not None, int64_t base_offset, int32_t leader_epoch) -> None:
    """Write base offset and leader epoch in place; both are outside the checksum."""
    cdef csrc.batch_header h
    parse_whole(batch, &h)
    csrc.batch_stamp(&batch[0], base_offset, leader_epoch)


def stamp_append_time(uint8_t[::1] batch not None, int64_t now_ms) -> None:
    """Set `now_ms` as LogAppendTime of all records, in place."""
    cdef csrc.batch_header h
    parse_whole(batch, &h)
    csrc.batch_stamp_append_time(&batch[0], csrc.batch_bytes(&h), now_ms)


def stamp_max_timestamp(uint8_t[::1] batch not None, int64_t max_timestamp) -> bool:
    """Set CreateTime and this maximum timestamp in place. Return True if the header differed."""
    cdef csrc.batch_header h
    parse_whole(batch, &h)
    return csrc.batch_stamp_max_timestamp(&batch[0], csrc.batch_bytes(&h), max_timestamp)


def find_timestamp(const uint8_t[::1] batch not None, int64_t target_ms, int64_t from_offset=0):
    """Return the first record at or after both as (offset, timestamp), or None.

    Raises BatchError.
    """
    cdef int64_t offset = -1, timestamp = -1
    cdef Inflater owner = borrow_inflater()
    cdef size_t size = batch.shape[0]
    cdef const uint8_t *p = &batch[0] if size else NULL
    cdef int rc
    with nogil:
        rc = csrc.batch_find_timestamp(
            p, size, target_ms, from_offset, owner.inflater, &offset, &timestamp)
    return_inflater(owner)
    if rc < 0:
        raise BatchError(rc)
    return (offset, timestamp) if rc else None


def find_max_timestamp(const uint8_t[::1] batch not None):
    """Return (offset, timestamp) of the first record with the greatest timestamp, or None."""
    cdef int64_t offset = -1, timestamp = -1
    cdef Inflater owner = borrow_inflater()
    cdef size_t size = batch.shape[0]
    cdef const uint8_t *p = &batch[0] if size else NULL
    cdef int rc
    with nogil:
        rc = csrc.batch_find_max_timestamp(p, size, owner.inflater, &offset, &timestamp)
    return_inflater(owner)
    if rc < 0:
        raise BatchError(rc)
    return (offset, timestamp) if rc else None


def recompress(
    const uint8_t[::1] batch not None, int codec, level: int | None = None,
    int64_t inflated_bytes_max=INFLATED_BYTES_MAX, size_t bytes_max=csrc.BATCH_BYTES_MAX,
) -> bytes:
    """Re-encode the records with another codec, in at most bytes_max bytes. Raises BatchError."""
    cdef Inflater owner = borrow_inflater()
    cdef size_t size = batch.shape[0]
    cdef const uint8_t *p = &batch[0] if size else NULL
    cdef int wanted = INT32_MIN if level is None else level
    cdef uint8_t *out = NULL
    cdef size_t out_size = 0
    cdef int rc
    with nogil:
        rc = csrc.batch_recompress(
            p, size, codec, wanted, inflated_bytes_max, bytes_max, owner.inflater, &out, &out_size)
    return_inflater(owner)
    return owned_bytes(rc, out, out_size)


cdef bytes owned_bytes(int rc, uint8_t *out, size_t size):
    if rc < 0:
        raise BatchError(rc)
    try:
        return PyBytes_FromStringAndSize(<char *>out, <Py_ssize_t>size)
    finally:
        free(out)


# ---- building


cdef size_t varint_bytes(int64_t v) noexcept:
    return csrc.uvarint_bytes(csrc.zigzag_encode(v))


cdef uint8_t *put_varint(uint8_t *p, int64_t v) noexcept:
    return p + csrc.put_uvarint(p, csrc.zigzag_encode(v))


cdef uint8_t *put_bytes(uint8_t *p, bytes data) noexcept:
    if data is None:
        return put_varint(p, -1)
    p = put_varint(p, len(data))
    memcpy(p, PyBytes_AS_STRING(data), len(data))
    return p + len(data)


cdef size_t bytes_bytes(bytes data) noexcept:
    return 1 if data is None else varint_bytes(len(data)) + <size_t>len(data)


cdef bytes as_bytes(object data):
    return data if data is None or type(data) is bytes else bytes(data)


@cython.final
cdef class Records:
    """The uncompressed payload of a batch during `build`."""

    def __cinit__(self):
        self.max_timestamp = -1

    def __dealloc__(self):
        free(self.bytes)

    cdef int append(self, object record) except -1:
        key_given, value_given, timestamp_given, headers_given = record
        cdef bytes key = as_bytes(key_given), value = as_bytes(value_given)
        cdef int64_t timestamp = timestamp_given
        cdef list headers = [
            (str(k).encode("utf-8", "surrogateescape"), as_bytes(v)) for k, v in headers_given
        ]
        if self.count == 0:
            self.base_timestamp = timestamp
        cdef int64_t delta = timestamp - self.base_timestamp
        cdef size_t body = 1 + varint_bytes(delta) + varint_bytes(self.count)
        body += bytes_bytes(key) + bytes_bytes(value) + varint_bytes(len(headers))
        for name, content in headers:
            body += bytes_bytes(name) + bytes_bytes(content)
        cdef uint8_t *p = self.reserve(varint_bytes(body) + body)
        p = put_varint(p, body)
        p[0] = 0
        p = put_varint(p + 1, delta)
        p = put_varint(p, self.count)
        p = put_bytes(p, key)
        p = put_bytes(p, value)
        p = put_varint(p, len(headers))
        for name, content in headers:
            p = put_bytes(p, name)
            p = put_bytes(p, content)
        assert p == self.bytes + self.size, (p - self.bytes, self.size)
        self.count += 1
        self.max_timestamp = max(self.max_timestamp, timestamp)
        return 0

    cdef uint8_t *reserve(self, size_t more) except NULL:
        """Append room for `more` bytes and return its address. The bytes count as used."""
        cdef size_t room = self.room
        cdef uint8_t *grown
        if self.size + more > INT32_MAX - csrc.BATCH_HEADER_BYTES:
            raise ValueError("a batch holds less than 2 GiB")
        if self.size + more > room:
            room = max(2 * room, self.size + more, <size_t>1024)
            grown = <uint8_t *>realloc(self.bytes, room)
            if grown == NULL:
                raise MemoryError
            self.bytes = grown
            self.room = room
        self.size += more
        return self.bytes + self.size - more


def build(
    records, *, int64_t base_offset=0, int codec=csrc.CODEC_NONE, level: int | None = None,
    int64_t producer_id=-1, int16_t producer_epoch=-1, int32_t base_sequence=-1,
    int attributes=0, int32_t leader_epoch=-1,
) -> bytes:
    """Return a batch of `records`: (key|None, value|None, timestamp ms, [(header key,
    bytes|None)]).

    attributes: bits besides the codec's (TRANSACTIONAL, CONTROL, LOG_APPEND_TIME). Raises
    ValueError without records, BatchError for an unknown codec.
    """
    cdef Records payload = Records()
    for record in records:
        payload.append(record)
    if payload.count == 0:
        raise ValueError("a batch needs records")
    cdef uint8_t[csrc.BATCH_HEADER_BYTES] head
    memset(head, 0, csrc.BATCH_HEADER_BYTES)
    csrc.batch_stamp(head, base_offset, leader_epoch)
    head[16] = 2
    csrc.put_i16(head + 21, <int16_t>(attributes & ~csrc.BATCH_CODEC_MASK))
    csrc.put_i32(head + 23, payload.count - 1)
    csrc.put_i64(head + 27, payload.base_timestamp)
    csrc.put_i64(head + 35, payload.max_timestamp)
    csrc.put_i64(head + 43, producer_id)
    csrc.put_i16(head + 51, producer_epoch)
    csrc.put_i32(head + 53, base_sequence)
    csrc.put_i32(head + 57, payload.count)
    cdef int wanted = INT32_MIN if level is None else level
    cdef uint8_t *out = NULL
    cdef size_t out_size = 0
    cdef int rc
    if payload.size < NO_GIL_BYTES_MIN and codec == csrc.CODEC_NONE:
        rc = csrc.batch_assemble(head, codec, wanted, payload.bytes, payload.size, &out, &out_size)
    else:
        with nogil:
            rc = csrc.batch_assemble(
                head, codec, wanted, payload.bytes, payload.size, &out, &out_size)
    return owned_bytes(rc, out, out_size)
