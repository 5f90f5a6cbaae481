/* Sets are hash tables linked by a list in service order. Sessions are in a small hash table,
 * limited by its slots and by the bytes of its sets; the idle ones are linked by age.
 *
 * Not khash or uthash: a set has up to 200,000 partitions. The chain takes 8 bytes per
 * partition, and partitions share keys. uthash would take 56 bytes each, and khash a copy of the
 * key or a pointer to follow at each probe. Sessions have a fixed number of chains, a few lines
 * of code.
 *
 * Sets use SipHash with a secret seed, because clients choose the keys before it is checked that
 * such topics exist. */
#include "serve/fetch_sessions.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "compaction/offset_map.h"
#include "format/assertion.h"
#include "os/lock.h"
#include "serve/wire.h"
#include "tables/error_codes.h"

enum {
    SESSION_BUCKETS = 1024,
    SET_BUCKETS_FIRST = 8
};

/* Returns the number of bytes freed. */
static size_t key_release(struct fetch_key *key) {
    assert(key->references > 0);
    if (--key->references > 0) return 0;
    size_t bytes = sizeof *key + key->len;
    free(key);
    return bytes;
}

static size_t part_free(struct fetch_part *p) {
    assert(p->read == NULL); /* Keeps idle sessions small: the topics were released before. */
    size_t bytes = sizeof *p + key_release(p->key);
    free(p);
    return bytes;
}

void fetch_set_clear(struct fetch_set *set) {
    size_t bytes = set->bucket_count * sizeof(struct fetch_part *);
    for (struct fetch_part *p = set->first, *next; p != NULL; p = next) {
        next = p->next;
        bytes += part_free(p);
    }
    assert(bytes == set->bytes);
    free(set->buckets);
    fetch_set_init(set, set->by_id, set->seed);
}

static uint32_t part_hash(const struct fetch_set *set, const uint8_t *key, uint32_t len,
                          int32_t partition) {
    const uint64_t seed[2] = {set->seed[0], set->seed[1] ^ (uint32_t)partition};
    return (uint32_t)offset_map_hash_of(seed, key, len).low;
}

static uint32_t hash_of(const struct fetch_set *set, const struct fetch_part *p) {
    return part_hash(set, p->key->bytes, p->key->len, p->partition);
}

static bool set_grow(struct fetch_set *set) {
    uint32_t count = set->bucket_count == 0 ? SET_BUCKETS_FIRST : set->bucket_count * 2;
    struct fetch_part **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL) return set->bucket_count != 0;
    free(set->buckets);
    set->bytes += (count - set->bucket_count) * sizeof *buckets;
    set->buckets = buckets;
    set->bucket_count = count;
    for (struct fetch_part *p = set->first; p != NULL; p = p->next) {
        struct fetch_part **at = &buckets[hash_of(set, p) & (count - 1)];
        p->chain = *at;
        *at = p;
    }
    return true;
}

static void list_append(struct fetch_set *set, struct fetch_part *p) {
    p->next = NULL;
    p->prev = set->last;
    if (set->last != NULL)
        set->last->next = p;
    else
        set->first = p;
    set->last = p;
}

static void list_remove(struct fetch_set *set, struct fetch_part *p) {
    if (p->prev != NULL)
        p->prev->next = p->next;
    else
        set->first = p->next;
    if (p->next != NULL)
        p->next->prev = p->prev;
    else
        set->last = p->prev;
}

static bool key_is(const struct fetch_key *key, const uint8_t *bytes, uint32_t len) {
    return key->len == len && memcmp(key->bytes, bytes, len) == 0;
}

/* Returns a reference on the key. Consecutive parts with the same key share it. */
static struct fetch_key *key_new(struct fetch_set *set, const uint8_t *bytes, uint32_t len) {
    struct fetch_key *key = set->last == NULL ? NULL : set->last->key;
    if (key == NULL || !key_is(key, bytes, len)) {
        key = malloc(sizeof *key + len);
        if (key == NULL) return NULL;
        key->references = 0;
        key->len = len;
        memcpy(key->bytes, bytes, len);
        set->bytes += sizeof *key + len;
    }
    key->references++;
    return key;
}

static struct fetch_part *part_new(struct fetch_set *set, const uint8_t *key, uint32_t key_len,
                                   int32_t partition) {
    struct fetch_part *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->key = key_new(set, key, key_len);
    if (p->key == NULL) {
        free(p);
        return NULL;
    }
    p->partition = partition;
    p->answered_high_watermark = p->answered_log_start = -1;
    set->bytes += sizeof *p;
    return p;
}

struct fetch_part *fetch_set_part(struct fetch_set *set, const uint8_t *key, uint32_t key_len,
                                  int32_t partition, bool create) {
    uint32_t hash = part_hash(set, key, key_len, partition);
    struct fetch_part *p =
        set->bucket_count == 0 ? NULL : set->buckets[hash & (set->bucket_count - 1)];
    for (; p != NULL; p = p->chain)
        if (p->partition == partition && key_is(p->key, key, key_len)) return p;
    if (!create || set->count >= FETCH_PARTITIONS_MAX) return NULL;
    if (set->count >= set->bucket_count && !set_grow(set)) return NULL;
    p = part_new(set, key, key_len, partition);
    if (p == NULL) return NULL;
    struct fetch_part **at = &set->buckets[hash & (set->bucket_count - 1)];
    p->chain = *at;
    *at = p;
    list_append(set, p);
    set->count++;
    assert_slow(set->count <= FETCH_PARTITIONS_MAX && set->first != NULL);
    return p;
}

void fetch_set_remove(struct fetch_set *set, struct fetch_part *part) {
    struct fetch_part **at = &set->buckets[hash_of(set, part) & (set->bucket_count - 1)];
    while (*at != part) at = &(*at)->chain;
    *at = part->chain;
    list_remove(set, part);
    assert(set->count > 0);
    set->count--;
    assert((set->count == 0) == (set->first == NULL));
    size_t bytes = part_free(part);
    assert(set->bytes >= bytes);
    set->bytes -= bytes;
}

bool fetch_set_forget(struct fetch_set *set, struct cursor *c, bool flexible, bool by_id) {
    int64_t topics = wire_count(c, flexible);
    for (int64_t i = 0; i < topics && c->p != NULL; i++) {
        struct topic_key key;
        if (!wire_topic_key(c, flexible, by_id, &key)) return false;
        int64_t count = wire_count(c, flexible);
        if (count < 0) return false;
        for (int64_t j = 0; j < count && c->p != NULL; j++) {
            int32_t partition = cursor_i32(c);
            if (c->p == NULL || set == NULL) continue;
            struct fetch_part *p = fetch_set_part(set, key.bytes, key.len, partition, false);
            if (p != NULL) fetch_set_remove(set, p);
        }
        wire_skip_tags(c, flexible);
    }
    return c->p != NULL && topics >= 0;
}

void fetch_set_move_to_end(struct fetch_set *set, struct fetch_part *part) {
    list_remove(set, part);
    list_append(set, part);
}

struct sessions {
    struct lock lock;
    uint32_t slots;
    uint64_t seed[2];
    struct session *buckets[SESSION_BUCKETS] GUARDED_BY(lock);
    struct session *oldest GUARDED_BY(lock), *newest GUARDED_BY(lock); /* of the idle sessions */
    size_t bytes GUARDED_BY(lock); /* sum over all sessions */
    uint32_t count GUARDED_BY(lock), busy_count GUARDED_BY(lock); /* total; held by requests */
};

struct sessions *sessions_new(uint32_t slots) {
    struct sessions *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    if (getrandom(s->seed, sizeof s->seed, 0) != (ssize_t)sizeof s->seed) {
        free(s);
        return NULL;
    }
    lock_init(&s->lock);
    s->slots = slots;
    return s;
}

const uint64_t *sessions_seed(const struct sessions *s) { return s->seed; }

static void session_free(struct session *e) {
    fetch_set_clear(&e->set);
    free(e);
}

void sessions_free(struct sessions *s) {
    lock_acquire(&s->lock);
    assert(s->busy_count == 0);
    for (uint32_t b = 0; b < SESSION_BUCKETS; b++)
        for (struct session *e = s->buckets[b], *next; e != NULL; e = next) {
            next = e->chain;
            session_free(e);
        }
    lock_release(&s->lock);
    lock_destroy(&s->lock);
    free(s);
}

uint32_t sessions_count(struct sessions *s) {
    lock_acquire(&s->lock);
    uint32_t n = s->count;
    lock_release(&s->lock);
    return n;
}

static struct session **session_at(struct sessions *s, int32_t id) REQUIRES(s->lock) {
    struct session **at = &s->buckets[(uint32_t)id % SESSION_BUCKETS];
    while (*at != NULL && (*at)->id != id) at = &(*at)->chain;
    return at;
}

static void idle_append(struct sessions *s, struct session *e) REQUIRES(s->lock) {
    assert(!e->busy && !e->dead);
    assert(s->newest == NULL || s->newest->used_ms <= e->used_ms); /* Keeps sessions ordered. */
    e->newer = NULL;
    e->older = s->newest;
    if (s->newest != NULL)
        s->newest->newer = e;
    else
        s->oldest = e;
    s->newest = e;
}

static void idle_remove(struct sessions *s, struct session *e) REQUIRES(s->lock) {
    assert(!e->busy && s->oldest != NULL && s->newest != NULL);
    if (e->older != NULL)
        e->older->newer = e->newer;
    else
        s->oldest = e->newer;
    if (e->newer != NULL)
        e->newer->older = e->older;
    else
        s->newest = e->older;
}

/* Unlinks the session immediately. Frees it unless a request holds it: then sessions_return
 * does. */
static void session_drop(struct sessions *s, struct session **at) REQUIRES(s->lock) {
    struct session *e = *at;
    assert(e != NULL && !e->dead && s->count > 0);
    *at = e->chain;
    s->count--;
    assert(s->bytes >= e->bytes);
    s->bytes -= e->bytes;
    e->dead = true;
    if (e->busy) {
        assert(s->busy_count > 0);
        s->busy_count--;
        return;
    }
    idle_remove(s, e);
    session_free(e);
}

/* Returns true if the lists match the counters. */
static bool agrees(struct sessions *s) REQUIRES(s->lock) {
    size_t idle = 0, bytes = 0, count = 0;
    for (const struct session *e = s->oldest; e != NULL; e = e->newer) idle++;
    for (uint32_t b = 0; b < SESSION_BUCKETS; b++)
        for (const struct session *e = s->buckets[b]; e != NULL; e = e->chain, count++)
            bytes += e->bytes;
    return idle + s->busy_count == s->count && count == s->count && bytes == s->bytes;
}

static void expire(struct sessions *s, int64_t now_ms) REQUIRES(s->lock) {
    while (s->oldest != NULL && now_ms - s->oldest->used_ms > SESSION_IDLE_MS)
        session_drop(s, session_at(s, s->oldest->id));
}

void sessions_expire(struct sessions *s, int64_t now_ms) {
    lock_acquire(&s->lock);
    expire(s, now_ms);
    lock_release(&s->lock);
}

struct session *sessions_create(struct sessions *s, struct fetch_set *set, uint32_t principal,
                                uint64_t random, int64_t now_ms) {
    struct session *e = calloc(1, sizeof *e);
    if (e == NULL) return NULL;
    e->bytes = sizeof *e + set->bytes;
    lock_acquire(&s->lock);
    expire(s, now_ms);
    if (s->count >= s->slots || s->bytes + e->bytes > SESSIONS_BYTES_MAX) {
        lock_release(&s->lock);
        free(e);
        return NULL;
    }
    do {
        e->id = (int32_t)(random & 0x7fffffff);
        random = random * 6364136223846793005u + 1442695040888963407u;
        random ^= random >> 29;
    } while (e->id == 0 || *session_at(s, e->id) != NULL);
    e->epoch = 1;
    e->principal = principal;
    e->used_ms = now_ms;
    e->busy = true;
    e->set = *set;
    fetch_set_init(set, set->by_id, set->seed);
    e->chain = s->buckets[(uint32_t)e->id % SESSION_BUCKETS];
    s->buckets[(uint32_t)e->id % SESSION_BUCKETS] = e;
    s->count++;
    s->busy_count++;
    s->bytes += e->bytes;
    assert(s->count <= s->slots && s->bytes <= SESSIONS_BYTES_MAX);
    assert_slow(s->count > 64 || agrees(s));
    lock_release(&s->lock);
    return e;
}

int16_t sessions_acquire(struct sessions *s, int32_t id, int32_t epoch, bool by_id,
                         uint32_t principal, struct session **out) {
    int16_t error = 0;
    lock_acquire(&s->lock);
    struct session *e = *session_at(s, id);
    if (e == NULL || e->principal != principal)
        error = ERROR_FETCH_SESSION_ID_NOT_FOUND;
    else if (e->busy || e->epoch != epoch)
        error = ERROR_INVALID_FETCH_SESSION_EPOCH;
    else if (e->set.by_id != by_id)
        error = ERROR_FETCH_SESSION_TOPIC_ID_ERROR;
    if (error == 0) {
        idle_remove(s, e);
        e->busy = true;
        s->busy_count++;
        e->epoch = epoch == INT32_MAX ? 1 : epoch + 1;
        *out = e;
    }
    lock_release(&s->lock);
    return error;
}

bool sessions_resize(struct sessions *s, struct session *session, int64_t now_ms) {
    size_t bytes = sizeof *session + session->set.bytes;
    bool fits = true;
    lock_acquire(&s->lock);
    assert(session->busy);
    if (bytes > session->bytes) expire(s, now_ms);
    /* If another request has closed the session, it no longer counts. */
    if (!session->dead) {
        fits = bytes <= session->bytes || s->bytes - session->bytes + bytes <= SESSIONS_BYTES_MAX;
        s->bytes = s->bytes - session->bytes + bytes;
        session->bytes = bytes;
    }
    lock_release(&s->lock);
    return fits;
}

void sessions_return(struct sessions *s, struct session *session, int64_t now_ms) {
    lock_acquire(&s->lock);
    assert(session->busy);
    session->busy = false;
    bool dead = session->dead;
    if (!dead) {
        assert(s->busy_count > 0);
        s->busy_count--;
        /* Keeps idle sessions ordered, even if two reactors read the clock in a different order. */
        session->used_ms =
            s->newest != NULL && s->newest->used_ms > now_ms ? s->newest->used_ms : now_ms;
        idle_append(s, session);
    }
    lock_release(&s->lock);
    if (dead) session_free(session);
}

void sessions_close(struct sessions *s, int32_t id, uint32_t principal) {
    lock_acquire(&s->lock);
    struct session **at = session_at(s, id);
    if (*at != NULL && (*at)->principal == principal) session_drop(s, at);
    lock_release(&s->lock);
}

/* Applies the additions and changes of an incremental request. */
static bool merge(struct fetch_set *set, const struct fetch_sessions_open *o) {
    for (struct fetch_part *p = o->own->first; p != NULL; p = p->next) {
        struct fetch_part *stored =
            fetch_set_part(set, p->key->bytes, p->key->len, p->partition, true);
        if (stored == NULL) return false;
        stored->offset = p->offset;
        stored->start_offset = p->start_offset;
        stored->bytes_max = p->bytes_max;
        stored->leader_epoch = p->leader_epoch;
        stored->last_fetched_epoch = p->last_fetched_epoch;
    }
    struct cursor forgotten = o->forgotten;
    return fetch_set_forget(set, &forgotten, o->flexible, o->own->by_id);
}

static void end_session(struct sessions *s, struct fetch_sessions_open *o) {
    sessions_close(s, o->id, o->principal);
    sessions_return(s, o->session, o->now_ms);
    o->session = NULL;
}

/* Continues a session. Returns 0 or a top-level error. */
static int16_t continue_session(struct sessions *s, struct fetch_sessions_open *o) {
    int16_t error =
        sessions_acquire(s, o->id, o->epoch, o->own->by_id, o->principal, &o->session);
    if (error != 0) return error;
    if (!merge(&o->session->set, o) || !sessions_resize(s, o->session, o->now_ms)) {
        /* No room. The client must start over with a full request, possibly without a session. */
        end_session(s, o);
        return ERROR_FETCH_SESSION_ID_NOT_FOUND;
    }
    if (o->session->set.count != 0) {
        fetch_set_clear(o->own);
        return 0;
    }
    /* As in Kafka: if an incremental request forgets all partitions, the session ends, and the
     * partitions named in that request are answered without a session. */
    end_session(s, o);
    o->id = 0;
    o->full = true;
    return 0;
}

int16_t fetch_sessions_open(struct sessions *s, struct fetch_sessions_open *o) {
    int16_t error = 0;
    o->session = NULL;
    o->full = o->epoch == 0 || o->epoch == -1;
    if (o->full) {
        if (o->id != 0) sessions_close(s, o->id, o->principal);
        o->id = 0;
        if (o->epoch == -1) return 0;
        uint64_t random =
            atomic_fetch_add(o->random, 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
        o->session = sessions_create(s, o->own, o->principal, random >> 16, o->now_ms);
    } else {
        error = continue_session(s, o);
    }
    if (o->session != NULL) {
        assert(o->session->busy && o->own->count == 0);
        o->id = o->session->id;
    }
    return error;
}
