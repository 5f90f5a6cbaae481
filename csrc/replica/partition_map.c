/* The partitions of a fetcher by topic and index, and its leaders. */
#include "replica/fetcher_internal.h"

#include <stdlib.h>

#include "format/hash.h"

enum { BUCKETS_FIRST = 64 };

static uint32_t hash_of(const uint8_t topic_id[16], int32_t index) {
    return hash_bytes(HASH_SEED ^ (uint32_t)index, topic_id, 16);
}

struct fetch_partition *fetcher_find(struct fetcher *f, const uint8_t topic_id[16], int32_t index) {
    if (f->bucket_count == 0) return NULL;
    struct fetch_partition *p = f->buckets[hash_of(topic_id, index) & (f->bucket_count - 1)];
    while (p != NULL && (p->index != index || memcmp(p->topic_id, topic_id, 16) != 0))
        p = p->next_in_bucket;
    return p;
}

static bool grow_buckets(struct fetcher *f) REQUIRES(f->role) {
    uint32_t count = f->bucket_count == 0 ? BUCKETS_FIRST : 2 * f->bucket_count;
    struct fetch_partition **buckets = calloc(count, sizeof(struct fetch_partition *));
    if (buckets == NULL) return false;
    for (uint32_t i = 0; i < f->bucket_count; i++) {
        for (struct fetch_partition *p = f->buckets[i], *next; p != NULL; p = next) {
            next = p->next_in_bucket;
            struct fetch_partition **bucket =
                &buckets[hash_of(p->topic_id, p->index) & (count - 1)];
            p->next_in_bucket = *bucket;
            *bucket = p;
        }
    }
    free(f->buckets);
    f->buckets = buckets;
    f->bucket_count = count;
    return true;
}

/* Reserves one timer per partition and per leader, so that setting a timer cannot fail. */
static bool reserve_timer(struct fetcher *f) REQUIRES(f->role) {
    uint32_t wanted = f->followed_count + f->leader_count + 1;
    return wanted <= f->timers.reserved || timers_reserve(&f->timers, wanted - f->timers.reserved);
}

bool fetcher_insert(struct fetcher *f, struct fetch_partition *p) {
    assert(fetcher_find(f, p->topic_id, p->index) == NULL);
    if (f->followed_count == f->bucket_count && !grow_buckets(f)) return false;
    if (!reserve_timer(f)) return false;
    struct fetch_partition **bucket =
        &f->buckets[hash_of(p->topic_id, p->index) & (f->bucket_count - 1)];
    p->next_in_bucket = *bucket;
    *bucket = p;
    f->followed_count++;
    return true;
}

void fetcher_remove(struct fetcher *f, struct fetch_partition *p) {
    struct fetch_partition **at =
        &f->buckets[hash_of(p->topic_id, p->index) & (f->bucket_count - 1)];
    while (*at != p) at = &(*at)->next_in_bucket;
    *at = p->next_in_bucket;
    assert(f->followed_count > 0);
    f->followed_count--;
}

struct leader *fetcher_find_leader(struct fetcher *f, int32_t id) {
    struct leader *l = f->leaders;
    while (l != NULL && l->id != id) l = l->next;
    return l;
}

struct leader *fetcher_leader(struct fetcher *f, int32_t id) {
    struct leader *l = fetcher_find_leader(f, id);
    if (l != NULL) return l;
    if (!reserve_timer(f) || (l = calloc(1, sizeof *l)) == NULL) return NULL;
    l->id = id;
    l->transport.fd = -1;
    l->timer.kind = TIMER_LEADER;
    l->next = f->leaders;
    f->leaders = l;
    f->leader_count++;
    return l;
}
