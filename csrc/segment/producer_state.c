/* Producer state: an open-addressing table keyed by producer id, at most three quarters full,
 * with linear probing. Removal rebuilds the table, because expiry is rare and removes many
 * producers.
 *
 * Open transactions are also in an array sorted by first offset. Appends add at its end, so
 * ending a transaction costs one binary search for any number of producers. */
#include "segment/producer_state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"
#include "format/batch.h"
#include "format/bytes.h"
#include "format/crc32c.h"
#include "segment/log_error.h"

enum { PRODUCERS_OPEN_FIRST = 4 };

void producers_free(struct producers *p) {
    free(p->slots);
    free(p->open);
    memset(p, 0, sizeof *p);
}

int producers_copy(struct producers *to, const struct producers *from) {
    struct producers made = *from;
    made.slots = NULL;
    made.open = NULL;
    if (from->capacity > 0) {
        made.slots = malloc(from->capacity * sizeof *from->slots);
        if (made.slots == NULL) return LOG_E_MEMORY;
        memcpy(made.slots, from->slots, from->capacity * sizeof *from->slots);
    }
    if (from->open_room > 0) {
        made.open = malloc(from->open_room * sizeof *from->open);
        if (made.open == NULL) {
            free(made.slots);
            return LOG_E_MEMORY;
        }
        memcpy(made.open, from->open, from->open_end * sizeof *from->open);
    }
    producers_free(to);
    *to = made;
    return 0;
}

/* ---- open transactions ---- */

static bool open_is_below(const struct producers_open *a, int64_t first_offset,
                          int64_t producer_id) {
    return a->first_offset < first_offset ||
           (a->first_offset == first_offset && a->producer_id < producer_id);
}

/* Finds the position of a transaction, or where to insert it. Ended entries have lost their
 * producer id, so it searches by offset and then walks over entries with the same offset: one,
 * unless a disk is damaged. */
static uint32_t open_index(const struct producers *p, int64_t first_offset, int64_t producer_id) {
    uint32_t low = p->open_from, n = p->open_end - p->open_from;
    while (n > 0) {
        uint32_t half = n / 2;
        bool below = p->open[low + half].first_offset < first_offset;
        low = below ? low + half + 1 : low;
        n = below ? n - half - 1 : half;
    }
    while (low < p->open_end && open_is_below(&p->open[low], first_offset, producer_id)) low++;
    assert_slow(low == p->open_end || p->open[low].first_offset >= first_offset);
    return low;
}

/* Removes ended transactions. */
static void open_compact(struct producers *p) {
    uint32_t kept = 0;
    for (uint32_t i = p->open_from; i < p->open_end; i++)
        if (p->open[i].producer_id != -1) p->open[kept++] = p->open[i];
    assert(kept == p->open_count);
    p->open_from = 0;
    p->open_end = kept;
}

/* Makes space for one more, so that open_add() cannot fail. */
static bool open_reserve(struct producers *p) {
    if (p->open_end < p->open_room) return true;
    if (p->open_count <= p->open_room / 2 && p->open_room > 0) {
        open_compact(p);
        return true;
    }
    uint32_t room = p->open_room == 0 ? PRODUCERS_OPEN_FIRST : p->open_room * 2;
    struct producers_open *open = realloc(p->open, room * sizeof *open);
    if (open == NULL) return false;
    p->open = open;
    p->open_room = room;
    return true;
}

static void open_add(struct producers *p, int64_t first_offset, int64_t producer_id) {
    assert(p->open_end < p->open_room); /* open_reserve came first. */
    assert(first_offset >= 0 && producer_id >= 0);
    uint32_t at = p->open_end;
    /* Offsets rise in a log; only a damaged disk or a snapshot can change the order. */
    if (at > p->open_from && !open_is_below(&p->open[at - 1], first_offset, producer_id)) {
        at = open_index(p, first_offset, producer_id);
        memmove(p->open + at + 1, p->open + at, (p->open_end - at) * sizeof *p->open);
    }
    p->open[at] = (struct producers_open){first_offset, producer_id};
    p->open_end++;
    p->open_count++;
}

static void open_remove(struct producers *p, int64_t first_offset, int64_t producer_id) {
    uint32_t at = open_index(p, first_offset, producer_id);
    assert(at < p->open_end && p->open[at].first_offset == first_offset);
    assert(p->open[at].producer_id == producer_id);
    p->open[at].producer_id = -1;
    p->open_count--;
    while (p->open_from < p->open_end && p->open[p->open_from].producer_id == -1) p->open_from++;
    if (p->open_from == p->open_end) p->open_from = p->open_end = 0;
    assert((p->open_count == 0) == (p->open_end == 0));
}

static void producers_end(struct producers *p, struct producers_entry *e) {
    if (e->transaction_first_offset < 0) return;
    open_remove(p, e->transaction_first_offset, e->producer_id);
    e->transaction_first_offset = -1;
}

/* ---- the table ---- */

static uint32_t producers_hash(int64_t id) {
    return (uint32_t)(((uint64_t)id * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

static struct producers_entry *producers_slot(const struct producers *p, int64_t id) {
    assert_slow((p->capacity & (p->capacity - 1)) == 0);
    assert(p->count < p->capacity); /* Otherwise a probe would never end. */
    uint32_t mask = p->capacity - 1, i = producers_hash(id) & mask;
    while (p->slots[i].producer_id != -1 && p->slots[i].producer_id != id) i = (i + 1) & mask;
    return &p->slots[i];
}

const struct producers_entry *producers_find(const struct producers *p, int64_t producer_id) {
    if (p->count == 0) return NULL;
    const struct producers_entry *e = producers_slot(p, producer_id);
    return e->producer_id == producer_id ? e : NULL;
}

static bool producers_resize(struct producers *p, uint32_t capacity) {
    assert(p->count * 4 <= capacity * 3);
    struct producers next = *p;
    next.slots = malloc(capacity * sizeof *p->slots);
    next.capacity = capacity;
    if (next.slots == NULL) return false;
    for (uint32_t i = 0; i < capacity; i++) next.slots[i].producer_id = -1;
    for (uint32_t i = 0; i < p->capacity; i++)
        if (p->slots[i].producer_id != -1)
            *producers_slot(&next, p->slots[i].producer_id) = p->slots[i];
    free(p->slots);
    *p = next;
    return true;
}

/* Returns the producer's slot; creates it for a new producer. */
static struct producers_entry *producers_take(struct producers *p, int64_t id) {
    if ((p->count + 1) * 4 > p->capacity * 3 &&
        !producers_resize(p, p->capacity == 0 ? 4 : p->capacity * 2))
        return NULL;
    struct producers_entry *e = producers_slot(p, id);
    if (e->producer_id == -1) {
        if (p->count == PRODUCERS_COUNT_MAX) return NULL;
        *e = (struct producers_entry){.producer_id = id, .transaction_first_offset = -1,
                                      .last_marker = -1, .epoch = -1, .coordinator_epoch = -1,
                                      .verified_epoch = -1};
        p->count++;
    }
    assert_slow(p->count * 4 <= p->capacity * 3);
    return e;
}

/* Sequences run from 0 to INT32_MAX and wrap to 0. */
static int32_t producers_sequence_add(int32_t sequence, int32_t delta) {
    return (int32_t)(((int64_t)sequence + delta) & INT32_MAX);
}
static int32_t producers_first_sequence(const struct producers_batch *b) {
    return (int32_t)(((int64_t)b->last_sequence - b->offset_delta) & INT32_MAX);
}

/* Age 0 is the newest. The ring may begin at any slot: read `batches` only through this
 * function. */
static const struct producers_batch *producers_at(const struct producers_entry *e, uint32_t age) {
    assert_slow(age < e->batch_count && e->batch_count <= PRODUCERS_BATCHES);
    assert_slow(e->newest < PRODUCERS_BATCHES);
    return &e->batches[(e->newest + PRODUCERS_BATCHES - age) % PRODUCERS_BATCHES];
}

int producers_check(const struct producers *p, const struct batch_header *h,
                    struct producers_batch *seen) {
    const struct producers_entry *e = producers_find(p, h->producer_id);
    if (e == NULL) return 0;
    if (h->producer_epoch < e->epoch) return LOG_E_EPOCH;
    /* Control batches have no sequence. */
    if ((h->attributes & BATCH_CONTROL) || h->base_sequence < 0) return 0;
    /* As in Kafka, a producer with an id but no epoch may continue with any sequence, in any
     * epoch. */
    bool is_free = e->epoch < 0;
    bool strays = e->transaction_first_offset >= 0 && !(h->attributes & BATCH_TRANSACTIONAL);
    int yes = strays ? LOG_E_TXN_STATE : 0;
    if (h->producer_epoch > e->epoch)
        return h->base_sequence == 0 || is_free ? yes : LOG_E_SEQUENCE;
    if (e->batch_count == 0) return h->base_sequence == 0 || is_free ? yes : LOG_E_SEQUENCE;
    int32_t last = producers_sequence_add(h->base_sequence, h->last_offset_delta);
    for (uint32_t age = 0; age < e->batch_count; age++) {
        const struct producers_batch *b = producers_at(e, age);
        if (b->last_sequence == last && producers_first_sequence(b) == h->base_sequence) {
            *seen = *b;
            return 1;
        }
    }
    int32_t next = producers_sequence_add(producers_at(e, 0)->last_sequence, 1);
    return h->base_sequence == next || is_free ? yes : LOG_E_SEQUENCE;
}

bool producers_continues(const struct producers *p, const struct batch_header *before,
                         const struct batch_header *h) {
    struct producers_batch seen;
    assert_slow(before->producer_id == h->producer_id);
    if ((h->attributes | before->attributes) & (BATCH_CONTROL | BATCH_TRANSACTIONAL)) return false;
    if (h->producer_epoch != before->producer_epoch || before->base_sequence < 0) return false;
    /* If the sequence does not wrap, a batch that continues `before` cannot repeat a batch
     * before it. */
    if ((int64_t)before->base_sequence + before->last_offset_delta + 1 != h->base_sequence)
        return false;
    /* Check the recorded batches too. They need not be the preceding ones, because a follower
     * records what its leader sends. */
    return producers_check(p, h, &seen) != 1;
}

static void producers_push(struct producers_entry *e, const struct producers_batch *b) {
    e->newest = (uint8_t)(e->batch_count == 0 ? 0 : (e->newest + 1) % PRODUCERS_BATCHES);
    e->batches[e->newest] = *b;
    if (e->batch_count < PRODUCERS_BATCHES) e->batch_count++;
    assert(e->newest < e->batch_count || e->batch_count == PRODUCERS_BATCHES);
}

int producers_update(struct producers *p, const struct batch_header *h, int64_t now_ms) {
    bool transactional = (h->attributes & BATCH_TRANSACTIONAL) != 0;
    if (transactional && !open_reserve(p)) return LOG_E_MEMORY;
    struct producers_entry *e = producers_take(p, h->producer_id);
    if (e == NULL) return LOG_E_MEMORY;
    if (h->producer_epoch != e->epoch) {
        e->epoch = h->producer_epoch;
        e->batch_count = 0;
    }
    assert_slow(e->producer_id == h->producer_id);
    e->seen_ms = h->max_timestamp > now_ms ? h->max_timestamp : now_ms;
    if (h->base_sequence >= 0)
        producers_push(e, &(struct producers_batch){
                              batch_last_offset(h), h->max_timestamp,
                              producers_sequence_add(h->base_sequence, h->last_offset_delta),
                              h->last_offset_delta});
    if (transactional && e->transaction_first_offset < 0) {
        e->transaction_first_offset = h->base_offset;
        open_add(p, h->base_offset, h->producer_id);
    }
    return 0;
}

int producers_end_transaction(struct producers *p, const struct batch_header *h,
                              int32_t coordinator_epoch, int64_t now_ms) {
    struct producers_entry *e = producers_take(p, h->producer_id);
    if (e == NULL) return LOG_E_MEMORY;
    if (h->producer_epoch != e->epoch) {
        e->epoch = h->producer_epoch;
        e->batch_count = 0;
    }
    e->seen_ms = h->max_timestamp > now_ms ? h->max_timestamp : now_ms;
    producers_end(p, e);
    e->last_marker = batch_last_offset(h);
    e->verified_epoch = -1;
    if (coordinator_epoch >= 0) e->coordinator_epoch = coordinator_epoch;
    return 0;
}

void producers_verify(struct producers *p, int64_t producer_id, int16_t epoch, uint64_t holder) {
    struct producers_entry *e = p->count == 0 ? NULL : producers_slot(p, producer_id);
    assert(producer_id >= 0 && epoch >= 0);
    if (e == NULL || e->producer_id != producer_id) return;
    e->verified_epoch = epoch;
    e->verified_for = holder;
}

void producers_restore_batches(struct producers *p, const struct producers *older) {
    for (uint32_t i = 0; i < p->capacity; i++) {
        struct producers_entry *e = &p->slots[i];
        const struct producers_entry *o =
            e->producer_id == -1 ? NULL : producers_find(older, e->producer_id);
        if (o == NULL || o->epoch != e->epoch || e->batch_count == 0 ||
            e->batch_count == PRODUCERS_BATCHES)
            continue;
        const struct producers_batch *oldest = producers_at(e, e->batch_count - 1u);
        uint32_t age = 0;
        while (age < o->batch_count && producers_at(o, age)->last_offset != oldest->last_offset)
            age++;
        for (age++; age < o->batch_count && e->batch_count < PRODUCERS_BATCHES; age++) {
            const struct producers_batch *b = producers_at(o, age);
            /* Headers on a damaged disk may contain any offset. */
            if (b->last_offset >= producers_at(e, e->batch_count - 1u)->last_offset) break;
            uint32_t slot =
                ((uint32_t)e->newest + PRODUCERS_BATCHES - e->batch_count) % PRODUCERS_BATCHES;
            e->batches[slot] = *b;
            e->batch_count++;
            assert(e->batch_count <= PRODUCERS_BATCHES);
        }
    }
}

void producers_expire(struct producers *p, int64_t now_ms, int64_t expiration_ms) {
    uint32_t gone = 0;
    for (uint32_t i = 0; i < p->capacity; i++) {
        struct producers_entry *e = &p->slots[i];
        if (e->producer_id == -1 || e->transaction_first_offset >= 0) continue;
        if (now_ms - e->seen_ms < expiration_ms) continue;
        e->producer_id = -1;
        gone++;
    }
    assert(gone <= p->count);
    if (gone == 0) return;
    p->count -= gone;
    if (p->count == 0) {
        producers_free(p);
        return;
    }
    uint32_t capacity = 4;
    while (p->count * 4 > capacity * 3) capacity *= 2;
    if (!producers_resize(p, capacity))
        producers_free(p); /* Losing state is allowed; a broken probe chain is not. */
}

void producers_end_before(struct producers *p, int64_t start) {
    for (uint32_t i = p->open_from; i < p->open_end; i++) {
        struct producers_open *open = &p->open[i];
        if (open->first_offset >= start) break;
        if (open->producer_id == -1) continue;
        struct producers_entry *e = producers_slot(p, open->producer_id);
        assert(e->producer_id == open->producer_id);
        if (e->batch_count == 0 || producers_at(e, 0)->last_offset >= start) continue;
        e->transaction_first_offset = -1;
        open->producer_id = -1;
        p->open_count--;
    }
    open_compact(p);
}

int64_t producers_first_open(const struct producers *p) {
    assert_slow(p->open_count == 0 || p->open[p->open_from].producer_id != -1);
    return p->open_count == 0 ? -1 : p->open[p->open_from].first_offset;
}

uint8_t *producers_encode(const struct producers *p, size_t *bytes) {
    *bytes = PRODUCERS_HEAD_BYTES + (size_t)p->count * PRODUCERS_ENTRY_BYTES;
    uint8_t *out = malloc(*bytes), *at = out;
    if (out == NULL) return NULL;
    put_i16(out, 1);
    put_i32(out + 6, (int32_t)p->count);
    at += PRODUCERS_HEAD_BYTES;
    for (uint32_t i = 0; i < p->capacity; i++) {
        const struct producers_entry *e = &p->slots[i];
        if (e->producer_id == -1) continue;
        bool any = e->batch_count > 0;
        const struct producers_batch *b = any ? producers_at(e, 0) : NULL;
        put_i64(at, e->producer_id);
        put_i16(at + 8, e->epoch);
        put_i32(at + 10, any ? b->last_sequence : -1);
        put_i64(at + 14, any ? b->last_offset : -1);
        put_i32(at + 22, any ? b->offset_delta : 0);
        put_i64(at + 26, e->seen_ms);
        put_i32(at + 34, e->coordinator_epoch);
        put_i64(at + 38, e->transaction_first_offset);
        at += PRODUCERS_ENTRY_BYTES;
    }
    assert(at == out + *bytes); /* all counted producers */
    put_u32(out + 2, crc32c_extend(0, out + 6, *bytes - 6));
    return out;
}

static int open_compare(const void *a, const void *b) {
    const struct producers_open *x = a, *y = b;
    if (x->first_offset != y->first_offset) return x->first_offset < y->first_offset ? -1 : 1;
    return x->producer_id < y->producer_id ? -1 : x->producer_id > y->producer_id;
}

/* Collects the open transactions of a table that was just read. */
static bool open_collect(struct producers *p) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->capacity; i++)
        if (p->slots[i].producer_id != -1 && p->slots[i].transaction_first_offset >= 0) count++;
    if (count == 0) return true;
    p->open = malloc(count * sizeof *p->open);
    if (p->open == NULL) return false;
    p->open_room = p->open_count = count;
    for (uint32_t i = 0; i < p->capacity; i++) {
        const struct producers_entry *e = &p->slots[i];
        if (e->producer_id != -1 && e->transaction_first_offset >= 0)
            p->open[p->open_end++] =
                (struct producers_open){e->transaction_first_offset, e->producer_id};
    }
    assert(p->open_end == count);
    qsort(p->open, count, sizeof *p->open, open_compare);
    return true;
}

int producers_decode(struct producers *p, const uint8_t *bytes, size_t len) {
    producers_free(p);
    if (len < PRODUCERS_HEAD_BYTES || get_i16(bytes) != 1 ||
        get_u32(bytes + 2) != crc32c_extend(0, bytes + 6, len - 6))
        return -EINVAL;
    int32_t count = get_i32(bytes + 6);
    if (count < 0 || (size_t)count != (len - PRODUCERS_HEAD_BYTES) / PRODUCERS_ENTRY_BYTES)
        return -EINVAL;
    const uint8_t *at = bytes + PRODUCERS_HEAD_BYTES;
    for (int32_t i = 0; i < count; i++, at += PRODUCERS_ENTRY_BYTES) {
        int64_t id = get_i64(at);
        struct producers_entry *e = id < 0 ? NULL : producers_take(p, id);
        if (e == NULL) {
            producers_free(p);
            return id < 0 ? -EINVAL : -ENOMEM;
        }
        e->epoch = get_i16(at + 8);
        e->seen_ms = get_i64(at + 26);
        e->coordinator_epoch = get_i32(at + 34);
        e->transaction_first_offset = get_i64(at + 38);
        struct producers_batch b = {get_i64(at + 14), e->seen_ms, get_i32(at + 10),
                                    get_i32(at + 22)};
        if (b.last_sequence >= 0) producers_push(e, &b);
    }
    if (!open_collect(p)) {
        producers_free(p);
        return -ENOMEM;
    }
    return 0;
}
