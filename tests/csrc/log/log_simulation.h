/* Linked with PLAYED of programs.py.
 *
 * A disk whose calls fail as the scene requires, batches in any shape, and a directory whose
 * flusher does nothing by itself: for programs that test a log call by call. */
#ifndef PYLOG_LOG_SIMULATION_H
#define PYLOG_LOG_SIMULATION_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "log/flush_queue.h"
#include "log/log_flush.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "log_manager/flusher.h"
#include "log_manager/log_manager.h"
#include "log_scenes.h"
#include "os/clock.h"
#include "segment/cold_reads.h"
#include "segment/file_range.h"
#include "segment/index_search.h"
#include "segment/leader_epochs.h"
#include "segment/log_dir.h"
#include "segment/producer_state.h"
#include "segment/restart_checkpoint.h"
#include "segment/segment.h"
#include "segment/segment_cache.h"
#include "segment/segment_index.h"
#include "segment/segment_lookup.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"
#include "segment/txn_index.h"

enum played_call {
    OPENAT,
    PREAD,
    PWRITE,
    FTRUNCATE,
    FALLOCATE,
    FSYNC,
    FDATASYNC,
    SYNCFS,
    RENAMEAT,
    UNLINKAT,
    MKDIRAT,
    PLAYED_CALLS
};

/* After `skip` calls on a name that contains `of` (NULL: any), the next `times` calls fail with
 * `error`, or, if that is 0, read or write at most `most` bytes. */
struct played_fault {
    int error, skip, times;
    const char *of;
    size_t most;
};

static struct {
    struct played_fault faults[PLAYED_CALLS];
    uint32_t counts[PLAYED_CALLS];
    pthread_t by; /* thread whose calls are intercepted and noted */
    bool noting;
    size_t noted;
    char notes[1 << 14]; /* "<call> <name>\n" of each call, the last 20 characters of the name */
} played;

static inline const char *played_name(int fd, char name[512]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, 511);
    name[n < 0 ? 0 : n] = 0;
    return name;
}

/* Return true if this call fails, with errno set. *most: the bytes it may read or write. */
static inline bool played_fails(enum played_call call, const char *name, size_t *most) {
    struct played_fault *f = &played.faults[call];
    if (!pthread_equal(pthread_self(), played.by)) return false;
    played.counts[call]++;
    static const char *const names[] = {"open",   "read",   "write",  "cut",    "allocate", "fsync",
                                        "sync",   "syncfs", "rename", "unlink", "mkdir"};
    size_t len = strlen(name), room = sizeof played.notes - played.noted;
    if (played.noting && room > 64)
        played.noted += (size_t)snprintf(played.notes + played.noted, room, "%s %s\n", names[call],
                                         name + (len > 20 ? len - 20 : 0));
    if (f->times == 0 || (f->of != NULL && strstr(name, f->of) == NULL)) return false;
    if (f->skip > 0) {
        f->skip--;
        return false;
    }
    f->times--;
    if (f->error == 0) {
        *most = f->most;
        return false;
    }
    errno = f->error;
    return true;
}

static inline bool played_fails_at(enum played_call call, int fd, size_t *most) {
    char name[512];
    size_t any;
    return played_fails(call, played_name(fd, name), most == NULL ? &any : most);
}

static inline bool played_fails_of(enum played_call call, const char *name) {
    size_t any;
    return played_fails(call, name, &any);
}

static inline int played_openat(int dir, const char *path, int flags, mode_t mode) {
    return played_fails_of(OPENAT, path) ? -1 : openat(dir, path, flags, mode);
}
static inline ssize_t played_pread(int fd, void *bytes, size_t len, off_t at) {
    size_t most = len;
    if (played_fails_at(PREAD, fd, &most)) return -1;
    return pread(fd, bytes, most < len ? most : len, at);
}
static inline ssize_t played_pwrite(int fd, const void *bytes, size_t len, off_t at) {
    size_t most = len;
    if (played_fails_at(PWRITE, fd, &most)) return -1;
    return pwrite(fd, bytes, most < len ? most : len, at);
}
static inline int played_ftruncate(int fd, off_t len) {
    return played_fails_at(FTRUNCATE, fd, NULL) ? -1 : ftruncate(fd, len);
}
static inline int played_fallocate(int fd, int mode, off_t at, off_t len) {
    return played_fails_at(FALLOCATE, fd, NULL) ? -1 : fallocate(fd, mode, at, len);
}
static inline int played_fsync(int fd) {
    return played_fails_at(FSYNC, fd, NULL) ? -1 : 0;
}
static inline int played_fdatasync(int fd) {
    return played_fails_at(FDATASYNC, fd, NULL) ? -1 : 0;
}
static inline int played_syncfs(int fd) {
    return played_fails_at(SYNCFS, fd, NULL) ? -1 : 0;
}
static inline int played_renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return played_fails_of(RENAMEAT, from) ? -1 : renameat(from_dir, from, to_dir, to);
}
static inline int played_unlinkat(int dir, const char *path, int flags) {
    return played_fails_of(UNLINKAT, path) ? -1 : unlinkat(dir, path, flags);
}
static inline int played_mkdirat(int dir, const char *path, mode_t mode) {
    return played_fails_of(MKDIRAT, path) ? -1 : mkdirat(dir, path, mode);
}

static inline void played_fail(enum played_call call, const char *of, int error, int times) {
    played.faults[call] = (struct played_fault){.error = error, .of = of, .times = times};
}
static inline void played_shorten(enum played_call call, const char *of, size_t most) {
    played.faults[call] = (struct played_fault){.of = of, .times = 1, .most = most};
}
static inline void played_heal(void) { memset(played.faults, 0, sizeof played.faults); }

/* Note the calls from here on. */
static inline void played_note(void) {
    played.noting = true;
    played.noted = 0;
    played.notes[0] = 0;
}

static inline struct log_dir *played_directory(const char *path, struct iopool *pool) {
    static const struct disk disk = {played_openat,    played_pread,     played_pwrite,
                                     played_ftruncate, played_fallocate, played_fsync,
                                     played_fdatasync, played_syncfs,    played_renameat,
                                     played_unlinkat,  played_mkdirat};
    int error;
    struct log_dir *dir = log_dir_new(path, pool, &error);
    CHECK(dir != NULL);
    played.by = pthread_self();
    log_dir_set_disk(dir, &disk);
    return dir;
}

/* Stop the flusher: requests stay in its queue. */
static inline void played_still(struct log_dir *dir) {
    struct flusher *f = &dir->flusher;
    lock_acquire(&dir->flush_lock);
    f->closing = true;
    lock_condition_broadcast(&dir->changed);
    lock_release(&dir->flush_lock);
    for (; f->thread_count > 0; f->thread_count--)
        pthread_join(f->threads[f->thread_count - 1], NULL);
    f->closing = false;
}

/* Return how many logs requested a flush since the last call. */
static inline int played_asked(struct log_dir *dir) {
    struct flusher *f = &dir->flusher;
    int count = 0;
    for (struct log *log; (log = f->requested.first) != NULL; count++) {
        CHECK(log->queue.wanted);
        f->requested.first = log->queue.next;
        if (f->requested.first == NULL) f->requested.last = &f->requested.first;
        log->queue.wanted = false;
        log_release(log);
    }
    return count;
}

/* Also count requests without a waiter. */
static inline int played_asked_some_time(struct log_dir *dir) {
    struct flusher *f = &dir->flusher;
    int count = 0;
    for (struct log *log; (log = f->lazy_first) != NULL; count++) {
        CHECK(log->queue.lazy_wanted);
        f->lazy_first = log->queue.lazy_next;
        if (f->lazy_first == NULL) f->lazy_last = &f->lazy_first;
        log->queue.lazy_wanted = false;
        log_release(log);
    }
    return count;
}

static inline int played_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 200; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* ---- memory and disk space ---- */

/* After `starved_after` allocations of this thread the next `starved` ones fail; pages are in
 * the cache except `evicted`; `free_blocks` of `total_blocks` are free, unless 0. */
static struct {
    int starved_after, starved;
    bool evicted;
    uint64_t free_blocks, total_blocks;
} short_of;

static inline bool played_starves(void) {
    if (short_of.starved == 0 || !pthread_equal(pthread_self(), played.by)) return false;
    if (short_of.starved_after > 0) {
        short_of.starved_after--;
        return false;
    }
    short_of.starved--;
    return true;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
int __real_mincore(void *at, size_t bytes, unsigned char *resident);
int __wrap_mincore(void *at, size_t bytes, unsigned char *resident);
int __real_fstatvfs(int fd, struct statvfs *out);
int __wrap_fstatvfs(int fd, struct statvfs *out);

void *__wrap_malloc(size_t bytes) { return played_starves() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) {
    return played_starves() ? NULL : __real_calloc(count, bytes);
}
void *__wrap_realloc(void *p, size_t bytes) {
    return played_starves() ? NULL : __real_realloc(p, bytes);
}
char *__wrap_strdup(const char *text) { return played_starves() ? NULL : __real_strdup(text); }
int __wrap_mincore(void *at, size_t bytes, unsigned char *resident) {
    int result = __real_mincore(at, bytes, resident);
    memset(resident, !short_of.evicted, (bytes + 4095) / 4096);
    if (short_of.evicted) resident[0] = 1;
    return result;
}
int __wrap_fstatvfs(int fd, struct statvfs *out) {
    int result = __real_fstatvfs(fd, out);
    if (short_of.total_blocks == 0) return result;
    out->f_bavail = short_of.free_blocks;
    out->f_bfree = short_of.free_blocks + 5; /* for the superuser only */
    out->f_blocks = short_of.total_blocks;
    out->f_frsize = 1;
    out->f_bsize = 7;
    return result;
}

/* ---- batches ---- */

struct played_batch {
    int64_t base, time, producer; /* producer: its id + 1; 0: no producer */
    int32_t records, sequence, leader_epoch;
    int16_t epoch, attributes;
    uint32_t value_bytes;
    bool empty; /* no records, as after compaction */
};

/* Make a batch of `records` records, at least 1, with only one of them real. Return its size. */
static inline size_t played_make(uint8_t *p, struct played_batch b) {
    uint8_t record[1 << 13];
    size_t n = 0, value = b.empty ? 0 : b.value_bytes;
    uint64_t body = 6 + value + (value > 63);
    CHECK(body < sizeof record - 8);
    n += put_uvarint(record + n, zigzag_encode((int64_t)body));
    record[n++] = 0;
    record[n++] = 0;
    record[n++] = 0;
    record[n++] = 1; /* no key */
    n += put_uvarint(record + n, zigzag_encode((int64_t)value));
    memset(record + n, 'v', value);
    n += value;
    record[n++] = 0;
    size_t len = scene_batch(p, record, b.empty ? 0 : n, b.time, b.producer - 1, b.sequence);
    put_i64(p, b.base);
    put_i32(p + BATCH_LEADER_EPOCH_AT, b.leader_epoch);
    put_i16(p + BATCH_ATTRIBUTES_AT, b.attributes);
    put_i32(p + BATCH_LAST_OFFSET_DELTA_AT, b.records > 0 ? b.records - 1 : 0);
    put_i32(p + BATCH_RECORD_COUNT_AT, b.empty ? 0 : b.records > 0 ? b.records : 1);
    if (b.producer > 0) put_i16(p + BATCH_PRODUCER_EPOCH_AT, b.epoch);
    scene_seal(p, len);
    return len;
}

/* ---- files ---- */

static inline int64_t played_size(struct log_dir *dir, const char *path) {
    struct stat st;
    return fstatat(dir->fd, path, &st, 0) == 0 ? st.st_size : -1;
}

static inline void played_write(struct log_dir *dir, const char *path, const void *bytes,
                                size_t len) {
    int fd = openat(dir->fd, path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
    close(fd);
}

static inline ssize_t played_read(struct log_dir *dir, const char *path, void *bytes, size_t len) {
    int fd = openat(dir->fd, path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, bytes, len);
    if (fd >= 0) close(fd);
    return n;
}

/* Remove a log's folder with its contents. */
static inline void played_remove(const char *where, const char *name) {
    char path[600];
    CHECK((size_t)snprintf(path, sizeof path, "%s/%s", where, name) < sizeof path);
    DIR *entries = opendir(path);
    struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL)
        unlinkat(dirfd(entries), entry->d_name, 0);
    if (entries != NULL) closedir(entries);
    CHECK(rmdir(path) == 0 || errno == ENOENT);
}

/* Change bytes of a file in place, even if it is open. */
static inline void played_change(struct log_dir *dir, const char *path, off_t at,
                                 const void *bytes, size_t len) {
    int fd = openat(dir->fd, path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, bytes, len, at) == (ssize_t)len);
    close(fd);
}

#endif
