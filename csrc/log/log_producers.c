/* The producers' state of a log that was opened or cut: the newest trusted snapshot and the
 * batches after it. Also the state of one producer, and the coordinator's confirmation of it. */
#include "log/log_producers.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "format/batch.h"
#include "log/log_failure.h"
#include "log/log_replay.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/producer_state.h"
#include "segment/segment.h"
#include "segment/segment_lookup.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"

enum { LOG_RECENT_BYTES = 4 << 20, LOG_RECENT_SEGMENTS = 8 };

int64_t log_load_snapshot(struct log *log, const struct log_offsets *snapshots, int64_t end) {
    int64_t found = -1;
    /* If a snapshot is older than the log, batches after it were deleted: use no snapshot
     * instead. */
    int64_t first = log->view.segment_count > 0 ? log->view.segments[0]->base_offset : 0;
    bool gone = false;
    for (uint32_t i = snapshots->count; i > 0 && found < 0; i--) {
        char file[64], path[SEGMENT_PATH_BYTES];
        uint8_t *bytes;
        size_t len;
        snprintf(file, sizeof file, "%020lld.snapshot", (long long)snapshots->at[i - 1]);
        log_path(log, file, path);
        int result =
            snapshots->at[i - 1] > end || snapshots->at[i - 1] < first
                ? -ESTALE
                : log_dir_read_file(log->partition->dir, path, PRODUCERS_BYTES_MAX, &bytes, &len);
        if (result == 0) {
            result = producers_decode(&log->append.producers, bytes, len);
            free(bytes);
        }
        if (result == 0)
            found = snapshots->at[i - 1];
        else if (result != -ESTALE && result != -EINVAL && result != LOG_E_CORRUPT)
            found = log_storage_error(log, result, "open"); /* Keep it for the next attempt. */
        else if (log_dir_unlink(log->partition->dir, path) == 0)
            gone = true;
    }
    if (gone) {
        char path[SEGMENT_PATH_BYTES];
        log_path(log, ".", path);
        int result = log_dir_sync(log->partition->dir, path);
        /* If it returns, it is rejected again. */
        if (result != 0) log_storage_error(log, result, "open");
    }
    return found;
}

/* Adds a segment's batches below `snapshot` to `older`, at most the last `bytes` of them. Returns
 * 0 or a shortage: -errno or a log_error. */
static int log_restore_recent_in(struct segment *s, int64_t snapshot, int64_t bytes,
                                 struct producers *older) {
    struct segment_scan scan;
    struct batch_header h;
    int64_t end, first, begin = 0;
    int result = segment_pin(s, false);
    if (result != 0) return log_error_is_shortage(result) ? result : 0;
    if (segment_find_batch(s, snapshot, atomic_load(&s->bytes), false, &end, &first) >= 0 &&
        (end <= bytes || segment_index_border(s, end - bytes, false, &begin) == 0)) {
        segment_scan_begin(&scan, s, begin, end, false);
        while (segment_scan_peek(&scan, &h) == 1) {
            if (h.producer_id >= 0 && !(h.attributes & BATCH_CONTROL) &&
                producers_update(older, &h, 0) != 0) {
                result = LOG_E_MEMORY;
                break;
            }
            segment_scan_skip(&scan, &h);
        }
    }
    segment_unpin(s);
    return result;
}

/* These batches include those that clients may have in flight: without them, a batch that is sent
 * again would be appended again. */
int log_restore_recent_batches(struct log *log, int64_t snapshot) {
    struct producers older = {0};
    int32_t last = snapshot > 0 ? log_find_segment(log, snapshot - 1) : -1, i = last;
    int64_t bytes = LOG_RECENT_BYTES;
    int result = 0;
    if (last < 0 || log->append.producers.count == 0) return 0;
    while (i > 0 && last - i < LOG_RECENT_SEGMENTS &&
           bytes > atomic_load(&log->view.segments[i]->bytes))
        bytes -= atomic_load(&log->view.segments[i--]->bytes);
    for (; i <= last && result == 0; i++) {
        result = log_restore_recent_in(log->view.segments[i], snapshot, bytes, &older);
        bytes = LOG_RECENT_BYTES;
    }
    if (result == 0) producers_restore_batches(&log->append.producers, &older);
    producers_free(&older);
    return result == 0 ? 0 : log_storage_error(log, result, "open");
}

int log_restore_producers(struct log *log, int64_t end, int64_t now_ms) {
    struct log_listing listing;
    producers_free(&log->append.producers);
    log->append.snapshot_offset = -1;
    log_view_change(log);
    log->view.completed_from = log->view.completed_end = 0;
    log_view_changed(log);
    if (log->view.segment_count == 0) return 0;
    int result = log_list(log, log_open_directory(log), &listing);
    if (result != 0) return log_storage_error(log, result, "open");
    int64_t from = log_load_snapshot(log, &listing.snapshots, end);
    log_list_free(&listing);
    if (from < -1) return (int)from;
    log->append.snapshot_offset = from;
    for (uint32_t i = 0; i < log->view.segment_count && result == 0; i++) {
        int64_t upper =
            i + 1 < log->view.segment_count ? log->view.segments[i + 1]->base_offset : end;
        if (upper <= from) continue;
        struct segment *s = log->view.segments[i];
        struct log_replay walk = {.check_from = INT64_MAX, .replay_from = from};
        if ((result = segment_pin(s, false)) != 0) return log_storage_error(log, result, "open");
        assert(upper > s->base_offset || i + 1 == log->view.segment_count);
        if (from > s->base_offset) segment_index_floor(s, from, false, &walk.position);
        result = log_replay_segment(log, s, &walk, now_ms);
        segment_unpin(s);
        if (result == LOG_E_CORRUPT)
            result = 0; /* Interior damage: later batches of this segment are not replayed. */
    }
    assert(from <= end);
    return result == 0 ? log_restore_recent_batches(log, from) : result;
}

bool log_producer_of(struct log *log, int64_t producer_id, int64_t now_ms,
                     struct log_producer *out) {
    *out = (struct log_producer){-1, -1, -1, -1, -1, 0};
    log_append_lock(log);
    int result = log_load_producers(log, now_ms);
    const struct producers_entry *e =
        result == 0 ? producers_find(&log->append.producers, producer_id) : NULL;
    if (e != NULL)
        *out = (struct log_producer){e->transaction_first_offset, e->last_marker,
                                     e->coordinator_epoch, e->epoch,
                                     e->verified_epoch, e->verified_for};
    log_append_unlock(log);
    return result == 0;
}

void log_verify_producer(struct log *log, int64_t producer_id, int16_t epoch, uint64_t holder) {
    log_append_lock(log);
    producers_verify(&log->append.producers, producer_id, epoch, holder);
    log_append_unlock(log);
}

int log_load_producers(struct log *log, int64_t now_ms) {
    if (log->append.producers_loaded) return 0;
    int result = log_restore_producers(log, atomic_load(&log->ends.end_offset), now_ms);
    if (result != 0) return result;
    log->append.producers_loaded = true;
    log->append.first_open = producers_first_open(&log->append.producers);
    return 0;
}

int log_write_snapshot(struct log *log, int64_t offset) {
    char file[64], path[SEGMENT_PATH_BYTES];
    size_t len;
    if (log->append.snapshot_offset == offset) return 0;
    uint8_t *bytes = producers_encode(&log->append.producers, &len);
    if (bytes == NULL) return -ENOMEM;
    assert(offset > log->append.snapshot_offset);
    snprintf(file, sizeof file, "%020lld.snapshot", (long long)offset);
    log_path(log, file, path);
    /* Replace by rename: a flush or retention that finds the file relies on it. */
    int result = log_dir_write_file(log->partition->dir, path, bytes, len, false);
    free(bytes);
    if (result == 0) log->append.snapshot_offset = offset;
    return result;
}
