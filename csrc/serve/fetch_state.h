/* What the files of Fetch share: fetch.c, fetch_request.c, fetch_answer.c, fetch_replica.c,
 * fetch_tail.c. */
#ifndef PYLOG_FETCH_STATE_H
#define PYLOG_FETCH_STATE_H

#include <stdlib.h>

#include "format/bytes.h"
#include "serve/leaders.h"
#include "serve/serve_state.h"

/* What a request found of a partition; gone with it. */
struct fetch_read {
    struct topic *topic; /* one reference, or NULL; valid while `changes` is the grants' */
    struct log *log;     /* borrowed through topic */
    uint32_t changes;
    int16_t grant_error; /* the control plane's last verdict for this request */
    int16_t error;
    int16_t follow_error;    /* why it is not taken as a follower's fetch */
    int32_t preferred;       /* the replica to read from, -1: this one */
    int32_t diverging_epoch; /* -1: none */
    int64_t diverging_end;
    struct log_range range;
    struct log_aborted_list aborted; /* of the range, for read_committed; owned */
    struct copy *copy; /* one reference: of the range, or NULL */
    struct log_waiter waiter;
    bool had_data; /* the answer carried records of it */
    bool throttled; /* it counts on the leader's throttle */
    bool behind;    /* its follower is not in the ISR */
    bool answer;   /* goes into this answer */
};

/* What a worker found of a wide fetch. */
enum fetch_outcome {
    FETCH_FAILED = 0, /* memory ran out */
    FETCH_MISSES,
    FETCH_WAITS,  /* its waiters are linked */
    FETCH_READY,  /* to be answered */
    FETCH_BUILT,  /* the answer is complete */
    FETCH_RELEASED
};

struct fetch {
    struct iojob job;        /* first: the job is the fetch */
    struct fetch_set own;    /* the request's; moves into a new session */
    struct fetch_set *set;   /* own, or the session's */
    struct fetch_read *reads; /* of the set's partitions; NULL before they are looked up */
    struct serve *serve;     /* whose thread it runs on, for the io job */
    struct session *session; /* busy while this request lives; NULL without one */
    struct misses misses;
    struct serve_joins *joins; /* where a follower's are entered: the reactor's, or its own */
    struct wide *wide;         /* of more than limits.wide_partitions, or NULL */
    struct cursor forgotten;
    uint32_t voids; /* of the grants, when its topics were looked up */
    uint32_t counted; /* partitions of this wide request in shared->fetches_waiting */
    int64_t replica_epoch;
    char *rack; /* owned: of a consumer that may be sent elsewhere, or NULL */
    struct leaders leaders; /* that the answer names */
    int32_t wait_ms, bytes_min, bytes_max, replica_id, session_id, session_epoch;
    int16_t version, error;
    bool flexible, by_id, read_committed, full, waiting, job_running, blocked;
    bool lacks_worker; /* the io pool is full: its job is to be submitted again */
    bool followed;     /* the positions of a follower are entered */
    bool throttled;    /* some part is */
    bool high_is_news; /* to this follower, whose consumers wait for it */
    bool too_little; /* what was looked for on the disk is not enough to be answered */
    bool at_end; /* every range goes up to what may be read: more comes only with time */
    int64_t taken; /* bytes of the ranges */
};

/* A fetch of so many partitions that walking over them would stop the reactor. A worker does that;
 * the reactor only reads it between jobs. */
struct wide {
    struct serve_request *request;
    struct reply reply; /* becomes the request's when it is complete */
    struct serve_joins joins;
    size_t answer_bytes; /* what a quota is charged for */
    enum fetch_outcome outcome;
    bool granted;     /* the control plane has decided on what was missing */
    bool last_chance; /* it is answered with what there is */
    /* While the job runs only the reactor uses these. */
    bool again;     /* an end moved */
    bool timed_out; /* the next job is the last chance */
};

/* Who says that it is a replica. */
static inline bool fetch_is_follower(const struct fetch *f) { return f->replica_id >= 0; }
/* A consumer's answer that is all there is, but short: there may be a better time for it. */
static inline bool fetch_is_short(const struct fetch *f) {
    return f->at_end && f->taken > 0 && f->taken < GATHER_BYTES && !fetch_is_follower(f);
}
/* The range is not sent; of a request's parts on its reactor, of none that has a copy elsewhere. */
static inline void fetch_release(struct fetch_read *read) {
    log_range_release(&read->range);
    if (read->copy != NULL) copy_release(read->copy);
    read->copy = NULL;
    free(read->aborted.at);
    read->aborted = (struct log_aborted_list){0};
}
/* fetch_request.c */
/* False: it is none, or memory ran out. */
bool fetch_parse(struct serve *s, struct fetch *f, const struct serve_request *r);
/* Takes what a session's request forgets out of `apply`, once the session is known; NULL: only
 * reads over it. */
bool fetch_parse_forgotten(struct fetch *f, struct cursor *c, struct fetch_set *apply);

/* fetch_tail.c */
/* True: it is answered at r->deadline_ms with what there is then, and until then nothing wakes it.
 */
bool fetch_gathers(struct serve *s, struct serve_request *r, struct fetch *f);
/* What several readers want is sent from memory. */
void fetch_take_copies(struct serve *s, struct fetch *f);
void fetch_release_copies(struct fetch *f);

/* Kafka's order of checks, with DivergingEpoch in p->read. 0 or an error code. */
int16_t fetch_check_epochs(const struct fetch *f, struct fetch_part *p);

/* fetch_replica.c */
/* A follower's positions, once for each request, on its reactor. */
void fetch_follow(struct serve *s, struct fetch *f);
/* Whether followers that are behind have to wait for the rest of a throttled partition. */
bool fetch_is_over(const struct serve *s);
/* Counts what the answer has of a throttled partition. */
void fetch_count_throttled(const struct serve *s, const struct fetch_part *p);
/* The replica in the consumer's rack that it is sent to, -1: none (KIP-392). */
int32_t fetch_preferred(struct serve *s, const struct serve_request *r, const struct fetch *f,
                        const struct fetch_part *p);

/* Refused before its log was looked at: the topic or partition is unknown, or not the principal's.
 */
static inline bool fetch_is_unknown(const struct fetch_part *p) {
    return p->read->grant_error != 0 && p->read->grant_error != ERROR_NOT_LEADER_OR_FOLLOWER &&
           p->read->grant_error != ERROR_KAFKA_STORAGE_ERROR;
}

void fetch_free(struct serve *s, struct serve_request *r);
/* What the answer's body and size field will take, but for what its aborted transactions do. */
size_t fetch_answer_bytes(struct fetch *f);
/* Writes the answer from the parts' ranges. On any thread. */
void fetch_build(struct serve *s, const struct serve_request *r, struct fetch *f, struct reply *a);
/* The client is over a limit: the answer says for how long, and nothing else. Its session is as if
 * it had not asked; one that this request was to begin does not begin. */
enum serve_status fetch_answer_throttled(struct serve *s, struct serve_request *r,
                                         struct fetch *f);
/* Frees the state of a request whose answer is built. */
enum serve_status fetch_done(struct serve *s, struct serve_request *r, struct fetch *f);
/* Builds the answer from the parts' ranges and frees the request's state. */
enum serve_status fetch_answer(struct serve *s, struct serve_request *r, struct fetch *f);

#endif
