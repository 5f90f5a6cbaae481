/* A hash table with chains under one mutex. khash or uthash would only add resizing, which is
 * not needed: the number of chains is fixed. Addresses are hashed as two words. */
#include "net/ip_connections.h"

#include <stdlib.h>
#include <string.h>

#include "os/lock.h"

enum { PEERS_BUCKETS = 1024 };

struct peer {
    struct peer *next;
    uint32_t count;
    uint8_t address[16];
};
struct peers {
    struct lock lock;
    struct peer *overrides GUARDED_BY(lock); /* count is the limit */
    uint32_t override_count GUARDED_BY(lock);
    struct peer *buckets[PEERS_BUCKETS] GUARDED_BY(lock);
};

struct peers *peers_new(void) {
    struct peers *p = calloc(1, sizeof *p);
    if (p != NULL) lock_init(&p->lock);
    return p;
}

void peers_free(struct peers *p) {
    lock_acquire(&p->lock);
    for (int i = 0; i < PEERS_BUCKETS; i++)
        for (struct peer *one = p->buckets[i], *next; one != NULL; one = next) {
            next = one->next;
            free(one);
        }
    free(p->overrides);
    lock_release(&p->lock);
    lock_destroy(&p->lock);
    free(p);
}

/* Returns the link to the address, or the link at the end of its chain. */
static struct peer **find(struct peers *p, const uint8_t address[16]) REQUIRES(p->lock) {
    uint64_t high, low;
    memcpy(&high, address, 8);
    memcpy(&low, address + 8, 8);
    uint64_t hash = (high ^ (low * 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
    struct peer **link = &p->buckets[(hash >> 32) % PEERS_BUCKETS];
    while (*link != NULL && memcmp((*link)->address, address, 16) != 0) link = &(*link)->next;
    return link;
}

static uint32_t limit(const struct peers *p, const uint8_t address[16], uint32_t otherwise)
    REQUIRES(p->lock) {
    for (uint32_t i = 0; i < p->override_count; i++)
        if (memcmp(p->overrides[i].address, address, 16) == 0) return p->overrides[i].count;
    return otherwise;
}

bool peers_set_overrides(struct peers *p, const uint8_t *addresses, const uint32_t *counts_max,
                         uint32_t count) {
    struct peer *fresh = calloc(count + 1, sizeof *fresh);
    if (fresh == NULL) return false;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(fresh[i].address, addresses + (size_t)i * 16, 16);
        fresh[i].count = counts_max[i];
    }
    lock_acquire(&p->lock);
    struct peer *before = p->overrides;
    p->overrides = fresh;
    p->override_count = count;
    lock_release(&p->lock);
    free(before);
    return true;
}

bool peers_enter(struct peers *p, const uint8_t address[16], uint32_t count_max) {
    lock_acquire(&p->lock);
    count_max = limit(p, address, count_max);
    struct peer **link = find(p, address);
    bool fits = count_max > 0 && (*link == NULL || (*link)->count < count_max);
    if (fits && *link == NULL) {
        *link = calloc(1, sizeof **link);
        if (*link != NULL) memcpy((*link)->address, address, 16);
    }
    if (*link == NULL) fits = false;
    if (fits) (*link)->count++;
    lock_release(&p->lock);
    return fits;
}

void peers_leave(struct peers *p, const uint8_t address[16]) {
    lock_acquire(&p->lock);
    struct peer **link = find(p, address);
    assert(*link != NULL && (*link)->count > 0); /* entered before */
    if (--(*link)->count == 0) {
        struct peer *gone = *link;
        *link = gone->next;
        free(gone);
    }
    lock_release(&p->lock);
}
