/* Why a log serves no requests: its directory failed, its files are gone, or it does not lead. */
#include "log/log_failure.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "log/log_segments.h"
#include "log/log_struct.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

bool log_offline(const struct log *log) {
    return log_dir_offline(log->partition->dir) ||
           atomic_load_explicit(&log->partition->lost, memory_order_acquire);
}

int log_failed(const struct log *log) {
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    if (log_offline(log)) return LOG_E_OFFLINE;
    return atomic_load(&log->role.leader) ? 0 : LOG_E_NOT_LEADER;
}

void log_mark_files_lost(struct log *log) {
    if (log_dir_check_present(log->partition->dir) && !atomic_load(&log->deleted))
        partition_dir_mark_lost(log->partition);
}

void log_check_linked(struct log *log) {
    log_view_lock(log);
    uint32_t count = log->view.segment_count;
    struct segment *s = count > 0 ? log->view.segments[count - 1] : NULL;
    if (s != NULL) segment_retain(s);
    log_view_unlock(log);
    if (s == NULL) return;
    if (segment_pin(s, false) == 0) {
        if (segment_is_unlinked(s)) log_mark_files_lost(log);
        segment_unpin(s);
    }
    segment_release(s);
}

static bool log_folder_is_missing(struct log *log) {
    char name[SEGMENT_PATH_BYTES];
    log_path(log, ".", name);
    return faccessat(log->partition->dir->fd, name, F_OK, 0) != 0 && errno == ENOENT;
}

int log_storage_error(struct log *log, int result, const char *call) {
    if (log_is_error(result)) return result; /* already a log_error */
    if (result == -ENOENT) {
        if (log_folder_is_missing(log)) log_mark_files_lost(log);
        return log_offline(log) ? LOG_E_IO : LOG_E_CORRUPT;
    }
    return log_dir_error(log->partition->dir, -result, call);
}

static const char *log_dir_shortage_text(int error) {
    switch (error) {
    case ENOSPC: return "No space is left on the broker's disk.";
    case EDQUOT: return "The broker's disk quota is used up.";
    case EFBIG: return "A log file has reached the broker's file size limit.";
    case EMFILE:
    case ENFILE: return "The broker has no free file descriptor.";
    default: return "The broker is short of memory.";
    }
}

void log_storage_cause(const struct log *log, int error, bool below_reserve,
                       char text[LOG_CAUSE_BYTES]) {
    struct log_dir *dir = log->partition->dir;
    const char *call = NULL;
    int failure = log_dir_failure(dir, &call);
    if (failure == 0 && log_offline(log)) {
        snprintf(text, LOG_CAUSE_BYTES,
                 "Another program deleted the partition's files on the broker.");
    } else if (below_reserve) {
        snprintf(text, LOG_CAUSE_BYTES,
                 "The broker's disk has %lld bytes free. Produce requests need more than %lld "
                 "(log.dir.min.free.bytes).",
                 (long long)atomic_load(&dir->free_bytes),
                 (long long)atomic_load(&dir->reserve_bytes));
    } else if (error == LOG_E_FULL || error == LOG_E_MEMORY) {
        int shortage = atomic_load(&dir->short_error);
        snprintf(text, LOG_CAUSE_BYTES, "%s", log_dir_shortage_text(shortage));
    } else if (failure != 0 && call != NULL) {
        snprintf(text, LOG_CAUSE_BYTES, "The broker's log directory is offline: %s (errno %d).",
                 call, failure);
    } else {
        snprintf(text, LOG_CAUSE_BYTES, "The broker's log directory is offline.");
    }
}
