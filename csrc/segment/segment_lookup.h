/* From an offset, a time or a position to a batch of a pinned segment: searches in the indexes,
 * then among headers. Rebuilds indexes that were cut or damaged. */
#ifndef PYLOG_SEGMENT_LOOKUP_H
#define PYLOG_SEGMENT_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#include "segment/segment.h"

/* Returns 1 if a required file is missing or its entries are invalid, 0 if they are valid,
 * -errno for a shortage. Reads the files completely. */
int segment_index_damaged(struct segment *s);
/* Marks the indexes as wrong, because an entry led to no batch or to another one. They are
 * rebuilt, but only once. */
void segment_index_invalidate(struct segment *s);
/* Before the files of a segment without appends are synced: ensures that both exist with all
 * entries. If the disk is full, the entries stay in memory. Returns 0 or -errno. Pinned. */
int segment_index_finish(struct segment *s);
/* Sets the position to scan from for `offset`: that of the last indexed batch whose last offset
 * is <= offset; 0 if there is none. Returns -EAGAIN if the index is not in the page cache (only
 * with `nowait`); other -errno, or LOG_E_IO. Rebuilds files that were cut or damaged. Pinned. */
int segment_index_floor(struct segment *s, int64_t offset, bool nowait, int64_t *position);
/* Finds the last indexed batch start at or below `position` (0 if none). */
int segment_index_border(struct segment *s, int64_t position, bool nowait, int64_t *border);
/* Finds the (absolute) offset from which records at or after `timestamp_ms` may be. */
int segment_index_floor_time(struct segment *s, int64_t timestamp_ms, int64_t *offset);
/* The last time entry (file or tail). Returns false if there is none. */
bool segment_index_last_time(struct segment *s, int64_t *timestamp_ms, int64_t *offset);
/* Finds the position of the first batch whose last offset is >= offset; *first is its base
 * offset. Returns 1 (found), 0 (none) or an error: LOG_E_CORRUPT with a *position >= 0 if that
 * batch is after a hole that contains `offset`. Pinned. */
int segment_find_batch(struct segment *s, int64_t offset, int64_t end, bool nowait,
                       int64_t *position, int64_t *first);
/* Finds the last batch border in (from, from + bytes_max], and the offset after it; or the first
 * border after `from` if the first batch is longer. */
int segment_find_border(struct segment *s, int64_t from, int64_t limit, int32_t bytes_max,
                        bool nowait, int64_t *border, int64_t *next);
/* Verifies that a header begins where the last read ended, because clients cannot use other
 * bytes. */
int segment_check_batch_at(struct segment *s, int64_t position, int64_t end, bool nowait);

#endif
