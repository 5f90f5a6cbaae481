/* Fetch sessions (KIP-227): the broker remembers what a consumer fetches, so that requests
 * contain only changes and responses only news.
 *
 * A `fetch_set` is an ordered set of partitions with the state of each; a session is a set with
 * an id and an epoch. A request without a session owns a set for its own lifetime. Threads: the
 * table has a lock; a set belongs to the request that acquired its session, until it is
 * returned.
 *
 * Invariants: idle sessions are small: a session that no request holds has only names and ids,
 * no topic, log or file; memory is bounded: while no request holds a session, the sets of all
 * sessions take at most SESSIONS_BYTES_MAX; idle sessions are ordered by the time of their last
 * use. */
#ifndef PYLOG_FETCH_SESSIONS_H
#define PYLOG_FETCH_SESSIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "format/bytes.h"

enum {
    FETCH_PARTITIONS_MAX = 200000, /* per request or session */
    SESSIONS_BYTES_MAX = 64 << 20, /* all sessions: about 600,000 partitions */
    SESSION_IDLE_MS = 120000       /* idle sessions expire after this time */
};

/* A topic's name or id, shared by its partitions in a set. */
struct fetch_key {
    uint32_t references, len;
    uint8_t bytes[];
};

struct fetch_part {
    struct fetch_key *key;
    struct fetch_read *read; /* of the current request (fetch_internal.h); NULL without one */
    /* from the client's request */
    int64_t offset, start_offset; /* start_offset: of a follower's log */
    int32_t partition, bytes_max, leader_epoch, last_fetched_epoch;
    /* values in the last response (sessions only) */
    int64_t answered_high_watermark, answered_log_start;
    struct fetch_part *next, *prev; /* service order */
    struct fetch_part *chain;       /* hash bucket */
};

struct fetch_set {
    struct fetch_part *first, *last;
    struct fetch_part **buckets;
    size_t bytes; /* total memory of the set */
    const uint64_t *seed; /* two words, for the hash table */
    uint32_t bucket_count, count;
    bool by_id;
};

/* `seed`: two words, secret and borrowed. Without a secret, clients could choose partitions with
 * colliding hashes and slow down all others. */
static inline void fetch_set_init(struct fetch_set *set, bool by_id, const uint64_t seed[2]) {
    memset(set, 0, sizeof *set);
    set->by_id = by_id;
    set->seed = seed;
}
void fetch_set_clear(struct fetch_set *set);
/* Returns the part with this key (a name, or 16 bytes of id); creates it if `create`. Returns NULL
 * if absent, out of memory or over FETCH_PARTITIONS_MAX. */
struct fetch_part *fetch_set_part(struct fetch_set *set, const uint8_t *key, uint32_t key_len,
                                  int32_t partition, bool create);
void fetch_set_remove(struct fetch_set *set, struct fetch_part *part);
/* Parses the forgotten partitions of a request and removes them from the set; NULL: only skips
 * them. Returns false if the request is invalid. */
bool fetch_set_forget(struct fetch_set *set, struct cursor *c, bool flexible, bool by_id);
/* Moves the part to the end of the service order: keeps one busy partition from starving the
 * others. */
void fetch_set_move_to_end(struct fetch_set *set, struct fetch_part *part);
static inline bool fetch_same_topic(const struct fetch_part *a, const struct fetch_part *b) {
    if (a->key == b->key) return true;
    if (a->key->len != b->key->len) return false;
    for (uint32_t i = 0; i < a->key->len; i++)
        if (a->key->bytes[i] != b->key->bytes[i]) return false;
    return true;
}

struct sessions;
struct session {
    struct fetch_set set;
    size_t bytes; /* of the set, as counted in the total */
    int64_t used_ms;
    int32_t id, epoch; /* epoch: expected in the next request */
    uint32_t principal;
    bool busy, dead;
    struct session *chain;
    struct session *newer, *older; /* of the idle sessions */
};

struct sessions *sessions_new(uint32_t slots);
/* Returns the seed for sets that become sessions. */
const uint64_t *sessions_seed(const struct sessions *s);
void sessions_free(struct sessions *s);
uint32_t sessions_count(struct sessions *s);
/* Creates a busy session that takes over `set` (cleared on success). Returns NULL if there is no
 * slot or no room. `random`: any number. */
struct session *sessions_create(struct sessions *s, struct fetch_set *set, uint32_t principal,
                                uint64_t random, int64_t now_ms);
/* Finds the session for the request's epoch. Returns 0 and *out, busy, or error 70, 71 or 106. */
int16_t sessions_acquire(struct sessions *s, int32_t id, int32_t epoch, bool by_id,
                         uint32_t principal, struct session **out);
/* Call after the set of a busy session has changed. Returns false if there is no room: the
 * session must be closed. */
bool sessions_resize(struct sessions *s, struct session *session, int64_t now_ms);
/* A request that opens, continues or closes a session. */
struct fetch_sessions_open {
    struct fetch_set *own;   /* the request's partitions; cleared if a session takes them */
    struct cursor forgotten; /* the request's forgotten partitions */
    bool flexible;
    uint32_t principal;
    int64_t now_ms;
    atomic_uint_fast64_t *random; /* for session ids */
    int32_t id, epoch;       /* of the request; then id: of the session, 0: none */
    struct session *session; /* result, busy; NULL: without a session */
    bool full;               /* result: the response lists all partitions */
};
/* Chooses the set to fetch: the request's own, a new session's or an existing session's. Returns
 * 0 or a top-level error. */
int16_t fetch_sessions_open(struct sessions *s, struct fetch_sessions_open *o);
void sessions_return(struct sessions *s, struct session *session, int64_t now_ms);
void sessions_close(struct sessions *s, int32_t id, uint32_t principal);
/* Closes sessions that were idle for too long. */
void sessions_expire(struct sessions *s, int64_t now_ms);

#endif
