/* A rate that several threads keep together: bytes over sliding samples, as Kafka's SimpleRate
 * (KIP-73, KIP-113). It says when it is exceeded; who sends then waits by itself.
 *
 * Threads: any. Who has no limit set pays one atomic read. */
#ifndef PYLOG_THROTTLE_H
#define PYLOG_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#define THROTTLE_NONE INT64_MAX

struct throttle;

/* `samples` of `window_ms` each are summed (replication.quota.window.*); no limit is set. NULL: out
 * of memory. */
struct throttle *throttle_new(uint32_t samples, int64_t window_ms);
void throttle_free(struct throttle *t);
void throttle_set(struct throttle *t, int64_t bytes_per_second);
/* Whether what was counted is more than the limit. Times are CLOCK_MONOTONIC in ms. */
bool throttle_is_over(struct throttle *t, int64_t now_ms);
void throttle_count(struct throttle *t, int64_t bytes, int64_t now_ms);
/* Bytes a second, over the samples. */
double throttle_rate(struct throttle *t, int64_t now_ms);

#endif
