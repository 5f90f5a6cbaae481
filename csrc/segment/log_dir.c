/* Log directories: failures are permanent, free space is measured at intervals, removals are
 * delayed. */
#include "segment/log_dir.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/disk.h"
#include "os/lock.h"
#include "segment/log_error.h"
#include "segment/restart_checkpoint.h"
#include "segment/segment_cache.h"
#include "segment/segment_path.h"

enum { LOG_REMOVAL_PAUSE_MS = 1000 }; /* before retrying a removal after a shortage */

void log_dir_fail(struct log_dir *dir, int error, const char *call) {
    int none = 0;
    assert(error >= 0); /* an errno, not -errno */
    if (!atomic_compare_exchange_strong(&dir->failure, &none, error == 0 ? EIO : error)) return;
    atomic_store(&dir->failed_call, call);
    restart_checkpoint_void(dir->restart_checkpoint);
    atomic_store(&dir->offline, true);
    /* The flusher wakes every waiter, because the caller may hold a log's locks. */
    log_dir_signal_changed(dir);
}

int log_dir_error(struct log_dir *dir, int error, const char *call) {
    if (!disk_error_is_shortage(error)) {
        log_dir_fail(dir, error, call);
        return LOG_E_IO;
    }
    atomic_store(&dir->short_error, error);
    atomic_fetch_add(&dir->shortages, 1);
    bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    return full ? LOG_E_FULL : LOG_E_MEMORY;
}

bool log_dir_report_error(struct log_dir *dir, int error) {
    return log_dir_error(dir, error, "checkpoint") == LOG_E_IO;
}

bool log_dir_offline(const struct log_dir *dir) {
    return atomic_load_explicit(&dir->offline, memory_order_acquire);
}

uint64_t log_dir_lost_logs(const struct log_dir *dir) { return atomic_load(&dir->lost_logs); }

int log_dir_failure(const struct log_dir *dir, const char **call) {
    int error = atomic_load(&dir->failure);
    if (call != NULL) *call = error != 0 ? atomic_load(&dir->failed_call) : NULL;
    return error;
}

const char *log_dir_syncfs_problem(const struct log_dir *dir) { return dir->syncfs_problem; }

void log_dir_use_restart_checkpoint(struct log_dir *dir, const char *where) {
    assert(dir->restart_checkpoint == NULL);
    lock_acquire(&dir->logs_lock);
    assert(dir->logs == NULL);
    lock_release(&dir->logs_lock);
    dir->restart_checkpoint = restart_checkpoint_new(dir->fd, where);
}

void log_dir_drop_restart_checkpoint(struct log_dir *dir) {
    restart_checkpoint_forget(dir->restart_checkpoint);
}

static bool log_dir_is_present(const struct log_dir *dir) {
    struct stat opened, named;
    /* Other errors do not prove that the directory is gone. */
    if (fstat(dir->fd, &opened) != 0) return true;
    if (opened.st_nlink == 0) return false;
    if (stat(dir->path, &named) != 0) return errno != ENOENT && errno != ENOTDIR;
    return named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

bool log_dir_check_present(struct log_dir *dir) {
    if (log_dir_offline(dir)) return false;
    if (log_dir_is_present(dir)) return true;
    log_dir_fail(dir, ENOENT, LOG_DIR_GONE);
    return false;
}

void log_dir_set_disk(struct log_dir *dir, const struct disk *disk) {
    atomic_store(&dir->disk, disk);
}

void log_dir_set_reserve(struct log_dir *dir, int64_t bytes) {
    atomic_store(&dir->reserve_bytes, bytes);
}

bool log_dir_measure_space(struct log_dir *dir, int64_t *free_bytes, int64_t *total_bytes) {
    struct statvfs space;
    if (fstatvfs(dir->fd, &space) != 0) return false;
    *free_bytes = (int64_t)(space.f_bavail * space.f_frsize);
    *total_bytes = (int64_t)(space.f_blocks * space.f_frsize);
    atomic_store(&dir->free_bytes, *free_bytes);
    int64_t room =
        *free_bytes - atomic_load(&dir->reserve_bytes) - atomic_load(&dir->reserved_bytes);
    atomic_store(&dir->room_bytes, room);
    /* Other programs may use the same disk: measure again long before the space is used up. */
    atomic_store(&dir->measure_below_bytes, room - room / 4);
    bool is_short = room < atomic_load(&dir->refused_bytes);
    if (!is_short) atomic_store(&dir->refused_bytes, 0);
    /* Run delayed removals now. */
    if (is_short && !atomic_exchange(&dir->short_of_space, true)) log_dir_signal_changed(dir);
    if (!is_short) atomic_store(&dir->short_of_space, false);
    return true;
}

bool log_dir_may_allocate(const struct log_dir *dir, int64_t bytes) {
    return atomic_load(&dir->reserve_bytes) == 0 || atomic_load(&dir->room_bytes) >= bytes;
}

bool log_dir_reserve(struct log_dir *dir, int64_t bytes) {
    assert(bytes >= 0);
    int64_t free_bytes, total_bytes;
    /* Do not measure again for requests at least as large as a rejected one. */
    if (log_dir_short_of_space(dir) && bytes >= atomic_load(&dir->refused_bytes)) return false;
    if (atomic_load_explicit(&dir->reserve_bytes, memory_order_relaxed) > 0 &&
        atomic_fetch_sub(&dir->room_bytes, bytes) - bytes <
            atomic_load(&dir->measure_below_bytes)) {
        log_dir_measure_space(dir, &free_bytes, &total_bytes);
        if (atomic_load(&dir->room_bytes) < bytes) {
            int64_t least = atomic_load(&dir->refused_bytes);
            if (least == 0 || bytes < least) atomic_store(&dir->refused_bytes, bytes);
            atomic_store(&dir->short_of_space, true);
            log_dir_signal_changed(dir);
            return false;
        }
        atomic_fetch_sub(&dir->room_bytes, bytes);
    }
    atomic_fetch_add(&dir->reserved_bytes, bytes);
    return true;
}

void log_dir_unreserve(struct log_dir *dir, int64_t bytes) {
    int64_t before = atomic_fetch_sub(&dir->reserved_bytes, bytes);
    assert(before >= bytes); /* log_dir_reserve came first. */
    (void)before;
}

bool log_dir_short_of_space(const struct log_dir *dir) {
    return atomic_load_explicit(&dir->short_of_space, memory_order_relaxed);
}

int log_dir_open_locked(struct log_dir *dir, const char *path, int flags) {
    int fd = log_dir_disk(dir)->openat(dir->fd, path, flags | O_CLOEXEC, 0644);
    if (fd >= 0 || (errno != EMFILE && errno != ENFILE) || dir->open_count == 0) return fd;
    assert(dir->clock != NULL);
    /* Other parts of the process use the descriptors: close unused segments. */
    segment_cache_evict(dir, EVICT_COUNT_UNDER_PRESSURE, EVICT_SCAN_MAX_UNDER_PRESSURE);
    return log_dir_disk(dir)->openat(dir->fd, path, flags | O_CLOEXEC, 0644);
}

int log_dir_open(struct log_dir *dir, const char *path, int flags) {
    int fd = log_dir_disk(dir)->openat(dir->fd, path, flags | O_CLOEXEC, 0644);
    if (fd >= 0 || (errno != EMFILE && errno != ENFILE)) return fd;
    lock_acquire(&dir->files_lock);
    fd = log_dir_open_locked(dir, path, flags);
    int error = errno;
    lock_release(&dir->files_lock);
    errno = error;
    return fd;
}

int log_dir_rename(struct log_dir *dir, const char *from, const char *to) {
    return log_dir_disk(dir)->renameat(dir->fd, from, dir->fd, to) == 0 ? 0 : -errno;
}

int log_dir_unlink(struct log_dir *dir, const char *path) {
    return log_dir_disk(dir)->unlinkat(dir->fd, path, 0) == 0 ? 0 : -errno;
}

int log_dir_sync(struct log_dir *dir, const char *name) {
    int fd = log_dir_open(dir, name == NULL ? "." : name, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return -errno;
    int result = log_dir_disk(dir)->fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    /* For any error: the names may be lost. */
    if (result != 0) log_dir_fail(dir, -result, "fsync");
    return result == 0 ? 0 : LOG_E_IO;
}

int log_dir_syncfs(struct log_dir *dir) {
    log_dir_check_present(dir);
    lock_acquire(&dir->syncfs_lock);
    int result = log_dir_failure(dir, NULL) != 0 ? LOG_E_OFFLINE : 0;
    if (result == 0 && log_dir_disk(dir)->syncfs(dir->fd) != 0) {
        log_dir_fail(dir, errno, "syncfs");
        result = LOG_E_IO;
    }
    lock_release(&dir->syncfs_lock);
    return result;
}

int log_dir_read_file(struct log_dir *dir, const char *path, size_t bytes_max, uint8_t **out,
                      size_t *len) {
    int fd = log_dir_open(dir, path, O_RDONLY);
    if (fd < 0) return -errno;
    struct stat st;
    int result = fstat(fd, &st) != 0 ? -errno : (size_t)st.st_size > bytes_max ? LOG_E_CORRUPT : 0;
    uint8_t *bytes = result == 0 ? malloc((size_t)st.st_size + 1) : NULL;
    if (result == 0 && bytes == NULL) result = -ENOMEM;
    size_t have = 0;
    while (result == 0 && have < (size_t)st.st_size) {
        ssize_t n =
            log_dir_disk(dir)->pread(fd, bytes + have, (size_t)st.st_size - have, (off_t)have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            result = n < 0 ? -errno : -EIO;
        else
            have += (size_t)n;
    }
    close(fd);
    if (result != 0) {
        free(bytes);
        return result;
    }
    assert(have <= bytes_max);
    *out = bytes;
    *len = have;
    return 0;
}

int log_dir_write_file(struct log_dir *dir, const char *path, const void *bytes, size_t len,
                       bool sync) {
    char temporary[SEGMENT_PATH_BYTES + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    int fd = log_dir_open(dir, temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0) return -errno;
    ssize_t n = log_dir_disk(dir)->pwrite(fd, bytes, len, 0);
    int result = n == (ssize_t)len ? 0 : n < 0 ? -errno : -ENOSPC;
    if (result == 0 && sync && log_dir_disk(dir)->fsync(fd) != 0) result = -errno;
    close(fd);
    if (result == 0) result = log_dir_rename(dir, temporary, path);
    if (result != 0) log_dir_unlink(dir, temporary);
    return result;
}

/* ---- removals ---- */

/* Returns 0 or -errno. */
static int log_dir_unlink_tree(struct log_dir *dir, const char *path) {
    int fd = log_dir_open(dir, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    if (entries == NULL) {
        int error = errno;
        if (fd >= 0) close(fd);
        return -error;
    }
    while ((entry = readdir(entries)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            log_dir_disk(dir)->unlinkat(fd, entry->d_name, 0);
    closedir(entries);
    return log_dir_disk(dir)->unlinkat(dir->fd, path, AT_REMOVEDIR) == 0 ? 0 : -errno;
}

void log_dir_job_begin(struct log_dir *dir) {
    lock_acquire(&dir->flush_lock);
    dir->jobs++;
    lock_release(&dir->flush_lock);
}

void log_dir_job_end(struct log_dir *dir) {
    lock_acquire(&dir->flush_lock);
    assert(dir->jobs > 0);
    dir->jobs--;
    lock_condition_broadcast(&dir->jobs_done);
    lock_release(&dir->flush_lock);
}

static void log_dir_remove(struct log_dir *dir, const char *path, int64_t delay_ms, bool again);

static int log_dir_removal_run(struct iojob *job, void *scratch) {
    struct log_dir_removal *r =
        (struct log_dir_removal *)((char *)job - offsetof(struct log_dir_removal, job));
    struct log_dir *dir = r->dir;
    (void)scratch;
    int result = log_dir_unlink(dir, r->path);
    if (result == -EISDIR) result = log_dir_unlink_tree(dir, r->path);
    lock_acquire(&dir->flush_lock);
    bool closing = dir->flusher.closing;
    lock_release(&dir->flush_lock);
    /* Retry: removing it may end the shortage. */
    if (log_error_is_shortage(result) && !closing)
        log_dir_remove(dir, r->path, LOG_REMOVAL_PAUSE_MS, true);
    int64_t free_bytes, total_bytes;
    if (log_dir_short_of_space(dir)) log_dir_measure_space(dir, &free_bytes, &total_bytes);
    free(r);
    log_dir_job_end(dir);
    return 0;
}

static void log_dir_remove(struct log_dir *dir, const char *path, int64_t delay_ms, bool again) {
    size_t bytes = strlen(path) + 1;
    struct log_dir_removal *r = calloc(1, sizeof *r + bytes);
    if (r == NULL) return; /* the next start removes it, by its suffix */
    memcpy(r->path, path, bytes);
    r->dir = dir;
    r->again = again;
    r->job.run = log_dir_removal_run;
    int64_t now = clock_read_ms(CLOCK_MONOTONIC);
    r->due_ms = __builtin_add_overflow(now, delay_ms, &r->due_ms) ? INT64_MAX : now + delay_ms;
    lock_acquire(&dir->flush_lock);
    assert(r->due_ms >= now || delay_ms < 0);
    struct log_dir_removal **at = &dir->removals;
    while (*at != NULL && (*at)->due_ms <= r->due_ms) at = &(*at)->next;
    r->next = *at;
    *at = r;
    lock_condition_broadcast(&dir->changed);
    lock_release(&dir->flush_lock);
}

void log_dir_remove_later(struct log_dir *dir, const char *path, int64_t delay_ms) {
    log_dir_remove(dir, path, delay_ms, false);
}

void log_dir_stop_recovery(struct log_dir *dir) { atomic_store(&dir->recovery_stopped, true); }

void log_dir_signal_changed(struct log_dir *dir) {
    lock_acquire(&dir->flush_lock);
    lock_condition_broadcast(&dir->changed);
    lock_release(&dir->flush_lock);
}
