/* The producers' state of a log and its snapshots. */
#ifndef PYLOG_LOG_PRODUCERS_H
#define PYLOG_LOG_PRODUCERS_H

#include <stdint.h>

#include "log/log_segments.h"
#include "log/log_struct.h"

/* Loads the newest valid snapshot at or below `end` and returns its offset, -1 if there is none.
 * Removes snapshots above `end` durably, because a later start would use them. */
int64_t log_load_snapshot(struct log *log, const struct log_offsets *snapshots, int64_t end)
    LOG_APPENDING(log);
/* Restores what a snapshot does not contain, from the batches just below it. Returns 0 or
 * LOG_E_MEMORY. */
int log_restore_recent_batches(struct log *log, int64_t snapshot) LOG_APPENDING(log);
int log_restore_producers(struct log *log, int64_t end, int64_t now_ms)
    LOG_APPENDING(log); /* newest valid snapshot, then replay */
int log_load_producers(struct log *log, int64_t now_ms) LOG_APPENDING(log);
int log_write_snapshot(struct log *log, int64_t offset) LOG_APPENDING(log);

#endif
