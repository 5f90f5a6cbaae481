/* The group commit of one log directory: threads and queues. Part of struct log_dir, guarded by its
 * flush_lock. */
#ifndef PYLOG_FLUSHER_H
#define PYLOG_FLUSHER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "os/lock.h"

struct log;
struct log_dir;

enum { FLUSHER_THREADS = 4 };

struct flusher_queue {
    struct log *first, **last;
}; /* linked by flush_next, one reference each */

struct flusher {
    struct lock_condition more;
    struct flusher_queue asked; /* the next group */
    struct flusher_queue ready; /* write-back has started */
    struct flusher_queue later; /* failed with a shortage: retry at later_ms */
    int64_t later_ms;           /* CLOCK_MONOTONIC */
    struct log *slow_first, **slow_last;
    bool slow_busy, syncfs_busy, relief_busy, closing, reported;
    _Atomic bool relief_wanted;
    _Atomic uint32_t syncfs_skips;
    _Atomic uint64_t groups, files;
    int thread_count;
    pthread_t threads[FLUSHER_THREADS];
};

/* Returns 0 or an errno. */
int flusher_start(struct log_dir *dir);
/* Flushes all requested logs, then joins the threads. */
void flusher_stop(struct log_dir *dir);
/* Requests that the next group flushes the log up to its current end. */
void flusher_ask(struct log *log);
/* The same without a waiter: one such flush at a time. */
void flusher_ask_some_time(struct log *log);
/* Flushes everything and closes segments above the limit of open files. */
void flusher_relieve(struct log_dir *dir);
/* Call after the directory failed or a removal was queued. */
void flusher_wake(struct log_dir *dir);

#endif
