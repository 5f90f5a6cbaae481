"""Search over the bytes of a segment's offset index.

Owns: nothing.
Invariants: csrc/segment/index_search.h's.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from pylog._native.records cimport csrc


def search_offsets(const uint8_t[::1] index not None, const int64_t[::1] wanted not None,
                   uint32_t[::1] counts not None) -> None:
    """Set counts[i] to the number of entries at or below wanted[i], a relative offset. index:
    entries in file format; start reading at the entry before that count. Raises ValueError.
    """
    cdef uint32_t entries = <uint32_t>(index.shape[0] // 8)
    cdef Py_ssize_t i
    if counts.shape[0] < wanted.shape[0]:
        raise ValueError(f"{wanted.shape[0]} wanted, room for {counts.shape[0]}")
    with nogil:
        for i in range(wanted.shape[0]):
            counts[i] = csrc.index_count_offsets(&index[0], entries, wanted[i]) if entries else 0
