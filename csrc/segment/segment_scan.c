/* Headers of a segment in order, and its holes, which readers skip.
 *
 * A hole is found when a header does not parse. Then the headers of the whole segment are walked
 * once; where they become invalid, the bytes are searched for the next batch whose offset fits
 * and whose CRC is correct. */
#include "segment/segment_scan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "format/batch.h"
#include "format/bytes.h"
#include "os/disk.h"
#include "os/lock.h"
#include "segment/damage_report.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

enum { DAMAGE_WINDOW_BYTES = 1 << 20, DAMAGE_RANGES_MAX = 1 << 16 };

enum log_damage_why segment_damage_cause(struct segment *s, int64_t position, int64_t end,
                                         int64_t next) {
    uint8_t head[BATCH_HEADER_BYTES] = {0};
    struct batch_header h;
    int64_t left = end - position;
    assert(left >= 0);
    size_t len = left < BATCH_HEADER_BYTES ? (size_t)left : BATCH_HEADER_BYTES;
    if (segment_read(s, position, head, len) != 0) return LOG_WHY_SHORT;
    size_t zeros = 0;
    while (zeros < len && head[zeros] == 0) zeros++;
    /* A log's first batch also begins with eight zeros, but its length is not zero. */
    if (zeros == len) return LOG_WHY_ZEROS;
    int parsed = batch_parse(head, len, &h);
    if (parsed == BATCH_E_SHORT) return LOG_WHY_SHORT;
    if (parsed != 0) return LOG_WHY_HEADER;
    if ((int64_t)batch_bytes(&h) > left) return LOG_WHY_SHORT;
    return h.base_offset < next || h.last_offset_delta < 0 ? LOG_WHY_ORDER : LOG_WHY_CRC;
}

/* ---- the search for holes ---- */

struct damage_search {
    struct segment *segment;
    int64_t end, reported_end; /* `reported_end`: holes below were already recorded */
    uint8_t *window, *batch;
    size_t batch_room;
    struct corrupt_ranges *corrupt_ranges;
};

bool segment_batch_fits(int64_t base_offset, const struct batch_header *h, int64_t next) {
    return h->base_offset >= next && h->last_offset_delta >= 0 && h->record_count >= 0 &&
           h->base_offset - base_offset <= INT32_MAX &&
           batch_last_offset(h) - base_offset <= INT32_MAX;
}

/* Returns 1 if a whole batch with a correct CRC is at `position`. */
static int damage_check(struct damage_search *d, int64_t position, const struct batch_header *h) {
    size_t len = batch_bytes(h);
    if ((int64_t)len > d->end - position) return 0;
    if (len > d->batch_room) {
        uint8_t *bytes = realloc(d->batch, len);
        if (bytes == NULL) return LOG_E_MEMORY;
        d->batch = bytes;
        d->batch_room = len;
    }
    int result = segment_read(d->segment, position, d->batch, len);
    if (result != 0) return result == LOG_E_CORRUPT ? 0 : result;
    return batch_check_crc(d->batch, h) == 0;
}

/* Finds the first valid batch above `position`, with offsets from `next` on. Returns 1, 0 (none)
 * or an error. */
static int damage_find_good(struct damage_search *d, int64_t position, int64_t next, int64_t *found,
                            int64_t *offset) {
    while (++position + BATCH_HEADER_BYTES <= d->end) {
        int64_t left = d->end - position;
        size_t len = left < DAMAGE_WINDOW_BYTES ? (size_t)left : DAMAGE_WINDOW_BYTES;
        ssize_t n = log_dir_disk(d->segment->partition->dir)
                        ->pread(d->segment->fd, d->window, len, position);
        if (n < 0 && errno == EINTR) continue;
        if (n < BATCH_HEADER_BYTES) return n < 0 ? LOG_E_IO : 0;
        size_t last = (size_t)n - BATCH_HEADER_BYTES;
        for (size_t at = 0; at <= last; at++) {
            const uint8_t *magic = memchr(d->window + at + BATCH_MAGIC_AT, 2, last - at + 1);
            struct batch_header h;
            if (magic == NULL) break;
            at = (size_t)(magic - d->window) - BATCH_MAGIC_AT;
            if (batch_parse(d->window + at, (size_t)n - at, &h) != 0 ||
                !segment_batch_fits(d->segment->base_offset, &h, next))
                continue;
            int good = damage_check(d, position + (int64_t)at, &h);
            if (good < 0) return good;
            if (good == 0) continue;
            assert(at <= last);
            *found = position + (int64_t)at;
            *offset = h.base_offset;
            return 1;
        }
        position += (int64_t)last;
    }
    return 0;
}

static int damage_add(struct damage_search *d, const struct corrupt_range *corrupt) {
    uint32_t count = d->corrupt_ranges->count;
    assert(corrupt->end > corrupt->position);
    assert(count == 0 || corrupt->position >= d->corrupt_ranges->at[count - 1].end);
    if (count == DAMAGE_RANGES_MAX) return LOG_E_CORRUPT;
    if ((count & (count - 1)) == 0) {
        size_t room = count == 0 ? 1 : count * 2u;
        size_t bytes = sizeof(struct corrupt_ranges) + room * sizeof *corrupt;
        struct corrupt_ranges *more = realloc(d->corrupt_ranges, bytes);
        if (more == NULL) return LOG_E_MEMORY;
        d->corrupt_ranges = more;
    }
    d->corrupt_ranges->at[d->corrupt_ranges->count++] = *corrupt;
    return 0;
}

/* Walks the headers. Where they end before the file does, a hole begins; or one batch earlier,
 * if the length of that batch was wrong. */
static int damage_map(struct damage_search *d) {
    struct segment *s = d->segment;
    struct batch_header h, before = {0};
    struct segment_scan scan;
    int64_t next = s->base_offset, before_at = -1, before_next = next;
    segment_scan_begin(&scan, s, 0, d->end, false);
    scan.strict = true;
    for (;;) {
        int result = segment_scan_peek(&scan, &h);
        if (result == 0) return 0;
        if (result == 1 && segment_batch_fits(s->base_offset, &h, next)) {
            before = h;
            before_at = scan.position;
            before_next = next;
            next = batch_last_offset(&h) + 1;
            segment_scan_skip(&scan, &h);
            continue;
        }
        if (result != 1 && result != LOG_E_CORRUPT) return result;
        struct corrupt_range corrupt = {scan.position, d->end, scan.position + 1, next, -1};
        int good = before_at < 0 ? 1 : damage_check(d, before_at, &before);
        /* No CRC covers a base offset. If this batch fits after the batch before `before`, then
         * the offset of `before` is the wrong one. */
        if (good == 1 && result == 1 && before_at >= 0 &&
            segment_batch_fits(s->base_offset, &h, before_next)) {
            good = damage_check(d, scan.position, &h);
            if (good >= 0) good = !good;
        }
        if (good < 0) return good;
        if (good == 0) {
            corrupt.position = before_at;
            corrupt.offset = before_next;
        }
        good = damage_find_good(d, corrupt.position, corrupt.offset, &corrupt.end,
                                &corrupt.next_offset);
        if (good < 0) return good;
        result = damage_add(d, &corrupt);
        if (result != 0) return result;
        if (corrupt.position >= d->reported_end)
            log_damage_record(s, LOG_DAMAGE_KEPT,
                              segment_damage_cause(s, corrupt.position, d->end, corrupt.offset),
                              corrupt.offset, corrupt.position, corrupt.end - corrupt.position);
        if (corrupt.next_offset < 0) return 0;
        segment_scan_begin(&scan, s, corrupt.end, d->end, false);
        scan.strict = true;
        before_at = -1;
        next = corrupt.next_offset;
    }
}

static bool damage_leads_to(struct segment *s, int64_t position, struct corrupt_range *out)
    REQUIRES(s->index_lock) {
    const struct corrupt_ranges *ranges = atomic_load(&s->corrupt_ranges);
    const struct corrupt_range *led = NULL;
    for (uint32_t i = 0; ranges != NULL && i < ranges->count; i++) {
        const struct corrupt_range *corrupt = &ranges->at[i];
        if (corrupt->position > position) break;
        if (position < corrupt->end || position < corrupt->reach) led = corrupt;
    }
    if (led != NULL) *out = *led;
    return led != NULL;
}

static bool damage_known(struct segment *s, int64_t position, struct corrupt_range *out)
    REQUIRES(s->index_lock) {
    const struct corrupt_ranges *ranges = atomic_load(&s->corrupt_ranges);
    for (uint32_t i = 0; ranges != NULL && i < ranges->count; i++)
        if (ranges->at[i].end > position) {
            *out = ranges->at[i];
            return true;
        }
    return false;
}

int segment_find_corrupt_range(struct segment *s, int64_t position, bool nowait,
                               struct corrupt_range *out) {
    lock_acquire(&s->index_lock);
    const struct corrupt_ranges *known = atomic_load(&s->corrupt_ranges);
    int64_t reported_end = s->reported_ranges_end;
    bool mapped = known != NULL && known->mapped > position;
    bool found = mapped && damage_leads_to(s, position, out);
    lock_release(&s->index_lock);
    if (mapped) return found;
    if (nowait) return -EAGAIN;
    struct damage_search d = {
        .segment = s, .end = atomic_load(&s->bytes), .reported_end = reported_end};
    int result = LOG_E_MEMORY;
    d.window = malloc(DAMAGE_WINDOW_BYTES);
    d.corrupt_ranges = calloc(1, sizeof *d.corrupt_ranges);
    if (d.window != NULL && d.corrupt_ranges != NULL) {
        d.corrupt_ranges->mapped = d.end;
        result = damage_map(&d);
    }
    free(d.window);
    free(d.batch);
    if (result != 0) {
        free(d.corrupt_ranges);
        return result;
    }
    lock_acquire(&s->index_lock);
    /* The segment was truncated during the search. Discard the result:
     * segment_forget_corrupt_ranges() could not. */
    if (atomic_load(&s->bytes) < d.end) {
        lock_release(&s->index_lock);
        free(d.corrupt_ranges);
        return 0;
    }
    if (d.corrupt_ranges->count > 0) atomic_store(&s->damaged, true);
    if (s->reported_ranges_end < d.end) s->reported_ranges_end = d.end;
    free(atomic_exchange(&s->corrupt_ranges, d.corrupt_ranges));
    found = damage_leads_to(s, position, out);
    lock_release(&s->index_lock);
    return found;
}

bool segment_next_corrupt_range(struct segment *s, int64_t position, struct corrupt_range *out) {
    if (atomic_load_explicit(&s->corrupt_ranges, memory_order_acquire) == NULL) return false;
    lock_acquire(&s->index_lock);
    bool found = damage_known(s, position, out);
    lock_release(&s->index_lock);
    return found;
}

void segment_report_batch(struct segment *s, const struct batch_header *h, int64_t position,
                          enum log_damage_why why) {
    lock_acquire(&s->index_lock);
    bool again = position < s->reported_batches_end;
    if (!again) s->reported_batches_end = position + 1;
    lock_release(&s->index_lock);
    atomic_store(&s->damaged, true);
    if (!again)
        log_damage_record(s, LOG_DAMAGE_KEPT, why, h->base_offset, position,
                          (int64_t)batch_bytes(h));
}

void segment_forget_corrupt_ranges(struct segment *s) {
    lock_acquire(&s->index_lock);
    s->reported_ranges_end = s->reported_batches_end = 0;
    free(atomic_exchange(&s->corrupt_ranges, NULL));
    lock_release(&s->index_lock);
}

void segment_scan_begin(struct segment_scan *scan, struct segment *s, int64_t position, int64_t end,
                        bool nowait) {
    assert(position >= 0);
    assert(atomic_load(&s->pins) > 0);
    scan->segment = s;
    scan->position = position;
    scan->end = end;
    scan->window_position = 0;
    scan->window_bytes = 0;
    scan->corrupt_end = -1;
    scan->nowait = nowait;
    scan->strict = false;
    scan->window = scan->own;
    scan->window_room = SEGMENT_WINDOW_BYTES;
}

/* Fills the window from `position` on. */
static int segment_scan_fill(struct segment_scan *scan) {
    int64_t left = scan->end - scan->position;
    assert(left >= BATCH_HEADER_BYTES);
    assert(scan->window_room >= BATCH_HEADER_BYTES);
    struct iovec to = {scan->window, left < scan->window_room ? (size_t)left : scan->window_room};
    ssize_t n;
    do
        n = scan->nowait ? preadv2(scan->segment->fd, &to, 1, scan->position, RWF_NOWAIT)
                         : log_dir_disk(scan->segment->partition->dir)
                               ->pread(scan->segment->fd, to.iov_base, to.iov_len, scan->position);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) return -EAGAIN;
    if (n < 0 && errno == EOPNOTSUPP && scan->nowait) {
        scan->nowait = false; /* tmpfs and overlays lack this flag and never wait */
        return segment_scan_fill(scan);
    }
    if (n < 0) return log_dir_error(scan->segment->partition->dir, errno, "pread");
    scan->window_position = scan->position;
    scan->window_bytes = (uint32_t)n;
    if (n < BATCH_HEADER_BYTES) return scan->nowait && n < left ? -EAGAIN : LOG_E_CORRUPT;
    return 0;
}

static int segment_scan_header(struct segment_scan *scan, struct batch_header *h) {
    int64_t left = scan->end - scan->position;
    if (left <= 0) return 0;
    if (left < BATCH_HEADER_BYTES) return LOG_E_CORRUPT;
    int64_t within = scan->position - scan->window_position;
    if (within < 0 || within + BATCH_HEADER_BYTES > scan->window_bytes) {
        int result = segment_scan_fill(scan);
        if (result != 0) return result;
        within = 0;
    }
    if (batch_parse(scan->window + within, scan->window_bytes - (size_t)within, h) != 0)
        return LOG_E_CORRUPT;
    /* The base offset is outside the checksum: detect damage to it here. */
    if (!segment_batch_fits(scan->segment->base_offset, h, scan->segment->base_offset))
        return LOG_E_CORRUPT;
    return (int64_t)batch_bytes(h) <= left ? 1 : LOG_E_CORRUPT;
}

int segment_scan_peek(struct segment_scan *scan, struct batch_header *h) {
    for (;;) {
        struct corrupt_range corrupt;
        int result = segment_scan_header(scan, h);
        /* Bytes within a known hole may look like a header. */
        if (result == 1 && !scan->strict &&
            segment_next_corrupt_range(scan->segment, scan->position, &corrupt) &&
            corrupt.position <= scan->position)
            result = LOG_E_CORRUPT;
        if (result != LOG_E_CORRUPT || scan->strict) return result;
        result = segment_find_corrupt_range(scan->segment, scan->position, scan->nowait, &corrupt);
        if (result <= 0) return result < 0 ? result : LOG_E_CORRUPT;
        scan->position = scan->corrupt_end = corrupt.end < scan->end ? corrupt.end : scan->end;
    }
}
