/* The high watermark that the other replicas allow. */
#ifndef PYLOG_LOG_REPLICAS_H
#define PYLOG_LOG_REPLICAS_H

#include <stdint.h>

#include "log/log_struct.h"
#include "os/lock.h"

/* Moves the high watermark as far as the replicas in the metadata allow. */
void log_replicas_move(struct log *log, int64_t now_ns) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
/* Call after the end moved if appends do not move the high watermark directly. */
void log_replicas_appended(struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
/* Updates in_sync_count_min, after the replicas or the settings changed. */
void log_replicas_set_min_isr(struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
void log_replicas_forget(struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
/* As log_replicas_move, with wake-ups, after the settings or the flushed offset changed. */
void log_replicas_advance(struct log *log);

#endif
