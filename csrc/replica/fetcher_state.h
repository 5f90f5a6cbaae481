/* What the parts of a fetcher's thread share. Included by csrc/replica/ only. */
#ifndef PYLOG_FETCHER_STATE_H
#define PYLOG_FETCHER_STATE_H

#include <pthread.h>

#include "format/assertion.h"
#include "log/log.h"
#include "net/slab.h"
#include "net/transport.h"
#include "replica/answer.h"
#include "replica/fetchers.h"
#include "serve/reply.h"
#include "thread/lock.h"
#include "thread/mailbox.h"
#include "thread/meter.h"
#include "thread/timers.h"

enum fetcher_message { /* MESSAGE_WAKE: a flush; data of the others is what they are about */
                       MESSAGE_FOLLOW = MESSAGE_FIRST_FREE,
                       MESSAGE_UNFOLLOW,
                       MESSAGE_RESUME,
                       MESSAGE_ATTACH,
                       MESSAGE_DETACH,
                       MESSAGE_STOP
};

enum {
    FETCHER_MESSAGES_MAX = 4096,
    FETCHER_RECEIVE_BYTES = 256 * 1024,  /* a connection's buffer, unless a batch is longer */
    FETCHER_TURN_BYTES = 1024 * 1024, /* of one connection, before others have their turn */
    FETCHER_EXACT_BYTES = 64 * 1024,     /* what is known to be missing and so long ends a read */
    FETCHER_GROWN_BYTES_MAX = 8 * 1024 * 1024, /* asked for of a partition whose batches are cut */
    BACKOFF_MS_FIRST = 50,
    THROTTLE_MS = 100, /* a throttled partition is left out for so long, and looked at again */
    FETCHER_FAST_ANSWERS_MAX = 4, /* that bring nothing, one after the other, before a pause */
    FETCHER_STOPS_MAX = 8, /* of a partition in FETCHER_STOPS_MS, before it is made to wait */
    FETCHER_STOPS_MS = 10000
};

enum fetcher_timer { TIMER_FOLLOWED, TIMER_LEADER };

enum fetcher_notice { NOTICE_REFUSED = MESSAGE_FIRST_FREE, NOTICE_STOPPED, NOTICE_LOST };

/* Of epoll's data, which otherwise is a leader's id. */
#define FETCHER_EPOLL_MAILBOX UINT64_MAX
#define FETCHER_EPOLL_ALARM (UINT64_MAX - 1)

/* What is posted to the control plane, with a reference on the partition. */
struct notice {
    struct message_link link;
    _Atomic bool under_way;
    struct fetchers_notice what;
};

/* One partition that a thread follows. */
struct followed {
    _Atomic uint32_t references; /* the caller's, the thread's, one for each message under way */
    struct message_link follow, unfollow, resume;
    struct notice refused, stopped;
    struct log *log;
    uint8_t topic_id[16];
    int32_t index, leader_id, leader_epoch;
    uint64_t token;
    _Atomic int64_t lag, answered_ns;
    _Atomic int state; /* enum followed_state; written by the thread */
    /* The thread's, from here on. */
    struct leader *leader; /* NULL: the thread does not have it (any more) */
    struct followed *next_in_bucket;
    struct followed *next_changed, *before_changed;
    uint32_t place; /* in leader->followed */
    struct timer timer;
    int32_t backoff_ms, partition_bytes;
    bool changed;    /* in leader->changed */
    bool in_session; /* the leader was told of it, and has not been told to forget it */
    bool flushing;   /* a flush_wait has it */
    bool grew;       /* the answer at hand brought it batches */
    bool cut;        /* it ended in a batch that was cut */
    int64_t told_end, told_start;
    /* Where it was when it last stopped, and how often it has in a while. */
    int64_t stopped_end, stopped_start, stopped_ms;
    int32_t stopped_epoch;
    uint32_t stop_count;
    int refused_code; /* told last in a row, 0: none */
    int failure;      /* log_error of the answer at hand */
};

struct forgotten {
    uint8_t topic_id[16];
    int32_t index;
};

struct connecting { /* fetchers_attach and fetchers_detach; then the connection's notice */
    struct message_link link;
    struct notice lost;
    int32_t leader_id;
    struct transport transport;
    int16_t version;
    uint64_t serial;
};

/* A broker that leads partitions of this thread, connected or not. */
struct leader {
    struct leader *next;
    int32_t id;
    struct transport transport;    /* fd -1: not connected */
    struct connecting *connection; /* what it came with; NULL: not connected */
    int16_t version;
    int32_t session_id, session_epoch; /* epoch 0: the next request opens a session */
    int32_t correlation_id;
    bool asking;  /* a request is in flight, or partly sent */
    bool full;    /* which names all partitions */
    bool useful;  /* its answer brought something */
    bool paused;  /* until the timer */
    bool polled;  /* epoll knows that it wants to write */
    bool unread;  /* its turn was over before its bytes were */
    uint32_t fast_answers;
    int32_t pause_ms;
    int64_t asked_ms;
    struct timer timer; /* of the answer, or of the pause */
    struct reply out;
    uint32_t sent;
    uint8_t *in;
    size_t in_room, in_start, in_end, want; /* want: bytes from in_start on before a step helps */
    bool answering;
    uint64_t discard; /* of the partition's records: not looked at */
    struct answer answer;
    struct followed *current; /* of `answer`, NULL: nobody's */
    struct followed **followed;
    uint32_t followed_count, followed_room, fetching_count, flushing_count;
    struct followed *changed, *last_changed;
    struct forgotten *forgotten;
    uint32_t forgotten_count, forgotten_room;
};

struct flush_wait {
    struct slab_item item;
    struct log_waiter waiter;
    struct followed *followed; /* a reference */
};

struct fetcher {
    struct fetchers *all;
    int index;
    pthread_t thread;
    struct mailbox *mailbox;
    int epoll, alarm; /* alarm: a timer of the kernel's */
    struct lock_role role; /* of whoever is this thread: all that follows */
    struct timers timers GUARDED_BY(role);
    struct slab flushes GUARDED_BY(role);
    struct leader *leaders GUARDED_BY(role);
    struct followed **buckets GUARDED_BY(role);
    uint32_t bucket_count GUARDED_BY(role), followed_count GUARDED_BY(role);
    uint32_t leader_count GUARDED_BY(role);
    int64_t now_ms GUARDED_BY(role);      /* CLOCK_MONOTONIC */
    int64_t real_now_ms GUARDED_BY(role); /* CLOCK_REALTIME: what logs go by */
    int64_t alarm_ms GUARDED_BY(role); /* when it goes off; INT64_MAX: it does not */
    bool unread GUARDED_BY(role); /* some leader's is set */
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
struct followed *fetcher_find(struct fetcher *f, const uint8_t topic_id[16], int32_t index)
    REQUIRES(f->role);
/* The broker of this id, made when it is not there. NULL: no memory. */
struct leader *fetcher_leader(struct fetcher *f, int32_t id) REQUIRES(f->role);
/* Into the table, with room for its timer. False: no memory. */
bool fetcher_insert(struct fetcher *f, struct followed *p) REQUIRES(f->role);
void fetcher_remove(struct fetcher *f, struct followed *p) REQUIRES(f->role);

/* followed.c */
static inline void followed_retain(struct followed *p) { atomic_fetch_add(&p->references, 1); }
/* With the message's reference. */
void followed_join(struct fetcher *f, struct followed *p) REQUIRES(f->role);
void followed_leave(struct fetcher *f, struct followed *p) REQUIRES(f->role);
void followed_resume(struct fetcher *f, struct followed *p) REQUIRES(f->role);
void followed_on_timer(struct fetcher *f, struct followed *p) REQUIRES(f->role);
/* What the leader knows of it is to be told anew with the next request. */
void followed_change(struct followed *p);
void followed_change_all(struct leader *l);
void followed_unchange_all(struct leader *l);
/* The records at hand, `len` of the `left` that the partition's answer still has. Returns how many
 * bytes are done with; 0: more are needed, *want in all. What is wrong shows in followed_answered.
 */
uint64_t followed_append(struct fetcher *f, struct followed *p, const uint8_t *bytes, size_t len,
                         uint64_t left, size_t *want) REQUIRES(f->role);
/* Its part of an answer is complete. */
void followed_answered(struct fetcher *f, struct followed *p, const struct answer_partition *a)
    REQUIRES(f->role);
/* Its own log cannot go on: a log_error. */
void followed_fail(struct fetcher *f, struct followed *p, int error) REQUIRES(f->role);

/* flushes.c */
/* True: all that is to be told is on disk. Else the thread will be woken. */
bool flushes_done(struct fetcher *f, struct leader *l) REQUIRES(f->role);
void flushes_woken(struct fetcher *f, uint64_t token) REQUIRES(f->role);
/* Wake-ups were lost: looks at all of them. */
void flushes_look(struct fetcher *f) REQUIRES(f->role);
void flushes_end(struct fetcher *f) REQUIRES(f->role);

/* leader.c */
/* With the connection that it came with. */
void leader_attach(struct fetcher *f, struct leader *l, struct connecting *c) REQUIRES(f->role);
/* error 0: nobody is told. */
void leader_disconnect(struct fetcher *f, struct leader *l, int error) REQUIRES(f->role);
void leader_on_events(struct fetcher *f, struct leader *l, uint32_t events) REQUIRES(f->role);
/* Another turn for a leader that is `unread`. */
void leader_read_on(struct fetcher *f, struct leader *l) REQUIRES(f->role);
void leader_on_timer(struct fetcher *f, struct leader *l) REQUIRES(f->role);
/* Sends the next request when there is one to be sent: in every round of the thread, when all that
 * belongs into it is known. */
void leader_go_on(struct fetcher *f, struct leader *l) REQUIRES(f->role);
/* It was told of the partition, and is not to send it any more. */
void leader_forget(struct leader *l, const struct followed *p);

/* It has neither partitions nor a connection. */
static inline bool leader_idle(const struct leader *l) {
    return l->followed_count == 0 && l->connection == NULL;
}
void leader_free(struct fetcher *f, struct leader *l) REQUIRES(f->role);

/* request.c */
/* The next Fetch in l->out, of what is in l->changed. False: no memory. */
bool request_write(struct fetcher *f, struct leader *l) REQUIRES(f->role);

#endif
