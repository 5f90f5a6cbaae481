/* Metrics: counters, and histograms with one bucket per power of two.
 *
 * A counter with one writer thread costs a load and a store, others an atomic addition. Readers
 * take no lock and block no writer. Their values are slightly old, and a histogram's sum may be
 * one value ahead of its buckets. */
#ifndef PYLOG_METER_H
#define PYLOG_METER_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
    METER_BUCKETS = 26, /* bucket i: values up to 2^(first + i); the last one: all larger values */
    METER_NS_FIRST = 12,
    METER_BYTES_FIRST = 6,
    METER_ERRORS = 192 /* error codes from -1; larger codes count as -1 */
};

struct meter_histogram {
    _Atomic uint64_t sum, counts[METER_BUCKETS];
};
struct meter_stats { /* a histogram's values, summed over its writers */
    uint64_t sum, counts[METER_BUCKETS];
};

/* For counters with one writer thread. */
static inline void meter_add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}
/* For counters that any thread writes. */
static inline void meter_add_shared(_Atomic uint64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}
static inline uint64_t meter_read(const _Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline unsigned meter_bucket(uint64_t value, unsigned first) {
    if (value <= (uint64_t)1 << first) return 0;
    unsigned bits = 64 - (unsigned)__builtin_clzll(value - 1);
    return bits - first < METER_BUCKETS ? bits - first : METER_BUCKETS - 1;
}
static inline void meter_record(struct meter_histogram *h, unsigned first, uint64_t value) {
    meter_add(&h->counts[meter_bucket(value, first)], 1);
    meter_add(&h->sum, value);
}
static inline void meter_record_shared(struct meter_histogram *h, unsigned first, uint64_t value) {
    meter_add_shared(&h->counts[meter_bucket(value, first)], 1);
    meter_add_shared(&h->sum, value);
}
/* Adds to *out. */
static inline void meter_collect(const struct meter_histogram *h, struct meter_stats *out) {
    for (int i = 0; i < METER_BUCKETS; i++) out->counts[i] += meter_read(&h->counts[i]);
    out->sum += meter_read(&h->sum);
}

/* Metrics of one API key. `queue`: until the control plane takes the request; `local`:
 * processing; `remote`: parked (for the disk, more records, other group members, a quota);
 * `send`: from response to its last byte. */
enum meter_kind {
    METER_REQUEST_BYTES,
    METER_RESPONSE_BYTES,
    METER_TOTAL,
    METER_QUEUE,
    METER_LOCAL,
    METER_REMOTE,
    METER_SEND,
    METER_KINDS
};
struct meter_api {
    struct meter_histogram histograms[METER_KINDS];
    _Atomic uint64_t errors[METER_ERRORS]; /* index: error code + 1 */
};
struct meter_api_stats {
    struct meter_stats histograms[METER_KINDS];
    uint64_t errors[METER_ERRORS];
};

static inline unsigned meter_first(enum meter_kind kind) {
    return kind <= METER_RESPONSE_BYTES ? METER_BYTES_FIRST : METER_NS_FIRST;
}
static inline void meter_note(struct meter_api *api, enum meter_kind kind, int64_t value) {
    assert(kind < METER_KINDS);
    meter_record(&api->histograms[kind], meter_first(kind), value > 0 ? (uint64_t)value : 0);
}
/* Any thread: workers count the errors of wide fetches. */
static inline void meter_error(struct meter_api *api, int code) {
    unsigned i = (unsigned)(code + 1);
    meter_add_shared(&api->errors[i < METER_ERRORS ? i : 0], 1);
}
static inline void meter_collect_api(const struct meter_api *api, struct meter_api_stats *out) {
    for (int i = 0; i < METER_KINDS; i++) meter_collect(&api->histograms[i], &out->histograms[i]);
    for (int i = 0; i < METER_ERRORS; i++) out->errors[i] += meter_read(&api->errors[i]);
}

#endif
