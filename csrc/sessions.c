/* Sets are hash tables threaded on a list in order of service; sessions are a small hash table
 * bounded by its slots. */
#include "sessions.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    SESSION_BUCKETS = 1024,
    SET_BUCKETS_FIRST = 8,
    ERROR_ID_NOT_FOUND = 70,
    ERROR_EPOCH = 71,
    ERROR_TOPIC_ID = 106
};

void fetch_set_init(struct fetch_set *set, bool by_id) {
    memset(set, 0, sizeof *set);
    set->by_id = by_id;
}

static void part_free(struct fetch_part *p) {
    log_range_release(&p->range);
    if (p->topic != NULL) topic_release(p->topic);
    free(p->name);
    free(p);
}

void fetch_set_clear(struct fetch_set *set) {
    for (struct fetch_part *p = set->first, *next; p != NULL; p = next) {
        next = p->next;
        part_free(p);
    }
    free(set->buckets);
    fetch_set_init(set, set->by_id);
}

static uint32_t part_hash(const uint8_t *key, uint32_t len, int32_t partition) {
    uint32_t h = 2166136261u ^ (uint32_t)partition * 2654435761u;
    for (uint32_t i = 0; i < len; i++) h = (h ^ key[i]) * 16777619u;
    return h ^ (h >> 15);
}

static uint32_t hash_of(const struct fetch_set *set, const struct fetch_part *p) {
    return set->by_id ? part_hash(p->id, 16, p->partition)
                      : part_hash((const uint8_t *)p->name, p->name_len, p->partition);
}

static bool set_grow(struct fetch_set *set) {
    uint32_t count = set->bucket_count == 0 ? SET_BUCKETS_FIRST : set->bucket_count * 2;
    struct fetch_part **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL) return set->bucket_count != 0;
    free(set->buckets);
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

static struct fetch_part *part_new(const struct fetch_set *set, const uint8_t *name,
                                   uint32_t name_len, const uint8_t *id, int32_t partition) {
    struct fetch_part *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->partition = partition;
    p->told_high_watermark = p->told_log_start = -1;
    p->diverging_epoch = -1;
    if (set->by_id) {
        memcpy(p->id, id, 16);
        return p;
    }
    p->name = malloc(name_len + 1u);
    if (p->name == NULL) {
        free(p);
        return NULL;
    }
    memcpy(p->name, name, name_len);
    p->name[name_len] = 0;
    p->name_len = name_len;
    return p;
}

struct fetch_part *fetch_set_part(struct fetch_set *set, const uint8_t *name, uint32_t name_len,
                                  const uint8_t *id, int32_t partition, bool make) {
    uint32_t hash =
        set->by_id ? part_hash(id, 16, partition) : part_hash(name, name_len, partition);
    struct fetch_part *p =
        set->bucket_count == 0 ? NULL : set->buckets[hash & (set->bucket_count - 1)];
    for (; p != NULL; p = p->chain) {
        if (p->partition != partition) continue;
        if (set->by_id ? memcmp(p->id, id, 16) == 0
                       : p->name_len == name_len && memcmp(p->name, name, name_len) == 0)
            return p;
    }
    if (!make || set->count >= FETCH_PARTITIONS_MAX) return NULL;
    if (set->count >= set->bucket_count && !set_grow(set)) return NULL;
    p = part_new(set, name, name_len, id, partition);
    if (p == NULL) return NULL;
    struct fetch_part **at = &set->buckets[hash & (set->bucket_count - 1)];
    p->chain = *at;
    *at = p;
    list_append(set, p);
    set->count++;
    return p;
}

void fetch_set_remove(struct fetch_set *set, struct fetch_part *part) {
    struct fetch_part **at = &set->buckets[hash_of(set, part) & (set->bucket_count - 1)];
    while (*at != part) at = &(*at)->chain;
    *at = part->chain;
    list_remove(set, part);
    set->count--;
    part_free(part);
}

void fetch_set_move_to_end(struct fetch_set *set, struct fetch_part *part) {
    list_remove(set, part);
    list_append(set, part);
}

struct sessions {
    pthread_mutex_t lock;
    struct session *buckets[SESSION_BUCKETS];
    uint32_t count, slots;
};

struct sessions *sessions_new(uint32_t slots) {
    struct sessions *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    pthread_mutex_init(&s->lock, NULL);
    s->slots = slots;
    return s;
}

static void session_free(struct session *e) {
    fetch_set_clear(&e->set);
    free(e);
}

void sessions_free(struct sessions *s) {
    for (uint32_t b = 0; b < SESSION_BUCKETS; b++)
        for (struct session *e = s->buckets[b], *next; e != NULL; e = next) {
            next = e->chain;
            session_free(e);
        }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

uint32_t sessions_count(struct sessions *s) {
    pthread_mutex_lock(&s->lock);
    uint32_t n = s->count;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static struct session **session_at(struct sessions *s, int32_t id) {
    struct session **at = &s->buckets[(uint32_t)id % SESSION_BUCKETS];
    while (*at != NULL && (*at)->id != id) at = &(*at)->chain;
    return at;
}

/* Unlinked at once; freed here unless a request holds it, which then frees it on return. */
static void session_drop(struct sessions *s, struct session **at) {
    struct session *e = *at;
    *at = e->chain;
    s->count--;
    e->dead = true;
    if (!e->busy) session_free(e);
}

static bool make_room(struct sessions *s, int64_t now_ms) {
    if (s->count < s->slots) return true;
    struct session **oldest = NULL;
    for (uint32_t b = 0; b < SESSION_BUCKETS; b++)
        for (struct session **at = &s->buckets[b]; *at != NULL; at = &(*at)->chain)
            if (!(*at)->busy && (oldest == NULL || (*at)->used_ms < (*oldest)->used_ms))
                oldest = at;
    if (oldest == NULL || now_ms - (*oldest)->used_ms <= SESSION_IDLE_MS) return false;
    session_drop(s, oldest);
    return true;
}

struct session *sessions_create(struct sessions *s, struct fetch_set *set, uint32_t principal,
                                uint64_t random, int64_t now_ms) {
    struct session *e = calloc(1, sizeof *e);
    if (e == NULL) return NULL;
    pthread_mutex_lock(&s->lock);
    if (!make_room(s, now_ms)) {
        pthread_mutex_unlock(&s->lock);
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
    fetch_set_init(set, set->by_id);
    e->chain = s->buckets[(uint32_t)e->id % SESSION_BUCKETS];
    s->buckets[(uint32_t)e->id % SESSION_BUCKETS] = e;
    s->count++;
    pthread_mutex_unlock(&s->lock);
    return e;
}

int16_t sessions_acquire(struct sessions *s, int32_t id, int32_t epoch, bool by_id,
                         uint32_t principal, struct session **out) {
    int16_t error = 0;
    pthread_mutex_lock(&s->lock);
    struct session *e = *session_at(s, id);
    if (e == NULL || e->principal != principal)
        error = ERROR_ID_NOT_FOUND;
    else if (e->busy || e->epoch != epoch)
        error = ERROR_EPOCH;
    else if (e->set.by_id != by_id)
        error = ERROR_TOPIC_ID;
    if (error == 0) {
        e->busy = true;
        e->epoch = epoch == INT32_MAX ? 1 : epoch + 1;
        *out = e;
    }
    pthread_mutex_unlock(&s->lock);
    return error;
}

void sessions_return(struct sessions *s, struct session *session, int64_t now_ms) {
    pthread_mutex_lock(&s->lock);
    session->busy = false;
    session->used_ms = now_ms;
    bool dead = session->dead;
    pthread_mutex_unlock(&s->lock);
    if (dead) session_free(session);
}

void sessions_close(struct sessions *s, int32_t id, uint32_t principal) {
    pthread_mutex_lock(&s->lock);
    struct session **at = session_at(s, id);
    if (*at != NULL && (*at)->principal == principal) session_drop(s, at);
    pthread_mutex_unlock(&s->lock);
}
