"""Worker threads for blocking work: flushes, preallocation, rolls, cold reads, large batches.

Owns: the io pool's threads and their scratch memory.
Invariants: csrc/os/io_pool.h's.
Source: csrc/os/io_pool.h.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from pylog._native.log cimport csrc

IO_THREADS_DEFAULT = 4
JOBS_MAX = 16384
IO_THREADS_MAX = csrc.IOPOOL_THREADS_MAX


@cython.no_gc
cdef class IoPool:
    """Worker threads for blocking work, with at most jobs_max waiting jobs. Outlives its users."""

    def __cinit__(self, int threads=IO_THREADS_DEFAULT, uint32_t jobs_max=JOBS_MAX):
        if not 0 < threads <= csrc.IOPOOL_THREADS_MAX or jobs_max == 0:
            raise ValueError(f"{threads} threads, {jobs_max} jobs")
        self.pool = csrc.iopool_new(threads, jobs_max, csrc.scratch_new, csrc.scratch_free)
        if self.pool == NULL:
            raise MemoryError("no io pool thread could be started")

    def __dealloc__(self):
        with nogil:
            csrc.iopool_free(self.pool)

    def resize(self, int threads):
        """Set the number of threads; wait for jobs of surplus threads. Raises ValueError,
        MemoryError.
        """
        cdef bint resized
        if not 0 < threads <= csrc.IOPOOL_THREADS_MAX:
            raise ValueError(f"{threads} threads")
        with nogil:
            resized = csrc.iopool_resize(self.pool, threads)
        if not resized:
            raise MemoryError("io pool threads")

    def stats(self) -> dict:
        cdef uint64_t waiting, done
        csrc.iopool_stats(self.pool, &waiting, &done)
        return {"waiting": waiting, "done": done}
