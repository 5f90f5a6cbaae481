/* Produce and Fetch: from a framed request to a built answer, on a reactor's thread, without
 * Python.
 *
 * Runs on reactor threads only. serve_* never blocks: what may block goes to the io pool, what must
 * wait links waiters, what this layer does not know (a topic without a grant) is a miss for the
 * control plane. Walk: serve_start -> produce.c or fetch.c -> grants (topic, partition log) ->
 * log_append / log_read -> reply. */
#ifndef PYLOG_SERVE_H
#define PYLOG_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "thread/iopool.h"
#include "thread/mailbox.h"
#include "serve/quotas.h"
#include "serve/reply.h"

struct grants;   /* grants.h: topics, partitions and rights, installed by the control plane */
struct sessions; /* sessions.h: fetch sessions (KIP-227) */

enum serve_status {
    SERVE_ANSWER = 0, /* reply is complete */
    SERVE_SILENT = 1, /* done, and nothing is to be sent (acks=0) */
    /* Resumed by MESSAGE_WAKE or MESSAGE_IO_DONE with the request's token, or at deadline_ms. */
    SERVE_WAIT = 2,
    SERVE_MISS =
        3, /* missing[] names what the control plane must decide; resumed with SERVE_GRANTED */
    SERVE_CLOSE = 4, /* not a legal request: close the connection without an answer */
    /* A Produce that is appended with others of this turn; serve_next_appended has its status. */
    SERVE_QUEUED = 5
};
enum serve_reason { SERVE_WOKEN = 1, SERVE_TIMEOUT = 2, SERVE_IO_DONE = 3, SERVE_GRANTED = 4 };

struct serve_missing { /* a topic that has no grant for this principal; names point into the body */
    const uint8_t *name; /* NULL when it was named by id */
    int32_t name_len;
    uint8_t id[16];
    int32_t partition; /* of what the transaction's coordinator is asked, named by name; else -1 */
    int16_t error; /* the control plane's verdict, 0: granted now (set before SERVE_GRANTED) */
};
enum { SERVE_MISSING_MAX = 65536 };

/* Whose transaction the missing partitions are to be part of (KIP-890); points into the body. */
struct serve_transaction {
    const uint8_t *id; /* NULL: topics miss their grants, nothing else does */
    int32_t id_len;
    int16_t epoch;
    int64_t producer_id;
};

struct serve_request {
    /* set by the reactor */
    const uint8_t *body; /* the frame after its header; stays in place while body_needed */
    size_t body_len;
    uint64_t token;      /* names this request in messages */
    int64_t received_ms, now_ms; /* CLOCK_MONOTONIC: when it came, and this turn's */
    uint32_t connection;         /* a number of its own */
    int32_t correlation_id;
    uint32_t principal; /* index given by the control plane at authentication; 0 is anonymous */
    int32_t listener;   /* it came by, for the endpoints that are answered */
    int16_t api_key, api_version;
    const uint8_t *client_id; /* borrowed; NULL when null */
    int32_t client_id_len;
    struct quota_client *quota; /* one reference; NULL: nothing limits this client */
    size_t frame_bytes;         /* of the request, without its size field */
    bool more; /* others are about to start in this turn, so that an append may wait for theirs */
    int64_t began_ns; /* when serve was last entered, CLOCK_MONOTONIC; timed clients only */
    int64_t busy_ns;  /* how long serve has worked on it before that */
    /* set by serve */
    int32_t throttle_ms; /* with ANSWER or SILENT: for how long the connection is to be muted */
    struct reply reply;  /* initialised by the reactor */
    void *state;         /* serve's own; freed by serve_abandon or when the request is done */
    int64_t deadline_ms; /* CLOCK_MONOTONIC, with SERVE_WAIT; INT64_MAX: none */
    struct serve_missing *missing; /* with SERVE_MISS: missing_count entries, owned by state */
    uint32_t missing_count;
    uint8_t missing_right; /* of enum grant_right: what for */
    struct serve_transaction transaction; /* with SERVE_MISS */
    bool body_needed; /* with WAIT or MISS: the body must not move or be reused yet */
    bool exclusive;   /* with WAIT: no later request of this connection may start before this one is
                         answered.   False only for a Produce that is appended and waits for its
                         acknowledgement. */
};

struct throttle;
struct serve_limits {
    int32_t fetch_bytes_max;      /* fetch.max.bytes of the broker */
    int32_t sessions_max;         /* max.incremental.fetch.session.cache.slots */
    int32_t inline_inflate_bytes; /* compressed batches above this are checked on the io pool */
    uint32_t wide_partitions; /* a Fetch of more runs on the io pool; 0: the default */
    int32_t gather_ms_max; /* fetch.gather.max.ms: how long a short answer may wait for more */
    bool rack_aware; /* consumers are sent to a replica in their rack (KIP-392) */
    /* Of what followers fetch that are not in the ISR, from partitions that count on it; outlives
     * what is shared. NULL: none do. */
    struct throttle *throttle;
};

/* What all reactors share. The pool's workers have a scratch (scratch.h). */
struct serve_shared;
struct serve_shared *serve_shared_new(struct grants *grants, struct iopool *pool,
                                      const struct serve_limits *limits);
void serve_shared_free(struct serve_shared *shared);
/* The wall clock is the system's plus this from now on; deadlines go by the system's own. */
void serve_shared_set_wall_ahead(struct serve_shared *shared, int64_t ahead_ms);
/* Gauges for metrics: open fetch sessions. */
void serve_shared_stats(struct serve_shared *shared, uint64_t *sessions);

/* What one reactor thread owns: scratch, inflater, its mailbox's name. */
struct serve;
struct serve *serve_new(struct serve_shared *shared, struct mailbox *mailbox);
/* Where the errors that are answered to partitions are counted: by api key, FRAMES_API_KEYS_MAX of
 * them; NULL, as at first: nowhere. */
struct meter_api;
void serve_meter(struct serve *s, struct meter_api *apis);
/* Each second, on its reactor: ends what is too old. `now_ms`: of the monotonic clock. */
void serve_tick(struct serve *s, int64_t now_ms);
void serve_free(struct serve *s);

/* A follower that may join the ISR (KIP-497), by its last fetch. */
struct serve_join {
    uint8_t topic_id[16];
    int32_t partition, broker;
};
/* Those since the last call, on its reactor: borrowed until the next request. */
uint32_t serve_take_joins(struct serve *s, const struct serve_join **joins);

/* True for what serve_start answers: Produce and Fetch at the versions of api_keys.h. */
bool serve_knows(int16_t api_key, int16_t api_version);
enum serve_status serve_start(struct serve *s, struct serve_request *r);
enum serve_status serve_resume(struct serve *s, struct serve_request *r, enum serve_reason reason);
/* Appends what is queued; then one request after the other that was, and its status. NULL: that
 * was the last. To be called before the thread sleeps. */
struct serve_request *serve_next_appended(struct serve *s, enum serve_status *status);
/* Some are to be appended, or were and serve_next_appended has not said so yet. */
bool serve_is_queued(const struct serve *s);
/* The connection is gone. True: everything is released. False: a job still reads the body; keep
 * request and body, and call again at its MESSAGE_IO_DONE. */
bool serve_abandon(struct serve *s, struct serve_request *r);

#endif
