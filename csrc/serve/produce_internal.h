/* Declarations shared by the produce*.c files: a Produce in progress and its parts. */
#ifndef PYLOG_PRODUCE_INTERNAL_H
#define PYLOG_PRODUCE_INTERNAL_H

#include "serve/serve_context.h"

/* v12: a Produce adds its partitions to the transaction (KIP-890). */
enum {
    PARTS_INLINE = 4,
    PRODUCE_PARTS_MAX = 200000,
    PRODUCE_SPARES_MAX = 64,
    ADDING_VERSION_MIN = 12
};

struct produce_part {
    struct topic *topic; /* one reference; NULL if not granted. Only produce_set_topic changes it */
    struct topic_key key; /* as in the request: points into the body, or (keep_keys) the topic */
    struct log *log;     /* borrowed through topic; NULL if that is */
    uint8_t *records;    /* in the body, or recoded */
    uint8_t *recoded;    /* owned; re-encoded for compression.type */
    size_t len;
    int64_t base_offset, last_offset, append_time_ms, log_start_offset;
    struct batch_summary *summary; /* owned; NULL: not checked */
    struct log_waiter waiter;
    uint32_t leadership_losses; /* the log's count when the part was appended */
    int32_t partition;
    int64_t last_marker; /* of the batch's producer, before the coordinator verified it */
    int32_t check; /* batch_error of the check */
    int cause; /* log_error that led to `error`; 0: none */
    bool below_reserve; /* log_append_for_clients rejected it */
    int16_t error;
    bool first_of_topic, waiting;
    bool unverified; /* the coordinator is verifying it */
    bool refused; /* by the producer state: the response has the log start offset, as in Kafka */
};

/* What the request does next. A stage that waits is entered again when the request continues. */
enum produce_stage {
    PRODUCE_LOOK_UP,    /* find the logs; waits for missing grants */
    PRODUCE_VERIFY,     /* find partitions that the transaction's coordinator must verify */
    PRODUCE_VERIFYING,  /* waits for the coordinator */
    PRODUCE_CHECK,      /* check the batches on the reactor */
    PRODUCE_CHECKING,   /* waits for the io workers that check the rest */
    PRODUCE_APPEND_TO_LOGS,     /* append; waits for descriptors, or for other requests */
    PRODUCE_QUEUED,     /* waits to be appended with other requests */
    PRODUCE_APPENDED,   /* appended with others, status not yet returned */
    PRODUCE_ACKNOWLEDGE, /* link a waiter to each log that is not replicated or flushed so far */
    PRODUCE_REPLICATING, /* waits for these */
    PRODUCE_RESPOND
};

struct produce {
    struct iojob job;
    struct serve *serve;
    struct produce_part *parts;
    struct grant_requests grant_requests;
    uint32_t part_count, part_cap;
    uint32_t checked_count, appended_count; /* number of leading parts done */
    int64_t job_ns; /* duration of the last slice on a worker; 0: none yet */
    struct serve_transaction transaction; /* if transactional; the id points into the body */
    uint64_t holder; /* grants_holder() before the coordinator was asked */
    int32_t timeout_ms;
    int16_t acks, version;
    uint8_t stage; /* enum produce_stage */
    bool flexible, by_id, transactional;
    bool job_running; /* while CHECKING; if not set, the io pool was full: resubmit the job */
    struct serve_request *request; /* set while queued or appended */
    struct produce *next;          /* in the list of spares, or of appended requests */
    /* The fields below keep the values of the previous request. */
    struct batch_summary summary_first; /* of the first part */
    struct produce_part parts_inline[PARTS_INLINE];
};

/* Takes ownership of the reference on `topic` and releases the old one: log and topic change
 * together. `error`: set if the part is rejected although the topic exists. */
static inline void produce_set_topic(struct produce_part *p, struct topic *topic, int16_t error) {
    assert(!p->waiting && (p->log == NULL || p->topic != NULL));
    if (p->topic != NULL) topic_release(p->topic);
    p->topic = topic;
    p->log = NULL;
    p->error = error;
    if (topic != NULL && error == 0) p->log = topic_log(topic, p->partition, &p->error);
}

/* ---- produce_request.c */
/* Parses the request. Returns NULL if it is invalid or memory ran out. */
struct produce *produce_parse(struct serve *s, struct serve_request *r);
/* Frees everything and sets r->state to NULL. */
void produce_free(struct serve_request *r);

/* ---- produce_check.c */
/* On a reactor: checks parts within its budget. Returns false if a worker must check the rest. */
bool produce_check(struct produce *q, int64_t now_ms);
/* On a worker: checks parts until its time slice ends, at least one. */
int produce_check_job(struct iojob *job, void *worker_scratch);

/* ---- produce_append.c */
/* Records the result of an append. `error`: a log_error or 0. */
void produce_appended(struct produce_part *p, int error, const struct log_appended *done);
void produce_append_part(const struct produce *q, struct produce_part *p, int64_t now_ms);
/* Appends the remaining parts for one turn. Returns false if parts remain. */
bool produce_append(struct produce *q, int64_t now_ms);
/* Makes topic names point to the topics instead of the body, so that the body can be reused.
 * Returns false if a part has no topic. */
bool produce_keep_keys(struct produce *q);

/* ---- produce_batcher.c */
/* Returns true if the request can be appended with others of its turn. */
static inline bool produce_batcher_accepts(const struct serve *s, const struct serve_request *r,
                                           const struct produce *q) {
    return (r->more || s->group_count != 0) && q->part_count == 1 && r->quota == NULL;
}
/* Queues the request if it can be appended with others of its turn. Returns false otherwise. */
bool produce_batcher_add(struct serve *s, struct serve_request *r, struct produce *q);
/* Appends all queued requests. */
void produce_batcher_append(struct serve *s);
/* Appends all queued requests, then removes and returns the first appended one, or NULL. */
struct produce *produce_batcher_next(struct serve *s);
/* The client has disconnected: its status is no longer returned. A queued request is still
 * appended. */
void produce_batcher_cancel(struct serve *s, struct produce *q);

/* ---- produce_response.c */
/* Writes the response. */
void produce_encode(const struct serve_request *r, const struct produce *q, int32_t throttle_ms,
                    struct reply *a);

#endif
