/* Requests to flush logs: the queues that the threads of log_manager/flusher.c serve. */
#ifndef PYLOG_FLUSH_QUEUE_H
#define PYLOG_FLUSH_QUEUE_H

#include <assert.h>

#include "log/log_struct.h"
#include "os/lock.h"

/* Requests that the next group flushes the log up to its current end. */
void flush_queue_add(struct log *log);
/* The same without a waiter: one such flush at a time. */
void flush_queue_add_lazy(struct log *log);
/* Flushes everything and closes segments above the limit of open files. */
void flush_queue_relieve(struct log_dir *dir);

static inline void flush_queue_push(struct flush_queue_list *q, struct log *log) {
    assert(log->queue.wanted);
    assert(*q->last == NULL);
    log->queue.next = NULL;
    *q->last = log;
    q->last = &log->queue.next;
}

void flush_queue_add_locked(struct log_dir *dir, struct log *log) REQUIRES(dir->flush_lock);

#endif
