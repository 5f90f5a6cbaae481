/* Produce and Fetch: from a framed request to a complete response, on a reactor's thread,
 * without Python.
 *
 * Runs on reactor threads only. serve_* never blocks: blocking work goes to the io pool, waiting
 * requests link waiters, and a topic without a grant is a miss that the control plane resolves.
 * Walk: serve_start -> produce.c or fetch.c -> grants (topic, partition log) -> log_append /
 * log_read -> reply. */
#ifndef PYLOG_SERVE_H
#define PYLOG_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/io_pool.h"
#include "os/mailbox.h"
#include "serve/response.h"
#include "tables/quotas.h"

struct grants;   /* grants.h: topics, partitions and rights, installed by the control plane */
struct sessions; /* fetch_sessions.h: fetch sessions (KIP-227) */

enum serve_status {
    SERVE_ANSWER = 0, /* reply is complete */
    SERVE_SILENT = 1, /* done without a response (acks=0) */
    /* Resumed by MESSAGE_WAKE or MESSAGE_IO_DONE with the request's token, or at deadline_ms. */
    SERVE_WAIT = 2,
    SERVE_MISS =
        3, /* missing[] lists what the control plane must decide; resumed with SERVE_GRANTED */
    SERVE_CLOSE = 4, /* invalid request: close the connection without a response */
    /* A Produce that is appended together with others of this turn; serve_next_appended returns
     * its status. */
    SERVE_QUEUED = 5
};
/* SERVE_STARTED: only within serve. */
enum serve_reason {
    SERVE_STARTED = 0,
    SERVE_WOKEN = 1,
    SERVE_TIMEOUT = 2,
    SERVE_IO_DONE = 3,
    SERVE_GRANTED = 4
};

struct serve_missing { /* a topic without a grant for this principal; names point into the body */
    const uint8_t *name; /* NULL if named by id */
    int32_t name_len;
    uint8_t id[16];
    int32_t partition; /* to verify with the transaction's coordinator (name is set); else -1 */
    int16_t error; /* the control plane's verdict, 0: now granted (set before SERVE_GRANTED) */
};
enum { SERVE_MISSING_MAX = 65536 };

/* The transaction of the missing partitions (KIP-890); points into the body. */
struct serve_transaction {
    const uint8_t *id; /* NULL: the missing entries are only topics without a grant */
    int32_t id_len;
    int16_t epoch;
    int64_t producer_id;
};

struct serve_request {
    /* set by the reactor */
    const uint8_t *body; /* the frame after its header; must stay in place while body_needed */
    size_t body_len;
    uint64_t token;      /* identifies this request in messages */
    int64_t received_ms, now_ms; /* CLOCK_MONOTONIC: arrival, and start of this turn */
    uint32_t connection;         /* identifies the connection */
    int32_t correlation_id;
    uint32_t principal; /* index assigned by the control plane at authentication; 0 is anonymous */
    int32_t listener;   /* of the connection; selects the endpoints in responses */
    int16_t api_key, api_version;
    const uint8_t *client_id; /* borrowed; NULL when null */
    int32_t client_id_len;
    struct quota_client *quota; /* one reference; NULL: no quota applies */
    size_t frame_bytes;         /* of the request, without its size field */
    bool more; /* more requests start in this turn: an append may wait to join theirs */
    int64_t began_ns; /* CLOCK_MONOTONIC of the last call into serve; needs a request quota */
    int64_t busy_ns;  /* time spent in serve before that call */
    /* set by serve */
    int32_t throttle_ms; /* with ANSWER or SILENT: how long to mute the connection */
    struct reply reply;  /* initialised by the reactor */
    void *state;         /* private to serve; freed by serve_abandon or on completion */
    int64_t deadline_ms; /* CLOCK_MONOTONIC, with SERVE_WAIT; INT64_MAX: none */
    struct serve_missing *missing; /* with SERVE_MISS: missing_count entries, owned by state */
    uint32_t missing_count;
    uint8_t missing_right; /* enum grant_right that the request needs */
    struct serve_transaction transaction; /* with SERVE_MISS */
    bool body_needed; /* with WAIT or MISS: the body must not be moved or reused yet */
    /* With WAIT: later requests of this connection must not start yet. Only false for a Produce
     * that is appended and waits for its acknowledgement. */
    bool exclusive;
};

struct throttle;
struct serve_limits {
    int32_t fetch_bytes_max;      /* fetch.max.bytes of the broker */
    int32_t sessions_max;         /* max.incremental.fetch.session.cache.slots */
    int32_t inline_inflate_bytes; /* larger compressed batches are checked on the io pool */
    uint32_t wide_partitions; /* a Fetch of more partitions runs on the io pool; 0: default */
    int32_t gather_ms_max; /* fetch.batching.max.ms: maximum delay of a short response */
    bool rack_aware; /* consumers are redirected to a replica in their rack (KIP-392) */
    /* Limits what out-of-sync followers fetch from throttled partitions. Must outlive
     * serve_shared. NULL: no throttle. */
    struct throttle *throttle;
};

/* State shared by all reactors. The pool's workers need a scratch (scratch.h). */
struct serve_shared;
struct serve_shared *serve_shared_new(struct grants *grants, struct iopool *pool,
                                      const struct serve_limits *limits);
void serve_shared_free(struct serve_shared *shared);
/* Sets the offset of the wall clock from the system's wall clock. Deadlines are not affected. */
void serve_shared_set_wall_ahead(struct serve_shared *shared, int64_t ahead_ms);
/* Gauges for metrics: open fetch sessions. */
void serve_shared_stats(struct serve_shared *shared, uint64_t *sessions);

/* State of one reactor thread: scratch, inflater, mailbox. */
struct serve;
struct serve *serve_new(struct serve_shared *shared, struct mailbox *mailbox);
/* Sets where partition errors are counted: FRAMES_API_KEYS_MAX entries, indexed by API key. NULL
 * (initially): not counted. */
struct meter_api;
void serve_meter(struct serve *s, struct meter_api *apis);
/* Call each second on its reactor: expires old entries. `now_ms`: monotonic clock. */
void serve_tick(struct serve *s, int64_t now_ms);
void serve_free(struct serve *s);

/* A follower whose last fetch qualifies it for the ISR (KIP-497). */
struct isr_candidate {
    uint8_t topic_id[16];
    int32_t partition, broker;
};
/* Returns the followers since the last call, borrowed until the next request. Call it on its
 * reactor. */
uint32_t serve_take_isr_candidates(struct serve *s, const struct isr_candidate **candidates);

/* Returns true for requests that serve_start supports: Produce and Fetch with the versions of
 * api_keys.h. */
bool serve_knows(int16_t api_key, int16_t api_version);
enum serve_status serve_start(struct serve *s, struct serve_request *r);
enum serve_status serve_resume(struct serve *s, struct serve_request *r, enum serve_reason reason);
/* Appends queued requests, then returns them one by one with their status, and NULL after the
 * last. Call it before the thread sleeps. */
struct serve_request *serve_next_appended(struct serve *s, enum serve_status *status);
/* Returns true if requests are queued, or appended but not yet returned by serve_next_appended. */
bool serve_is_queued(const struct serve *s);
/* Call when the connection is closed. Returns true if everything is released, false if a job
 * still reads the body: then keep request and body, and call again at its MESSAGE_IO_DONE. */
bool serve_abandon(struct serve *s, struct serve_request *r);

#endif
