"""Moves a log to another log directory of its node, or makes a branch of it.

Owns: nothing; both Logs own their files.
Invariants: csrc/log/log.h's. The GIL is released around every call.
Source: KIP-113 (replicas move between log directories).
"""

from libc.stdint cimport int64_t

from pylog._native.log cimport csrc
from pylog._native.log.log cimport Log


def rename(Log log not None, str name not None):
    """Rename the log's directory. Raises StorageError."""
    cdef bytes raw = name.encode()
    cdef const char *c_name = raw
    cdef int error
    log.use()
    with nogil:
        error = csrc.log_rename(log.ptr, c_name)
    if error != 0:
        log.refuse(error)


def seal(Log log not None, int64_t now_ms):
    """Start a new segment unless the last one is empty. Raises LogError."""
    cdef int error
    log.use()
    with nogil:
        error = csrc.log_seal(log.ptr, now_ms)
    if error != 0:
        log.refuse(error)


def copy(Log source not None, Log to not None, int64_t bytes_max, int64_t now_ms):
    """Append about bytes_max missing bytes to `to`. Return (True if more are missing, bytes skipped
    because they were not valid batches). Raises LogError.
    """
    cdef int result
    cdef int64_t damaged
    source.use()
    to.use()
    with nogil:
        result = csrc.log_copy(source.ptr, to.ptr, bytes_max, now_ms, &damaged)
    if result < 0:
        to.refuse(result)
    return result == 1, damaged


def hand_over(Log source not None, Log to not None, int64_t now_ms):
    """Copy the rest and flush it while `source` accepts no appends. `source` then stops leading.

    Returns the bytes skipped because they were not valid batches. Raises LogError: `source` then
    continues.
    """
    cdef int error
    cdef int64_t damaged
    source.use()
    to.use()
    with nogil:
        error = csrc.log_hand_over(source.ptr, to.ptr, now_ms, &damaged)
    if error != 0:
        to.refuse(error)
    return damaged
