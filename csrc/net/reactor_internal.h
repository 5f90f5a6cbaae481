/* Internal state of reactors: reactor.c (threads, messages), accept.c (new connections),
 * eviction.c (connections that give up buffers and descriptors), connection.c (a connection's
 * life), receive.c (reading), requests.c (requests and responses), output.c (sending), listener.c
 * (sockets), auth_gate.c (unauthenticated connections), reactor_pool.c (calls from the control
 * plane). A file calls only files that this list names after it. */
#ifndef PYLOG_REACTOR_INTERNAL_H
#define PYLOG_REACTOR_INTERNAL_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "net/input.h"
#include "net/ip_connections.h"
#include "net/reactor.h"
#include "net/slab.h"
#include "os/lock.h"
#include "os/mailbox.h"
#include "os/meter.h"
#include "os/time_slice.h"
#include "os/timers.h"
#include "serve/api_keys.h"
#include "transport/transport.h"

enum { REQUESTS_PER_CONNECTION_MAX = 16 };
enum {
    INPUT_BYTES_MAX = 256 << 20,        /* receive buffers of a reactor */
    RECEIVE_BYTES = (64 << 10) - 64,    /* first read of a frame whose size is unknown */
    RECEIVE_EXACT_BYTES_MIN = 16 << 10, /* if this much is missing, read only to the frame's end */
    /* The first read after a large frame is limited to 1/RECEIVE_BUDGET_PART of the pool limit. */
    RECEIVE_BUDGET_PART = 16,
    READY_TURN_NS = 100000,             /* for ready connections, before the next epoll_wait */
    ROUNDS_TURN = 16,                   /* per connection: start requests, send responses, repeat */
    RECEIVE_TURN_BYTES = 512 << 10,     /* read per connection and turn, for fairness */
    RECEIVE_MARK_BYTES_MAX = 128 << 10, /* SO_RCVLOWAT limit while a large frame arrives */
    RECEIVE_MARK_BYTES_MIN = 32 << 10,
    RECEIVE_MARK_MS_MAX = 1000,    /* only for young frames: later, progress is measured */
    OUTPUT_TURN_BYTES = 256 << 10, /* sent per connection and turn, for fairness */
    HANDSHAKE_TURN_NS = 500000 /* per round, for handshakes; exceeded by at most one handshake */
};
enum {
    FRAME_MS_MAX = 30000, /* for a frame to arrive, plus 1 ms per FRAME_BYTES_PER_MS */
    FRAME_BYTES_PER_MS = 64,
    HANDSHAKE_MS_MAX = 10000, /* for the whole handshake */
    STALL_MS_MAX = 60000,     /* for a client to read any byte of its response */
    AUTH_IDLE_MS_MAX = 10000, /* for an unauthenticated client to send its next byte */
    /* Shorter limits while other connections wait for receive buffers. EVICT_MS: without a new
     * byte; also for the frame of the connection that may exceed the limit, plus 1 ms per
     * OVER_LIMIT_BYTES_PER_MS. WAIT_MS_MAX: for a connection that waits while holding a buffer. */
    EVICT_MS = 500,
    OVER_LIMIT_BYTES_PER_MS = 4096,
    CROWDED_BYTES_PER_MS = 1024, /* for frames still arriving, after WAIT_MS_MAX */
    WAIT_MS_MAX = 5000,
    EVICTIONS_MAX = 64, /* per check */
    RELIEF_MS = 100,    /* interval for evicting stalled frames and choosing the privileged one */
    SHRINK_MS = 1000,   /* then a partial frame gives up a large buffer */
    TICK_MS = 1000,
    ACCEPT_PAUSE_MS = 50, /* after a limit was reached */
    /* When descriptors run out, a new connection replaces one that has been idle for
     * CROWDED_IDLE_MS, or CROWDED_SILENT_MS if it never sent a request. Each search checks at
     * most CROWDED_LOOKS_MAX connections. */
    CROWDED_IDLE_MS = 10000,
    CROWDED_SILENT_MS = 1000,
    CROWDED_LOOKS_MAX = 1024
};
enum {
    SLOW_PER_TICK_MAX = 10,  /* slow requests reported per reactor and tick */
    UNSAFE_PER_TICK_MAX = 5, /* TLS failures reported per reactor and tick */
    CLIENT_ID_BYTES_MAX = 47 /* maximum client id length in these reports */
};

/* Messages to reactors, after those of mailbox.h. */
enum {
    MESSAGE_REPLY = MESSAGE_FIRST_FREE, /* data: malloc'ed frame; status: ms to mute after it, or
                                         REPLY_CLOSES */
    MESSAGE_GRANT_RESULT,               /* data: malloc'ed int16_t[size] */
    MESSAGE_PRINCIPAL,                  /* token: connection; size: principal */
    MESSAGE_WATCH,
    MESSAGE_CLOSE,
    MESSAGE_ROOM,     /* the event queue has room again */
    MESSAGE_RETRY,    /* token: connection with WAIT_CONTROL */
    MESSAGE_LISTEN,   /* data: struct listener_socket */
    MESSAGE_UNLISTEN, /* size: listener */
    MESSAGE_ADOPT,    /* data: struct listener_accepted */
    MESSAGE_STOP_ACCEPTING,
    MESSAGE_RETIRE, /* stop accepting connections until MESSAGE_RETURN */
    MESSAGE_RETURN,
    MESSAGE_STOP /* size: drain time in ms */
};

/* clang-format off */
#define REACTOR_STATS(X)                                                                           \
    X(connections) X(connections_accepted) X(connections_closed) X(connections_refused)            \
    X(connections_crowded) X(connections_evicted)                                                  \
    X(connections_idle) X(connections_stalled) X(frames_late) X(frames_illegal)                    \
    X(requests_produce) X(requests_fetch) X(requests_control) X(requests_repeated)                 \
    X(requests_missed)                                                                             \
    X(requests_abandoned) X(requests_throttled) X(requests_in_flight) X(bytes_in) X(bytes_out)     \
    X(bytes_sendfile) X(input_bytes) X(input_waits) X(queue_waits) X(accept_pauses) X(wakeups)     \
    X(requests_slow) X(handshakes) X(handshakes_resumed) X(handshakes_failed)
/* clang-format on */
struct reactor_stats {
#define X(name) _Atomic uint64_t name;
    REACTOR_STATS(X)
#undef X
};
/* Only one thread writes, so no atomic addition is needed. */
#define STAT_ADD(r, name, n)                                                                       \
    atomic_store_explicit(&(r)->stats.name,                                                        \
                          atomic_load_explicit(&(r)->stats.name, memory_order_relaxed) +           \
                              (uint64_t)(n),                                                       \
                          memory_order_relaxed)

enum { REPLY_CLOSES = -1 };

enum slot_state {
    SLOT_WAITING = 1, /* serve waits; continued by messages or its timer */
    SLOT_QUEUED,      /* serve appends it with others at the end of the turn */
    SLOT_MISSING,     /* waits for the control plane's decision */
    SLOT_CONTROL,     /* waits for the control plane's reply */
    SLOT_ANSWERED,    /* the response can be sent */
    SLOT_ABANDONED    /* connection closed, but a job still reads the body */
};
struct slot { /* one request */
    struct slab_item item;
    struct timer timer;
    struct connection *connection; /* NULL if abandoned */
    struct slot *next;
    struct input_buffer *held; /* keeps the body in place */
    uint32_t bytes_sent, part; /* position in the response: already sent */
    int32_t range_sent;
    uint8_t state;
    bool woken, close_after;
    bool asked; /* a Fetch waits for records, up to max.wait.ms */
    bool local; /* answered by the reactor; the control plane measures its own requests */
    uint32_t request_bytes;
    size_t copied_bytes; /* bytes of its event, counted by the input pool */
    int64_t began_ns, mark_ns; /* mark: last pause or resume */
    int64_t local_ns, remote_ns, asked_ns;
    struct serve_request r;
};

struct connection_list {
    struct connection *first, *last;
};
/* How a connection ends; its state never goes back. The handshake is a state of its transport,
 * authentication is in needs_auth and session_until_ms, draining concerns the whole reactor. */
enum connection_state {
    CONNECTION_OPEN = 0,
    CONNECTION_REFUSED, /* above the rate limit: muted, then closed unread */
    CONNECTION_CLOSING, /* starts no request; closes when earlier responses have been sent */
    CONNECTION_FAILED   /* closes immediately: a response would be missing in between */
};
/* What a connection waits for. */
enum connection_wait {
    WAIT_OUTPUT = 1, /* its socket must accept more bytes */
    WAIT_MUTE = 2,   /* muted_until_ms must pass (KIP-219) */
    WAIT_CONTROL = 4 /* the control plane must answer about the client */
};
struct connection {
    struct slab_item item;
    struct timer timer;
    struct transport transport; /* owns the descriptor */
    /* Requests start only in CONNECTION_OPEN without a wait. Adjacent, so that one comparison
     * tests both. */
    uint8_t state; /* enum connection_state */
    uint8_t waits; /* set of enum connection_wait */
    bool readable, hung_up, watched;
    /* needs_auth: auth_gate.c checks its requests, before authentication and when a session
     * expires. raw_tokens: its next frames are SASL tokens without headers. */
    bool needs_auth, raw_tokens;
    bool controls; /* LISTENER_CONTROL */
    bool needs_approval;        /* send EVENT_CONNECTED after the handshake */
    uint8_t api_versions_count; /* ApiVersions requests before authentication */
    uint8_t slot_count;
    struct slot *first, *last;
    struct input_buffer *in;
    size_t in_start, in_end; /* pending bytes */
    size_t frame_bytes; /* size of the arriving frame with its size field; 0: unknown */
    size_t receive_budget; /* size of the last frame: allows a larger first read */
    int mark_bytes;     /* current SO_RCVLOWAT */
    int64_t active_ms, frame_ms, progress_ms, muted_until_ms;
    int64_t waiting_ms; /* since when its frame waits for a buffer; 0: it does not wait */
    int64_t session_until_ms; /* reauthentication deadline; 0: none, or not authenticated */
    struct quota_client *quota;   /* of the last request; holds a reference, or NULL */
    struct connection_list *list; /* the list that contains it */
    struct connection *list_next, *list_prev;
    int32_t listener;
    struct listener_limit *limit;
    uint32_t principal;
    struct event_address local, peer;
    uint8_t client_id_len; /* client id of its last request */
    uint8_t client_id[CLIENT_ID_BYTES_MAX];
};

/* Connection count and limit of a listener (listener.name.<listener>.max.connections). Exists
 * until reactors_free, because connections of a closed listener still use it. */
struct listener_limit {
    struct listener_limit *next;
    int listener;
    atomic_uint connections, connections_max;
    /* Set before MESSAGE_UNLISTEN is sent. A connection handed to another reactor may arrive
     * after that, and is then closed. */
    atomic_bool closed;
};
struct listener_socket {
    struct listener_socket *next;
    struct listener_limit *limit;
    struct timer timer;
    int fd, listener;
    uint32_t index;
    unsigned flags;
    struct transport_maker *maker; /* holds a reference, or NULL */
};
struct listener_accepted {
    int fd, listener;
    unsigned flags;
    int32_t refused_ms; /* above the connection rate limit: close after this time, unread */
    struct transport_maker *maker; /* holds a reference; NULL: plain text */
    struct listener_limit *limit;
    struct event_address peer;
};

struct reactor {
    struct reactors *all;
    struct serve *serve;
    struct mailbox *mailbox;
    struct lock_role role; /* the thread that runs the reactor */
    struct timers timers GUARDED_BY(role);
    /* relief: set while connections wait for receive buffers */
    struct timer tick GUARDED_BY(role), relief GUARDED_BY(role);
    struct slab slots GUARDED_BY(role), connections GUARDED_BY(role);
    struct input_pool input GUARDED_BY(role);
    struct connection_list ready GUARDED_BY(role), input_waiting GUARDED_BY(role);
    struct connection_list room_waiting GUARDED_BY(role);
    struct connection_list appended GUARDED_BY(role); /* their responses are due now */
    /* The connection that may exceed the buffer limit, so that at least one always makes
     * progress, and the time since when. */
    struct connection *over_limit_allowed GUARDED_BY(role);
    int64_t over_limit_since_ms GUARDED_BY(role);
    bool reclaiming_input GUARDED_BY(role); /* new frames may exceed the limit */
    struct listener_socket *listeners GUARDED_BY(role);
    struct reactor_stats stats;
    struct meter_api *meters; /* FRAMES_API_KEYS_MAX */
    void *workspace;          /* shared by its connections' transports */
    struct meter_histogram rounds;
    uint32_t slow_posted GUARDED_BY(role);     /* in the current tick */
    uint32_t slow_left_out GUARDED_BY(role); /* since the last report */
    uint32_t unsafe_posted GUARDED_BY(role), unsafe_left_out GUARDED_BY(role);
    int64_t handshakes_ns GUARDED_BY(role); /* time used for handshakes in this round */
    int64_t now_ms GUARDED_BY(role), drain_until_ms GUARDED_BY(role);
    int64_t paused_ns GUARDED_BY(role); /* when the last request was paused; 0: unknown */
    bool more_events GUARDED_BY(role);  /* more epoll events follow in this turn */
    uint32_t slice_ns GUARDED_BY(role); /* current time slice */
    int64_t ran_ns GUARDED_BY(role); /* time run since it slept or yielded */
    atomic_bool room_wanted;
    bool unflushed; /* used by the control plane: messages are queued without a wake-up */
    atomic_uint load; /* number of connections, for balancing */
    uint32_t index;
    uint32_t abandoned GUARDED_BY(role), listener_count GUARDED_BY(role);
    uint32_t crowded_at GUARDED_BY(role); /* position of the last search for an idle connection */
    int epoll, alarm; /* alarm: a timerfd */
    int64_t alarm_ms GUARDED_BY(role); /* when the timerfd expires; INT64_MAX: not set */
    bool stopping GUARDED_BY(role), draining GUARDED_BY(role); /* stopping: exits when drained */
    bool accepting GUARDED_BY(role);
    pthread_t thread;
};

struct reactors {
    struct reactors_config config;
    struct serve_shared *shared;
    struct events *events;
    struct peers *peers;
    struct meter_api *control; /* FRAMES_API_KEYS_MAX, for the control plane */
    _Atomic int64_t slow_ns;
    const atomic_uint *quota_generation;
    atomic_uint no_quotas; /* stays 0: the generation if quotas are not configured */
    atomic_uint connections, connections_max, connections_per_ip_max;
    struct listener_limit *listener_limits; /* only the control plane reads or extends the list */
    atomic_uint descriptors_max, descriptor_end;
    atomic_int count, active; /* count: all threads; active: the first ones, which accept */
    atomic_bool started, stopped;
    struct reactor reactors[REACTOR_THREADS_MAX]; /* memory of unused ones is never touched */
};

/* Ids of slots and connections: reactor (7 bits), index (24 bits), generation (32 bits). The top
 * bit marks other epoll data. */
static inline uint64_t reactor_name(const struct reactor *r, const struct slab_item *item) {
    return (uint64_t)r->index << 56 | (uint64_t)item->index << 32 | item->generation;
}
static inline uint32_t name_reactor(uint64_t name) { return (uint32_t)(name >> 56); }
static inline uint32_t name_index(uint64_t name) { return (uint32_t)(name >> 32) & 0xffffff; }
static inline uint32_t name_generation(uint64_t name) { return (uint32_t)name; }
#define EPOLL_LISTENER ((uint64_t)1 << 63)
#define EPOLL_MAILBOX UINT64_MAX
#define EPOLL_ALARM (UINT64_MAX - 1)
enum timer_kind { TIMER_CONNECTION = 1, TIMER_SLOT, TIMER_LISTENER, TIMER_TICK, TIMER_RELIEF };

/* ---- connection.c */
/* Takes ownership of the descriptor. */
void connection_open(struct reactor *r, const struct listener_accepted *a) REQUIRES(r->role);
void connection_close(struct reactor *r, struct connection *c) REQUIRES(r->role);
void connection_on_events(struct reactor *r, struct connection *c, uint32_t events)
    REQUIRES(r->role);
/* Sends, starts requests and reads until it has to wait. May close the connection. */
void connection_run(struct reactor *r, struct connection *c) REQUIRES(r->role);
void connection_on_timer(struct reactor *r, struct connection *c) REQUIRES(r->role);
void connection_drain(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* Runs the connections that are in the list now. */
void connection_run_list(struct reactor *r, struct connection_list *list) REQUIRES(r->role);
/* Runs ready connections for at most one turn. The rest stay ready, so that new requests of
 * others are read in between, however long the responses are. */
void connection_run_ready(struct reactor *r) REQUIRES(r->role);

static inline void connection_set_closing(struct connection *c) {
    if (c->state < CONNECTION_CLOSING) c->state = CONNECTION_CLOSING;
}

/* ---- connection_list.c */
void connection_enlist(struct connection *c, struct connection_list *list);
void connection_delist(struct connection *c);
/* Stops reading and starting requests for this time. */
void connection_mute(struct reactor *r, struct connection *c, int32_t throttle_ms)
    REQUIRES(r->role);

/* ---- eviction.c */
/* When descriptors are short: closes the unauthenticated connection that has been idle longest,
 * preferring those that never sent a request. Returns false if none has been idle long enough. */
bool eviction_close_idle(struct reactor *r) REQUIRES(r->role);
/* Runs RELIEF_MS after a buffer was missing: closes connections with stalled frames, and lets the
 * frame with the fewest bytes missing continue. */
void eviction_relieve(struct reactor *r) REQUIRES(r->role);

/* ---- handshake.c */
enum handshake_result { HANDSHAKE_WAITS, HANDSHAKE_DONE, HANDSHAKE_FAILED };
/* Runs the next handshake steps. After HANDSHAKE_FAILED the connection must be closed. */
enum handshake_result handshake_run(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* Reports a handshake that timed out. */
void handshake_expire(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* Reports why TLS failed with this peer, at most UNSAFE_PER_TICK_MAX times per tick. */
void handshake_report(struct reactor *r, const struct connection *c, const char *why)
    REQUIRES(r->role);

/* ---- receive.c */
enum receive_result {
    RECEIVE_SOME = 1,
    RECEIVE_NOTHING = 0,
    RECEIVE_ENDED = -1,
    RECEIVE_FAILED = -2,
    RECEIVE_NO_ROOM = -3
};
/* Returns how many bytes of the arriving frame are missing, as far as known. */
static inline size_t receive_missing(const struct connection *c) {
    size_t pending = c->in_end - c->in_start;
    return c->frame_bytes > pending ? c->frame_bytes - pending : 0;
}
/* Reads once. *bytes: number of bytes read. */
enum receive_result receive_some(struct reactor *r, struct connection *c, size_t *bytes)
    REQUIRES(r->role);
/* Call after a turn: releases or shrinks the buffer. */
void receive_trim(struct reactor *r, struct connection *c, bool shrink) REQUIRES(r->role);
/* Returns the size of the first read after a frame of this size; never 0. */
size_t receive_budget_after(const struct reactor *r, size_t frame_bytes) REQUIRES(r->role);
void receive_release(struct reactor *r, struct input_buffer *b) REQUIRES(r->role);
/* Call when a counted request has been answered or its connection closed. */
void receive_uncount(struct reactor *r, size_t bytes) REQUIRES(r->role);
/* Call when the socket is empty: sets SO_RCVLOWAT for a large frame, so that it wakes the thread
 * in large pieces. */
void receive_mark(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* Resets SO_RCVLOWAT, so that pending bytes are reported before the connection is evicted.
 * Returns false if it was not set. */
bool receive_unmark(struct connection *c);
bool receive_wants_shrink(const struct connection *c);
/* Call when there is no receive buffer for the connection. */
void receive_wait(struct reactor *r, struct connection *c) REQUIRES(r->role);

/* ---- requests.c */
/* Starts requests that have arrived and may start. Returns their number. Closes the
 * connection for invalid frames. */
int requests_start(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* Returns true if another request may start, so that reading is useful. */
bool requests_may_read(const struct connection *c);
void requests_resume(struct reactor *r, struct slot *s, enum serve_reason reason) REQUIRES(r->role);
/* Appends queued Produce requests before the turn ends. */
void requests_append(struct reactor *r) REQUIRES(r->role);
void requests_on_io_done(struct reactor *r, struct slot *s) REQUIRES(r->role);
void requests_on_reply(struct reactor *r, struct slot *s, const struct message *l)
    REQUIRES(r->role);
void requests_on_grant_result(struct reactor *r, struct slot *s, const struct message *l)
    REQUIRES(r->role);
/* Releases all requests of a connection that closes. */
void requests_abandon_all(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* Returns true if the response has been sent. */
static inline bool slot_is_sent(const struct slot *s) {
    return s->state == SLOT_ANSWERED && s->part == s->r.reply.part_count &&
           s->bytes_sent == s->r.reply.len;
}
/* Removes the oldest requests, whose responses have been sent. */
void requests_pop(struct reactor *r, struct connection *c) REQUIRES(r->role);

/* ---- auth_gate.c: unauthenticated connections */
/* Applies the listener's flags to a new connection. Returns false if out of memory. */
bool auth_gate_open(struct reactor *r, struct connection *c, unsigned flags) REQUIRES(r->role);
/* Call after the handshake: requests the principal for the certificate's name before the first
 * request, unless the client must authenticate with SASL. Returns false if out of memory. */
bool auth_gate_after_handshake(struct reactor *r, struct connection *c, const char *certificate)
    REQUIRES(r->role);
void auth_gate_identify(struct reactor *r, struct connection *c, uint32_t principal,
                        int32_t session_ms) REQUIRES(r->role);
/* Returns true if the client must authenticate and has not done so yet. */
static inline bool connection_is_unauthenticated(const struct connection *c) {
    return c->needs_auth && c->session_until_ms == 0;
}
/* Returns true if a guarded connection may send this request. Completes the header of a raw
 * token. */
bool auth_gate_admits(struct reactor *r, struct connection *c, struct frames_header *h)
    REQUIRES(r->role);
/* Call after sending a request of a guarded connection to the control plane. */
void auth_gate_request_posted(const struct frames_rules *rules, struct connection *c,
                              int16_t api_key, int16_t api_version);

/* ---- request_timing.c: request metrics */
/* Call when the last byte has arrived. */
static inline void timing_begin(struct connection *c, struct slot *s, int64_t now_ns) {
    size_t len = s->r.client_id == NULL ? 0 : (size_t)s->r.client_id_len;
    if (len > CLIENT_ID_BYTES_MAX) len = CLIENT_ID_BYTES_MAX;
    if (len != 0) memcpy(c->client_id, s->r.client_id, len);
    c->client_id_len = (uint8_t)len;
    s->request_bytes = (uint32_t)c->frame_bytes;
    s->began_ns = s->mark_ns = now_ns;
}
/* Call before and after each time the request is processed; the rest counts as waiting. */
static inline void timing_resume(struct slot *s) {
    int64_t now_ns = reactors_now_ns(), waited_ns = now_ns - s->mark_ns;
    assert_slow(waited_ns >= 0); /* timing_begin came first */
    s->remote_ns += waited_ns;
    if (s->asked) s->asked_ns += waited_ns;
    s->asked = false;
    s->mark_ns = now_ns;
}
static inline void timing_pause(struct slot *s, int64_t now_ns) {
    s->local_ns += now_ns - s->mark_ns;
    s->mark_ns = now_ns;
}
/* Call when the response has been sent, or none will be. */
void timing_end(struct reactor *r, struct connection *c, struct slot *s, int64_t now_ns)
    REQUIRES(r->role);

/* ---- output.c */
enum output_result { OUTPUT_DONE, OUTPUT_BLOCKED, OUTPUT_TURN, OUTPUT_FAILED };
/* Sends responses that are due. */
enum output_result output_run(struct reactor *r, struct connection *c) REQUIRES(r->role);

/* ---- accept.c */
/* Accepts waiting connections, at most one turn. */
void accept_connections(struct reactor *r, struct listener_socket *l) REQUIRES(r->role);

/* ---- listener.c */
struct sockaddr_storage;
void listener_address(const struct sockaddr_storage *from, struct event_address *to);
/* Frees an unprocessed MESSAGE_LISTEN or MESSAGE_ADOPT. */
void listener_discard(const struct message *l);
void listener_add(struct reactor *r, struct listener_socket *l) REQUIRES(r->role);
/* Leaves new connections in the kernel's queue while a limit is reached or descriptors run out. */
void listener_pause(struct reactor *r, struct listener_socket *l) REQUIRES(r->role);
struct listener_socket *listener_at(struct reactor *r, uint32_t index) REQUIRES(r->role);
void listener_on_timer(struct reactor *r, struct listener_socket *l) REQUIRES(r->role);
void listener_close_all(struct reactor *r) REQUIRES(r->role);
void listener_close(struct reactor *r, int listener) REQUIRES(r->role);

/* For any thread except the reactor's own. Waits while the mailbox is full; the reactor always
 * empties it. */
static inline void control_post(struct reactor *r, const struct message *l) ON_CONTROL_PLANE {
    while (!mailbox_post(r->mailbox, l)) sched_yield();
}

/* ---- reactor.c */
void *reactor_main(void *reactor);

#endif
