/* Two chained hash tables over the same entries (by name, by id) under one read-write lock. Each
 * entry holds the rights in a small lossy table by principal: a right is in one of RIGHT_PROBES
 * adjacent slots, so that a lookup costs the same for one principal and for thousands. If all
 * these slots are occupied, one of them is overwritten. Each right carries a generation:
 * incrementing the current one revokes them all. Lookups take a reference on the topic, so that
 * an entry can be replaced while requests still use the old topic.
 *
 * Not khash or uthash: each entry is in two chains. khash would need two tables besides the
 * entries, and uthash two 56-byte handles per entry. */
#include "tables/grants.h"

#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"
#include "format/hash.h"
#include "log_manager/log_manager.h"
#include "os/shared_lock.h"
#include "tables/broker_endpoints.h"
#include "tables/error_codes.h"

/* RIGHTS_FIRST and RIGHT_SLOTS_MAX must be powers of two. */
enum { RIGHT_PROBES = 8, RIGHTS_FIRST = 2, RIGHT_SLOTS_MAX = 16384, BUCKETS_FIRST = 64 };

struct right {
    uint32_t principal, generation;
    uint8_t rights; /* 0: free slot */
};

struct entry {
    struct entry *next_by_name, *next_by_id;
    struct topic *topic;
    struct right *rights;
    uint32_t right_slots, right_next; /* right_next: which slot to overwrite if all are occupied */
    uint32_t name_hash, id_hash;
};

struct grants {
    struct shared_lock lock;
    uint32_t topics_max;
    struct entry **by_name GUARDED_BY(lock), **by_id GUARDED_BY(lock);
    uint32_t bucket_count GUARDED_BY(lock), count GUARDED_BY(lock);
    uint32_t generation GUARDED_BY(lock); /* rights of older generations are revoked */
    struct nodes *nodes GUARDED_BY(lock); /* one reference, or NULL */
    atomic_uint changes, voids;           /* written under the lock */
};

struct topic *topic_new(const char *name, const uint8_t id[16], bool internal,
                        struct log *const *partitions, int32_t count) {
    size_t len = strlen(name);
    struct topic *t = len < sizeof t->name ? calloc(1, sizeof *t) : NULL;
    if (t == NULL) return NULL;
    t->partitions = calloc((size_t)count + 1, sizeof *t->partitions);
    if (t->partitions == NULL) {
        free(t);
        return NULL;
    }
    atomic_init(&t->references, 1);
    memcpy(t->id, id, 16);
    memcpy(t->name, name, len);
    t->name_len = (uint16_t)len;
    t->internal = internal;
    t->absent_error = ERROR_NOT_LEADER_OR_FOLLOWER;
    t->partition_count = count;
    for (int32_t i = 0; i < count; i++) {
        if (partitions[i] == NULL) continue;
        log_retain(partitions[i]);
        t->partitions[i] = partitions[i];
    }
    return t;
}

bool topic_set_leaders(struct topic *t, const struct topic_leader *leaders) {
    size_t count = (size_t)t->partition_count;
    assert(t->leaders == NULL);
    t->leaders = malloc((count + 1) * sizeof *leaders);
    if (t->leaders != NULL && count != 0) memcpy(t->leaders, leaders, count * sizeof *leaders);
    return t->leaders != NULL;
}

void topic_retain(struct topic *t) {
    int before = atomic_fetch_add_explicit(&t->references, 1, memory_order_relaxed);
    assert(before > 0);
    (void)before;
}

void topic_release(struct topic *t) {
    int before = atomic_fetch_sub_explicit(&t->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before != 1) return;
    for (int32_t i = 0; i < t->partition_count; i++)
        if (t->partitions[i] != NULL) log_release(t->partitions[i]);
    free(t->partitions);
    free(t->leaders);
    free(t);
}

struct grants *grants_new(uint32_t topics_max) {
    struct grants *g = calloc(1, sizeof *g);
    if (g == NULL) return NULL;
    struct entry **by_name = calloc(BUCKETS_FIRST, sizeof *by_name);
    struct entry **by_id = calloc(BUCKETS_FIRST, sizeof *by_id);
    *g = (struct grants){.topics_max = topics_max,
                         .by_name = by_name,
                         .by_id = by_id,
                         .bucket_count = BUCKETS_FIRST,
                         .generation = 1};
    if (by_name == NULL || by_id == NULL || !shared_lock_init(&g->lock)) {
        free(by_name);
        free(by_id);
        free(g);
        return NULL;
    }
    return g;
}

static void entry_free(struct entry *e) {
    topic_release(e->topic);
    free(e->rights);
    free(e);
}

void grants_free(struct grants *g) {
    shared_lock_write(&g->lock);
    for (uint32_t b = 0; b < g->bucket_count; b++)
        for (struct entry *e = g->by_name[b], *next; e != NULL; e = next) {
            next = e->next_by_name;
            entry_free(e);
        }
    free(g->by_name);
    free(g->by_id);
    if (g->nodes != NULL) nodes_release(g->nodes);
    shared_lock_release(&g->lock);
    shared_lock_destroy(&g->lock);
    free(g);
}

static struct entry *find_name(const struct grants *g, const uint8_t *name, uint32_t len,
                               uint32_t hash) REQUIRES_SHARED(g->lock) {
    struct entry *e = g->by_name[hash & (g->bucket_count - 1)];
    while (e != NULL && (e->name_hash != hash || e->topic->name_len != len ||
                         memcmp(e->topic->name, name, len) != 0))
        e = e->next_by_name;
    return e;
}

static struct entry *find_id(const struct grants *g, const uint8_t id[16], uint32_t hash)
    REQUIRES_SHARED(g->lock) {
    struct entry *e = g->by_id[hash & (g->bucket_count - 1)];
    while (e != NULL && (e->id_hash != hash || memcmp(e->topic->id, id, 16) != 0))
        e = e->next_by_id;
    return e;
}

static void grants_link(struct grants *g, struct entry *e) REQUIRES(g->lock) {
    struct entry **name = &g->by_name[e->name_hash & (g->bucket_count - 1)];
    struct entry **id = &g->by_id[e->id_hash & (g->bucket_count - 1)];
    e->next_by_name = *name;
    *name = e;
    e->next_by_id = *id;
    *id = e;
}

static void grants_unlink(struct grants *g, struct entry *e) REQUIRES(g->lock) {
    struct entry **at = &g->by_name[e->name_hash & (g->bucket_count - 1)];
    while (*at != e) at = &(*at)->next_by_name;
    *at = e->next_by_name;
    at = &g->by_id[e->id_hash & (g->bucket_count - 1)];
    while (*at != e) at = &(*at)->next_by_id;
    *at = e->next_by_id;
    assert(g->count > 0);
    g->count--;
}

static void grants_grow(struct grants *g) REQUIRES(g->lock) {
    uint32_t old_count = g->bucket_count, count = old_count * 2;
    struct entry **old = g->by_name;
    struct entry **names = calloc(count, sizeof *names), **ids = calloc(count, sizeof *ids);
    if (names == NULL || ids == NULL) {
        free(names);
        free(ids);
        return;
    } /* longer chains still work */
    free(g->by_id);
    g->by_name = names;
    g->by_id = ids;
    g->bucket_count = count;
    for (uint32_t b = 0; b < old_count; b++)
        for (struct entry *e = old[b], *next; e != NULL; e = next) {
            next = e->next_by_name;
            grants_link(g, e);
        }
    free(old);
}

int grants_install(struct grants *g, struct topic *t) {
    struct entry *e = calloc(1, sizeof *e), *old;
    if (e == NULL) return -1;
    assert(t->name_len > 0 && t->partition_count >= 0);
    topic_retain(t);
    e->topic = t;
    e->name_hash = hash_bytes(HASH_SEED, (const uint8_t *)t->name, t->name_len);
    e->id_hash = hash_bytes(HASH_SEED, t->id, 16);
    shared_lock_write(&g->lock);
    old = find_name(g, (const uint8_t *)t->name, t->name_len, e->name_hash);
    if (old != NULL) grants_unlink(g, old);
    bool full = g->count >= g->topics_max;
    if (!full) {
        if (g->count >= g->bucket_count) grants_grow(g);
        grants_link(g, e);
        g->count++;
        assert(g->count <= g->topics_max);
    }
    atomic_fetch_add(&g->changes, 1);
    shared_lock_release(&g->lock);
    if (old != NULL) entry_free(old);
    if (full) entry_free(e);
    return full ? -1 : 0;
}

void grants_remove(struct grants *g, const char *name, uint16_t name_len) {
    uint32_t hash = hash_bytes(HASH_SEED, (const uint8_t *)name, name_len);
    shared_lock_write(&g->lock);
    struct entry *e = find_name(g, (const uint8_t *)name, name_len, hash);
    if (e != NULL) grants_unlink(g, e);
    atomic_fetch_add(&g->changes, 1);
    shared_lock_release(&g->lock);
    if (e != NULL) entry_free(e);
}

/* Returns the i-th of right_probes() slots that may hold the principal's right. */
static inline uint32_t right_at(const struct entry *e, uint32_t principal, uint32_t i) {
    assert_slow((e->right_slots & (e->right_slots - 1)) == 0);
    /* Principals are numbered sequentially: the high bits of the product spread them. */
    return (((principal * 2654435769u) >> 16) + i) & (e->right_slots - 1);
}

static inline uint32_t right_probes(const struct entry *e) {
    return e->right_slots < RIGHT_PROBES ? e->right_slots : RIGHT_PROBES;
}

static inline struct right *right_of(const struct entry *e, uint32_t principal) {
    for (uint32_t i = 0; i < right_probes(e); i++) {
        struct right *right = &e->rights[right_at(e, principal, i)];
        if (right->principal == principal && right->rights != 0) return right;
    }
    return NULL;
}

static struct right *free_right(const struct entry *e, uint32_t principal, uint32_t generation) {
    for (uint32_t i = 0; i < right_probes(e); i++) {
        struct right *right = &e->rights[right_at(e, principal, i)];
        if (right->rights == 0 || right->generation != generation) return right;
    }
    return NULL;
}

/* Doubles the table. Rights that find no slot are dropped and requested again later. Returns
 * false if out of memory. */
static bool grow_rights(struct entry *e, uint32_t generation) {
    struct right *old = e->rights;
    uint32_t count = e->right_slots;
    struct right *made = calloc(count == 0 ? RIGHTS_FIRST : count * 2, sizeof *made);
    if (made == NULL) return false;
    e->rights = made;
    e->right_slots = count == 0 ? RIGHTS_FIRST : count * 2;
    for (uint32_t i = 0; i < count; i++) {
        if (old[i].rights == 0 || old[i].generation != generation) continue;
        struct right *slot = free_right(e, old[i].principal, generation);
        if (slot != NULL) *slot = old[i];
    }
    free(old);
    return true;
}

static struct right *right_slot(struct entry *e, uint32_t principal, uint32_t generation) {
    struct right *slot = right_of(e, principal);
    if (slot != NULL) return slot;
    slot = free_right(e, principal, generation);
    while (slot == NULL && e->right_slots < RIGHT_SLOTS_MAX && grow_rights(e, generation))
        slot = free_right(e, principal, generation);
    if (slot == NULL && e->right_slots != 0)
        slot = &e->rights[right_at(e, principal, e->right_next++ % right_probes(e))];
    return slot;
}

int grants_allow(struct grants *g, uint32_t principal, const uint8_t id[16], uint8_t rights) {
    int result = -1;
    assert(rights != 0);
    shared_lock_write(&g->lock);
    struct entry *e = find_id(g, id, hash_bytes(HASH_SEED, id, 16));
    struct right *slot = e == NULL ? NULL : right_slot(e, principal, g->generation);
    if (slot != NULL) {
        bool more = slot->principal == principal && slot->generation == g->generation;
        *slot = (struct right){principal, g->generation,
                               (uint8_t)(more ? slot->rights | rights : rights)};
        result = 0;
    }
    atomic_fetch_add(&g->changes, 1);
    shared_lock_release(&g->lock);
    return result;
}

void grants_void(struct grants *g) {
    shared_lock_write(&g->lock);
    g->generation++;
    atomic_fetch_add(&g->voids, 1);
    assert(g->generation != 0); /* after a wrap, old rights would be valid again */
    atomic_fetch_add(&g->changes, 1);
    shared_lock_release(&g->lock);
}

void grants_set_nodes(struct grants *g, struct nodes *nodes) {
    shared_lock_write(&g->lock);
    struct nodes *before = g->nodes;
    g->nodes = nodes;
    shared_lock_release(&g->lock);
    if (before != NULL) nodes_release(before);
}

struct nodes *grants_nodes(struct grants *g) {
    shared_lock_read(&g->lock);
    struct nodes *nodes = g->nodes;
    if (nodes != NULL) nodes_retain(nodes);
    shared_lock_release(&g->lock);
    return nodes;
}

uint32_t grants_changes(struct grants *g) {
    return atomic_load_explicit(&g->changes, memory_order_acquire);
}

uint32_t grants_voids(struct grants *g) {
    return atomic_load_explicit(&g->voids, memory_order_acquire);
}

uint64_t grants_holder(struct grants *g, uint32_t principal) {
    return (uint64_t)grants_voids(g) << 32 | principal;
}

static struct topic *take(const struct grants *g, const struct entry *e, uint32_t principal,
                          uint8_t *rights) REQUIRES_SHARED(g->lock) {
    *rights = 0;
    if (e == NULL) return NULL;
    const struct right *right = right_of(e, principal);
    if (right != NULL && right->generation == g->generation) *rights = right->rights;
    topic_retain(e->topic);
    return e->topic;
}

struct topic *grants_by_name(struct grants *g, uint32_t principal, const uint8_t *name,
                             uint32_t len, uint8_t *rights) {
    uint32_t hash = hash_bytes(HASH_SEED, name, len);
    shared_lock_read(&g->lock);
    struct topic *t = take(g, find_name(g, name, len, hash), principal, rights);
    shared_lock_release(&g->lock);
    return t;
}

struct topic *grants_by_id(struct grants *g, uint32_t principal, const uint8_t id[16],
                           uint8_t *rights) {
    uint32_t hash = hash_bytes(HASH_SEED, id, 16);
    shared_lock_read(&g->lock);
    struct topic *t = take(g, find_id(g, id, hash), principal, rights);
    shared_lock_release(&g->lock);
    return t;
}

struct topic *grants_find(struct grants *g, uint32_t principal, struct topic_key key,
                          uint8_t right) {
    uint8_t rights;
    struct topic *t = key.by_id ? grants_by_id(g, principal, key.bytes, &rights)
                                : grants_by_name(g, principal, key.bytes, key.len, &rights);
    if (t == NULL) return NULL;
    assert_slow(key.by_id || t->name_len == key.len);
    if (rights & right) return t;
    topic_release(t);
    return NULL;
}
