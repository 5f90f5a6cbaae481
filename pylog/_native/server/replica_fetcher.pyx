"""Fetcher threads, which copy leaders' records to the logs of followers.

Owns: the fetcher threads and the connections attached to them.
Invariants: the threads never touch Python; a log's directory outlives every thread that appends to
  the log; nothing is appended after stop().
Source: csrc/replica/fetcher_pool.h.
"""

import os

import cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.errno cimport errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memset

from pylog._native.log.log cimport Log
from pylog._native.server.rate_limit cimport Throttle
from pylog._native.server cimport csrc as c

REFUSED = c.FETCHERS_REFUSED
DIVERGED = c.FETCHERS_DIVERGED
OUT_OF_RANGE = c.FETCHERS_OUT_OF_RANGE
FAILED = c.FETCHERS_FAILED
LOST = c.FETCHERS_LOST
FETCHING = c.FETCH_PARTITION_FETCHING
BACKING_OFF = c.FETCH_PARTITION_BACKING_OFF
WAITING = c.FETCH_PARTITION_WAITING
LEFT = c.FETCH_PARTITION_LEFT
THREADS_MAX = c.FETCHERS_THREADS_MAX
VERSION_MIN = c.RESPONSE_VERSION_MIN
VERSION_MAX = c.RESPONSE_VERSION_MAX
cdef enum:
    NOTICES = 64


@cython.final
cdef class Notice:
    """An event that a fetcher thread cannot handle itself. kind: REFUSED and so on.

    token: of follow(), or the serial of a LOST connection. code: Kafka's error, or a negative error
    of the local log; an errno for LOST. leader_id, leader_epoch: the leader according to the
    responding broker, -1 if not given. epoch, end_offset: for DIVERGED.
    """

    def __init__(self, int kind, uint64_t token, int code, int32_t epoch, int64_t end_offset,
                 int32_t leader_id, int32_t leader_epoch):
        self.kind, self.token, self.code = kind, token, code
        self.epoch, self.end_offset = epoch, end_offset
        self.leader_id, self.leader_epoch = leader_id, leader_epoch


@cython.final
@cython.no_gc
cdef class Followed:
    """One partition that a thread follows."""

    def __init__(self):
        raise TypeError("Fetchers.follow makes them")

    def __dealloc__(self):
        if self.ptr != NULL:
            with nogil:
                c.fetch_partition_release(self.ptr)

    def figures(self) -> tuple:
        """Return (records behind the leader's high watermark or -1, CLOCK_MONOTONIC in ns of the
        last successful response or 0, state).
        """
        cdef c.fetch_partition_stats figures
        c.fetch_partition_read_stats(self.ptr, &figures)
        return figures.lag, figures.answered_ns, figures.state


# no_gc: clearing the fields of a cycle in any order would empty `directories`, and free the memory
# of the logs before the threads have ended. Nothing here refers back to this object.
@cython.final
@cython.no_gc
cdef class Fetchers:
    """The fetcher threads of one broker. Times are in milliseconds.

    flush_first: fetch offsets advance only after a flush. throttle: counts fetched bytes. See
    csrc/replica/fetcher_pool.h.
    """

    def __cinit__(self, *, int threads, int32_t replica_id, wait_ms_max, bytes_min, bytes_max,
                  partition_bytes_max, backoff_ms_max, answer_ms_max,
                  bint flush_first=False, Throttle throttle=None):
        cdef c.fetchers_config config
        if not 0 < threads <= c.FETCHERS_THREADS_MAX:
            raise ValueError(f"{threads} fetcher threads, not 1 to {c.FETCHERS_THREADS_MAX}")
        config.threads = threads
        config.replica_id = replica_id
        config.wait_ms_max = wait_ms_max
        config.bytes_min = bytes_min
        config.bytes_max = bytes_max
        config.partition_bytes_max = partition_bytes_max
        config.backoff_ms_max = backoff_ms_max
        config.answer_ms_max = answer_ms_max
        config.flush_first = flush_first
        config.throttle = NULL if throttle is None else throttle.ptr
        self.throttle = throttle
        self.threads = threads
        self.directories = set()
        self.ptr = c.fetchers_new(&config)
        if self.ptr == NULL:
            raise OSError(errno, os.strerror(errno), "fetchers")

    def __dealloc__(self):
        if self.ptr != NULL:
            with nogil:
                c.fetchers_stop(self.ptr)
                c.fetchers_free(self.ptr)

    def start(self):
        """Start the threads. Raises OSError if a thread cannot be created."""
        cdef int error = c.fetchers_start(self.ptr)
        if error != 0:
            raise OSError(-error, os.strerror(-error), "fetchers")

    def stop(self):
        """Stop the threads and close their connections. Nothing is appended afterwards."""
        with nogil:
            c.fetchers_stop(self.ptr)

    def set_broker_epoch(self, int64_t broker_epoch):
        c.fetchers_set_broker_epoch(self.ptr, broker_epoch)

    def thread_of(self, bytes topic_id, int32_t partition) -> int:
        """Return the index of the thread that follows this partition."""
        assert len(topic_id) == 16, topic_id
        return c.fetchers_thread_of(self.ptr, topic_id, partition)

    def follow(self, Log log not None, bytes topic_id, int32_t partition, int32_t leader_id,
               int32_t leader_epoch, uint64_t token) -> Followed:
        """Copy the leader's records to `log` until unfollow()."""
        cdef Followed made = Followed.__new__(Followed)
        assert len(topic_id) == 16, topic_id
        log.use()
        self.directories.add(log.log_dir)
        made.ptr = c.fetchers_follow(self.ptr, log.ptr, topic_id, partition, leader_id,
                                     leader_epoch, token)
        if made.ptr == NULL:
            raise MemoryError("a followed partition")
        return made

    def unfollow(self, Followed followed not None):
        """Stop following; call it once. A response in progress may still be appended."""
        c.fetchers_unfollow(self.ptr, followed.ptr)

    def resume(self, Followed followed not None):
        """Continue from the log's end after DIVERGED, OUT_OF_RANGE or FAILED."""
        c.fetchers_resume(self.ptr, followed.ptr)

    def attach(self, int thread, int32_t leader_id, int fd, int16_t version, uint64_t serial,
               tls=None):
        """Pass a connected socket to a thread, for this leader. The thread owns the descriptor.

        tls: the result of TlsSession.give() for that descriptor; None for plain text.
        """
        cdef c.transport to
        cdef c.transport *given
        assert 0 <= thread < self.threads, thread
        assert c.RESPONSE_VERSION_MIN <= version <= c.RESPONSE_VERSION_MAX, version
        memset(&to, 0, sizeof(to))
        to.calls = &c.transport_plain
        if tls is not None:
            given = <c.transport *>PyCapsule_GetPointer(tls, "pylog.transport")
            assert given.session != NULL, "given before"
            to = given[0]
            given.session = NULL
        to.fd = fd
        if not c.fetchers_attach(self.ptr, thread, leader_id, &to, version, serial):
            raise MemoryError("a connection")

    def detach(self, int thread, int32_t leader_id):
        """Close the connection, if there is one, without a notice."""
        assert 0 <= thread < self.threads, thread
        if not c.fetchers_detach(self.ptr, thread, leader_id):
            raise MemoryError("a connection")

    def fileno(self) -> int:
        return c.fetchers_fd(self.ptr)

    def take(self) -> list:
        """Return the notices since the last call."""
        cdef c.fetchers_notice notices[NOTICES]
        cdef c.fetchers_notice *n
        cdef uint32_t count, i
        found = []
        while True:
            count = c.fetchers_take(self.ptr, notices, NOTICES)
            for i in range(count):
                n = &notices[i]
                found.append(Notice(<int>n.kind, n.token, n.code, n.epoch, n.end_offset,
                                    n.leader_id, n.leader_epoch))
            if count == 0:
                return found

    def stats(self) -> dict:
        """Return counters since the start: requests, answers, bytes_in, batches_bytes, refusals,
        connections_lost.
        """
        cdef c.fetchers_stats figures
        c.fetchers_read_stats(self.ptr, &figures)
        return figures
