/* Group commit: a few threads per log directory. One thread takes all logs with a requested
 * flush and starts their write-back together; then the threads sync them in parallel (large
 * groups: one syncfs) and wake the waiters. Later requests form the next group, and a slow log
 * occupies one thread, not the group. Flushes without waiters have a separate queue and run one
 * at a time.
 *
 * The threads are not jobs of the I/O pool, because a commit must neither queue behind cold
 * reads nor be rejected. They also hand due removals to the pool, and wake all waiters if the
 * directory fails. */
#include "log_manager/flusher.h"

#include <assert.h>
#include <fcntl.h>
#include <time.h>

#include "log/flush_queue.h"
#include "log/log_failure.h"
#include "log/log_flush.h"
#include "log/log_struct.h"
#include "log/log_waiters.h"
#include "log_manager/log_manager.h"
#include "os/clock.h"
#include "os/io_pool.h"
#include "os/lock.h"
#include "os/meter.h"
#include "os/stack.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_cache.h"

/* Measured on ext4 with other load, p50 of a group of 4 KiB writes: 6 files one after another
 * 6-20 ms, with write-back started on all of them and four threads 0.4 ms; 24 files 48-80 ms and
 * 1.1 ms. syncfs: 0.6-4 ms for any number, and for 96 files a tenth of the CPU (0.19 ms against
 * 1.9-4.6), but it also flushes data of other programs. Use it for large groups, and not while
 * it is slow. */
enum {
    FLUSHER_SYNCFS_MIN = 32,
    FLUSHER_SYNCFS_MS_MAX = 50,
    FLUSHER_SYNCFS_SKIPS = 64,
    FLUSHER_SHORT_PAUSE_MS = 100 /* before a retry after a shortage */
};

/* ---- queues ---- */

static struct log *flusher_take_all(struct flush_queue_list *q) {
    struct log *first = q->first;
    q->first = NULL;
    q->last = &q->first;
    return first;
}

/* ---- one log ---- */

/* Retries after a pause, because the shortage may end. A log of the slow queue may already be in
 * another queue, which is its next attempt. */
static void flusher_retry_later(struct log_dir *dir, struct log *log) REQUIRES(dir->flush_lock) {
    struct flusher *f = &dir->flusher;
    if (log->queue.wanted) return;
    if (f->later.first == NULL)
        f->later_ms = clock_read_ms(CLOCK_MONOTONIC) + FLUSHER_SHORT_PAUSE_MS;
    log->queue.wanted = true;
    log_retain(log);
    flush_queue_push(&f->later, log);
}

/* Requests the delayed flushes again if they are due. Returns when they are due, 0 if there are
 * none. */
static int64_t flusher_requeue_due(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    struct flusher *f = &dir->flusher;
    if (f->later.first == NULL) return 0;
    if (!f->closing && clock_read_ms(CLOCK_MONOTONIC) < f->later_ms) return f->later_ms;
    for (struct log *log = flusher_take_all(&f->later), *next; log != NULL; log = next) {
        next = log->queue.next;
        flush_queue_push(&f->requested, log);
    }
    return 0;
}

/* Flushes a log that is marked as flushing, and drops the queue's reference. Releases flush_lock
 * during the flush. */
static void flusher_run(struct log_dir *dir, struct log *log) REQUIRES(dir->flush_lock) {
    assert(log->queue.flushing);
    lock_release(&dir->flush_lock);
    int result = log_dir_offline(dir) ? LOG_E_OFFLINE : log_flush(log);
    lock_acquire(&dir->flush_lock);
    log->queue.flushing = false;
    if (log_error_is_shortage(result) && !dir->flusher.closing)
        flusher_retry_later(dir, log);
    else if (log->queue.again)
        flush_queue_add_locked(dir, log);
    log->queue.again = false;
    lock_release(&dir->flush_lock);
    log_release(log);
    lock_acquire(&dir->flush_lock);
}

/* Takes the next ready log and marks it as flushing. Returns NULL if another thread is flushing
 * it; that thread then flushes it again. */
static struct log *flusher_pop(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    struct log *log = dir->flusher.ready.first;
    assert(log->queue.wanted);
    dir->flusher.ready.first = log->queue.next;
    if (log->queue.next == NULL) dir->flusher.ready.last = &dir->flusher.ready.first;
    log->queue.wanted = false;
    if (!log->queue.flushing) {
        log->queue.flushing = true;
        return log;
    }
    log->queue.again = true;
    lock_release(&dir->flush_lock);
    log_release(log);
    lock_acquire(&dir->flush_lock);
    return NULL;
}

static void flusher_run_lazy(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    struct log *log = dir->flusher.lazy_first;
    assert(log->queue.lazy_wanted);
    assert(!dir->flusher.lazy_busy);
    dir->flusher.lazy_first = log->queue.lazy_next;
    if (log->queue.lazy_next == NULL) dir->flusher.lazy_last = &dir->flusher.lazy_first;
    log->queue.lazy_wanted = false;
    if (log->queue.flushing) {
        log->queue.again = true;
        lock_release(&dir->flush_lock);
        log_release(log);
        lock_acquire(&dir->flush_lock);
        return;
    }
    log->queue.flushing = true;
    dir->flusher.lazy_busy = true;
    flusher_run(dir, log);
    dir->flusher.lazy_busy = false;
}

/* ---- a group ---- */

static void flusher_start_writeback(struct log *log) {
    struct segment *s = NULL;
    log_view_lock(log);
    if (log->view.segment_count > 0) {
        s = log->view.segments[log->view.segment_count - 1];
        segment_retain(s);
    }
    log_view_unlock(log);
    if (s == NULL) return;
    if (atomic_load(&s->dirty) && segment_pin(s, false) == 0) {
        sync_file_range(s->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
        segment_unpin(s);
    }
    segment_release(s);
}

/* Records in the log which end a sync of the whole file system will cover: -1 if the log needs
 * more than its last segment's bytes. */
static void flusher_note(struct log *log) {
    bool simple = !log_marked(&log->flush.files_marks) && !log_marked(&log->flush.epochs_marks) &&
                  !atomic_load(&log->flush.indexes_due) && !atomic_load(&log->deleted) &&
                  atomic_load(&log->flush.held_recovery_point) == INT64_MAX;
    log_view_lock(log);
    struct segment *s =
        log->view.segment_count > 0 ? log->view.segments[log->view.segment_count - 1] : NULL;
    simple = simple && s != NULL && s->base_offset <= atomic_load(&log->ends.flushed) &&
             !atomic_load(&s->aborted_due);
    log->queue.sync_target = simple ? atomic_load(&log->ends.end_offset) : -1;
    log->queue.sync_truncations = log->view.truncations;
    if (simple) atomic_store(&s->dirty, false);
    log_view_unlock(log);
}

static void flusher_syncfs(struct log_dir *dir, struct log *first) {
    for (struct log *log = first; log != NULL; log = log->queue.next) flusher_note(log);
    int64_t began_ns = clock_read_ns(CLOCK_MONOTONIC);
    bool synced = log_dir_syncfs(dir) == 0;
    int64_t took_ns = clock_read_ns(CLOCK_MONOTONIC) - began_ns;
    meter_record_shared(&dir->flush_ns, METER_NS_FIRST, (uint64_t)took_ns);
    if (took_ns > FLUSHER_SYNCFS_MS_MAX * 1000000ll)
        atomic_store(&dir->flusher.syncfs_skips, FLUSHER_SYNCFS_SKIPS);
    for (struct log *log = first; log != NULL; log = log->queue.next)
        if (log->queue.sync_target >= 0 && synced) log_check_linked(log);
    synced = synced && !log_dir_offline(dir);
    for (struct log *log = first; log != NULL; log = log->queue.next)
        if (log->queue.sync_target >= 0 && synced && !log_offline(log))
            log_flush_publish(log, log->queue.sync_target, log->queue.sync_truncations);
}

/* Flushes a large group with one sync. Logs that need nothing else are done; the others, and
 * those that another thread is flushing, become ready. Releases flush_lock during the sync. */
static void flusher_stage_whole(struct log_dir *dir, struct log *first) REQUIRES(dir->flush_lock) {
    struct log *group = NULL, *next;
    for (struct log *log = first; log != NULL; log = next) {
        next = log->queue.next;
        if (log->queue.flushing) {
            flush_queue_push(&dir->flusher.ready, log);
            continue;
        }
        assert(log->queue.wanted);
        log->queue.wanted = false;
        log->queue.flushing = true;
        log->queue.next = group;
        group = log;
    }
    assert(dir->flusher.syncfs_busy);
    lock_release(&dir->flush_lock);
    flusher_syncfs(dir, group);
    for (struct log *log = group; log != NULL; log = next) {
        bool done = log->queue.sync_target >= 0;
        next = log->queue.next;
        lock_acquire(&dir->flush_lock);
        log->queue.flushing = false;
        if (!done) {
            assert(!log->queue.wanted);
            log->queue.wanted = true;
            flush_queue_push(&dir->flusher.ready, log);
        } else if (log->queue.again) {
            flush_queue_add_locked(dir, log);
        }
        log->queue.again = false;
        lock_release(&dir->flush_lock);
        if (done) log_release(log);
    }
    lock_acquire(&dir->flush_lock);
}

/* Makes the requested flushes ready. May release flush_lock. */
static void flusher_stage(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    struct flusher *f = &dir->flusher;
    struct log *first = flusher_take_all(&f->requested), *next;
    uint32_t count = 0, skips = atomic_load(&f->syncfs_skips);
    for (struct log *log = first; log != NULL; log = log->queue.next) count++;
    atomic_fetch_add_explicit(&f->groups, 1, memory_order_relaxed);
    bool whole = count >= FLUSHER_SYNCFS_MIN && dir->syncfs_problem == NULL;
    if (whole && skips == 0 && !f->syncfs_busy && !log_dir_offline(dir)) {
        f->syncfs_busy = true;
        flusher_stage_whole(dir, first);
        f->syncfs_busy = false;
    } else {
        if (skips > 0) atomic_store(&f->syncfs_skips, skips - 1);
        if (count > 1) {
            lock_release(&dir->flush_lock);
            for (struct log *log = first; log != NULL; log = log->queue.next)
                flusher_start_writeback(log);
            lock_acquire(&dir->flush_lock);
        }
        for (struct log *log = first; log != NULL; log = next) {
            next = log->queue.next;
            flush_queue_push(&f->ready, log);
        }
    }
    if (f->ready.first != NULL && f->ready.first->queue.next != NULL)
        lock_condition_broadcast(&dir->changed);
}

/* Uses one sync of the file system if possible. In a new log, each file and name would be synced
 * separately, which is too slow if clients write to one new log after another. */
static void flusher_run_relief(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    struct flusher *f = &dir->flusher;
    assert(!f->relief_busy);
    f->relief_busy = true;
    atomic_store(&f->relief_wanted, false);
    lock_release(&dir->flush_lock);
    log_dir_flush(dir); /* failed flushes are requested again */
    segment_cache_trim(dir);
    lock_acquire(&dir->flush_lock);
    f->relief_busy = false;
}

/* ---- the threads ---- */

static void flusher_fail_all(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    lock_release(&dir->flush_lock);
    lock_acquire(&dir->logs_lock);
    for (struct log *log = dir->logs; log != NULL; log = log->link.next)
        log_wait_fail(log, LOG_E_OFFLINE);
    lock_release(&dir->logs_lock);
    lock_acquire(&dir->flush_lock);
}

/* Wakes the waiters of logs whose files another program removed, unless the whole directory is
 * gone. */
static void flusher_fail_lost(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    lock_release(&dir->flush_lock);
    if (log_dir_check_present(dir)) {
        lock_acquire(&dir->logs_lock);
        for (struct log *log = dir->logs; log != NULL; log = log->link.next)
            if (log_offline(log)) log_wait_fail(log, LOG_E_OFFLINE);
        lock_release(&dir->logs_lock);
    }
    lock_acquire(&dir->flush_lock);
}

/* Returns the link to a due removal, NULL if there is none. If the disk is nearly full, delayed
 * removals are due now. */
static struct log_dir_removal **flusher_due(struct log_dir *dir, int64_t now)
    REQUIRES(dir->flush_lock) {
    struct log_dir_removal **due = NULL;
    bool hurry = log_dir_short_of_space(dir);
    for (struct log_dir_removal **at = &dir->removals; *at != NULL; at = &(*at)->next) {
        if (hurry && !(*at)->again && (*at)->due_ms > now) (*at)->due_ms = now;
        if (due == NULL && (*at)->due_ms <= now) due = at;
        if (due != NULL && !hurry) break;
    }
    return due;
}

/* Hands due removals to the pool. Returns when the next one is due, 0 if there are none. */
static int64_t flusher_removals(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    int64_t now = dir->removals == NULL ? 0 : clock_read_ms(CLOCK_MONOTONIC);
    for (struct log_dir_removal **at; (at = flusher_due(dir, now)) != NULL;) {
        struct log_dir_removal *r = *at;
        *at = r->next;
        dir->jobs++;
        if (iopool_submit(dir->pool, &r->job)) continue;
        assert(dir->jobs > 0);
        dir->jobs--;
        r->next = dir->removals;
        dir->removals = r;
        return now + 100;
    }
    return dir->removals != NULL ? dir->removals->due_ms : 0;
}

static void flusher_wait(struct log_dir *dir, int64_t due_ms) REQUIRES(dir->flush_lock) {
    if (due_ms == 0 || due_ms == INT64_MAX) {
        lock_condition_wait(&dir->changed, &dir->flush_lock);
    } else {
        struct timespec at = {due_ms / 1000, (due_ms % 1000) * 1000000};
        lock_condition_wait_until(&dir->changed, &dir->flush_lock, &at);
    }
}

static void *flusher_work(void *argument) {
    struct log_dir *dir = argument;
    struct flusher *f = &dir->flusher;
    pthread_setname_np(pthread_self(), "flusher");
    lock_acquire(&dir->flush_lock);
    for (;;) {
        int64_t due = flusher_removals(dir), later = flusher_requeue_due(dir);
        if (later != 0 && (due == 0 || later < due)) due = later;
        if (log_dir_offline(dir) && !f->reported) {
            f->reported = true;
            flusher_fail_all(dir);
        } else if (atomic_exchange(&dir->losses_due, false)) {
            flusher_fail_lost(dir);
        } else if (atomic_load(&f->relief_wanted) && !f->relief_busy) {
            flusher_run_relief(dir);
        } else if (f->requested.first != NULL) {
            flusher_stage(dir);
        } else if (f->ready.first != NULL) {
            struct log *log = flusher_pop(dir);
            if (log != NULL) flusher_run(dir, log);
        } else if (f->lazy_first != NULL && !f->lazy_busy) {
            flusher_run_lazy(dir);
        } else if (f->closing) {
            break;
        } else {
            flusher_wait(dir, due);
        }
    }
    lock_release(&dir->flush_lock);
    return NULL;
}

int flusher_start(struct log_dir *dir) {
    struct flusher *f = &dir->flusher;
    f->requested.last = &f->requested.first;
    f->ready.last = &f->ready.first;
    f->later.last = &f->later.first;
    f->lazy_last = &f->lazy_first;
    int error = 0;
    while (error == 0 && f->thread_count < FLUSHER_THREADS)
        if ((error = stack_begin(&f->threads[f->thread_count], flusher_work, dir)) == 0)
            f->thread_count++;
    assert(f->thread_count <= FLUSHER_THREADS);
    return f->thread_count > 0 ? 0 : error;
}

void flusher_stop(struct log_dir *dir) {
    struct flusher *f = &dir->flusher;
    lock_acquire(&dir->flush_lock);
    f->closing = true;
    lock_condition_broadcast(&dir->changed);
    lock_release(&dir->flush_lock);
    for (int i = 0; i < f->thread_count; i++) pthread_join(f->threads[i], NULL);
    assert(f->requested.first == NULL);
    assert(f->ready.first == NULL);
    assert(f->later.first == NULL);
    assert(f->lazy_first == NULL);
}
