from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pylog._native.server cimport csrc
from pylog._native.server.heartbeat_cache cimport Repeat, Repeats
from pylog._native.server.rate_limit cimport Throttle


cdef class Reactors


cdef class HeldBytes:
    cdef Reactors reactors
    cdef size_t size


cdef class RequestContext:
    cdef readonly uint64_t token, connection
    cdef readonly int listener, api_key, api_version, correlation_id
    cdef readonly str client_id
    cdef bytes body
    cdef readonly str local_host, peer_host
    cdef readonly int local_port, peer_port
    cdef readonly uint32_t principal
    cdef readonly int64_t began_ns
    cdef public int64_t taken_ns, parked_ns, busy_ns
    cdef public int throttle_ms, created_count
    cdef public bint cacheable, closes
    cdef public Repeat repeat
    cdef uint8_t peer_ip[16]
    cdef HeldBytes held


cdef class Miss:
    cdef readonly uint64_t token, connection
    cdef readonly uint32_t principal
    cdef readonly int right
    cdef readonly list topics
    cdef HeldBytes held


cdef class Verify:
    cdef readonly uint64_t token, connection
    cdef readonly uint32_t principal
    cdef readonly int api_version, epoch
    cdef readonly int64_t producer_id
    cdef readonly bytes transactional_id
    cdef readonly list partitions
    cdef HeldBytes held


cdef class UnknownClient:
    cdef readonly uint64_t connection
    cdef readonly uint32_t principal
    cdef readonly bytes client_id


cdef class Connected:
    cdef readonly uint64_t connection
    cdef readonly int listener
    cdef readonly str peer_host, certificate


cdef class Closed:
    cdef readonly uint64_t connection


cdef class IsrCandidate:
    cdef readonly bytes topic_id
    cdef readonly int partition, broker_id


cdef class Slow:
    cdef readonly int api_key, api_version, correlation_id
    cdef readonly bytes client_id
    cdef readonly uint64_t connection, request_bytes, response_bytes, left_out
    cdef readonly str peer
    cdef readonly int64_t total_ns, local_ns, remote_ns, send_ns


cdef class Unsafe:
    cdef readonly int listener
    cdef readonly str peer, reason
    cdef readonly uint64_t left_out


cdef class Reactors:
    cdef csrc.reactors *ptr
    cdef csrc.serve_shared *shared
    cdef object grants
    cdef object io_pool
    cdef object quotas
    cdef Throttle throttle
    cdef Repeats repeats
    cdef int _listen(self, int listener, str host, int port, int backlog, int first,
                     unsigned flags, object maker) except -1
