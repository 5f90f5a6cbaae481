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
#include "log/log_producers.h"
#include "log/log_replay.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
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

/* Where a segment is cut: the bytes that stay, and the first offset that goes. */
struct truncate_cut {
    int64_t position, offset;
};

/* Finds the batch, or the corrupt range, that contains `offset`. Returns 1 (found), 0 (the segment
 * ends before it) or an error. */
static int truncate_find(struct segment *s, int64_t offset, struct truncate_cut *cut) {
    struct corrupt_range corrupt;
    int result = segment_find_batch(s, offset, atomic_load(&s->bytes), false, &cut->position,
                                    &cut->offset);
    if (result == LOG_E_CORRUPT && cut->position > 0 &&
        segment_find_corrupt_range(s, cut->position - 1, false, &corrupt) == 1) {
        cut->position = corrupt.position;
        cut->offset = corrupt.offset;
        result = 1;
    }
    if (result != 1) return result;
    /* A corrupt range before all batches is cut with them: the segment would contain no offset. */
    if (cut->offset == s->base_offset) cut->position = 0;
    assert(cut->position <= atomic_load(&s->bytes));
    assert(cut->offset >= s->base_offset);
    return 1;
}

/* Hides the bytes from readers, then cuts the file. If the file cannot be cut, shows the bytes
 * again, because the next attempt must cut them. Returns 0 or an error of segment_cut. */
static int truncate_cut_file(struct log *log, struct segment *s, const struct truncate_cut *cut)
    LOG_APPENDING(log) {
    int64_t bytes = atomic_load(&s->bytes);
    segment_index_truncate(s, cut->offset, cut->position);
    log_view_change(log);
    atomic_store(&s->bytes, cut->position);
    /* Hints must not outlive the bytes that they point to. */
    log->view.truncations++;
    free(log->view.hints);
    log->view.hints = NULL;
    log_view_changed(log);
    atomic_fetch_sub(&log->view.size_bytes, bytes - cut->position);
    atomic_store(&s->allocated, 0);
    segment_forget_corrupt_ranges(s);
    s->since_entry_bytes = 0;
    int result = segment_cut(s, cut->position);
    if (result != 0) log_restore_bytes(log, s, bytes);
    return result;
}

/* Removes aborted transactions that were cut off, and rebuilds the indexes. Entries for which the
 * disk has no space stay in memory. */
static int truncate_repair(struct log *log, struct segment *s, const struct truncate_cut *cut,
                           int64_t now_ms) LOG_APPENDING(log) {
    int result = txn_index_cut(s, cut->offset);
    if (result == 0 && log_error_is_shortage(result = log_aborted_write(log, s))) result = 0;
    if (result != 0) return log_storage_error(log, result, "ftruncate");
    /* The largest timestamp may have been cut off: read the headers. */
    struct log_replay replay = {.check_from = INT64_MAX, .replay_from = INT64_MAX, .index = true};
    if ((result = log_replay_segment(log, s, &replay, now_ms)) != 0) return result;
    /* A clean start must not find the old entries in the files. */
    result = segment_index_write(s, true);
    return result == 0 || log_error_is_shortage(result) ? 0
                                                        : log_storage_error(log, result, "pwrite");
}

/* Cuts the last segment before the batch that contains `offset`. *end changes to the new end of
 * the log as soon as the file is cut, also if a later step fails. */
static int log_truncate_last(struct log *log, int64_t offset, int64_t now_ms, int64_t *end)
    LOG_APPENDING(log) {
    struct segment *s = log->view.segments[log->view.segment_count - 1];
    struct truncate_cut cut = {-1, -1};
    int result = segment_pin(s, false);
    if (result != 0) return log_storage_error(log, result, "open");
    result = truncate_find(s, offset, &cut);
    if (result == 1) {
        if ((result = truncate_cut_file(log, s, &cut)) != 0) {
            result = log_storage_error(log, result, "ftruncate");
        } else {
            /* Compaction may have left a gap there. */
            *end = cut.offset < offset ? cut.offset : offset;
            result = truncate_repair(log, s, &cut, now_ms);
        }
    }
    segment_unpin(s);
    return result;
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

/* Removes the segments from `keep` on and cuts the segment before them. *end: where the data
 * ends, also after a failure. */
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
