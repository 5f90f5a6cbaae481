/* Role and ends: who may append, and how far readers see. */
#include <assert.h>

#include <stdlib.h>

#include "log/log_state.h"

int64_t log_start_offset(const struct log *log) { return atomic_load(&log->start_offset); }
int64_t log_end_offset(const struct log *log) { return atomic_load(&log->end_offset); }
int64_t log_high_watermark(const struct log *log) { return atomic_load(&log->high_watermark); }
int64_t log_last_stable_offset(const struct log *log) { return atomic_load(&log->last_stable); }
int64_t log_flushed_offset(const struct log *log) { return atomic_load(&log->flushed); }
int64_t log_recovery_point(const struct log *log) {
    int64_t flushed = atomic_load(&log->flushed), held = atomic_load(&log->held_point);
    return flushed < held ? flushed : held;
}
int64_t log_size_bytes(const struct log *log) { return atomic_load(&log->size_bytes); }
bool log_is_leader(const struct log *log) { return atomic_load(&log->leader); }
int32_t log_leader_epoch(const struct log *log) { return atomic_load(&log->leader_epoch); }

int32_t log_in_sync_count(const struct log *log) { return atomic_load(&log->in_sync_count); }

int log_failed(const struct log *log) {
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    if (log_dir_offline(log->home->dir)) return LOG_E_OFFLINE;
    return atomic_load(&log->leader) ? 0 : LOG_E_NOT_LEADER;
}

bool log_flush_before_ack(const struct log *log) {
    return atomic_load(&log->alone) && atomic_load(&log->flush_before_ack);
}

void log_set_last_stable(struct log *log) {
    int64_t high = atomic_load(&log->high_watermark), start = atomic_load(&log->start_offset);
    int64_t stable = log->first_open >= 0 && log->first_open < high ? log->first_open : high;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < log->completed_count; i++) {
        struct log_completed one = log->completed[i];
        if (one.last_offset < high) continue;
        if (one.first_offset < stable) stable = one.first_offset;
        log->completed[kept++] = one;
    }
    log->completed_count = kept;
    /* What an open transaction began with may be deleted. */
    atomic_store(&log->last_stable, stable < start && start <= high ? start : stable);
}

int log_complete(struct log *log, int64_t first_offset, int64_t last_offset) {
    int result = 0;
    if (last_offset < atomic_load(&log->high_watermark)) return 0;
    pthread_mutex_lock(&log->view_lock);
    if (log->completed_count == log->completed_room) {
        uint32_t room = log->completed_room == 0 ? 4 : log->completed_room * 2;
        struct log_completed *completed = realloc(log->completed, room * sizeof *completed);
        if (completed == NULL) {
            result = LOG_E_MEMORY;
        } else {
            log->completed = completed;
            log->completed_room = room;
        }
    }
    if (result == 0)
        log->completed[log->completed_count++] =
            (struct log_completed){first_offset, last_offset};
    pthread_mutex_unlock(&log->view_lock);
    return result;
}

int64_t log_open_transaction(const struct log *log) { return atomic_load(&log->first_open); }

int log_begin_epoch(struct log *log, int32_t epoch, int64_t offset) {
    if (epoch < 0 || epoch <= epochs_last(&log->epochs)) return 0;
    pthread_mutex_lock(&log->view_lock);
    int result = epochs_assign(&log->epochs, epoch, offset);
    pthread_mutex_unlock(&log->view_lock);
    if (result == 1) log_mark(&log->epochs_marks);
    return result < 0 ? LOG_E_MEMORY : 0;
}

int log_become_leader(struct log *log, int32_t epoch, int32_t in_sync_count) {
    bool alone = in_sync_count == 1;
    assert(epoch >= 0 && in_sync_count >= 1);
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    pthread_mutex_lock(&log->append_lock);
    atomic_store(&log->leader_epoch, epoch);
    atomic_store(&log->alone, alone);
    atomic_store(&log->in_sync_count, in_sync_count);
    /* A log at rest notes its epoch when it is next looked at: nothing can be appended before. */
    int result =
        log->epochs_loaded ? log_begin_epoch(log, epoch, atomic_load(&log->end_offset)) : 0;
    pthread_mutex_lock(&log->view_lock);
    if (alone) atomic_store(&log->high_watermark, atomic_load(&log->end_offset));
    log_set_last_stable(log);
    pthread_mutex_unlock(&log->view_lock);
    atomic_store(&log->leader, true);
    pthread_mutex_unlock(&log->append_lock);
    log_wake_after_append(log);
    return result;
}

void log_become_follower(struct log *log, int32_t epoch) {
    pthread_mutex_lock(&log->append_lock);
    atomic_store(&log->leader_epoch, epoch);
    atomic_store(&log->leader, false);
    atomic_store(&log->alone, false);
    pthread_mutex_unlock(&log->append_lock);
    log_wait_fail(log, LOG_E_NOT_LEADER);
}

void log_advance_high_watermark(struct log *log, int64_t high_watermark) {
    pthread_mutex_lock(&log->view_lock);
    int64_t end = atomic_load(&log->end_offset);
    int64_t to = high_watermark < end ? high_watermark : end;
    bool moved = to > atomic_load(&log->high_watermark);
    if (moved) {
        atomic_store(&log->high_watermark, to);
        log_set_last_stable(log);
    }
    pthread_mutex_unlock(&log->view_lock);
    if (!moved) return;
    log_wait_wake(log, LOG_WAIT_HIGH_WATERMARK, to);
    log_wait_wake(log, LOG_WAIT_LAST_STABLE, atomic_load(&log->last_stable));
}
