/* The leader epochs of a log and their file. */
#ifndef PYLOG_LOG_EPOCHS_H
#define PYLOG_LOG_EPOCHS_H

#include <stdbool.h>
#include <stdint.h>

#include "log/log_struct.h"
#include "os/lock.h"
#include "segment/leader_epochs.h"

/* Reads the epochs from their file. If it is missing or damaged, reads them from the batches;
 * _upto: from those below an offset, because the caller walks the others. */
int log_load_epochs(struct log *log) LOG_APPENDING(log);
int log_load_epochs_upto(struct log *log, int64_t upto) LOG_APPENDING(log);
/* Takes append.lock for a copy. `sync`: the file is on disk when it returns 0; otherwise *made
 * is the value that a later sync covers. */
int log_write_epochs(struct log *log, bool sync, uint32_t *made) REQUIRES(log->flush.lock);
/* Begins the epoch of a replicated record at `offset` if it has no entry yet. Removes later epochs
 * without records in this log. */
int log_follow_epoch(struct log *log, int32_t epoch, int64_t offset) LOG_APPENDING(log);
/* The same for the current leader epoch. */
static inline int log_begin_epoch(struct log *log, int32_t epoch, int64_t offset)
    LOG_APPENDING(log) {
    return epoch <= epochs_last(&log->append.epochs) ? 0 : log_follow_epoch(log, epoch, offset);
}

#endif
