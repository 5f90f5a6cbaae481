"""The network threads: requests that native code does not serve itself, and their responses.

Owns: the reactors' threads, sockets and requests; the data plane's shared state (fetch sessions).
Invariants: reactor threads never touch Python; each token is answered once, later replies are
  ignored; Grants and IoPool outlive the threads.
Source: csrc/net/reactor.h.
"""

import os

import cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.errno cimport errno
from libc.stdint cimport (
    INT16_MAX, INT32_MAX, UINT32_MAX, int16_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from pylog._native.server.grants cimport Grants
from pylog._native.log.io_pool cimport IoPool
from pylog._native.server.quotas cimport Quotas
from pylog._native.server.heartbeat_cache cimport Repeats
from pylog._native.server.rate_limit cimport Throttle
from pylog._native.server cimport csrc

cdef extern from "<arpa/inet.h>" nogil:
    enum: AF_INET, AF_INET6, INET6_ADDRSTRLEN
    const char *inet_ntop(int family, const void *address, char *text, unsigned room)

POLL_EVENTS_MAX = 1024
cdef const char *MAPPED = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"
THREADS_MAX = csrc.REACTOR_THREADS_MAX
# Flags for all connections of a listener.
GUARDED = csrc.LISTENER_NEEDS_AUTH
CONTROL = csrc.LISTENER_CONTROL
ASKS = csrc.LISTENER_NEEDS_APPROVAL
SAME_SESSION = csrc.REACTOR_SAME_SESSION
# Version of a SaslAuthenticate that consists of a raw token without a header.
RAW_VERSION = csrc.GUARD_RAW_VERSION
STRANGER_BYTES_MAX = 512 << 10
# API key -> first and last version that native code serves.
NATIVE_VERSIONS = {
    csrc.API_PRODUCE: (csrc.PRODUCE_VERSION_MIN, csrc.PRODUCE_VERSION_MAX),
    csrc.API_FETCH: (csrc.FETCH_VERSION_MIN, csrc.FETCH_VERSION_MAX),
}
HOSTS_KEPT_MAX = 4096
cdef const char *MAKER = "pylog.transport_maker"


# no_gc: nothing that Reactors refers to has a HeldBytes, so it cannot be in a cycle.
@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class HeldBytes:
    """Counts the bytes of an event until the object made from it is freed. Without this count,
    clients that send long requests and close their connections could fill the memory.
    """

    def __dealloc__(self):
        if self.reactors is not None:
            csrc.reactors_dropped(self.reactors.ptr, self.size)


# no_gc: its members are numbers, bytes, text, a repeat and a HeldBytes, so it cannot be in a cycle.
@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class RequestContext:
    """A request to be answered by the control plane, and notes about its processing.

    listener: its number. client_id: None if null. began_ns: when its last byte arrived, on the
    clock of Reactors.now_ns(). Set by dispatch and handlers: taken_ns and parked_ns, when it was
    dequeued and when it started to wait; busy_ns, time spent in its handler, where that counts;
    throttle_ms, set by a handler that throttles the client itself; created_count, topics created by
    the request so far; closes: close the connection after the response; cacheable: until the image
    changes, the response is valid for all clients that send the same request to the same address;
    repeat: while it is offered, the response is valid for the same request from the same address.
    """

    def __init__(self, *, uint64_t token, int api_key, int api_version, bytes body=b"",
                 uint64_t connection=0, int listener=0, int correlation_id=0, str client_id=None,
                 str local_host="", int local_port=0, str peer_host="", int peer_port=0,
                 uint32_t principal=0, int64_t began_ns=0):
        self.token, self.connection, self.listener = token, connection, listener
        self.api_key, self.api_version, self.correlation_id = api_key, api_version, correlation_id
        self.client_id, self.body = client_id, body
        self.local_host, self.local_port = local_host, local_port
        self.peer_host, self.peer_port = peer_host, peer_port
        self.principal, self.began_ns = principal, began_ns

    def take_body(self):
        """Return the request's body, once: a waiting request does not hold its bytes."""
        cdef bytes body = self.body
        assert body is not None, self.token
        self.body = None
        return body

    def keep_body(self, bytes body not None):
        """Store the body again, for answer_again()."""
        self.body = body

    def answer_again(self, bytes frame not None):
        """Answer equal requests with `frame` from now on, within the limits of `repeat`."""
        assert self.repeat is not None, self.token
        if self.body is not None:  # Otherwise it was too long to store.
            self.repeat.add(self.principal, self.api_key, self.api_version, self.peer_ip,
                            self.client_id, self.take_body(), frame)


@cython.final
cdef class Miss:
    """A request that names topics without a grant; resume() completes it.

    topics: [(name, None) or (None, id)], in bytes. right: READ, WRITE or FOLLOW.
    """

    def __init__(self, uint64_t token, uint32_t principal, list topics, int right,
                 uint64_t connection=0):
        self.token, self.principal, self.topics = token, principal, topics
        self.right, self.connection = right, connection


@cython.final
cdef class Verify:
    """A Produce that must be verified with the transaction coordinator; resume() completes it.

    partitions: [(topic name, partition)] for the transaction, names in bytes.
    """

    def __init__(self, uint64_t token, uint32_t principal, int api_version,
                 bytes transactional_id, int64_t producer_id, int epoch, list partitions,
                 uint64_t connection=0):
        self.token, self.principal, self.api_version = token, principal, api_version
        self.connection = connection
        self.transactional_id, self.partitions = transactional_id, partitions
        self.producer_id, self.epoch = producer_id, epoch


@cython.final
cdef class UnknownClient:
    """A client that is missing in Quotas; its connection waits for retry()."""

    def __init__(self, uint64_t connection, uint32_t principal, bytes client_id):
        self.connection, self.principal, self.client_id = connection, principal, client_id


@cython.final
cdef class Connected:
    """A new connection of an ASKS listener, or of a peer with a certificate. It waits for an
    optional set_principal() and retry(), or for close_connection(). certificate: the subject (RFC
    2253, as Java formats it), "" without one.
    """

    def __init__(self, uint64_t connection, int listener, str peer_host, str certificate=""):
        self.connection, self.listener, self.peer_host = connection, listener, peer_host
        self.certificate = certificate


@cython.final
cdef class Closed:
    """A connection with set_interest() has ended."""

    def __init__(self, uint64_t connection):
        self.connection = connection


@cython.final
cdef class IsrCandidate:
    """A follower qualifies for the ISR of a partition led here, by its last fetch. Emitted once per
    replica and call of Log.set_replicas().
    """

    def __init__(self, bytes topic_id, int partition, int broker_id):
        self.topic_id, self.partition, self.broker_id = topic_id, partition, broker_id


@cython.final
cdef class Slow:
    """A request that took longer than the limit of set_slow(). peer: host:port. left_out: slow
    requests without an event because there were too many.
    """

    def __init__(self, *, int api_key, int api_version, int correlation_id, bytes client_id,
                 uint64_t connection, str peer, int64_t total_ns, int64_t local_ns,
                 int64_t remote_ns, int64_t send_ns, uint64_t request_bytes,
                 uint64_t response_bytes, uint64_t left_out):
        self.api_key, self.api_version, self.correlation_id = api_key, api_version, correlation_id
        self.client_id, self.connection, self.peer = client_id, connection, peer
        self.total_ns, self.local_ns = total_ns, local_ns
        self.remote_ns, self.send_ns = remote_ns, send_ns
        self.request_bytes, self.response_bytes = request_bytes, response_bytes
        self.left_out = left_out


@cython.final
cdef class Unsafe:
    """A connection that ended because TLS failed. peer: host:port. left_out: earlier ones without
    an event because there were too many.
    """

    def __init__(self, int listener, str peer, str reason, uint64_t left_out):
        self.listener, self.peer, self.reason = listener, peer, reason
        self.left_out = left_out


# no_gc_clear: Grants and IoPool outlive the threads, even if the collector frees all of them
# together.
@cython.final
@cython.no_gc_clear
cdef class Reactors:
    """The reactors of one broker, on any number of listeners.

    api_versions: (api key, first and last version served, first version with flexible headers or
    -1), those of Produce and Fetch within NATIVE_VERSIONS; other requests close their connection.
    idle_ms_max: -1 for no limit. queued_requests_max: limit of events not yet polled; above it,
    connections wait. control_bytes_max: limit of a request that becomes an event. input_bytes_max:
    limit of one reactor's requests; 0 is the default. fetch_bytes_max, sessions_max,
    inline_inflate_bytes, gather_ms_max: see csrc/serve/serve.h. quotas: client quotas, or None.
    unauthenticated_bytes_max: limit of a request before authentication. rack_aware: redirect
    consumers to a replica in their rack. throttle: of followers' fetches. repeats: cached responses
    that reactors send without an event, or None.
    """

    def __cinit__(self, *, grants, io_pool, network_threads, api_versions, request_bytes_max,
                  idle_ms_max, queued_requests_max, control_bytes_max=INT32_MAX,
                  input_bytes_max=0, send_buffer_bytes=-1,
                  receive_buffer_bytes=-1, fetch_bytes_max, sessions_max,
                  inline_inflate_bytes=65536, gather_ms_max=0, quotas=None,
                  unauthenticated_bytes_max=STRANGER_BYTES_MAX, rack_aware=False,
                  Throttle throttle=None, Repeats repeats=None):
        cdef csrc.reactors_config config
        cdef csrc.serve_limits limits
        if not 0 < network_threads <= THREADS_MAX:
            raise ValueError(f"network_threads is {network_threads}, not 1 to {THREADS_MAX}")
        csrc.frames_rules_init(&config.rules, request_bytes_max)
        config.rules.control_bytes_max = _at_most(control_bytes_max, INT32_MAX)
        _serve(&config.rules, api_versions)
        config.threads = network_threads
        config.queued_requests_max = _at_most(queued_requests_max, UINT32_MAX)
        config.idle_ms_max = idle_ms_max
        config.input_bytes_max = max(input_bytes_max, 0)
        config.unauthenticated_bytes_max = _at_most(unauthenticated_bytes_max, INT32_MAX)
        config.send_buffer_bytes = send_buffer_bytes
        config.receive_buffer_bytes = receive_buffer_bytes
        limits.fetch_bytes_max = _at_most(fetch_bytes_max, INT32_MAX)
        limits.sessions_max = _at_most(sessions_max, INT32_MAX)
        limits.inline_inflate_bytes = _at_most(inline_inflate_bytes, INT32_MAX)
        limits.gather_ms_max = _at_most(gather_ms_max, INT32_MAX)
        limits.rack_aware = rack_aware
        limits.throttle = NULL if throttle is None else throttle.ptr
        config.quotas = NULL if quotas is None else (<Quotas?>quotas).ptr
        config.repeats = NULL if repeats is None else repeats.ptr
        self.grants = grants
        self.io_pool = io_pool
        self.quotas = quotas
        self.throttle = throttle
        self.repeats = repeats
        self.shared = csrc.serve_shared_new((<Grants?>grants).ptr, (<IoPool?>io_pool).pool, &limits)
        if self.shared == NULL:
            raise MemoryError("reactors")
        self.ptr = csrc.reactors_new(self.shared, &config)
        if self.ptr == NULL:
            raise OSError(errno, os.strerror(errno), "reactors")

    def __dealloc__(self):
        if self.ptr != NULL:
            with nogil:
                csrc.reactors_stop(self.ptr, 0)
            csrc.reactors_free(self.ptr)
        if self.shared != NULL:
            csrc.serve_shared_free(self.shared)

    def listen(self, int listener, str host, int port, int backlog, unsigned flags=0,
               object maker=None):
        """Listen on every address of `host` ("" is every interface). Return the bound port.

        port: 0 selects a free one. Events contain `listener`. flags: GUARDED, only authentication
        until set_principal(); CONTROL, every request is an event; ASKS, each connection is
        announced with Connected. maker: for TLS (TlsServer.maker()), or None for plain text. Raises
        OSError on failure.
        """
        return self._listen(listener, host, port, backlog, 0, flags, maker)

    def join(self, int listener, str host, int port, int backlog, int first, unsigned flags=0,
             object maker=None):
        """Let the reactors from index `first` on, added by resize(), listen on a bound port too."""
        self._listen(listener, host, port, backlog, first, flags, maker)

    cdef int _listen(self, int listener, str host, int port, int backlog, int first,
                     unsigned flags, object maker) except -1:
        cdef bytes name = host.encode("idna") if not host.isascii() else host.encode()
        cdef csrc.reactors_listener wanted
        cdef int bound
        wanted.listener, wanted.port, wanted.backlog = listener, port, backlog
        wanted.host, wanted.flags = name, flags
        wanted.maker = NULL
        if maker is not None:
            wanted.maker = <csrc.transport_maker *>PyCapsule_GetPointer(maker, MAKER)
        with nogil:
            bound = csrc.reactors_join(self.ptr, &wanted, first)
        if bound < 0:
            raise OSError(-bound, os.strerror(-bound), f"{host}:{port}")
        return bound

    def unlisten(self, int listener):
        """Close a listener, and its connections after their requests are answered."""
        csrc.reactors_unlisten(self.ptr, listener)

    def set_limits(self, connections_max, connections_per_ip_max, dict overrides,
                   descriptors_max=UINT32_MAX, descriptor_end=UINT32_MAX):
        """Limit open connections. Lowering a limit closes no existing connection.

        overrides: 16-byte address (IPv4 as v4-mapped) -> limit instead of connections_per_ip_max.
        descriptors_max: a further connection replaces an idle one or is closed. descriptor_end:
        connections with this descriptor number or a higher one are closed, so that files can use
        the rest.
        """
        cdef csrc.reactors_limits limits
        limits.connections_max = _at_most(connections_max, UINT32_MAX)
        limits.connections_per_ip_max = _at_most(connections_per_ip_max, UINT32_MAX)
        limits.descriptors_max = _at_most(descriptors_max, UINT32_MAX)
        limits.descriptor_end = _at_most(descriptor_end, UINT32_MAX)
        cdef uint32_t count = len(overrides)
        cdef bytes addresses = b"".join(overrides)
        assert len(addresses) == 16 * count, overrides
        cdef const char *first = addresses
        cdef uint32_t *counts_max = <uint32_t *>malloc((count + 1) * sizeof(uint32_t))
        if counts_max == NULL:
            raise MemoryError("limits")
        try:
            for i, limit in enumerate(overrides.values()):
                counts_max[i] = _at_most(limit, UINT32_MAX)
            if not csrc.reactors_set_overrides(self.ptr, <const uint8_t *>first, counts_max, count):
                raise MemoryError("limits")
        finally:
            free(counts_max)
        csrc.reactors_set_limits(self.ptr, &limits)

    def set_listener_limit(self, int listener, connections_max):
        """Limit the open connections of one listener. Lowering the limit closes no existing
        connection.

        listener: its number as in listen(), which may be called later. Raises MemoryError.
        """
        if not csrc.reactors_set_listener_limit(self.ptr, listener,
                                                _at_most(connections_max, UINT32_MAX)):
            raise MemoryError("limits")

    @property
    def threads(self):
        """The number of reactors that accept connections."""
        return csrc.reactors_threads(self.ptr)

    def resize(self, int threads):
        """Change the number of running reactors; one caller at a time. Call join() for new ones to
        listen.

        The connections of surplus reactors close after their requests are answered. Raises OSError
        if no more threads can be created; some may have been added.
        """
        if not 0 < threads <= THREADS_MAX:
            raise ValueError(f"{threads} is not 1 to {THREADS_MAX}")
        cdef int error
        with nogil:
            error = csrc.reactors_resize(self.ptr, threads)
        if error < 0:
            raise OSError(-error, os.strerror(-error), "reactors")

    def start(self):
        """Start the threads, once. Raises OSError if none can be created."""
        cdef int error = csrc.reactors_start(self.ptr)
        if error < 0:
            raise OSError(-error, os.strerror(-error), "reactors")

    def fileno(self):
        """Return a descriptor that is readable if poll() has events."""
        return csrc.events_fd(csrc.reactors_events(self.ptr))

    def poll(self):
        """Return the events received so far, oldest first, at most POLL_EVENTS_MAX; never block.
        Each is a RequestContext, Miss, Verify, UnknownClient, Connected, Closed, Slow, Unsafe or
        IsrCandidate.
        """
        cdef csrc.event *e = csrc.events_take(csrc.reactors_events(self.ptr), POLL_EVENTS_MAX)
        cdef csrc.event *next_event
        cdef list taken = []
        cdef HeldBytes held
        try:
            while e != NULL:
                held = _hold(self, e)
                if e.kind == csrc.EVENT_ISR_CANDIDATE:
                    taken += _isr_candidates(e)
                else:
                    taken.append(_event(e, held))
                next_event = e.next
                free(e)
                e = next_event
        finally:
            # Events remain only if memory ran out. Their connections end after the idle limit.
            while e != NULL:
                next_event = e.next
                csrc.reactors_dropped(self.ptr, e.data_len)
                free(e)
                e = next_event
        csrc.reactors_events_consumed(self.ptr)
        return taken

    def reply(self, uint64_t token, bytes frame, bint close=False, int throttle_ms=0):
        """Answer a request with a complete frame, including its size; None sends nothing.

        close: closes the connection afterwards. throttle_ms: how long to mute the connection.
        """
        cdef const uint8_t *data = NULL
        cdef size_t size = 0
        if frame is not None:
            data = frame
            size = len(frame)
        if not csrc.reactors_reply(self.ptr, token, data, size, close, throttle_ms):
            raise MemoryError("reply")

    def queue_reply(self, uint64_t token, bytes frame not None, int correlation_id,
                    int throttle_ms=0):
        """Same as reply(), but sent with flush_replies() at the latest: one wake-up for many
        responses.

        correlation_id: replaces the frame's.
        """
        if not csrc.reactors_queue_reply(
                self.ptr, token, frame, len(frame), correlation_id, throttle_ms):
            raise MemoryError("reply")

    def flush_replies(self):
        """Send the queued replies. Must run on the thread of poll()."""
        csrc.reactors_flush_replies(self.ptr)

    def resume(self, uint64_t token, list errors):
        """Complete a miss: an error code per missing topic in order, 0 if granted."""
        cdef uint32_t count = len(errors)
        cdef int16_t *codes = <int16_t *>malloc((count + 1) * sizeof(int16_t))
        if codes == NULL:
            raise MemoryError("resume")
        try:
            for i in range(count):
                codes[i] = errors[i]
            if not csrc.reactors_resume(self.ptr, token, codes, count):
                raise MemoryError("resume")
        finally:
            free(codes)

    def retry(self, uint64_t connection):
        """Continue a connection after installing the client of its UnknownClient event."""
        csrc.reactors_retry(self.ptr, connection)

    def set_principal(self, uint64_t connection, uint32_t principal, int session_ms=0):
        """Set the principal for the connection's next requests. session_ms: reauthentication is due
        after this time, if not 0; SAME_SESSION keeps the earlier deadline.
        """
        csrc.reactors_set_principal(self.ptr, connection, principal, session_ms)

    def set_interest(self, uint64_t connection):
        """Request a Closed event for this connection."""
        csrc.reactors_watch(self.ptr, connection)

    def close_connection(self, uint64_t connection):
        """Close a connection and abandon its waiting requests."""
        csrc.reactors_close(self.ptr, connection)

    def set_wall_ahead(self, int64_t ahead_ms):
        """Set the offset of the wall clock for timestamps and retention from the system's.
        Deadlines are not affected.
        """
        csrc.serve_shared_set_wall_ahead(self.shared, ahead_ms)

    def stop_accepting(self):
        """Close the listening sockets; connections stay open."""
        csrc.reactors_stop_accepting(self.ptr)

    def stop(self, long long drain_ms):
        """Start no more requests, answer those in progress within drain_ms, then close everything.

        Blocks until done. Another thread may continue to call poll() and reply().
        """
        with nogil:
            csrc.reactors_stop(self.ptr, drain_ms)

    def now_ns(self):
        """Return CLOCK_MONOTONIC in ns."""
        return csrc.reactors_now_ns()

    def answered(self, int api_key, int64_t queue_ns, int64_t local_ns, int64_t remote_ns,
                 int error_code):
        """Record metrics that only the control plane has for a request. Must run on the thread of
        poll().
        """
        assert 0 <= api_key < csrc.FRAMES_API_KEYS_MAX, api_key
        csrc.reactors_meter_control(self.ptr, api_key, queue_ns, local_ns, remote_ns, error_code)

    def set_slow(self, int64_t slow_ms):
        """Report requests that take longer as Slow events, a few per second; -1: none."""
        csrc.reactors_set_slow(self.ptr, slow_ms)

    def stats(self):
        """Return counters since the start and current gauges, by name."""
        cdef int i = 0
        cdef uint64_t sessions
        cdef dict out = {}
        while csrc.reactors_stat_name(i) != NULL:
            out[csrc.reactors_stat_name(i).decode()] = csrc.reactors_stat(self.ptr, i)
            i += 1
        csrc.serve_shared_stats(self.shared, &sessions)
        out["fetch_sessions"] = sessions
        return out


cdef int _serve(csrc.frames_rules *rules, object versions) except -1:
    cdef csrc.frames_versions *api
    for key, first, last, flexible_from in versions:
        if not 0 <= key < csrc.FRAMES_API_KEYS_MAX:
            raise ValueError(f"api key {key}")
        native_first, native_last = NATIVE_VERSIONS.get(key, (first, last))
        if first < native_first or last > native_last:
            raise ValueError(f"api key {key} is to be served at versions {first} to {last}; "
                             f"native code has {native_first} to {native_last}")
        api = &rules.apis[<int>key]
        api.min, api.max = first, last
        api.flexible_from = flexible_from if flexible_from >= 0 else INT16_MAX
    return 0


cdef object _at_most(object value, object limit):
    return min(max(value, 0), limit)


# Texts of recent addresses: formatting one costs more than the rest of an event.
cdef dict _hosts = {}


cdef str _host(const csrc.event_address *address):
    cdef bytes ip = PyBytes_FromStringAndSize(<const char *>address.ip, 16)
    found = _hosts.get(ip)
    if found is None:
        if len(_hosts) >= HOSTS_KEPT_MAX:
            _hosts.clear()
        found = _hosts[ip] = _host_text(<const uint8_t *>ip)
    return found


cdef str _host_text(const uint8_t *ip):
    cdef char text[64]
    if memcmp(ip, MAPPED, 12) == 0:
        inet_ntop(AF_INET, ip + 12, text, sizeof(text))
    else:
        inet_ntop(AF_INET6, ip, text, sizeof(text))
    return text.decode("ascii")


cdef bytes _bytes(const csrc.event *e, size_t at, size_t size):
    return PyBytes_FromStringAndSize(<const char *>e.data + at, <Py_ssize_t>size)


cdef str _text(const csrc.event *e):
    return _bytes(e, 0, e.body_len).decode("utf-8", "replace")


cdef list _missing(const csrc.event *e):
    cdef const csrc.event_missing *m = <const csrc.event_missing *><const void *>e.data
    cdef list out = []
    for i in range(e.missing_count):
        if m[i].name_len >= 0:
            out.append((_bytes(e, m[i].name_at, m[i].name_len), None))
        else:
            out.append((None, PyBytes_FromStringAndSize(<const char *>m[i].id, 16)))
    return out


cdef list _isr_candidates(const csrc.event *e):
    cdef const csrc.isr_candidate *candidates = <const csrc.isr_candidate *><const void *>e.data
    return [IsrCandidate(PyBytes_FromStringAndSize(<const char *>candidates[i].topic_id, 16),
                    candidates[i].partition, candidates[i].broker) for i in range(e.missing_count)]


cdef HeldBytes _hold(Reactors reactors, csrc.event *e):
    """Take over the count of an event's bytes."""
    cdef HeldBytes made = HeldBytes.__new__(HeldBytes)
    made.reactors, made.size = reactors, e.data_len
    e.data_len = 0
    return made


cdef Verify _verify(const csrc.event *e):
    cdef const csrc.event_missing *m = <const csrc.event_missing *><const void *>e.data
    cdef csrc.event_verify asked
    memcpy(&asked, e.data + e.body_at, sizeof(asked))
    return Verify(
        e.token, e.principal, e.api_version,
        _bytes(e, e.body_at + sizeof(asked), asked.id_len), asked.producer_id, asked.epoch,
        [(_bytes(e, m[i].name_at, m[i].name_len), m[i].partition)
         for i in range(e.missing_count)], e.connection)


cdef Slow _slow(const csrc.event *e):
    cdef const csrc.event_slow *s = <const csrc.event_slow *><const void *>e.data
    return Slow(
        api_key=e.api_key, api_version=e.api_version, correlation_id=e.correlation_id,
        client_id=_bytes(e, sizeof(csrc.event_slow), e.client_id_len), connection=e.connection,
        peer=f"{_host(&e.peer)}:{e.peer.port}", total_ns=s.total_ns, local_ns=s.local_ns,
        remote_ns=s.remote_ns, send_ns=s.send_ns, request_bytes=s.request_bytes,
        response_bytes=s.response_bytes, left_out=s.left_out)


cdef RequestContext _request(const csrc.event *e):
    cdef RequestContext made = RequestContext.__new__(RequestContext)
    made.token, made.connection, made.listener = e.token, e.connection, e.listener
    made.api_key, made.api_version = e.api_key, e.api_version
    made.correlation_id = e.correlation_id
    if e.client_id_len >= 0:
        made.client_id = (<const char *>e.data)[:e.client_id_len].decode("utf-8", "replace")
    made.body = _bytes(e, e.body_at, e.body_len)
    made.local_host, made.local_port = _host(&e.local), e.local.port
    made.peer_host, made.peer_port = _host(&e.peer), e.peer.port
    memcpy(made.peer_ip, e.peer.ip, sizeof(made.peer_ip))
    made.principal, made.began_ns = e.principal, e.began_ns
    return made


cdef object _event(const csrc.event *e, HeldBytes held):
    cdef RequestContext request
    cdef Miss miss
    cdef Verify verify
    if e.kind == csrc.EVENT_CLOSED:
        return Closed(e.connection)
    if e.kind == csrc.EVENT_QUOTA:
        return UnknownClient(e.connection, e.principal, _bytes(e, 0, e.client_id_len))
    if e.kind == csrc.EVENT_MISS:
        miss = Miss(e.token, e.principal, _missing(e), e.right, e.connection)
        miss.held = held
        return miss
    if e.kind == csrc.EVENT_CONNECTED:
        return Connected(e.connection, e.listener, _host(&e.peer), _text(e))
    if e.kind == csrc.EVENT_VERIFY:
        verify = _verify(e)
        verify.held = held
        return verify
    if e.kind == csrc.EVENT_SLOW:
        return _slow(e)
    if e.kind == csrc.EVENT_UNSAFE:
        return Unsafe(e.listener, f"{_host(&e.peer)}:{e.peer.port}", _text(e), e.missing_count)
    request = _request(e)
    request.held = held
    return request
