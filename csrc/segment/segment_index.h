/* The indexes of one segment: entries in memory and in its two files. Callers pin the segment, so
 * that maps stay. */
#ifndef PYLOG_SEGMENT_INDEX_H
#define PYLOG_SEGMENT_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "os/lock.h"
#include "segment/segment.h"

enum { SEGMENT_PAGE_BYTES = 4096 };

/* Called once per appended batch, in order. Returns true if an entry was added. */
bool segment_index_batch(struct segment *s, const struct batch_header *h, int64_t position);
/* Writes the tail to the files; `final` adds the last time entry. Returns 0 or -errno (the
 * entries stay in memory). */
int segment_index_write(struct segment *s, bool final);
/* Drops entries at or above the offset / position. */
void segment_index_truncate(struct segment *s, int64_t offset, int64_t position);
uint32_t segment_index_entries(struct segment *s, bool times);
/* Drops all entries and empties the files, before a rebuild. */
void segment_index_reset(struct segment *s);
/* Returns true if entries wait in memory because their files had no space. */
bool segment_index_has_pending(struct segment *s);
/* Counts and maps the files. Returns 0, 1 if they are missing or implausible, LOG_E_IO, or
 * another -errno. */
int segment_index_load(struct segment *s) REQUIRES(s->index_lock);
int segment_index_read_end(struct segment *s) REQUIRES(s->index_lock);
void segment_index_reset_locked(struct segment *s) REQUIRES(s->index_lock);
/* Adds an entry if one is due. */
bool segment_index_count(struct segment *s, const struct batch_header *h, int64_t position,
                         struct segment_largest largest);
/* A batch emptied by compaction has no record with its timestamp. */
bool segment_is_later(const struct batch_header *h, struct segment_largest largest);

static inline const uint8_t *segment_index_offsets(const struct segment *s)
    REQUIRES(s->index_lock) {
    return s->maps.at[0];
}
static inline const uint8_t *segment_index_times(const struct segment *s) REQUIRES(s->index_lock) {
    return s->maps.at[1];
}

#endif
