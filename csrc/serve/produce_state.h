/* What the produce*.c share: a Produce under way and its parts. */
#ifndef PYLOG_PRODUCE_STATE_H
#define PYLOG_PRODUCE_STATE_H

#include "serve/serve_state.h"

/* v12: what a transaction writes to becomes part of it (KIP-890). */
enum {
    PARTS_INLINE = 4,
    PRODUCE_PARTS_MAX = 200000,
    PRODUCE_SPARES_MAX = 64,
    ADDING_VERSION_MIN = 12
};

struct produce_part {
    struct topic *topic; /* one reference; NULL when not granted. Changed by set_topic alone */
    struct topic_key key; /* as the request named it: in the body, or (keep_keys) the topic's own */
    struct log *log;     /* borrowed through topic: NULL when that is */
    uint8_t *records;    /* in the body, or recoded */
    uint8_t *recoded;    /* owned: after compression.type */
    size_t len;
    int64_t base_offset, last_offset, append_time_ms, log_start_offset;
    struct batch_summary *summary; /* owned; NULL: it was not checked */
    struct log_waiter waiter;
    uint32_t resignations; /* the log's when it was appended */
    int32_t partition;
    int64_t last_marker; /* of the batch's producer, when its coordinator was asked */
    int32_t check; /* batch_error of the check */
    int cause; /* log_error behind `error`; 0: none */
    bool below_reserve; /* log_take_room refused it */
    int16_t error;
    bool first_of_topic, waiting;
    bool unverified; /* the coordinator is being asked about it */
    bool refused; /* by the producer state: answered with the log start, as in Kafka */
};

struct produce {
    struct iojob job;
    struct serve *serve;
    struct produce_part *parts;
    struct misses misses;
    uint32_t part_count, part_cap;
    uint32_t checked_count, appended_count; /* the first so many parts are */
    int64_t job_ns; /* how long the last slice of a worker took; 0: none had it */
    struct serve_transaction transaction; /* of transactional batches; the id lies in the body */
    uint64_t holder; /* of the right to write in the transaction, as of before it was asked for */
    int32_t timeout_ms;
    int16_t acks, version;
    bool flexible, by_id, transactional, job_running, verifying;
    bool lacks_worker; /* the io pool is full: it waits to be submitted again */
    bool pauses;       /* it waits to append: for files, or for the turn of others */
    bool queued, appended; /* to be appended with others; it was, and its status is due */
    struct serve_request *request; /* while one of these is set */
    struct produce *next;          /* among spares, or those whose status is due */
    /* What follows is as the last request left it. */
    struct batch_summary summary_first; /* of the first part */
    struct produce_part parts_inline[PARTS_INLINE];
};

/* Lets go of everything; r->state is NULL. */
void produce_free(struct serve_request *r);

/* ---- produce_group.c */
/* Whether the request is appended with others of its turn. */
bool produce_group_take(struct serve *s, struct serve_request *r, struct produce *q);
/* Appends all that are queued. */
void produce_group_append(struct serve *s);
/* Its client is gone: its status is not due any more. It is appended all the same. */
void produce_group_leave(struct serve *s, struct produce *q);

/* ---- produce_append.c */
/* Enters what became of an append. `error`: a log_error or 0. */
void produce_appended(struct produce_part *p, int error, const struct log_appended *done);
void produce_append_part(const struct produce *q, struct produce_part *p, int64_t now_ms);
/* Its parts are appended: the answer, or SERVE_WAIT for what acknowledges them. */
enum serve_status produce_acknowledge(struct serve_request *r, struct produce *q);
/* The request's names lie in the body; once it may be reused they are needed from elsewhere. Only
 * then. */
bool produce_keep_keys(struct produce *q);
/* Appends the parts that have no error, and answers, or waits for what acknowledges them. */
enum serve_status produce_append(struct serve_request *r, struct produce *q, int64_t now_ms);
/* After a wake or at the deadline: what is still waiting, and what will never come. */
enum serve_status produce_look_again(struct serve_request *r, struct produce *q, bool timed_out);

/* ---- produce_answer.c */
/* Builds the answer, and frees the rest. */
enum serve_status produce_answer(struct serve_request *r, struct produce *q);

#endif
