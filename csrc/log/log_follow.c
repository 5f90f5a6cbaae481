/* Appends of a follower or of a loader: batches that already have offsets and epochs, stored
 * unchanged. */
#include "log/log_follow.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/batch.h"
#include "log/active_segment.h"
#include "log/log_append.h"
#include "log/log_ends.h"
#include "log/log_epochs.h"
#include "log/log_failure.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "log/log_transactions.h"
#include "log/log_waiters.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_index.h"

/* Appends a batch to the file, producers' state and index, and publishes the end. */
static int log_follow_write(struct log *log, struct segment *s, const uint8_t *batch, size_t len,
                            const struct batch_header *h, int64_t now_ms) LOG_APPENDING(log) {
    int result = segment_pin(s, false);
    if (result != 0) return log_storage_error(log, result, "open");
    result = log_append_write(log, s, batch, len);
    /* Allocate memory for the producer before the end moves: a batch that is not recorded must
     * not be appended. */
    if (result == 0) result = log_update_producer(log, s, h, batch, now_ms);
    if (result == 0) {
        int64_t position = atomic_load_explicit(&s->bytes, memory_order_relaxed);
        segment_index_batch(s, h, position);
        log_restart_checkpoint_grown(log, position + (int64_t)len);
        log_publish(log, s, position + (int64_t)len, batch_last_offset(h) + 1);
        if (atomic_load_explicit(&log->append.quiet, memory_order_relaxed) == 0)
            segment_preallocate(s, log->view.config.segment_bytes, log->view.config.preallocate);
    }
    segment_unpin(s);
    return result;
}

static int log_follow_batch(struct log *log, const uint8_t *batch, const struct batch_header *h,
                            int64_t now_ms) LOG_APPENDING(log) {
    struct segment *s = log->view.segments[log->view.segment_count - 1];
    size_t len = batch_bytes(h);
    int result;
    if (log_append_must_roll(log, s, len, h->max_timestamp, batch_last_offset(h), now_ms)) {
        /* The new segment begins at the end, unless the batch would be too far from it for
         * relative offsets. */
        int64_t end = atomic_load(&log->ends.end_offset);
        bool far = batch_last_offset(h) - end > INT32_MAX;
        if ((result = log_roll(log, far ? h->base_offset : end, now_ms)) != 0) return result;
        s = log->view.segments[log->view.segment_count - 1];
        /* No segment may begin above the end, even if the batch cannot be written now. */
        if (far) log_publish(log, s, 0, h->base_offset);
    }
    if (batch_last_offset(h) - s->base_offset > INT32_MAX) return LOG_E_RANGE;
    if ((result = log_follow_epoch(log, h->leader_epoch, h->base_offset)) != 0) return result;
    return log_follow_write(log, s, batch, len, h, now_ms);
}

int log_append_damage(struct log *log, const uint8_t *bytes, size_t len, int64_t end,
                      int64_t now_ms) {
    log_append_lock(log);
    int result = log_append_check_online(log);
    if (result == 0 && atomic_load(&log->role.leader)) result = LOG_E_NOT_LEADER;
    if (result == 0 && !log->append.writable) result = log_make_writable(log, now_ms);
    int64_t before = atomic_load(&log->ends.end_offset);
    if (result == 0 && end < before) result = LOG_E_RANGE;
    struct segment *s = result == 0 ? log->view.segments[log->view.segment_count - 1] : NULL;
    if (s != NULL && log_append_must_roll(log, s, len, s->first_timestamp, end, now_ms)) {
        result = log_roll(log, before, now_ms);
        s = log->view.segments[log->view.segment_count - 1];
    }
    if (result == 0 && (result = segment_pin(s, false)) != 0)
        result = log_storage_error(log, result, "open");
    else if (result == 0) {
        result = log_append_write(log, s, bytes, len);
        if (result == 0)
            log_publish(log, s, atomic_load(&s->bytes) + (int64_t)len, end);
        segment_unpin(s);
    }
    log_append_unlock(log);
    log_wake_after_append(log);
    return result;
}

void log_begin_at(struct log *log, int64_t offset) {
    assert(log->view.segment_count == 0);
    assert(offset >= 0);
    log_view_change(log);
    log->view.truncations++; /* A concurrent flush may have noted an end above this one. */
    atomic_store(&log->ends.start_offset, offset);
    atomic_store(&log->ends.end_offset, offset);
    atomic_store(&log->ends.high_watermark, offset);
    atomic_store(&log->ends.flushed, offset);
    log_set_last_stable(log);
    log_ends_check(log);
    log_view_changed(log);
}

/* Restores the start and the high watermark, at most up to the log's end. */
static void log_restore_ends(struct log *log, int64_t start, int64_t high) LOG_APPENDING(log) {
    log_view_change(log);
    int64_t end = atomic_load(&log->ends.end_offset);
    atomic_store(&log->ends.start_offset, start < end ? start : end);
    atomic_store(&log->ends.high_watermark, high < end ? high : end);
    log_set_last_stable(log);
    log_ends_check(log);
    log_view_changed(log);
}

/* Reads the header of a follower's next batch. Returns 1 (whole), 0 (truncated) or
 * LOG_E_CORRUPT. */
static int log_follow_peek(const uint8_t *bytes, size_t len, struct batch_header *h) {
    int result = batch_parse(bytes, len, h);
    if (result == BATCH_E_SHORT) return 0;
    if (result != 0) return LOG_E_CORRUPT;
    return batch_bytes(h) <= len;
}

static int log_follow_check(const struct log *log, const uint8_t *batch,
                            const struct batch_header *h) {
    if (h->base_offset < atomic_load(&log->ends.end_offset) || h->last_offset_delta < 0 ||
        h->base_offset > LOG_OFFSET_MAX)
        return LOG_E_RANGE;
    return batch_check_crc(batch, h) == 0 ? 0 : LOG_E_CORRUPT;
}

int log_append_as_follower(struct log *log, const uint8_t *batches, size_t len, int64_t now_ms,
                           size_t *appended_bytes) {
    struct batch_header h;
    size_t at = 0;
    log_append_lock(log);
    int result = log_append_check_online(log), more = 0;
    if (result == 0 && atomic_load(&log->role.leader)) result = LOG_E_NOT_LEADER;
    int64_t start = atomic_load(&log->ends.start_offset), end = atomic_load(&log->ends.end_offset),
            high = atomic_load(&log->ends.high_watermark);
    if (result == 0 && (more = log_follow_peek(batches, len, &h)) < 0) result = more;
    /* The start may be inside a batch. A copy contains the whole batch, so it begins before the
     * start. */
    bool before = result == 0 && more == 1 && log->view.segment_count == 0 && h.base_offset >= 0 &&
                  h.base_offset < end && batch_last_offset(&h) >= end;
    if (before) log_begin_at(log, h.base_offset);
    if (result == 0 && more == 1 && !log->append.writable) result = log_make_writable(log, now_ms);
    while (result == 0 && more == 1) {
        result = log_follow_check(log, batches + at, &h);
        if (result == 0) result = log_follow_batch(log, batches + at, &h, now_ms);
        if (result != 0) break;
        at += batch_bytes(&h);
        if ((more = log_follow_peek(batches + at, len - at, &h)) < 0) result = more;
    }
    assert(at <= len);
    *appended_bytes = at;
    if (before && at == 0 && log->view.segment_count == 0) log_begin_at(log, end);
    if (before) log_restore_ends(log, start, high);
    log_append_unlock(log);
    log_wake_after_append(log);
    return result;
}
