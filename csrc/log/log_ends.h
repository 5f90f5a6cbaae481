/* The end offsets of a log. */
#ifndef PYLOG_LOG_ENDS_H
#define PYLOG_LOG_ENDS_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "log/log_struct.h"
#include "os/lock.h"

/* The high watermark of a leader without other replicas. It never moves back, because consumers
 * may have read up to it before flushed_records_only was set. */
static inline int64_t log_high_watermark_alone(const struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access) {
    int64_t high = atomic_load_explicit(&log->ends.high_watermark, memory_order_relaxed);
    int64_t to = atomic_load_explicit(log->view.config.flushed_records_only ? &log->ends.flushed
                                                                            : &log->ends.end_offset,
                                      memory_order_relaxed);
    return to > high ? to : high;
}

/* Returns true if consumers wait for a flush of this leader. */
static inline bool log_hides_records(const struct log *log) {
    return atomic_load(&log->role.flushed_records_only) && atomic_load(&log->role.leader) &&
           atomic_load(&log->ends.high_watermark) < atomic_load(&log->ends.end_offset) &&
           atomic_load(&log->ends.flushed) < atomic_load(&log->ends.end_offset);
}

/* Call after any end offset moved. */
static inline void log_ends_check(const struct log *log) REQUIRES(log->view.lock) {
    int64_t stable = atomic_load_explicit(&log->ends.last_stable, memory_order_relaxed);
    int64_t high = atomic_load_explicit(&log->ends.high_watermark, memory_order_relaxed);
    int64_t end = atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed);
    assert(atomic_load_explicit(&log->ends.start_offset, memory_order_relaxed) >= 0);
    assert(atomic_load_explicit(&log->ends.start_offset, memory_order_relaxed) <= stable);
    assert(stable <= high);
    assert(high <= end);
    assert(atomic_load_explicit(&log->ends.flushed, memory_order_relaxed) <= end);
}

void log_set_last_stable(struct log *log) REQUIRES(log->view.lock);

#endif
