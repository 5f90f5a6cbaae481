/* Waiters: four lists, one for each watched end.
 *
 * No wake-up is lost: a waiter is counted before it looks at the end a last time, and whoever moves
 * an end stores it before it looks at the count (both sequentially consistent), so at least one of
 * the two sees the other. */
#include <assert.h>

#include "log/log_state.h"

static int64_t log_wait_end(const struct log *log, enum log_wait_for kind) {
    switch (kind) {
    case LOG_WAIT_HIGH_WATERMARK: return atomic_load(&log->high_watermark);
    case LOG_WAIT_LAST_STABLE: return atomic_load(&log->last_stable);
    case LOG_WAIT_END: return atomic_load(&log->end_offset);
    case LOG_WAIT_FLUSHED: return atomic_load(&log->flushed);
    }
    return -1;
}

static void log_wait_unlink(struct log *log, struct log_waiter *w) {
    if (w->prev != NULL)
        w->prev->next = w->next;
    else
        log->waiters[w->wait_for] = w->next;
    if (w->next != NULL) w->next->prev = w->prev;
    w->next = w->prev = NULL;
    w->linked = false;
    atomic_fetch_sub(&log->waiting[w->wait_for], 1);
}

static void log_wait_tell(struct log *log, struct log_waiter *w, int32_t status) {
    struct message message = {.kind = MESSAGE_WAKE, .status = status, .token = w->token, .data = w};
    bool posted = mailbox_post(w->mailbox, &message);
    assert(posted && "a mailbox refuses no MESSAGE_WAKE");
    (void)posted;
    log_wait_unlink(log, w);
}

bool log_wait(struct log *log, struct log_waiter *waiter) {
    enum log_wait_for kind = waiter->wait_for;
    assert(waiter->wait_for < LOG_WAIT_KINDS);
    if (log_wait_end(log, kind) > waiter->offset) return true;
    pthread_mutex_lock(&log->waiters_lock);
    assert(!waiter->linked);
    atomic_fetch_add(&log->waiting[kind], 1);
    if (log_wait_end(log, kind) > waiter->offset) {
        atomic_fetch_sub(&log->waiting[kind], 1);
        pthread_mutex_unlock(&log->waiters_lock);
        return true;
    }
    waiter->prev = NULL;
    waiter->next = log->waiters[kind];
    if (waiter->next != NULL) waiter->next->prev = waiter;
    log->waiters[kind] = waiter;
    waiter->linked = true;
    /* A fault that came before the link woke nobody here. It is a wake-up, never a condition that
     * holds. */
    int failed = log_failed(log);
    if (failed != 0) log_wait_tell(log, waiter, failed);
    pthread_mutex_unlock(&log->waiters_lock);
    if (kind == LOG_WAIT_FLUSHED) flusher_ask(log);
    return false;
}

void log_unwait(struct log *log, struct log_waiter *waiter) {
    pthread_mutex_lock(&log->waiters_lock);
    if (waiter->linked) log_wait_unlink(log, waiter);
    pthread_mutex_unlock(&log->waiters_lock);
}

/* Posts to every waiter of the kind below `end`. */
static void log_wait_post(struct log *log, enum log_wait_for kind, int64_t end, int32_t status) {
    struct log_waiter *next;
    for (struct log_waiter *w = log->waiters[kind]; w != NULL; w = next) {
        next = w->next;
        if (end > w->offset) log_wait_tell(log, w, status);
    }
}

void log_wait_wake(struct log *log, enum log_wait_for kind, int64_t end) {
    if (atomic_load(&log->waiting[kind]) == 0) return;
    pthread_mutex_lock(&log->waiters_lock);
    log_wait_post(log, kind, end, 0);
    pthread_mutex_unlock(&log->waiters_lock);
}

void log_wait_fail(struct log *log, int32_t status) {
    pthread_mutex_lock(&log->waiters_lock);
    for (int kind = 0; kind < LOG_WAIT_KINDS; kind++)
        log_wait_post(log, (enum log_wait_for)kind, INT64_MAX, status);
    pthread_mutex_unlock(&log->waiters_lock);
}
