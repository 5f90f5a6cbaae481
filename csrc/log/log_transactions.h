/* Producers' batches and markers, and the transactions that they open and end. */
#ifndef PYLOG_LOG_TRANSACTIONS_H
#define PYLOG_LOG_TRANSACTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "log/log_struct.h"

/* Updates the producers' state for an appended or replayed batch. Records an abort in the
 * segment, unless it is NULL. `batch`: the bytes of a marker, not read otherwise. Returns 0 or
 * LOG_E_MEMORY, LOG_E_IO. */
int log_update_producer(struct log *log, struct segment *noted_in, const struct batch_header *h,
                        const uint8_t *batch, int64_t now_ms) LOG_APPENDING(log);
/* The same for a batch at `position` of the segment, which is pinned. */
int log_update_producer_at(struct log *log, struct segment *s, const struct batch_header *h,
                           int64_t position, bool note, int64_t now_ms) LOG_APPENDING(log);
/* Call after the producers' state was replaced: updates the open transactions and the last
 * stable offset. */
void log_update_first_open(struct log *log) LOG_APPENDING(log);
/* Records that a transaction has ended; it is stable when its marker is below the high
 * watermark. Returns 0 or LOG_E_MEMORY. */
int log_end_transaction(struct log *log, int64_t first_offset, int64_t last_offset)
    LOG_APPENDING(log);
/* Writes missing aborted transactions to the segment's file and syncs it. Needs flush.lock,
 * unless the log is not shared yet. Returns 0 or -errno. */
int log_aborted_write(struct log *log, struct segment *s);

#endif
