/* The last segment of a log: created, opened for appends, followed by another, and closed. */
#include "log/active_segment.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "format/batch.h"
#include "log/flush_queue.h"
#include "log/log_epochs.h"
#include "log/log_failure.h"
#include "log/log_producers.h"
#include "log/log_replay.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "os/disk.h"
#include "os/meter.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_index.h"
#include "segment/segment_lookup.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"

void log_lock_quiet(struct log *log) {
    atomic_fetch_add(&log->append.quiet, 1);
    for (;;) {
        bool busy = false;
        log_append_lock(log);
        for (uint32_t i = 0; i < log->view.segment_count; i++)
            busy = busy || atomic_load(&log->view.segments[i]->preallocating);
        if (!busy) return;
        /* Not while holding the lock: the job may wait for a job that appends to this log. */
        log_append_unlock(log);
        usleep(200);
    }
}

void log_unlock_quiet(struct log *log) {
    uint32_t before = atomic_fetch_sub(&log->append.quiet, 1);
    assert(before > 0);
    (void)before;
    log_append_unlock(log);
}

void active_segment_configure(struct log *log, struct segment *s) {
    s->index_interval_bytes = log->view.config.index_interval_bytes;
    int64_t jitter = log->view.config.segment_jitter_ms < INT32_MAX
                         ? log->view.config.segment_jitter_ms
                         : INT32_MAX;
    uint32_t random;
    s->jitter_ms = 0;
    if (jitter > 0 && getrandom(&random, sizeof random, GRND_NONBLOCK) == (ssize_t)sizeof random)
        s->jitter_ms = (int32_t)(random % (uint32_t)jitter);
}

int active_segment_create(struct log *log, int64_t base_offset, int64_t now_ms,
                          struct segment **out) {
    struct segment *s = segment_new(log->partition, base_offset, 0, -1);
    if (s == NULL) return LOG_E_MEMORY;
    char path[SEGMENT_PATH_BYTES];
    /* A segment with this base before a crash may have left aborted transactions. */
    segment_path(s, "txnindex", path);
    int result = log_dir_unlink(log->partition->dir, path);
    if (result == 0 || result == -ENOENT) result = segment_pin(s, true);
    if (result != 0) {
        segment_release(s);
        return log_storage_error(log, result, "open");
    }
    segment_index_reset(s);
    assert(atomic_load(&s->bytes) == 0);
    s->created_ms = now_ms;
    segment_unpin(s);
    active_segment_configure(log, s);
    *out = s;
    return 0;
}

/* Checks the last segment's file: its size must match the checkpoint. */
static int active_segment_adopt(struct log *log, struct segment *s) LOG_APPENDING(log) {
    struct stat st;
    struct batch_header h;
    struct segment_scan scan;
    if (fstat(s->fd, &st) != 0) return log_storage_error(log, -errno, "fstat");
    int64_t bytes = atomic_load(&s->bytes), timestamp, offset;
    if (st.st_size < bytes) return LOG_E_CORRUPT;
    if (st.st_size > bytes && log_dir_disk(log->partition->dir)->ftruncate(s->fd, bytes) != 0)
        return log_storage_error(log, -errno, "ftruncate");
    int damaged = segment_index_damaged(s);
    if (damaged < 0) return log_storage_error(log, damaged, "open");
    if (damaged == 1) {
        struct log_replay walk = {.check_from = INT64_MAX, .replay_from = INT64_MAX, .index = true};
        int result = log_replay_segment(log, s, &walk, 0);
        if (result != 0) return result;
    } else if (segment_index_last_time(s, &timestamp, &offset) &&
               timestamp >= atomic_load(&s->largest_timestamp)) {
        atomic_store(&s->largest_timestamp, timestamp);
        atomic_store(&s->largest_timestamp_offset, offset);
    }
    segment_scan_begin(&scan, s, 0, bytes, false);
    if (segment_scan_peek(&scan, &h) == 1) s->first_timestamp = h.max_timestamp;
    s->created_ms = (int64_t)st.st_mtim.tv_sec * 1000;
    return 0;
}

/* Never append to a segment that a branch shares: create another one after it. */
static int active_segment_follow_shared(struct log *log, struct segment *s, int64_t now_ms)
    LOG_APPENDING(log) {
    struct segment *next;
    int64_t end = atomic_load(&log->ends.end_offset);
    if (end <= s->base_offset) return LOG_E_CORRUPT;
    int result = active_segment_create(log, end, now_ms, &next);
    if (result == 0) result = log_add_segment(log, next);
    if (result != 0) return result;
    atomic_store(&s->sealed, true);
    log_mark(&log->flush.files_marks);
    return 0;
}

int log_make_writable(struct log *log, int64_t now_ms) {
    if (log->append.writable) return 0;
    int result;
    if (log->view.segment_count == 0) {
        struct segment *s;
        result = active_segment_create(log, atomic_load(&log->ends.end_offset), now_ms, &s);
        if (result == 0) result = log_add_segment(log, s);
        if (result != 0) return result;
        log_mark(&log->flush.files_marks);
    } else {
        struct segment *s = log->view.segments[log->view.segment_count - 1];
        if ((result = segment_pin(s, false)) != 0) return log_storage_error(log, result, "open");
        if (segment_is_shared(s)) {
            segment_unpin(s);
            if ((result = active_segment_follow_shared(log, s, now_ms)) != 0) return result;
        } else {
            segment_unseal(s);
            atomic_store(&s->flush_done, false);
            if (log->append.clean) result = active_segment_adopt(log, s);
            segment_unpin(s);
            if (result != 0) return result;
        }
    }
    active_segment_configure(log, log->view.segments[log->view.segment_count - 1]);
    if ((result = log_load_epochs(log)) != 0 || (result = log_load_producers(log, now_ms)) != 0)
        return result;
    log->append.clean = false;
    log->append.writable = true;
    assert(log->append.epochs_loaded);
    assert(log->append.producers_loaded);
    struct segment *last = log->view.segments[log->view.segment_count - 1];
    assert(!atomic_load(&last->sealed));
    assert(last->base_offset <= atomic_load(&log->ends.end_offset));
    if (segment_pin(last, false) == 0) {
        log_restart_checkpoint_record(log, last, NULL);
        segment_unpin(last);
    }
    return 0;
}

int log_roll(struct log *log, int64_t base_offset, int64_t now_ms) {
    struct segment *old = log->view.segments[log->view.segment_count - 1];
    assert(base_offset >= atomic_load(&log->ends.end_offset));
    assert(base_offset > old->base_offset); /* It holds offsets: log_may_roll. */
    assert(log->append.writable);
    assert(!atomic_load(&old->sealed));
    if (!log_dir_check_present(log->partition->dir)) return LOG_E_IO;
    /* Create the new file first: without space for it, the old segment stays unchanged. */
    struct segment *next;
    int result = active_segment_create(log, base_offset, now_ms, &next);
    if (result != 0) return result;
    if (segment_pin(old, false) == 0) {
        /* Index and snapshot can be rebuilt: if they fail, a later scan takes longer, but the
         * append succeeds. */
        segment_index_write(old, true);
        segment_unpin(old);
    }
    /* Seal it before the next one follows: the flush that passes its end also trims it and syncs
     * its indexes. */
    atomic_store(&old->sealed, true);
    log_write_snapshot(log, base_offset);
    if ((result = log_add_segment(log, next)) != 0) {
        segment_unseal(old);
        return result;
    }
    log_mark(&log->flush.files_marks);
    if (segment_pin(next, false) == 0) {
        log_restart_checkpoint_record(log, next, NULL);
        segment_unpin(next);
    }
    meter_add_shared(&log->partition->dir->rolls, 1);
    flush_queue_add_lazy(log);
    return 0;
}

/* For the last segment, without concurrent appends. Kafka's tools expect both files. */
static int log_close_indexes(struct segment *s) {
    /* Without entries the files are not needed, so a full disk is no error. */
    bool needed = segment_index_entries(s, false) > 0;
    int result = segment_index_write(s, true);
    if (result == 0) result = segment_index_finish(s);
    return !needed && log_error_is_shortage(result) ? 0 : result;
}

int log_close_files(struct log *log) {
    int result = 0, pinned;
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    if (log_offline(log)) return LOG_E_OFFLINE;
    log_lock_quiet(log);
    if (log->append.writable) {
        struct segment *s = log->view.segments[log->view.segment_count - 1];
        if ((pinned = segment_pin(s, false)) == 0) {
            result = log_close_indexes(s);
            if (result == 0) result = segment_trim(s);
            if (result == 0) log_restart_checkpoint_record(log, s, NULL);
            segment_unpin(s);
        }
        if (pinned != 0) result = pinned;
        if (result == 0 && log->append.producers_loaded)
            result = log_write_snapshot(log, atomic_load(&log->ends.end_offset));
        /* The next append opens it again. */
        log->append.writable = false;
    }
    log_unlock_quiet(log);
    return result != 0 ? log_storage_error(log, result, "close") : 0;
}
