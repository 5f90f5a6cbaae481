/* The leader epochs of a log: loaded from their file or, without it, from the batches. */
#include "log/log_epochs.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "format/batch.h"
#include "log/log_failure.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "os/lock.h"
#include "segment/damage_report.h"
#include "segment/leader_epochs.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"

/* Adds the epochs of a segment's batches below `upto`. */
static int log_collect_epochs(struct log *log, struct segment *s, int64_t upto,
                              struct epochs *epochs) LOG_APPENDING(log) {
    struct segment_scan scan;
    struct batch_header h;
    if (atomic_load(&s->bytes) == 0 || s->base_offset >= upto) return 0;
    int result = segment_pin(s, false);
    if (result != 0) return log_storage_error(log, result, "open");
    segment_scan_begin(&scan, s, 0, atomic_load(&s->bytes), false);
    while ((result = segment_scan_peek(&scan, &h)) == 1 && h.base_offset < upto) {
        if (h.leader_epoch > epochs_last(epochs) &&
            epochs_assign(epochs, h.leader_epoch, h.base_offset) < 0)
            break;
        segment_scan_skip(&scan, &h);
    }
    segment_unpin(s);
    if (result == 1) return h.base_offset < upto ? LOG_E_MEMORY : 0;
    /* Damaged bytes contain no epoch. */
    return result == LOG_E_CORRUPT ? 0 : result;
}

/* Reads the epochs from the headers of all batches below `upto`, because their file is missing
 * or damaged. */
static int log_rebuild_epochs(struct log *log, int64_t upto, struct epochs *epochs)
    LOG_APPENDING(log) {
    int result = 0;
    for (uint32_t i = 0; i < log->view.segment_count && result == 0; i++)
        result = log_collect_epochs(log, log->view.segments[i], upto, epochs);
    if (result != 0) {
        epochs_free(epochs);
        return result;
    }
    epochs_truncate_start(epochs, atomic_load(&log->ends.start_offset));
    if (epochs->count > 0) log_mark(&log->flush.epochs_marks);
    return 0;
}

/* Renames a file that cannot be parsed, so that an operator can examine it. */
static int log_set_epochs_aside(struct log *log, const char *path, size_t bytes) {
    char aside[SEGMENT_PATH_BYTES + 16];
    snprintf(aside, sizeof aside, "%s.damaged", path);
    int result = log_dir_rename(log->partition->dir, path, aside);
    if (result != 0 && !log_error_is_shortage(result))
        return log_storage_error(log, result, "rename");
    log_damage_record_epochs(log->partition, (int64_t)bytes);
    return 0;
}

int log_load_epochs(struct log *log) { return log_load_epochs_upto(log, INT64_MAX); }

int log_load_epochs_upto(struct log *log, int64_t upto) {
    if (log->append.epochs_loaded) return 0;
    char path[SEGMENT_PATH_BYTES];
    uint8_t *text = NULL;
    size_t len = 0;
    struct epochs epochs = {NULL, 0, 0};
    log_path(log, "leader-epoch-checkpoint", path);
    int result = log_dir_read_file(log->partition->dir, path, EPOCHS_TEXT_BYTES_MAX, &text, &len);
    /* The file exists but cannot be read. */
    if (result != 0 && result != -ENOENT && result != LOG_E_CORRUPT)
        return log_storage_error(log, result, "open");
    bool missing = result == -ENOENT;
    if (result == 0) result = epochs_decode(&epochs, (const char *)text, len);
    free(text);
    if (result != 0) epochs_free(&epochs);
    if (log_error_is_shortage(result)) return log_storage_error(log, result, "open");
    if (result != 0) {
        int aside = missing ? 0 : log_set_epochs_aside(log, path, len);
        result = aside != 0 ? aside : log_rebuild_epochs(log, upto, &epochs);
        if (result != 0) return result;
    }
    epochs_truncate_end(&epochs, atomic_load(&log->ends.end_offset) + (log->append.clean ? 1 : 0));
    if (log->append.clean && log->append.last_epoch > epochs_last(&epochs)) {
        epochs_assign(&epochs, log->append.last_epoch, atomic_load(&log->ends.end_offset));
        log_mark(&log->flush.epochs_marks);
    }
    log_view_change(log);
    assert(log->append.epochs.entries == NULL);
    log->append.epochs = epochs;
    log->append.epochs_loaded = true;
    log_view_changed(log);
    return 0;
}

int log_write_epochs(struct log *log, bool sync, uint32_t *made) {
    char path[SEGMENT_PATH_BYTES];
    size_t len;
    log_append_lock(log);
    *made = atomic_load(&log->flush.epochs_marks.made);
    char *text = epochs_encode(&log->append.epochs, &len);
    log_append_unlock(log);
    if (text == NULL) return -ENOMEM;
    log_path(log, "leader-epoch-checkpoint", path);
    int result = log_dir_write_file(log->partition->dir, path, text, len, sync);
    free(text);
    if (result != 0) return result;
    log_mark(&log->flush.files_marks);
    if (sync) atomic_store(&log->flush.epochs_marks.synced, *made);
    return result;
}

int log_follow_epoch(struct log *log, int32_t epoch, int64_t offset) {
    if (epoch < 0 || epoch == epochs_last(&log->append.epochs)) return 0;
    assert(log->append.epochs_loaded); /* Otherwise it would hide the file's epochs. */
    assert(offset >= 0);
    log_view_change(log);
    int result = epochs_assign(&log->append.epochs, epoch, offset);
    log_view_changed(log);
    assert(result != 1 || epochs_last(&log->append.epochs) == epoch);
    if (result == 1) log_mark(&log->flush.epochs_marks);
    return result < 0 ? LOG_E_MEMORY : 0;
}

/* ---- queries ---- */

/* Loads the epochs from their file if necessary, and adds the leader's own. Returns false if
 * they cannot be read now: no epoch may begin in an empty cache, because it would replace the
 * file. Returns with append.lock held. */
static bool log_lookup_epochs(struct log *log) ACQUIRE(log->append.lock)
    ACQUIRE_SHARED(log->view.access) {
    log_append_lock(log);
    if (log_load_epochs(log) != 0) return false;
    if (!atomic_load(&log->role.leader)) return true;
    int32_t epoch = atomic_load(&log->role.leader_epoch);
    return log_begin_epoch(log, epoch, atomic_load(&log->ends.end_offset)) == 0;
}

void log_end_for_epoch(struct log *log, int32_t epoch, int32_t *found_epoch, int64_t *end_offset) {
    if (log_lookup_epochs(log)) {
        epochs_end_of(&log->append.epochs, epoch, atomic_load(&log->ends.end_offset), found_epoch,
                      end_offset);
    } else {
        /* A follower must not truncate records that may be the same on both sides. */
        *found_epoch = epoch;
        *end_offset = atomic_load(&log->ends.end_offset);
    }
    log_append_unlock(log);
}

int32_t log_epoch_of(struct log *log, int64_t offset) {
    int32_t epoch = log_lookup_epochs(log) ? epochs_at(&log->append.epochs, offset) : -1;
    log_append_unlock(log);
    return epoch;
}

int32_t log_last_epoch(struct log *log) {
    log_append_lock(log);
    int32_t epoch =
        log->append.epochs_loaded ? epochs_last(&log->append.epochs) : log->append.last_epoch;
    int32_t leading = atomic_load(&log->role.leader) ? atomic_load(&log->role.leader_epoch) : -1;
    log_append_unlock(log);
    return epoch > leading ? epoch : leading;
}
