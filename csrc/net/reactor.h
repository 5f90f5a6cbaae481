/* Reactors: threads that accept, read, frame, serve and send, each with its own epoll, connections
 * and mailbox.
 *
 * Produce and Fetch are served on the reactor's thread (serve.h), heartbeats too whose answer is
 * known (repeats.h). Everything else, and what serve does not know, goes to the control plane as
 * events; its answers come back by the functions below, from any of its threads. Nothing here
 * blocks but reactors_stop. Invariants: (1) a connection, its requests and its buffers belong to
 * one reactor's thread; (2) answers leave in the order of their requests; (3) after a request that
 * is not a pipelined Produce nothing is started, and nothing read, before its answer is sent; (4)
 * memory follows bytes received, never a declared length. */
#ifndef PYLOG_REACTOR_H
#define PYLOG_REACTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "net/events.h"
#include "net/frames.h"
#include "serve/repeats.h"
#include "serve/serve.h"
#include "thread/roles.h"

enum { REACTOR_THREADS_MAX = 64, REACTOR_MESSAGES_MAX = 65536 };

/* What holds for every connection of a listener. */
enum listener_flag {
    LISTENER_GUARDED = 1, /* until the control plane names its principal, a connection may do
                             nothing but authenticate (guard.c) */
    LISTENER_CONTROL = 2, /* every request is the control plane's, Produce and Fetch too */
    LISTENER_ASKS = 8     /* a new connection waits until the control plane has named its
                             principal: EVENT_CONNECTED */
};


/* The version under which a SASL token that came without a header is passed on. */
enum { GUARD_RAW_VERSION = -1 };

struct reactors_config {
    struct frames_rules rules;
    int threads;                  /* num.network.threads */
    uint32_t queued_requests_max; /* queued.max.requests: events that the control plane has not
                                     taken yet */
    int64_t idle_ms_max;          /* connections.max.idle.ms; < 0: none */
    uint64_t input_bytes_max;     /* input buffers of one reactor, and the requests of its
                                     connections that the control plane has; 0: the default */
    int32_t stranger_bytes_max;   /* sasl.server.max.receive.size: a frame before authentication */
    int send_buffer_bytes, receive_buffer_bytes; /* socket.*.buffer.bytes; -1: the system's own */
    struct quotas *quotas;                       /* borrowed; NULL: none are kept */
    struct repeats *repeats; /* borrowed; NULL: the control plane answers every heartbeat */
};

struct transport_maker;
/* What may change while they run. */
struct reactors_limits {
    uint32_t connections_max; /* max.connections */
    uint32_t connections_per_ip_max;
    /* What the process's limit on descriptors leaves for connections, and the number of a
     * descriptor from which on the rest is for files. A connection beyond either takes the place of
     * an idle one that nobody authenticated, or is closed. UINT32_MAX: no limit. */
    uint32_t descriptors_max, descriptor_end;
};

struct meter_api_figures;
struct meter_figures;
struct reactors;
/* Takes nothing over; `shared` outlives it. NULL: out of memory or descriptors (errno). */
struct reactors *reactors_new(struct serve_shared *shared, const struct reactors_config *config);
/* After reactors_stop, or when never started. */
void reactors_free(struct reactors *rs);
struct reactors_listener {
    int listener;     /* comes back in events */
    const char *host; /* "" is every interface */
    int port, backlog;
    unsigned flags; /* of enum listener_flag */
    struct transport_maker *maker; /* of its connections' transports; NULL: plain text */
};
/* Every address of the host, on each reactor. The bound port (one for all addresses, chosen when
 * `port` is 0), or a negative errno. Takes a reference on the maker for each socket. */
int reactors_listen(struct reactors *rs, const struct reactors_listener *l) ON_CONTROL_PLANE;
/* As reactors_listen, on a port that is listened on already, for the reactors from `first` on: they
 * were added by reactors_resize. */
int reactors_join(struct reactors *rs, const struct reactors_listener *l, int first)
    ON_CONTROL_PLANE;
/* Closes a listener's sockets, and its connections once their requests are answered. */
void reactors_unlisten(struct reactors *rs, int listener) ON_CONTROL_PLANE;
/* Connections beyond a lowered limit stay. */
void reactors_set_limits(struct reactors *rs, const struct reactors_limits *limits)
    ON_CONTROL_PLANE;
/* The connections of one listener; those beyond a lowered limit stay. May come before
 * reactors_listen. False: out of memory, nothing has changed. */
bool reactors_set_listener_limit(struct reactors *rs, int listener, uint32_t connections_max)
    ON_CONTROL_PLANE;
/* max.connections.per.ip.overrides, in place of those before: `addresses` are 16 bytes each. False:
 * out of memory, nothing has changed. */
bool reactors_set_overrides(struct reactors *rs, const uint8_t *addresses,
                            const uint32_t *counts_max, uint32_t count) ON_CONTROL_PLANE;
/* While they run: `threads` reactors take new connections. Those of reactors that are too many end
 * once their requests are answered. One caller at a time. 0 or a negative errno, with as many as
 * could be had. */
int reactors_resize(struct reactors *rs, int threads) ON_CONTROL_PLANE;
int reactors_threads(const struct reactors *rs);
/* 0 or a negative errno. */
int reactors_start(struct reactors *rs) ON_CONTROL_PLANE;
struct events *reactors_events(struct reactors *rs);
/* The control plane took `count` requests or misses out of the events: connections that waited for
 * room go on. */
void reactors_taken(struct reactors *rs) ON_CONTROL_PLANE;
/* A whole frame with its size, copied; frame NULL: nothing is sent. throttle_ms: for how long the
 * connection is muted after it. False: out of memory. Stale tokens are ignored. */
bool reactors_reply(struct reactors *rs, uint64_t token, const uint8_t *frame, size_t len,
                    bool close, int32_t throttle_ms) ON_CONTROL_PLANE;
/* As reactors_reply, but a reactor that sleeps is not woken before reactors_flush_replies: one
 * wake-up for the answers of a turn. Both on the thread that takes the events. correlation_id: put
 * in place of the frame's own, so that one frame answers many. */
bool reactors_queue_reply(struct reactors *rs, uint64_t token, const uint8_t *frame, size_t len,
                          int32_t correlation_id, int32_t throttle_ms) ON_CONTROL_PLANE;
void reactors_flush_replies(struct reactors *rs) ON_CONTROL_PLANE;
/* What an EVENT_QUOTA asked for is installed: the connection goes on. */
void reactors_retry(struct reactors *rs, uint64_t connection) ON_CONTROL_PLANE;
/* The verdict on each missing topic, in order. */
bool reactors_resume(struct reactors *rs, uint64_t token, const int16_t *errors, uint32_t count)
    ON_CONTROL_PLANE;
enum { REACTOR_SAME_SESSION = -1 };
/* Whose requests a connection's next ones are, and that it may do what its principal may; after
 * session_ms > 0 it must authenticate again before anything else. REACTOR_SAME_SESSION: it is its
 * principal's still, under another number, and must when it had to before. */
void reactors_set_principal(struct reactors *rs, uint64_t connection, uint32_t principal,
                            int32_t session_ms) ON_CONTROL_PLANE;
/* An EVENT_CLOSED is wanted when this connection ends (at once when it has ended). */
void reactors_watch(struct reactors *rs, uint64_t connection) ON_CONTROL_PLANE;
void reactors_close(struct reactors *rs, uint64_t connection) ON_CONTROL_PLANE;
void reactors_stop_accepting(struct reactors *rs) ON_CONTROL_PLANE;
/* Starts no more requests, answers what is in flight within drain_ms, closes all and joins the
 * threads. */
void reactors_stop(struct reactors *rs, int64_t drain_ms) ON_CONTROL_PLANE;

/* Counters and gauges, summed over the reactors: value i has the name reactors_stat_name(i), NULL
 * past the last. */
const char *reactors_stat_name(int i);
uint64_t reactors_stat(struct reactors *rs, int i);
/* The requests of one api key, and the time of the reactors' rounds between two sleeps; added up
 * over the reactors. */
void reactors_meter(struct reactors *rs, int api_key, struct meter_api_figures *out);
void reactors_rounds(struct reactors *rs, struct meter_figures *out);
/* What only the control plane knows of a request that it answered; by the thread that takes the
 * events. error_code 0: none. */
void reactors_meter_control(struct reactors *rs, int api_key, int64_t queue_ns, int64_t local_ns,
                            int64_t remote_ns, int error_code) ON_CONTROL_PLANE;
/* Requests that take longer come as EVENT_SLOW, a few each second; < 0: none do. What a Fetch
 * waits for records on its client's wish does not count, nor JoinGroup and SyncGroup. */
void reactors_set_slow(struct reactors *rs, int64_t slow_ms) ON_CONTROL_PLANE;
int64_t reactors_now_ns(void); /* CLOCK_MONOTONIC, as in events */

#endif
