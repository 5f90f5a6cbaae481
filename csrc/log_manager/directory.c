/* Log directories: assembled from their files, flusher and cold reader. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log/log_struct.h"
#include "log_manager/flusher.h"
#include "log_manager/log_manager.h"
#include "os/disk.h"
#include "os/lock.h"
#include "os/meter.h"
#include "segment/cold_reads.h"
#include "segment/damage_report.h"
#include "segment/log_dir.h"
#include "segment/restart_checkpoint.h"
#include "segment/segment.h"
#include "segment/segment_cache.h"

/* Removes directories whose deletion was interrupted by a shutdown. */
static void log_dir_sweep(struct log_dir *dir) {
    int fd = dup(dir->fd);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    if (entries == NULL) {
        if (fd >= 0) close(fd);
        return;
    }
    rewinddir(entries);
    while ((entry = readdir(entries)) != NULL) {
        size_t n = strlen(entry->d_name), suffix = LOG_DELETE_SUFFIX_BYTES;
        const char *end = entry->d_name + n - suffix;
        if (n > suffix && *end == '.' && strspn(end + 1, "0123456789abcdef") == 32 &&
            strcmp(end + 33, "-delete") == 0)
            log_dir_remove_later(dir, entry->d_name, 0);
    }
    closedir(entries);
}

static int log_dir_prepare(struct log_dir *dir, const char *path) {
    if (mkdir(path, 0755) != 0 && errno != EEXIST) return errno;
    dir->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0) return errno;
    if (faccessat(dir->fd, ".", W_OK | X_OK, AT_EACCESS) != 0) return errno;
    dir->syncfs_problem = disk_syncfs_problem(dir->fd);
    dir->path = strdup(path);
    return dir->path == NULL ? ENOMEM : 0;
}

struct log_dir *log_dir_new(const char *path, struct iopool *pool, int *error) {
    struct log_dir *dir = calloc(1, sizeof *dir);
    *error = ENOMEM;
    if (dir == NULL) return NULL;
    dir->fd = -1;
    dir->pool = pool;
    atomic_init(&dir->disk, disk_of(DISK_SYSTEM));
    lock_init(&dir->logs_lock);
    lock_init(&dir->files_lock);
    lock_init(&dir->flush_lock);
    lock_init(&dir->syncfs_lock);
    lock_init(&dir->damages_lock);
    lock_condition_init(&dir->jobs_done);
    lock_condition_init(&dir->changed);
    cold_init(&dir->cold);
    log_dir_set_open_files(dir, LOG_DIR_OPEN_MAX);
    *error = log_dir_prepare(dir, path);
    if (*error == 0) *error = flusher_start(dir);
    if (*error != 0) {
        log_dir_free(dir);
        return NULL;
    }
    log_dir_sweep(dir);
    return dir;
}

void log_dir_set_open_files(struct log_dir *dir, uint32_t open_max) {
    lock_acquire(&dir->files_lock);
    dir->open_max = open_max < 1 ? 1 : open_max;
    if (dir->open_count > dir->open_max)
        segment_cache_evict(dir, dir->open_count - dir->open_max, UINT32_MAX);
    segment_cache_update_limits(dir);
    lock_release(&dir->files_lock);
}

bool log_dir_upkeep(struct log_dir *dir, int64_t *free_bytes, int64_t *total_bytes) {
    cold_sweep(&dir->cold, false);
    if (log_dir_check_present(dir)) segment_check_all_linked(dir);
    return log_dir_measure_space(dir, free_bytes, total_bytes);
}

void log_dir_read_stats(struct log_dir *dir, struct log_dir_stats *out) {
    lock_acquire(&dir->files_lock);
    out->open_files = dir->open_count;
    lock_release(&dir->files_lock);
    out->flush_groups = atomic_load(&dir->flusher.groups);
    out->flush_files = atomic_load(&dir->flusher.files);
    out->rolls = meter_read(&dir->rolls);
    out->segments_deleted = meter_read(&dir->segments_deleted);
    out->shortages = meter_read(&dir->shortages);
    out->short_error = (uint64_t)atomic_load(&dir->short_error);
    out->recovered_bytes = meter_read(&dir->recovered_bytes);
    out->trusted_bytes = meter_read(&dir->trusted_bytes);
    out->damages_cut = meter_read(&dir->damage_counts[LOG_DAMAGE_CUT]) +
                       meter_read(&dir->damage_counts[LOG_DAMAGE_DROPPED]);
    out->damages_kept = meter_read(&dir->damage_counts[LOG_DAMAGE_KEPT]);
    out->bytes_cut = meter_read(&dir->damage_bytes[LOG_DAMAGE_CUT]) +
                     meter_read(&dir->damage_bytes[LOG_DAMAGE_DROPPED]);
}

void log_dir_flush_times(struct log_dir *dir, struct meter_stats *out) {
    meter_collect(&dir->flush_ns, out);
}

void log_dir_free(struct log_dir *dir) {
    if (dir == NULL) return;
    if (dir->flusher.thread_count > 0) flusher_stop(dir);
    lock_acquire(&dir->logs_lock);
    assert(dir->logs == NULL && "logs are released before their directory");
    lock_release(&dir->logs_lock);
    assert(dir->flusher.thread_count == 0 || dir->flusher.closing);
    cold_clear(&dir->cold);
    lock_acquire(&dir->flush_lock);
    while (dir->jobs > 0) lock_condition_wait(&dir->jobs_done, &dir->flush_lock);
    while (dir->removals != NULL) {
        struct log_dir_removal *r = dir->removals;
        dir->removals = r->next;
        dir->jobs++;
        lock_release(&dir->flush_lock);
        r->job.run(&r->job, NULL); /* already deleted for all users */
        lock_acquire(&dir->flush_lock);
    }
    lock_release(&dir->flush_lock);
    restart_checkpoint_free(dir->restart_checkpoint);
    if (dir->fd >= 0) close(dir->fd);
    lock_condition_destroy(&dir->jobs_done);
    lock_condition_destroy(&dir->changed);
    lock_acquire(&dir->damages_lock);
    free(dir->damages);
    lock_release(&dir->damages_lock);
    lock_destroy(&dir->logs_lock);
    lock_destroy(&dir->files_lock);
    lock_destroy(&dir->flush_lock);
    lock_destroy(&dir->syncfs_lock);
    lock_destroy(&dir->damages_lock);
    free(dir->path);
    free(dir);
}
