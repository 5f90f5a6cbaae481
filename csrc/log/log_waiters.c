/* Waiters: four lists, one per watched end.
 *
 * No wake-up is lost: a waiter is counted before it checks the end for the last time, and a
 * thread that moves an end stores it before it reads the count (both sequentially consistent).
 * So at least one of them sees the other. */
#include "log/log_waiters.h"

#include <assert.h>

#include "log/flush_queue.h"
#include "log/log_ends.h"
#include "log/log_struct.h"
#include "os/lock.h"
#include "os/mailbox.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment_path.h"

static int64_t log_wait_end(const struct log *log, enum log_wait_for kind) {
    switch (kind) {
    case LOG_WAIT_HIGH_WATERMARK: return atomic_load(&log->ends.high_watermark);
    case LOG_WAIT_LAST_STABLE: return atomic_load(&log->ends.last_stable);
    case LOG_WAIT_END: return atomic_load(&log->ends.end_offset);
    case LOG_WAIT_FLUSHED: return atomic_load(&log->ends.flushed);
    }
    return -1;
}

static void log_wait_unlink(struct log *log, struct log_waiter *w) REQUIRES(log->wait.lock) {
    assert(w->linked);
    assert(w->wait_for < LOG_WAIT_KINDS);
    assert(w->prev != NULL || log->wait.lists[w->wait_for] == w);
    assert(w->next == NULL || w->next->prev == w);
    if (w->prev != NULL)
        w->prev->next = w->next;
    else
        log->wait.lists[w->wait_for] = w->next;
    if (w->next != NULL) w->next->prev = w->prev;
    w->next = w->prev = NULL;
    w->linked = false;
    uint32_t before = atomic_fetch_sub(&log->wait.counts[w->wait_for], 1);
    assert(before > 0);
    (void)before;
}

static void log_wait_notify(struct log *log, struct log_waiter *w, int32_t status)
    REQUIRES(log->wait.lock) {
    struct message message = {.kind = MESSAGE_WAKE, .status = status, .token = w->token, .data = w};
    bool posted = mailbox_post(w->mailbox, &message);
    assert(posted && "a mailbox refuses no MESSAGE_WAKE");
    (void)posted;
    log_wait_unlink(log, w);
}

bool log_wait(struct log *log, struct log_waiter *waiter) {
    enum log_wait_for kind = waiter->wait_for;
    assert(waiter->wait_for < LOG_WAIT_KINDS);
    assert(waiter->mailbox != NULL);
    if (log_wait_end(log, kind) > waiter->offset) return true;
    lock_acquire(&log->wait.lock);
    assert(!waiter->linked);
    atomic_fetch_add(&log->wait.counts[kind], 1);
    if (log_wait_end(log, kind) > waiter->offset) {
        atomic_fetch_sub(&log->wait.counts[kind], 1);
        lock_release(&log->wait.lock);
        return true;
    }
    waiter->prev = NULL;
    waiter->next = log->wait.lists[kind];
    if (waiter->next != NULL) waiter->next->prev = waiter;
    log->wait.lists[kind] = waiter;
    waiter->linked = true;
    /* Failures before the link have not woken this waiter. Report them as a wake-up, not as a
     * condition that is met. */
    int failed = log_failed(log);
    if (failed == LOG_E_NOT_LEADER && waiter->as_follower) failed = 0;
    if (failed != 0) log_wait_notify(log, waiter, failed);
    assert(waiter->linked == (failed == 0)); /* otherwise a message is on its way */
    lock_release(&log->wait.lock);
    if (kind == LOG_WAIT_FLUSHED) flush_queue_add(log);
    return false;
}

void log_unwait(struct log *log, struct log_waiter *waiter) {
    lock_acquire(&log->wait.lock);
    if (waiter->linked) log_wait_unlink(log, waiter);
    lock_release(&log->wait.lock);
}

/* Posts to every waiter of the kind below `end`. */
static void log_wait_post(struct log *log, enum log_wait_for kind, int64_t end, int32_t status)
    REQUIRES(log->wait.lock) {
    struct log_waiter *next;
    for (struct log_waiter *w = log->wait.lists[kind]; w != NULL; w = next) {
        next = w->next;
        if (end > w->offset) log_wait_notify(log, w, status);
    }
}

void log_wait_wake_some(struct log *log, enum log_wait_for kind, int64_t end) {
    lock_acquire(&log->wait.lock);
    log_wait_post(log, kind, end, 0);
    lock_release(&log->wait.lock);
}

void log_wait_fail(struct log *log, int32_t status) {
    lock_acquire(&log->wait.lock);
    for (int kind = 0; kind < LOG_WAIT_KINDS; kind++)
        log_wait_post(log, (enum log_wait_for)kind, INT64_MAX, status);
    lock_release(&log->wait.lock);
}

void log_wake_after_append(struct log *log) {
    log_wait_wake(log, LOG_WAIT_END, atomic_load(&log->ends.end_offset));
    log_wait_wake(log, LOG_WAIT_HIGH_WATERMARK, atomic_load(&log->ends.high_watermark));
    log_wait_wake(log, LOG_WAIT_LAST_STABLE, atomic_load(&log->ends.last_stable));
    /* Waiters need a flush: the current group may have been collected before these bytes. */
    bool wanted = (atomic_load(&log->role.flush_before_fetch) && !atomic_load(&log->role.alone)) ||
                  log_hides_records(log);
    /* Without waiters, segments still keep their descriptors until they are flushed. */
    struct log_dir *dir = log->partition->dir;
    if (atomic_load_explicit(&dir->over_limit, memory_order_relaxed)) flush_queue_relieve(dir);
    if (wanted || atomic_load(&log->wait.counts[LOG_WAIT_FLUSHED]) != 0) flush_queue_add(log);
}
