/* Fetch sessions (KIP-227): what a consumer fetches, remembered, so that it sends only changes and
 * gets only news.
 *
 * A `fetch_set` is an ordered set of partitions with the state of each; a session is a set with an
 * id and an epoch. A request without a session owns a set for its own lifetime. Threads: the table
 * has a lock; a set belongs to the one request that acquired its session, until it is returned.
 *
 * Invariants: (1) a session that no request holds has names and ids only: no topic, log or file;
 * (2) all sessions' sets together take at most SESSIONS_BYTES_MAX when none is held by a request;
 * (3) idle sessions are listed by the time of their last use. */
#ifndef PYLOG_SESSIONS_H
#define PYLOG_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FETCH_PARTITIONS_MAX = 200000, /* in one request or session */
    SESSIONS_BYTES_MAX = 64 << 20, /* all sessions: some 600,000 partitions */
    SESSION_IDLE_MS = 120000       /* a session that was not used for longer ends */
};

/* A topic's name or its id, shared by a set's partitions of it. */
struct fetch_key {
    uint32_t references, len;
    uint8_t bytes[];
};

struct fetch_part {
    struct fetch_key *key;
    struct fetch_read *read; /* this request's (fetch_state.h); NULL while none holds the set */
    /* what the client asked */
    int64_t offset, start_offset; /* the latter: where a follower's log begins */
    int32_t partition, bytes_max, leader_epoch, last_fetched_epoch;
    /* what the last answer said of it (a session's) */
    int64_t answered_high_watermark, answered_log_start;
    struct fetch_part *next, *prev; /* order of service */
    struct fetch_part *chain;       /* hash bucket */
};

struct fetch_set {
    struct fetch_part *first, *last;
    struct fetch_part **buckets;
    size_t bytes; /* what all of it takes */
    const uint64_t *seed; /* two words, of the table's hash */
    uint32_t bucket_count, count;
    bool by_id;
};

/* `seed`: two words that no client knows, borrowed: whoever names partitions that meet in the table
 * would hold up all others. */
void fetch_set_init(struct fetch_set *set, bool by_id, const uint64_t seed[2]);
void fetch_set_clear(struct fetch_set *set);
/* The part with this key (a name, or 16 bytes of id), made when `make`. NULL when absent, out of
 * memory or over FETCH_PARTITIONS_MAX. */
struct fetch_part *fetch_set_part(struct fetch_set *set, const uint8_t *key, uint32_t key_len,
                                  int32_t partition, bool make);
void fetch_set_remove(struct fetch_set *set, struct fetch_part *part);
/* Served last next time: keeps one busy partition from starving the others. */
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
    size_t bytes; /* of the set, as counted for all sessions */
    int64_t used_ms;
    int32_t id, epoch; /* the epoch that the next request must carry */
    uint32_t principal;
    bool busy, dead;
    struct session *chain;
    struct session *newer, *older; /* of the idle ones */
};

struct sessions *sessions_new(uint32_t slots);
/* For the sets that go with them. */
const uint64_t *sessions_seed(const struct sessions *s);
void sessions_free(struct sessions *s);
uint32_t sessions_count(struct sessions *s);
/* A new session that takes over `set` (cleared on success), busy; NULL when there is no slot or no
 * room. `random`: any number. */
struct session *sessions_create(struct sessions *s, struct fetch_set *set, uint32_t principal,
                                uint64_t random, int64_t now_ms);
/* Existing session for the request's epoch. 0 and *out busy, or 70 / 71 / 106. */
int16_t sessions_acquire(struct sessions *s, int32_t id, int32_t epoch, bool by_id,
                         uint32_t principal, struct session **out);
/* After the set of a busy session changed. False: there is no room for it, the session must end. */
bool sessions_resize(struct sessions *s, struct session *session, int64_t now_ms);
void sessions_return(struct sessions *s, struct session *session, int64_t now_ms);
void sessions_close(struct sessions *s, int32_t id, uint32_t principal);
/* Ends the sessions that were idle for too long. */
void sessions_expire(struct sessions *s, int64_t now_ms);

#endif
