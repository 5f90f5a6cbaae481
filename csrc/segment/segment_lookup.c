/* Searches in a segment's indexes and headers, and the repair of indexes that proved wrong.
 * Everything about indexes is under the segment's index_lock. */
#include "segment/segment_lookup.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "format/batch.h"
#include "os/lock.h"
#include "os/mapped.h"
#include "segment/index_search.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_index.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"

enum { SEGMENT_INDEX_TRIES = 3, LOG_READ_INDEXES_MAX = 2 };

/* Rebuilds both indexes from headers. index_lock must not be held, and the segment must have no
 * appends. */
static int segment_index_rebuild(struct segment *s) {
    struct batch_header h;
    struct segment_scan scan;
    /* A local copy: retention reads the segment's value at the same time and must see only the
     * final one. */
    struct segment_largest largest = {-1, -1};
    int result;
    lock_acquire(&s->index_lock);
    segment_index_reset_locked(s);
    lock_release(&s->index_lock);
    segment_scan_begin(&scan, s, 0, atomic_load(&s->bytes), false);
    while ((result = segment_scan_peek(&scan, &h)) == 1) {
        if (segment_is_later(&h, largest))
            largest = (struct segment_largest){h.max_timestamp, batch_last_offset(&h)};
        segment_index_count(s, &h, scan.position, largest);
        segment_scan_skip(&scan, &h);
    }
    if (result == 0) segment_largest_publish(s, largest);
    int written = segment_index_write(s, true);
    return result != 0 ? result : written;
}

/* Returns 1 if a batch after the last entry should have its own entry, or is later than the last
 * time entry, which is written when the segment is sealed. */
static int segment_index_lacks_entries(struct segment *s, int64_t position, int64_t latest) {
    struct batch_header h;
    struct segment_scan scan;
    int64_t since = position == 0 ? 0 : -1; /* An indexed batch counts from its first byte. */
    int result;
    segment_scan_begin(&scan, s, position, atomic_load(&s->bytes), false);
    while ((result = segment_scan_peek(&scan, &h)) == 1) {
        if (since > s->index_interval_bytes || (h.record_count > 0 && h.max_timestamp > latest))
            return 1;
        since = (since < 0 ? 0 : since) + (int64_t)batch_bytes(&h);
        segment_scan_skip(&scan, &h);
    }
    return result == 0 ? 0 : 1;
}

int segment_index_damaged(struct segment *s) {
    lock_acquire(&s->index_lock);
    s->counted = s->index_lost = false;
    int result = segment_index_load(s);
    uint32_t n = result == 0 ? s->offset_count : 0, m = result == 0 ? s->time_count : 0;
    bool sane = true;
    int64_t position = 0;
    s->last_indexed_time = INT64_MIN;
    if (result == 0) {
        mapped_read_begin(&s->maps);
        sane = index_offsets_sane(segment_index_offsets(s), n, atomic_load(&s->bytes)) &&
               index_times_sane(segment_index_times(s), m);
        /* Without time entries no batch may have records: check from the first one. */
        if (n > 0 && m > 0) position = index_position_at(segment_index_offsets(s), n - 1);
        if (m > 0) s->last_indexed_time = index_time_at(segment_index_times(s), m - 1);
        result = segment_index_read_end(s);
    }
    int64_t latest = m > 0 ? s->last_indexed_time : -1;
    lock_release(&s->index_lock);
    if (result != 0) return log_error_is_shortage(result) ? result : 1;
    return !sane ? 1 : segment_index_lacks_entries(s, position, latest);
}

void segment_index_invalidate(struct segment *s) {
    lock_acquire(&s->index_lock);
    if (!s->index_invalidated) {
        s->index_invalidated = s->index_lost = true;
        mapped_read_unmap(&s->maps);
    }
    lock_release(&s->index_lock);
}

/* Rebuilds the files; releases index_lock while doing so. Returns 0, -ENODATA or LOG_E_IO. */
static int segment_index_repair(struct segment *s) REQUIRES(s->index_lock) {
    s->rebuilt = true;
    lock_release(&s->index_lock);
    if (segment_index_rebuild(s) == -EIO) log_dir_fail(s->partition->dir, EIO, "write of an index");
    lock_acquire(&s->index_lock);
    int result = segment_index_load(s);
    /* Damage after a successful rebuild is new. */
    s->rebuilt = result == 1;
    return result == 1 ? -ENODATA : result;
}

/* Locks index_lock and loads the index; rebuilds it once if necessary; begins to read if the
 * result is 0. -EAGAIN: this would block; -ENODATA: only the tail is available. */
static int segment_index_begin(struct segment *s, bool nowait) ACQUIRE(s->index_lock) {
    lock_acquire(&s->index_lock);
    assert(atomic_load(&s->pins) > 0); /* keeps the maps */
    int result = segment_index_load(s);
    /* Appends repair the index of the writable segment. */
    if (result == 1 && (s->rebuilt || !atomic_load(&s->sealed))) return -ENODATA;
    if (result == 1 && nowait) return -EAGAIN;
    if (result == 1) result = segment_index_repair(s);
    if (result != 0) return result;
    mapped_read_begin(&s->maps);
    if (!nowait || s->tail != NULL || s->offset_count == 0) return 0;
    size_t pages = (s->offset_count * 8u + SEGMENT_PAGE_BYTES - 1) / SEGMENT_PAGE_BYTES;
    unsigned char resident[(10 << 20) / SEGMENT_PAGE_BYTES + 1];
    bool here = pages <= sizeof resident &&
                mincore((void *)segment_index_offsets(s), pages * SEGMENT_PAGE_BYTES,
                        resident) == 0;
    for (size_t i = 0; here && i < pages; i++) here = resident[i] & 1;
    if (!here) mapped_read_end(&s->maps);
    return here ? 0 : -EAGAIN;
}

/* Releases index_lock. Returns 1 if the entry that was found is invalid; the next begin rebuilds
 * the files. */
static int segment_index_end(struct segment *s, int result) RELEASE(s->index_lock) {
    if (result == 0) result = segment_index_read_end(s);
    lock_release(&s->index_lock);
    return result;
}

typedef uint32_t segment_index_search(const uint8_t *entries, uint32_t count, int64_t wanted);

static int segment_index_find(struct segment *s, int64_t wanted, bool nowait,
                              segment_index_search *search, int64_t *position) {
    int result = 1;
    for (int i = 0; i < SEGMENT_INDEX_TRIES && result == 1; i++) {
        result = segment_index_begin(s, nowait);
        const struct segment_tail *t = s->tail;
        uint32_t n = 0;
        *position = 0;
        if (t != NULL && t->offset_count > 0 &&
            (n = search(t->offsets, t->offset_count, wanted)) > 0) {
            *position = index_position_at(t->offsets, n - 1);
        } else if (result == 0 && s->offset_count > 0 &&
                   (n = search(segment_index_offsets(s), s->offset_count, wanted)) > 0) {
            *position = index_position_at(segment_index_offsets(s), n - 1);
            if (!index_rises(segment_index_offsets(s), n - 1, atomic_load(&s->bytes)))
                s->maps.failed = 1;
        }
        result = segment_index_end(s, result);
    }
    /* Without an index, a scan from the start finds everything too. */
    if (result == 1) *position = 0;
    return result == -ENODATA || result == 1 ? 0 : result;
}

int segment_index_floor(struct segment *s, int64_t offset, bool nowait, int64_t *position) {
    return segment_index_find(s, offset - s->base_offset, nowait, index_count_offsets, position);
}

int segment_index_border(struct segment *s, int64_t position, bool nowait, int64_t *border) {
    return segment_index_find(s, position, nowait, index_count_positions, border);
}

int segment_index_floor_time(struct segment *s, int64_t timestamp_ms, int64_t *offset) {
    int result = 1;
    for (int i = 0; i < SEGMENT_INDEX_TRIES && result == 1; i++) {
        result = segment_index_begin(s, false);
        const struct segment_tail *t = s->tail;
        const uint8_t *times = segment_index_times(s);
        uint32_t n = 0;
        *offset = s->base_offset;
        if (t != NULL && t->time_count > 0 &&
            (n = index_count_times(t->times, t->time_count, timestamp_ms - 1)) > 0) {
            *offset += index_time_offset_at(t->times, n - 1);
        } else if (result == 0 && s->time_count > 0 &&
                   (n = index_count_times(times, s->time_count, timestamp_ms - 1)) > 0) {
            *offset += index_time_offset_at(times, n - 1);
            if (!index_time_rises(segment_index_times(s), n - 1)) s->maps.failed = 1;
        }
        result = segment_index_end(s, result);
    }
    if (result == 1) *offset = s->base_offset;
    return result == -ENODATA || result == 1 ? 0 : result;
}

bool segment_index_last_time(struct segment *s, int64_t *timestamp_ms, int64_t *offset) {
    bool found = false;
    int result = 1;
    for (int i = 0; i < SEGMENT_INDEX_TRIES && result == 1; i++) {
        result = segment_index_begin(s, false);
        const struct segment_tail *t = s->tail;
        bool of_tail = t != NULL && t->time_count > 0;
        uint32_t n = of_tail ? t->time_count : result == 0 ? s->time_count : 0;
        const uint8_t *entries = of_tail ? t->times : segment_index_times(s);
        found = n > 0;
        if (found) {
            *timestamp_ms = index_time_at(entries, n - 1);
            *offset = s->base_offset + index_time_offset_at(entries, n - 1);
        }
        if (found && !of_tail && !index_time_rises(segment_index_times(s), n - 1))
            s->maps.failed = 1;
        result = segment_index_end(s, result);
    }
    return found && (result == 0 || result == -ENODATA);
}

int segment_index_finish(struct segment *s) {
    lock_acquire(&s->index_lock);
    /* `rebuilt`: a reader is rebuilding it. */
    bool lost = s->index_lost && !s->rebuilt, pending = s->tail != NULL && !s->rebuilt;
    int result = lost ? segment_index_repair(s) : 0;
    lock_release(&s->index_lock);
    if (!lost && pending) result = segment_index_write(s, true);
    /* Retention has removed the segment and its files. */
    if (result == -ENOENT && s->removed) return 0;
    return log_error_is_shortage(result) || result == -ENODATA ? 0 : result;
}

/* ---- batches ---- */

static int lookup_error(struct segment *s, int result) {
    if (result == -EAGAIN) return LOG_E_WOULD_BLOCK;
    if (log_is_error(result)) return result;
    if (result == -EIO) log_dir_fail(s->partition->dir, EIO, "read");
    return log_error_is_shortage(result) ? LOG_E_MEMORY : LOG_E_IO;
}

/* Returns true if the index entry at `from` was wrong for `offset`, given the first batch found
 * there. A skipped hole does not count: the segment is damaged, not the index. */
static bool index_entry_is_wrong(const struct segment_scan *scan, const struct batch_header *h,
                                 int result, int64_t from, int64_t offset) {
    if (from == 0) return false;
    return result == 0 || result == LOG_E_CORRUPT ||
           (result == 1 && scan->position == from && h->base_offset > offset);
}

int segment_find_batch(struct segment *s, int64_t offset, int64_t end, bool nowait,
                       int64_t *position, int64_t *first) {
    struct segment_scan scan;
    struct batch_header h;
    int64_t from;
    int result;
    for (int i = 0;; i++) {
        result = segment_index_floor(s, offset, nowait, &from);
        if (result != 0) return lookup_error(s, result);
        if (i == LOG_READ_INDEXES_MAX) from = 0;
        segment_scan_begin(&scan, s, from, end, nowait);
        result = segment_scan_peek(&scan, &h);
        if (!index_entry_is_wrong(&scan, &h, result, from, offset)) break;
        segment_index_invalidate(s);
        if (nowait) return LOG_E_WOULD_BLOCK;
    }
    while (result == 1 && batch_last_offset(&h) < offset) {
        segment_scan_skip(&scan, &h);
        result = segment_scan_peek(&scan, &h);
    }
    if (result < 0) return lookup_error(s, result);
    *position = scan.position;
    *first = result == 1 ? h.base_offset : -1;
    /* Report offsets inside a hole instead of skipping them. */
    if (scan.corrupt_end == scan.position && (result == 0 || h.base_offset > offset))
        return LOG_E_CORRUPT;
    return result;
}

/* Moves the scan from batch `h` to the index's `begin`, if a later batch begins there. */
static int border_scan_begin(struct segment_scan *scan, const struct batch_header *h,
                             int64_t begin) {
    struct segment *s = scan->segment;
    struct batch_header at;
    int64_t from = scan->position;
    /* An entry inside the first batch is wrong, or that batch's length is. */
    if (begin < from + (int64_t)batch_bytes(h)) return 0;
    segment_scan_begin(scan, s, begin, scan->end, scan->nowait);
    int result = segment_scan_peek(scan, &at);
    if (result != LOG_E_CORRUPT && !(result == 1 && at.base_offset <= batch_last_offset(h)))
        return result < 0 ? result : 0;
    segment_index_invalidate(s);
    segment_scan_begin(scan, s, from, scan->end, scan->nowait);
    return 0;
}

int segment_find_border(struct segment *s, int64_t from, int64_t limit, int32_t bytes_max,
                        bool nowait, int64_t *border, int64_t *next) {
    struct segment_scan scan;
    struct batch_header h;
    int64_t target = from + bytes_max, begin;
    int result = segment_index_border(s, target, nowait, &begin);
    if (result != 0) return lookup_error(s, result);
    segment_scan_begin(&scan, s, from, limit, nowait);
    if ((result = segment_scan_peek(&scan, &h)) != 1)
        return result < 0 ? lookup_error(s, result) : LOG_E_CORRUPT;
    if (scan.position != from) return LOG_E_CORRUPT;
    if ((result = border_scan_begin(&scan, &h, begin)) != 0) return lookup_error(s, result);
    *next = -1;
    while ((result = segment_scan_peek(&scan, &h)) == 1) {
        bool past = scan.position + (int64_t)batch_bytes(&h) > target;
        if (past && scan.position > from) {
            if (*next < 0) *next = h.base_offset;
            break;
        }
        *next = batch_last_offset(&h) + 1;
        segment_scan_skip(&scan, &h);
        if (past) break;
    }
    assert(scan.position > from || result < 0);
    assert(scan.position <= limit);
    *border = scan.position;
    return result < 0 ? lookup_error(s, result) : 0;
}

int segment_check_batch_at(struct segment *s, int64_t position, int64_t end, bool nowait) {
    struct segment_scan scan;
    struct batch_header h;
    segment_scan_begin(&scan, s, position, end, nowait);
    int result = segment_scan_peek(&scan, &h);
    if (result < 0) return lookup_error(s, result);
    return scan.position == position ? 0 : LOG_E_CORRUPT;
}
