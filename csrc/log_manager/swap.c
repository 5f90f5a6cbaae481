/* Replaces several old segments by a new one. A crash at any step leaves the old or the new.
 *
 * The new file is on disk as `.log.cleaned`. (1) It becomes `.log.swap`, and the directory is
 * synced: from here on the new one counts. (2) The files of the old segments become `.deleted`.
 * (3) The new one becomes `.log`, and its indexes are written. (4) The list of segments changes.
 * A start that finds a `.log.swap` removes the segments that begin within its offsets and
 * continues at (3); it then rebuilds the indexes from the batches. */
#include "log_manager/swap.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/batch.h"
#include "log/active_segment.h"
#include "log/log_failure.h"
#include "log/log_flush.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "log_manager/log_manager.h"
#include "os/lock.h"
#include "segment/file_range.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_index.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"

/* Returns the position of the sources in the log's list if they are adjacent there, otherwise
 * -1. */
static int32_t index_of_sources(const struct log *log, struct segment **sources, uint32_t count)
    REQUIRES_SHARED(log->view.access) {
    for (uint32_t i = 0; i + count < log->view.segment_count; i++)
        if (log->view.segments[i] == sources[0])
            return memcmp(log->view.segments + i, sources, count * sizeof *sources) == 0
                       ? (int32_t)i
                       : -1;
    return -1;
}

static int rename_segment(struct segment *s, const char *from_extension, const char *to_extension) {
    char from[SEGMENT_PATH_BYTES], to[SEGMENT_PATH_BYTES];
    segment_path(s, from_extension, from);
    segment_path(s, to_extension, to);
    return log_dir_rename(s->partition->dir, from, to);
}

static void list_fresh(struct log *log, uint32_t index, uint32_t count, struct segment *fresh)
    LOG_APPENDING(log) {
    log_view_change(log);
    assert(index + count < log->view.segment_count); /* The writable one stays. */
    assert(fresh->base_offset == log->view.segments[index]->base_offset);
    int64_t bytes = atomic_load(&fresh->bytes);
    for (uint32_t i = 0; i < count; i++)
        bytes -= atomic_load(&log->view.segments[index + i]->bytes);
    for (uint32_t i = 0; i < count; i++) segment_release(log->view.segments[index + i]);
    log->view.segments[index] = fresh;
    memmove(log->view.segments + index + 1, log->view.segments + index + count,
            (log->view.segment_count - index - count) * sizeof *log->view.segments);
    log->view.segment_count -= count - 1;
    assert(log->view.segments[index + 1]->base_offset > fresh->base_offset);
    free(log->view.hints);
    log->view.hints = NULL;
    int64_t before = atomic_fetch_add(&log->view.size_bytes, bytes);
    assert(before + bytes >= 0);
    (void)before;
    log_view_changed(log);
}

static int swap_locked(struct log *log, struct segment **sources, uint32_t count,
                       struct segment *fresh) LOG_APPENDING(log) {
    int64_t delay = log->view.config.file_delete_delay_ms;
    int32_t index = index_of_sources(log, sources, count);
    assert(count > 0);
    assert(atomic_load(&fresh->sealed));
    if (index < 0) return LOG_E_WOULD_BLOCK;
    if (atomic_load(&fresh->bytes) == 0) {
        log_drop_segments(log, (uint32_t)index, count, delay);
        return 0;
    }
    char name[SEGMENT_PATH_BYTES];
    int result = rename_segment(fresh, "log.cleaned", "log.swap");
    log_path(log, ".", name);
    if (result == 0) result = log_dir_sync(log->partition->dir, name);
    if (result != 0) {
        /* Otherwise a start would replace the old files, which stay in use until then. */
        rename_segment(fresh, "log.swap", "log.cleaned");
        return log_storage_error(log, result, "rename");
    }
    /* If this fails, the next start continues from the .swap. */
    for (uint32_t i = 0; i < count; i++)
        if (!log_remove_files(log, sources[i], delay)) return LOG_E_IO;
    result = rename_segment(fresh, "log.swap", "log");
    if (result != 0) {
        /* The old files have lost their names: only a start can complete the swap. */
        if (result == -ENOENT)
            log_mark_files_lost(log);
        else
            log_dir_fail(log->partition->dir, -result, "rename");
        return LOG_E_IO;
    }
    lock_acquire(&log->partition->dir->files_lock);
    fresh->removed = false;
    lock_release(&log->partition->dir->files_lock);
    /* If the files are missing, the first search rebuilds them. */
    if (segment_index_write(fresh, true) == 0) {
        result = log_flush_index(fresh, "index");
        if (result == 0) result = log_flush_index(fresh, "timeindex");
        if (result != 0) {
            /* The next flush retries it. */
            log_storage_error(log, result, "open");
            atomic_store(&fresh->flush_done, false);
        }
    }
    list_fresh(log, (uint32_t)index, count, fresh);
    log_mark(&log->flush.files_marks);
    /* The log has the new segment, whether or not its name is synced: if this fails, the
     * directory goes offline. */
    if ((result = log_dir_sync(log->partition->dir, name)) != 0)
        log_storage_error(log, result, "fsync");
    return 0;
}

int log_swap(struct log *log, struct segment **sources, uint32_t count, struct segment *fresh,
             uint64_t truncations) {
    int result = 0;
    lock_acquire(&log->flush.lock);
    log_lock_quiet(log);
    if (atomic_load(&log->deleted))
        result = LOG_E_DELETED;
    else if (log_offline(log))
        result = LOG_E_OFFLINE;
    else if (log->view.truncations != truncations)
        result = LOG_E_WOULD_BLOCK;
    else
        result = swap_locked(log, sources, count, fresh);
    log_unlock_quiet(log);
    lock_release(&log->flush.lock);
    return result;
}

/* ---- after a crash ---- */

static bool ends_with(const char *name, const char *end) {
    size_t len = strlen(name), n = strlen(end);
    return len >= n && strcmp(name + len - n, end) == 0;
}

/* A log's directory, before its files are used. */
struct swap_dir {
    int fd;
    const struct disk *disk;
};

/* Verifies the CRC of the batch at `position`. Returns 1, 0, or -errno. */
static int check_batch(const struct swap_dir *in, int fd, int64_t position,
                       const struct batch_header *h) {
    size_t len = batch_bytes(h);
    uint8_t *bytes = malloc(len);
    if (bytes == NULL) return -ENOMEM;
    ssize_t n = in->disk->pread(fd, bytes, len, position);
    int result = n < 0 ? -errno : n == (ssize_t)len && batch_check_crc(bytes, h) == 0;
    free(bytes);
    return result;
}

/* Returns the offset after the file's last batch, or -errno. A file with damage replaces only
 * the segment with its name (compaction/pass.h), so its offsets are ignored. */
static int64_t next_offset_of(const struct swap_dir *in, int fd, int64_t base) {
    uint8_t bytes[BATCH_HEADER_BYTES];
    struct batch_header h = {0};
    struct stat st;
    int64_t next = base, position = 0, last = -1;
    if (fstat(fd, &st) != 0) return -errno;
    while (position < st.st_size) {
        ssize_t n = in->disk->pread(fd, bytes, sizeof bytes, position);
        if (n < 0) return -errno;
        if (n < (ssize_t)sizeof bytes || batch_parse(bytes, sizeof bytes, &h) != 0 ||
            !segment_batch_fits(base, &h, next) ||
            (int64_t)batch_bytes(&h) > st.st_size - position)
            return base;
        next = batch_last_offset(&h) + 1;
        last = position;
        position += (int64_t)batch_bytes(&h);
    }
    int good = last < 0 ? 1 : check_batch(in, fd, last, &h);
    return good < 0 ? good : good == 1 ? next : base;
}

/* Calls `act` for each file of a segment; it may change the directory. */
typedef int on_file(const struct swap_dir *in, const char *name, int64_t base, void *context);
static int each_file(const struct swap_dir *in, on_file *act, void *context) {
    int copy = in->disk->openat(in->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), result = 0;
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    if (entries == NULL) {
        result = -errno;
        if (copy >= 0) close(copy);
        return result;
    }
    struct dirent *entry = NULL;
    int64_t base;
    while (result >= 0) {
        int listed = log_next_entry(entries, &entry);
        if (listed != 0) result = listed;
        if (entry == NULL) break;
        if (log_file_extension(entry->d_name, &base) != NULL)
            result = act(in, entry->d_name, base, context);
    }
    closedir(entries);
    return result;
}

static int remove_file(const struct swap_dir *in, const char *name) {
    return in->disk->unlinkat(in->fd, name, 0) == 0 || errno == ENOENT ? 0 : -errno;
}

struct swap_range {
    int64_t base, next;
};

/* Removes the replaced segments, and the indexes with the new segment's name, which belong to
 * the old file. */
static int remove_replaced(const struct swap_dir *in, const char *name, int64_t base,
                           void *context) {
    const struct swap_range *range = context;
    static const char *const kinds[] = {".log", ".index", ".timeindex", ".txnindex"};
    int result = 0;
    if (base < range->base || (base >= range->next && base != range->base)) return 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && result == 0; i++)
        if (strcmp(name + 20, kinds[i]) == 0) result = remove_file(in, name);
    return result;
}

static int finish_swap(const struct swap_dir *in, const char *name, int64_t base, void *context) {
    bool *any = context;
    char to[32];
    if (!ends_with(name, ".swap")) return 0;
    *any = true;
    /* Kafka renames indexes in the same way; remove them, so that they are rebuilt. */
    if (strcmp(name + 20, ".log.swap") != 0) return remove_file(in, name);
    int file = in->disk->openat(in->fd, name, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) return -errno;
    struct swap_range range = {base, next_offset_of(in, file, base)};
    close(file);
    if (range.next < 0) return (int)range.next;
    int result = each_file(in, remove_replaced, &range);
    if (result < 0) return result;
    snprintf(to, sizeof to, "%020lld.log", (long long)base);
    return in->disk->renameat(in->fd, name, in->fd, to) == 0 ? 0 : -errno;
}

int log_swap_finish(int fd, const struct disk *disk) {
    struct swap_dir in = {fd, disk};
    bool any = false;
    int result = each_file(&in, finish_swap, &any);
    if (result == 0 && any && disk->fsync(fd) != 0) result = -errno;
    return result;
}
