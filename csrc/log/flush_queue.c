/* Requests to flush logs. A log is in a queue at most once, with a reference. */
#include "log/flush_queue.h"

#include <stdatomic.h>

#include "log/log_internal.h"
#include "os/lock.h"
#include "segment/log_dir.h"
#include "segment/segment_path.h"

void flusher_enqueue(struct log_dir *dir, struct log *log) {
    if (log->queue.flushing) {
        log->queue.again = true; /* The running flush may have read the end already. */
    } else if (!log->queue.wanted && !dir->flusher.closing) {
        log->queue.wanted = true;
        log_retain(log);
        flusher_push(&dir->flusher.asked, log);
        lock_condition_signal(&dir->changed);
    }
}

void flusher_ask(struct log *log) {
    struct log_dir *dir = log->home->dir;
    lock_acquire(&dir->flush_lock);
    flusher_enqueue(dir, log);
    lock_release(&dir->flush_lock);
}

void flusher_ask_some_time(struct log *log) {
    struct log_dir *dir = log->home->dir;
    lock_acquire(&dir->flush_lock);
    if (!log->queue.slow_wanted && !dir->flusher.closing) {
        log->queue.slow_wanted = true;
        log_retain(log);
        log->queue.slow_next = NULL;
        *dir->flusher.slow_last = log;
        dir->flusher.slow_last = &log->queue.slow_next;
        lock_condition_signal(&dir->changed);
    }
    lock_release(&dir->flush_lock);
}

void flusher_relieve(struct log_dir *dir) {
    if (atomic_exchange(&dir->flusher.relief_wanted, true)) return;
    log_dir_signal_changed(dir);
}
