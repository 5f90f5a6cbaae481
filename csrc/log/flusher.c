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

/* Measured on ext4 beside other load, p50 of a group of 4 KiB writes: 6 files one after the other
 * 6-20 ms, with write-back started on all and four threads 0.4 ms; 24 files 48-80 ms and 1.1 ms.
 * syncfs: 0.6-4 ms whatever the number, and for 96 files a tenth of the CPU (0.19 ms
 * against 1.9-4.6), but it also flushes what others write: for large groups, and not while it is
 * slow. */
enum {
    FLUSHER_SYNCFS_MIN = 32,
    FLUSHER_SYNCFS_MS_MAX = 50,
    FLUSHER_SYNCFS_SKIPS = 64,
    FLUSHER_SHORT_PAUSE_MS = 100, /* before what a shortage stopped is tried again */
    FLUSHER_STACK_BYTES = 256 * 1024
};

/* ---- queues; flush_lock held ---- */

static void flusher_push(struct flusher_queue *q, struct log *log) {
    log->flush_next = NULL;
    *q->last = log;
    q->last = &log->flush_next;
}

static struct log *flusher_take_all(struct flusher_queue *q) {
    struct log *first = q->first;
    q->first = NULL;
    q->last = &q->first;
    return first;
}

static void flusher_enqueue(struct log_dir *dir, struct log *log) {
    if (log->flushing) {
        log->flush_after = true; /* The flush under way may have noted its end already. */
    } else if (!log->flush_wanted && !dir->flusher.closing) {
        log->flush_wanted = true;
        log_retain(log);
        flusher_push(&dir->flusher.asked, log);
        pthread_cond_signal(&dir->flusher.more);
    }
}

void flusher_ask(struct log *log) {
    struct log_dir *dir = log->home->dir;
    pthread_mutex_lock(&dir->flush_lock);
    flusher_enqueue(dir, log);
    pthread_mutex_unlock(&dir->flush_lock);
}

void flusher_ask_some_time(struct log *log) {
    struct log_dir *dir = log->home->dir;
    pthread_mutex_lock(&dir->flush_lock);
    if (!log->slow_wanted && !dir->flusher.closing) {
        log->slow_wanted = true;
        log_retain(log);
        log->slow_next = NULL;
        *dir->flusher.slow_last = log;
        dir->flusher.slow_last = &log->slow_next;
        pthread_cond_signal(&dir->flusher.more);
    }
    pthread_mutex_unlock(&dir->flush_lock);
}

void flusher_wake(struct log_dir *dir) {
    pthread_mutex_lock(&dir->flush_lock);
    pthread_cond_broadcast(&dir->flusher.more);
    pthread_mutex_unlock(&dir->flush_lock);
}

/* ---- one log ---- */

/* What was short may be there again in a while; flush_lock held. A log of the slow lane may stand
 * in a queue of the others' already: that is its next try. */
static void flusher_put_off(struct log_dir *dir, struct log *log) {
    struct flusher *f = &dir->flusher;
    if (log->flush_wanted) return;
    if (f->later.first == NULL)
        f->later_ms = log_dir_now_ms(CLOCK_MONOTONIC) + FLUSHER_SHORT_PAUSE_MS;
    log->flush_wanted = true;
    log_retain(log);
    flusher_push(&f->later, log);
}

/* When those are due that were put off, 0: none were. Due ones ask again; flush_lock held. */
static int64_t flusher_take_later(struct log_dir *dir) {
    struct flusher *f = &dir->flusher;
    if (f->later.first == NULL) return 0;
    if (!f->closing && log_dir_now_ms(CLOCK_MONOTONIC) < f->later_ms) return f->later_ms;
    for (struct log *log = flusher_take_all(&f->later), *next; log != NULL; log = next) {
        next = log->flush_next;
        flusher_push(&f->asked, log);
    }
    return 0;
}

/* Flushes a log that is marked as flushing, and drops the queue's reference. flush_lock is let go
 * meanwhile. */
static void flusher_run(struct log_dir *dir, struct log *log) {
    pthread_mutex_unlock(&dir->flush_lock);
    int result = log_dir_offline(dir) ? LOG_E_OFFLINE : log_flush(log);
    pthread_mutex_lock(&dir->flush_lock);
    log->flushing = false;
    if (log_is_short(result) && !dir->flusher.closing)
        flusher_put_off(dir, log);
    else if (log->flush_after)
        flusher_enqueue(dir, log);
    log->flush_after = false;
    pthread_mutex_unlock(&dir->flush_lock);
    log_release(log);
    pthread_mutex_lock(&dir->flush_lock);
}

/* The next ready log, marked as flushing; NULL when that was being flushed by another thread, which
 * goes on with it then. */
static struct log *flusher_pop(struct log_dir *dir) {
    struct log *log = dir->flusher.ready.first;
    dir->flusher.ready.first = log->flush_next;
    if (log->flush_next == NULL) dir->flusher.ready.last = &dir->flusher.ready.first;
    log->flush_wanted = false;
    if (!log->flushing) {
        log->flushing = true;
        return log;
    }
    log->flush_after = true;
    pthread_mutex_unlock(&dir->flush_lock);
    log_release(log);
    pthread_mutex_lock(&dir->flush_lock);
    return NULL;
}

static void flusher_run_slow(struct log_dir *dir) {
    struct log *log = dir->flusher.slow_first;
    dir->flusher.slow_first = log->slow_next;
    if (log->slow_next == NULL) dir->flusher.slow_last = &dir->flusher.slow_first;
    log->slow_wanted = false;
    if (log->flushing) {
        log->flush_after = true;
        pthread_mutex_unlock(&dir->flush_lock);
        log_release(log);
        pthread_mutex_lock(&dir->flush_lock);
        return;
    }
    log->flushing = true;
    dir->flusher.slow_busy = true;
    flusher_run(dir, log);
    dir->flusher.slow_busy = false;
}

/* ---- a group ---- */

static void flusher_start_writeback(struct log *log) {
    struct segment *s = NULL;
    pthread_mutex_lock(&log->view_lock);
    if (log->segment_count > 0) {
        s = log->segments[log->segment_count - 1];
        segment_retain(s);
    }
    pthread_mutex_unlock(&log->view_lock);
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
    bool simple = !log_marked(&log->files_marks) && !log_marked(&log->epochs_marks) &&
                  !atomic_load(&log->deleted) && atomic_load(&log->held_point) == INT64_MAX;
    pthread_mutex_lock(&log->view_lock);
    struct segment *s = log->segment_count > 0 ? log->segments[log->segment_count - 1] : NULL;
    simple = simple && s != NULL && s->base_offset <= atomic_load(&log->flushed) &&
             !atomic_load(&s->aborted_due);
    log->sync_target = simple ? atomic_load(&log->end_offset) : -1;
    log->sync_truncations = log->truncations;
    if (simple) atomic_store(&s->dirty, false);
    pthread_mutex_unlock(&log->view_lock);
}

static void flusher_syncfs(struct log_dir *dir, struct log *first) {
    for (struct log *log = first; log != NULL; log = log->flush_next) flusher_note(log);
    int64_t began_ns = log_dir_now_ns();
    if (log_dir_disk(dir)->syncfs(dir->fd) != 0) log_dir_fail(dir, errno, "syncfs");
    int64_t took_ns = log_dir_now_ns() - began_ns;
    meter_record_shared(&dir->flush_ns, METER_NS_FIRST, (uint64_t)took_ns);
    if (took_ns > FLUSHER_SYNCFS_MS_MAX * 1000000ll)
        atomic_store(&dir->flusher.syncfs_skips, FLUSHER_SYNCFS_SKIPS);
    for (struct log *log = first; log != NULL; log = log->flush_next)
        if (log->sync_target >= 0 && !log_dir_offline(dir))
            log_flush_publish(log, log->sync_target, log->sync_truncations);
}

/* A large group by one sync. Logs that need no more than that are done; the others, and those that
 * another thread flushes just now, become ready. flush_lock is let go meanwhile. */
static void flusher_stage_whole(struct log_dir *dir, struct log *first) {
    struct log *group = NULL, *next;
    for (struct log *log = first; log != NULL; log = next) {
        next = log->flush_next;
        if (log->flushing) {
            flusher_push(&dir->flusher.ready, log);
            continue;
        }
        log->flush_wanted = false;
        log->flushing = true;
        log->flush_next = group;
        group = log;
    }
    pthread_mutex_unlock(&dir->flush_lock);
    flusher_syncfs(dir, group);
    for (struct log *log = group; log != NULL; log = next) {
        bool done = log->sync_target >= 0;
        next = log->flush_next;
        pthread_mutex_lock(&dir->flush_lock);
        log->flushing = false;
        if (!done) {
            assert(!log->flush_wanted);
            log->flush_wanted = true;
            flusher_push(&dir->flusher.ready, log);
        } else if (log->flush_after) {
            flusher_enqueue(dir, log);
        }
        log->flush_after = false;
        pthread_mutex_unlock(&dir->flush_lock);
        if (done) log_release(log);
    }
    pthread_mutex_lock(&dir->flush_lock);
}

/* Makes what was asked for ready; flush_lock held, and let go meanwhile. */
static void flusher_stage(struct log_dir *dir) {
    struct flusher *f = &dir->flusher;
    struct log *first = flusher_take_all(&f->asked), *next;
    uint32_t count = 0, skips = atomic_load(&f->syncfs_skips);
    for (struct log *log = first; log != NULL; log = log->flush_next) count++;
    atomic_fetch_add_explicit(&f->groups, 1, memory_order_relaxed);
    bool whole = count >= FLUSHER_SYNCFS_MIN && dir->syncfs_silent == NULL;
    if (whole && skips == 0 && !f->syncfs_busy && !log_dir_offline(dir)) {
        f->syncfs_busy = true;
        flusher_stage_whole(dir, first);
        f->syncfs_busy = false;
    } else {
        if (skips > 0) atomic_store(&f->syncfs_skips, skips - 1);
        if (count > 1) {
            pthread_mutex_unlock(&dir->flush_lock);
            for (struct log *log = first; log != NULL; log = log->flush_next)
                flusher_start_writeback(log);
            pthread_mutex_lock(&dir->flush_lock);
        }
        for (struct log *log = first; log != NULL; log = next) {
            next = log->flush_next;
            flusher_push(&f->ready, log);
        }
    }
    if (f->ready.first != NULL && f->ready.first->flush_next != NULL)
        pthread_cond_broadcast(&f->more);
}

/* ---- the threads ---- */

static void flusher_fail_all(struct log_dir *dir) {
    pthread_mutex_unlock(&dir->flush_lock);
    pthread_mutex_lock(&dir->logs_lock);
    for (struct log *log = dir->logs; log != NULL; log = log->dir_next)
        log_wait_fail(log, LOG_E_OFFLINE);
    pthread_mutex_unlock(&dir->logs_lock);
    pthread_mutex_lock(&dir->flush_lock);
}

/* The link to one that is due, NULL: none is. A disk that is nearly full wants its room now. */
static struct log_dir_removal **flusher_due(struct log_dir *dir, int64_t now) {
    struct log_dir_removal **due = NULL;
    bool hurry = log_dir_short_of_space(dir);
    for (struct log_dir_removal **at = &dir->removals; *at != NULL; at = &(*at)->next) {
        if (hurry && !(*at)->again && (*at)->due_ms > now) (*at)->due_ms = now;
        if (due == NULL && (*at)->due_ms <= now) due = at;
        if (due != NULL && !hurry) break;
    }
    return due;
}

/* Removals that are due go to the pool; flush_lock held. Returns when the next one is due, 0 for
 * none. */
static int64_t flusher_removals(struct log_dir *dir) {
    int64_t now = dir->removals == NULL ? 0 : log_dir_now_ms(CLOCK_MONOTONIC);
    for (struct log_dir_removal **at; (at = flusher_due(dir, now)) != NULL;) {
        struct log_dir_removal *r = *at;
        *at = r->next;
        dir->jobs++;
        if (iopool_submit(dir->pool, &r->job)) continue;
        dir->jobs--;
        r->next = dir->removals;
        dir->removals = r;
        return now + 100;
    }
    return dir->removals != NULL ? dir->removals->due_ms : 0;
}

static void flusher_wait(struct log_dir *dir, int64_t due_ms) {
    if (due_ms == 0 || due_ms == INT64_MAX) {
        pthread_cond_wait(&dir->flusher.more, &dir->flush_lock);
    } else {
        struct timespec at = {due_ms / 1000, (due_ms % 1000) * 1000000};
        pthread_cond_timedwait(&dir->flusher.more, &dir->flush_lock, &at);
    }
}

static void *flusher_work(void *argument) {
    struct log_dir *dir = argument;
    struct flusher *f = &dir->flusher;
    pthread_mutex_lock(&dir->flush_lock);
    for (;;) {
        int64_t due = flusher_removals(dir), later = flusher_take_later(dir);
        if (later != 0 && (due == 0 || later < due)) due = later;
        if (log_dir_offline(dir) && !f->told) {
            f->told = true;
            flusher_fail_all(dir);
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
    pthread_mutex_unlock(&dir->flush_lock);
    return NULL;
}

int flusher_start(struct log_dir *dir) {
    struct flusher *f = &dir->flusher;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->more, &monotonic);
    pthread_condattr_destroy(&monotonic);
    f->asked.last = &f->asked.first;
    f->ready.last = &f->ready.first;
    f->later.last = &f->later.first;
    f->slow_last = &f->slow_first;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, FLUSHER_STACK_BYTES);
    int error = 0;
    while (error == 0 && f->thread_count < FLUSHER_THREADS)
        if ((error =
                 pthread_create(&f->threads[f->thread_count], &attributes, flusher_work, dir)) == 0)
            f->thread_count++;
    pthread_attr_destroy(&attributes);
    return f->thread_count > 0 ? 0 : error;
}

void flusher_stop(struct log_dir *dir) {
    struct flusher *f = &dir->flusher;
    pthread_mutex_lock(&dir->flush_lock);
    f->closing = true;
    pthread_cond_broadcast(&f->more);
    pthread_mutex_unlock(&dir->flush_lock);
    for (int i = 0; i < f->thread_count; i++) pthread_join(f->threads[i], NULL);
    pthread_cond_destroy(&f->more);
}
