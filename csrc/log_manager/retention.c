/* Maintenance: rolling by time, retention, the log's start, deletion. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "log/active_segment.h"
#include "log/flush_queue.h"
#include "log/log_ends.h"
#include "log/log_failure.h"
#include "log/log_flush.h"
#include "log/log_producers.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "log/log_waiters.h"
#include "log_manager/log_manager.h"
#include "os/lock.h"
#include "os/meter.h"
#include "segment/leader_epochs.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/producer_state.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

enum { LOG_NAME_BYTES_MAX = 255 };

int log_roll_if_due(struct log *log, int64_t now_ms) {
    int result = 0;
    log_append_lock(log);
    int64_t unflushed_ms = now_ms - atomic_load(&log->flush.last_flush_ms);
    /* If the clock was set back, flush now instead of waiting for it to catch up. */
    bool ask = atomic_load(&log->ends.end_offset) > atomic_load(&log->ends.flushed) &&
               (unflushed_ms >= log->view.config.flush_ms || unflushed_ms < 0);
    if (log->append.writable && !atomic_load(&log->deleted)) {
        struct segment *s = log->view.segments[log->view.segment_count - 1];
        if (now_ms < s->created_ms) s->created_ms = now_ms;
        /* Use the clock since the segment was created: record timestamps do not advance in a log
         * without appends. */
        if (log_may_roll(log) &&
            now_ms - s->created_ms > log->view.config.segment_ms - s->jitter_ms)
            result = log_roll(log, atomic_load(&log->ends.end_offset), now_ms);
    }
    log_append_unlock(log);
    if (ask) flush_queue_add(log);
    return result;
}

int log_seal(struct log *log, int64_t now_ms) {
    log_append_lock(log);
    int result = atomic_load(&log->deleted) ? LOG_E_DELETED : log_make_writable(log, now_ms);
    if (result == 0 && log_may_roll(log))
        result = log_roll(log, atomic_load(&log->ends.end_offset), now_ms);
    log_append_unlock(log);
    return result;
}

/* ---- retention ---- */

static int64_t log_segment_end(const struct log *log, uint32_t i)
    REQUIRES_SHARED(log->view.access) {
    return i + 1 < log->view.segment_count ? log->view.segments[i + 1]->base_offset
                                           : atomic_load(&log->ends.end_offset);
}

/* Returns the largest timestamp of a segment. Without one, a segment is no newer than its file,
 * nor than the next segment that has a timestamp: compaction can leave a file that is much newer
 * than its records. -1: unknown. `timed`: the caller's position of that next segment, which only
 * moves forward, so that a pass over all segments takes linear time. */
static int64_t log_segment_time(const struct log *log, uint32_t i, uint32_t *timed)
    REQUIRES_SHARED(log->view.access) {
    int64_t time = segment_written_ms(log->view.segments[i]), next = -1;
    if (*timed < i) *timed = i;
    while (*timed < log->view.segment_count &&
           (next = atomic_load(&log->view.segments[*timed]->largest_timestamp)) < 0)
        ++*timed;
    return next >= 0 && (time < 0 || next < time) ? next : time;
}

/* Number of segments from the front that are before the log's start or, with `by_settings`, past
 * retention. */
static uint32_t log_retention_count(struct log *log, bool by_settings, int64_t now_ms)
    LOG_APPENDING(log) {
    const struct log_config *c = &log->view.config;
    bool deletes = by_settings && c->cleanup_delete;
    int64_t excess = atomic_load(&log->view.size_bytes) - c->retention_bytes,
            high = atomic_load(&log->ends.high_watermark);
    uint32_t count = 0, timed = 0;
    for (; count < log->view.segment_count; count++) {
        struct segment *s = log->view.segments[count];
        int64_t bytes = atomic_load(&s->bytes), end = log_segment_end(log, count),
                time = log_segment_time(log, count, &timed);
        if (bytes == 0 || end > high || end <= s->base_offset) break;
        bool before_start = end <= atomic_load(&log->ends.start_offset);
        bool old = deletes && c->retention_ms >= 0 && time >= 0 && now_ms - time > c->retention_ms;
        bool large = deletes && c->retention_bytes >= 0 && excess - bytes >= 0;
        if (!before_start && !old && !large) break;
        excess -= bytes;
    }
    assert(count <= log->view.segment_count);
    return count;
}

static void log_raise_start(struct log *log, int64_t offset) LOG_APPENDING(log) {
    log_view_change(log);
    if (offset > atomic_load(&log->ends.start_offset))
        atomic_store(&log->ends.start_offset, offset);
    if (atomic_load(&log->ends.high_watermark) < offset)
        atomic_store(&log->ends.high_watermark, offset);
    log_set_last_stable(log);
    log_ends_check(log);
    if (log->append.epochs_loaded && epochs_truncate_start(&log->append.epochs, offset))
        log_mark(&log->flush.epochs_marks);
    log_view_changed(log);
}

/* Syncs the producers' state at `offset`. Returns 0, -ENOENT without a file, or an error. */
static int log_flush_snapshot(struct log *log, int64_t offset) LOG_APPENDING(log) {
    char file[64], path[SEGMENT_PATH_BYTES];
    snprintf(file, sizeof file, "%020lld.snapshot", (long long)offset);
    log_path(log, file, path);
    int result = log_flush_file(log->partition->dir, path);
    return result == 0 || result == -ENOENT ? result : log_storage_error(log, result, "fdatasync");
}

/* Before the batches below `base` are deleted: a snapshot at or after it is all that remains of
 * their producers' state. Returns 0, an error, or LOG_E_WOULD_BLOCK if none is on disk, because
 * there was no space when the segment at `base` was created. */
static int log_check_producers(struct log *log, int64_t base, int64_t now_ms) LOG_APPENDING(log) {
    int result = log_flush_snapshot(log, base);
    if (result != -ENOENT) return result;
    if ((result = log_load_producers(log, now_ms)) != 0) return result;
    int64_t newest = log->append.snapshot_offset;
    if (log->append.producers.count == 0) return 0;
    /* A start uses a snapshot up to the recovery point only. */
    if (newest > base && newest <= log_recovery_point(log))
        result = log_flush_snapshot(log, newest);
    else
        result = -ENOENT;
    return result == -ENOENT ? LOG_E_WOULD_BLOCK : result;
}

/* Writes the producers' state at the log's end to disk, with all batches before it. */
static int log_persist_producers(struct log *log, int64_t now_ms) {
    log_append_lock(log);
    int result = atomic_load(&log->deleted) ? LOG_E_DELETED : log_load_producers(log, now_ms);
    if (result == 0) {
        log->append.snapshot_offset = -1; /* The file may be missing: write it again. */
        result = log_write_snapshot(log, atomic_load(&log->ends.end_offset));
        if (result != 0) result = log_storage_error(log, result, "write");
    }
    if (result == 0) log_mark(&log->flush.files_marks);
    log_append_unlock(log);
    return result != 0 ? result : log_flush(log);
}

/* Deletes segments before which the producers' state is on disk. partly: fewer than are due if it
 * is missing for the last of them; otherwise returns LOG_E_WOULD_BLOCK. */
static int log_drop_secured(struct log *log, bool by_settings, bool partly, int64_t now_ms) {
    int result = 0;
    log_append_lock(log);
    if (atomic_load(&log->deleted))
        result = LOG_E_DELETED;
    else if (log_offline(log))
        result = LOG_E_OFFLINE;
    uint32_t count = result == 0 ? log_retention_count(log, by_settings, now_ms) : 0;
    /* On a read-only file system the old files would keep their names. */
    if (count > 0 && faccessat(log->partition->dir->fd, ".", W_OK, AT_EACCESS) != 0 &&
        errno == EROFS)
        result = log_dir_error(log->partition->dir, EROFS, "rename");
    if (result != 0) count = 0;
    /* The writable segment is also deleted if it is due; create a new one first. */
    if (count > 0 && count == log->view.segment_count) {
        result = log_make_writable(log, now_ms);
        if (result == 0 && count == log->view.segment_count)
            result = log_roll(log, atomic_load(&log->ends.end_offset), now_ms);
        /* No space for a new segment: delete the others to free it, and the last one next time. */
        if (log_error_is_shortage(result) && log->view.segment_count > 1) {
            count = log->view.segment_count - 1;
            result = 0;
        }
    }
    bool secured = false;
    while (result == 0 && count > 0 && !secured) {
        result = log_check_producers(log, log->view.segments[count]->base_offset, now_ms);
        secured = result == 0;
        if (partly && result == LOG_E_WOULD_BLOCK) {
            result = 0;
            count--;
        }
    }
    if (result == 0 && count > 0) {
        /* Move the start first: a reader that does not find the file then finds its offset out
         * of range. */
        assert(count < log->view.segment_count); /* The writable one stays. */
        log_raise_start(log, log_segment_end(log, count - 1));
        log_drop_segments(log, 0, count, log->view.config.file_delete_delay_ms);
        meter_add_shared(&log->partition->dir->segments_deleted, count);
        result = (int)count;
    }
    log_append_unlock(log);
    return result;
}

static int log_drop_front(struct log *log, bool by_settings, int64_t now_ms) {
    int result = log_drop_secured(log, by_settings, false, now_ms);
    if (result != LOG_E_WOULD_BLOCK) return result;
    int written = log_persist_producers(log, now_ms);
    if (written != 0 && !log_error_is_shortage(written)) return written;
    /* No room for the state: delete segments before an older snapshot to make room. */
    result = log_drop_secured(log, by_settings, written != 0, now_ms);
    if (result == LOG_E_WOULD_BLOCK) return 0;
    return result == 0 ? written : result;
}

int log_apply_retention(struct log *log, int64_t now_ms) {
    return log_drop_front(log, true, now_ms);
}

/* Does not apply the retention settings, which run separately: the response contains this start. */
int log_move_start(struct log *log, int64_t offset, int64_t now_ms) {
    log_append_lock(log);
    int result = atomic_load(&log->deleted) ? LOG_E_DELETED : 0;
    if (result == 0 && (offset < 0 || offset > atomic_load(&log->ends.high_watermark)))
        result = LOG_E_RANGE;
    if (result == 0) log_raise_start(log, offset);
    log_append_unlock(log);
    if (result != 0) return result;
    result = log_drop_front(log, false, now_ms);
    return result < 0 ? result : 0;
}

void log_expire_producers(struct log *log, int64_t now_ms) {
    log_append_lock(log);
    if (log->append.producers_loaded)
        producers_expire(&log->append.producers, now_ms,
                         log->view.config.producer_id_expiration_ms);
    log_append_unlock(log);
}

uint8_t *log_copy_producers(struct log *log, int64_t now_ms, size_t *bytes) {
    log_append_lock(log);
    uint8_t *copy = NULL;
    if (log_load_producers(log, now_ms) == 0)
        copy = producers_encode(&log->append.producers, bytes);
    log_append_unlock(log);
    return copy;
}

uint32_t log_segments(struct log *log, int64_t *triples, uint32_t max) {
    log_view_lock(log);
    uint32_t count = log->view.segment_count;
    for (uint32_t i = 0; i < count && i < max; i++) {
        struct segment *s = log->view.segments[i];
        triples[3 * (size_t)i] = s->base_offset;
        triples[3 * (size_t)i + 1] = atomic_load(&s->bytes);
        triples[3 * (size_t)i + 2] = atomic_load(&s->largest_timestamp);
    }
    log_view_unlock(log);
    return count;
}

/* ---- deletion ---- */

/* Length of `<topic>-<partition>` in a directory's name. Moved logs already have a suffix; a
 * second one would prevent Kafka from starting. */
static size_t log_name_bytes(const char *name) {
    size_t n = strlen(name), suffix = LOG_DELETE_SUFFIX_BYTES;
    const char *end = name + n - suffix;
    bool has = n > suffix && *end == '.' && strspn(end + 1, "0123456789abcdef") == 32 &&
               (strcmp(end + 33, "-delete") == 0 || strcmp(end + 33, "-future") == 0);
    return has ? n - suffix : n;
}

static int log_deleted_name(const char *name, char out[LOG_NAME_BYTES_MAX + 1]) {
    uint8_t id[16];
    char hex[33];
    if (getrandom(id, sizeof id, 0) != (ssize_t)sizeof id) return -EIO;
    for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", id[i]);
    /* If the name would be too long, shorten the topic; the id keeps it unique. */
    size_t whole = log_name_bytes(name), topic = whole;
    while (topic > 0 && name[topic] != '-') topic--;
    size_t index = whole - topic, tail = index + LOG_DELETE_SUFFIX_BYTES;
    const char *partition = name + topic;
    if (topic + tail > LOG_NAME_BYTES_MAX) topic = LOG_NAME_BYTES_MAX - tail;
    assert(tail <= LOG_NAME_BYTES_MAX);
    snprintf(out, LOG_NAME_BYTES_MAX + 1, "%.*s%.*s.%s-delete", (int)topic, name, (int)index,
             partition, hex);
    return 0;
}

int log_delete(struct log *log, int64_t now_ms) {
    struct log_dir *dir = log->partition->dir;
    char name[LOG_NAME_BYTES_MAX + 1];
    (void)now_ms;
    lock_acquire(&log->flush.lock);
    log_append_lock(log);
    bool before = atomic_exchange(&log->deleted, true);
    log_restart_checkpoint_clear(log);
    int64_t delay = log->view.config.file_delete_delay_ms;
    int result = before ? LOG_E_DELETED : 0;
    if (!before) {
        lock_acquire(&dir->files_lock);
        log->partition->deleted = true;
        char *renamed =
            (result = log_deleted_name(log->partition->name, name)) == 0 ? strdup(name) : NULL;
        if (renamed != NULL && (result = log_dir_rename(dir, log->partition->name, name)) == 0) {
            free(log->partition->name);
            log->partition->name = renamed;
        } else {
            if (renamed == NULL) result = -ENOMEM;
            free(renamed);
        }
        lock_release(&dir->files_lock);
    }
    log_append_unlock(log);
    lock_release(&log->flush.lock);
    if (before) return result;
    log_wait_fail(log, LOG_E_DELETED);
    if (result == 0) log_dir_remove_later(dir, name, delay);
    return result == 0 || result == -ENOENT ? 0 : log_storage_error(log, result, "rename");
}
