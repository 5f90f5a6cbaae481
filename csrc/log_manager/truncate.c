/* Truncation of a log's end. */
#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "log/active_segment.h"
#include "log/log_ends.h"
#include "log/log_epochs.h"
#include "log/log_failure.h"
#include "log/log_follow.h"
#include "log/log_internal.h"
#include "log/log_producers.h"
#include "log/log_replay.h"
#include "log/log_segments.h"
#include "log/log_transactions.h"
#include "log_manager/log_manager.h"
#include "os/clock.h"
#include "os/lock.h"
#include "segment/leader_epochs.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_index.h"
#include "segment/segment_lookup.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"
#include "segment/txn_index.h"

/* The last segment's file could not be cut and still has `bytes` bytes. */
static void log_restore_bytes(struct log *log, struct segment *s, int64_t bytes)
    LOG_APPENDING(log) {
    log_view_change(log);
    assert(bytes >= atomic_load(&s->bytes));
    atomic_fetch_add(&log->view.size_bytes, bytes - atomic_load(&s->bytes));
    atomic_store(&s->bytes, bytes);
    log_view_changed(log);
}

/* Cuts the last segment before the batch that contains `offset`. *end changes to the new end of
 * the log as soon as the file is cut, also if a later step fails. */
static int log_truncate_last(struct log *log, int64_t offset, int64_t now_ms, int64_t *end)
    LOG_APPENDING(log) {
    struct segment *s = log->view.segments[log->view.segment_count - 1];
    int64_t position, first, bytes = atomic_load(&s->bytes);
    int result = segment_pin(s, false);
    if (result != 0) return log_storage_error(log, result, "open");
    result = segment_find_batch(s, offset, bytes, false, &position, &first);
    struct corrupt_range hole;
    /* A hole that contains the offset is cut too, like a batch. */
    if (result == LOG_E_CORRUPT && position > 0 &&
        segment_find_corrupt_range(s, position - 1, false, &hole) == 1) {
        position = hole.position;
        first = hole.offset;
        result = 1;
    }
    if (result == 1) {
        /* A hole before all batches is cut with them: the segment would contain no offset. */
        if (first == s->base_offset) position = 0;
        assert(position <= bytes);
        assert(first >= s->base_offset);
        segment_index_truncate(s, first, position);
        log_view_change(log);
        atomic_store(&s->bytes, position);
        /* Hints must not outlive the bytes that they point to. */
        log->view.truncations++;
        free(log->view.hints);
        log->view.hints = NULL;
        log_view_changed(log);
        atomic_fetch_sub(&log->view.size_bytes, bytes - position);
        atomic_store(&s->allocated, 0);
        segment_forget_corrupt_ranges(s);
        s->since_entry_bytes = 0;
        int cut = segment_cut(s, position);
        /* Readers must not see these bytes during the cut. If it fails, the next attempt must
         * cut them. */
        if (cut != 0)
            log_restore_bytes(log, s, bytes);
        else
            *end = first < offset ? first : offset; /* Compaction may have left a gap there. */
        if (cut == 0 && (cut = txn_index_cut(s, first)) == 0 &&
            log_error_is_shortage(cut = log_aborted_write(log, s)))
            cut = 0;
        if (cut != 0) result = log_storage_error(log, cut, "ftruncate");
        /* The largest timestamp may have been cut off: read the headers. */
        struct log_replay walk = {.check_from = INT64_MAX, .replay_from = INT64_MAX, .index = true};
        if (result == 1) result = log_replay_segment(log, s, &walk, now_ms);
        /* A clean start must not find the old entries in the files. */
        if (result == 0 && !log_error_is_shortage(cut = segment_index_write(s, true)) && cut != 0)
            result = log_storage_error(log, cut, "pwrite");
    }
    segment_unpin(s);
    return result < 0 ? result : 0;
}

/* Lowers the offsets of a log whose data now ends at `end`. */
static void log_lower_end(struct log *log, int64_t end) LOG_APPENDING(log) {
    log_view_change(log);
    assert(end <= atomic_load(&log->ends.end_offset));
    log->view.truncations++;
    free(log->view.hints);
    log->view.hints = NULL;
    atomic_store(&log->ends.end_offset, end);
    if (atomic_load(&log->ends.start_offset) > end) atomic_store(&log->ends.start_offset, end);
    if (atomic_load(&log->ends.high_watermark) > end) atomic_store(&log->ends.high_watermark, end);
    if (atomic_load(&log->ends.flushed) > end) atomic_store(&log->ends.flushed, end);
    if (epochs_truncate_end(&log->append.epochs, end)) log_mark(&log->flush.epochs_marks);
    log_set_last_stable(log);
    log_ends_check(log);
    log_view_changed(log);
}

/* Removes the segments from `keep` on and cuts the one before. *end: where the data ends, also
 * after a failure. */
static int log_cut_segments(struct log *log, uint32_t keep, int64_t offset, int64_t now_ms,
                            int64_t *end) LOG_APPENDING(log) {
    /* Remove from the end, and sync before anything is appended: after a power loss, a start
     * must not find old segments after new records. */
    bool dropped = log->view.segment_count > keep;
    while (log->view.segment_count > keep && !log_offline(log)) {
        *end = log->view.segments[log->view.segment_count - 1]->base_offset;
        log_drop_segments(log, log->view.segment_count - 1, 1, 0);
    }
    assert(keep <= log->view.segment_count);
    if (log_offline(log)) return LOG_E_OFFLINE;
    char name[SEGMENT_PATH_BYTES];
    log_path(log, ".", name);
    int result = dropped ? log_dir_sync(log->partition->dir, name) : 0;
    if (result != 0) return log_storage_error(log, result, "fsync");
    if (keep > 0) {
        segment_unseal(log->view.segments[keep - 1]);
        if ((result = log_truncate_last(log, offset, now_ms, end)) != 0) return result;
    }
    if (*end > offset) *end = offset;
    return 0;
}

/* The log is not writable afterwards. */
static int log_cut(struct log *log, int64_t offset, int64_t now_ms) LOG_APPENDING(log) {
    int result = log_make_writable(log, now_ms);
    if (result != 0) return result;
    log_restart_checkpoint_clear(log);
    uint32_t keep = log->view.segment_count;
    while (keep > 0 && log->view.segments[keep - 1]->base_offset >= offset) keep--;
    log->append.writable = false;
    log->append.producers_loaded = false;
    int64_t end = atomic_load(&log->ends.end_offset);
    result = log_cut_segments(log, keep, offset, now_ms, &end);
    log_lower_end(log, end);
    if (result != 0) return result;
    result = log_restore_producers(log, end, now_ms);
    log->append.producers_loaded = result == 0;
    log_update_first_open(log);
    return result;
}

static int log_truncate_locked(struct log *log, int64_t offset) LOG_APPENDING(log) {
    int64_t now_ms = clock_read_ms(CLOCK_REALTIME);
    int result = log_cut(log, offset, now_ms);
    return result != 0 ? result : log_make_writable(log, now_ms);
}

/* Removes no records, only an epoch that began at the end without any. Otherwise every check
 * against a leader that never had this epoch would find it divergent. */
static int log_truncate_nothing(struct log *log) LOG_APPENDING(log) {
    int result = log_load_epochs(log);
    if (result != 0) return result;
    log_view_change(log);
    if (epochs_truncate_end(&log->append.epochs, atomic_load(&log->ends.end_offset)))
        log_mark(&log->flush.epochs_marks);
    log_view_changed(log);
    return 0;
}

/* The decision to truncate may be outdated: the log may lead, or follow another leader. */
static int log_may_cut(struct log *log, int32_t leader_epoch) LOG_APPENDING(log) {
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    if (leader_epoch < 0) return 0;
    bool follows = !atomic_load(&log->role.leader) &&
                   atomic_load(&log->role.leader_epoch) == leader_epoch;
    return follows ? 0 : LOG_E_NOT_LEADER;
}

int log_truncate(struct log *log, int64_t offset, int32_t leader_epoch) {
    lock_acquire(&log->flush.lock);
    log_lock_quiet(log);
    int result = log_may_cut(log, leader_epoch);
    if (result == 0)
        result = offset < atomic_load(&log->ends.end_offset)
                     ? log_truncate_locked(log, offset < 0 ? 0 : offset)
                     : log_truncate_nothing(log);
    log_unlock_quiet(log);
    lock_release(&log->flush.lock);
    return result;
}

int log_restart_at(struct log *log, int64_t offset, int32_t leader_epoch) {
    int64_t now_ms = clock_read_ms(CLOCK_REALTIME);
    if (offset < 0 || offset > LOG_OFFSET_MAX) return LOG_E_RANGE;
    lock_acquire(&log->flush.lock);
    log_lock_quiet(log);
    int result = log_may_cut(log, leader_epoch);
    if (result == 0) result = log_cut(log, 0, now_ms);
    /* Do not create a segment: the leader's start may be inside a batch, and the first segment
     * begins with that batch. */
    if (result == 0) log_begin_at(log, offset);
    log_unlock_quiet(log);
    lock_release(&log->flush.lock);
    return result;
}
