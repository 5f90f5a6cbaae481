/* What the reactor's files share and nobody else sees: reactor.c (threads, messages), connection.c
 * (one connection's life), receive.c (bytes in), requests.c (frames to answers), output.c (bytes
 * out), listener.c (accept), guard.c (strangers), control.c (calls from the control plane). */
#ifndef PYLOG_REACTOR_STATE_H
#define PYLOG_REACTOR_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/input.h"
#include "thread/lock.h"
#include "thread/mailbox.h"
#include "thread/meter.h"
#include "net/peers.h"
#include "net/reactor.h"
#include "net/slab.h"
#include "net/transport.h"
#include "serve/api_keys.h"
#include "thread/slices.h"
#include "thread/timers.h"

enum { REQUESTS_PER_CONNECTION_MAX = 16 };
enum {
    INPUT_BYTES_MAX = 256 << 20,     /* input buffers of a reactor */
    RECEIVE_BYTES = (64 << 10) - 64, /* the first read of a frame, before anything is known of it */
    RECEIVE_EXACT_BYTES_MIN = 16 << 10, /* what a frame lacks is read alone from here on */
    /* What an earlier frame lets a connection take at once is at most this part of the limit. */
    RECEIVE_EARNED_PART = 16,
    READY_TURN_NS = 100000,             /* for those that are ready, before others are heard */
    ROUNDS_TURN = 16, /* of one connection: requests, their answers, and the requests behind them */
    RECEIVE_TURN_BYTES = 512 << 10,     /* read from one connection before others have their turn */
    RECEIVE_MARK_BYTES_MAX = 128 << 10, /* of a large frame the kernel gathers so much */
    RECEIVE_MARK_BYTES_MIN = 32 << 10,
    RECEIVE_MARK_MS_MAX = 1000,         /* if it began so recently: later its progress counts */
    OUTPUT_TURN_BYTES = 256 << 10,      /* sent from files to one connection, likewise */
    HANDSHAKE_TURN_NS = 500000 /* of a round, for handshakes: one more begins before that */
};
enum {
    FRAME_MS_MAX = 30000, /* for a frame to arrive, and 1 ms for each FRAME_BYTES_PER_MS of it */
    FRAME_BYTES_PER_MS = 64,
    HANDSHAKE_MS_MAX = 10000, /* for all of it */
    STALL_MS_MAX = 60000, /* for a reader to take anything of its answer */
    STRANGER_MS_MAX = 10000, /* for a stranger to send its next byte */
    /* The same, while others wait for input buffers: without a byte of its frame; for the frame of
     * the one that may pass the limit, and 1 ms for each PRIVILEGED_BYTES_PER_MS of it; for one
     * that waits itself and holds what others could use. */
    EVICT_MS = 500,
    PRIVILEGED_BYTES_PER_MS = 4096,
    CROWDED_BYTES_PER_MS = 1024, /* after WAIT_MS_MAX, of a frame that goes on arriving */
    WAIT_MS_MAX = 5000,
    EVICTIONS_MAX = 64, /* at a time */
    RELIEF_MS = 100,    /* how often it is looked for what gives way, and who goes on first */
    SHRINK_MS = 1000,     /* a partial frame keeps a large buffer for this long */
    TICK_MS = 1000,
    ACCEPT_PAUSE_MS = 50, /* after a limit was met */
    /* Descriptors are short: an idle connection may be closed for another one after so long, sooner
     * when it has never asked for anything; so many are looked at for each. */
    CROWDED_IDLE_MS = 10000,
    CROWDED_SILENT_MS = 1000,
    CROWDED_LOOKS_MAX = 1024
};
enum {
    SLOW_PER_TICK_MAX = 10,  /* slow requests of one reactor that are reported in a tick */
    UNSAFE_PER_TICK_MAX = 5, /* likewise connections that TLS failed for */
    CLIENT_ID_BYTES_MAX = 47 /* of the client id that is reported with them */
};

/* The reactor's messages, after those of mailbox.h. */
enum {
    MESSAGE_REPLY = MESSAGE_FIRST_FREE, /* data: frame, malloc'ed; status: ms to be muted for after
                                         it, or REPLY_CLOSES */
    MESSAGE_VERDICT,                   /* data: int16_t[size], malloc'ed */
    MESSAGE_PRINCIPAL,                 /* token: connection; size: principal */
    MESSAGE_WATCH,
    MESSAGE_CLOSE,
    MESSAGE_ROOM,     /* the events have room again */
    MESSAGE_RETRY,    /* token: connection whose client was asked about */
    MESSAGE_LISTEN,   /* data: struct listener_socket */
    MESSAGE_UNLISTEN, /* size: listener */
    MESSAGE_ADOPT,    /* data: struct listener_accepted */
    MESSAGE_STOP_ACCEPTING,
    MESSAGE_RETIRE, /* takes no connections until MESSAGE_RETURN */
    MESSAGE_RETURN,
    MESSAGE_STOP /* size: drain ms */
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
/* One writer: no locked instruction is needed. */
#define STAT_ADD(r, name, n)                                                                       \
    atomic_store_explicit(&(r)->stats.name,                                                        \
                          atomic_load_explicit(&(r)->stats.name, memory_order_relaxed) +           \
                              (uint64_t)(n),                                                       \
                          memory_order_relaxed)

enum { REPLY_CLOSES = -1 };

enum slot_state {
    SLOT_WAITING = 1, /* serve waits; resumed by messages or its timer */
    SLOT_QUEUED,      /* serve appends it with others before the turn is over */
    SLOT_MISSING,     /* the control plane decides */
    SLOT_CONTROL,     /* the control plane answers */
    SLOT_ANSWERED,    /* the reply is to be sent */
    SLOT_ABANDONED    /* the connection is gone, a job still reads the body */
};
struct slot { /* one request */
    struct slab_item item;
    struct timer timer;
    struct connection *connection; /* NULL when abandoned */
    struct slot *next;
    struct input_buffer *held; /* keeps the body in place */
    uint32_t bytes_sent, part; /* of the reply: how far it is out */
    int32_t range_sent;
    uint8_t state;
    bool woken, close_after;
    bool asked; /* its client wants it to wait, for records */
    bool local; /* answered here: what the control plane works at, it measures itself */
    uint32_t request_bytes;
    size_t copied_bytes; /* of its event, counted by the input pool */
    int64_t began_ns, mark_ns; /* mark: when it was last left alone */
    int64_t local_ns, remote_ns, asked_ns;
    struct serve_request r;
};

struct connection_list {
    struct connection *first, *last;
};
struct connection {
    struct slab_item item;
    struct timer timer;
    struct transport transport; /* its descriptor too */
    /* While one of these four is set nothing starts; side by side they are one comparison. asking:
     * the control plane was asked about the client; muted: until muted_until_ms (KIP-219). */
    bool closing, blocked, muted, asking;
    bool readable, hung_up, failed, watched;
    bool refused; /* muted, and then closed */
    /* guarded: its requests pass guard.c first, a stranger's or those of a session that ends;
     * raw_tokens: what a stranger sends next are SASL tokens without headers. */
    bool guarded, raw_tokens;
    bool controls; /* LISTENER_CONTROL */
    bool asks; /* EVENT_CONNECTED is due when its handshake is over */
    uint8_t versions_asked; /* by a stranger */
    uint8_t slot_count;
    struct slot *first, *last;
    struct input_buffer *in;
    size_t in_start, in_end; /* pending bytes */
    size_t frame_bytes; /* of the frame that is arriving, its size field included; 0: not known */
    size_t earned;      /* bytes of the frames that came before */
    int mark_bytes;     /* that must have arrived before epoll reports any (SO_RCVLOWAT) */
    int64_t active_ms, frame_ms, progress_ms, muted_until_ms;
    int64_t waiting_ms; /* since when its frame has waited for input buffers; 0: it has not */
    int64_t session_until_ms; /* it must authenticate again from then on; 0: never, or a stranger */
    struct quota_client *quota;   /* of the last request; one reference, or NULL */
    struct connection_list *list; /* that it is in */
    struct connection *list_next, *list_prev;
    int32_t listener;
    struct listener_limit *limit;
    uint32_t principal;
    struct event_address local, peer;
    uint8_t client_id_len; /* of its last request */
    uint8_t client_id[CLIENT_ID_BYTES_MAX];
};

/* listener.name.<listener>.max.connections. Lives until reactors_free, so that the last connection
 * of a closed listener still finds it. */
struct listener_limit {
    struct listener_limit *next;
    int listener;
    atomic_uint connections, connections_max;
    /* Set before its reactors are told to close it. A connection that one reactor accepted and
     * handed to another may arrive after that: it is closed then. */
    atomic_bool closed;
};
struct listener_socket {
    struct listener_socket *next;
    struct listener_limit *limit;
    struct timer timer;
    int fd, listener;
    uint32_t index;
    unsigned flags;
    struct transport_maker *maker; /* one reference, or NULL */
};
struct listener_accepted {
    int fd, listener;
    unsigned flags;
    int32_t refused_ms; /* its address begins too many: closed after so long, unread */
    struct transport_maker *maker; /* one reference; NULL: the bytes are as they are */
    struct listener_limit *limit;
    struct event_address peer;
};

struct reactor {
    struct reactors *all;
    struct serve *serve;
    struct mailbox *mailbox;
    struct lock_role role; /* of the thread that runs it */
    struct timers timers GUARDED_BY(role);
    /* relief: set while somebody waits for input buffers */
    struct timer tick GUARDED_BY(role), relief GUARDED_BY(role);
    struct slab slots GUARDED_BY(role), connections GUARDED_BY(role);
    struct input_pool input GUARDED_BY(role);
    struct connection_list ready GUARDED_BY(role), input_waiting GUARDED_BY(role);
    struct connection_list room_waiting GUARDED_BY(role);
    struct connection_list appended GUARDED_BY(role); /* their answers are due now */
    /* It may pass the input limit, so that someone always gets on; since when. */
    struct connection *privileged GUARDED_BY(role);
    int64_t privileged_ms GUARDED_BY(role);
    bool relieving GUARDED_BY(role); /* frames may begin beyond the limit */
    struct listener_socket *listeners GUARDED_BY(role);
    struct reactor_stats stats;
    struct meter_api *meters; /* FRAMES_API_KEYS_MAX */
    void *workspace;          /* of its connections' transports */
    struct meter_histogram rounds;
    uint32_t slow_posted GUARDED_BY(role);     /* in this tick */
    uint32_t slow_left_out GUARDED_BY(role); /* since the last that was reported */
    uint32_t unsafe_posted GUARDED_BY(role), unsafe_left_out GUARDED_BY(role);
    int64_t handshakes_ns GUARDED_BY(role); /* what they have had of this round */
    int64_t now_ms GUARDED_BY(role), drain_until_ms GUARDED_BY(role);
    int64_t paused_ns GUARDED_BY(role); /* when a request was last left alone; 0: not known */
    bool more_events GUARDED_BY(role);  /* of this turn are to come */
    uint32_t slice_ns GUARDED_BY(role); /* asked of the scheduler */
    int64_t ran_ns GUARDED_BY(role); /* since it slept or gave way */
    atomic_bool room_wanted;
    bool unflushed; /* the control plane's own: it queued messages and has not woken it */
    atomic_uint load; /* connections, for placing new ones */
    uint32_t index;
    uint32_t abandoned GUARDED_BY(role), listener_count GUARDED_BY(role);
    uint32_t crowded_at GUARDED_BY(role); /* the connection looked at last for an idle one */
    int epoll, alarm; /* a timer of the kernel's */
    int64_t alarm_ms GUARDED_BY(role); /* when it goes off; INT64_MAX: it does not */
    bool stopping GUARDED_BY(role), draining GUARDED_BY(role); /* stopping: it ends when drained */
    bool accepting GUARDED_BY(role);
    pthread_t thread;
};

struct reactors {
    struct reactors_config config;
    struct serve_shared *shared;
    struct events *events;
    struct peers *peers;
    struct meter_api *control; /* FRAMES_API_KEYS_MAX, the control plane's */
    _Atomic int64_t slow_ns;
    const atomic_uint *quota_generation;
    atomic_uint no_quotas; /* stays 0: the generation where there are no quotas at all */
    atomic_uint connections, connections_max, connections_per_ip_max;
    struct listener_limit *listener_limits; /* only the control plane walks and extends the list */
    atomic_uint descriptors_max, descriptor_end;
    atomic_int count, active; /* threads that there are, and the first ones that take connections */
    atomic_bool started, stopped;
    struct reactor reactors[REACTOR_THREADS_MAX]; /* pages of those not opened are never touched */
};

/* Names of slots and connections: reactor (7 bits), index (24), generation (32). The top bit is
 * free for other epoll data. */
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
/* Takes the descriptor over. */
void connection_open(struct reactor *r, const struct listener_accepted *a) REQUIRES(r->role);
void connection_close(struct reactor *r, struct connection *c) REQUIRES(r->role);
void connection_on_events(struct reactor *r, struct connection *c, uint32_t events)
    REQUIRES(r->role);
/* Sends, starts and reads as far as it goes. The connection may be gone afterwards. */
void connection_run(struct reactor *r, struct connection *c) REQUIRES(r->role);
void connection_on_timer(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* Others wait for room: closes those that hold buffers for frames that do not get on, the slowest
 * first, until it is tight no more. */
void connection_evict_stalled(struct reactor *r) REQUIRES(r->role);
/* Descriptors are short: closes the one that has been idle for longest of those that nobody
 * authenticated, the silent ones first. False: none has been for long enough. */
bool connection_evict_idle(struct reactor *r) REQUIRES(r->role);
void connection_drain(struct reactor *r, struct connection *c) REQUIRES(r->role);
void connection_enlist(struct connection *c, struct connection_list *list);
void connection_delist(struct connection *c);
/* Neither reads nor starts anything for so long. */
void connection_mute(struct reactor *r, struct connection *c, int32_t throttle_ms)
    REQUIRES(r->role);
/* Runs those that are in the list now. */
void connection_run_list(struct reactor *r, struct connection_list *list) REQUIRES(r->role);
/* Runs those that are ready, until a turn is over; the others stay ready: whoever has sent
 * something meanwhile is heard in between, however long the answers are. */
void connection_run_ready(struct reactor *r) REQUIRES(r->role);

/* ---- handshake.c */
/* Takes the first steps of a connection that is to be safe. False: it is not yet, or it is gone. */
bool handshake_run(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* It took too long. */
void handshake_expire(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* Reports, a few times in each tick, why TLS is not to be had with this peer. */
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
/* One read. *bytes: how many came. */
enum receive_result receive_some(struct reactor *r, struct connection *c, size_t *bytes)
    REQUIRES(r->role);
/* After a turn: gives back or shrinks the buffer. */
void receive_trim(struct reactor *r, struct connection *c, bool shrink) REQUIRES(r->role);
/* What the next frame of a connection may take at once after one of so many bytes; not 0. */
size_t receive_earned(const struct reactor *r, size_t frame_bytes) REQUIRES(r->role);
void receive_release(struct reactor *r, struct input_buffer *b) REQUIRES(r->role);
/* A request whose copy was counted is answered, or its connection is closed. */
void receive_uncount(struct reactor *r, size_t bytes) REQUIRES(r->role);
/* Nothing more is there: what a large frame lacks wakes us in large pieces. */
void receive_mark(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* Reports what is there, for who is to be judged by it. False: it did so already. */
bool receive_unmark(struct connection *c);
bool receive_wants_shrink(const struct connection *c);
/* Room is wanted and there is none. */
void receive_wait(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* A while after that: frames that do not get on give way, and the one that lacks least goes on. */
void receive_relieve(struct reactor *r) REQUIRES(r->role);

/* ---- requests.c */
/* Starts what has arrived and may start; how many. Sets c->closing for what is not legal. */
int requests_start(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* A later request may start beside those in flight, so reading makes sense. */
bool requests_may_read(const struct connection *c);
void requests_resume(struct reactor *r, struct slot *s, enum serve_reason reason) REQUIRES(r->role);
/* Has appended what was queued, before the turn is over. */
void requests_append(struct reactor *r) REQUIRES(r->role);
void requests_on_io_done(struct reactor *r, struct slot *s) REQUIRES(r->role);
void requests_on_reply(struct reactor *r, struct slot *s, const struct message *l)
    REQUIRES(r->role);
void requests_on_verdict(struct reactor *r, struct slot *s, const struct message *l)
    REQUIRES(r->role);
/* The connection ends: all of its requests are let go. */
void requests_abandon_all(struct reactor *r, struct connection *c) REQUIRES(r->role);
/* Takes the oldest request, which is answered and sent, off the connection. */
void requests_pop(struct reactor *r, struct connection *c, int64_t now_ns) REQUIRES(r->role);

/* ---- guard.c: connections that are not anybody's yet, or no longer */
/* A new connection of a listener with these flags. False: memory ran out. */
bool guard_open(struct reactor *r, struct connection *c, unsigned flags) REQUIRES(r->role);
/* Its handshake is over: whom the certificate names is asked for before the first request, unless
 * it is to authenticate anyhow. False: memory ran out. */
bool guard_shaken(struct reactor *r, struct connection *c, const char *certificate)
    REQUIRES(r->role);
void guard_identify(struct reactor *r, struct connection *c, uint32_t principal,
                    int32_t session_ms) REQUIRES(r->role);
/* Nobody authenticated it, and somebody must before it may do anything. */
static inline bool guard_is_stranger(const struct connection *c) {
    return c->guarded && c->session_until_ms == 0;
}
/* Whether a frame of `size` bytes may begin. */
bool guard_fits(const struct reactor *r, const struct connection *c, int32_t size);
/* As frames_header, of a guarded connection. */
bool guard_header(struct reactor *r, struct connection *c, const uint8_t *frame, size_t len,
                  struct frames_header *out) REQUIRES(r->role);
/* The control plane has such a request of a guarded connection. */
void guard_posted(const struct frames_rules *rules, struct connection *c, int16_t api_key,
                  int16_t api_version);

/* ---- timing.c: where a request's time goes */
/* Its last byte is here. */
void timing_begin(struct connection *c, struct slot *s, int64_t now_ns);
/* Before and after it is worked on once more; between after and before it waits. */
void timing_resume(struct slot *s);
void timing_pause(struct slot *s, int64_t now_ns);
/* Its answer is out, or there is none to send. */
void timing_end(struct reactor *r, struct connection *c, struct slot *s, int64_t now_ns)
    REQUIRES(r->role);

/* ---- output.c */
enum output_result { OUTPUT_DONE, OUTPUT_BLOCKED, OUTPUT_TURN, OUTPUT_FAILED };
/* Sends the answers that are due. */
enum output_result output_run(struct reactor *r, struct connection *c) REQUIRES(r->role);

/* ---- listener.c */
struct sockaddr_storage;
void listener_address(const struct sockaddr_storage *from, struct event_address *to);
/* Frees a MESSAGE_LISTEN or MESSAGE_ADOPT that nobody acts on. */
void listener_discard(const struct message *l);
void listener_add(struct reactor *r, struct listener_socket *l) REQUIRES(r->role);
void listener_accept(struct reactor *r, struct listener_socket *l) REQUIRES(r->role);
struct listener_socket *listener_at(struct reactor *r, uint32_t index) REQUIRES(r->role);
void listener_on_timer(struct reactor *r, struct listener_socket *l) REQUIRES(r->role);
void listener_close_all(struct reactor *r) REQUIRES(r->role);
void listener_close(struct reactor *r, int listener) REQUIRES(r->role);

/* ---- control.c */
/* Any thread but the reactor's own; waits while the mailbox is full, which the reactor empties
 * without fail. */
void control_post(struct reactor *r, const struct message *l) ON_CONTROL_PLANE;
/* Frees what a message carries that will not be acted on. */
void control_discard(const struct message *l);

/* ---- reactor.c */
void *reactor_main(void *reactor);

#endif
