/* What Produce and Fetch share: the broker's wall clock and the charges against quotas. */
#include "serve/serve_context.h"

#include <time.h>

#include "format/assertion.h"

int64_t serve_wall_ms(const struct serve *s) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000 +
           atomic_load_explicit(&s->shared->wall_ahead_ms, memory_order_relaxed);
}

/* Charges the time used so far. The remaining time is charged when the request completes. */
static int32_t charge_time(struct serve_request *r, int64_t now_ns) {
    if (!quota_client_timed(r->quota)) return 0;
    int64_t busy_ns = r->busy_ns + now_ns - r->began_ns;
    r->busy_ns = 0;
    r->began_ns = now_ns;
    return quota_client_charge(r->quota, QUOTA_REQUEST, quotas_percent(busy_ns),
                               now_ns / NS_PER_MS);
}

int32_t serve_charge_produce(struct serve_request *r, bool timed) {
    assert(r->quota != NULL);
    int64_t now_ns = quotas_monotonic_ns();
    int32_t bytes_ms =
        quota_client_charge(r->quota, QUOTA_PRODUCE, (double)r->frame_bytes, now_ns / NS_PER_MS);
    int32_t time_ms = timed ? charge_time(r, now_ns) : 0;
    return r->throttle_ms = bytes_ms > time_ms ? bytes_ms : time_ms;
}

int32_t serve_charge_fetch(struct serve_request *r, size_t bytes) {
    assert(r->quota != NULL);
    int64_t now_ns = quotas_monotonic_ns();
    int32_t time_ms = charge_time(r, now_ns);
    int32_t bytes_ms = quota_client_charge_fetch(r->quota, (double)bytes, now_ns / NS_PER_MS);
    /* Nothing is sent, so nothing counts. */
    if (time_ms > 0 && bytes_ms == 0)
        quota_client_count(r->quota, QUOTA_FETCH, -(double)bytes, now_ns / NS_PER_MS);
    return r->throttle_ms = bytes_ms > time_ms ? bytes_ms : time_ms;
}
