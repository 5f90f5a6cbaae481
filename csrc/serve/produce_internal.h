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
    struct topic *topic; /* one reference; NULL if not granted. Only set_topic changes it */
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
    bool below_reserve; /* log_reserve_space rejected it */
    int16_t error;
    bool first_of_topic, waiting;
    bool unverified; /* the coordinator is verifying it */
    bool refused; /* by the producer state: the response has the log start offset, as in Kafka */
};

struct produce {
    struct iojob job;
    struct serve *serve;
    struct produce_part *parts;
    struct misses misses;
    uint32_t part_count, part_cap;
    uint32_t checked_count, appended_count; /* number of leading parts done */
    int64_t job_ns; /* duration of the last slice on a worker; 0: none yet */
    struct serve_transaction transaction; /* if transactional; the id points into the body */
    uint64_t holder; /* grants_holder() before the coordinator was asked */
    int32_t timeout_ms;
    int16_t acks, version;
    bool flexible, by_id, transactional, job_running, verifying;
    bool lacks_worker; /* the io pool is full: resubmit the job */
    bool pauses;       /* waits before appending: for file descriptors, or for other requests */
    bool queued, appended; /* waits in a group; appended with it, status not yet returned */
    struct serve_request *request; /* set while queued or appended */
    struct produce *next;          /* in the list of spares, or of appended requests */
    /* The fields below keep the values of the previous request. */
    struct batch_summary summary_first; /* of the first part */
    struct produce_part parts_inline[PARTS_INLINE];
};

/* Frees everything and sets r->state to NULL. */
void produce_free(struct serve_request *r);

/* ---- produce_batcher.c */
/* Queues the request if it can be appended with others of its turn. Returns false otherwise. */
bool produce_group_take(struct serve *s, struct serve_request *r, struct produce *q);
/* Appends all queued requests. */
void produce_group_append(struct serve *s);
/* The client has disconnected: its status is no longer returned. A queued request is still
 * appended. */
void produce_group_leave(struct serve *s, struct produce *q);

/* ---- produce_append.c */
/* Records the result of an append. `error`: a log_error or 0. */
void produce_appended(struct produce_part *p, int error, const struct log_appended *done);
void produce_append_part(const struct produce *q, struct produce_part *p, int64_t now_ms);
/* After its parts are appended: answers, or returns SERVE_WAIT for the acknowledgement. */
enum serve_status produce_acknowledge(struct serve_request *r, struct produce *q);
/* Makes topic names point to the topics instead of the body, so that the body can be reused.
 * Returns false if a part has no topic. */
bool produce_keep_keys(struct produce *q);
/* Appends the parts without errors, then answers or waits for the acknowledgement. */
enum serve_status produce_append(struct serve_request *r, struct produce *q, int64_t now_ms);
/* After a wake-up or at the deadline: checks all waiting parts; parts that cannot be
 * acknowledged get an error. */
enum serve_status produce_look_again(struct serve_request *r, struct produce *q, bool timed_out);

/* ---- produce_response.c */
/* Builds the response and frees everything else. */
enum serve_status produce_answer(struct serve_request *r, struct produce *q);

#endif
