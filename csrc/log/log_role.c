/* Role: permission to append, and how the high watermark moves. */
#include <assert.h>

#include "log/log_ends.h"
#include "log/log_epochs.h"
#include "log/log_replicas.h"
#include "log/log_struct.h"
#include "log/log_waiters.h"
#include "segment/log_error.h"

bool log_is_leader(const struct log *log) { return atomic_load(&log->role.leader); }
int32_t log_leader_epoch(const struct log *log) { return atomic_load(&log->role.leader_epoch); }

int32_t log_in_sync_count(const struct log *log) { return atomic_load(&log->role.in_sync_count); }

bool log_flush_before_ack(const struct log *log) {
    return atomic_load(atomic_load(&log->role.in_sync_count) == 1 ? &log->role.flush_before_ack
                                                                  : &log->role.flush_before_fetch);
}

bool log_below_min_isr(const struct log *log, bool maximal) {
    int32_t count = atomic_load(maximal ? &log->role.maximal_count : &log->role.in_sync_count);
    return count < atomic_load(&log->role.in_sync_count_min);
}

uint32_t log_leadership_losses(const struct log *log) {
    return atomic_load(&log->role.leadership_losses);
}

bool log_high_watermark_is_current(const struct log *log) {
    return atomic_load(&log->ends.high_watermark) >= atomic_load(&log->role.epoch_start);
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
    if (atomic_load(&log->role.leader)) atomic_fetch_add(&log->role.leadership_losses, 1);
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
