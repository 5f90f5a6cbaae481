/* Declarations shared by the fetch*.c files: a Fetch in progress and its partitions. */
#ifndef PYLOG_FETCH_INTERNAL_H
#define PYLOG_FETCH_INTERNAL_H

#include <stdlib.h>

#include "format/bytes.h"
#include "serve/leader_hints.h"
#include "serve/serve_context.h"

/* State of one partition during one request. */
struct fetch_read {
    struct topic *topic; /* one reference, or NULL; valid while `changes` equals grants_changes() */
    struct log *log;     /* borrowed through topic */
    uint32_t changes;
    int16_t grant_error; /* the control plane's last verdict for this request */
    int16_t error;
    int16_t follow_error;    /* why the leader rejects the follower's fetch */
    int32_t preferred;       /* preferred read replica; -1: this broker */
    int32_t diverging_epoch; /* -1: none */
    int64_t diverging_end;
    struct log_range range;
    struct log_aborted_list aborted; /* of the range, for read_committed; owned */
    struct copy *copy; /* one reference to a copy of the range, or NULL */
    struct log_waiter waiter;
    bool had_data; /* the response contained records of this partition */
    bool throttled; /* counts against the leader's replication throttle */
    bool behind;    /* the fetching follower is not in the ISR */
    bool answer;   /* included in this response */
};

/* Result of a worker's step of a wide fetch. */
enum fetch_outcome {
    FETCH_FAILED = 0, /* memory ran out */
    FETCH_MISSES,
    FETCH_WAITS,  /* waiters are linked */
    FETCH_READY,  /* can be answered */
    FETCH_BUILT,  /* the response is complete */
    FETCH_RELEASED
};

/* What the request does next. A stage that waits is entered again when the request continues. */
enum fetch_stage {
    FETCH_LOOK_UP, /* find the logs; waits for missing grants */
    FETCH_READ,    /* take the ranges; a short response may be delayed */
    FETCH_WAIT,    /* link a waiter to each log; then read again */
    FETCH_COLD,    /* read ranges outside the page cache, on the io pool */
    FETCH_RESPOND
};

/* What reading all partitions found. */
struct fetch_found {
    int64_t bytes;   /* total of the ranges */
    bool ready;      /* can be answered now: enough bytes, an error, or nothing to wait for */
    bool needs_disk; /* finding a range would block on a disk */
    bool at_end; /* every range reaches the end offset: more data only arrives over time */
};

struct fetch {
    struct iojob job;        /* first, so that the job can be cast to the fetch */
    struct fetch_set own;    /* of this request; moves into a new session */
    struct fetch_set *set;   /* own, or the session's */
    struct fetch_read *reads; /* one per partition of the set; NULL before the lookup */
    struct serve *serve;     /* of the request's reactor, for the io job */
    struct session *session; /* busy while this request exists; NULL without a session */
    struct grant_requests grant_requests;
    struct isr_candidates *candidates; /* the reactor's list or wide's */
    struct wide *wide;         /* set for more than limits.wide_partitions, or NULL */
    struct cursor forgotten;
    uint32_t voids; /* grants_voids() when the topics were looked up */
    uint32_t counted; /* partitions of this request counted in shared->fetches_waiting */
    int64_t replica_epoch;
    char *rack; /* owned; set if the consumer may be redirected, or NULL */
    struct leaders leaders; /* leaders named in the response */
    int32_t wait_ms, bytes_min, bytes_max, replica_id, session_id, session_epoch;
    int16_t version, error;
    uint8_t stage; /* enum fetch_stage */
    bool flexible, by_id, read_committed, full, waiting, job_running;
    bool lacks_worker; /* the io pool is full: resubmit the job */
    bool recorded;     /* the follower's offsets have been recorded */
    bool throttled;    /* some partition counts against the throttle */
    bool watermark_moved; /* the follower's consumers wait for the new high watermark */
    bool below_min_bytes; /* the ranges found on disk are too small to answer */
    struct fetch_found found;
};

/* A fetch of so many partitions that processing them would block the reactor for too long. A
 * worker processes them; the reactor reads this struct only between jobs. */
struct wide {
    struct serve_request *request;
    struct reply reply; /* moved to the request when complete */
    struct isr_candidates candidates;
    size_t answer_bytes; /* bytes charged to the fetch quota */
    enum fetch_outcome outcome;
    bool granted;     /* the control plane has decided on the missing topics */
    bool last_chance; /* answer with the data available now */
    /* Only the reactor uses these while the job runs. */
    bool again;     /* an end offset has advanced */
    bool timed_out; /* the next job is the last chance */
};

/* Followers set a replica id. */
static inline bool fetch_is_follower(const struct fetch *f) { return f->replica_id >= 0; }
/* Returns true for a consumer's response that is short and reaches the end of its logs: it can
 * be delayed. */
static inline bool fetch_is_short(const struct fetch *f) {
    return f->found.at_end && f->found.bytes > 0 && f->found.bytes < GATHER_BYTES &&
           !fetch_is_follower(f);
}
/* Drops a range that is not sent. A range with a copy must be released on the reactor that owns
 * the copy. */
static inline void fetch_release(struct fetch_read *read) {
    log_range_release(&read->range);
    if (read->copy != NULL) copy_release(read->copy);
    read->copy = NULL;
    free(read->aborted.at);
    read->aborted = (struct log_aborted_list){0};
}
/* ---- fetch_request.c */
/* Parses the request. Returns NULL if it is invalid or memory ran out. */
struct fetch *fetch_parse(struct serve *s, struct serve_request *r);
/* Allocates the per-partition state of this request. Returns false if out of memory. */
bool fetch_take_reads(struct fetch *f);
/* Drops every reference on topics, logs and files before the session is returned. */
void fetch_release_reads(struct fetch *f);
void fetch_release_ranges(struct fetch *f);
void fetch_unwait(struct fetch *f);
void fetch_free(struct serve *s, struct serve_request *r);

/* ---- fetch_batching.c */
/* Delays a short response, if allowed, until r->deadline_ms; nothing else wakes the request.
 * Returns false if the response must not wait. */
bool fetch_delay_response(struct serve *s, struct serve_request *r, struct fetch *f);
/* Sends ranges that several consumers read from memory. */
void fetch_take_copies(struct serve *s, struct fetch *f);
void fetch_release_copies(struct fetch *f);

/* ---- fetch_read.c */
/* Checks epochs in Kafka's order and sets DivergingEpoch in p->read. Returns 0 or an error code. */
int16_t fetch_check_epochs(const struct fetch *f, struct fetch_part *p);

/* Returns the end offset that a fetch waits for, and which kind it is. */
int64_t fetch_awaited_end(const struct fetch *f, const struct log_range *range, uint8_t *kind);
/* Takes the range of every partition, and sets f->found. With `nowait`, stops at a range that a
 * disk must find. */
void fetch_read_all(struct serve *s, struct fetch *f, bool nowait);
/* Returns true if some range is not in the page cache, or must be found on a disk. */
bool fetch_is_cold(const struct fetch *f);
/* Keeps responses with cold data small, so that other requests run in between. */
void fetch_narrow(struct serve *s, struct fetch *f, bool nowait);
/* Reads the ranges into the page cache. Blocks, so it must run on a worker. */
void fetch_warm(struct fetch *f);
int fetch_cold_job(struct iojob *job, void *worker_scratch);
/* Counts the response's bytes of a throttled partition. */
void fetch_count_throttled(const struct serve *s, const struct fetch_part *p);

/* ---- fetch_replicas.c */
/* Records a follower's offsets, once per request, on its reactor. */
void fetch_follow(struct serve *s, struct fetch *f);
/* Returns the replica in the consumer's rack to read from, or -1 (KIP-392). */
int32_t fetch_preferred(struct serve *s, const struct serve_request *r, const struct fetch *f,
                        const struct fetch_part *p);

/* Returns true if the partition was rejected before reading its log: topic or partition unknown,
 * or not authorized. */
static inline bool fetch_is_unknown(const struct fetch_part *p) {
    return p->read->grant_error != 0 && p->read->grant_error != ERROR_NOT_LEADER_OR_FOLLOWER &&
           p->read->grant_error != ERROR_KAFKA_STORAGE_ERROR;
}

/* ---- fetch_response.c */
/* Returns the response size including its size field, without aborted transactions. */
size_t fetch_response_bytes(struct fetch *f);
/* Writes the response from the partitions' ranges. Runs on any thread. */
void fetch_encode(struct serve *s, const struct serve_request *r, struct fetch *f,
                  struct reply *a);
/* Writes a response that contains only the throttle time. */
void fetch_encode_throttled(const struct serve_request *r, const struct fetch *f,
                            struct reply *a);

#endif
