/* Fetch sessions (KIP-227): what a consumer fetches, remembered, so that it sends only changes and
 * gets only news.
 *
 * A `fetch_set` is an ordered set of partitions with the state of each; a session is a set with an
 * id and an epoch. A request without a session owns a set for its own lifetime. Threads: the table
 * has a lock; a set belongs to the one request that acquired its session, until it is returned. */
#ifndef PYLOG_SESSIONS_H
#define PYLOG_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "grants.h"
#include "log.h"

enum {
    FETCH_PARTITIONS_MAX = 200000, /* in one request or session */
    SESSION_IDLE_MS = 120000       /* a session idle for longer may be evicted for a new one */
};

struct fetch_part {
    /* what the client asked */
    int64_t offset, log_start_offset;
    int32_t partition, bytes_max, leader_epoch, last_fetched_epoch;
    uint32_t name_len;
    char *name; /* owned; NULL when named by id */
    uint8_t id[16];
    /* what it was found to be; valid while `changes` is the grants' */
    struct topic *topic; /* one reference, or NULL */
    struct log *log;     /* borrowed through topic */
    uint32_t changes;
    int16_t grant_error; /* the control plane's last verdict for this request */
    /* what it was last told (a session's) */
    int64_t told_high_watermark, told_log_start;
    /* this answer */
    struct log_range range;
    int64_t diverging_end;
    int32_t diverging_epoch; /* -1: none */
    int16_t error;
    bool had_data; /* the answer carried records of it */
    bool answer;   /* goes into this answer */
    struct log_waiter waiter;
    struct fetch_part *next, *prev; /* order of service */
    struct fetch_part *chain;       /* hash bucket */
};

struct fetch_set {
    struct fetch_part *first, *last;
    struct fetch_part **buckets;
    uint32_t bucket_count, count;
    bool by_id;
};

void fetch_set_init(struct fetch_set *set, bool by_id);
void fetch_set_clear(struct fetch_set *set);
/* The part with this key, made when `make`. NULL when absent, out of memory or over
 * FETCH_PARTITIONS_MAX. */
struct fetch_part *fetch_set_part(struct fetch_set *set, const uint8_t *name, uint32_t name_len,
                                  const uint8_t *id, int32_t partition, bool make);
void fetch_set_remove(struct fetch_set *set, struct fetch_part *part);
/* Served last next time: keeps one busy partition from starving the others. */
void fetch_set_move_to_end(struct fetch_set *set, struct fetch_part *part);

struct sessions;
struct session {
    struct fetch_set set;
    int64_t used_ms;
    int32_t id, epoch; /* the epoch that the next request must carry */
    uint32_t principal;
    bool busy, dead;
    struct session *chain;
};

struct sessions *sessions_new(uint32_t slots);
void sessions_free(struct sessions *s);
uint32_t sessions_count(struct sessions *s);
/* A new session that takes over `set` (cleared on success), busy; NULL when there is no slot.
 * `random`: any number. */
struct session *sessions_create(struct sessions *s, struct fetch_set *set, uint32_t principal,
                                uint64_t random, int64_t now_ms);
/* Existing session for the request's epoch. 0 and *out busy, or 70 / 71 / 106. */
int16_t sessions_acquire(struct sessions *s, int32_t id, int32_t epoch, bool by_id,
                         uint32_t principal, struct session **out);
void sessions_return(struct sessions *s, struct session *session, int64_t now_ms);
void sessions_close(struct sessions *s, int32_t id, uint32_t principal);

#endif
