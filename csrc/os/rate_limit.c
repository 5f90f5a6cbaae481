/* A ring of samples, one window each; samples older than the ring's length do not count. The
 * rate covers the time since the oldest sample began, but at least one window. */
#include "os/rate_limit.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "format/assertion.h"
#include "os/lock.h"

struct sample {
    int64_t began_ms, bytes; /* began_ms -1: empty */
};
struct throttle {
    _Atomic int64_t limit;
    int64_t window_ms;
    uint32_t count;
    struct lock lock;
    uint32_t newest GUARDED_BY(lock);
    struct sample samples[] GUARDED_BY(lock);
};

struct throttle *throttle_new(uint32_t samples, int64_t window_ms) {
    assert(samples > 0 && window_ms > 0);
    struct throttle *t = calloc(1, sizeof *t + samples * sizeof t->samples[0]);
    if (t == NULL) return NULL;
    atomic_store(&t->limit, THROTTLE_NONE);
    t->window_ms = window_ms;
    t->count = samples;
    lock_init(&t->lock);
    lock_acquire(&t->lock);
    for (uint32_t i = 0; i < samples; i++) t->samples[i].began_ms = -1;
    lock_release(&t->lock);
    return t;
}

void throttle_free(struct throttle *t) {
    lock_destroy(&t->lock);
    free(t);
}

void throttle_set(struct throttle *t, int64_t bytes_per_second) {
    assert(bytes_per_second >= 0);
    atomic_store(&t->limit, bytes_per_second);
}

void throttle_count(struct throttle *t, int64_t bytes, int64_t now_ms) {
    assert(bytes >= 0);
    lock_acquire(&t->lock);
    struct sample *s = &t->samples[t->newest];
    if (s->began_ms < 0) {
        s->began_ms = now_ms;
    } else if (now_ms - s->began_ms >= t->window_ms) {
        t->newest = (t->newest + 1) % t->count;
        s = &t->samples[t->newest];
        *s = (struct sample){.began_ms = now_ms};
    }
    s->bytes += bytes;
    lock_release(&t->lock);
}

double throttle_rate(struct throttle *t, int64_t now_ms) {
    int64_t bytes = 0, oldest_ms = now_ms, kept_ms = (int64_t)t->count * t->window_ms;
    lock_acquire(&t->lock);
    for (uint32_t i = 0; i < t->count; i++) {
        const struct sample *s = &t->samples[i];
        if (s->began_ms < 0 || now_ms - s->began_ms >= kept_ms) continue;
        bytes += s->bytes;
        if (s->began_ms < oldest_ms) oldest_ms = s->began_ms;
    }
    lock_release(&t->lock);
    int64_t elapsed_ms = now_ms - oldest_ms;
    if (elapsed_ms < t->window_ms) elapsed_ms = t->window_ms;
    return 1000.0 * (double)bytes / (double)elapsed_ms;
}

bool throttle_is_over(struct throttle *t, int64_t now_ms) {
    int64_t limit = atomic_load_explicit(&t->limit, memory_order_relaxed);
    return limit != THROTTLE_NONE && throttle_rate(t, now_ms) > (double)limit;
}
