/* Group commit: a few threads for each log directory. One takes all logs that asked for a flush and
 * starts their write-back together; then the threads sync them side by side (large groups: one
 * syncfs) and wake whoever waits. What asks meanwhile forms the next group, and a log that takes
 * long holds one thread, not the group. Flushes that nobody waits for have a lane of their own, one
 * at a time. Threads of its own, not jobs of the io pool: a commit must neither queue behind cold
 * reads nor be refused. The same threads hand removals that are due to the pool, and wake all
 * waiters when the directory fails. */
#include "log/flusher.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "log/log_state.h"
#include "thread/stack.h"

/* Measured on ext4 beside other load, p50 of a group of 4 KiB writes: 6 files one after the other
 * 6-20 ms, with write-back started on all and four threads 0.4 ms; 24 files 48-80 ms and 1.1 ms.
 * syncfs: 0.6-4 ms whatever the number, and for 96 files a tenth of the CPU (0.19 ms
 * against 1.9-4.6), but it also flushes what others write: for large groups, and not while it is
 * slow. */
enum {
    FLUSHER_SYNCFS_MIN = 32,
    FLUSHER_SYNCFS_MS_MAX = 50,
    FLUSHER_SYNCFS_SKIPS = 64,
    FLUSHER_SHORT_PAUSE_MS = 100 /* before what a shortage stopped is tried again */
};

/* ---- queues ---- */

static void flusher_push(struct flusher_queue *q, struct log *log) {
    assert(log->queue.wanted);
    assert(*q->last == NULL);
    log->queue.next = NULL;
    *q->last = log;
    q->last = &log->queue.next;
}

static struct log *flusher_take_all(struct flusher_queue *q) {
    struct log *first = q->first;
    q->first = NULL;
    q->last = &q->first;
    return first;
}

static void flusher_enqueue(struct log_dir *dir, struct log *log) REQUIRES(dir->flush_lock) {
    if (log->queue.flushing) {
        log->queue.again = true; /* The flush under way may have noted its end already. */
    } else if (!log->queue.wanted && !dir->flusher.closing) {
        log->queue.wanted = true;
        log_retain(log);
        flusher_push(&dir->flusher.asked, log);
        lock_condition_signal(&dir->flusher.more);
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
        lock_condition_signal(&dir->flusher.more);
    }
    lock_release(&dir->flush_lock);
}

void flusher_relieve(struct log_dir *dir) {
    if (atomic_exchange(&dir->flusher.relief_wanted, true)) return;
    flusher_wake(dir);
}

void flusher_wake(struct log_dir *dir) {
    lock_acquire(&dir->flush_lock);
    lock_condition_broadcast(&dir->flusher.more);
    lock_release(&dir->flush_lock);
}

/* ---- one log ---- */

/* What was short may be there again in a while. A log of the slow lane may stand
 * in a queue of the others' already: that is its next try. */
static void flusher_put_off(struct log_dir *dir, struct log *log) REQUIRES(dir->flush_lock) {
    struct flusher *f = &dir->flusher;
    if (log->queue.wanted) return;
    if (f->later.first == NULL)
        f->later_ms = log_dir_now_ms(CLOCK_MONOTONIC) + FLUSHER_SHORT_PAUSE_MS;
    log->queue.wanted = true;
    log_retain(log);
    flusher_push(&f->later, log);
}

/* When those are due that were put off, 0: none were. Due ones ask again. */
static int64_t flusher_take_later(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    struct flusher *f = &dir->flusher;
    if (f->later.first == NULL) return 0;
    if (!f->closing && log_dir_now_ms(CLOCK_MONOTONIC) < f->later_ms) return f->later_ms;
    for (struct log *log = flusher_take_all(&f->later), *next; log != NULL; log = next) {
        next = log->queue.next;
        flusher_push(&f->asked, log);
    }
    return 0;
}

/* Flushes a log that is marked as flushing, and drops the queue's reference. flush_lock is let go
 * meanwhile. */
static void flusher_run(struct log_dir *dir, struct log *log) REQUIRES(dir->flush_lock) {
    assert(log->queue.flushing);
    lock_release(&dir->flush_lock);
    int result = log_dir_offline(dir) ? LOG_E_OFFLINE : log_flush(log);
    lock_acquire(&dir->flush_lock);
    log->queue.flushing = false;
    if (log_is_short(result) && !dir->flusher.closing)
        flusher_put_off(dir, log);
    else if (log->queue.again)
        flusher_enqueue(dir, log);
    log->queue.again = false;
    lock_release(&dir->flush_lock);
    log_release(log);
    lock_acquire(&dir->flush_lock);
}

/* The next ready log, marked as flushing; NULL when that was being flushed by another thread, which
 * goes on with it then. */
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

static void flusher_run_slow(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    struct log *log = dir->flusher.slow_first;
    assert(log->queue.slow_wanted);
    assert(!dir->flusher.slow_busy);
    dir->flusher.slow_first = log->queue.slow_next;
    if (log->queue.slow_next == NULL) dir->flusher.slow_last = &dir->flusher.slow_first;
    log->queue.slow_wanted = false;
    if (log->queue.flushing) {
        log->queue.again = true;
        lock_release(&dir->flush_lock);
        log_release(log);
        lock_acquire(&dir->flush_lock);
        return;
    }
    log->queue.flushing = true;
    dir->flusher.slow_busy = true;
    flusher_run(dir, log);
    dir->flusher.slow_busy = false;
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

/* Notes in the log what a sync of the whole file system will cover: -1 when it needs more than its
 * last segment's bytes. */
static void flusher_note(struct log *log) {
    bool simple = !log_marked(&log->flush.files_marks) && !log_marked(&log->flush.epochs_marks) &&
                  !atomic_load(&log->flush.indexes_due) && !atomic_load(&log->deleted) &&
                  atomic_load(&log->flush.held_point) == INT64_MAX;
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
    int64_t began_ns = log_dir_now_ns();
    bool synced = log_dir_syncfs(dir) == 0;
    int64_t took_ns = log_dir_now_ns() - began_ns;
    meter_record_shared(&dir->flush_ns, METER_NS_FIRST, (uint64_t)took_ns);
    if (took_ns > FLUSHER_SYNCFS_MS_MAX * 1000000ll)
        atomic_store(&dir->flusher.syncfs_skips, FLUSHER_SYNCFS_SKIPS);
    for (struct log *log = first; log != NULL; log = log->queue.next)
        if (log->queue.sync_target >= 0 && synced) log_check_linked(log);
    synced = synced && !log_dir_offline(dir);
    for (struct log *log = first; log != NULL; log = log->queue.next)
        if (log->queue.sync_target >= 0 && synced)
            log_flush_publish(log, log->queue.sync_target, log->queue.sync_truncations);
}

/* A large group by one sync. Logs that need no more than that are done; the others, and those that
 * another thread flushes just now, become ready. flush_lock is let go meanwhile. */
static void flusher_stage_whole(struct log_dir *dir, struct log *first) REQUIRES(dir->flush_lock) {
    struct log *group = NULL, *next;
    for (struct log *log = first; log != NULL; log = next) {
        next = log->queue.next;
        if (log->queue.flushing) {
            flusher_push(&dir->flusher.ready, log);
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
            flusher_push(&dir->flusher.ready, log);
        } else if (log->queue.again) {
            flusher_enqueue(dir, log);
        }
        log->queue.again = false;
        lock_release(&dir->flush_lock);
        if (done) log_release(log);
    }
    lock_acquire(&dir->flush_lock);
}

/* Makes what was asked for ready. flush_lock is let go meanwhile. */
static void flusher_stage(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    struct flusher *f = &dir->flusher;
    struct log *first = flusher_take_all(&f->asked), *next;
    uint32_t count = 0, skips = atomic_load(&f->syncfs_skips);
    for (struct log *log = first; log != NULL; log = log->queue.next) count++;
    atomic_fetch_add_explicit(&f->groups, 1, memory_order_relaxed);
    bool whole = count >= FLUSHER_SYNCFS_MIN && dir->syncfs_silent == NULL;
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
            flusher_push(&f->ready, log);
        }
    }
    if (f->ready.first != NULL && f->ready.first->queue.next != NULL)
        lock_condition_broadcast(&f->more);
}

/* By one sync of the file system where that may be: of a log that is new, each file and name would
 * be synced by itself, which does not keep up with those that write to one after the other. */
static void flusher_run_relief(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    struct flusher *f = &dir->flusher;
    assert(!f->relief_busy);
    f->relief_busy = true;
    atomic_store(&f->relief_wanted, false);
    lock_release(&dir->flush_lock);
    log_dir_flush(dir); /* What it could not do is asked for again. */
    segment_evict_spare(dir);
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

/* The link to one that is due, NULL: none is. A disk that is nearly full wants its room now. */
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

/* Removals that are due go to the pool. Returns when the next one is due, 0 for
 * none. */
static int64_t flusher_removals(struct log_dir *dir) REQUIRES(dir->flush_lock) {
    int64_t now = dir->removals == NULL ? 0 : log_dir_now_ms(CLOCK_MONOTONIC);
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
        lock_condition_wait(&dir->flusher.more, &dir->flush_lock);
    } else {
        struct timespec at = {due_ms / 1000, (due_ms % 1000) * 1000000};
        lock_condition_wait_until(&dir->flusher.more, &dir->flush_lock, &at);
    }
}

static void *flusher_work(void *argument) {
    struct log_dir *dir = argument;
    struct flusher *f = &dir->flusher;
    pthread_setname_np(pthread_self(), "flusher");
    lock_acquire(&dir->flush_lock);
    for (;;) {
        int64_t due = flusher_removals(dir), later = flusher_take_later(dir);
        if (later != 0 && (due == 0 || later < due)) due = later;
        if (log_dir_offline(dir) && !f->reported) {
            f->reported = true;
            flusher_fail_all(dir);
        } else if (atomic_load(&f->relief_wanted) && !f->relief_busy) {
            flusher_run_relief(dir);
        } else if (f->asked.first != NULL) {
            flusher_stage(dir);
        } else if (f->ready.first != NULL) {
            struct log *log = flusher_pop(dir);
            if (log != NULL) flusher_run(dir, log);
        } else if (f->slow_first != NULL && !f->slow_busy) {
            flusher_run_slow(dir);
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
    lock_condition_init(&f->more);
    f->asked.last = &f->asked.first;
    f->ready.last = &f->ready.first;
    f->later.last = &f->later.first;
    f->slow_last = &f->slow_first;
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
    lock_condition_broadcast(&f->more);
    lock_release(&dir->flush_lock);
    for (int i = 0; i < f->thread_count; i++) pthread_join(f->threads[i], NULL);
    assert(f->asked.first == NULL);
    assert(f->ready.first == NULL);
    assert(f->later.first == NULL);
    assert(f->slow_first == NULL);
    lock_condition_destroy(&f->more);
}
