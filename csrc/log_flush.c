/* Group commit: one thread for each log directory takes all logs that want a flush, starts their write-back together, syncs them
 * with a few helpers (large groups: with one syncfs) and wakes whoever waits. What asks meanwhile forms the next group. A thread of its own, not a job of the io
 * pool: a commit must neither queue behind cold reads nor be refused. It also hands removals that are due to the pool.
 * A failed flush is never tried again: the pages that it was about may be gone. The directory is offline from then on. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "log_state.h"

/* Measured on ext4 beside other load, p50 of a group of 4 KiB writes: 6 files one after the other 6-20 ms, with write-back started
 * on all and four threads 0.4 ms; 24 files 48-80 ms and 1.1 ms. syncfs: 0.6-4 ms whatever the number, and for 96 files a tenth
 * of the CPU (0.19 ms against 1.9-4.6), but it also flushes what others write: for large groups, and not while it is slow. */
enum { LOG_FLUSH_SEGMENTS = 64, LOG_FLUSH_SYNCFS_MIN = 32, LOG_FLUSH_SYNCFS_MS_MAX = 50, LOG_FLUSH_SYNCFS_SKIPS = 64 };

void log_flush_ask(struct log *log) {
    struct log_dir *dir = log->home->dir;
    pthread_mutex_lock(&dir->flush_lock);
    atomic_store(&log->flush_again, true);
    if (!log->flush_wanted && !dir->closing) {
        log->flush_wanted = true;
        log->flush_next = NULL;
        log_retain(log);
        *dir->flush_last = log;
        dir->flush_last = &log->flush_next;
        pthread_cond_signal(&dir->flush_more);
    }
    pthread_mutex_unlock(&dir->flush_lock);
}

/* The segments with bytes past the flushed offset, oldest first, and the end that their sync will cover. */
struct log_flush_set { struct segment *segments[LOG_FLUSH_SEGMENTS]; uint32_t count; int64_t target; uint64_t truncations; };

static void log_flush_collect(struct log *log, struct log_flush_set *set) {
    pthread_mutex_lock(&log->view_lock);
    int64_t flushed = atomic_load(&log->flushed);
    set->count = 0;
    set->target = atomic_load(&log->end_offset);
    set->truncations = log->truncations;
    uint32_t first = log->segment_count;
    while (first > 0 && (first == log->segment_count || log->segments[first]->base_offset > flushed
                         || !atomic_load(&log->segments[first - 1]->settled)))
        first--;
    for (uint32_t i = first; i < log->segment_count; i++) {
        bool last = i + 1 == log->segment_count;
        int64_t end = last ? set->target : log->segments[i + 1]->base_offset;
        /* One that was flushed to its end before it was sealed still wants its trim. */
        if ((last || atomic_load(&log->segments[i]->settled)) && end <= flushed) continue;
        if (set->count == LOG_FLUSH_SEGMENTS) {
            set->target = log->segments[i]->base_offset;
            break;
        }
        segment_retain(log->segments[i]);
        set->segments[set->count++] = log->segments[i];
    }
    pthread_mutex_unlock(&log->view_lock);
}

static int log_flush_index(struct segment *s, const char *extension) {
    char path[SEGMENT_PATH_BYTES];
    segment_path(s, extension, path);
    int fd = openat(s->home->dir->fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 0 : -errno;
    int result = fdatasync(fd) == 0 ? 0 : -errno;
    close(fd);
    return result;
}

static int log_flush_segment(struct segment *s) {
    bool sealed = atomic_load(&s->sealed);
    int result = segment_pin(s, false);
    if (result != 0) return s->removed ? 0 : result;
    /* Cleared first: an append that comes now sets it again. */
    atomic_store(&s->dirty, false);
    if (sealed) segment_trim_sealed(s);
    if (fdatasync(s->fd) != 0) {
        result = -errno;
        log_dir_fail(s->home->dir, errno, "fdatasync");
    }
    atomic_fetch_add_explicit(&s->home->dir->flush_files, 1, memory_order_relaxed);
    segment_unpin(s);
    /* Indexes of sealed segments are trusted below the recovery point: they go to disk before it passes. */
    if (result == 0 && sealed) result = log_flush_index(s, "index");
    if (result == 0 && sealed) result = log_flush_index(s, "timeindex");
    if (result == 0 && sealed) atomic_store(&s->settled, true);
    return result;
}

/* Names before contents count: a file whose directory entry is lost was never written. */
static int log_flush_names(struct log *log) {
    if (!log_marked(&log->files_marks)) return 0;
    uint32_t made = atomic_load(&log->files_marks.made);
    struct log_dir *dir = log->home->dir;
    char name[SEGMENT_PATH_BYTES];
    log_path(log, ".", name);
    int result = log_dir_sync(dir, name);
    if (result == 0) result = log_dir_sync(dir, NULL);
    if (result == 0) atomic_store(&log->files_marks.synced, made);
    return result;
}

void log_flush_publish(struct log *log, int64_t target, uint64_t truncations) {
    pthread_mutex_lock(&log->view_lock);
    bool moved = log->truncations == truncations && target > atomic_load(&log->flushed);
    if (moved) atomic_store(&log->flushed, target);
    pthread_mutex_unlock(&log->view_lock);
    atomic_store(&log->last_flush_ms, log_dir_now_ms(CLOCK_REALTIME));
    if (moved) log_wait_wake(log, LOG_WAIT_FLUSHED, target);
}

int log_flush(struct log *log) {
    struct log_dir *dir = log->home->dir;
    struct log_flush_set set;
    uint32_t made;
    int result = 0;
    pthread_mutex_lock(&log->flush_lock);
    do {
        if (log_dir_offline(dir)) result = -EIO;
        if (atomic_load(&log->deleted)) break;
        log_flush_collect(log, &set);
        for (uint32_t i = 0; i < set.count; i++) {
            if (result == 0) result = log_flush_segment(set.segments[i]);
            segment_release(set.segments[i]);
        }
        if (result == 0 && log_marked(&log->epochs_marks)) result = log_write_epochs(log, true, &made);
        if (result == 0) result = log_flush_names(log);
        if (atomic_load(&log->deleted)) break;
        if (result == 0) log_flush_publish(log, set.target, set.truncations);
    } while (result == 0 && set.count == LOG_FLUSH_SEGMENTS);
    bool deleted = atomic_load(&log->deleted);
    pthread_mutex_unlock(&log->flush_lock);
    /* Unflushed bytes may have kept more files open than the limit allows. */
    pthread_mutex_lock(&dir->files_lock);
    if (dir->open_count > dir->open_max) segment_evict(dir, dir->open_count - dir->open_max);
    pthread_mutex_unlock(&dir->files_lock);
    if (deleted) return LOG_E_DELETED;
    if (result == 0) return 0;
    bool before = log_dir_offline(dir);
    log_dir_fail(dir, -result, "flush");
    return before ? LOG_E_OFFLINE : LOG_E_IO;
}

/* ---- the thread ------------------------------------------------------------------------------------------------------ */

static void log_flush_start_writeback(struct log *log) {
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

/* Takes logs off the group until it is empty; flush_lock held on entry and return. */
static void log_flush_drain(struct log_dir *dir) {
    struct log *log;
    while ((log = dir->group) != NULL) {
        dir->group = log->flush_next;
        log->flush_wanted = false; /* From here on an asker waits for the next group. */
        dir->group_busy++;
        pthread_mutex_unlock(&dir->flush_lock);
        if (!log_dir_offline(dir)) log_flush(log);
        log_release(log);
        pthread_mutex_lock(&dir->flush_lock);
        dir->group_busy--;
    }
    if (dir->group_busy == 0) pthread_cond_signal(&dir->group_done);
}

static void *log_flush_help(void *argument) {
    struct log_dir *dir = argument;
    pthread_mutex_lock(&dir->flush_lock);
    for (;;) {
        while (dir->group == NULL && !dir->helpers_closing) pthread_cond_wait(&dir->group_more, &dir->flush_lock);
        if (dir->group == NULL) break;
        log_flush_drain(dir);
    }
    pthread_mutex_unlock(&dir->flush_lock);
    return NULL;
}

/* The helpers start with the first group that has work for them. */
static void log_flush_call_helpers(struct log_dir *dir) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    while (dir->helper_count < LOG_FLUSH_HELPERS
           && pthread_create(&dir->helpers[dir->helper_count], &attributes, log_flush_help, dir) == 0)
        dir->helper_count++;
    pthread_attr_destroy(&attributes);
    pthread_cond_broadcast(&dir->group_more);
}

/* Notes in the log what a sync of the whole file system will cover: -1 when it needs more than its last segment's bytes. */
static void log_flush_note(struct log *log) {
    bool simple = !log_marked(&log->files_marks) && !log_marked(&log->epochs_marks) && !atomic_load(&log->deleted);
    pthread_mutex_lock(&log->view_lock);
    struct segment *s = log->segment_count > 0 ? log->segments[log->segment_count - 1] : NULL;
    simple = simple && s != NULL && s->base_offset <= atomic_load(&log->flushed);
    log->sync_target = simple ? atomic_load(&log->end_offset) : -1;
    log->sync_truncations = log->truncations;
    if (simple) atomic_store(&s->dirty, false);
    pthread_mutex_unlock(&log->view_lock);
}

/* One syncfs for a large group; logs that need no more are done then, the others stay in the group. */
static struct log *log_flush_whole(struct log_dir *dir, struct log *first) {
    struct log *rest = NULL, **end = &rest, *next;
    for (struct log *log = first; log != NULL; log = log->flush_next) {
        /* Askers from here on must come to the next group, yet may not relink a log of this one: see the end. */
        atomic_store(&log->flush_again, false);
        log_flush_note(log);
    }
    int64_t began = log_dir_now_ms(CLOCK_MONOTONIC);
    if (syncfs(dir->fd) != 0) log_dir_fail(dir, errno, "syncfs");
    dir->syncfs_skips = log_dir_now_ms(CLOCK_MONOTONIC) - began > LOG_FLUSH_SYNCFS_MS_MAX ? LOG_FLUSH_SYNCFS_SKIPS : 0;
    for (struct log *log = first; log != NULL; log = next) {
        next = log->flush_next;
        bool done = log->sync_target >= 0 && !log_dir_offline(dir);
        if (done) log_flush_publish(log, log->sync_target, log->sync_truncations);
        pthread_mutex_lock(&dir->flush_lock);
        bool again = done && atomic_load(&log->flush_again);
        if (done) log->flush_wanted = false;
        pthread_mutex_unlock(&dir->flush_lock);
        if (again) log_flush_ask(log);
        if (done) {
            log_release(log);
        } else {
            *end = log;
            end = &log->flush_next;
        }
    }
    *end = NULL;
    return rest;
}

static void log_flush_group(struct log_dir *dir, struct log *first) {
    uint32_t count = 0;
    for (struct log *log = first; log != NULL; log = log->flush_next) count++;
    if (count >= LOG_FLUSH_SYNCFS_MIN && dir->syncfs_skips == 0 && !log_dir_offline(dir))
        first = log_flush_whole(dir, first);
    else if (dir->syncfs_skips > 0)
        dir->syncfs_skips--;
    if (count > 1)
        for (struct log *log = first; log != NULL; log = log->flush_next) log_flush_start_writeback(log);
    pthread_mutex_lock(&dir->flush_lock);
    dir->group = first;
    if (first != NULL && first->flush_next != NULL) log_flush_call_helpers(dir);
    log_flush_drain(dir);
    while (dir->group_busy > 0) pthread_cond_wait(&dir->group_done, &dir->flush_lock);
    pthread_mutex_unlock(&dir->flush_lock);
    atomic_fetch_add_explicit(&dir->flush_groups, 1, memory_order_relaxed);
}

static void log_flush_fail_all(struct log_dir *dir) {
    pthread_mutex_lock(&dir->logs_lock);
    for (struct log *log = dir->logs; log != NULL; log = log->dir_next) log_wait_fail(log, LOG_E_OFFLINE);
    pthread_mutex_unlock(&dir->logs_lock);
}

/* Removals that are due go to the pool; flush_lock held. Returns when the next one is due, 0 for none. */
static int64_t log_flush_removals(struct log_dir *dir) {
    int64_t now = log_dir_now_ms(CLOCK_MONOTONIC);
    while (dir->removals != NULL && dir->removals->due_ms <= now) {
        struct log_dir_removal *r = dir->removals;
        dir->removals = r->next;
        dir->jobs++;
        if (iopool_submit(dir->pool, &r->job)) continue;
        dir->jobs--;
        r->next = dir->removals;
        dir->removals = r;
        return now + 100;
    }
    return dir->removals != NULL ? dir->removals->due_ms : 0;
}

void *log_flush_thread(void *argument) {
    struct log_dir *dir = argument;
    bool told = false;
    pthread_mutex_lock(&dir->flush_lock);
    for (;;) {
        int64_t due = log_flush_removals(dir);
        bool failed = log_dir_offline(dir) && !told;
        struct log *first = dir->flush_first;
        if (first == NULL && !failed) {
            if (dir->closing) break;
            if (due == 0) {
                pthread_cond_wait(&dir->flush_more, &dir->flush_lock);
            } else {
                struct timespec at = {due / 1000, (due % 1000) * 1000000};
                pthread_cond_timedwait(&dir->flush_more, &dir->flush_lock, &at);
            }
            continue;
        }
        dir->flush_first = NULL;
        dir->flush_last = &dir->flush_first;
        pthread_mutex_unlock(&dir->flush_lock);
        if (first != NULL) log_flush_group(dir, first);
        if (log_dir_offline(dir) && !told) {
            log_flush_fail_all(dir);
            told = true;
        }
        pthread_mutex_lock(&dir->flush_lock);
    }
    dir->helpers_closing = true;
    pthread_cond_broadcast(&dir->group_more);
    pthread_mutex_unlock(&dir->flush_lock);
    for (int i = 0; i < dir->helper_count; i++) pthread_join(dir->helpers[i], NULL);
    return NULL;
}
