/* Recovery: everything except the batches is derived data, so recovery walks the batches again
 * from the newest point that is known to be good.
 *
 * Above the recovery point it checks every batch; the first invalid one ends the log (a torn
 * tail, zeros, a hole from a power loss). Below it nothing is cut, because a crash cannot cause
 * damage there. Between it and the offset that a killed process recorded as flushed, only a tail
 * is cut.
 *
 * Idempotent: a second recovery derives again what a killed one wrote. */
#include "log_manager/recovery.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log/active_segment.h"
#include "log/log_epochs.h"
#include "log/log_failure.h"
#include "log/log_internal.h"
#include "log/log_producers.h"
#include "log/log_replay.h"
#include "log/log_segments.h"
#include "log/log_transactions.h"
#include "log_manager/log_manager.h"
#include "log_manager/swap.h"
#include "os/disk.h"
#include "segment/damage_report.h"
#include "segment/leader_epochs.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/producer_state.h"
#include "segment/restart_checkpoint.h"
#include "segment/segment.h"
#include "segment/segment_index.h"
#include "segment/segment_lookup.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"
#include "segment/txn_index.h"

/* A full disk must not prevent opening a log: entries without space stay in memory. */
static int log_write_index(struct segment *s) {
    int result = segment_index_write(s, true);
    return log_error_is_shortage(result) ? 0 : result;
}

/* For a segment completely below the recovery point: takes its size from the file and its
 * largest timestamp from the index. */
static int log_adopt_sealed(struct log *log, struct segment *s) LOG_APPENDING(log) {
    int64_t timestamp, offset;
    int result = 0, damaged = segment_index_damaged(s);
    if (damaged < 0) return damaged;
    if (damaged == 1) {
        struct log_replay walk = {.check_from = INT64_MAX, .replay_from = INT64_MAX, .index = true};
        result = log_replay_segment(log, s, &walk, 0);
        if (result == LOG_E_CORRUPT)
            result = 0; /* Damage below the recovery point stays; reads fail with a CRC error. */
        int written = log_write_index(s);
        log->recovery.segments_scanned++;
        return result != 0 ? result : written;
    }
    if (segment_index_last_time(s, &timestamp, &offset)) {
        atomic_store(&s->largest_timestamp, timestamp);
        atomic_store(&s->largest_timestamp_offset, offset);
    }
    atomic_store(&s->sealed, true);
    atomic_store(&s->flush_done, true);
    return 0;
}

/* Cuts the segment after its last valid batch, below offset `next`. */
static int log_cut(struct log *log, struct segment *s, int64_t good, int64_t next)
    LOG_APPENDING(log) {
    int64_t bytes = atomic_load(&s->bytes);
    assert(good >= 0);
    assert(good <= bytes);
    if (bytes == good) return 0;
    log_damage_record(s, LOG_DAMAGE_CUT, segment_damage_cause(s, good, bytes, next), next, good,
                      bytes - good);
    segment_forget_corrupt_ranges(s);
    log->recovery.bytes_cut += bytes - good;
    int result = segment_cut(s, good);
    if (result != 0) return result;
    atomic_fetch_sub(&log->view.size_bytes, bytes - good);
    atomic_store(&s->bytes, good);
    return 0;
}

/* Input of a recovery: the checkpoint, the loaded snapshot, and the previous process's record of
 * the log's last segment. */
struct log_known {
    const struct log_checkpoint *checkpoint;
    int64_t snapshot;
    int64_t
        flushed; /* everything below was on disk, despite later changes; -1: unknown */
    bool found, kept; /* kept: its last segment is as recorded */
    struct restart_checkpoint_found last;
};

/* Returns true if the file is unchanged since the previous process and was whole then: the last
 * segment has exactly the appended bytes; earlier segments were flushed and trimmed. */
static bool log_trusts(const struct log_known *known, const struct segment *s,
                       const struct stat *st, int64_t upper) {
    if (!known->found || restart_checkpoint_ctime_ns(st) > known->last.time_ns) return false;
    if (st->st_size != atomic_load(&s->bytes)) return false;
    if (st->st_ino == known->last.inode)
        return s->base_offset == known->last.base_offset && st->st_size == known->last.bytes;
    return s->base_offset < known->last.base_offset && upper <= known->last.flushed;
}

/* Walks a segment and rebuilds its aborted transactions, starting where the producers' state
 * begins, or else where the file may be wrong. */
static int log_recover_walk(struct log *log, struct segment *s, struct log_replay *walk,
                            const struct log_checkpoint *checkpoint, int64_t now_ms)
    LOG_APPENDING(log) {
    walk->index = walk->aborts = true;
    walk->aborts_from = walk->replay_from >= 0 ? walk->replay_from : checkpoint->recovery_point;
    int result = txn_index_cut(s, walk->aborts_from);
    return result != 0 ? result : log_replay_segment(log, s, walk, now_ms);
}

static int log_recover_write(struct log *log, struct segment *s) LOG_APPENDING(log) {
    int result = log_aborted_write(log, s);
    return result != 0 && !log_error_is_shortage(result) ? result : log_write_index(s);
}

/* Walks only the headers. Returns 1 if they are not as expected: the whole log must be checked. */
static int log_recover_trusted(struct log *log, struct segment *s, const struct log_known *known,
                               int64_t upper, int64_t *end, int64_t now_ms) LOG_APPENDING(log) {
    struct log_replay walk = {
        .check_from = INT64_MAX, .replay_from = known->snapshot, .trusted = true};
    int result = log_recover_walk(log, s, &walk, known->checkpoint, now_ms);
    bool gap = upper != INT64_MAX && walk.next < upper && !log->view.config.cleanup_compact;
    if (result == LOG_E_CORRUPT || (result == 0 && gap)) return 1;
    assert(walk.next >= s->base_offset);
    *end = walk.next;
    return result != 0 ? result : log_recover_write(log, s);
}

/* Walks a segment that may be torn. `*ended`: the log ends in this segment. */
static int log_recover_segment(struct log *log, struct segment *s, const struct log_known *known,
                               int64_t upper, int64_t *end, bool *ended, bool *ends_corrupt,
                               int64_t now_ms) LOG_APPENDING(log) {
    const struct log_checkpoint *checkpoint = known->checkpoint;
    struct log_replay walk = {.check_from = checkpoint->recovery_point,
                              .keep_below = known->flushed,
                              .replay_from = known->snapshot,
                              .tail = upper == INT64_MAX};
    int result = log_recover_walk(log, s, &walk, checkpoint, now_ms);
    log->recovery.segments_scanned++;
    if (result == LOG_E_CORRUPT && walk.next < checkpoint->recovery_point) return LOG_E_CORRUPT;
    if (result != 0 && result != LOG_E_CORRUPT) return result;
    /* A batch missing between two segments was lost in a power loss. Compaction may also leave
     * such gaps. */
    bool gap = upper != INT64_MAX && walk.next < upper && walk.next >= walk.keep_below &&
               !log->view.config.cleanup_compact;
    *ended = result == LOG_E_CORRUPT || gap;
    *end = walk.next;
    *ends_corrupt = walk.ends_corrupt;
    if (gap && result == 0)
        log_damage_record(s, LOG_DAMAGE_CUT, LOG_WHY_GAP, walk.next, walk.good, 0);
    if ((result = log_cut(log, s, walk.good, walk.next)) != 0) return result;
    return log_recover_write(log, s);
}

/* The last segment ends in a hole below the recovery point. It contained records, and their
 * offsets must not be assigned again. */
static int log_recover_holed(struct log *log, const struct log_checkpoint *checkpoint, int64_t *end,
                             int64_t now_ms) LOG_APPENDING(log) {
    struct segment *s = log->view.segments[log->view.segment_count - 1], *fresh;
    if (*end < checkpoint->recovery_point) *end = checkpoint->recovery_point;
    if (*end <= s->base_offset) return LOG_E_CORRUPT;
    assert(!atomic_load(&s->sealed));
    int result = active_segment_create(log, *end, now_ms, &fresh);
    if (result == 0) result = log_add_segment(log, fresh);
    if (result != 0) return result;
    atomic_store(&s->sealed, true);
    log_mark(&log->flush.files_marks);
    return 0;
}

/* Segments that recovery removed must not return after the next power loss. */
static int log_drop_rest(struct log *log, uint32_t from) LOG_APPENDING(log) {
    char path[SEGMENT_PATH_BYTES];
    log_drop_segments(log, from, log->view.segment_count - from, 0);
    log_path(log, ".", path);
    return log_dir_sync(log->partition->dir, path);
}

/* Drops the segments from `from` on: nothing after a cut is valid. */
static int log_recover_ended(struct log *log, uint32_t from) LOG_APPENDING(log) {
    for (uint32_t k = from; k < log->view.segment_count; k++) {
        int64_t bytes = atomic_load(&log->view.segments[k]->bytes);
        log->recovery.bytes_cut += bytes;
        log_damage_record(log->view.segments[k], LOG_DAMAGE_DROPPED, LOG_WHY_BEHIND,
                          log->view.segments[k]->base_offset, 0, bytes);
    }
    return log_drop_rest(log, from);
}

/* Returns 1 if trusted segments were not as expected; nothing was cut. */
static int log_recover_segments(struct log *log, struct log_known *known, int64_t *end,
                                int64_t now_ms) LOG_APPENDING(log) {
    const struct log_checkpoint *checkpoint = known->checkpoint;
    int64_t snapshot = known->snapshot;
    bool ended = false, ends_corrupt = false;
    int64_t walked = 0; /* end offset of the previous segment, if it was walked */
    for (uint32_t i = 0; i < log->view.segment_count; i++) {
        struct segment *s = log->view.segments[i];
        bool last = i + 1 == log->view.segment_count;
        struct stat st;
        /* A power loss partly undid a truncation: segments from here on predate it. */
        if (s->base_offset < walked && s->base_offset >= checkpoint->recovery_point &&
            s->base_offset >= known->flushed)
            ended = true;
        if (ended) return log_recover_ended(log, i);
        int result = segment_pin(s, false);
        if (result != 0) return result;
        if (fstat(s->fd, &st) != 0) result = -errno;
        s->created_ms = (int64_t)st.st_mtim.tv_sec * 1000;
        s->index_interval_bytes = log->view.config.index_interval_bytes;
        int64_t upper = last ? INT64_MAX : log->view.segments[i + 1]->base_offset;
        if (result == 0 && upper <= checkpoint->recovery_point && upper <= snapshot)
            result = log_adopt_sealed(log, s);
        else if (result == 0 && log_trusts(known, s, &st, upper))
            result = log_recover_trusted(log, s, known, upper, end, now_ms);
        else if (result == 0)
            result = log_recover_segment(log, s, known, upper, end, &ended, &ends_corrupt, now_ms);
        walked = upper <= checkpoint->recovery_point && upper <= snapshot ? 0 : *end;
        /* Compare the file's status from before the walk, unless the walk changed the file. */
        known->kept = result == 0 && last && log_trusts(known, s, &st, upper);
        if (result == 0 && last)
            log_restart_checkpoint_record(log, s,
                                          st.st_size == atomic_load(&s->bytes) ? &st : NULL);
        segment_unpin(s);
        if (result != 0) return result;
        if (!last && !ended) atomic_store(&s->sealed, true);
    }
    return ends_corrupt && !ended ? log_recover_holed(log, checkpoint, end, now_ms) : 0;
}

static void log_recover_ends(struct log *log, const struct log_known *known, int64_t end)
    LOG_APPENDING(log) {
    const struct log_checkpoint *checkpoint = known->checkpoint;
    int64_t flushed = checkpoint->recovery_point;
    if (known->kept && known->last.flushed > flushed) flushed = known->last.flushed;
    int64_t first = log->view.segment_count > 0 ? log->view.segments[0]->base_offset : end;
    int64_t start = checkpoint->log_start_offset;
    /* If compaction removed the first segment, the log starts before its first remaining record.
     * Readers in between continue and are not out of range. */
    if (start < first && (start < 0 || !log->view.config.cleanup_compact)) start = first;
    int64_t watermark = checkpoint->high_watermark < start ? start : checkpoint->high_watermark;
    log->ends.start_offset = start;
    log->ends.end_offset = end;
    log->ends.high_watermark = watermark > end ? end : watermark;
    log->ends.flushed = flushed < end ? flushed : end;
    struct restart_checkpoint_slot *slot = atomic_load(&log->restart_checkpoint);
    if (slot != NULL) atomic_store(&slot->flushed, log_recovery_point(log));
    producers_end_before(&log->append.producers, start);
    log_update_first_open(log);
}

/* A snapshot may survive a power loss that lost its batches, and with gaps from compaction this
 * cannot be detected. So use a snapshot only for offsets that are known to be on disk, or
 * deleted long ago. */
static int64_t log_snapshot_bound(const struct log_offsets *segments,
                                  const struct log_checkpoint *checkpoint) {
    int64_t bound = segments->at[0];
    if (checkpoint->recovery_point > bound) bound = checkpoint->recovery_point;
    return checkpoint->log_start_offset > bound ? checkpoint->log_start_offset : bound;
}

/* Recovers the segments, starting from the epochs and the newest snapshot. */
static int log_recover_state(struct log *log, const struct log_listing *listing,
                             struct log_known *known, int64_t *end, int64_t now_ms)
    LOG_APPENDING(log) {
    atomic_store(&log->ends.end_offset,
                 INT64_MAX - 1); /* While the end is unknown, no epoch must be above it. */
    int64_t begin = *end;
    int result = 1;
    while (result == 1) {
        producers_free(&log->append.producers);
        log_view_change(log);
        epochs_free(&log->append.epochs);
        log->append.epochs_loaded = false;
        log_view_changed(log);
        *end = begin;
        if ((result = log_load_epochs_upto(log, known->checkpoint->recovery_point)) != 0) break;
        known->snapshot = log_load_snapshot(
            log, &listing->snapshots, log_snapshot_bound(&listing->segments, known->checkpoint));
        if (known->snapshot < -1) return (int)known->snapshot;
        result = log_recover_segments(log, known, end, now_ms);
        if (result == 1) known->found = false;
    }
    return result;
}

/* Creates the listed segments with the sizes of their files. `known`: gets the previous
 * process's record of the last segment that has one. */
static int log_recover_list(struct log *log, const struct log_listing *listing,
                            struct log_known *known) LOG_APPENDING(log) {
    for (uint32_t i = 0; i < listing->segments.count; i++) {
        struct segment *s = segment_new(log->partition, listing->segments.at[i], 0, -1);
        struct stat st;
        char path[SEGMENT_PATH_BYTES];
        if (s == NULL) return LOG_E_MEMORY;
        segment_path(s, "log", path);
        int result = fstatat(log->partition->dir->fd, path, &st, 0) != 0 ? -errno : 0;
        if (result == 0) {
            atomic_store(&s->bytes, st.st_size);
            atomic_fetch_add(&log->view.size_bytes, st.st_size);
            bool told =
                restart_checkpoint_find(log->partition->dir->restart_checkpoint, &st, &known->last);
            known->found = told || known->found;
            /* Another file may have reused the inode number of a removed one. */
            if (told && known->last.base_offset == s->base_offset &&
                known->last.bytes <= st.st_size)
                known->flushed = known->last.flushed;
        }
        assert(i == log->view.segment_count);
        int added = log_add_segment(log, s);
        if (result != 0 || added != 0) return result != 0 ? result : added;
    }
    return 0;
}

/* The checkpoint comes from text files: ignore impossible offsets. */
static struct log_checkpoint log_checkpoint_bounded(const struct log_checkpoint *checkpoint) {
    struct log_checkpoint c = *checkpoint;
    if (c.recovery_point < 0 || c.recovery_point > LOG_OFFSET_MAX) c.recovery_point = 0;
    if (c.log_start_offset > LOG_OFFSET_MAX) c.log_start_offset = -1;
    return c;
}

/* Completes interrupted swaps before the segments are listed. */
static int log_recover_directory(struct log *log, struct log_listing *listing) {
    int fd = log_open_directory(log);
    int result = fd < 0 ? 0 : log_swap_finish(fd, log_dir_disk(log->partition->dir));
    if (result >= 0) return log_list(log, fd, listing);
    memset(listing, 0, sizeof *listing);
    close(fd);
    return result;
}

int log_recover(struct log *log, const struct log_checkpoint *given, int64_t now_ms) {
    struct log_listing listing;
    const struct log_checkpoint checkpoint = log_checkpoint_bounded(given);
    struct log_known known = {.checkpoint = &checkpoint, .snapshot = -1, .flushed = -1};
    int64_t start = checkpoint.log_start_offset < 0 ? 0 : checkpoint.log_start_offset, end = start;
    int result = log_recover_directory(log, &listing);
    if (result == 0) result = log_recover_list(log, &listing, &known);
    if (result == 0 && log->view.segment_count > 0) {
        result = log_recover_state(log, &listing, &known, &end, now_ms);
        if (result == 0 && known.snapshot > end)
            result = log_restore_producers(log, end, now_ms);
        else
            log->append.snapshot_offset = known.snapshot;
        if (result == 0 && known.snapshot <= end)
            result = log_restore_recent_batches(log, known.snapshot);
    }
    log->append.epochs_loaded = true;
    log->append.producers_loaded = result == 0;
    if (result == 0 && end < start) {
        /* All remaining records are below the start: continue there with an empty log, as if
         * nothing had been written. */
        result = log_drop_rest(log, 0);
        log_load_snapshot(log, &listing.snapshots, -1);
        producers_free(&log->append.producers);
        log->append.snapshot_offset = -1;
        end = start;
    }
    /* Everything below the recovery point was on disk: another program removed the segments. An
     * empty log must not serve in place of them. */
    if (result == 0 && listing.segments.count == 0 && checkpoint.recovery_point > end)
        result = LOG_E_CORRUPT;
    log_list_free(&listing);
    if (result != 0) return log_storage_error(log, result, "recover");
    assert(end >= start);
    if (epochs_truncate_end(&log->append.epochs, end + 1)) log_mark(&log->flush.epochs_marks);
    log_recover_ends(log, &known, end);
    return 0;
}

void log_recovery_report(const struct log *log, int64_t *bytes_cut, uint32_t *segments_scanned) {
    *bytes_cut = log->recovery.bytes_cut;
    *segments_scanned = log->recovery.segments_scanned;
}
