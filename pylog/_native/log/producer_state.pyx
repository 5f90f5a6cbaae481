"""A partition log's state of a producer.

Owns: nothing.
Invariants: each result is a consistent snapshot; appends continue in between.
Source: csrc/log/log.h (log_producer_of, log_verify_producer).
"""

from libc.stdint cimport int16_t, int64_t, uint64_t

from pylog._native.log.log cimport Log
from pylog._native.log cimport csrc as c

from pylog._native.log.log import error_of

HEAD_BYTES = c.PRODUCERS_HEAD_BYTES  # Of a .snapshot file, before its first producer.


def producer_of(Log log not None, int64_t producer_id, int64_t now_ms=0) -> tuple:
    """Return (epoch, coordinator epoch, first offset of its open transaction, offset of its newest
    marker since the log was opened), each -1 if there is none. Raises LogError.
    """
    cdef c.log_producer found
    cdef bint known
    log.use()
    with nogil:
        known = c.log_producer_of(log.ptr, producer_id, now_ms, &found)
    if not known:
        raise error_of(c.LOG_E_IO, f"{log.topic}-{log.partition}")
    return (found.epoch, found.coordinator_epoch, found.transaction_first_offset,
            found.last_marker)


def verify_producer(Log log not None, int64_t producer_id, int16_t epoch, uint64_t holder):
    """Record that the partition is in the producer's open transaction. Until its marker, Produce
    requests of the holder (Grants.holder) need no further verification by the coordinator. Does
    nothing if the log has no state of the producer.
    """
    assert producer_id >= 0 and epoch >= 0, (producer_id, epoch)
    log.use()
    with nogil:
        c.log_verify_producer(log.ptr, producer_id, epoch, holder)
