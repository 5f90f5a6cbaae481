/* Reading: finds a range of whole batches in one file for an offset.
 *
 * For a reader that continues where its last read ended, the log's hints contain the position:
 * no index or header is read. If the bound is the end of the segment and all of it fits, the end
 * needs no search either; otherwise the last indexed batch below the limit and a few headers
 * find it. The view lock is held only for arithmetic, never while files are read. */
#include "log/log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "format/batch.h"
#include "log/log_failure.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "os/lock.h"
#include "segment/cold_reads.h"
#include "segment/file_range.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_lookup.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"

enum { LOG_READ_SWAPS_MAX = 16 };

/* ---- hints ---- */

static struct log_hint *log_hint_find(struct log *log, int64_t offset, int64_t base_offset)
    REQUIRES(log->view.lock) {
    if (log->view.hints == NULL) return NULL;
    for (int i = 0; i < LOG_HINTS + LOG_HINTS_LEFT; i++)
        if (log->view.hints[i].offset == offset && log->view.hints[i].base_offset == base_offset)
            return &log->view.hints[i];
    return NULL;
}

/* Moves the hint of a reader from `from` to `to`. Other readers still at `from`, for example
 * consumers that receive the tail together, find the old position among the left hints for a
 * while. */
static void log_hint_move(struct log *log, int64_t from, int64_t to, int64_t base_offset,
                          int64_t position) REQUIRES(log->view.lock) {
    if (log->view.hints == NULL) {
        log->view.hints = malloc((LOG_HINTS + LOG_HINTS_LEFT) * sizeof *log->view.hints);
        if (log->view.hints == NULL) return;
        for (int i = 0; i < LOG_HINTS + LOG_HINTS_LEFT; i++)
            log->view.hints[i] = (struct log_hint){-1, -1, 0};
    }
    struct log_hint *h = log_hint_find(log, to, base_offset);
    if (h != NULL) return;
    h = log_hint_find(log, from, base_offset);
    if (h != NULL && h < log->view.hints + LOG_HINTS)
        log->view.hints[LOG_HINTS + log->view.next_left++ % LOG_HINTS_LEFT] = *h;
    else
        h = &log->view.hints[log->view.next_hint++ % LOG_HINTS];
    *h = (struct log_hint){to, base_offset, (int32_t)position};
}

/* ---- one read ---- */

/* State read under the view lock. Positions are -1 if they must be searched. */
struct log_read_plan {
    struct segment *segment;
    int64_t offset, upper; /* readable offsets in this segment: [offset, upper) */
    int64_t position, limit, bytes, base_offset;
    uint64_t truncations;
    bool more; /* a later segment contains readable offsets */
};

static void log_read_ends(struct log *log, struct log_range *out) {
    out->high_watermark = atomic_load(&log->ends.high_watermark);
    out->last_stable_offset = atomic_load(&log->ends.last_stable);
    out->log_start_offset = atomic_load(&log->ends.start_offset);
    out->log_end_offset = atomic_load(&log->ends.end_offset);
}

static int64_t log_read_bound(const struct log *log, enum log_bound bound) {
    if (bound == LOG_BOUND_END) return atomic_load(&log->ends.end_offset);
    return atomic_load(bound == LOG_BOUND_LAST_STABLE ? &log->ends.last_stable
                                                      : &log->ends.high_watermark);
}

/* Returns true if the data read is still current: not truncated, and the segment was not
 * replaced. */
static bool log_read_is_current(const struct log *log, const struct log_read_plan *plan)
    REQUIRES_SHARED(log->view.access) {
    int32_t i = log_find_segment(log, plan->base_offset);
    return log->view.truncations == plan->truncations && i >= 0 &&
           log->view.segments[i] == plan->segment;
}

/* Plans the read for the segment `skip` places after the one that contains `offset`. Returns 1
 * (planned) or 0 (nothing to read). */
static int log_read_plan(struct log *log, const struct log_read_request *request, int32_t skip,
                         struct log_read_plan *plan, struct log_range *out) {
    int result = 0;
    log_view_lock(log);
    log_read_ends(log, out);
    int64_t offset = request->offset, end = log_read_bound(log, request->bound);
    if (offset < out->log_start_offset || offset > out->log_end_offset) {
        result = LOG_E_RANGE;
    } else if (offset < end) {
        int32_t i = log_find_segment(log, offset);
        i = i < 0 ? skip : i + skip;
        if (i < (int32_t)log->view.segment_count) {
            struct segment *s = log->view.segments[i];
            bool last = i + 1 == (int32_t)log->view.segment_count;
            int64_t segment_end =
                last ? out->log_end_offset : log->view.segments[i + 1]->base_offset;
            plan->segment = s;
            plan->truncations = out->truncations = log->view.truncations;
            plan->offset = offset > s->base_offset ? offset : s->base_offset;
            plan->bytes = atomic_load_explicit(&s->bytes, memory_order_relaxed);
            plan->base_offset = s->base_offset;
            plan->more = segment_end < end;
            plan->upper = segment_end < end ? segment_end : end;
            struct log_hint *hint = log_hint_find(log, plan->offset, s->base_offset);
            plan->position = hint != NULL                     ? hint->position
                             : plan->offset == s->base_offset ? 0
                                                              : -1;
            plan->limit = plan->bytes;
            if (end < segment_end) {
                hint = log_hint_find(log, end, s->base_offset);
                plan->limit = hint != NULL ? hint->position : -1;
            }
            assert(plan->upper <= out->log_end_offset);
            assert(plan->offset >= s->base_offset);
            assert(plan->position <= plan->bytes);
            assert(plan->limit <= plan->bytes);
            segment_retain(s);
            result = 1;
        }
    }
    log_view_unlock(log);
    return result;
}

/* Fills the range from the pinned segment. Returns 1 if the segment has nothing at or above the
 * offset: try the next one. */
static int log_read_range(const struct log_read_plan *plan, const struct log_read_request *request,
                          struct log_range *out) {
    struct segment *s = plan->segment;
    int64_t position = plan->position, limit = plan->limit, first = plan->offset, ignored;
    int32_t bytes_max = request->bytes_max < 0 ? 0 : request->bytes_max;
    bool nowait = request->nowait;
    int result = 1;
    if (position < 0 &&
        (result = segment_find_batch(s, plan->offset, plan->bytes, nowait, &position, &first)) < 0)
        return result;
    if (result == 0) return 1;
    if (limit < 0 &&
        (result = segment_find_batch(s, plan->upper, plan->bytes, nowait, &limit, &ignored)) < 0)
        return result;
    out->position = position;
    out->first_offset = first;
    out->next_offset = plan->upper;
    if (limit <= position) return plan->more ? 1 : 0;
    /* Verify a header for readers that catch up, here or in segment_find_border. Readers at the
     * tail get bytes that were just written. */
    if (plan->position >= 0 && plan->more && limit - position <= bytes_max &&
        (result = segment_check_batch_at(s, position, plan->bytes, nowait)) != 0)
        return result;
    struct corrupt_range corrupt;
    if (segment_next_corrupt_range(s, position, &corrupt) && corrupt.position < limit) {
        if (corrupt.position <= position) return LOG_E_CORRUPT;
        limit = corrupt.position;
        out->next_offset = corrupt.offset;
    }
    if (limit - position > bytes_max) {
        int64_t border;
        if ((result = segment_find_border(s, position, limit, bytes_max, nowait, &border,
                                          &out->next_offset)) != 0)
            return result;
        if (border - position > bytes_max && !request->at_least_one) {
            out->next_offset = plan->offset;
            return 0;
        }
        limit = border;
    }
    assert(limit > position);
    assert(limit <= plan->bytes);
    assert(limit - position <= bytes_max || request->at_least_one);
    assert(limit - position <= INT32_MAX);
    out->length = (int32_t)(limit - position);
    return 0;
}

/* Finds the range in the pinned segment. Returns as log_read_range. */
static int log_read_find(struct log_read_plan *plan, const struct log_read_request *request,
                         struct log_range *out) {
    int result = log_read_range(plan, request, out);
    if (result != LOG_E_CORRUPT || plan->position <= 0) return result;
    /* A wrong length led the last read past its end: search the index instead. */
    plan->position = -1;
    return log_read_range(plan, request, out);
}

/* Pins the planned segment. Returns 1; 0: its file was replaced, plan again; or an error. Without
 * 1, releases the segment. */
static int log_read_pin(struct log *log, const struct log_read_request *request, struct segment *s,
                        int *swaps) {
    int result = segment_pin(s, false);
    if (result == 0) return 1;
    segment_release(s);
    if (result != -ENOENT) return log_storage_error(log, result, "open");
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    /* Either retention removed the file before the open, and the next plan finds the offset below
     * the start; or compaction is replacing the file under the append lock. */
    if (request->nowait) return LOG_E_WOULD_BLOCK;
    if (request->locked) return LOG_E_CORRUPT; /* Compaction needs this lock to replace it. */
    if (++*swaps > LOG_READ_SWAPS_MAX) return LOG_E_CORRUPT;
    log_append_lock(log);
    log_append_unlock(log);
    return 0;
}

/* Stores where the reader's next read will begin. */
static void log_read_publish_hint(struct log *log, const struct log_read_plan *plan, int64_t offset,
                                  const struct log_range *range) {
    log_view_lock(log);
    /* Offsets may fall in damaged data: a hint must not lead its reader back. */
    if (log_read_is_current(log, plan) && range->next_offset > offset)
        log_hint_move(log, offset, range->next_offset, plan->base_offset,
                      range->position + range->length);
    log_view_unlock(log);
}

int log_read(struct log *log, const struct log_read_request *request, struct log_range *out) {
    struct log_read_plan plan;
    int32_t skip = 0; /* segments without data at or above the offset */
    int swaps = 0;
    memset(out, 0, sizeof *out);
    out->fd = -1;
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    for (;;) {
        int result = log_read_plan(log, request, skip, &plan, out);
        if (result != 1) {
            out->first_offset = out->next_offset = request->offset;
            return result;
        }
        result = log_read_pin(log, request, plan.segment, &swaps);
        if (result < 0) return result;
        if (result == 0) {
            skip = 0;
            continue;
        }
        result = log_read_find(&plan, request, out);
        if (result == 0 && out->length > 0) {
            log_read_publish_hint(log, &plan, request->offset, out);
            assert(plan.segment->fd >= 0);
            out->segment = plan.segment;
            out->fd = plan.segment->fd;
            return 0;
        }
        segment_unpin(plan.segment);
        segment_release(plan.segment);
        if (result <= 0) return result;
        skip++;
    }
}

/* Finds the damaged bytes that contain `offset`, in a pinned segment of readable offsets below
 * `upper`. */
static int log_find_damage(struct segment *s, int64_t offset, int64_t upper,
                           struct log_range *out) {
    struct corrupt_range corrupt;
    struct segment_scan scan;
    struct batch_header h;
    int64_t position = -1, bytes = atomic_load(&s->bytes);
    int result = segment_find_batch(s, offset, bytes, false, &position, &out->first_offset);
    if (result < 0 && (result != LOG_E_CORRUPT || position < 0)) return result;
    /* After a hole, the scan stops at the hole's end. */
    int64_t within = result == 1 ? position : position - 1;
    if (position < 0 || within < 0) return LOG_E_RANGE;
    if ((result = segment_find_corrupt_range(s, within, false, &corrupt)) < 0) return result;
    if (result == 1) {
        out->position = corrupt.position;
        out->first_offset = corrupt.offset;
        out->next_offset = corrupt.next_offset < 0 ? upper : corrupt.next_offset;
        out->length = (int32_t)(corrupt.end - corrupt.position);
        return 0;
    }
    segment_scan_begin(&scan, s, position, bytes, false);
    if ((result = segment_scan_peek(&scan, &h)) != 1) return result < 0 ? result : LOG_E_RANGE;
    out->position = position;
    out->next_offset = batch_last_offset(&h) < upper ? batch_last_offset(&h) + 1 : upper;
    out->length = (int32_t)batch_bytes(&h);
    return 0;
}

int log_read_damage(struct log *log, int64_t offset, struct log_range *out) {
    struct log_read_plan plan;
    memset(out, 0, sizeof *out);
    out->fd = -1;
    const struct log_read_request request = {.offset = offset};
    int result = log_read_plan(log, &request, 0, &plan, out);
    if (result != 1) return result < 0 ? result : LOG_E_RANGE;
    if ((result = segment_pin(plan.segment, false)) != 0) {
        segment_release(plan.segment);
        return log_storage_error(log, result, "open");
    }
    result = log_find_damage(plan.segment, offset, plan.upper, out);
    out->segment = plan.segment;
    out->fd = plan.segment->fd;
    if (result != 0) log_range_release(out);
    return result;
}

bool log_range_is_current(struct log *log, const struct log_range *range) {
    log_view_lock(log);
    int32_t i = log_find_segment(log, range->segment->base_offset);
    bool current = i >= 0 && log->view.segments[i] == range->segment;
    log_view_unlock(log);
    return current;
}

int log_range_cut(struct log_range *range, int64_t offset) {
    int64_t position, first, end = range->position + range->length;
    int result = segment_find_batch(range->segment, offset, end, false, &position, &first);
    if (result < 0) return result;
    /* Ranges from log_read contain no holes, so the removed part begins with a batch. */
    if (result == 0 || position <= range->position || position >= end) return LOG_E_CORRUPT;
    assert(first > range->first_offset && first < range->next_offset);
    range->length = (int32_t)(position - range->position);
    range->next_offset = first;
    return 0;
}

bool log_range_read_cached(const struct log_range *range, uint8_t *to) {
    if (cold_expects(&range->segment->partition->dir->cold, range)) return false;
    for (int32_t done = 0; done < range->length;) {
        struct iovec rest = {to + done, (size_t)(range->length - done)};
        int64_t position = range->position + done;
        ssize_t n = preadv2(range->fd, &rest, 1, position, RWF_NOWAIT);
        if (n < 0 && errno == EOPNOTSUPP)
            n = log_range_read(range, rest.iov_base, rest.iov_len, position);
        if (n <= 0) return false;
        done += (int32_t)n;
    }
    return true;
}

int64_t log_bytes_from(struct log *log, int64_t offset, enum log_bound bound) {
    int64_t bytes = 0;
    log_view_lock(log);
    int64_t end = log_read_bound(log, bound);
    int32_t first = log_find_segment(log, offset), last = log_find_segment(log, end);
    if (offset < end && last >= 0) {
        if (first < 0) first = 0;
        for (int32_t i = first; i <= last; i++)
            bytes += atomic_load_explicit(&log->view.segments[i]->bytes, memory_order_relaxed);
        struct log_hint *hint = log_hint_find(log, offset, log->view.segments[first]->base_offset);
        if (hint != NULL) bytes -= hint->position;
        hint = log_hint_find(log, end, log->view.segments[last]->base_offset);
        if (hint != NULL && end < atomic_load(&log->ends.end_offset))
            bytes -= atomic_load_explicit(&log->view.segments[last]->bytes, memory_order_relaxed) -
                     hint->position;
    }
    log_view_unlock(log);
    return bytes;
}

/* Long ranges are checked with one cachestat call, which, unlike a probe with preadv2, starts no
 * read-ahead. cachestat also counts pages that are still being read, so probe both ends
 * afterwards. Without cachestat, probe one byte per 128 KiB: evicted runs are longer. */
int log_range_cached(const struct log_range *range) {
    enum { STEP = 128 << 10 };
    int64_t last = range->length - 1, step = STEP;
    if (last >= STEP) {
        int64_t resident = cold_resident(range->fd, range->position, range->length);
        if (resident >= 0 && resident < range->length) return 0;
        if (resident >= 0) step = last;
    }
    for (int64_t at = 0; at <= last; at = at < last && at + step > last ? last : at + step) {
        uint8_t byte;
        struct iovec to = {&byte, 1};
        ssize_t n = preadv2(range->fd, &to, 1, range->position + at, RWF_NOWAIT);
        if (n < 0 && errno == EOPNOTSUPP) return 1;
        if (n <= 0) return 0;
    }
    return 1;
}

bool log_range_is_cold(const struct log_range *range) {
    struct cold *cold = &range->segment->partition->dir->cold;
    return cold_expects(cold, range) || !log_range_cached(range);
}

bool log_range_warm(const struct log_range *range) {
    return cold_read(&range->segment->partition->dir->cold, range);
}
