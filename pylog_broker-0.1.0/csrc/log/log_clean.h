/* Compaction of one log: a pass maps the keys of segments that are not clean yet, then writes the
 * sealed segments anew without what newer records supersede.
 *
 * A pass is driven in steps, so that the caller may pause, throttle or give up between them. Reads
 * and appends go on meanwhile. Invariants: (1) the active segment and what is not stable yet are
 * never cleaned; (2) at each moment, and after a crash at each moment, a range of offsets is in the
 * old segments or in the new one, whole: a new file is on disk before the rename to `.log.swap`,
 * and from then on it counts; (3) a pass that meets segments it does not expect (retention,
 * truncation, deletion came in between) changes nothing more; (4) damage stays: bytes that are no
 * good batches are copied as they lie, in a segment of their own, and the batches on both sides of
 * them stay, empty if need be, so that what a reader finds missing is what was missing before; (5)
 * a segment that was cleaned ends where the next begins: its last batch stays, empty if need be. */
#ifndef PYLOG_LOG_CLEAN_H
#define PYLOG_LOG_CLEAN_H

#include "log/keymap.h"
#include "log/log.h"

struct log_clean_rules {
    int64_t now_ms, delete_retention_ms, min_compaction_lag_ms;
    int64_t first_dirty; /* offset from which nothing was cleaned yet */
    int64_t inflated_bytes_max;
    int32_t segment_bytes;
};

/* What a pass would find: whole segments below and from `first_dirty`, up to the first that may not
 * be cleaned. */
struct log_clean_look {
    int64_t clean_bytes, dirty_bytes, first_dirty, cleanable_end;
    int64_t first_dirty_timestamp; /* of the first dirty segment's first batch; -1: nothing dirty */
};
void log_clean_look(struct log *log, const struct log_clean_rules *rules,
                    struct log_clean_look *out);

struct log_clean_figures {
    int64_t end_offset; /* clean up to here */
    int64_t bytes_mapped, bytes_read, bytes_written, batches_read, batches_kept, records_read,
        records_kept, bytes_damaged;
    uint32_t segments_before, segments_after;
};

struct log_clean;
/* `map` is empty, and the pass's alone until log_clean_end. 0 and *out; 1: nothing to clean. */
int log_clean_begin(struct log *log, struct keymap *map, const struct log_clean_rules *rules,
                    struct log_clean **out);
/* Reads about `bytes_max` on. 1: there is more, 0: the pass is done, negative: a log_error;
 * LOG_E_WOULD_BLOCK: (3), or the log is being closed. */
int log_clean_step(struct log_clean *c, int64_t bytes_max);
void log_clean_figures(const struct log_clean *c, struct log_clean_figures *out);
void log_clean_end(struct log_clean *c);

#endif
