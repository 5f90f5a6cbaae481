/* Reactors: threads that accept, read, parse, serve and send, each with its own epoll,
 * connections and mailbox.
 *
 * Reactors serve Produce and Fetch (serve.h), and heartbeats with a cached response
 * (heartbeat_cache.h). All other requests, and misses of serve, go to the control plane as events.
 * It replies through the functions below, from any of its threads. Only reactors_stop blocks.
 *
 * Invariants:
 * - Thread ownership: a connection, its requests and its buffers belong to one reactor's thread.
 * - Response order: responses are sent in the order of their requests.
 * - No overtaking: after any request except a pipelined Produce, the reactor starts and reads
 *   nothing more from the connection before the response is sent.
 * - Bounded memory: memory follows bytes received, never a declared length. */
#ifndef PYLOG_REACTOR_H
#define PYLOG_REACTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "net/events.h"
#include "net/frames.h"
#include "os/clock.h"
#include "os/roles.h"
#include "serve/serve.h"
#include "tables/heartbeat_cache.h"

enum { REACTOR_THREADS_MAX = 64, REACTOR_MESSAGES_MAX = 65536 };

/* Flags for all connections of a listener. */
enum listener_flag {
    LISTENER_NEEDS_AUTH = 1,    /* until it has a principal, a connection may only authenticate
                                (auth_gate.c) */
    LISTENER_CONTROL = 2,       /* the control plane answers all requests, Produce and Fetch too */
    LISTENER_NEEDS_APPROVAL = 8 /* new connections wait until the control plane has set their
                         principal: EVENT_CONNECTED */
};

/* Version of the SaslAuthenticate in which a SASL token without header is passed on. */
enum { GUARD_RAW_VERSION = -1 };

struct reactors_config {
    struct frames_rules rules;
    int threads;                  /* num.network.threads */
    uint32_t queued_requests_max; /* queued.max.requests: events not taken yet by the control
                                     plane */
    int64_t idle_ms_max;          /* connections.max.idle.ms; < 0: none */
    uint64_t input_bytes_max;     /* receive buffers of one reactor, plus its requests in the
                                     control plane; 0: the default */
    int32_t unauthenticated_bytes_max; /* sasl.server.max.receive.size, before authentication */
    int send_buffer_bytes, receive_buffer_bytes; /* socket.*.buffer.bytes; -1: system default */
    struct quotas *quotas;                       /* borrowed; NULL: no quotas */
    struct repeats *repeats; /* borrowed; NULL: heartbeats go to the control plane */
};

struct transport_maker;
/* Limits that may change at run time. */
struct reactors_limits {
    uint32_t connections_max; /* max.connections */
    uint32_t connections_per_ip_max;
    /* descriptors_max: connections that fit into the process's descriptor limit. Descriptors
     * from descriptor_end on are reserved for files. A connection beyond either limit replaces
     * an idle unauthenticated one, or is closed. UINT32_MAX: no limit. */
    uint32_t descriptors_max, descriptor_end;
};

struct meter_api_stats;
struct meter_stats;
struct reactors;
/* Borrows `shared`, which must outlive it. Returns NULL if out of memory or
 * descriptors (errno). */
struct reactors *reactors_new(struct serve_shared *shared, const struct reactors_config *config);
/* Call after reactors_stop, or if never started. */
void reactors_free(struct reactors *rs);
struct reactors_listener {
    int listener;     /* copied to events */
    const char *host; /* "": all interfaces */
    int port, backlog;
    unsigned flags; /* enum listener_flag */
    struct transport_maker *maker; /* creates its transports; NULL: plain text */
};
/* Listens on all addresses of the host, on each reactor. Returns the port (the same for all
 * addresses, chosen if `port` is 0) or a negative errno. Each socket retains the maker. */
int reactors_listen(struct reactors *rs, const struct reactors_listener *l) ON_CONTROL_PLANE;
/* Like reactors_listen, for the reactors from `first` on, which reactors_resize added, on a port
 * that is already open. */
int reactors_join(struct reactors *rs, const struct reactors_listener *l, int first)
    ON_CONTROL_PLANE;
/* Closes a listener's sockets, and its connections after their requests have been answered. */
void reactors_unlisten(struct reactors *rs, int listener) ON_CONTROL_PLANE;
/* Existing connections above a lowered limit stay open. */
void reactors_set_limits(struct reactors *rs, const struct reactors_limits *limits)
    ON_CONTROL_PLANE;
/* Sets the connection limit of one listener; existing connections stay open. May be called
 * before reactors_listen. Returns false without changes if out of memory. */
bool reactors_set_listener_limit(struct reactors *rs, int listener, uint32_t connections_max)
    ON_CONTROL_PLANE;
/* Replaces max.connections.per.ip.overrides; `addresses` have 16 bytes each. Returns false
 * without changes if out of memory. */
bool reactors_set_overrides(struct reactors *rs, const uint8_t *addresses,
                            const uint32_t *counts_max, uint32_t count) ON_CONTROL_PLANE;
/* Changes the number of reactors that accept connections, at run time. Surplus reactors answer
 * their requests, then close their connections. Call from one thread at a time. Returns 0, or a
 * negative errno with as many reactors as could be started. */
int reactors_resize(struct reactors *rs, int threads) ON_CONTROL_PLANE;
int reactors_threads(const struct reactors *rs);
/* Starts the threads. Returns 0 or a negative errno. */
int reactors_start(struct reactors *rs) ON_CONTROL_PLANE;
struct events *reactors_events(struct reactors *rs);
/* Call after taking events from the queue: connections that waited for room continue. */
void reactors_events_consumed(struct reactors *rs) ON_CONTROL_PLANE;
/* Ends the count of a taken event's data bytes: connections that waited for room continue. */
void reactors_dropped(struct reactors *rs, size_t bytes) ON_CONTROL_PLANE;
/* Sends a complete frame with its size (copied); frame NULL sends nothing. throttle_ms: mutes
 * the connection afterwards. Returns false if out of memory. Ignores outdated tokens. */
bool reactors_reply(struct reactors *rs, uint64_t token, const uint8_t *frame, size_t len,
                    bool close, int32_t throttle_ms) ON_CONTROL_PLANE;
/* Like reactors_reply, but a sleeping reactor is woken only by reactors_flush_replies: one
 * wake-up for all replies of a turn. Call both on the thread that takes the events.
 * correlation_id replaces the one in the frame, so that one frame can answer many requests. */
bool reactors_queue_reply(struct reactors *rs, uint64_t token, const uint8_t *frame, size_t len,
                          int32_t correlation_id, int32_t throttle_ms) ON_CONTROL_PLANE;
void reactors_flush_replies(struct reactors *rs) ON_CONTROL_PLANE;
/* Continues a connection after its EVENT_QUOTA or EVENT_CONNECTED has been handled. */
void reactors_retry(struct reactors *rs, uint64_t connection) ON_CONTROL_PLANE;
/* Continues a request after a miss, with the error code of each missing topic, in order. */
bool reactors_resume(struct reactors *rs, uint64_t token, const int16_t *errors, uint32_t count)
    ON_CONTROL_PLANE;
enum { REACTOR_SAME_SESSION = -1 };
/* Sets the principal of a connection's next requests, and allows them. If session_ms > 0, the
 * client must reauthenticate after that time. REACTOR_SAME_SESSION: only the principal's number
 * changes; the session keeps its expiry. */
void reactors_set_principal(struct reactors *rs, uint64_t connection, uint32_t principal,
                            int32_t session_ms) ON_CONTROL_PLANE;
/* Requests an EVENT_CLOSED when the connection closes; sent immediately if it is already closed. */
void reactors_watch(struct reactors *rs, uint64_t connection) ON_CONTROL_PLANE;
void reactors_close(struct reactors *rs, uint64_t connection) ON_CONTROL_PLANE;
void reactors_stop_accepting(struct reactors *rs) ON_CONTROL_PLANE;
/* Starts no more requests, answers those in flight within drain_ms, closes all connections and
 * joins the threads. */
void reactors_stop(struct reactors *rs, int64_t drain_ms) ON_CONTROL_PLANE;

/* Counters and gauges, summed over the reactors. Value i is named reactors_stat_name(i), which
 * returns NULL after the last one. */
const char *reactors_stat_name(int i);
uint64_t reactors_stat(struct reactors *rs, int i);
/* Metrics of one API key, and the durations of reactor rounds between two sleeps, summed over
 * the reactors. */
void reactors_meter(struct reactors *rs, int api_key, struct meter_api_stats *out);
void reactors_rounds(struct reactors *rs, struct meter_stats *out);
/* Adds the control plane's metrics of a request that it answered. Call on the thread that takes
 * the events. error_code 0: none. */
void reactors_meter_control(struct reactors *rs, int api_key, int64_t queue_ns, int64_t local_ns,
                            int64_t remote_ns, int error_code) ON_CONTROL_PLANE;
/* Reports requests slower than slow_ms as EVENT_SLOW, a few per second; < 0: none. Excludes the
 * time that a Fetch waits for records (max.wait.ms), and all JoinGroup and SyncGroup requests. */
void reactors_set_slow(struct reactors *rs, int64_t slow_ms) ON_CONTROL_PLANE;
/* CLOCK_MONOTONIC, like began_ns of events. */
static inline int64_t reactors_now_ns(void) { return clock_read_ns(CLOCK_MONOTONIC); }

#endif
