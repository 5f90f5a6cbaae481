/* The indexes of one segment: entries are collected in the tail and appended to the files in
 * groups; the files are mapped for searches. Everything is under the segment's index_lock. Callers
 * pin the segment, so that maps stay. */
#include "segment/segment_index.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/batch.h"
#include "os/disk.h"
#include "os/lock.h"
#include "os/mapped.h"
#include "segment/index_search.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

enum {
    SEGMENT_TAIL_FIRST = 16,
    SEGMENT_TAIL_MAX = 512,
    SEGMENT_MAP_AHEAD = 1 << 20,
    SEGMENT_PROBE_BYTES = 64 << 10
};

static const char *segment_index_extension(bool times) { return times ? "timeindex" : "index"; }
static size_t segment_index_entry(bool times) {
    return times ? INDEX_TIME_BYTES : INDEX_OFFSET_BYTES;
}

/* Opens a file whose contents will be replaced; the writer cuts any old bytes after them. A file
 * that a branch shares, and may have mapped, only loses its name here. Other files are reused,
 * because creating names and inodes by the thousand is the most expensive part of a recovery. */
static int segment_index_open_empty(struct log_dir *dir, const char *path, int flags)
    REQUIRES(dir->files_lock) {
    struct stat st;
    int fd = log_dir_open_locked(dir, path, flags & ~(O_TRUNC | O_CREAT));
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_nlink == 1) return fd;
    /* Keep the existing file until another can be created in its place. */
    if (fd < 0 && disk_error_is_shortage(errno)) return fd;
    if (fd >= 0) close(fd);
    log_dir_disk(dir)->unlinkat(dir->fd, path, 0);
    return log_dir_open_locked(dir, path, flags);
}

static int segment_index_open(struct segment *s, bool times, int flags) {
    char path[SEGMENT_PATH_BYTES];
    struct log_dir *dir = s->partition->dir;
    /* The names of a removed segment may already belong to another; the lock prevents that
     * during the open. */
    lock_acquire(&dir->files_lock);
    segment_path_locked(s, segment_index_extension(times), path);
    int fd = s->removed        ? -1
             : flags & O_TRUNC ? segment_index_open_empty(dir, path, flags)
                               : log_dir_open_locked(dir, path, flags);
    int result = s->removed ? -ENOENT : fd < 0 ? -errno : fd;
    lock_release(&dir->files_lock);
    return result;
}

/* Maps at least `count` entries of the file. The writable segment's map reaches past the end of
 * the file: only entries below the written count are read. */
static int segment_index_map(struct segment *s, bool times, uint32_t count)
    REQUIRES(s->index_lock) {
    const uint8_t **map = &s->maps.at[times];
    size_t *mapped = &s->maps.bytes[times], wanted = count * segment_index_entry(times);
    if (*map != NULL) munmap((void *)*map, *mapped);
    *map = NULL;
    *mapped = 0;
    int fd = segment_index_open(s, times, O_RDONLY);
    if (fd < 0) return fd;
    struct stat st;
    int result = fstat(fd, &st) != 0 ? -errno : (size_t)st.st_size < wanted ? -ENODATA : 0;
    if (result == 0) {
        size_t bytes = s->tail != NULL ? wanted + SEGMENT_MAP_AHEAD : wanted;
        bytes = (bytes + SEGMENT_PAGE_BYTES - 1) & ~(size_t)(SEGMENT_PAGE_BYTES - 1);
        void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) {
            result = -errno;
        } else {
            *map = at;
            *mapped = bytes;
        }
    }
    close(fd);
    return result;
}

static int segment_index_count_file(struct segment *s, bool times, uint32_t *count) {
    int fd = segment_index_open(s, times, O_RDONLY);
    if (fd < 0) return fd;
    struct stat st;
    int result = fstat(fd, &st) != 0 ? -errno : 0;
    close(fd);
    if (result == 0 && (size_t)st.st_size % segment_index_entry(times) != 0) result = -ENODATA;
    if (result == 0) *count = (uint32_t)((size_t)st.st_size / segment_index_entry(times));
    return result;
}

/* ---- unreadable files ---- */

/* Returns 0, or the errno of a disk that cannot read the file. A truncated file is readable. */
static int segment_index_probe(struct segment *s, bool times) {
    uint8_t piece[SEGMENT_PROBE_BYTES];
    const struct disk *disk = log_dir_disk(s->partition->dir);
    int fd = segment_index_open(s, times, O_RDONLY);
    if (fd < 0) return fd == -EIO ? EIO : 0;
    ssize_t n;
    off_t at = 0;
    do {
        n = disk->pread(fd, piece, sizeof piece, at);
        if (n > 0) at += n;
    } while (n > 0 || (n < 0 && errno == EINTR));
    int error = n < 0 ? errno : 0;
    close(fd);
    return error;
}

/* Call after a page of a map could not be read, or contained invalid entries. Returns 1 if the
 * files must be rebuilt, LOG_E_IO if the disk failed. */
static int segment_index_mark_lost(struct segment *s) REQUIRES(s->index_lock) {
    mapped_read_unmap(&s->maps);
    int error = segment_index_probe(s, false);
    if (error == 0) error = segment_index_probe(s, true);
    if (error != 0) log_dir_fail(s->partition->dir, error, "read of an index");
    s->index_lost = true;
    return error != 0 ? LOG_E_IO : 1;
}

int segment_index_read_end(struct segment *s) {
    return mapped_read_end(&s->maps) ? segment_index_mark_lost(s) : 0;
}

/* ---- loading ---- */

int segment_index_load(struct segment *s) {
    int result = 0;
    if (s->index_lost) return 1;
    if (!s->counted) {
        result = segment_index_count_file(s, false, &s->offset_count);
        if (result == 0) result = segment_index_count_file(s, true, &s->time_count);
        /* After a shortage, the file still exists. */
        if (result != 0) return disk_error_is_shortage(-result) ? result : 1;
    }
    if (s->offset_count * (size_t)INDEX_OFFSET_BYTES > s->maps.bytes[0])
        result = segment_index_map(s, false, s->offset_count);
    if (result == 0 && s->time_count * (size_t)INDEX_TIME_BYTES > s->maps.bytes[1])
        result = segment_index_map(s, true, s->time_count);
    if (result != 0) return result == -ENODATA || result == -ENOENT ? 1 : result;
    if (!s->counted) {
        mapped_read_begin(&s->maps);
        bool plausible = index_offsets_plausible(segment_index_offsets(s), s->offset_count,
                                                 atomic_load(&s->bytes)) &&
                         index_times_plausible(segment_index_times(s), s->time_count);
        if ((result = segment_index_read_end(s)) != 0 || !plausible)
            return result != 0 ? result : 1;
    }
    s->counted = true;
    return 0;
}

void segment_index_reset_locked(struct segment *s) {
    mapped_read_unmap(&s->maps);
    s->offset_count = s->time_count = 0;
    s->counted = true;
    s->index_lost = false;
    s->since_entry_bytes = 0;
    s->last_indexed_time = INT64_MIN;
    if (s->tail != NULL) s->tail->offset_count = s->tail->time_count = 0;
}

void segment_index_reset(struct segment *s) {
    lock_acquire(&s->index_lock);
    segment_index_reset_locked(s);
    lock_release(&s->index_lock);
    atomic_store(&s->largest_timestamp, -1);
    atomic_store(&s->largest_timestamp_offset, -1);
    s->first_timestamp = -1;
}

static bool segment_index_room(uint8_t **entries, uint32_t *room, uint32_t count, size_t entry) {
    if (count < *room) return true;
    uint32_t more = *room == 0 ? SEGMENT_TAIL_FIRST : *room * 2;
    uint8_t *p = realloc(*entries, more * entry);
    if (p == NULL) return false;
    *entries = p;
    *room = more;
    return true;
}

static int segment_index_write_file(struct segment *s, bool times, bool create)
    REQUIRES(s->index_lock) {
    struct segment_tail *t = s->tail;
    uint32_t fresh = t == NULL ? 0
                     : times   ? t->time_count
                               : t->offset_count,
             *count = times ? &s->time_count : &s->offset_count;
    /* Do not append entries after lost ones: they stay in memory until all are rebuilt. */
    if (s->index_lost || (fresh == 0 && !create)) return 0;
    size_t entry = segment_index_entry(times), bytes = fresh * entry;
    int fd = segment_index_open(s, times, O_WRONLY | O_CREAT | (*count == 0 ? O_TRUNC : 0));
    if (fd < 0) return fd;
    const struct disk *disk = log_dir_disk(s->partition->dir);
    struct stat st;
    off_t at = (off_t)(*count * entry);
    if (at > 0 && fstat(fd, &st) == 0 && st.st_size < at) {
        /* another program cut the file */
        s->index_lost = true;
        close(fd);
        return 0;
    }
    ssize_t n =
        bytes == 0 ? 0 : disk->pwrite(fd, times ? t->times : t->offsets, bytes, at);
    int result = n == (ssize_t)bytes ? 0 : n < 0 ? -errno : -ENOSPC;
    /* An older file may be longer, but its contents are obsolete. */
    off_t whole = result == 0 ? (off_t)bytes : 0;
    if (*count == 0 && (fstat(fd, &st) != 0 || st.st_size != whole) &&
        disk->ftruncate(fd, whole) != 0 && result == 0)
        result = -errno;
    close(fd);
    if (result != 0) return result;
    assert(*count <= UINT32_MAX - fresh);
    *count += fresh;
    if (t != NULL && times) t->time_count = 0;
    if (t != NULL && !times) t->offset_count = 0;
    return 0;
}

static void segment_index_add_time(struct segment *s, struct segment_largest largest)
    REQUIRES(s->index_lock) {
    struct segment_tail *t = s->tail;
    if (largest.timestamp < 0 || largest.offset < 0 || largest.timestamp <= s->last_indexed_time)
        return;
    if (!segment_index_room(&t->times, &t->time_room, t->time_count, INDEX_TIME_BYTES)) return;
    assert(largest.offset >= s->base_offset);
    index_put_time(t->times + t->time_count * 12u, largest.timestamp,
                   (int32_t)(largest.offset - s->base_offset));
    t->time_count++;
    s->last_indexed_time = largest.timestamp;
}

static bool segment_index_add(struct segment *s, const struct batch_header *h, int64_t position,
                              struct segment_largest largest) REQUIRES(s->index_lock) {
    if (s->tail == NULL && (s->tail = calloc(1, sizeof *s->tail)) == NULL) return false;
    struct segment_tail *t = s->tail;
    if (!segment_index_room(&t->offsets, &t->offset_room, t->offset_count, INDEX_OFFSET_BYTES))
        return false;
    int64_t relative = batch_last_offset(h) - s->base_offset;
    assert(relative >= 0);
    assert(relative <= INT32_MAX); /* ensured by segment_batch_fits or the roll */
    index_put_offset(t->offsets + t->offset_count * 8u, (int32_t)relative, (int32_t)position);
    t->offset_count++;
    segment_index_add_time(s, largest);
    /* If a file cannot grow now, retry at the next power of two; until then the entries stay in
     * memory. */
    if (t->offset_count >= SEGMENT_TAIL_MAX && (t->offset_count & (t->offset_count - 1)) == 0) {
        segment_index_write_file(s, false, false);
        segment_index_write_file(s, true, false);
    }
    return true;
}

bool segment_is_later(const struct batch_header *h, struct segment_largest largest) {
    return h->record_count > 0 && h->max_timestamp > largest.timestamp;
}

bool segment_index_count(struct segment *s, const struct batch_header *h, int64_t position,
                         struct segment_largest largest) {
    bool added = false;
    if (s->first_timestamp < 0) s->first_timestamp = h->max_timestamp;
    if (s->since_entry_bytes > s->index_interval_bytes) {
        lock_acquire(&s->index_lock);
        added = segment_index_add(s, h, position, largest);
        lock_release(&s->index_lock);
        s->since_entry_bytes = 0;
    }
    int64_t since = s->since_entry_bytes + (int64_t)batch_bytes(h);
    s->since_entry_bytes = since > INT32_MAX ? INT32_MAX : (int32_t)since;
    return added;
}

bool segment_index_batch(struct segment *s, const struct batch_header *h, int64_t position) {
    struct segment_largest largest = segment_largest_of(s);
    if (segment_is_later(h, largest)) {
        largest = (struct segment_largest){h->max_timestamp, batch_last_offset(h)};
        segment_largest_publish(s, largest);
    }
    return segment_index_count(s, h, position, largest);
}

int segment_index_write(struct segment *s, bool final) {
    lock_acquire(&s->index_lock);
    if (final && s->tail == NULL) s->tail = calloc(1, sizeof *s->tail);
    if (final && s->tail != NULL) segment_index_add_time(s, segment_largest_of(s));
    int result = segment_index_write_file(s, false, final),
        times = segment_index_write_file(s, true, final);
    if (result == 0) result = times;
    if (final && result == 0 && s->tail != NULL && !s->index_lost) {
        free(s->tail->offsets);
        free(s->tail->times);
        free(s->tail);
        s->tail = NULL;
    }
    lock_release(&s->index_lock);
    return result;
}

uint32_t segment_index_entries(struct segment *s, bool times) {
    lock_acquire(&s->index_lock);
    uint32_t count = times ? s->time_count : s->offset_count;
    if (s->tail != NULL) count += times ? s->tail->time_count : s->tail->offset_count;
    lock_release(&s->index_lock);
    return count;
}

static void segment_index_cut_file(struct segment *s, bool times, uint32_t count)
    REQUIRES(s->index_lock) {
    int fd = segment_index_open(s, times, O_WRONLY);
    struct stat st;
    if (fd < 0) return;
    if (fstat(fd, &st) == 0 && st.st_nlink > 1) {
        /* A branch shares the file: unlink it here and rebuild it. */
        close(fd);
        fd = segment_index_open(s, times, O_WRONLY | O_CREAT | O_TRUNC);
        if (fd >= 0 && log_dir_disk(s->partition->dir)->ftruncate(fd, 0) != 0) s->rebuilt = false;
        if (fd >= 0) close(fd);
        return;
    }
    /* If this fails, later writes replace the entries after the count, or the next check finds
     * them. */
    off_t bytes = (off_t)(count * segment_index_entry(times));
    if (log_dir_disk(s->partition->dir)->ftruncate(fd, bytes) != 0) s->rebuilt = false;
    close(fd);
}

void segment_index_truncate(struct segment *s, int64_t offset, int64_t position) {
    lock_acquire(&s->index_lock);
    int result = segment_index_load(s);
    if (result == 0) {
        struct segment_tail *t = s->tail;
        const uint8_t *offsets = segment_index_offsets(s), *times = segment_index_times(s);
        int64_t last = offset - s->base_offset - 1;
        mapped_read_begin(&s->maps);
        if (t != NULL)
            t->offset_count =
                position == 0 ? 0
                              : index_count_positions(t->offsets, t->offset_count, position - 1);
        if (t != NULL) t->time_count = index_count_time_offsets(t->times, t->time_count, last);
        uint32_t n =
            position == 0 ? 0 : index_count_positions(offsets, s->offset_count, position - 1);
        uint32_t m = index_count_time_offsets(times, s->time_count, last);
        s->last_indexed_time = INT64_MIN;
        if (m > 0) s->last_indexed_time = index_time_at(times, m - 1);
        if (t != NULL && t->time_count > 0)
            s->last_indexed_time = index_time_at(t->times, t->time_count - 1);
        result = segment_index_read_end(s);
        if (result == 0 && n < s->offset_count) segment_index_cut_file(s, false, n);
        if (result == 0 && m < s->time_count) segment_index_cut_file(s, true, m);
        assert(n <= s->offset_count);
        assert(m <= s->time_count);
        s->offset_count = n;
        s->time_count = m;
    }
    if (result != 0) segment_index_reset_locked(s);
    lock_release(&s->index_lock);
}

bool segment_index_has_pending(struct segment *s) {
    lock_acquire(&s->index_lock);
    bool waits = s->tail != NULL && !s->index_lost && !s->rebuilt;
    lock_release(&s->index_lock);
    return waits;
}
