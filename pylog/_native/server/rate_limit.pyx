"""Replication throttles shared by reactors and fetchers (KIP-73).

Owns: the native throttle.
Invariants: it outlives the reactors and fetchers that use it, which hold references on it.
Source: csrc/os/rate_limit.h.
"""

import cython
from libc.stdint cimport int64_t, uint32_t

from pylog._native.server cimport csrc

NONE = csrc.THROTTLE_NONE


@cython.final
@cython.no_gc
cdef class Throttle:
    """samples, window_ms: as replication.quota.window.num and .size.seconds. Times are
    CLOCK_MONOTONIC in ms.
    """

    def __cinit__(self, uint32_t samples, int64_t window_ms):
        if samples < 1 or window_ms < 1:
            raise ValueError(f"{samples} samples of {window_ms} ms")
        self.ptr = csrc.throttle_new(samples, window_ms)
        if self.ptr == NULL:
            raise MemoryError("a throttle")

    def __dealloc__(self):
        if self.ptr != NULL:
            csrc.throttle_free(self.ptr)

    def set(self, int64_t bytes_per_second):
        """Set the limit from now on; NONE: no limit. Raises ValueError."""
        if bytes_per_second < 0:
            raise ValueError(f"{bytes_per_second} bytes a second")
        csrc.throttle_set(self.ptr, bytes_per_second)

    def count(self, int64_t size, int64_t now_ms):
        """Count `size` bytes sent or fetched, at least 0. Raises ValueError."""
        if size < 0:
            raise ValueError(f"{size} bytes")
        csrc.throttle_count(self.ptr, size, now_ms)

    def is_over(self, int64_t now_ms) -> bool:
        return csrc.throttle_is_over(self.ptr, now_ms)

    def rate(self, int64_t now_ms) -> float:
        """Return bytes per second, over the samples."""
        return csrc.throttle_rate(self.ptr, now_ms)
