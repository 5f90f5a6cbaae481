/* Aborted transactions of one segment. An entry is in memory when its marker is appended, and in
 * the file before a flush covers the marker. So a file is correct below the recovery point; above
 * it, recovery rebuilds the entries from the batches. Readers use memory while the file is
 * incomplete. */
#include "segment/txn_index.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "format/bytes.h"
#include "os/disk.h"
#include "os/lock.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

enum {
    TXN_INDEX_ENTRY_BYTES = 34,
    TXN_INDEX_ROOM_FIRST = 8,
    /* More than a segment needs: it has at most INT32_MAX bytes, and a marker is longer than its
     * entry. Writes have the same limit, so a longer file is invalid. */
    TXN_INDEX_COUNT_MAX = INT32_MAX / TXN_INDEX_ENTRY_BYTES,
    TXN_INDEX_FILE_LENGTH_MAX = TXN_INDEX_COUNT_MAX * TXN_INDEX_ENTRY_BYTES,
    TXN_INDEX_SCAN_BYTES = 256 * TXN_INDEX_ENTRY_BYTES
};

/* `count` entries. The file contains the first `written` that were ever in `entries`, possibly
 * more than `count`. ragged: the file may contain more. */
struct segment_aborted {
    uint32_t count, room, written;
    bool ragged;
    uint8_t *entries;
};

static int64_t txn_index_last(const uint8_t *entry) { return get_i64(entry + 18); }

void txn_index_free(struct segment *s) {
    if (s->aborted == NULL) return;
    free(s->aborted->entries);
    free(s->aborted);
    s->aborted = NULL;
}

/* ---- one segment; index_lock held ---- */

static uint8_t *txn_index_at(const struct segment_aborted *a, uint32_t i) {
    return a->entries + (size_t)i * TXN_INDEX_ENTRY_BYTES;
}

/* Returns how many entries, from the first, are plausible. before: the last offset of the
 * previous entry, -1: none. */
static uint32_t txn_index_count_valid(const uint8_t *bytes, size_t len, int64_t before) {
    uint32_t count = 0;
    for (const uint8_t *at = bytes; (size_t)(at - bytes) + TXN_INDEX_ENTRY_BYTES <= len;
         at += TXN_INDEX_ENTRY_BYTES, count++) {
        if (get_i16(at) != 0 || txn_index_last(at) <= before ||
            get_i64(at + 10) > txn_index_last(at))
            break;
        before = txn_index_last(at);
    }
    return count;
}

/* Loads the file into memory. Returns 0 or a log_error. */
static int txn_index_load(struct segment *s) REQUIRES(s->index_lock) {
    char path[SEGMENT_PATH_BYTES];
    uint8_t *bytes = NULL;
    size_t len = 0;
    s->aborted_absent = false;
    s->aborted_loads++;
    if (s->aborted != NULL) return 0;
    segment_path(s, "txnindex", path);
    int result =
        log_dir_read_file(s->partition->dir, path, TXN_INDEX_FILE_LENGTH_MAX, &bytes, &len);
    if (log_is_error(result)) return result;
    if (result != 0 && result != -ENOENT) return log_dir_error(s->partition->dir, -result, "open");
    struct segment_aborted *a = calloc(1, sizeof *a);
    if (a == NULL) {
        free(bytes);
        return LOG_E_MEMORY;
    }
    a->count = a->room = a->written = txn_index_count_valid(bytes, len, -1);
    a->ragged = len > (size_t)a->count * TXN_INDEX_ENTRY_BYTES;
    a->entries = bytes;
    s->aborted = a;
    return 0;
}

static int txn_index_grow(struct segment_aborted *a) {
    assert(a->count <= a->room);
    if (a->count < a->room) return 0;
    if (a->count >= TXN_INDEX_COUNT_MAX) return LOG_E_MEMORY;
    uint32_t room = a->room == 0 ? TXN_INDEX_ROOM_FIRST : a->room * 2;
    uint8_t *entries = realloc(a->entries, (size_t)room * TXN_INDEX_ENTRY_BYTES);
    if (entries == NULL) return LOG_E_MEMORY;
    a->entries = entries;
    a->room = room;
    return 0;
}

static void txn_index_push(struct segment *s, const uint8_t entry[TXN_INDEX_ENTRY_BYTES])
    REQUIRES(s->index_lock) {
    struct segment_aborted *a = s->aborted;
    assert(a->count < a->room); /* txn_index_reserve came first. */
    uint8_t *at = txn_index_at(a, a->count);
    /* Recovery mostly rebuilds entries that the file already contains. */
    if (a->count >= a->written || memcmp(at, entry, TXN_INDEX_ENTRY_BYTES) != 0) {
        if (a->written > a->count) {
            a->written = a->count;
            a->ragged = true;
        }
        memcpy(at, entry, TXN_INDEX_ENTRY_BYTES);
        atomic_store(&s->aborted_due, true);
    }
    a->count++;
}

int txn_index_reserve(struct segment *s) {
    lock_acquire(&s->index_lock);
    int result = txn_index_load(s);
    if (result == 0) result = txn_index_grow(s->aborted);
    lock_release(&s->index_lock);
    return result;
}

void txn_index_add(struct segment *s, const struct log_aborted *aborted, int64_t last_offset,
                   int64_t last_stable_offset) {
    uint8_t entry[TXN_INDEX_ENTRY_BYTES];
    put_i16(entry, 0);
    put_i64(entry + 2, aborted->producer_id);
    put_i64(entry + 10, aborted->first_offset);
    put_i64(entry + 18, last_offset);
    put_i64(entry + 26, last_stable_offset);
    lock_acquire(&s->index_lock);
    txn_index_push(s, entry);
    lock_release(&s->index_lock);
}

int txn_index_cut(struct segment *s, int64_t offset) {
    lock_acquire(&s->index_lock);
    int result = txn_index_load(s);
    struct segment_aborted *a = s->aborted;
    if (result == 0) {
        while (a->count > 0 && txn_index_last(txn_index_at(a, a->count - 1)) >= offset) a->count--;
        if (a->count < a->written || a->ragged) atomic_store(&s->aborted_due, true);
        if (a->count == 0 && a->written == 0 && !a->ragged) txn_index_free(s);
    }
    lock_release(&s->index_lock);
    return result;
}

/* ---- the file ---- */

/* Writes entries [from, from + count) at their position. `cut`: removes all entries after `from`
 * first. */
static int txn_index_write_file(struct segment *s, const uint8_t *bytes, uint32_t from,
                                uint32_t count, bool cut) {
    char path[SEGMENT_PATH_BYTES];
    struct log_dir *dir = s->partition->dir;
    const struct disk *disk = log_dir_disk(dir);
    size_t len = (size_t)count * TXN_INDEX_ENTRY_BYTES;
    assert(bytes != NULL);
    off_t at = (off_t)from * TXN_INDEX_ENTRY_BYTES;
    segment_path(s, "txnindex", path);
    int fd = log_dir_open(dir, path, O_WRONLY | O_CREAT);
    if (fd < 0) return -errno;
    int result = cut && disk->ftruncate(fd, at) != 0 ? -errno : 0;
    if (result == 0 && len > 0) {
        ssize_t n = disk->pwrite(fd, bytes, len, at);
        if (n != (ssize_t)len) result = n < 0 ? -errno : -ENOSPC;
    }
    if (result == 0 && disk->fdatasync(fd) != 0) result = -errno;
    close(fd);
    return result;
}

int txn_index_write(struct segment *s, bool *written) {
    uint8_t *copy = NULL;
    uint32_t from = 0, count = 0;
    bool cut = false;
    int result = 0;
    lock_acquire(&s->index_lock);
    struct segment_aborted *a = s->aborted;
    *written = false;
    bool due = atomic_exchange(&s->aborted_due, false) && a != NULL && !s->removed;
    if (due) {
        from = a->written < a->count ? a->written : a->count;
        count = a->count - from;
        assert(from <= a->written);
        cut = a->ragged || a->written > a->count;
        a->written = from;
        a->ragged = cut;
        if ((copy = malloc((size_t)count * TXN_INDEX_ENTRY_BYTES + 1)) == NULL) result = -ENOMEM;
        if (result == 0 && count > 0)
            memcpy(copy, txn_index_at(a, from), (size_t)count * TXN_INDEX_ENTRY_BYTES);
    }
    /* For a finished segment, readers use the file. */
    if (!due && a != NULL && atomic_load(&s->sealed) && a->written == a->count && !a->ragged)
        txn_index_free(s);
    lock_release(&s->index_lock);
    if (!due) return 0;
    if (result == 0) result = txn_index_write_file(s, copy, from, count, cut);
    *written = result == 0;
    free(copy);
    lock_acquire(&s->index_lock);
    a->ragged = result != 0;
    if (result == 0)
        a->written = from + count;
    else
        atomic_store(&s->aborted_due, true);
    if (result == 0 && atomic_load(&s->sealed) && a->written == a->count) txn_index_free(s);
    lock_release(&s->index_lock);
    return result;
}

/* ---- queries ---- */

static int txn_index_compare(const void *a, const void *b) {
    const struct log_aborted *x = a, *y = b;
    return x->first_offset < y->first_offset ? -1 : x->first_offset > y->first_offset;
}

void txn_index_limit(struct txn_index_query *q) {
    if (q->count > 1) qsort(q->found, q->count, sizeof *q->found, txn_index_compare);
    uint32_t needed = 0;
    while (needed < q->count && q->found[needed].first_offset < q->keep_below) needed++;
    /* If many must stay, allow as many others: ranges of one batch each would repeat them. */
    uint32_t limit = needed * 2 > q->count_max ? needed * 2 : q->count_max;
    if (limit >= q->count) return;
    q->upper = q->found[limit].first_offset;
    /* Only in a damaged log do two transactions begin at one offset: leave out both. */
    while (limit > 0 && q->found[limit - 1].first_offset == q->upper) limit--;
    q->count = limit;
}

static int txn_index_query_add(struct txn_index_query *q, struct log_aborted one) {
    bool full = q->count == q->room;
    if (full && q->count / 2 >= q->count_max) txn_index_limit(q);
    if (one.first_offset >= q->upper) return 0;
    /* After each sort at least half is free, so that sorting costs little per entry. */
    if (full && q->count >= q->room / 2) {
        uint32_t room = q->room == 0 ? TXN_INDEX_ROOM_FIRST : q->room * 2;
        struct log_aborted *found = realloc(q->found, room * sizeof *found);
        if (found == NULL) return LOG_E_MEMORY;
        q->found = found;
        q->room = room;
    }
    q->found[q->count++] = one;
    return 0;
}

static int txn_index_collect(struct txn_index_query *q, const uint8_t *entries, uint32_t count) {
    int result = 0;
    for (uint32_t i = 0; i < count && !q->past && result == 0; i++) {
        const uint8_t *at = entries + (size_t)i * TXN_INDEX_ENTRY_BYTES;
        int64_t first = get_i64(at + 10);
        if (txn_index_last(at) >= q->offset && first < q->upper)
            result = txn_index_query_add(q, (struct log_aborted){get_i64(at + 2), first});
        /* Transactions that were aborted later began at or above the bound. */
        q->past = get_i64(at + 26) >= q->upper;
    }
    return result;
}

/* Returns 0, LOG_E_CORRUPT if the file is shorter, or another log_error. */
static int txn_index_read(struct segment *s, int fd, int64_t first, uint8_t *to, uint32_t count) {
    struct log_dir *dir = s->partition->dir;
    size_t len = (size_t)count * TXN_INDEX_ENTRY_BYTES, have = 0;
    off_t position = (off_t)first * TXN_INDEX_ENTRY_BYTES;
    while (have < len) {
        ssize_t n = log_dir_disk(dir)->pread(fd, to + have, len - have, position + (off_t)have);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return log_dir_error(dir, errno, "pread");
        if (n == 0) return LOG_E_CORRUPT;
        have += (size_t)n;
    }
    return 0;
}

/* Finds the first entry of a file that ends at or above `offset`. */
static int txn_index_search(struct segment *s, int fd, int64_t count, int64_t offset,
                            int64_t *first) {
    uint8_t entry[TXN_INDEX_ENTRY_BYTES];
    int64_t low = 0;
    while (count > 0) {
        int64_t half = count / 2;
        int result = txn_index_read(s, fd, low + half, entry, 1);
        if (result != 0) return result;
        bool below = txn_index_last(entry) < offset;
        low = below ? low + half + 1 : low;
        count = below ? count - half - 1 : half;
    }
    *first = low;
    return 0;
}

/* The file of a sealed segment is complete: implausible entries are damage. */
static int txn_index_collect_file(struct segment *s, int fd, struct txn_index_query *q) {
    uint8_t chunk[TXN_INDEX_SCAN_BYTES];
    struct stat st;
    if (fstat(fd, &st) != 0) return log_dir_error(s->partition->dir, errno, "fstat");
    int64_t count = st.st_size / TXN_INDEX_ENTRY_BYTES, at, before = -1;
    int result = st.st_size % TXN_INDEX_ENTRY_BYTES != 0
                     ? LOG_E_CORRUPT
                     : txn_index_search(s, fd, count, q->offset, &at);
    while (result == 0 && at < count && !q->past) {
        int64_t left = count - at, most = TXN_INDEX_SCAN_BYTES / TXN_INDEX_ENTRY_BYTES;
        uint32_t some = (uint32_t)(left < most ? left : most);
        if ((result = txn_index_read(s, fd, at, chunk, some)) != 0) break;
        if (txn_index_count_valid(chunk, (size_t)some * TXN_INDEX_ENTRY_BYTES, before) != some)
            return LOG_E_CORRUPT;
        before = txn_index_last(chunk + (size_t)(some - 1) * TXN_INDEX_ENTRY_BYTES);
        result = txn_index_collect(q, chunk, some);
        at += some;
    }
    return result;
}

int txn_index_query_segment(struct segment *s, struct txn_index_query *q) {
    char path[SEGMENT_PATH_BYTES];
    struct log_dir *dir = s->partition->dir;
    lock_acquire(&s->index_lock);
    bool here = s->aborted != NULL, absent = s->aborted_absent;
    uint32_t loads = s->aborted_loads;
    int result = here ? txn_index_collect(q, s->aborted->entries, s->aborted->count) : 0;
    lock_release(&s->index_lock);
    if (here || absent) return result;
    /* The names of a removed segment may already belong to another; the lock prevents that
     * during the open. */
    lock_acquire(&dir->files_lock);
    segment_path_locked(s, "txnindex", path);
    int fd = s->removed ? -1 : log_dir_open_locked(dir, path, O_RDONLY);
    int error = s->removed ? ENOENT : errno;
    bool none = fd < 0 && error == ENOENT && !s->removed;
    /* If another program removed all files, a missing file does not mean that no transaction was
     * aborted. */
    segment_path_locked(s, "log", path);
    bool lost =
        none && faccessat(dir->fd, path, F_OK, 0) != 0 && errno == ENOENT && !s->partition->deleted;
    if (lost) partition_dir_mark_lost(s->partition);
    none = none && !lost;
    lock_release(&dir->files_lock);
    if (fd >= 0) {
        result = txn_index_collect_file(s, fd, q);
        close(fd);
    } else if (none) {
        lock_acquire(&s->index_lock);
        if (s->aborted_loads == loads) s->aborted_absent = true;
        lock_release(&s->index_lock);
    } else {
        result = lost ? LOG_E_IO : error == ENOENT ? -ENOENT : log_dir_error(dir, error, "open");
    }
    return result;
}
