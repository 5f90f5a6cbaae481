/* Compaction of one log: a pass maps the keys of segments that are not clean yet, then rewrites
 * the sealed segments without superseded records.
 *
 * A pass runs in steps, so that the caller can pause, throttle or abort between them. Reads and
 * appends continue during a pass.
 *
 * Invariants:
 * - Stable segments only: the active segment and unstable records are never cleaned.
 * - Atomic swap: at any time, also after a crash, a range of offsets is completely in the old
 *   segments or in the new one. A new file is on disk before the rename to `.log.swap`, and
 *   counts from then on.
 * - Unexpected segments stop the pass: after retention, truncation or deletion it changes
 *   nothing more.
 * - Damage stays: invalid bytes are copied unchanged, to a separate segment. The batches on both
 *   sides stay, empty if necessary, so that readers find no further gaps.
 * - No gaps: a cleaned segment ends where the next begins, because its last batch stays, empty
 *   if necessary. */
#ifndef PYLOG_PASS_H
#define PYLOG_PASS_H

#include "compaction/offset_map.h"
#include "log/log.h"

struct log_clean_rules {
    int64_t now_ms, delete_retention_ms, min_compaction_lag_ms;
    int64_t first_dirty; /* first offset that was never cleaned */
    int64_t inflated_bytes_max;
    int32_t segment_bytes;
};

/* What a pass would find: whole segments below and from `first_dirty`, up to the first that must
 * not be cleaned. */
struct log_clean_estimate {
    int64_t clean_bytes, dirty_bytes, first_dirty, cleanable_end;
    int64_t first_dirty_timestamp; /* of the first dirty segment's first batch; -1: nothing dirty */
};
void log_clean_estimate(struct log *log, const struct log_clean_rules *rules,
                    struct log_clean_estimate *out);

struct log_clean_stats {
    int64_t end_offset; /* clean up to here */
    int64_t bytes_mapped, bytes_read, bytes_written, batches_read, batches_kept, records_read,
        records_kept, bytes_damaged;
    uint32_t segments_before, segments_after;
};

struct log_clean;
/* `map` is empty and used only by this pass until log_clean_end. Returns 0 and *out, or 1:
 * nothing to clean. */
int log_clean_begin(struct log *log, struct offset_map *map, const struct log_clean_rules *rules,
                    struct log_clean **out);
/* Reads about `bytes_max` more. Returns 1 (there is more), 0 (the pass is done) or a log_error.
 * LOG_E_WOULD_BLOCK: unexpected segments, or the log is being closed. */
int log_clean_step(struct log_clean *c, int64_t bytes_max);
void log_clean_stats(const struct log_clean *c, struct log_clean_stats *out);
void log_clean_end(struct log_clean *c);

#endif
