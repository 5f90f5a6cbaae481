/* Role and ends: permission to append, and the end offsets for readers. */
#include <assert.h>

#include <stdlib.h>
#include <string.h>

#include "log/log_internal.h"

int64_t log_start_offset(const struct log *log) { return atomic_load(&log->ends.start_offset); }
int64_t log_end_offset(const struct log *log) { return atomic_load(&log->ends.end_offset); }
int64_t log_high_watermark(const struct log *log) { return atomic_load(&log->ends.high_watermark); }
int64_t log_last_stable_offset(const struct log *log) {
    return atomic_load(&log->ends.last_stable);
}
int64_t log_flushed_offset(const struct log *log) { return atomic_load(&log->ends.flushed); }
int64_t log_recovery_point(const struct log *log) {
    int64_t flushed = atomic_load(&log->ends.flushed), held = atomic_load(&log->flush.held_point);
    return flushed < held ? flushed : held;
}
int64_t log_size_bytes(const struct log *log) { return atomic_load(&log->view.size_bytes); }
bool log_is_leader(const struct log *log) { return atomic_load(&log->role.leader); }
int32_t log_leader_epoch(const struct log *log) { return atomic_load(&log->role.leader_epoch); }

int32_t log_in_sync_count(const struct log *log) { return atomic_load(&log->role.in_sync_count); }

bool log_offline(const struct log *log) {
    return log_dir_offline(log->home->dir) ||
           atomic_load_explicit(&log->home->lost, memory_order_acquire);
}

int log_failed(const struct log *log) {
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    if (log_offline(log)) return LOG_E_OFFLINE;
    return atomic_load(&log->role.leader) ? 0 : LOG_E_NOT_LEADER;
}

bool log_flush_before_ack(const struct log *log) {
    return atomic_load(atomic_load(&log->role.in_sync_count) == 1 ? &log->role.flush_before_ack
                                                                  : &log->role.flush_before_fetch);
}

bool log_lacks_replicas(const struct log *log, bool maximal) {
    int32_t count = atomic_load(maximal ? &log->role.maximal_count : &log->role.in_sync_count);
    return count < atomic_load(&log->role.in_sync_count_min);
}

uint32_t log_resignations(const struct log *log) {
    return atomic_load(&log->role.resignations);
}

bool log_high_watermark_is_current(const struct log *log) {
    return atomic_load(&log->ends.high_watermark) >= atomic_load(&log->role.epoch_start);
}

void log_set_last_stable(struct log *log) {
    int64_t high = atomic_load(&log->ends.high_watermark),
            start = atomic_load(&log->ends.start_offset);
    int64_t stable = log->append.first_open >= 0 && log->append.first_open < high
                         ? log->append.first_open
                         : high;
    struct log_completed *completed = log->view.completed;
    uint32_t from = log->view.completed_from, end = log->view.completed_end;
    while (from < end && completed[from].last_offset < high) from++;
    if (from < end && completed[from].first_offset < stable) stable = completed[from].first_offset;
    log->view.completed_from = from < end ? from : 0;
    log->view.completed_end = from < end ? end : 0;
    /* The start of an open transaction may have been deleted. */
    atomic_store(&log->ends.last_stable, stable < start && start <= high ? start : stable);
}

void log_open_changed(struct log *log) {
    log->append.first_open = producers_first_open(&log->append.producers);
    log_view_change(log);
    log_set_last_stable(log);
    log_ends_check(log);
    log_view_changed(log);
}

/* Makes space for another entry at the end. */
static int completed_reserve(struct log_view *view) REQUIRES(view->lock) {
    uint32_t from = view->completed_from, end = view->completed_end;
    if (end < view->completed_room) return 0;
    if (from > 0 && from >= view->completed_room / 2) {
        memmove(view->completed, view->completed + from, (end - from) * sizeof *view->completed);
        view->completed_from = 0;
        view->completed_end = end - from;
        return 0;
    }
    uint32_t room = view->completed_room == 0 ? 4 : view->completed_room * 2;
    struct log_completed *completed = realloc(view->completed, room * sizeof *completed);
    if (completed == NULL) return LOG_E_MEMORY;
    view->completed = completed;
    view->completed_room = room;
    return 0;
}

int log_complete(struct log *log, int64_t first_offset, int64_t last_offset) {
    if (last_offset < atomic_load(&log->ends.high_watermark)) return 0;
    log_view_change(log);
    struct log_view *view = &log->view;
    int result = completed_reserve(view);
    if (result == 0) {
        uint32_t end = view->completed_end;
        /* Drop transactions that began later: this one ends last, so they do not limit the last
         * stable offset. */
        while (end > view->completed_from && view->completed[end - 1].first_offset >= first_offset)
            end--;
        assert(end == view->completed_from || view->completed[end - 1].last_offset < last_offset);
        view->completed[end] = (struct log_completed){first_offset, last_offset};
        view->completed_end = end + 1;
    }
    log_view_changed(log);
    return result;
}

int64_t log_open_transaction(const struct log *log) { return atomic_load(&log->append.first_open); }

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

int log_begin_epoch(struct log *log, int32_t epoch, int64_t offset) {
    return epoch <= epochs_last(&log->append.epochs) ? 0 : log_follow_epoch(log, epoch, offset);
}

/* `alone`: the high watermark waits for no other replica. */
static int log_lead(struct log *log, int32_t epoch, int32_t in_sync_count, bool alone) {
    assert(epoch >= 0);
    assert(in_sync_count >= 1); /* in_sync_count includes this replica */
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    log_append_lock(log);
    int64_t end = atomic_load(&log->ends.end_offset);
    bool led = atomic_load(&log->role.leader) && atomic_load(&log->role.leader_epoch) == epoch;
    if (!led) atomic_store(&log->role.epoch_start, end);
    atomic_store(&log->role.leader_epoch, epoch);
    atomic_store(&log->role.in_sync_count, in_sync_count);
    atomic_store(&log->role.maximal_count, in_sync_count);
    /* An idle log records its epoch when its epochs are loaded: nothing can be appended before. */
    int result = log->append.epochs_loaded ? log_begin_epoch(log, epoch, end) : 0;
    log_view_change(log);
    /* Positions from another epoch belong to another history. */
    if (!led || alone) log_replicas_forget(log);
    if (alone || log->view.replicas == NULL) atomic_store(&log->role.alone, alone);
    if (alone) atomic_store(&log->ends.high_watermark, log_high_watermark_alone(log));
    log_set_last_stable(log);
    log_ends_check(log);
    log_view_changed(log);
    atomic_store(&log->role.leader, true);
    log_append_unlock(log);
    log_wake_after_append(log);
    return result;
}

int log_become_leader(struct log *log, int32_t epoch, int32_t in_sync_count) {
    return log_lead(log, epoch, in_sync_count, in_sync_count == 1);
}

int log_lead_replicas(struct log *log, int32_t epoch, int32_t in_sync_count) {
    return log_lead(log, epoch, in_sync_count, false);
}

void log_become_follower(struct log *log, int32_t epoch) {
    log_append_lock(log);
    atomic_store(&log->role.leader_epoch, epoch);
    if (atomic_load(&log->role.leader)) atomic_fetch_add(&log->role.resignations, 1);
    atomic_store(&log->role.leader, false);
    atomic_store(&log->role.readable, false);
    log_view_change(log);
    atomic_store(&log->role.alone, false);
    log_replicas_forget(log);
    log_view_changed(log);
    log_append_unlock(log);
    log_wait_fail(log, LOG_E_NOT_LEADER);
}

void log_set_readable(struct log *log, bool readable) {
    atomic_store(&log->role.readable, readable);
}

bool log_is_readable(const struct log *log) { return atomic_load(&log->role.readable); }

void log_advance_high_watermark(struct log *log, int64_t high_watermark) {
    log_view_lock(log);
    int64_t end = atomic_load(&log->ends.end_offset);
    int64_t to = high_watermark < end ? high_watermark : end;
    bool moved = to > atomic_load(&log->ends.high_watermark);
    if (moved) {
        atomic_store(&log->ends.high_watermark, to);
        log_set_last_stable(log);
    }
    if (moved) log_ends_check(log);
    log_view_unlock(log);
    if (!moved) return;
    log_wait_wake(log, LOG_WAIT_HIGH_WATERMARK, to);
    log_wait_wake(log, LOG_WAIT_LAST_STABLE, atomic_load(&log->ends.last_stable));
}
