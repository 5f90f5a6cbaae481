/* Flushes all logs of a directory: a few one by one, many with one sync of the file system.
 * Marks are read before the sync and published after it; later changes stay marked for the next
 * flush. */
#include <assert.h>
#include <stdlib.h>

#include "log/active_segment.h"
#include "log/log_epochs.h"
#include "log/log_failure.h"
#include "log/log_flush.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "log_manager/log_manager.h"
#include "os/lock.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"

enum { LOG_FLUSH_SYNCFS_MIN = 8 };

struct log_flushing {
    struct log *log;
    int64_t target;
    uint64_t truncations;
    uint32_t files, epochs;
    bool noted;
};

static bool log_flushing_due(struct log *log) {
    return !atomic_load(&log->deleted) && !log_offline(log) &&
           (atomic_load(&log->ends.end_offset) > atomic_load(&log->ends.flushed) ||
            log_marked(&log->flush.files_marks) || log_marked(&log->flush.epochs_marks) ||
            atomic_load(&log->flush.indexes_due));
}

/* References to the directory's logs: all, or those with something to flush. Skips logs that are
 * being opened or released. */
static struct log_flushing *log_flushing_list(struct log_dir *dir, bool all, uint32_t *count) {
    uint32_t n = 0;
    *count = 0;
    lock_acquire(&dir->logs_lock);
    for (struct log *log = dir->logs; log != NULL; log = log->link.next) n++;
    struct log_flushing *list = calloc(n + 1, sizeof *list);
    for (struct log *log = dir->logs; log != NULL && list != NULL; log = log->link.next) {
        if ((!all && !log_flushing_due(log)) || !log_try_retain(log)) continue;
        list[(*count)++].log = log;
    }
    assert(list == NULL || *count <= n);
    lock_release(&dir->logs_lock);
    return list;
}

static void log_flushing_free(struct log_flushing *list, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) log_release(list[i].log);
    free(list);
}

/* Writes the epochs and notes the ends that the sync will cover. A log with unflushed sealed
 * segments is left to log_flush, which also trims them. */
static void log_flushing_note(struct log_flushing *entry) {
    struct log *log = entry->log;
    entry->epochs = atomic_load(&log->flush.epochs_marks.synced);
    lock_acquire(&log->flush.lock); /* Only one writer of the file. */
    int written =
        log_marked(&log->flush.epochs_marks) ? log_write_epochs(log, false, &entry->epochs) : 0;
    lock_release(&log->flush.lock);
    if (written != 0) return;
    log_view_lock(log);
    struct segment *s =
        log->view.segment_count > 0 ? log->view.segments[log->view.segment_count - 1] : NULL;
    entry->noted = !atomic_load(&log->deleted) && !atomic_load(&log->flush.indexes_due) &&
                   atomic_load(&log->flush.held_recovery_point) == INT64_MAX &&
                   (s == NULL || (s->base_offset <= atomic_load(&log->ends.flushed) &&
                                  !atomic_load(&s->aborted_due)));
    entry->target = atomic_load(&log->ends.end_offset);
    entry->truncations = log->view.truncations;
    entry->files = atomic_load(&log->flush.files_marks.made);
    if (entry->noted && s != NULL) atomic_store(&s->dirty, false);
    log_view_unlock(log);
}

static int log_flushing_sync(struct log_dir *dir, struct log_flushing *list, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) log_flushing_note(&list[i]);
    int result = log_dir_syncfs(dir);
    for (uint32_t i = 0; i < count && result == 0; i++)
        if (list[i].noted) log_check_linked(list[i].log);
    if (result == 0 && log_dir_offline(dir)) result = LOG_E_OFFLINE;
    if (result != 0) return result;
    for (uint32_t i = 0; i < count; i++) {
        if (!list[i].noted || log_offline(list[i].log)) continue;
        assert(list[i].target >= 0);
        atomic_store(&list[i].log->flush.files_marks.synced, list[i].files);
        atomic_store(&list[i].log->flush.epochs_marks.synced, list[i].epochs);
        log_flush_publish(list[i].log, list[i].target, list[i].truncations);
    }
    return 0;
}

int log_dir_flush(struct log_dir *dir) {
    uint32_t count;
    int result = 0, refused = 0;
    if (log_dir_offline(dir)) return LOG_E_OFFLINE;
    struct log_flushing *list = log_flushing_list(dir, false, &count);
    if (list == NULL) return LOG_E_MEMORY;
    if (count >= LOG_FLUSH_SYNCFS_MIN && dir->syncfs_problem == NULL)
        result = log_flushing_sync(dir, list, count);
    for (uint32_t i = 0; i < count && result == 0; i++) {
        if (!list[i].noted || log_offline(list[i].log)) result = log_flush(list[i].log);
        if (result == LOG_E_DELETED) result = 0;
        /* A shortage or the lost files of one log do not affect the others. */
        if (!log_error_is_shortage(result) && (result == 0 || log_dir_offline(dir))) continue;
        refused = result;
        result = 0;
    }
    log_flushing_free(list, count);
    return result != 0 ? result : refused;
}

int log_dir_close_files(struct log_dir *dir) {
    uint32_t count;
    int result = 0;
    struct log_flushing *list = log_flushing_list(dir, true, &count);
    if (list == NULL) return LOG_E_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        int closed = log_close_files(list[i].log);
        bool lost = log_offline(list[i].log) && !log_dir_offline(dir);
        if (closed != 0 && closed != LOG_E_DELETED && !lost) result = closed;
    }
    log_flushing_free(list, count);
    int flushed = log_dir_flush(dir);
    return result != 0 ? result : flushed;
}
