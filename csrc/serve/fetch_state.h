/* What fetch.c and fetch_answer.c share. */
#ifndef PYLOG_FETCH_STATE_H
#define PYLOG_FETCH_STATE_H

#include "serve/serve_state.h"
#include "format/bytes.h"

/* What a request found of a partition; gone with it. */
struct fetch_read {
    struct topic *topic; /* one reference, or NULL; valid while `changes` is the grants' */
    struct log *log;     /* borrowed through topic */
    uint32_t changes;
    int16_t grant_error; /* the control plane's last verdict for this request */
    int16_t error;
    int32_t diverging_epoch; /* -1: none */
    int64_t diverging_end;
    struct log_range range;
    struct log_waiter waiter;
    bool had_data; /* the answer carried records of it */
    bool answer;   /* goes into this answer */
};

struct fetch {
    struct iojob job;        /* first: the job is the fetch */
    struct fetch_set own;    /* the request's; moves into a new session */
    struct fetch_set *set;   /* own, or the session's */
    struct fetch_read *reads; /* of the set's partitions; NULL before they are looked up */
    struct serve *serve;     /* whose thread it runs on, for the io job */
    struct session *session; /* busy while this request lives; NULL without one */
    struct misses misses;
    struct cursor forgotten;
    uint32_t voids; /* of the grants, when its topics were looked up */
    uint32_t counted; /* partitions of this wide request in shared->fetches_waiting */
    int32_t wait_ms, bytes_min, bytes_max, replica_id, session_id, session_epoch;
    int16_t version, error;
    bool flexible, by_id, read_committed, full, waiting, job_running, blocked;
};

/* Refused before its log was looked at: the topic or partition is unknown, or not the principal's.
 */
static inline bool fetch_is_unknown(const struct fetch_part *p) {
    return p->read->grant_error != 0 && p->read->grant_error != ERROR_NOT_LEADER_OR_FOLLOWER &&
           p->read->grant_error != ERROR_KAFKA_STORAGE_ERROR;
}

void fetch_free(struct serve *s, struct serve_request *r);
/* Builds the answer from the parts' ranges and frees the request's state. */
enum serve_status fetch_answer(struct serve *s, struct serve_request *r, struct fetch *f);

#endif
