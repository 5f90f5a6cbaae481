/* Replica fetchers: native threads that copy what leaders have into the logs of followers.
 *
 * Each thread has its own connection to each leader of its partitions, with one Fetch in flight, in
 * an incremental fetch session (KIP-227): the next request is the acknowledgement of what the last
 * answer brought. Not on reactors: checking and writing a large answer takes milliseconds.
 *
 * The control plane says who leads, dials (fetchers_attach hands a connection over, which TLS and
 * its login are done with), and
 * decides what a fetcher cannot: where a log is truncated, where it begins anew. A fetcher tells it
 * by notices, at most one of each kind for a partition at a time, so that a leader that lies or
 * errs costs neither memory nor a spinning thread: what cannot go on waits, for a while or until
 * fetchers_resume.
 *
 * Threads: every call here is the control plane's. Positions may be read at any time. */
#ifndef PYLOG_FETCHERS_H
#define PYLOG_FETCHERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "log/log.h"
#include "thread/roles.h"

enum { FETCHERS_THREADS_MAX = 64, FETCHERS_CLIENT_ID_BYTES_MAX = 64 };

struct fetchers;
struct followed;
struct throttle;

struct fetchers_config {
    int threads;
    int32_t replica_id;
    int32_t wait_ms_max, bytes_min; /* a leader waits so long for so many bytes */
    int32_t bytes_max, partition_bytes_max;
    int32_t backoff_ms_max; /* after refusals: from BACKOFF_MS_FIRST on, doubled up to this */
    int32_t answer_ms_max;  /* a request's answer is here by then, or the connection is lost */
    /* A position is told when it is on disk: an acknowledgement survives the loss of power. */
    bool flush_first;
    /* Of what is fetched of partitions that count on it and are behind; outlives the fetchers.
     * NULL: none do. */
    struct throttle *throttle;
};

/* NULL and errno when it cannot be had. No thread runs yet. */
struct fetchers *fetchers_new(const struct fetchers_config *config);
/* 0 or a negative errno. */
int fetchers_start(struct fetchers *fs);
/* Ends the threads: nothing is appended any more. */
void fetchers_stop(struct fetchers *fs);
/* After fetchers_stop. */
void fetchers_free(struct fetchers *fs);
/* Known to leaders from the next request on; -1: not registered. */
void fetchers_set_broker_epoch(struct fetchers *fs, int64_t broker_epoch);
/* Which thread follows this partition. */
int fetchers_thread_of(const struct fetchers *fs, const uint8_t topic_id[16], int32_t index);

/* `log` follows this leader from now on. The caller has one reference on what comes back, and ends
 * it by fetchers_unfollow and followed_release; `token` names it in notices. NULL: no memory. */
struct followed *fetchers_follow(struct fetchers *fs, struct log *log, const uint8_t topic_id[16],
                                 int32_t index, int32_t leader_id, int32_t leader_epoch,
                                 uint64_t token);
/* Once. What is on its way from the leader is dropped when the thread has heard of it; until then
 * it may still be appended. */
void fetchers_unfollow(struct fetchers *fs, struct followed *p);
/* After FETCHERS_DIVERGED, _OUT_OF_RANGE or _FAILED: goes on from the log's end, which the caller
 * has moved. */
void fetchers_resume(struct fetchers *fs, struct followed *p);
void followed_release(struct followed *p);

/* How far it is. Any thread. */
struct followed_figures {
    int64_t lag;        /* records behind the leader's high watermark; -1: no answer yet */
    int64_t answered_ns; /* CLOCK_MONOTONIC of the last good answer, 0: none */
    int state;          /* enum followed_state */
};
enum followed_state {
    FOLLOWED_FETCHING,
    FOLLOWED_BACKING_OFF, /* until a time */
    FOLLOWED_WAITING,     /* for fetchers_resume */
    FOLLOWED_LEFT
};
void followed_figures_take(const struct followed *p, struct followed_figures *out);

struct transport;
/* A connection to the leader for this thread, which owns it from now on, a copy of *to that is; one
 * that it had is closed. `version` of Fetch: ANSWER_VERSION_MIN to _MAX; `serial` names the
 * connection in FETCHERS_LOST. False: no memory, and it is closed. */
bool fetchers_attach(struct fetchers *fs, int thread, int32_t leader_id,
                     const struct transport *to, int16_t version, uint64_t serial);
/* Closes it without a notice. False: no memory, try again. */
bool fetchers_detach(struct fetchers *fs, int thread, int32_t leader_id);

/* ---- notices ---- */
enum fetchers_notice_kind {
    FETCHERS_REFUSED = 1,  /* `code` is Kafka's; it goes on by itself after a pause */
    FETCHERS_DIVERGED,     /* the leader's `epoch` ends at `end_offset`; waits */
    FETCHERS_OUT_OF_RANGE, /* the leader has not what comes next; waits */
    FETCHERS_FAILED,       /* `code` is a log_error of its own log; waits */
    FETCHERS_LOST          /* a connection: `serial`, errno in `code`, or EPROTO */
};
struct fetchers_notice {
    uint32_t kind; /* enum fetchers_notice_kind */
    int32_t code, epoch;
    /* Of whom the answering broker knows as leader, -1: it did not say. */
    int32_t leader_id, leader_epoch;
    int64_t end_offset;
    uint64_t token; /* of fetchers_follow; the serial of a connection */
};
/* Readable when there are some. */
int fetchers_fd(const struct fetchers *fs);
/* Up to `max` of them. 0: the descriptor is not readable before there are more. */
uint32_t fetchers_take(struct fetchers *fs, struct fetchers_notice *out, uint32_t max);

struct fetchers_figures {
    uint64_t requests, answers, bytes_in, batches_bytes, refusals, connections_lost;
};
void fetchers_figures_take(const struct fetchers *fs, struct fetchers_figures *out);

#endif
