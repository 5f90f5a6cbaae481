"""The C declarations for this folder, one section per header; the headers hold the contracts."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from pylog._native.records.csrc cimport inflater, inflater_free, inflater_new
from pylog._native.log.csrc cimport (
    LOG_E_OFFLINE, METER_BUCKETS, METER_BYTES_FIRST, METER_ERRORS, METER_KINDS, METER_NS_FIRST,
    iopool, log_dir_flush_times, log_error_code, log_stats, log_read_stats, log_release,
    log_retain, log_t, log_time_of, meter_api_stats, meter_stats,
)

# ---- prometheus_text.h
cdef extern from "os/prometheus_text.h" nogil:
    struct exposition:
        char *bytes
        size_t len
        bint failed
    struct exposition_rows:
        const char *labels
        const size_t *ends
        size_t count
    void exposition_clear(exposition *e)
    void exposition_put(exposition *e, const char *bytes, size_t len)
    void exposition_integers(exposition *e, const char *name, size_t name_len,
                             const exposition_rows *rows, const int64_t *values, size_t stride)
    void exposition_thousandths(exposition *e, const char *name, size_t name_len,
                                const exposition_rows *rows, const int64_t *values, size_t stride)

# ---- grants.h
cdef extern from "tables/grants.h" nogil:
    enum: GRANT_READ, GRANT_WRITE, GRANT_FOLLOW
    struct topic:
        int16_t absent_error
        int32_t partition_count
    struct grants
    grants *grants_new(uint32_t topics_max)
    void grants_free(grants *g)
    topic *topic_new(const char *name, const uint8_t *id, bint internal, log_t **partitions,
                     int32_t count)
    void topic_release(topic *t)
    struct topic_leader:
        int32_t id, epoch
    bint topic_set_leaders(topic *t, const topic_leader *leaders)
    struct nodes
    void grants_set_nodes(grants *g, nodes *nodes)
    int grants_install(grants *g, topic *t)
    void grants_remove(grants *g, const char *name, uint16_t name_len)
    int grants_allow(grants *g, uint32_t principal, const uint8_t *id, uint8_t rights)
    void grants_void(grants *g)
    uint64_t grants_holder(grants *g, uint32_t principal)

# ---- rate_limit.h
cdef extern from "os/rate_limit.h" nogil:
    int64_t THROTTLE_NONE
    struct throttle
    throttle *throttle_new(uint32_t samples, int64_t window_ms)
    void throttle_free(throttle *t)
    void throttle_set(throttle *t, int64_t bytes_per_second)
    bint throttle_is_over(throttle *t, int64_t now_ms)
    void throttle_count(throttle *t, int64_t count, int64_t now_ms)
    double throttle_rate(throttle *t, int64_t now_ms)

# ---- heartbeat_cache.h
cdef extern from "tables/heartbeat_cache.h" nogil:
    struct repeat_key:
        const uint8_t *client_id
        const uint8_t *body
        size_t body_len
        int32_t client_id_len
        uint32_t principal
        int16_t api_key, api_version
        const uint8_t *address
    struct repeats:
        pass
    struct repeat:
        pass
    repeats *repeats_new(uint32_t seed)
    void repeats_free(repeats *rs)
    repeat *repeats_add(repeats *rs, const repeat_key *key, const uint8_t *frame, size_t len,
                        int64_t until_ms)
    int64_t repeats_end(repeats *rs, repeat *e)
    int64_t repeats_last_ms(repeats *rs, repeat *e, int64_t after_ms)
    void repeats_void(repeats *rs)
    uint32_t repeats_count(repeats *rs)

# ---- quotas.h
cdef extern from "tables/quotas.h" nogil:
    enum quota_kind:
        QUOTA_PRODUCE, QUOTA_FETCH, QUOTA_REQUEST
    enum: QUOTA_KINDS
    struct quotas:
        pass
    struct quota_client:
        pass
    struct quota_limit:
        const uint8_t *key
        uint32_t key_len
        double per_second
    struct quota_address:
        uint8_t ip[16]
        double per_second
    int quotas_set_addresses(quotas *q, const quota_address *addresses, uint32_t count,
                             double others)
    int32_t quotas_connection(quotas *q, const uint8_t *ip, int64_t now_ms)
    quotas *quotas_new(uint32_t samples, int64_t window_ms)
    void quotas_free(quotas *q)
    void quotas_void(quotas *q, bint enabled)
    int quotas_install(quotas *q, uint32_t principal, const uint8_t *client_id, uint32_t len,
                       const quota_limit *limits, int64_t now_ms)
    void quotas_count(quotas *q, uint32_t *clients, uint32_t *rates)
    uint64_t quotas_throttled(quotas *q, const uint8_t *client_id, uint32_t len, int64_t since_ms)
    quota_client *quotas_client(quotas *q, uint32_t principal, const uint8_t *client_id,
                                uint32_t len)
    void quota_client_release(quota_client *c)
    int32_t quota_client_charge(quota_client *c, quota_kind kind, double value, int64_t now_ms)
    int32_t quota_client_charge_fetch(quota_client *c, double value, int64_t now_ms)
    int32_t quota_client_fetch_max(quota_client *c, int32_t most)

# ---- events.h
cdef extern from "net/events.h" nogil:
    enum: EVENT_REQUEST, EVENT_MISS, EVENT_CLOSED, EVENT_QUOTA, EVENT_SLOW
    enum: EVENT_CONNECTED, EVENT_UNSAFE, EVENT_VERIFY, EVENT_ISR_CANDIDATE
    struct event_address:
        uint8_t ip[16]
        uint16_t port
    struct event_missing:
        uint32_t name_at
        int32_t name_len
        uint8_t id[16]
        int32_t partition
    struct event_verify:
        int64_t producer_id
        int32_t id_len
        int16_t epoch
    struct event_slow:
        int64_t total_ns, local_ns, remote_ns, send_ns
        uint64_t request_bytes, response_bytes
        uint32_t left_out
    struct event:
        event *next
        uint64_t token, connection
        int64_t began_ns
        uint32_t kind, principal
        int32_t listener, correlation_id, client_id_len
        int16_t api_key, api_version
        uint8_t right
        event_address local, peer
        uint32_t missing_count
        size_t body_at, body_len, data_len
        uint8_t *data
    struct events:
        pass
    int events_fd(const events *e)
    event *events_take(events *e, uint32_t count_max)

# ---- broker_endpoints.h
cdef extern from "tables/broker_endpoints.h" nogil:
    struct node:
        int32_t listener, id, port
        const char *host
        const char *rack
    nodes *nodes_new(const node *of, uint32_t count)

# ---- frames.h
cdef extern from "net/frames.h" nogil:
    enum: FRAMES_API_KEYS_MAX
    struct frames_versions:
        int16_t min, max, flexible_from
    struct frames_rules:
        frames_versions *apis
        int32_t control_bytes_max
    void frames_rules_init(frames_rules *rules, int32_t request_bytes_max)

# ---- api_keys.h
cdef extern from "serve/api_keys.h" nogil:
    enum: API_PRODUCE, API_FETCH
    enum: PRODUCE_VERSION_MIN, PRODUCE_VERSION_MAX, FETCH_VERSION_MIN, FETCH_VERSION_MAX

# ---- serve.h
cdef extern from "serve/serve.h" nogil:
    struct serve_limits:
        int32_t fetch_bytes_max, sessions_max, inline_inflate_bytes, gather_ms_max
        bint rack_aware
        throttle *throttle
    struct isr_candidate:
        uint8_t *topic_id
        int32_t partition, broker
    struct serve_shared:
        pass
    serve_shared *serve_shared_new(grants *grants, iopool *pool, const serve_limits *limits)
    void serve_shared_free(serve_shared *shared)
    void serve_shared_set_wall_ahead(serve_shared *shared, int64_t ahead_ms)
    void serve_shared_stats(serve_shared *shared, uint64_t *sessions)

# ---- transport.h
cdef extern from "transport/transport.h" nogil:
    enum: TRANSPORT_TEXT_BYTES
    enum transport_shake:
        TRANSPORT_FAILED, TRANSPORT_WAITS, TRANSPORT_SAFE
    struct transport_report:
        char text[TRANSPORT_TEXT_BYTES]
    struct iovec:
        void *iov_base
        size_t iov_len
    struct transport
    struct transport_calls:
        ssize_t (*recv)(transport *t, void *to, size_t room) noexcept nogil
        ssize_t (*send)(transport *t, iovec *pieces, size_t count, bint more) noexcept nogil
        transport_shake (*handshake)(transport *t, transport_report *out) noexcept nogil
        const char *(*failure)(const transport *t) noexcept nogil
        void (*end)(transport *t) noexcept nogil
    struct transport:
        const transport_calls *calls
        int fd
        bint left
        void *session
    const transport_calls transport_plain
    struct transport_maker:
        void (*retain)(transport_maker *m)
        void (*release)(transport_maker *m)

# ---- tls_context.h
cdef extern from "transport/tls_context.h" nogil:
    enum: TLS_WHY_BYTES
    enum tls_client_auth:
        TLS_CLIENT_NONE
        TLS_CLIENT_REQUESTED
        TLS_CLIENT_REQUIRED
    struct tls_settings:
        const char *chain
        const char *key
        const char *key_password
        const char *trusted
        const char *revoked
        const char *ciphers
        int version_min, version_max
        tls_client_auth client_auth
        bint connects
    struct tls:
        pass
    bint transport_tls_connect(tls *context, transport *t, const char *host, bint checked)
    tls *tls_new(const tls_settings *settings, char *why)
    void tls_release(tls *context)
    struct tls_server:
        pass
    tls_server *tls_server_new()
    void tls_server_use(tls_server *server, tls *context)
    transport_maker *tls_server_maker(tls_server *server)
    void tls_server_release(tls_server *server)
    struct tls_store:
        char *key
        char *chain
        char *trusted
    bint tls_store_open(const void *data, size_t size, const char *password, tls_store *out,
                        char *why)
    void tls_store_close(tls_store *store)
    const char *tls_library()

# ---- reactor.h
cdef extern from "net/reactor.h" nogil:
    enum: REACTOR_THREADS_MAX, GUARD_RAW_VERSION
    enum: LISTENER_NEEDS_AUTH, LISTENER_CONTROL, LISTENER_NEEDS_APPROVAL
    enum: REACTOR_SAME_SESSION
    struct reactors_config:
        frames_rules rules
        int threads
        uint32_t queued_requests_max
        int64_t idle_ms_max
        uint64_t input_bytes_max
        int32_t unauthenticated_bytes_max
        int send_buffer_bytes, receive_buffer_bytes
        quotas *quotas
        repeats *repeats
    struct reactors_limits:
        uint32_t connections_max, connections_per_ip_max, descriptors_max, descriptor_end
    struct reactors:
        pass
    reactors *reactors_new(serve_shared *shared, const reactors_config *config)
    void reactors_free(reactors *rs)
    struct reactors_listener:
        int listener, port, backlog
        unsigned flags
        const char *host
        transport_maker *maker
    int reactors_join(reactors *rs, const reactors_listener *l, int first)
    void reactors_unlisten(reactors *rs, int listener)
    void reactors_set_limits(reactors *rs, const reactors_limits *limits)
    bint reactors_set_listener_limit(reactors *rs, int listener, uint32_t connections_max)
    bint reactors_set_overrides(reactors *rs, const uint8_t *addresses,
                                const uint32_t *counts_max, uint32_t count)
    int reactors_resize(reactors *rs, int threads)
    int reactors_threads(const reactors *rs)
    int reactors_start(reactors *rs)
    events *reactors_events(reactors *rs)
    void reactors_events_consumed(reactors *rs)
    void reactors_dropped(reactors *rs, size_t size)
    bint reactors_reply(reactors *rs, uint64_t token, const uint8_t *frame, size_t len, bint close,
                        int32_t throttle_ms)
    bint reactors_queue_reply(reactors *rs, uint64_t token, const uint8_t *frame, size_t len,
                              int32_t correlation_id, int32_t throttle_ms)
    void reactors_flush_replies(reactors *rs)
    void reactors_retry(reactors *rs, uint64_t connection)
    bint reactors_resume(reactors *rs, uint64_t token, const int16_t *errors, uint32_t count)
    void reactors_set_principal(reactors *rs, uint64_t connection, uint32_t principal,
                                int32_t session_ms)
    void reactors_watch(reactors *rs, uint64_t connection)
    void reactors_close(reactors *rs, uint64_t connection)
    void reactors_stop_accepting(reactors *rs)
    void reactors_stop(reactors *rs, int64_t drain_ms)
    const char *reactors_stat_name(int i)
    uint64_t reactors_stat(reactors *rs, int i)
    void reactors_meter(reactors *rs, int api_key, meter_api_stats *out)
    void reactors_rounds(reactors *rs, meter_stats *out)
    void reactors_meter_control(reactors *rs, int api_key, int64_t queue_ns, int64_t local_ns,
                                int64_t remote_ns, int error_code)
    void reactors_set_slow(reactors *rs, int64_t slow_ms)
    int64_t reactors_now_ns()

# ---- fetcher_pool.h
cdef extern from "replica/fetcher_pool.h" nogil:
    enum: FETCHERS_THREADS_MAX, FETCHERS_REFUSED, FETCHERS_DIVERGED, FETCHERS_OUT_OF_RANGE
    enum: FETCHERS_FAILED, FETCHERS_LOST
    enum: FETCH_PARTITION_FETCHING, FETCH_PARTITION_BACKING_OFF
    enum: FETCH_PARTITION_WAITING, FETCH_PARTITION_LEFT
    struct fetchers
    struct fetch_partition
    struct fetchers_config:
        int threads
        int32_t replica_id, wait_ms_max, bytes_min, bytes_max, partition_bytes_max
        int32_t backoff_ms_max, answer_ms_max
        bint flush_first
        throttle *throttle
    fetchers *fetchers_new(const fetchers_config *config)
    int fetchers_start(fetchers *fs)
    void fetchers_stop(fetchers *fs)
    void fetchers_free(fetchers *fs)
    void fetchers_set_broker_epoch(fetchers *fs, int64_t broker_epoch)
    int fetchers_thread_of(const fetchers *fs, const uint8_t *topic_id, int32_t index)
    fetch_partition *fetchers_follow(fetchers *fs, log_t *log, const uint8_t *topic_id,
                                     int32_t index, int32_t leader_id, int32_t leader_epoch,
                                     uint64_t token)
    void fetchers_unfollow(fetchers *fs, fetch_partition *p)
    void fetchers_resume(fetchers *fs, fetch_partition *p)
    void fetch_partition_release(fetch_partition *p)
    struct fetch_partition_stats:
        int64_t lag, answered_ns
        int state
    void fetch_partition_read_stats(const fetch_partition *p, fetch_partition_stats *out)
    bint fetchers_attach(fetchers *fs, int thread, int32_t leader_id, const transport *to,
                         int16_t version, uint64_t serial)
    bint fetchers_detach(fetchers *fs, int thread, int32_t leader_id)
    struct fetchers_notice:
        uint32_t kind
        int32_t code, epoch, leader_id, leader_epoch
        int64_t end_offset
        uint64_t token
    int fetchers_fd(const fetchers *fs)
    uint32_t fetchers_take(fetchers *fs, fetchers_notice *out, uint32_t max)
    struct fetchers_stats:
        uint64_t requests, answers, bytes_in, batches_bytes, refusals, connections_lost
    void fetchers_read_stats(const fetchers *fs, fetchers_stats *out)

# ---- fetch_response.h
cdef extern from "replica/fetch_response.h" nogil:
    enum: RESPONSE_VERSION_MIN, RESPONSE_VERSION_MAX
