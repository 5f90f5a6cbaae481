/* A table of fixed size, indexed by a hash of segment and position. A new entry replaces the one
 * in its slot. */
#include "serve/shared_reads.h"

#include <string.h>

#include "format/hash.h"
#include "segment/segment.h"

void copies_init(struct copies *c) { memset(c, 0, sizeof *c); }

static void forget_copy(struct copies *c, struct copies_entry *e) {
    if (e->copy == NULL) return;
    assert(c->bytes >= (uint64_t)e->copy->length);
    c->bytes -= (uint64_t)e->copy->length;
    copy_release(e->copy);
    e->copy = NULL;
}

static void forget(struct copies *c, struct copies_entry *e) {
    if (e->segment == NULL) return;
    forget_copy(c, e);
    segment_release(e->segment);
    e->segment = NULL;
}

void copies_clear(struct copies *c) {
    for (int i = 0; i < COPIES_MAX; i++) forget(c, &c->entries[i]);
    assert(c->bytes == 0);
}

void copies_tick(struct copies *c) {
    for (int i = 0; i < COPIES_MAX; i++) {
        struct copies_entry *e = &c->entries[i];
        if (!e->used) forget(c, e);
        e->used = false;
    }
}

static struct copies_entry *claim_entry(struct copies *c, const struct log_range *range) {
    struct {
        uintptr_t segment;
        int64_t position;
    } key = {(uintptr_t)range->segment, range->position};
    return &c->entries[hash_bytes(HASH_SEED, (const uint8_t *)&key, sizeof key) % COPIES_MAX];
}

static bool is_of(const struct copies_entry *e, const struct log_range *range) {
    return e->segment == range->segment && e->position == range->position &&
           e->truncations == range->truncations;
}

struct copy *copy_read(const struct log_range *range) {
    struct copy *copy = malloc(sizeof *copy + (size_t)range->length);
    if (copy == NULL) return NULL;
    copy->references = 1;
    copy->length = range->length;
    if (log_range_read_cached(range, copy->bytes)) return copy;
    free(copy);
    return NULL;
}

static void fill(struct copies *c, struct copies_entry *e, const struct log_range *range) {
    forget_copy(c, e);
    if (c->bytes + (uint64_t)range->length > COPIES_BYTES_MAX) return; /* Keeps memory bounded. */
    e->copy = copy_read(range);
    if (e->copy != NULL) c->bytes += (uint64_t)e->copy->length;
}

struct copy *copies_take(struct copies *c, const struct log_range *range, bool many) {
    assert_slow(range->length > 0 && range->segment != NULL);
    if (range->length > COPY_BYTES_MAX) return NULL;
    struct copies_entry *e = claim_entry(c, range);
    if (!is_of(e, range)) {
        forget(c, e);
        segment_retain(range->segment); /* Keeps entries unambiguous. */
        *e = (struct copies_entry){.segment = range->segment,
                                   .position = range->position,
                                   .truncations = range->truncations,
                                   .used = true};
        if (!many) return NULL;
    }
    e->used = true;
    if (e->copy == NULL || e->copy->length < range->length) fill(c, e, range);
    if (e->copy == NULL) return NULL;
    assert(e->copy->length >= range->length);
    copy_retain(e->copy);
    return e->copy;
}
