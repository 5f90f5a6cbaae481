/* The last segment of a log, to which batches are appended. */
#ifndef PYLOG_ACTIVE_SEGMENT_H
#define PYLOG_ACTIVE_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "log/log_struct.h"
#include "os/lock.h"

/* Takes append.lock with no preallocation queued or running: before a file is cut, closed, or
 * opened by another log. */
void log_lock_quiet(struct log *log) ACQUIRE(log->append.lock) ACQUIRE_SHARED(log->view.access);
void log_unlock_quiet(struct log *log) RELEASE(log->append.lock) RELEASE_SHARED(log->view.access);
/* Returns true if the last segment holds offsets, so that another may follow it. A hole may
 * contain none. */
static inline bool log_may_roll(const struct log *log) REQUIRES_SHARED(log->view.access) {
    const struct segment *s = log->view.segments[log->view.segment_count - 1];
    return atomic_load_explicit(&s->bytes, memory_order_relaxed) > 0 &&
           atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed) > s->base_offset;
}

void active_segment_configure(struct log *log, struct segment *s) LOG_APPENDING(log);
/* Creates the file of a new last segment; log_add_segment adds it to the list. */
int active_segment_create(struct log *log, int64_t base_offset, int64_t now_ms,
                          struct segment **out) LOG_APPENDING(log);
int log_make_writable(struct log *log, int64_t now_ms)
    LOG_APPENDING(log); /* opens the last segment for appends */
int log_roll(struct log *log, int64_t base_offset, int64_t now_ms) LOG_APPENDING(log);
int log_close_files(struct log *log); /* log_close_clean without the flush */

#endif
