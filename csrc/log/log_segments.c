/* The segments of a log: its references, the list, and the directory on disk. */
#include "log/log_segments.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/assertion.h"
#include "log/log_struct.h"
#include "os/disk.h"
#include "os/lock.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/restart_checkpoint.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

/* The segments of a log: its references, the list, and the directory on disk. */

void log_retain(struct log *log) {
    uint32_t before = atomic_fetch_add_explicit(&log->references, 1, memory_order_relaxed);
    assert(before > 0); /* Use log_try_retain for logs found in a list. */
    (void)before;
}

bool log_try_retain(struct log *log) {
    uint32_t before = atomic_load_explicit(&log->references, memory_order_relaxed);
    while (before > 0)
        if (atomic_compare_exchange_weak_explicit(&log->references, &before, before + 1,
                                                  memory_order_acq_rel, memory_order_relaxed))
            return true;
    return false;
}

void log_path(struct log *log, const char *file, char path[SEGMENT_PATH_BYTES]) {
    lock_acquire(&log->partition->dir->files_lock);
    snprintf(path, SEGMENT_PATH_BYTES, "%s/%s", log->partition->name, file);
    lock_release(&log->partition->dir->files_lock);
}

/* ---- the list ---- */

int32_t log_find_segment(const struct log *log, int64_t offset) {
    uint32_t low = 0, n = log->view.segment_count;
    if (n > 0 && log->view.segments[n - 1]->base_offset <= offset)
        return (int32_t)n - 1; /* most readers are at the tail */
    while (n > 0) {
        uint32_t half = n / 2;
        bool below = log->view.segments[low + half]->base_offset <= offset;
        low = below ? low + half + 1 : low;
        n = below ? n - half - 1 : half;
    }
    assert_slow(low == 0 || log->view.segments[low - 1]->base_offset <= offset);
    assert_slow(low == log->view.segment_count || log->view.segments[low]->base_offset > offset);
    return (int32_t)low - 1;
}

int log_add_segment(struct log *log, struct segment *s) {
    assert(log->view.segment_count == 0 ||
           log->view.segments[log->view.segment_count - 1]->base_offset < s->base_offset);
    log_view_change(log);
    int result = 0;
    if (log->view.segment_count == log->view.segment_capacity) {
        uint32_t capacity = log->view.segment_capacity == 0 ? 1 : log->view.segment_capacity * 2;
        struct segment **segments =
            realloc(log->view.segments, capacity * sizeof(struct segment *));
        if (segments == NULL) {
            result = LOG_E_MEMORY;
        } else {
            log->view.segments = segments;
            log->view.segment_capacity = capacity;
        }
    }
    if (result == 0) log->view.segments[log->view.segment_count++] = s;
    assert(log->view.segment_count <= log->view.segment_capacity);
    log_view_changed(log);
    if (result != 0) segment_release(s);
    return result;
}

/* If a file keeps its name, the next start finds it and its records return. */
static bool log_remove_file(struct log_dir *dir, const char *from, int64_t delay_ms) {
    char to[SEGMENT_PATH_BYTES + 16];
    snprintf(to, sizeof to, "%s.deleted", from);
    int result = log_dir_rename(dir, from, to);
    if (result == 0) {
        log_dir_remove_later(dir, to, delay_ms);
        return true;
    }
    /* There may be no space for the longer name. */
    if (disk_error_is_shortage(-result)) result = log_dir_unlink(dir, from);
    if (result == 0 || result == -ENOENT) return true;
    log_dir_fail(dir, -result, "rename");
    return false;
}

bool log_remove_files(struct log *log, struct segment *s, int64_t delay_ms) {
    static const char *const extensions[] = {"log", "index", "timeindex", "txnindex", "snapshot"};
    struct log_dir *dir = log->partition->dir;
    char from[SEGMENT_PATH_BYTES];
    lock_acquire(&dir->files_lock);
    s->removed = true;
    lock_release(&dir->files_lock);
    for (size_t i = 0; i < sizeof extensions / sizeof *extensions; i++) {
        segment_path(s, extensions[i], from);
        if (!log_remove_file(dir, from, delay_ms)) return false;
    }
    return true;
}

void log_drop_segments(struct log *log, uint32_t from, uint32_t count, int64_t delay_ms) {
    assert(from + count <= log->view.segment_count);
    struct segment **gone = count == 0 ? NULL : malloc(count * sizeof *gone);
    if (gone == NULL) return;
    /* For all segments, even if deleting the first ones ends the shortage. */
    if (log_dir_short_of_space(log->partition->dir)) delay_ms = 0;
    log_view_change(log);
    memcpy(gone, log->view.segments + from, count * sizeof *gone);
    memmove(log->view.segments + from, log->view.segments + from + count,
            (log->view.segment_count - from - count) * sizeof *gone);
    log->view.segment_count -= count;
    free(log->view.hints);
    log->view.hints = NULL;
    int64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes += atomic_load(&gone[i]->bytes);
    int64_t before = atomic_fetch_sub(&log->view.size_bytes, bytes);
    assert(before >= bytes);
    (void)before;
    log_view_changed(log);
    /* In order, and stop at the first file that stays: the next start would treat a gap as data
     * loss. */
    bool removed = true;
    for (uint32_t i = 0; i < count; i++) {
        removed = removed && log_remove_files(log, gone[i], delay_ms);
        segment_release(gone[i]);
    }
    free(gone);
}

int log_lookup_begin(struct log *log, struct log_lookup *l) {
    log_view_lock(log);
    l->count = log->view.segment_count;
    l->start = atomic_load(&log->ends.start_offset);
    l->end = atomic_load(&log->ends.end_offset);
    l->segments = malloc((l->count + 1) * sizeof *l->segments);
    if (l->segments != NULL) {
        for (uint32_t i = 0; i < l->count; i++) {
            l->segments[i] = log->view.segments[i];
            segment_retain(l->segments[i]);
        }
    }
    log_view_unlock(log);
    return l->segments == NULL ? LOG_E_MEMORY : 0;
}

void log_lookup_end(struct log_lookup *l) {
    for (uint32_t i = 0; i < l->count; i++) segment_release(l->segments[i]);
    free(l->segments);
}

/* ---- the directory ---- */

static bool log_offsets_push(struct log_offsets *o, int64_t offset) {
    if (o->count == o->capacity) {
        uint32_t capacity = o->capacity == 0 ? 8 : o->capacity * 2;
        int64_t *at = realloc(o->at, capacity * sizeof *at);
        if (at == NULL) return false;
        o->at = at;
        o->capacity = capacity;
    }
    assert(offset >= 0);
    o->at[o->count++] = offset;
    return true;
}

static int log_offsets_compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

const char *log_file_extension(const char *name, int64_t *offset) {
    int64_t value = 0;
    for (int i = 0; i < 20; i++) {
        if (!isdigit((unsigned char)name[i])) return NULL;
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, name[i] - '0', &value))
            return NULL;
    }
    if (value > LOG_OFFSET_MAX) return NULL;
    *offset = value;
    return name[20] == '.' ? name + 21 : NULL;
}

int log_next_entry(DIR *entries, struct dirent **entry) {
    errno = 0;
    *entry = readdir(entries);
    return *entry == NULL ? -errno : 0;
}

int log_open_directory(struct log *log) {
    char path[SEGMENT_PATH_BYTES];
    log_path(log, ".", path);
    int fd = log_dir_open(log->partition->dir, path, O_RDONLY | O_DIRECTORY);
    return fd < 0 ? -errno : fd;
}

int log_list(struct log *log, int fd, struct log_listing *listing) {
    struct log_dir *dir = log->partition->dir;
    int result = 0;
    memset(listing, 0, sizeof *listing);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (entries == NULL) {
        if (fd < 0) return fd;
        result = -errno;
        close(fd);
        return result;
    }
    struct dirent *entry = NULL;
    while (result == 0 && (result = log_next_entry(entries, &entry)) == 0 && entry != NULL) {
        const char *name = entry->d_name, *dot = strrchr(name, '.');
        int64_t offset;
        const char *extension = strlen(name) > 21 ? log_file_extension(name, &offset) : NULL;
        bool left = dot != NULL && (strcmp(dot, ".deleted") == 0 || strcmp(dot, ".cleaned") == 0 ||
                                    strcmp(dot, ".tmp") == 0);
        if (left && (extension != NULL || strncmp(name, "leader-epoch", 12) == 0 ||
                     strncmp(name, "partition.", 10) == 0))
            log_dir_disk(dir)->unlinkat(fd, name, 0);
        else if (extension != NULL && strcmp(extension, "log") == 0)
            result = log_offsets_push(&listing->segments, offset) ? 0 : -ENOMEM;
        else if (extension != NULL && strcmp(extension, "snapshot") == 0)
            result = log_offsets_push(&listing->snapshots, offset) ? 0 : -ENOMEM;
    }
    closedir(entries);
    if (listing->segments.count > 1)
        qsort(listing->segments.at, listing->segments.count, sizeof(int64_t), log_offsets_compare);
    if (listing->snapshots.count > 1)
        qsort(listing->snapshots.at, listing->snapshots.count, sizeof(int64_t),
              log_offsets_compare);
    return result;
}

void log_list_free(struct log_listing *listing) {
    free(listing->segments.at);
    free(listing->snapshots.at);
}

/* ---- the record for the next process: see restart_checkpoint.h ---- */

void log_restart_checkpoint_record(struct log *log, struct segment *s, const struct stat *st) {
    struct restart_checkpoint *w = log->partition->dir->restart_checkpoint;
    struct stat now;
    if (w == NULL || atomic_load(&log->deleted)) return;
    struct restart_checkpoint_slot *slot = atomic_load(&log->restart_checkpoint);
    if (slot != NULL) restart_checkpoint_clear(slot);
    if (st == NULL && fstat(s->fd, &now) != 0) return;
    if (st == NULL) st = &now;
    /* Extra bytes in the file are from a failed append. */
    if (st->st_size != atomic_load(&s->bytes)) return;
    if (slot == NULL) slot = restart_checkpoint_acquire_slot(w, st);
    if (slot == NULL) return;
    restart_checkpoint_record(slot, st, s->base_offset, st->st_size, log_recovery_point(log));
    atomic_store(&log->restart_checkpoint, slot);
    atomic_store(&s->restart_checkpoint, slot);
}

void log_restart_checkpoint_clear(struct log *log) {
    struct restart_checkpoint_slot *slot = atomic_load(&log->restart_checkpoint);
    if (slot != NULL) restart_checkpoint_clear(slot);
}

void log_restart_checkpoint_flushed(struct log *log) {
    struct restart_checkpoint_slot *slot = atomic_load(&log->restart_checkpoint);
    if (slot == NULL) return;
    atomic_store(&slot->flushed, log_recovery_point(log));
    restart_checkpoint_touched(slot);
}

void log_restart_checkpoint_release(struct log *log) {
    restart_checkpoint_release_slot(log->partition->dir->restart_checkpoint,
                                    atomic_load(&log->restart_checkpoint));
}
