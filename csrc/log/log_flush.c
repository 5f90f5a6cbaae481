/* Flush of one log: syncs every segment past the flushed offset, its names and epochs, then
 * publishes the end and wakes waiters. flusher.c schedules flushes. A failed flush is never
 * retried, because its dirty pages may be gone: the directory goes offline. */
#include "log/log_flush.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "log/flush_queue.h"
#include "log/log_epochs.h"
#include "log/log_failure.h"
#include "log/log_replicas.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "log/log_transactions.h"
#include "log/log_waiters.h"
#include "os/clock.h"
#include "os/disk.h"
#include "os/lock.h"
#include "os/meter.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_cache.h"
#include "segment/segment_index.h"
#include "segment/segment_lookup.h"
#include "segment/segment_path.h"

enum { LOG_FLUSH_SEGMENTS = 64 };

/* The segments with bytes past the flushed offset, oldest first, and the end that syncing them
 * covers. */
struct log_flush_set {
    struct segment *segments[LOG_FLUSH_SEGMENTS];
    uint32_t count;
    int64_t target;
    uint64_t truncations;
};

static void log_flush_collect(struct log *log, struct log_flush_set *set) {
    log_view_lock(log);
    int64_t flushed = atomic_load(&log->ends.flushed);
    set->count = 0;
    set->target = atomic_load(&log->ends.end_offset);
    set->truncations = log->view.truncations;
    uint32_t first = log->view.segment_count;
    while (first > 0 &&
           (first == log->view.segment_count || log->view.segments[first]->base_offset > flushed ||
            !atomic_load(&log->view.segments[first - 1]->flush_done)))
        first--;
    for (uint32_t i = first; i < log->view.segment_count; i++) {
        bool last = i + 1 == log->view.segment_count;
        int64_t end = last ? set->target : log->view.segments[i + 1]->base_offset;
        /* A segment that was flushed to its end before it was sealed still needs its trim. */
        if ((last || atomic_load(&log->view.segments[i]->flush_done)) && end <= flushed &&
            !atomic_load(&log->view.segments[i]->aborted_due))
            continue;
        if (set->count == LOG_FLUSH_SEGMENTS) {
            set->target = log->view.segments[i]->base_offset;
            break;
        }
        segment_retain(log->view.segments[i]);
        set->segments[set->count++] = log->view.segments[i];
    }
    assert(set->count <= LOG_FLUSH_SEGMENTS);
    assert(set->target <= atomic_load(&log->ends.end_offset));
    assert(flushed <= atomic_load(&log->ends.end_offset));
    log_view_unlock(log);
}

int log_flush_file(struct log_dir *dir, const char *path) {
    int fd = log_dir_open(dir, path, O_RDONLY);
    if (fd < 0) return -errno;
    int result = log_dir_disk(dir)->fdatasync(fd) == 0 ? 0 : -errno;
    close(fd);
    /* For any error: the unsynced pages may be gone. */
    if (result != 0) log_dir_fail(dir, -result, "fdatasync");
    return result == 0 ? 0 : LOG_E_IO;
}

int log_flush_index(struct segment *s, const char *extension) {
    char path[SEGMENT_PATH_BYTES];
    segment_path(s, extension, path);
    int result = log_flush_file(s->partition->dir, path);
    return result == -ENOENT ? 0 : result;
}

/* For a sealed segment: first writes entries that are missing because the roll had no space or
 * the files were cut. Entries without space stay in memory until the next flush. */
static int log_flush_indexes(struct log *log, struct segment *s) {
    int result = segment_pin(s, false);
    if (result != 0) return s->removed ? 0 : result;
    result = segment_index_finish(s);
    if (result == 0 && segment_index_has_pending(s)) atomic_store(&log->flush.indexes_due, true);
    segment_unpin(s);
    if (result == 0) result = log_flush_index(s, "index");
    return result != 0 ? result : log_flush_index(s, "timeindex");
}

/* Flushes waiting indexes of segments below the flushed offset. Goes backwards, because
 * retention may remove the first segments at the same time. */
static int log_flush_due_indexes(struct log *log) REQUIRES(log->flush.lock) {
    if (!atomic_load(&log->flush.indexes_due)) return 0;
    atomic_store(&log->flush.indexes_due, false);
    int result = 0;
    for (uint32_t i = UINT32_MAX; i > 0 && result == 0;) {
        log_view_lock(log);
        i = i < log->view.segment_count ? i : log->view.segment_count;
        struct segment *s = i > 0 ? log->view.segments[--i] : NULL;
        if (s != NULL) segment_retain(s);
        log_view_unlock(log);
        if (s == NULL) break;
        if (atomic_load(&s->flush_done) && segment_index_has_pending(s))
            result = log_flush_indexes(log, s);
        segment_release(s);
    }
    if (result != 0) atomic_store(&log->flush.indexes_due, true);
    return result;
}

static int log_flush_segment(struct log *log, struct segment *s) {
    bool sealed = atomic_load(&s->sealed);
    int result = segment_pin(s, false);
    if (result != 0) return s->removed ? 0 : result;
    /* Clear it first: a concurrent append sets it again. */
    atomic_store(&s->dirty, false);
    if (sealed) segment_trim_sealed(s);
    int64_t began_ns = clock_read_ns(CLOCK_MONOTONIC);
    if (log_dir_disk(s->partition->dir)->fdatasync(s->fd) != 0) {
        result = -errno;
        log_dir_fail(s->partition->dir, errno, "fdatasync");
    }
    if (result == 0 && segment_is_unlinked(s)) {
        result = -ENOENT;
        log_mark_files_lost(log);
    }
    meter_record_shared(&s->partition->dir->flush_ns, METER_NS_FIRST,
                        (uint64_t)(clock_read_ns(CLOCK_MONOTONIC) - began_ns));
    atomic_fetch_add_explicit(&s->partition->dir->flusher.files, 1, memory_order_relaxed);
    segment_unpin(s);
    /* Indexes of sealed segments are trusted below the recovery point: sync them before it
     * passes. */
    if (result == 0 && sealed) result = log_flush_indexes(log, s);
    if (result == 0 && sealed && !atomic_load(&s->aborted_due)) atomic_store(&s->flush_done, true);
    return result;
}

/* Names must be on disk before contents count: a file without its directory entry is lost. */
static int log_flush_names(struct log *log) REQUIRES(log->flush.lock) {
    if (!log_marked(&log->flush.files_marks)) return 0;
    uint32_t made = atomic_load(&log->flush.files_marks.made);
    struct log_dir *dir = log->partition->dir;
    char name[SEGMENT_PATH_BYTES];
    log_path(log, ".", name);
    int result = log_dir_sync(dir, name);
    if (result == 0) result = log_dir_sync(dir, NULL);
    if (result == 0) atomic_store(&log->flush.files_marks.synced, made);
    return result;
}

void log_flush_publish(struct log *log, int64_t target, uint64_t truncations) {
    log_view_lock(log);
    bool moved = log->view.truncations == truncations && target > atomic_load(&log->ends.flushed);
    assert(!moved || target <= atomic_load(&log->ends.end_offset));
    if (moved) atomic_store(&log->ends.flushed, target);
    assert(log_recovery_point(log) <= atomic_load(&log->ends.flushed));
    if (moved) log_restart_checkpoint_flushed(log);
    log_view_unlock(log);
    atomic_store(&log->flush.last_flush_ms, clock_read_ms(CLOCK_REALTIME));
    if (moved) log_wait_wake(log, LOG_WAIT_FLUSHED, target);
    bool limits = atomic_load(&log->role.flush_before_fetch) ||
                  atomic_load(&log->role.flushed_records_only);
    if (moved && limits) log_replicas_advance(log);
}

void log_hold_recovery_point(struct log *log, int64_t offset) {
    assert(offset >= 0);
    if (offset < atomic_load(&log->flush.held_recovery_point))
        atomic_store(&log->flush.held_recovery_point, offset);
}

static int log_flush_held(struct log *log, int result, int64_t flushed, bool *held) {
    if (!log_error_is_shortage(result)) return result;
    log_hold_recovery_point(log, flushed);
    *held = true;
    return 0;
}

/* The files of aborted transactions and epochs may wait for space, because the batches contain
 * the same information. */
static int log_flush_aborted(struct log *log, struct segment *s, int64_t flushed, bool *held)
    REQUIRES(log->flush.lock) {
    return log_flush_held(log, log_aborted_write(log, s), flushed, held);
}
static int log_flush_epochs(struct log *log, int64_t flushed, bool *held)
    REQUIRES(log->flush.lock) {
    uint32_t made;
    int result = log_marked(&log->flush.epochs_marks) ? log_write_epochs(log, true, &made) : 0;
    return log_flush_held(log, result, flushed, held);
}

bool log_descriptors_exhausted(struct log *log) {
    struct log_dir *dir = log->partition->dir;
    if (!atomic_load_explicit(&dir->over_hard_limit, memory_order_relaxed) || log_dir_offline(dir))
        return false;
    log_view_lock(log);
    uint32_t count = log->view.segment_count;
    bool open = count > 0 && atomic_load(&log->view.segments[count - 1]->pins) >= 0;
    log_view_unlock(log);
    if (!open) flush_queue_relieve(dir);
    return !open;
}

int log_flush(struct log *log) {
    struct log_dir *dir = log->partition->dir;
    struct log_flush_set set;
    int result = 0;
    log_dir_check_present(dir);
    bool held = false, offline = log_offline(log);
    lock_acquire(&log->flush.lock);
    if (!offline && !atomic_load(&log->deleted)) result = log_flush_due_indexes(log);
    do {
        if (log_offline(log)) result = LOG_E_OFFLINE;
        if (atomic_load(&log->deleted)) break;
        log_flush_collect(log, &set);
        int64_t flushed = atomic_load(&log->ends.flushed);
        for (uint32_t i = 0; i < set.count; i++) {
            struct segment *s = set.segments[i];
            /* The snapshot at the segment's start. Without it, a start reads the batches since an
             * older one, which retention keeps until a newer one is on disk. */
            if (result == 0 && s->base_offset >= flushed) result = log_flush_index(s, "snapshot");
            if (result == 0) result = log_flush_aborted(log, s, flushed, &held);
            if (result == 0) result = log_flush_segment(log, s);
            segment_release(set.segments[i]);
        }
        if (result == 0) result = log_flush_epochs(log, flushed, &held);
        if (result == 0) result = log_flush_names(log);
        if (atomic_load(&log->deleted)) break;
        if (result == 0 && !held) atomic_store(&log->flush.held_recovery_point, INT64_MAX);
        if (result == 0) log_flush_publish(log, set.target, set.truncations);
    } while (result == 0 && set.count == LOG_FLUSH_SEGMENTS);
    bool deleted = atomic_load(&log->deleted);
    lock_release(&log->flush.lock);
    /* Unflushed bytes may have kept more files open than the limit allows. */
    lock_acquire(&dir->files_lock);
    if (dir->open_count > dir->open_max)
        segment_cache_evict(dir, dir->open_count - dir->open_max, EVICT_SCAN_MAX);
    lock_release(&dir->files_lock);
    if (deleted) return LOG_E_DELETED;
    if (result == 0) return 0;
    if (result == -ENOENT) log_mark_files_lost(log);
    if (log_offline(log)) return offline ? LOG_E_OFFLINE : LOG_E_IO;
    return log_is_error(result) ? result : log_dir_error(dir, -result, "flush");
}
