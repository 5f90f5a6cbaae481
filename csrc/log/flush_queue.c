/* Requests to flush logs. A log is in a queue at most once, with a reference. */
#include "log/flush_queue.h"

#include <stdatomic.h>

#include "log/log_struct.h"
#include "os/lock.h"
#include "segment/log_dir.h"
#include "segment/segment_path.h"

void flush_queue_add_locked(struct log_dir *dir, struct log *log) {
    if (log->queue.flushing) {
        log->queue.again = true; /* The running flush may have read the end already. */
    } else if (!log->queue.wanted && !dir->flusher.closing) {
        log->queue.wanted = true;
        log_retain(log);
        flush_queue_push(&dir->flusher.requested, log);
        lock_condition_signal(&dir->changed);
    }
}

void flush_queue_add(struct log *log) {
    struct log_dir *dir = log->partition->dir;
    lock_acquire(&dir->flush_lock);
    flush_queue_add_locked(dir, log);
    lock_release(&dir->flush_lock);
}

void flush_queue_add_lazy(struct log *log) {
    struct log_dir *dir = log->partition->dir;
    lock_acquire(&dir->flush_lock);
    if (!log->queue.lazy_wanted && !dir->flusher.closing) {
        log->queue.lazy_wanted = true;
        log_retain(log);
        log->queue.lazy_next = NULL;
        *dir->flusher.lazy_last = log;
        dir->flusher.lazy_last = &log->queue.lazy_next;
        lock_condition_signal(&dir->changed);
    }
    lock_release(&dir->flush_lock);
}

void flush_queue_relieve(struct log_dir *dir) {
    if (atomic_exchange(&dir->flusher.relief_wanted, true)) return;
    log_dir_signal_changed(dir);
}
