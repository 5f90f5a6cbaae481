/* Segments: references, pins, preallocation, and cuts of the file. */
#include "segment/segment.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/disk.h"
#include "os/io_pool.h"
#include "os/lock.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/restart_checkpoint.h"
#include "segment/segment_cache.h"
#include "segment/segment_path.h"
#include "segment/txn_index.h"

/* As measured (16 KiB to 1 MiB appends, ext4): FALLOC_FL_KEEP_SIZE costs the same as mode 0,
 * 0.13-0.27 CPU s/GB against 0.43-1.2 for a growing file, and leaves no zeros after a killed
 * writer. Chunks of 16 and 64 MiB cost the same; small segments get small ones. */
enum {
    SEGMENT_CHUNK_MIN = 256 * 1024,
    SEGMENT_CHUNK_MAX = 16 * 1024 * 1024,
    SEGMENT_SMALL_BYTES = 64 * 1024
};

/* The segment is not shared yet, so no lock is needed. */
struct segment *segment_new(struct partition_dir *partition, int64_t base_offset, int64_t bytes,
                            int64_t largest_timestamp) NO_THREAD_SAFETY_ANALYSIS {
    struct segment *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->references = 1;
    s->pins = -1;
    s->fd = -1;
    s->partition = partition;
    partition_dir_retain(partition);
    s->base_offset = base_offset;
    s->bytes = bytes;
    s->largest_timestamp = largest_timestamp;
    s->largest_timestamp_offset = -1;
    s->first_timestamp = -1;
    s->created_ms = -1;
    s->modified_ms = -1;
    s->index_interval_bytes = 4096;
    s->last_indexed_time = INT64_MIN;
    lock_init(&s->index_lock);
    return s;
}

void segment_retain(struct segment *s) {
    uint32_t before = atomic_fetch_add_explicit(&s->references, 1, memory_order_relaxed);
    assert(before > 0);
    (void)before;
}

/* The last reference is gone, so no lock is needed. */
static void segment_free(struct segment *s) NO_THREAD_SAFETY_ANALYSIS {
    if (s->tail != NULL) {
        free(s->tail->offsets);
        free(s->tail->times);
        free(s->tail);
    }
    txn_index_free(s);
    free(atomic_load(&s->corrupt_ranges));
    lock_destroy(&s->index_lock);
    partition_dir_release(s->partition);
    free(s);
}

bool segment_try_retain(struct segment *s) {
    uint32_t before = atomic_load_explicit(&s->references, memory_order_relaxed);
    while (before > 0)
        if (atomic_compare_exchange_weak_explicit(&s->references, &before, before + 1,
                                                  memory_order_acq_rel, memory_order_relaxed))
            return true;
    return false;
}

void segment_release(struct segment *s) {
    uint32_t before = atomic_fetch_sub_explicit(&s->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before != 1) return;
    lock_acquire(&s->partition->dir->files_lock);
    if (atomic_load(&s->pins) >= 0) {
        assert(atomic_load(&s->pins) == 0);
        atomic_store(&s->pins, -1);
        segment_cache_close(s);
    }
    lock_release(&s->partition->dir->files_lock);
    segment_free(s);
}

int64_t segment_written_ms(struct segment *s) {
    int64_t timestamp = atomic_load(&s->largest_timestamp);
    if (timestamp >= 0) return timestamp;
    int64_t modified_ms = atomic_load(&s->modified_ms);
    if (modified_ms >= 0) return modified_ms;
    char path[SEGMENT_PATH_BYTES];
    struct stat st;
    segment_path(s, "log", path);
    if (fstatat(s->partition->dir->fd, path, &st, 0) != 0) return -1;
    modified_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
    /* Cache it for sealed segments only: a writable file still changes. */
    if (atomic_load(&s->sealed)) atomic_store(&s->modified_ms, modified_ms);
    return modified_ms;
}

void segment_close_idle(struct segment *s) {
    int32_t idle = 0;
    lock_acquire(&s->partition->dir->files_lock);
    if (!atomic_load(&s->preallocating) && atomic_compare_exchange_strong(&s->pins, &idle, -1))
        segment_cache_close(s);
    lock_release(&s->partition->dir->files_lock);
}

static int segment_open_locked(struct segment *s, bool create)
    REQUIRES(s->partition->dir->files_lock) {
    struct log_dir *dir = s->partition->dir;
    char path[SEGMENT_PATH_BYTES];
    assert(s->fd < 0);
    assert(s->clock_next == NULL);
    if (s->removed) return -ENOENT;
    if (dir->open_count >= dir->open_max)
        segment_cache_evict(dir, dir->open_count - dir->open_max + 1, EVICT_SCAN_MAX);
    segment_path_locked(s, "log", path);
    /* The existing file may also belong to a branch: unlink it instead of truncating it. */
    if (create) log_dir_disk(dir)->unlinkat(dir->fd, path, 0);
    int fd = log_dir_open_locked(dir, path, O_RDWR | (create ? O_CREAT | O_TRUNC : 0));
    if (fd < 0) {
        int error = errno;
        /* This code renames and removes files only after it has set one of the two flags. */
        if (error == ENOENT && !s->partition->deleted) partition_dir_mark_lost(s->partition);
        return -error;
    }
    s->fd = fd;
    segment_cache_add(s);
    return 0;
}

int segment_pin_closed(struct segment *s, bool create) {
    struct log_dir *dir = s->partition->dir;
    lock_acquire(&dir->files_lock);
    int result = 0;
    if (atomic_load(&s->pins) >= 0) {
        atomic_fetch_add(
            &s->pins, 1); /* Another thread opened it; eviction needs the lock held here. */
    } else if ((result = segment_open_locked(s, create)) == 0) {
        atomic_store_explicit(&s->pins, 1, memory_order_release);
    }
    lock_release(&dir->files_lock);
    return result;
}

/* ---- space ---- */

static int segment_preallocate_run(struct iojob *job, void *scratch) {
    struct segment *s = (struct segment *)((char *)job - offsetof(struct segment, job));
    struct log_dir *dir = s->partition->dir;
    (void)scratch;
    int64_t from = atomic_load(&s->allocated), to = (int64_t)job->token;
    assert(to > from);
    assert(atomic_load(&s->preallocating));
    assert(atomic_load(&s->pins) > 0);
    int64_t free_bytes, total_bytes;
    log_dir_measure_space(dir, &free_bytes, &total_bytes);
    if (!log_dir_may_allocate(dir, to - from)) {
        /* Keeps the reserve: appends extend the file, and each of them reserves its own space. */
    } else if (log_dir_disk(dir)->fallocate(s->fd, FALLOC_FL_KEEP_SIZE, from, to - from) == 0) {
        atomic_store(&s->allocated, to);
        atomic_fetch_sub(&dir->room_bytes, to - from);
        struct restart_checkpoint_slot *slot = atomic_load(&s->restart_checkpoint);
        if (slot != NULL) restart_checkpoint_touched(slot);
    } else {
        /* No space, or fallocate is not supported: appends extend the file and get ENOSPC
         * themselves. */
        atomic_store(&s->allocated, INT64_MAX);
    }
    /* Either this job sees that the segment was sealed, or segment_trim_sealed sees that the job
     * has ended. */
    lock_acquire(&s->index_lock);
    if (atomic_load(&s->sealed)) segment_trim(s);
    atomic_store(&s->preallocating, false);
    lock_release(&s->index_lock);
    segment_unpin(s);
    segment_release(s);
    log_dir_job_end(dir);
    return 0;
}

/* Returns the end of the space to preallocate now, beginning at *from; 0: there is enough. */
static int64_t segment_space_end(const struct segment *s, int64_t limit, bool whole,
                                 int64_t *from) {
    int64_t bytes = atomic_load_explicit(&s->bytes, memory_order_relaxed);
    int64_t allocated = atomic_load_explicit(&s->allocated, memory_order_relaxed);
    if (bytes < SEGMENT_SMALL_BYTES && !whole) return 0;
    int64_t chunk = bytes < SEGMENT_CHUNK_MIN ? SEGMENT_CHUNK_MIN : bytes;
    if (chunk > SEGMENT_CHUNK_MAX) chunk = SEGMENT_CHUNK_MAX;
    if (allocated < bytes) allocated = bytes;
    /* A batch longer than a segment leaves nothing to allocate. */
    if (allocated >= limit) return 0;
    if (allocated - bytes > chunk / 2) return 0;
    *from = allocated;
    return whole || allocated + chunk > limit ? limit : allocated + chunk;
}

void segment_preallocate(struct segment *s, int64_t limit, bool whole) {
    int64_t from = 0, to = segment_space_end(s, limit, whole, &from);
    if (to == 0 || !log_dir_may_allocate(s->partition->dir, to - from)) return;
    bool idle = false;
    if (!atomic_compare_exchange_strong(&s->preallocating, &idle, true)) return;
    /* The previous job may have ended since the first check. From here on no other job can
     * start. */
    to = segment_space_end(s, limit, whole, &from);
    if (to == 0) {
        atomic_store(&s->preallocating, false);
        return;
    }
    assert(to > from);
    if (atomic_load(&s->allocated) < from) atomic_store(&s->allocated, from);
    s->job = (struct iojob){.run = segment_preallocate_run, .token = (uint64_t)to};
    segment_retain(s);
    int pinned = segment_pin(s, false);
    assert(pinned == 0); /* The caller has it pinned. */
    (void)pinned;
    struct log_dir *dir = s->partition->dir;
    log_dir_job_begin(dir);
    if (iopool_submit(dir->pool, &s->job)) return;
    log_dir_job_end(dir);
    atomic_store(&s->preallocating, false);
    segment_unpin(s);
    segment_release(s);
}

int segment_trim(struct segment *s) {
    if (atomic_load(&s->allocated) == 0) return 0;
    assert(atomic_load(&s->pins) > 0);
    if (log_dir_disk(s->partition->dir)->ftruncate(s->fd, atomic_load(&s->bytes)) != 0)
        return -errno;
    atomic_store(&s->allocated, 0);
    return 0;
}

void segment_trim_sealed(struct segment *s) {
    lock_acquire(&s->index_lock);
    if (!atomic_load(&s->preallocating)) segment_trim(s);
    lock_release(&s->index_lock);
}

bool segment_is_shared(const struct segment *s) {
    struct stat st;
    /* If unknown, do not write: the branch would lose records. */
    return fstat(s->fd, &st) != 0 || st.st_nlink > 1;
}

bool segment_is_unlinked(struct segment *s) {
    struct stat st;
    assert(atomic_load(&s->pins) > 0);
    if (fstat(s->fd, &st) != 0 || st.st_nlink > 0) return false;
    /* Retention and deletion mark the segment before they unlink its file. */
    lock_acquire(&s->partition->dir->files_lock);
    bool unlinked = !s->removed && !s->partition->deleted;
    lock_release(&s->partition->dir->files_lock);
    return unlinked;
}

/* Copies the first `bytes` to another file. Returns 0 or -errno. */
static int segment_copy(const struct disk *disk, int from, int to, int64_t bytes) {
    enum { CHUNK = 1 << 20 };
    uint8_t *chunk = malloc(CHUNK);
    int result = chunk == NULL ? -ENOMEM : 0;
    for (int64_t at = 0; result == 0 && at < bytes;) {
        size_t len = bytes - at < CHUNK ? (size_t)(bytes - at) : CHUNK;
        ssize_t n = disk->pread(from, chunk, len, at);
        if (n > 0) n = disk->pwrite(to, chunk, (size_t)n, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            result = n < 0 ? -errno : -EIO;
        else
            at += n;
    }
    free(chunk);
    return result == 0 && disk->fdatasync(to) != 0 ? -errno : result;
}

/* Replaces the shared file by a separate copy of its first `bytes`. Readers keep the descriptor
 * number. */
static int segment_unshare(struct segment *s, int64_t bytes) {
    struct log_dir *dir = s->partition->dir;
    const struct disk *disk = log_dir_disk(dir);
    char path[SEGMENT_PATH_BYTES], fresh[SEGMENT_PATH_BYTES];
    segment_path(s, "log", path);
    segment_path(s, "log.cleaned", fresh);
    int fd = log_dir_open(dir, fresh, O_RDWR | O_CREAT | O_TRUNC);
    if (fd < 0) return -errno;
    char folder_path[SEGMENT_PATH_BYTES];
    memcpy(folder_path, path, sizeof path);
    *strrchr(folder_path, '/') = 0;
    int folder = log_dir_open(dir, folder_path, O_RDONLY | O_DIRECTORY);
    int result = folder < 0 ? -errno : segment_copy(disk, s->fd, fd, bytes);
    if (result == 0 && disk->renameat(dir->fd, fresh, dir->fd, path) != 0) result = -errno;
    if (result == 0 && dup3(fd, s->fd, O_CLOEXEC) < 0) result = -errno;
    close(fd);
    /* After the rename this name does not exist; before it, the copy uses scarce space. */
    if (result != 0) disk->unlinkat(dir->fd, fresh, 0);
    /* Before anything is appended: after a power loss the name might refer to the shared file
     * again. */
    if (result == 0 && disk->fsync(folder) != 0) {
        log_dir_fail(dir, errno, "fsync");
        result = LOG_E_IO;
    }
    if (folder >= 0) close(folder);
    segment_path(s, "index", path);
    disk->unlinkat(dir->fd, path, 0);
    segment_path(s, "timeindex", path);
    disk->unlinkat(dir->fd, path, 0);
    return result;
}

int segment_cut(struct segment *s, int64_t bytes) {
    const struct disk *disk = log_dir_disk(s->partition->dir);
    assert(bytes >= 0);
    assert(bytes <= atomic_load(&s->bytes));
    assert(atomic_load(&s->pins) > 0);
    if (segment_is_shared(s)) return segment_unshare(s, bytes);
    if (disk->ftruncate(s->fd, bytes) != 0) return -errno;
    if (disk->fdatasync(s->fd) == 0) return 0;
    /* For any error: the cut bytes may be back after a restart. */
    log_dir_fail(s->partition->dir, errno, "fdatasync");
    return LOG_E_IO;
}

int segment_read(struct segment *s, int64_t position, uint8_t *to, size_t len) {
    assert(position >= 0);
    assert(atomic_load(&s->pins) > 0);
    while (len > 0) {
        ssize_t n = log_dir_disk(s->partition->dir)->pread(s->fd, to, len, position);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return log_dir_error(s->partition->dir, errno, "pread");
        if (n == 0) return LOG_E_CORRUPT;
        to += n;
        position += n;
        len -= (size_t)n;
    }
    return 0;
}

/* ---- files that another program removed ---- */

/* Returns the open segments with unflushed bytes, pinned. */
static struct segment **segment_pin_dirty(struct log_dir *dir, uint32_t *count) {
    *count = 0;
    lock_acquire(&dir->files_lock);
    struct segment **found =
        dir->open_count > 0 ? malloc(dir->open_count * sizeof *found) : NULL;
    struct segment *s = dir->clock;
    for (uint32_t i = 0; found != NULL && i < dir->open_count; i++, s = s->clock_next) {
        if (!atomic_load(&s->dirty) || !segment_try_retain(s)) continue;
        atomic_fetch_add(&s->pins, 1);
        found[(*count)++] = s;
    }
    lock_release(&dir->files_lock);
    return found;
}

void segment_check_all_linked(struct log_dir *dir) {
    uint32_t count;
    struct segment **dirty = segment_pin_dirty(dir, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (segment_is_unlinked(dirty[i])) partition_dir_mark_lost(dirty[i]->partition);
        segment_unpin(dirty[i]);
        segment_release(dirty[i]);
    }
    free(dirty);
}
