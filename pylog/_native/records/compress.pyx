"""Kafka's codecs over whole blocks of records, for Python callers.

Owns: one native inflater per Inflater, and up to INFLATERS_IDLE_MAX of them between calls.
Invariants: output never exceeds the caller's limit; memory follows the output, never a size
  declared in the input.
Source: KIP-110 (zstd), KIP-390 (levels).
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MIN, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from pylog._native.records cimport csrc

NONE = csrc.CODEC_NONE
GZIP = csrc.CODEC_GZIP
SNAPPY = csrc.CODEC_SNAPPY
LZ4 = csrc.CODEC_LZ4
ZSTD = csrc.CODEC_ZSTD

_TEXTS = {
    csrc.COMPRESS_E_CORRUPT: "the bytes are not of this codec, or are cut short",
    csrc.COMPRESS_E_LIMIT: "the output would exceed its limit",
    csrc.COMPRESS_E_CODEC: "there is no such codec",
    csrc.COMPRESS_E_MEMORY: "out of memory, or a level that the codec rejects",
}


class CompressError(ValueError):
    """Bytes that cannot be decompressed, or exceed the limit. `error`: negative compress_error."""

    def __init__(self, error: int) -> None:
        super().__init__(_TEXTS.get(error, f"compress error {error}"))
        self.error = error


cdef class Inflater:
    """The expensive contexts of all codecs, for one thread."""

    def __cinit__(self):
        self.inflater = csrc.inflater_new()
        if self.inflater == NULL:
            raise MemoryError

    def __dealloc__(self):
        csrc.inflater_free(self.inflater)


cdef enum:
    INFLATERS_IDLE_MAX = 4

cdef list idle = []


cdef Inflater borrow_inflater():
    """Return an inflater for exclusive use until return_inflater(): creating one costs more than
    decompressing a small batch.
    """
    try:
        return idle.pop()
    except IndexError:
        return Inflater()


cdef int return_inflater(Inflater inflater) except -1:
    # Start an empty stream, to free the extra memory of the last one.
    csrc.inflater_begin(inflater.inflater, csrc.CODEC_NONE, <const uint8_t *>b"", 0, 0)
    if len(idle) < INFLATERS_IDLE_MAX:
        idle.append(inflater)
    return 0


def compress(int codec, const uint8_t[::1] data not None, level: int | None = None) -> bytes:
    """Compress `data` with `codec` at `level` (None: its default). Raises CompressError."""
    cdef int wanted = INT32_MIN if level is None else level
    cdef const uint8_t *src = &data[0] if data.shape[0] else NULL
    cdef size_t size = data.shape[0]
    cdef uint8_t *out = NULL
    cdef size_t out_size = 0
    cdef int rc
    with nogil:
        rc = csrc.compress_block(codec, wanted, src, size, &out, &out_size)
    if rc < 0:
        raise CompressError(rc)
    try:
        return PyBytes_FromStringAndSize(<char *>out, out_size)
    finally:
        free(out)


def decompress(int codec, const uint8_t[::1] data not None, max_bytes: int) -> bytes:
    """Decompress `data`. Raises CompressError if it is invalid or exceeds `max_bytes`."""
    cdef Inflater owner = borrow_inflater()
    cdef const uint8_t *src = &data[0] if data.shape[0] else NULL
    cdef size_t size = data.shape[0]
    cdef const uint8_t *chunk = NULL
    cdef size_t chunk_size = 0
    cdef Py_ssize_t done = 0
    out = bytearray()
    cdef int rc = csrc.inflater_begin(owner.inflater, codec, src, size, max_bytes)
    while rc >= 0:
        with nogil:
            rc = csrc.inflater_next(owner.inflater, &chunk, &chunk_size)
        if rc <= 0:
            break
        PyByteArray_Resize(out, done + <Py_ssize_t>chunk_size)
        memcpy(PyByteArray_AS_STRING(out) + done, chunk, chunk_size)
        done += <Py_ssize_t>chunk_size
    return_inflater(owner)
    if rc < 0:
        raise CompressError(rc)
    return bytes(out)
