/* A byte rate shared by several threads, measured over sliding samples like Kafka's SimpleRate
 * (KIP-73, KIP-113). It reports when the limit is exceeded; senders do the waiting.
 *
 * Threads: any. Without a limit, a check costs one atomic read. */
#ifndef PYLOG_RATE_LIMIT_H
#define PYLOG_RATE_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#define THROTTLE_NONE INT64_MAX

struct throttle;

/* Sums `samples` of `window_ms` each (replication.quota.window.*), initially without a limit.
 * Returns NULL if out of memory. */
struct throttle *throttle_new(uint32_t samples, int64_t window_ms);
void throttle_free(struct throttle *t);
void throttle_set(struct throttle *t, int64_t bytes_per_second);
/* Returns true if the rate is above the limit. Times are CLOCK_MONOTONIC in ms. */
bool throttle_is_over(struct throttle *t, int64_t now_ms);
void throttle_count(struct throttle *t, int64_t bytes, int64_t now_ms);
/* Returns bytes per second over the samples. */
double throttle_rate(struct throttle *t, int64_t now_ms);

#endif
