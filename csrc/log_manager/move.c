/* Moves a log to another directory: copies batches unchanged while the old log stays in use, and
 * the last ones with its append lock held. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log/active_segment.h"
#include "log/log_append.h"
#include "log/log_failure.h"
#include "log/log_producers.h"
#include "log/log_struct.h"
#include "log/log_transactions.h"
#include "log_manager/log_manager.h"
#include "os/lock.h"
#include "segment/file_range.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/producer_state.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

enum { LOG_MOVE_BYTES = 4 << 20 };

/* Renames the log's directory and swaps its name with `*name`, which may be the old one. */
static int log_rename_folder(struct log *log, char **name) {
    struct log_dir *dir = log->partition->dir;
    lock_acquire(&dir->files_lock);
    char *before = log->partition->name;
    int result = log_dir_rename(dir, before, *name);
    if (result == 0) {
        log->partition->name = *name;
        *name = before;
    }
    lock_release(&dir->files_lock);
    return result;
}

int log_rename(struct log *log, const char *name) {
    struct log_dir *dir = log->partition->dir;
    char *other = strdup(name);
    if (other == NULL) return LOG_E_MEMORY;
    int result = log_rename_folder(log, &other);
    if (result == 0 && (result = log_dir_sync(dir, NULL)) != 0 && !log_dir_offline(dir)) {
        /* After a failure, keep the old name: a start may delete directories with the new one. */
        int back = log_rename_folder(log, &other);
        if (back != 0) log_dir_fail(dir, -back, "rename");
    }
    free(other);
    return result == 0 ? 0 : log_storage_error(log, result, "rename");
}

struct log_copying {
    struct log *from, *to;
    uint8_t *buffer; /* LOG_MOVE_BYTES */
    int64_t now_ms, copied, damaged;
    bool locked; /* with `from`'s append.lock held */
};

/* Copies damaged bytes at `at` unchanged, so that readers of the copy get the same result.
 * Returns 1: done. */
static int copy_damage(struct log_copying *c, int64_t at) {
    struct log_range range;
    int result = log_read_damage(c->from, at, &range);
    if (result != 0) return result == LOG_E_RANGE ? LOG_E_CORRUPT : result;
    int64_t end = log_end_offset(c->to);
    for (int32_t done = 0; done < range.length && result == 0;) {
        int32_t left = range.length - done, len = left < LOG_MOVE_BYTES ? left : LOG_MOVE_BYTES;
        result = segment_read(range.segment, range.position + done, c->buffer, (size_t)len);
        done += len;
        if (result == 0)
            result = log_append_damage(c->to, c->buffer, (size_t)len,
                                       done < range.length ? end : range.next_offset, c->now_ms);
    }
    c->copied += range.length;
    c->damaged += range.length;
    log_range_release(&range);
    return result == 0 ? 1 : result;
}

/* Copies one range. Returns 1 (something was copied) or 0 (the ends are equal). */
static int copy_range(struct log_copying *c) {
    struct log_range range;
    struct log *to = c->to;
    int64_t start = log_start_offset(c->from), end = log_end_offset(to),
            at = end < start ? start : end;
    const struct log_read_request request = {
        .offset = at, .bytes_max = LOG_MOVE_BYTES, .at_least_one = true, .locked = c->locked};
    int result = log_read(c->from, &request, &range);
    if (result == LOG_E_CORRUPT) return copy_damage(c, at);
    if (result != 0 || range.length == 0) return result;
    assert(range.length > 0);
    uint8_t *bytes = range.length <= LOG_MOVE_BYTES ? c->buffer : malloc((size_t)range.length);
    result = bytes == NULL
                 ? LOG_E_MEMORY
                 : segment_read(range.segment, range.position, bytes, (size_t)range.length);
    /* A range begins with the batch that contains the offset. After the start was moved, that
     * batch may begin before the start. */
    size_t taken = 0;
    if (result == 0) {
        result = log_append_as_follower(to, bytes, (size_t)range.length, c->now_ms, &taken);
        /* A range has whole batches, so a remainder is a batch with a wrong length. */
        if (result == 0 && taken < (size_t)range.length) result = LOG_E_CORRUPT;
    }
    c->copied += range.length;
    if (bytes != c->buffer) free(bytes);
    log_range_release(&range);
    /* The valid batches before a damaged one were appended; the damaged one is the first of the
     * next range. */
    if (result == LOG_E_CORRUPT && log_end_offset(to) == end) return copy_damage(c, at);
    return result == 0 || log_end_offset(to) > end ? 1 : result;
}

/* A log may end after its last batch, if disk lost the later ones: do not assign their offsets
 * again. */
static int extend(struct log *to, int64_t end, int64_t now_ms) {
    log_append_lock(to);
    int result = log_make_writable(to, now_ms);
    if (result == 0 && atomic_load(&to->ends.end_offset) < end) {
        result = log_roll(to, end, now_ms);
        if (result == 0) log_publish(to, to->view.segments[to->view.segment_count - 1], 0, end);
    }
    log_append_unlock(to);
    return result;
}

/* The state of producers also comes from deleted records, which the copy never received. */
static int hand_over_producers(struct log *from, struct log *to, int64_t now_ms)
    LOG_APPENDING(from) {
    int result = log_load_producers(from, now_ms);
    if (result != 0 || from->append.producers.count == 0) return result;
    log_append_lock(to);
    result = log_make_writable(to, now_ms);
    if (result == 0) result = producers_copy(&to->append.producers, &from->append.producers);
    if (result == 0) {
        to->append.producers_loaded = true;
        log_update_first_open(to);
        /* Also replaces a snapshot with the same offset, which contains less. */
        to->append.snapshot_offset = -1;
        result = log_write_snapshot(to, atomic_load(&to->ends.end_offset));
        if (result != 0)
            result = result == -ENOMEM ? LOG_E_MEMORY : log_storage_error(to, result, "write");
    }
    log_append_unlock(to);
    return result;
}

int log_copy(struct log *from, struct log *to, int64_t bytes_max, int64_t now_ms,
             int64_t *damaged) {
    struct log_copying c = {from, to, malloc(LOG_MOVE_BYTES), now_ms, 0, 0, false};
    int result = c.buffer == NULL ? LOG_E_MEMORY : 1;
    while (result == 1 && c.copied < bytes_max) result = copy_range(&c);
    free(c.buffer);
    *damaged = c.damaged;
    return result;
}

int log_hand_over(struct log *from, struct log *to, int64_t now_ms, int64_t *damaged) {
    struct log_copying c = {from, to, malloc(LOG_MOVE_BYTES), now_ms, 0, 0, true};
    if (c.buffer == NULL) return LOG_E_MEMORY;
    log_append_lock(from);
    int result = atomic_load(&from->deleted) ? LOG_E_DELETED : 1;
    while (result == 1) result = copy_range(&c);
    if (result == 0 && log_end_offset(to) < log_end_offset(from))
        result = extend(to, log_end_offset(from), now_ms);
    if (result == 0) result = hand_over_producers(from, to, now_ms);
    /* Records acknowledged from the old disk must be on the new one before it serves them. */
    if (result == 0) result = log_flush(to);
    /* A shortage must not hold back its recovery point either: the old log's may be higher. */
    if (result == 0 && log_recovery_point(to) < log_flushed_offset(to)) result = LOG_E_FULL;
    assert(result != 0 || log_end_offset(to) == log_end_offset(from));
    if (result == 0) atomic_store(&from->role.leader, false);
    log_append_unlock(from);
    free(c.buffer);
    *damaged = c.damaged;
    return result;
}
