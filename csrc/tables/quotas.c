/* Two chained hash tables under one read-write lock: clients by principal and client id, rates
 * by the entity's key. Each client carries the generation in which it was installed.
 *
 * Rates work as in Kafka: up to samples + 1 samples, of which those with an event within samples
 * * window count. The sum is divided by the time since the oldest of them started, plus the
 * missing windows, so that a first burst does not appear as a high rate. A client over its limit
 * is throttled until the rate would be back at the limit (KIP-219).
 *
 * Not khash or uthash: they would only save the growing, some 30 lines. Most of the code sweeps
 * idle entries while other threads hold references on entries. */
#include "tables/quotas.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "format/hash.h"
#include "os/shared_lock.h"

enum { BUCKETS_FIRST = 64, SAMPLES_FIRST = 4, SWEEP_COUNT_MIN = 1024, NS_PER_S = 1000000000 };

/* Prefix of an address's key, so that it differs from clients' keys. */
#define ADDRESS_KEY "address"

struct sample {
    int64_t start_ms, last_ms;
    double sum;
};

struct quota_rate {
    struct quota_rate *next;
    atomic_int references; /* including the table's */
    uint32_t hash, key_len;
    struct lock lock;
    double limit GUARDED_BY(lock);
    struct sample *samples GUARDED_BY(lock);
    uint32_t sample_count GUARDED_BY(lock), sample_room GUARDED_BY(lock), current GUARDED_BY(lock);
    uint8_t key[];
};

struct quota_client {
    struct quota_client *next;
    struct quotas *quotas;
    struct quota_rate *rates[QUOTA_KINDS]; /* one reference on each */
    atomic_int references;                 /* including the table's */
    _Atomic uint64_t throttled_ms;
    _Atomic int64_t throttled_at_ms;
    uint32_t hash, generation, principal, client_id_len;
    uint8_t client_id[];
};

struct quotas {
    atomic_uint generation; /* 0: no quota is set */
    uint32_t samples;
    int64_t window_ms;
    struct shared_lock lock; /* acquired before a rate's lock */
    uint32_t last_generation GUARDED_BY(lock);
    struct quota_client **clients GUARDED_BY(lock);
    struct quota_rate **rates GUARDED_BY(lock);
    uint32_t client_buckets GUARDED_BY(lock), client_count GUARDED_BY(lock);
    uint32_t rate_buckets GUARDED_BY(lock), rate_count GUARDED_BY(lock);
    uint32_t client_sweep_at GUARDED_BY(lock), rate_sweep_at GUARDED_BY(lock);
    struct quota_address *addresses GUARDED_BY(lock);
    uint32_t address_count GUARDED_BY(lock);
    double address_others GUARDED_BY(lock);
    atomic_bool addresses_limited;
};

static uint32_t client_hash(uint32_t principal, const uint8_t *client_id, uint32_t len) {
    return hash_bytes(HASH_SEED ^ principal * 0x9e3779b9u, client_id, len);
}

/* ---- rates */

/* Returns false if out of memory. */
static bool add_sample(struct quota_rate *rate, int64_t now_ms) REQUIRES(rate->lock) {
    assert(rate->sample_count <= rate->sample_room);
    if (rate->sample_count == rate->sample_room) {
        uint32_t room = rate->sample_room == 0 ? SAMPLES_FIRST : 2 * rate->sample_room;
        struct sample *grown = realloc(rate->samples, room * sizeof *grown);
        if (grown == NULL) return false;
        rate->samples = grown;
        rate->sample_room = room;
    }
    rate->current = rate->sample_count++;
    rate->samples[rate->current] = (struct sample){.start_ms = now_ms, .last_ms = now_ms};
    return true;
}

/* Returns the current sample. If memory ran out, the previous sample continues. */
static struct sample *sample_now(const struct quotas *q, struct quota_rate *rate, int64_t now_ms)
    REQUIRES(rate->lock) {
    if (rate->sample_count == 0) return add_sample(rate, now_ms) ? rate->samples : NULL;
    assert(rate->current < rate->sample_count && rate->sample_count <= q->samples + 1);
    struct sample *s = &rate->samples[rate->current];
    if (now_ms - s->start_ms < q->window_ms) return s;
    uint32_t next = rate->current == q->samples ? 0 : rate->current + 1;
    if (next == rate->sample_count) {
        (void)add_sample(rate, now_ms);
    } else {
        rate->current = next;
        rate->samples[next] = (struct sample){.start_ms = now_ms, .last_ms = now_ms};
    }
    return &rate->samples[rate->current];
}

static void rate_add(const struct quotas *q, struct quota_rate *rate, double value,
                     int64_t now_ms) REQUIRES(rate->lock) {
    struct sample *s = sample_now(q, rate, now_ms);
    if (s == NULL) return;
    s->sum += value;
    s->last_ms = now_ms;
}

/* Returns the sum of the samples that count and, in *span_ms, their time span. Resets old
 * samples. */
static double rate_sum(const struct quotas *q, struct quota_rate *rate, int64_t now_ms,
                       int64_t *span_ms) REQUIRES(rate->lock) {
    int64_t oldest_ms = now_ms, age_ms = (int64_t)q->samples * q->window_ms;
    double sum = 0;
    for (uint32_t i = 0; i < rate->sample_count; i++) {
        struct sample *s = &rate->samples[i];
        if (now_ms - s->last_ms >= age_ms)
            *s = (struct sample){.start_ms = now_ms, .last_ms = now_ms};
        sum += s->sum;
        if (s->start_ms < oldest_ms) oldest_ms = s->start_ms;
    }
    int64_t elapsed_ms = now_ms - oldest_ms;
    int64_t windows = elapsed_ms / q->window_ms, wanted = (int64_t)q->samples - 1;
    if (windows < wanted) elapsed_ms += (wanted - windows) * q->window_ms;
    *span_ms = elapsed_ms < 1 ? 1 : elapsed_ms;
    return sum;
}

/* Returns how long the rate takes to fall to its limit if nothing is added. */
static int32_t rate_excess_ms(const struct quotas *q, struct quota_rate *rate, int64_t now_ms)
    REQUIRES(rate->lock) {
    int64_t span_ms;
    double rate_now = rate_sum(q, rate, now_ms, &span_ms) * 1000.0 / (double)span_ms;
    if (!(rate_now > rate->limit)) return 0;
    double wait_ms = (rate_now - rate->limit) / rate->limit * (double)span_ms + 0.5;
    return wait_ms < INT32_MAX ? (int32_t)wait_ms : INT32_MAX;
}

static void rate_free(struct quota_rate *rate) {
    lock_acquire(&rate->lock);
    free(rate->samples);
    lock_release(&rate->lock);
    lock_destroy(&rate->lock);
    free(rate);
}

static void rate_release(struct quota_rate *rate) {
    int before = atomic_fetch_sub_explicit(&rate->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1) rate_free(rate);
}

/* ---- the tables */

struct quotas *quotas_new(uint32_t samples, int64_t window_ms) {
    struct quotas *q = calloc(1, sizeof *q);
    if (q == NULL) return NULL;
    assert(samples > 0 && window_ms > 0);
    struct quota_client **clients = calloc(BUCKETS_FIRST, sizeof *clients);
    struct quota_rate **rates = calloc(BUCKETS_FIRST, sizeof *rates);
    *q = (struct quotas){.samples = samples,
                         .window_ms = window_ms,
                         .clients = clients,
                         .rates = rates,
                         .client_buckets = BUCKETS_FIRST,
                         .rate_buckets = BUCKETS_FIRST,
                         .client_sweep_at = SWEEP_COUNT_MIN,
                         .rate_sweep_at = SWEEP_COUNT_MIN};
    if (clients == NULL || rates == NULL || !shared_lock_init(&q->lock)) {
        free(clients);
        free(rates);
        free(q);
        return NULL;
    }
    return q;
}

void quotas_free(struct quotas *q) {
    shared_lock_write(&q->lock);
    for (uint32_t b = 0; b < q->client_buckets; b++)
        for (struct quota_client *c = q->clients[b], *next; c != NULL; c = next) {
            next = c->next;
            quota_client_release(c);
        }
    for (uint32_t b = 0; b < q->rate_buckets; b++)
        for (struct quota_rate *rate = q->rates[b], *next; rate != NULL; rate = next) {
            next = rate->next;
            rate_release(rate);
        }
    free(q->clients);
    free(q->rates);
    free(q->addresses);
    shared_lock_release(&q->lock);
    shared_lock_destroy(&q->lock);
    free(q);
}

atomic_uint *quotas_generation(struct quotas *q) { return &q->generation; }

void quotas_void(struct quotas *q, bool enabled) {
    shared_lock_write(&q->lock);
    if (++q->last_generation == 0) q->last_generation = 1;
    atomic_store_explicit(&q->generation, enabled ? q->last_generation : 0, memory_order_release);
    shared_lock_release(&q->lock);
}

void quotas_count(struct quotas *q, uint32_t *clients, uint32_t *rates) {
    shared_lock_read(&q->lock);
    *clients = q->client_count;
    *rates = q->rate_count;
    shared_lock_release(&q->lock);
}

static bool is_idle(struct quotas *q, struct quota_rate *rate, int64_t now_ms) REQUIRES(q->lock) {
    if (atomic_load_explicit(&rate->references, memory_order_acquire) != 1) return false;
    if (q->rate_count > QUOTA_IDLE_MAX) return true;
    int64_t span_ms;
    lock_acquire(&rate->lock);
    double sum = rate_sum(q, rate, now_ms, &span_ms);
    lock_release(&rate->lock);
    return sum <= 0;
}

/* Drops clients that no connection holds; the lock prevents new references. */
static void sweep_clients(struct quotas *q) REQUIRES(q->lock) {
    for (uint32_t b = 0; b < q->client_buckets; b++)
        for (struct quota_client **at = &q->clients[b], *c = *at; c != NULL; c = *at) {
            if (atomic_load_explicit(&c->references, memory_order_acquire) != 1) {
                at = &c->next;
                continue;
            }
            *at = c->next;
            assert(q->client_count > 0);
            q->client_count--;
            quota_client_release(c);
        }
    q->client_sweep_at = SWEEP_COUNT_MIN + 2 * q->client_count;
}

static void sweep_rates(struct quotas *q, int64_t now_ms) REQUIRES(q->lock) {
    for (uint32_t b = 0; b < q->rate_buckets; b++)
        for (struct quota_rate **at = &q->rates[b], *rate = *at; rate != NULL; rate = *at) {
            if (!is_idle(q, rate, now_ms)) {
                at = &rate->next;
                continue;
            }
            *at = rate->next;
            assert(q->rate_count > 0);
            q->rate_count--;
            rate_release(rate);
        }
    q->rate_sweep_at = SWEEP_COUNT_MIN + 2 * q->rate_count;
}

/* If memory runs out, the chains grow longer but still work. */
static void grow_clients(struct quotas *q) REQUIRES(q->lock) {
    uint32_t count = 2 * q->client_buckets;
    struct quota_client **grown = calloc(count, sizeof(struct quota_client *));
    if (grown == NULL) return;
    for (uint32_t b = 0; b < q->client_buckets; b++)
        for (struct quota_client *c = q->clients[b], *next; c != NULL; c = next) {
            next = c->next;
            c->next = grown[c->hash & (count - 1)];
            grown[c->hash & (count - 1)] = c;
        }
    free(q->clients);
    q->clients = grown;
    q->client_buckets = count;
}

static void grow_rates(struct quotas *q) REQUIRES(q->lock) {
    uint32_t count = 2 * q->rate_buckets;
    struct quota_rate **grown = calloc(count, sizeof(struct quota_rate *));
    if (grown == NULL) return;
    for (uint32_t b = 0; b < q->rate_buckets; b++)
        for (struct quota_rate *rate = q->rates[b], *next; rate != NULL; rate = next) {
            next = rate->next;
            rate->next = grown[rate->hash & (count - 1)];
            grown[rate->hash & (count - 1)] = rate;
        }
    free(q->rates);
    q->rates = grown;
    q->rate_buckets = count;
}

/* Returns the client's position, or the end of its chain. */
static struct quota_client **client_at(struct quotas *q, uint32_t hash, uint32_t principal,
                                       const uint8_t *client_id, uint32_t len)
    REQUIRES_SHARED(q->lock) {
    struct quota_client **at = &q->clients[hash & (q->client_buckets - 1)];
    for (struct quota_client *c = *at; c != NULL; at = &c->next, c = *at)
        if (c->hash == hash && c->principal == principal && c->client_id_len == len &&
            (len == 0 || memcmp(c->client_id, client_id, len) == 0))
            break;
    return at;
}

/* Returns the entity's rate with one reference for the caller; creates it if new. */
static struct quota_rate *rate_for(struct quotas *q, const struct quota_limit *limit)
    REQUIRES(q->lock) {
    uint32_t hash = hash_bytes(HASH_SEED, limit->key, limit->key_len);
    struct quota_rate *rate = q->rates[hash & (q->rate_buckets - 1)];
    while (rate != NULL && (rate->hash != hash || rate->key_len != limit->key_len ||
                            memcmp(rate->key, limit->key, limit->key_len) != 0))
        rate = rate->next;
    if (rate == NULL) {
        rate = calloc(1, sizeof *rate + limit->key_len);
        if (rate == NULL) return NULL;
        rate->hash = hash;
        rate->key_len = limit->key_len;
        memcpy(rate->key, limit->key, limit->key_len);
        lock_init(&rate->lock);
        atomic_init(&rate->references, 1);
        if (q->rate_count >= q->rate_buckets) grow_rates(q);
        rate->next = q->rates[hash & (q->rate_buckets - 1)];
        q->rates[hash & (q->rate_buckets - 1)] = rate;
        q->rate_count++;
    }
    lock_acquire(&rate->lock);
    rate->limit = limit->per_second;
    lock_release(&rate->lock);
    atomic_fetch_add_explicit(&rate->references, 1, memory_order_relaxed);
    return rate;
}

int quotas_install(struct quotas *q, uint32_t principal, const uint8_t *client_id, uint32_t len,
                   const struct quota_limit limits[QUOTA_KINDS], int64_t now_ms) {
    struct quota_client *c = calloc(1, sizeof *c + len);
    if (c == NULL) return -1;
    c->quotas = q;
    c->principal = principal;
    c->client_id_len = len;
    c->hash = client_hash(principal, client_id, len);
    if (len != 0) memcpy(c->client_id, client_id, len);
    atomic_init(&c->references, 1);
    bool complete = true;
    shared_lock_write(&q->lock);
    if (q->client_count >= q->client_sweep_at) sweep_clients(q);
    if (q->rate_count >= q->rate_sweep_at) sweep_rates(q, now_ms);
    for (int kind = 0; kind < QUOTA_KINDS && complete; kind++) {
        if (limits[kind].key == NULL) continue;
        c->rates[kind] = rate_for(q, &limits[kind]);
        complete = c->rates[kind] != NULL;
    }
    struct quota_client *old = NULL;
    if (complete) {
        c->generation = q->last_generation;
        if (q->client_count >= q->client_buckets) grow_clients(q);
        struct quota_client **at = client_at(q, c->hash, principal, client_id, len);
        old = *at;
        c->next = old == NULL ? NULL : old->next;
        *at = c;
        if (old == NULL) q->client_count++;
    }
    shared_lock_release(&q->lock);
    if (old != NULL) quota_client_release(old);
    if (!complete) quota_client_release(c);
    return complete ? 0 : -1;
}

/* ---- addresses */

int quotas_set_addresses(struct quotas *q, const struct quota_address *addresses, uint32_t count,
                         double others) {
    struct quota_address *copy = malloc((count + 1) * sizeof *copy);
    if (copy == NULL) return -1;
    if (count != 0) memcpy(copy, addresses, count * sizeof *copy);
    shared_lock_write(&q->lock);
    struct quota_address *old = q->addresses;
    q->addresses = copy;
    q->address_count = count;
    q->address_others = others;
    atomic_store(&q->addresses_limited, count != 0 || others > 0);
    shared_lock_release(&q->lock);
    free(old);
    return 0;
}

int32_t quotas_connection(struct quotas *q, const uint8_t ip[16], int64_t now_ms) {
    if (!atomic_load_explicit(&q->addresses_limited, memory_order_relaxed)) return 0;
    uint8_t key[sizeof ADDRESS_KEY - 1 + 16] = ADDRESS_KEY;
    memcpy(key + sizeof ADDRESS_KEY - 1, ip, 16);
    struct quota_rate *rate = NULL;
    shared_lock_write(&q->lock);
    double per_second = q->address_others;
    for (uint32_t i = 0; i < q->address_count; i++)
        if (memcmp(q->addresses[i].ip, ip, 16) == 0) per_second = q->addresses[i].per_second;
    if (q->rate_count >= q->rate_sweep_at) sweep_rates(q, now_ms);
    if (per_second > 0)
        rate = rate_for(q, &(struct quota_limit){key, (uint32_t)sizeof key, per_second});
    shared_lock_release(&q->lock);
    if (rate == NULL) return 0;
    lock_acquire(&rate->lock);
    rate_add(q, rate, 1, now_ms);
    int32_t wait_ms = rate_excess_ms(q, rate, now_ms);
    if (wait_ms > 0) rate_add(q, rate, -1, now_ms);
    lock_release(&rate->lock);
    rate_release(rate);
    return wait_ms > q->window_ms ? (int32_t)q->window_ms : wait_ms;
}

/* ---- reactors */

int64_t quotas_monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

double quotas_percent(int64_t busy_ns) { return (double)busy_ns * (100.0 / NS_PER_S); }

struct quota_client *quotas_client(struct quotas *q, uint32_t principal, const uint8_t *client_id,
                                   uint32_t len) {
    uint32_t hash = client_hash(principal, client_id, len);
    shared_lock_read(&q->lock);
    struct quota_client *c = *client_at(q, hash, principal, client_id, len);
    if (c != NULL && c->generation != q->last_generation) c = NULL;
    if (c != NULL) quota_client_retain(c);
    shared_lock_release(&q->lock);
    return c;
}

bool quota_client_is(const struct quota_client *c, uint32_t generation, uint32_t principal,
                     const uint8_t *client_id, uint32_t len) {
    return c->generation == generation && c->principal == principal && c->client_id_len == len &&
           (len == 0 || memcmp(c->client_id, client_id, len) == 0);
}

void quota_client_note(struct quota_client *c, int32_t throttle_ms, int64_t now_ms) {
    atomic_fetch_add_explicit(&c->throttled_ms, (uint64_t)throttle_ms, memory_order_relaxed);
    atomic_store_explicit(&c->throttled_at_ms, now_ms, memory_order_relaxed);
}

uint64_t quotas_throttled(struct quotas *q, const uint8_t *client_id, uint32_t len,
                          int64_t since_ms) {
    uint64_t sum = 0;
    shared_lock_read(&q->lock);
    for (uint32_t i = 0; i < q->client_buckets; i++)
        for (const struct quota_client *c = q->clients[i]; c != NULL; c = c->next)
            if (c->client_id_len == len &&
                (len == 0 || memcmp(c->client_id, client_id, len) == 0) &&
                atomic_load_explicit(&c->throttled_at_ms, memory_order_relaxed) >= since_ms)
                sum += atomic_load_explicit(&c->throttled_ms, memory_order_relaxed);
    shared_lock_release(&q->lock);
    return sum;
}

void quota_client_retain(struct quota_client *c) {
    int before = atomic_fetch_add_explicit(&c->references, 1, memory_order_relaxed);
    assert(before > 0);
    (void)before;
}

void quota_client_release(struct quota_client *c) {
    int before = atomic_fetch_sub_explicit(&c->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before != 1) return;
    for (int kind = 0; kind < QUOTA_KINDS; kind++)
        if (c->rates[kind] != NULL) rate_release(c->rates[kind]);
    free(c);
}

bool quota_client_limited(const struct quota_client *c) {
    return c->rates[QUOTA_PRODUCE] != NULL || c->rates[QUOTA_FETCH] != NULL ||
           c->rates[QUOTA_REQUEST] != NULL;
}

bool quota_client_timed(const struct quota_client *c) { return c->rates[QUOTA_REQUEST] != NULL; }

int32_t quota_client_charge(struct quota_client *c, enum quota_kind kind, double value,
                            int64_t now_ms) {
    struct quota_rate *rate = c->rates[kind];
    if (rate == NULL) return 0;
    const struct quotas *q = c->quotas;
    lock_acquire(&rate->lock);
    rate_add(q, rate, value, now_ms);
    int32_t wait_ms = rate_excess_ms(q, rate, now_ms);
    lock_release(&rate->lock);
    return kind == QUOTA_REQUEST && wait_ms > q->window_ms ? (int32_t)q->window_ms : wait_ms;
}

static double held_max(const struct quotas *q, const struct quota_rate *rate)
    REQUIRES(rate->lock) {
    return rate->limit * (double)(q->samples - 1) * (double)q->window_ms / 1000.0;
}

int32_t quota_client_charge_fetch(struct quota_client *c, double bytes, int64_t now_ms) {
    struct quota_rate *rate = c->rates[QUOTA_FETCH];
    if (rate == NULL) return 0;
    const struct quotas *q = c->quotas;
    int64_t span_ms;
    lock_acquire(&rate->lock);
    bool passes = bytes > held_max(q, rate) && rate_sum(q, rate, now_ms, &span_ms) <= 0;
    rate_add(q, rate, bytes, now_ms);
    int32_t wait_ms = passes ? 0 : rate_excess_ms(q, rate, now_ms);
    if (wait_ms > 0) rate_add(q, rate, -bytes, now_ms);
    lock_release(&rate->lock);
    return wait_ms;
}

void quota_client_count(struct quota_client *c, enum quota_kind kind, double value,
                        int64_t now_ms) {
    struct quota_rate *rate = c->rates[kind];
    if (rate == NULL) return;
    lock_acquire(&rate->lock);
    rate_add(c->quotas, rate, value, now_ms);
    lock_release(&rate->lock);
}

int32_t quota_client_fetch_max(struct quota_client *c, int32_t most) {
    struct quota_rate *rate = c->rates[QUOTA_FETCH];
    if (rate == NULL) return most;
    lock_acquire(&rate->lock);
    double max = held_max(c->quotas, rate);
    lock_release(&rate->lock);
    return max < most ? (int32_t)max : most;
}
