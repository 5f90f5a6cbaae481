/* One chained hash table under one lock, which is held for a lookup and for copying a response.
 * Each entry carries a generation: incrementing the current one invalidates all entries. */
#include "tables/heartbeat_cache.h"

#include <stdlib.h>
#include <string.h>

#include "format/bytes.h"
#include "format/hash.h"

enum { BUCKETS_FIRST = 64, ADDRESS_BYTES = 16, CORRELATION_AT = 4 };

struct repeat {
    struct repeat *next;
    uint32_t hash, generation; /* generation 0: ended */
    uint32_t principal, body_len, frame_len;
    int32_t client_id_len; /* -1: null */
    int16_t api_key, api_version;
    int64_t last_ms, until_ms;
    uint8_t address[ADDRESS_BYTES];
    uint8_t bytes[]; /* client id, body, frame */
};

struct repeats {
    struct lock lock;
    uint32_t seed;
    uint32_t bucket_count GUARDED_BY(lock), count GUARDED_BY(lock), generation GUARDED_BY(lock);
    size_t bytes GUARDED_BY(lock);
    struct repeat **buckets GUARDED_BY(lock);
};

struct repeats *repeats_new(uint32_t seed) {
    struct repeats *rs = calloc(1, sizeof *rs);
    struct repeat **buckets = calloc(BUCKETS_FIRST, sizeof *buckets);
    if (rs == NULL || buckets == NULL) {
        free(rs);
        free(buckets);
        return NULL;
    }
    rs->seed = seed;
    lock_init_adaptive(&rs->lock);
    lock_acquire(&rs->lock);
    rs->buckets = buckets;
    rs->bucket_count = BUCKETS_FIRST;
    rs->generation = 1;
    lock_release(&rs->lock);
    return rs;
}

void repeats_free(struct repeats *rs) {
    lock_acquire(&rs->lock);
    assert(rs->count == 0 && rs->bytes == 0);
    free(rs->buckets);
    lock_release(&rs->lock);
    lock_destroy(&rs->lock);
    free(rs);
}

static size_t text_len(int32_t client_id_len) {
    return client_id_len < 0 ? 0 : (size_t)client_id_len;
}

static int32_t id_len(const struct repeat_key *key) {
    return key->client_id == NULL ? -1 : key->client_id_len;
}

static uint32_t hash_of(const struct repeats *rs, const struct repeat_key *key) {
    return hash_bytes(rs->seed ^ key->principal, key->body, key->body_len);
}

static bool is_of(const struct repeat *e, const struct repeat_key *key) {
    size_t client_id_len = text_len(id_len(key));
    return e->body_len == key->body_len && e->principal == key->principal &&
           e->api_key == key->api_key && e->api_version == key->api_version &&
           e->client_id_len == id_len(key) &&
           memcmp(e->address, key->address, ADDRESS_BYTES) == 0 &&
           (client_id_len == 0 || memcmp(e->bytes, key->client_id, client_id_len) == 0) &&
           memcmp(e->bytes + client_id_len, key->body, key->body_len) == 0;
}

static size_t size_of(const struct repeat *e) {
    return sizeof *e + text_len(e->client_id_len) + e->body_len + e->frame_len;
}

static struct repeat **heartbeat_cache_bucket(struct repeats *rs, uint32_t hash)
    REQUIRES(rs->lock) {
    return &rs->buckets[hash & (rs->bucket_count - 1)];
}

static void heartbeat_cache_link(struct repeats *rs, struct repeat *e) REQUIRES(rs->lock) {
    struct repeat **at = heartbeat_cache_bucket(rs, e->hash);
    e->next = *at;
    *at = e;
}

static void heartbeat_cache_grow(struct repeats *rs) REQUIRES(rs->lock) {
    uint32_t old_count = rs->bucket_count;
    struct repeat **old = rs->buckets, **made = calloc(old_count * 2, sizeof *made);
    if (made == NULL) return; /* longer chains still work */
    rs->buckets = made;
    rs->bucket_count = old_count * 2;
    for (uint32_t b = 0; b < old_count; b++)
        for (struct repeat *e = old[b], *next; e != NULL; e = next) {
            next = e->next;
            heartbeat_cache_link(rs, e);
        }
    free(old);
}

static struct repeat *made_of(const struct repeat_key *key, const uint8_t *frame, size_t len) {
    size_t client_id_len = text_len(id_len(key));
    if (client_id_len + key->body_len + len > REPEAT_BYTES_MAX) return NULL;
    struct repeat *e = calloc(1, sizeof *e + client_id_len + key->body_len + len);
    if (e == NULL) return NULL;
    e->principal = key->principal;
    e->body_len = (uint32_t)key->body_len;
    e->frame_len = (uint32_t)len;
    e->client_id_len = id_len(key);
    e->api_key = key->api_key;
    e->api_version = key->api_version;
    e->last_ms = -1;
    memcpy(e->address, key->address, ADDRESS_BYTES);
    if (client_id_len != 0) memcpy(e->bytes, key->client_id, client_id_len);
    if (key->body_len != 0) memcpy(e->bytes + client_id_len, key->body, key->body_len);
    memcpy(e->bytes + client_id_len + key->body_len, frame, len);
    return e;
}

struct repeat *repeats_add(struct repeats *rs, const struct repeat_key *key, const uint8_t *frame,
                           size_t len, int64_t until_ms) {
    assert(len >= CORRELATION_AT + sizeof(int32_t));
    struct repeat *e = made_of(key, frame, len);
    if (e == NULL) return NULL;
    e->hash = hash_of(rs, key);
    e->until_ms = until_ms;
    lock_acquire(&rs->lock);
    bool full = rs->bytes + size_of(e) > REPEATS_BYTES_MAX;
    if (!full) {
        if (rs->count >= rs->bucket_count) heartbeat_cache_grow(rs);
        e->generation = rs->generation;
        heartbeat_cache_link(rs, e);
        rs->count++;
        rs->bytes += size_of(e);
    }
    lock_release(&rs->lock);
    if (!full) return e;
    free(e);
    return NULL;
}

int64_t repeats_end(struct repeats *rs, struct repeat *e) {
    lock_acquire(&rs->lock);
    struct repeat **at = heartbeat_cache_bucket(rs, e->hash);
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    assert(rs->count > 0 && rs->bytes >= size_of(e));
    rs->count--;
    rs->bytes -= size_of(e);
    int64_t last_ms = e->last_ms;
    lock_release(&rs->lock);
    free(e);
    return last_ms;
}

int64_t repeats_last_ms(struct repeats *rs, struct repeat *e, int64_t after_ms) {
    lock_acquire(&rs->lock);
    int64_t last_ms = e->last_ms;
    if (last_ms <= after_ms) e->generation = 0;
    lock_release(&rs->lock);
    return last_ms;
}

void repeats_void(struct repeats *rs) {
    lock_acquire(&rs->lock);
    rs->generation++;
    assert(rs->generation != 0); /* after a wrap, invalidated responses would be used again */
    lock_release(&rs->lock);
}

uint32_t repeats_count(struct repeats *rs) {
    lock_acquire(&rs->lock);
    uint32_t count = rs->count;
    lock_release(&rs->lock);
    return count;
}

uint8_t *repeats_answer(struct repeats *rs, const struct repeat_key *key, int32_t correlation_id,
                        int64_t now_ms, size_t *len) {
    if (key->body_len > REPEAT_BYTES_MAX) return NULL;
    uint32_t hash = hash_of(rs, key);
    uint8_t *frame = NULL;
    lock_acquire(&rs->lock);
    struct repeat *e = *heartbeat_cache_bucket(rs, hash);
    /* An ended entry may be in the chain next to its replacement. */
    while (e != NULL && !(e->hash == hash && e->generation == rs->generation && is_of(e, key)))
        e = e->next;
    if (e != NULL && now_ms < e->until_ms) frame = malloc(e->frame_len);
    if (frame != NULL) {
        memcpy(frame, e->bytes + text_len(e->client_id_len) + e->body_len, e->frame_len);
        *len = e->frame_len;
        if (now_ms > e->last_ms) e->last_ms = now_ms;
    }
    lock_release(&rs->lock);
    if (frame != NULL) put_i32(frame + CORRELATION_AT, correlation_id);
    return frame;
}
