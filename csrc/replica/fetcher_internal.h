/* Internal state of a fetcher thread. Included by csrc/replica/ only. */
#ifndef PYLOG_FETCHER_INTERNAL_H
#define PYLOG_FETCHER_INTERNAL_H

#include <pthread.h>

#include "format/assertion.h"
#include "log/log.h"
#include "net/slab.h"
#include "os/lock.h"
#include "os/mailbox.h"
#include "os/meter.h"
#include "os/timers.h"
#include "replica/fetch_response.h"
#include "replica/fetcher_pool.h"
#include "serve/response.h"
#include "transport/transport.h"

enum fetcher_message { /* MESSAGE_WAKE: a flush. In others, data is the object concerned */
                       MESSAGE_FOLLOW = MESSAGE_FIRST_FREE,
                       MESSAGE_UNFOLLOW,
                       MESSAGE_RESUME,
                       MESSAGE_ATTACH,
                       MESSAGE_DETACH,
                       MESSAGE_STOP
};

enum {
    FETCHER_MESSAGES_MAX = 4096,
    FETCHER_RECEIVE_BYTES = 256 * 1024,  /* receive buffer; larger only for a longer batch */
    FETCHER_TURN_BYTES = 1024 * 1024, /* per connection and round, for fairness */
    FETCHER_EXACT_BYTES = 64 * 1024,     /* if this much is missing, read only to the batch's end */
    FETCHER_GROWN_BYTES_MAX = 8 * 1024 * 1024, /* maximum partition_bytes after truncation */
    BACKOFF_MS_FIRST = 50,
    THROTTLE_MS = 100, /* recheck interval of a throttled partition */
    FETCHER_FAST_RESPONSES_MAX = 4, /* consecutive empty responses before a pause */
    FETCHER_STOPS_MAX = 8, /* stops of a partition within FETCHER_STOPS_MS before it backs off */
    FETCHER_STOPS_MS = 10000
};

enum fetcher_timer { TIMER_FOLLOWED, TIMER_LEADER };

enum fetcher_notice { NOTICE_REFUSED = MESSAGE_FIRST_FREE, NOTICE_STOPPED, NOTICE_LOST };

/* Special values of epoll's data; all other values are leader ids. */
#define FETCHER_EPOLL_MAILBOX UINT64_MAX
#define FETCHER_EPOLL_ALARM (UINT64_MAX - 1)

/* A notice to the control plane; holds a reference to the partition. */
struct notice {
    struct message_link link;
    _Atomic bool under_way;
    struct fetchers_notice what;
};

/* A partition that the thread follows. */
struct fetch_partition {
    _Atomic uint32_t references; /* the caller's, the thread's, and one per message in flight */
    struct message_link follow, unfollow, resume;
    struct notice refused, stopped;
    struct log *log;
    uint8_t topic_id[16];
    int32_t index, leader_id, leader_epoch;
    uint64_t token;
    _Atomic int64_t lag, answered_ns;
    _Atomic int state; /* enum fetch_partition_state; only the thread writes it */
    /* All fields below belong to the thread. */
    struct leader *leader; /* NULL: the thread does not own it (any more) */
    struct fetch_partition *next_in_bucket;
    struct fetch_partition *next_changed, *before_changed;
    uint32_t leader_index; /* in leader->followed */
    struct timer timer;
    int32_t backoff_ms, partition_bytes;
    bool changed;    /* in leader->changed */
    bool in_session; /* the leader's fetch session includes it */
    bool flushing;   /* a flush_wait refers to it */
    bool grew;       /* the current response contained batches for it */
    bool cut;        /* its records ended in a truncated batch */
    int64_t sent_end, sent_start;
    /* Position at the last stop, and the number of stops within FETCHER_STOPS_MS. */
    int64_t stopped_end, stopped_start, stopped_ms;
    int32_t stopped_epoch;
    uint32_t stop_count;
    int refused_code; /* last reported error code, 0: none since the last success */
    int failure;      /* log_error of the current response */
};

struct forgotten {
    uint8_t topic_id[16];
    int32_t index;
};

struct connecting { /* for fetchers_attach and fetchers_detach, then for the connection's notice */
    struct message_link link;
    struct notice lost;
    int32_t leader_id;
    struct transport transport;
    int16_t version;
    uint64_t serial;
};

/* A leader of partitions that this thread follows, connected or not. */
struct leader {
    struct leader *next;
    int32_t id;
    struct transport transport;    /* fd -1: not connected */
    struct connecting *connection; /* from fetchers_attach; NULL: not connected */
    int16_t version;
    int32_t session_id, session_epoch; /* epoch 0: the next request opens a session */
    int32_t correlation_id;
    bool request_in_flight; /* or partly sent */
    bool full;              /* the request lists all partitions */
    bool made_progress;     /* the response contained new data or offsets */
    bool paused;            /* until the timer expires */
    bool polled;            /* registered for EPOLLOUT */
    bool unread;            /* reached FETCHER_TURN_BYTES with bytes left to read */
    uint32_t fast_responses;
    int32_t pause_ms;
    int64_t requested_ms;
    struct timer timer; /* response timeout, or end of the pause */
    struct reply out;
    uint32_t sent;
    uint8_t *in;
    size_t in_room, in_start, in_end, want; /* want: bytes needed from in_start for the next step */
    bool response_begun;
    struct fetch_response response;
    struct fetch_partition *current; /* the partition of `response` being read; NULL: ignore it */
    struct fetch_partition **followed;
    uint32_t followed_count, followed_room, fetching_count, flushing_count;
    struct fetch_partition *changed, *last_changed;
    struct forgotten *forgotten;
    uint32_t forgotten_count, forgotten_room;
};

struct flush_wait {
    struct slab_item item;
    struct log_waiter waiter;
    struct fetch_partition *followed; /* holds a reference */
};

struct fetcher {
    struct fetchers *all;
    int index;
    pthread_t thread;
    struct mailbox *mailbox;
    int epoll, alarm; /* alarm: a timerfd */
    struct lock_role role; /* the thread; protects all fields below */
    struct timers timers GUARDED_BY(role);
    struct slab flushes GUARDED_BY(role);
    struct leader *leaders GUARDED_BY(role);
    struct fetch_partition **buckets GUARDED_BY(role);
    uint32_t bucket_count GUARDED_BY(role), followed_count GUARDED_BY(role);
    uint32_t leader_count GUARDED_BY(role);
    int64_t now_ms GUARDED_BY(role);      /* CLOCK_MONOTONIC */
    int64_t real_now_ms GUARDED_BY(role); /* CLOCK_REALTIME: log timestamps use it */
    int64_t alarm_ms GUARDED_BY(role); /* when the timerfd expires; INT64_MAX: not set */
    bool unread GUARDED_BY(role); /* at least one leader is unread */
    bool stopping GUARDED_BY(role);
    char client_id[FETCHERS_CLIENT_ID_BYTES_MAX];
    _Atomic uint64_t requests, answers, bytes_in, batches_bytes, refusals, connections_lost;
};

struct fetchers {
    int count;
    bool started, stopped;
    _Atomic int64_t broker_epoch;
    struct fetchers_config config;
    struct mailbox *notices; /* to the control plane */
    struct fetcher fetchers[];
};

/* fetcher.c */
void *fetcher_main(void *argument);

/* partition_map.c */
struct fetch_partition *fetcher_find(struct fetcher *f, const uint8_t topic_id[16], int32_t index)
    REQUIRES(f->role);
/* Returns NULL if the fetcher has no such leader. */
struct leader *fetcher_find_leader(struct fetcher *f, int32_t id) REQUIRES(f->role);
/* Finds or creates the leader with this id. Returns NULL if out of memory. */
struct leader *fetcher_leader(struct fetcher *f, int32_t id) REQUIRES(f->role);
/* Adds p to the table and reserves its timer. Returns false if out of memory. */
bool fetcher_insert(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role);
void fetcher_remove(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role);

/* fetch_session.c */
/* Includes the partition in the next request: its offsets changed, or the leader does not have
 * it in its session. */
void fetch_partition_change(struct fetch_partition *p);
void fetch_partition_unchange(struct fetch_partition *p);
void fetch_partition_change_all(struct leader *l);
void fetch_partition_unchange_all(struct leader *l);
/* Removes a partition from the leader's session with the next request. */
void leader_forget(struct leader *l, const struct fetch_partition *p);

/* fetch_partition.c */
static inline void fetch_partition_retain(struct fetch_partition *p) {
    atomic_fetch_add(&p->references, 1);
}
/* These three run with the message's reference. */
void fetch_partition_join(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role);
void fetch_partition_leave(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role);
void fetch_partition_resume(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role);
void fetch_partition_on_timer(struct fetcher *f, struct fetch_partition *p) REQUIRES(f->role);
/* Appends the available records: `len` of the `left` bytes that the partition has in this
 * response. Returns the number of bytes processed; 0: needs more, *want in total.
 * fetch_partition_on_response reports errors. */
uint64_t fetch_partition_append(struct fetcher *f, struct fetch_partition *p, const uint8_t *bytes,
                                size_t len, uint64_t left, size_t *want) REQUIRES(f->role);
/* Called at the end of the partition's part of a response. */
void fetch_partition_on_response(struct fetcher *f, struct fetch_partition *p,
                                 const struct fetch_response_partition *a) REQUIRES(f->role);
/* Handles a failure of the local log (a log_error). */
void fetch_partition_fail(struct fetcher *f, struct fetch_partition *p, int error)
    REQUIRES(f->role);

/* flush_wait.c */
/* Returns true if all positions that the request would acknowledge are on disk. Otherwise the
 * thread is woken later. */
bool flush_wait_begin(struct fetcher *f, struct leader *l) REQUIRES(f->role);
void flush_wait_woken(struct fetcher *f, uint64_t token) REQUIRES(f->role);
/* Checks all waits, after wake-ups were lost. */
void flush_wait_poll(struct fetcher *f) REQUIRES(f->role);
void flush_wait_end(struct fetcher *f) REQUIRES(f->role);

/* leader_connection.c */
/* Takes ownership of the connection in c. */
void leader_attach(struct fetcher *f, struct leader *l, struct connecting *c) REQUIRES(f->role);
/* error 0: no notice is sent. */
void leader_disconnect(struct fetcher *f, struct leader *l, int error) REQUIRES(f->role);
void leader_on_events(struct fetcher *f, struct leader *l, uint32_t events) REQUIRES(f->role);
/* Continues reading from a leader that is `unread`. */
void leader_read_on(struct fetcher *f, struct leader *l) REQUIRES(f->role);
void leader_on_timer(struct fetcher *f, struct leader *l) REQUIRES(f->role);
/* Sends the next request if there is one. Called at the end of each round, when the content of
 * the request is complete. */
void leader_send_next(struct fetcher *f, struct leader *l) REQUIRES(f->role);
/* Returns true if it has neither partitions nor a connection. */
static inline bool leader_idle(const struct leader *l) {
    return l->followed_count == 0 && l->connection == NULL;
}
void leader_free(struct fetcher *f, struct leader *l) REQUIRES(f->role);

/* fetch_request.c */
/* Writes the next Fetch, for the partitions in l->changed, to l->out. Returns false if out of
 * memory. */
bool fetch_request_write(struct fetcher *f, struct leader *l) REQUIRES(f->role);

#endif
