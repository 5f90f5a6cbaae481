/* A walk through the batches of a segment. */
#ifndef PYLOG_LOG_REPLAY_H
#define PYLOG_LOG_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "log/log_struct.h"

/* Walks a segment from `position`: producer state, epochs, index (with `index`), CRCs of batches
 * at or above `check_from`. Ends at the first invalid batch at or above `keep_below` (check_from
 * at least); *good is the position after the last valid batch, *next the offset after it. */
struct log_replay {
    int64_t check_from, keep_below, replay_from, position, good, next;
    int64_t aborts_from;       /* with `aborts`: records aborts by markers at or above it */
    bool index, aborts, ends_corrupt; /* ends_corrupt: its last bytes are a hole */
    bool trusted;              /* read only headers; any damage is LOG_E_CORRUPT */
    bool tail; /* the log's last segment: bytes not followed by a valid batch are damaged */
};
int log_replay_segment(struct log *log, struct segment *s, struct log_replay *walk, int64_t now_ms)
    LOG_APPENDING(log);

#endif
