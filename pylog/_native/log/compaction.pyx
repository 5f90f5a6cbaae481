"""Compaction passes over one log, and the key map that they share.

Owns: the map's memory; during a pass, references on the log's segments.
Invariants: csrc/compaction/pass.h's. The GIL is released around every step.
Source: csrc/compaction/pass.h.
"""

cimport cython
from libc.stdint cimport int64_t
from libc.string cimport memset

from pylog._native.log cimport csrc
from pylog._native.log.log cimport Log

SLOT_BYTES = csrc.KEYMAP_SLOT_BYTES


@cython.final
cdef class OffsetMap:
    """Keys and the offsets of their newest records, in `size` bytes of memory."""

    def __cinit__(self, size_t size, double load_factor=0.9):
        cdef bint made
        with nogil:
            made = csrc.offset_map_init(&self.map, size, load_factor)
        if not made:
            raise MemoryError(f"an offset map of {size} bytes")

    def __dealloc__(self):
        csrc.offset_map_free(&self.map)

    def clear(self):
        """Remove every key."""
        with nogil:
            csrc.offset_map_clear(&self.map)

    @property
    def size(self):
        """Size of the memory in bytes."""
        return self.map.capacity * csrc.KEYMAP_SLOT_BYTES

    def __len__(self):
        return self.map.count


cdef int take_rules(csrc.log_clean_rules *rules, now_ms, delete_retention_ms,
                    min_compaction_lag_ms, first_dirty, segment_bytes,
                    inflated_bytes_max) except -1:
    memset(rules, 0, sizeof(csrc.log_clean_rules))
    rules.now_ms = now_ms
    rules.delete_retention_ms = delete_retention_ms
    rules.min_compaction_lag_ms = min_compaction_lag_ms
    rules.first_dirty = first_dirty
    rules.segment_bytes = segment_bytes
    rules.inflated_bytes_max = inflated_bytes_max
    return 0


def look(Log log not None, *, now_ms, first_dirty, min_compaction_lag_ms=0):
    """Return what a pass would clean: (clean bytes, dirty bytes, first dirty offset, first offset
    that must not be cleaned, timestamp in ms of the first dirty segment or -1).
    """
    cdef csrc.log_clean_rules rules
    cdef csrc.log_clean_estimate_t found
    log.use()
    take_rules(&rules, now_ms, 0, min_compaction_lag_ms, first_dirty, 0, 0)
    with nogil:
        csrc.log_clean_estimate(log.ptr, &rules, &found)
    return (found.clean_bytes, found.dirty_bytes, found.first_dirty, found.cleanable_end,
            found.first_dirty_timestamp)


@cython.no_gc
@cython.final
cdef class CleaningPass:
    """One pass: call step() until it returns False, then figures()."""

    def __cinit__(self, Log log not None, OffsetMap offset_map not None, *, now_ms, first_dirty,
                  delete_retention_ms, segment_bytes, min_compaction_lag_ms=0,
                  inflated_bytes_max=1 << 30):
        """Start a pass. Raises LogError. With nothing to clean, the first step returns False."""
        cdef csrc.log_clean_rules rules
        cdef int error
        log.use()
        take_rules(&rules, now_ms, delete_retention_ms, min_compaction_lag_ms, first_dirty,
                   segment_bytes, inflated_bytes_max)
        self.log = log
        self.map = offset_map
        with nogil:
            error = csrc.log_clean_begin(log.ptr, &offset_map.map, &rules, &self.ptr)
        if error < 0:
            log.refuse(error)

    def __dealloc__(self):
        if self.ptr != NULL:
            with nogil:
                csrc.log_clean_end(self.ptr)

    def step(self, int64_t bytes_max):
        """Read about bytes_max more bytes. Return False at the end of the pass. Raises LogError,
        Interrupted.
        """
        cdef int result
        if self.ptr == NULL or self.closing:
            return False
        assert not self.stepping, "one thread steps"
        self.stepping = True
        with nogil:
            result = csrc.log_clean_step(self.ptr, bytes_max)
        self.stepping = False
        if self.closing:
            self.end()
        if result == csrc.LOG_E_WOULD_BLOCK:
            raise Interrupted(f"{self.log.topic}-{self.log.partition}: its segments changed")
        if result < 0:
            self.log.refuse(result)
        return result == 1

    def figures(self):
        """Return by name what was read, retained and written so far; end_offset: end of the cleaned
        part.
        """
        cdef csrc.log_clean_stats figures
        if self.ptr == NULL:
            return None
        csrc.log_clean_stats_of(self.ptr, &figures)
        return figures

    def close(self):
        """End the pass, finished or not, and remove unfinished files. If another thread is in
        step(), that thread ends the pass.
        """
        self.closing = True
        if not self.stepping:
            self.end()

    cdef int end(self) except -1:
        cdef csrc.log_clean *ptr = self.ptr
        self.ptr = NULL
        if ptr != NULL:
            with nogil:
                csrc.log_clean_end(ptr)
        return 0


class Interrupted(Exception):
    """Retention, truncation or deletion changed the log: the pass ends, nothing is lost."""
