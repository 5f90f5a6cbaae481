/* Wake-ups of a log's waiters. */
#ifndef PYLOG_LOG_WAITERS_H
#define PYLOG_LOG_WAITERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "log/log.h"
#include "log/log_struct.h"

void log_wait_wake_some(struct log *log, enum log_wait_for kind, int64_t end);
/* Called at every append after the end has moved, mostly without waiters. */
static inline void log_wait_wake(struct log *log, enum log_wait_for kind, int64_t end) {
    if (atomic_load(&log->wait.counts[kind]) != 0) log_wait_wake_some(log, kind, end);
}
void log_wait_fail(struct log *log, int32_t status);
void log_wake_after_append(struct log *log);

#endif
