/* The end offsets of a log, written under view.lock. */
#include "log/log_ends.h"

#include <stdatomic.h>
#include <stdint.h>

#include "log/log_struct.h"

int64_t log_start_offset(const struct log *log) { return atomic_load(&log->ends.start_offset); }
int64_t log_end_offset(const struct log *log) { return atomic_load(&log->ends.end_offset); }
int64_t log_high_watermark(const struct log *log) { return atomic_load(&log->ends.high_watermark); }
int64_t log_last_stable_offset(const struct log *log) {
    return atomic_load(&log->ends.last_stable);
}
int64_t log_flushed_offset(const struct log *log) { return atomic_load(&log->ends.flushed); }
int64_t log_recovery_point(const struct log *log) {
    int64_t flushed = atomic_load(&log->ends.flushed),
            held = atomic_load(&log->flush.held_recovery_point);
    return flushed < held ? flushed : held;
}
int64_t log_size_bytes(const struct log *log) { return atomic_load(&log->view.size_bytes); }

void log_set_last_stable(struct log *log) {
    int64_t high = atomic_load(&log->ends.high_watermark),
            start = atomic_load(&log->ends.start_offset);
    int64_t stable = log->append.first_open >= 0 && log->append.first_open < high
                         ? log->append.first_open
                         : high;
    struct log_completed *completed = log->view.completed;
    uint32_t from = log->view.completed_from, end = log->view.completed_end;
    while (from < end && completed[from].last_offset < high) from++;
    if (from < end && completed[from].first_offset < stable) stable = completed[from].first_offset;
    log->view.completed_from = from < end ? from : 0;
    log->view.completed_end = from < end ? end : 0;
    /* The start of an open transaction may have been deleted. */
    atomic_store(&log->ends.last_stable, stable < start && start <= high ? start : stable);
}
