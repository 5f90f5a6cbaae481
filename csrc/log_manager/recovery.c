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
#include "log/log_producers.h"
#include "log/log_replay.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
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
static int recovery_write_index(struct segment *s) {
    int result = segment_index_write(s, true);
    return log_error_is_shortage(result) ? 0 : result;
}

/* For a segment completely below the recovery point: takes its size from the file and its
 * largest timestamp from the index. */
static int recovery_adopt_sealed(struct log *log, struct segment *s) LOG_APPENDING(log) {
    int64_t timestamp, offset;
    int result = 0, damaged = segment_index_damaged(s);
    if (damaged < 0) return damaged;
    if (damaged == 1) {
        struct log_replay walk = {.check_from = INT64_MAX, .replay_from = INT64_MAX, .index = true};
        result = log_replay_segment(log, s, &walk, 0);
        if (result == LOG_E_CORRUPT)
            result = 0; /* Damage below the recovery point stays; reads fail with a CRC error. */
        int written = recovery_write_index(s);
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
static int recovery_cut(struct log *log, struct segment *s, int64_t good, int64_t next)
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

/* RECORDED: only the headers of segments that are as the previous process recorded them are read.
 * FULL: that record is missing or wrong, and every segment above the recovery point is checked. */
enum recovery_phase { RECOVERY_RECORDED, RECOVERY_FULL };
/* The result of one segment; errors are negative. ENDS: the log ends in it. DISTRUST: it is not as
 * recorded; nothing was cut. */
enum recovery_result { RECOVERY_NEXT, RECOVERY_ENDS, RECOVERY_DISTRUST };

struct recovery {
    struct log_checkpoint checkpoint;
    int64_t now_ms;
    enum recovery_phase phase;
    struct restart_checkpoint_found last; /* with RECORDED: the record of the log's last segment */
    int64_t flushed;   /* everything below was on disk, despite later changes; -1: unknown */
    int64_t snapshot;  /* offset of the producers' state that was loaded, -1: none */
    int64_t end;       /* offset after the last valid batch so far */
    bool ends_corrupt; /* the last checked segment ends in a corrupt range */
    bool last_trusted; /* the last segment is as recorded */
};

/* Returns true if the file is unchanged since the previous process and was whole then: the last
 * segment has exactly the appended bytes; earlier segments were flushed and trimmed. */
static bool recovery_trusts(const struct recovery *r, const struct segment *s,
                            const struct stat *st, int64_t upper) {
    if (r->phase == RECOVERY_FULL || restart_checkpoint_ctime_ns(st) > r->last.time_ns)
        return false;
    if (st->st_size != atomic_load(&s->bytes)) return false;
    if (st->st_ino == r->last.inode)
        return s->base_offset == r->last.base_offset && st->st_size == r->last.bytes;
    return s->base_offset < r->last.base_offset && upper <= r->last.flushed;
}

/* Walks a segment and rebuilds its aborted transactions, starting where the producers' state
 * begins, or else where the file may be wrong. */
static int recovery_replay(struct log *log, const struct recovery *r, struct segment *s,
                           struct log_replay *replay) LOG_APPENDING(log) {
    replay->index = replay->aborts = true;
    replay->replay_from = r->snapshot;
    replay->aborts_from = r->snapshot >= 0 ? r->snapshot : r->checkpoint.recovery_point;
    int result = txn_index_cut(s, replay->aborts_from);
    return result != 0 ? result : log_replay_segment(log, s, replay, r->now_ms);
}

static int recovery_write_indexes(struct log *log, struct segment *s) LOG_APPENDING(log) {
    int result = log_aborted_write(log, s);
    return result != 0 && !log_error_is_shortage(result) ? result : recovery_write_index(s);
}

/* Walks only the headers. Returns a recovery_result or an error. */
static int recovery_trusted_segment(struct log *log, struct recovery *r, struct segment *s,
                                    int64_t upper) LOG_APPENDING(log) {
    struct log_replay replay = {.check_from = INT64_MAX, .trusted = true};
    int result = recovery_replay(log, r, s, &replay);
    bool gap = upper != INT64_MAX && replay.next < upper && !log->view.config.cleanup_compact;
    if (result == LOG_E_CORRUPT || (result == 0 && gap)) return RECOVERY_DISTRUST;
    assert(replay.next >= s->base_offset);
    r->end = replay.next;
    return result != 0 ? result : recovery_write_indexes(log, s);
}

/* Walks a segment that may be torn. Returns a recovery_result or an error. */
static int recovery_full_segment(struct log *log, struct recovery *r, struct segment *s,
                                 int64_t upper) LOG_APPENDING(log) {
    struct log_replay replay = {.check_from = r->checkpoint.recovery_point,
                                .keep_below = r->flushed,
                                .tail = upper == INT64_MAX};
    int result = recovery_replay(log, r, s, &replay);
    log->recovery.segments_scanned++;
    if (result == LOG_E_CORRUPT && replay.next < r->checkpoint.recovery_point) return LOG_E_CORRUPT;
    if (result != 0 && result != LOG_E_CORRUPT) return result;
    /* A batch missing between two segments was lost in a power loss. Compaction may also leave
     * such gaps. */
    bool gap = upper != INT64_MAX && replay.next < upper && replay.next >= replay.keep_below &&
               !log->view.config.cleanup_compact;
    bool ends = result == LOG_E_CORRUPT || gap;
    r->end = replay.next;
    r->ends_corrupt = replay.ends_corrupt;
    if (gap && result == 0)
        log_damage_record(s, LOG_DAMAGE_CUT, LOG_WHY_GAP, replay.next, replay.good, 0);
    if ((result = recovery_cut(log, s, replay.good, replay.next)) == 0)
        result = recovery_write_indexes(log, s);
    return result == 0 && ends ? RECOVERY_ENDS : result;
}

/* Returns true if recovery need not walk the segment: it is on disk, and so is the producers'
 * state after it. */
static bool recovery_skips(const struct recovery *r, int64_t upper) {
    return upper <= r->checkpoint.recovery_point && upper <= r->snapshot;
}

/* Recovers a pinned segment. upper: where the next one begins, INT64_MAX for the last one. Returns
 * a recovery_result or an error. */
static int recovery_segment(struct log *log, struct recovery *r, struct segment *s,
                            const struct stat *st, int64_t upper) LOG_APPENDING(log) {
    if (recovery_skips(r, upper)) return recovery_adopt_sealed(log, s);
    return recovery_trusts(r, s, st, upper) ? recovery_trusted_segment(log, r, s, upper)
                                            : recovery_full_segment(log, r, s, upper);
}

/* The last segment ends in a corrupt range below the recovery point. It contained records, and
 * their offsets must not be assigned again. */
static int recovery_skip_corrupt_end(struct log *log, struct recovery *r) LOG_APPENDING(log) {
    struct segment *s = log->view.segments[log->view.segment_count - 1], *fresh;
    if (r->end < r->checkpoint.recovery_point) r->end = r->checkpoint.recovery_point;
    if (r->end <= s->base_offset) return LOG_E_CORRUPT;
    assert(!atomic_load(&s->sealed));
    int result = active_segment_create(log, r->end, r->now_ms, &fresh);
    if (result == 0) result = log_add_segment(log, fresh);
    if (result != 0) return result;
    atomic_store(&s->sealed, true);
    log_mark(&log->flush.files_marks);
    return 0;
}

/* Segments that recovery removed must not return after the next power loss. */
static int recovery_drop_from(struct log *log, uint32_t from) LOG_APPENDING(log) {
    char path[SEGMENT_PATH_BYTES];
    log_drop_segments(log, from, log->view.segment_count - from, 0);
    log_path(log, ".", path);
    return log_dir_sync(log->partition->dir, path);
}

/* Drops the segments from `from` on: nothing after a cut is valid. */
static int recovery_drop_after_end(struct log *log, uint32_t from) LOG_APPENDING(log) {
    for (uint32_t k = from; k < log->view.segment_count; k++) {
        int64_t bytes = atomic_load(&log->view.segments[k]->bytes);
        log->recovery.bytes_cut += bytes;
        log_damage_record(log->view.segments[k], LOG_DAMAGE_DROPPED, LOG_WHY_BEHIND,
                          log->view.segments[k]->base_offset, 0, bytes);
    }
    return recovery_drop_from(log, from);
}

/* Recovers all segments in the current phase. Returns 0, RECOVERY_DISTRUST or an error. */
static int recovery_segments(struct log *log, struct recovery *r) LOG_APPENDING(log) {
    bool ends = false;
    int64_t walked = 0; /* end offset of the previous segment, if it was walked */
    r->ends_corrupt = false;
    for (uint32_t i = 0; i < log->view.segment_count; i++) {
        struct segment *s = log->view.segments[i];
        bool last = i + 1 == log->view.segment_count;
        struct stat st;
        /* A power loss partly undid a truncation: segments from here on predate it. */
        if (s->base_offset < walked && s->base_offset >= r->checkpoint.recovery_point &&
            s->base_offset >= r->flushed)
            ends = true;
        if (ends) return recovery_drop_after_end(log, i);
        int result = segment_pin(s, false);
        if (result != 0) return result;
        if (fstat(s->fd, &st) != 0) result = -errno;
        s->created_ms = (int64_t)st.st_mtim.tv_sec * 1000;
        s->index_interval_bytes = log->view.config.index_interval_bytes;
        int64_t upper = last ? INT64_MAX : log->view.segments[i + 1]->base_offset;
        if (result == 0) result = recovery_segment(log, r, s, &st, upper);
        walked = recovery_skips(r, upper) ? 0 : r->end;
        ends = result == RECOVERY_ENDS;
        bool recovered = result == RECOVERY_NEXT || ends;
        /* Compare the file's status from before the walk, unless the walk changed the file. */
        r->last_trusted = recovered && last && recovery_trusts(r, s, &st, upper);
        if (recovered && last)
            log_restart_checkpoint_record(log, s,
                                          st.st_size == atomic_load(&s->bytes) ? &st : NULL);
        segment_unpin(s);
        if (!recovered) return result;
        if (!last && !ends) atomic_store(&s->sealed, true);
    }
    return r->ends_corrupt && !ends ? recovery_skip_corrupt_end(log, r) : 0;
}

static void recovery_set_ends(struct log *log, const struct recovery *r) LOG_APPENDING(log) {
    const struct log_checkpoint *checkpoint = &r->checkpoint;
    int64_t flushed = checkpoint->recovery_point, end = r->end;
    if (r->last_trusted && r->last.flushed > flushed) flushed = r->last.flushed;
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
static int64_t recovery_snapshot_bound(const struct log_offsets *segments,
                                       const struct log_checkpoint *checkpoint) {
    int64_t bound = segments->at[0];
    if (checkpoint->recovery_point > bound) bound = checkpoint->recovery_point;
    return checkpoint->log_start_offset > bound ? checkpoint->log_start_offset : bound;
}

/* Recovers the segments, starting from the epochs and the newest snapshot. If they are not as
 * recorded, does it again in the phase FULL. */
static int recovery_run(struct log *log, struct recovery *r, const struct log_listing *listing)
    LOG_APPENDING(log) {
    int64_t begin = r->end;
    atomic_store(&log->ends.end_offset,
                 INT64_MAX - 1); /* While the end is unknown, no epoch must be above it. */
    for (;;) {
        producers_free(&log->append.producers);
        log_view_change(log);
        epochs_free(&log->append.epochs);
        log->append.epochs_loaded = false;
        log_view_changed(log);
        r->end = begin;
        int result = log_load_epochs_upto(log, r->checkpoint.recovery_point);
        if (result != 0) return result;
        r->snapshot = log_load_snapshot(
            log, &listing->snapshots, recovery_snapshot_bound(&listing->segments, &r->checkpoint));
        if (r->snapshot < -1) return (int)r->snapshot;
        result = recovery_segments(log, r);
        if (result != RECOVERY_DISTRUST) return result;
        assert(r->phase == RECOVERY_RECORDED);
        r->phase = RECOVERY_FULL;
    }
}

/* Creates the listed segments with the sizes of their files, and finds the previous process's
 * record of the last segment that has one. */
static int recovery_list(struct log *log, struct recovery *r, const struct log_listing *listing)
    LOG_APPENDING(log) {
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
            bool recorded =
                restart_checkpoint_find(log->partition->dir->restart_checkpoint, &st, &r->last);
            if (recorded) r->phase = RECOVERY_RECORDED;
            /* Another file may have reused the inode number of a removed one. */
            if (recorded && r->last.base_offset == s->base_offset && r->last.bytes <= st.st_size)
                r->flushed = r->last.flushed;
        }
        assert(i == log->view.segment_count);
        int added = log_add_segment(log, s);
        if (result != 0 || added != 0) return result != 0 ? result : added;
    }
    return 0;
}

/* The checkpoint comes from text files: ignore impossible offsets. */
static struct log_checkpoint recovery_bounded(const struct log_checkpoint *checkpoint) {
    struct log_checkpoint c = *checkpoint;
    if (c.recovery_point < 0 || c.recovery_point > LOG_OFFSET_MAX) c.recovery_point = 0;
    if (c.log_start_offset > LOG_OFFSET_MAX) c.log_start_offset = -1;
    return c;
}

/* Completes interrupted swaps before the segments are listed. */
static int recovery_open_directory(struct log *log, struct log_listing *listing) {
    int fd = log_open_directory(log);
    int result = fd < 0 ? 0 : log_swap_finish(fd, log_dir_disk(log->partition->dir));
    if (result >= 0) return log_list(log, fd, listing);
    memset(listing, 0, sizeof *listing);
    close(fd);
    return result;
}

int log_recover(struct log *log, const struct log_checkpoint *given, int64_t now_ms) {
    struct log_listing listing;
    struct recovery r = {.checkpoint = recovery_bounded(given),
                         .now_ms = now_ms,
                         .phase = RECOVERY_FULL,
                         .flushed = -1,
                         .snapshot = -1};
    int64_t start = r.checkpoint.log_start_offset < 0 ? 0 : r.checkpoint.log_start_offset;
    r.end = start;
    int result = recovery_open_directory(log, &listing);
    if (result == 0) result = recovery_list(log, &r, &listing);
    if (result == 0 && log->view.segment_count > 0) {
        result = recovery_run(log, &r, &listing);
        if (result == 0 && r.snapshot > r.end)
            result = log_restore_producers(log, r.end, now_ms);
        else
            log->append.snapshot_offset = r.snapshot;
        if (result == 0 && r.snapshot <= r.end)
            result = log_restore_recent_batches(log, r.snapshot);
    }
    log->append.epochs_loaded = true;
    log->append.producers_loaded = result == 0;
    if (result == 0 && r.end < start) {
        /* All remaining records are below the start: continue there with an empty log, as if
         * nothing had been written. */
        result = recovery_drop_from(log, 0);
        log_load_snapshot(log, &listing.snapshots, -1);
        producers_free(&log->append.producers);
        log->append.snapshot_offset = -1;
        r.end = start;
    }
    /* Everything below the recovery point was on disk: another program removed the segments. An
     * empty log must not serve in place of them. */
    if (result == 0 && listing.segments.count == 0 && r.checkpoint.recovery_point > r.end)
        result = LOG_E_CORRUPT;
    log_list_free(&listing);
    if (result != 0) return log_storage_error(log, result, "recover");
    assert(r.end >= start);
    if (epochs_truncate_end(&log->append.epochs, r.end + 1)) log_mark(&log->flush.epochs_marks);
    recovery_set_ends(log, &r);
    return 0;
}

void log_recovery_report(const struct log *log, int64_t *bytes_cut, uint32_t *segments_scanned) {
    *bytes_cut = log->recovery.bytes_cut;
    *segments_scanned = log->recovery.segments_scanned;
}
