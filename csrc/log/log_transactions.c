/* Aborted transactions in Kafka's `.txnindex` format: for each one int16 version 0, producer id,
 * first offset, last offset (its marker's) and the last stable offset after it, ordered by last
 * offset.
 *
 * An entry is in memory when its marker is appended, and in the file before a flush covers the
 * marker. So a file is correct below the recovery point; above it, recovery rebuilds the entries
 * from the batches. Readers use memory while the file is incomplete. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/bytes.h"
#include "log/log_internal.h"

enum {
    LOG_ABORTED_BYTES = 34,
    LOG_ABORTED_FIRST = 8,
    /* More than a segment needs: it has at most INT32_MAX bytes, and a marker is longer than its
     * entry. Writes have the same limit, so a longer file is invalid. */
    LOG_ABORTED_COUNT_MAX = INT32_MAX / LOG_ABORTED_BYTES,
    LOG_ABORTED_FILE_BYTES_MAX = LOG_ABORTED_COUNT_MAX * LOG_ABORTED_BYTES,
    LOG_ABORTED_CHUNK_BYTES = 256 * LOG_ABORTED_BYTES,
    LOG_ABORTED_ATTEMPTS = 16,
    LOG_MARKER_BYTES = 256, /* enough for every marker that a coordinator writes */
    LOG_MARKER_ABORT = 0
};

/* `count` entries. The file contains the first `written` that were ever in `entries`, possibly
 * more than `count`. ragged: the file may contain more. */
struct segment_aborted {
    uint32_t count, room, written;
    bool ragged;
    uint8_t *entries;
};

static int64_t aborted_last(const uint8_t *entry) { return get_i64(entry + 18); }

void log_aborted_free(struct segment *s) {
    if (s->aborted == NULL) return;
    free(s->aborted->entries);
    free(s->aborted);
    s->aborted = NULL;
}

/* ---- one segment; index_lock held ---- */

static uint8_t *aborted_at(const struct segment_aborted *a, uint32_t i) {
    return a->entries + (size_t)i * LOG_ABORTED_BYTES;
}

/* Returns how many entries, from the first, are plausible. before: the last offset of the
 * previous entry, -1: none. */
static uint32_t aborted_whole(const uint8_t *bytes, size_t len, int64_t before) {
    uint32_t count = 0;
    for (const uint8_t *at = bytes; (size_t)(at - bytes) + LOG_ABORTED_BYTES <= len;
         at += LOG_ABORTED_BYTES, count++) {
        if (get_i16(at) != 0 || aborted_last(at) <= before || get_i64(at + 10) > aborted_last(at))
            break;
        before = aborted_last(at);
    }
    return count;
}

/* Loads the file into memory. Returns 0 or a log_error. */
static int aborted_load(struct segment *s) REQUIRES(s->index_lock) {
    char path[SEGMENT_PATH_BYTES];
    uint8_t *bytes = NULL;
    size_t len = 0;
    s->aborted_absent = false;
    s->aborted_loads++;
    if (s->aborted != NULL) return 0;
    segment_path(s, "txnindex", path);
    int result = log_dir_read_file(s->home->dir, path, LOG_ABORTED_FILE_BYTES_MAX, &bytes, &len);
    if (log_is_error(result)) return result;
    if (result != 0 && result != -ENOENT) return log_dir_error(s->home->dir, -result, "open");
    struct segment_aborted *a = calloc(1, sizeof *a);
    if (a == NULL) {
        free(bytes);
        return LOG_E_MEMORY;
    }
    a->count = a->room = a->written = aborted_whole(bytes, len, -1);
    a->ragged = len > (size_t)a->count * LOG_ABORTED_BYTES;
    a->entries = bytes;
    s->aborted = a;
    return 0;
}

static int aborted_reserve(struct segment_aborted *a) {
    assert(a->count <= a->room);
    if (a->count < a->room) return 0;
    if (a->count >= LOG_ABORTED_COUNT_MAX) return LOG_E_MEMORY;
    uint32_t room = a->room == 0 ? LOG_ABORTED_FIRST : a->room * 2;
    uint8_t *entries = realloc(a->entries, (size_t)room * LOG_ABORTED_BYTES);
    if (entries == NULL) return LOG_E_MEMORY;
    a->entries = entries;
    a->room = room;
    return 0;
}

static void aborted_push(struct segment *s, const uint8_t entry[LOG_ABORTED_BYTES])
    REQUIRES(s->index_lock) {
    struct segment_aborted *a = s->aborted;
    assert(a->count < a->room); /* aborted_reserve came first. */
    uint8_t *at = aborted_at(a, a->count);
    /* Recovery mostly rebuilds entries that the file already contains. */
    if (a->count >= a->written || memcmp(at, entry, LOG_ABORTED_BYTES) != 0) {
        if (a->written > a->count) {
            a->written = a->count;
            a->ragged = true;
        }
        memcpy(at, entry, LOG_ABORTED_BYTES);
        atomic_store(&s->aborted_due, true);
    }
    a->count++;
}

int log_aborted_cut(struct segment *s, int64_t offset) {
    lock_acquire(&s->index_lock);
    int result = aborted_load(s);
    struct segment_aborted *a = s->aborted;
    if (result == 0) {
        while (a->count > 0 && aborted_last(aborted_at(a, a->count - 1)) >= offset) a->count--;
        if (a->count < a->written || a->ragged) atomic_store(&s->aborted_due, true);
        if (a->count == 0 && a->written == 0 && !a->ragged) log_aborted_free(s);
    }
    lock_release(&s->index_lock);
    return result;
}

/* ---- the file ---- */

/* Writes entries [from, from + count) at their position. `cut`: removes all entries after `from`
 * first. */
static int aborted_write_file(struct segment *s, const uint8_t *bytes, uint32_t from,
                              uint32_t count, bool cut) {
    char path[SEGMENT_PATH_BYTES];
    struct log_dir *dir = s->home->dir;
    const struct disk *disk = log_dir_disk(dir);
    size_t len = (size_t)count * LOG_ABORTED_BYTES;
    assert(bytes != NULL);
    off_t at = (off_t)from * LOG_ABORTED_BYTES;
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

int log_aborted_write(struct log *log, struct segment *s) {
    uint8_t *copy = NULL;
    uint32_t from = 0, count = 0;
    bool cut = false;
    int result = 0;
    lock_acquire(&s->index_lock);
    struct segment_aborted *a = s->aborted;
    bool due = atomic_exchange(&s->aborted_due, false) && a != NULL && !s->removed;
    if (due) {
        from = a->written < a->count ? a->written : a->count;
        count = a->count - from;
        assert(from <= a->written);
        cut = a->ragged || a->written > a->count;
        a->written = from;
        a->ragged = cut;
        if ((copy = malloc((size_t)count * LOG_ABORTED_BYTES + 1)) == NULL) result = -ENOMEM;
        if (result == 0 && count > 0)
            memcpy(copy, aborted_at(a, from), (size_t)count * LOG_ABORTED_BYTES);
    }
    /* For a finished segment, readers use the file. */
    if (!due && a != NULL && atomic_load(&s->sealed) && a->written == a->count && !a->ragged)
        log_aborted_free(s);
    lock_release(&s->index_lock);
    if (!due) return 0;
    if (result == 0) result = aborted_write_file(s, copy, from, count, cut);
    if (result == 0) log_mark(&log->flush.files_marks);
    free(copy);
    lock_acquire(&s->index_lock);
    a->ragged = result != 0;
    if (result == 0)
        a->written = from + count;
    else
        atomic_store(&s->aborted_due, true);
    if (result == 0 && atomic_load(&s->sealed) && a->written == a->count) log_aborted_free(s);
    lock_release(&s->index_lock);
    return result;
}

/* ---- markers ---- */

static int account_marker(struct log *log, struct segment *s, const struct batch_header *h,
                          const uint8_t *batch, int64_t now_ms) LOG_APPENDING(log) {
    const struct producers_entry *e = producers_find(&log->append.producers, h->producer_id);
    int64_t first = e == NULL ? -1 : e->transaction_first_offset, last = batch_last_offset(h);
    int32_t coordinator_epoch = -1;
    int type = batch == NULL ? -1 : batch_marker(batch, h, &coordinator_epoch), result = 0;
    bool noted = s != NULL && first >= 0 && type == LOG_MARKER_ABORT;
    /* Allocate memory first: an appended marker must be recorded completely. */
    if (first >= 0) result = log_complete(log, first, last);
    if (result == 0 && noted) {
        lock_acquire(&s->index_lock);
        result = aborted_load(s);
        if (result == 0) result = aborted_reserve(s->aborted);
        lock_release(&s->index_lock);
    }
    if (result == 0)
        result = producers_end_transaction(&log->append.producers, h, coordinator_epoch, now_ms);
    if (result != 0 || !noted) return result;
    uint8_t entry[LOG_ABORTED_BYTES];
    int64_t open = producers_first_open(&log->append.producers);
    put_i16(entry, 0);
    put_i64(entry + 2, h->producer_id);
    put_i64(entry + 10, first);
    put_i64(entry + 18, last);
    put_i64(entry + 26, open < 0 ? last + 1 : open);
    lock_acquire(&s->index_lock);
    aborted_push(s, entry);
    lock_release(&s->index_lock);
    return 0;
}

int log_account(struct log *log, struct segment *noted_in, const struct batch_header *h,
                const uint8_t *batch, int64_t now_ms) {
    if (h->producer_id < 0) return 0;
    int result = h->attributes & BATCH_CONTROL
                     ? account_marker(log, noted_in, h, batch, now_ms)
                     : producers_update(&log->append.producers, h, now_ms);
    if (h->attributes & BATCH_TRANSACTIONAL)
        log->append.first_open = producers_first_open(&log->append.producers);
    return result;
}

int log_account_in(struct log *log, struct segment *s, const struct batch_header *h,
                   int64_t position, bool note, int64_t now_ms) {
    struct segment *noted_in = note ? s : NULL;
    if (h->producer_id < 0 || !(h->attributes & BATCH_CONTROL))
        return log_account(log, noted_in, h, NULL, now_ms);
    uint8_t usual[LOG_MARKER_BYTES], *marker = usual;
    if (batch_bytes(h) > sizeof usual && (marker = malloc(batch_bytes(h))) == NULL)
        return LOG_E_MEMORY;
    int result = segment_read(s, position, marker, batch_bytes(h));
    if (result == 0) result = log_account(log, noted_in, h, marker, now_ms);
    if (marker != usual) free(marker);
    return result;
}

/* ---- queries ---- */

struct aborted_query {
    int64_t offset, upper, keep_below;
    struct log_aborted *found;
    uint32_t count, room, count_max;
    bool past; /* all further entries begin at or above `upper` */
};

static int aborted_compare(const void *a, const void *b) {
    const struct log_aborted *x = a, *y = b;
    return x->first_offset < y->first_offset ? -1 : x->first_offset > y->first_offset;
}

/* Sorts the list and applies the limit: see log_aborted_between(). */
static void aborted_bound(struct aborted_query *q) {
    if (q->count > 1) qsort(q->found, q->count, sizeof *q->found, aborted_compare);
    uint32_t needed = 0;
    while (needed < q->count && q->found[needed].first_offset < q->keep_below) needed++;
    /* If many must stay, allow as many others: ranges of one batch each would repeat them. */
    uint32_t kept = needed * 2 > q->count_max ? needed * 2 : q->count_max;
    if (kept >= q->count) return;
    q->upper = q->found[kept].first_offset;
    /* Only in a damaged log do two transactions begin at one offset: leave out both. */
    while (kept > 0 && q->found[kept - 1].first_offset == q->upper) kept--;
    q->count = kept;
}

static int aborted_add(struct aborted_query *q, struct log_aborted one) {
    bool full = q->count == q->room;
    if (full && q->count / 2 >= q->count_max) aborted_bound(q);
    if (one.first_offset >= q->upper) return 0;
    /* After each sort at least half is free, so that sorting costs little per entry. */
    if (full && q->count >= q->room / 2) {
        uint32_t room = q->room == 0 ? LOG_ABORTED_FIRST : q->room * 2;
        struct log_aborted *found = realloc(q->found, room * sizeof *found);
        if (found == NULL) return LOG_E_MEMORY;
        q->found = found;
        q->room = room;
    }
    q->found[q->count++] = one;
    return 0;
}

static int aborted_collect(struct aborted_query *q, const uint8_t *entries, uint32_t count) {
    int result = 0;
    for (uint32_t i = 0; i < count && !q->past && result == 0; i++) {
        const uint8_t *at = entries + (size_t)i * LOG_ABORTED_BYTES;
        int64_t first = get_i64(at + 10);
        if (aborted_last(at) >= q->offset && first < q->upper)
            result = aborted_add(q, (struct log_aborted){get_i64(at + 2), first});
        /* Transactions that were aborted later began at or above the bound. */
        q->past = get_i64(at + 26) >= q->upper;
    }
    return result;
}

/* Returns 0, LOG_E_CORRUPT if the file is shorter, or another log_error. */
static int aborted_read(struct segment *s, int fd, int64_t first, uint8_t *to, uint32_t count) {
    struct log_dir *dir = s->home->dir;
    size_t len = (size_t)count * LOG_ABORTED_BYTES, have = 0;
    off_t position = (off_t)first * LOG_ABORTED_BYTES;
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
static int aborted_search(struct segment *s, int fd, int64_t count, int64_t offset,
                          int64_t *first) {
    uint8_t entry[LOG_ABORTED_BYTES];
    int64_t low = 0;
    while (count > 0) {
        int64_t half = count / 2;
        int result = aborted_read(s, fd, low + half, entry, 1);
        if (result != 0) return result;
        bool below = aborted_last(entry) < offset;
        low = below ? low + half + 1 : low;
        count = below ? count - half - 1 : half;
    }
    *first = low;
    return 0;
}

/* The file of a sealed segment is complete: implausible entries are damage. */
static int aborted_collect_file(struct segment *s, int fd, struct aborted_query *q) {
    uint8_t chunk[LOG_ABORTED_CHUNK_BYTES];
    struct stat st;
    if (fstat(fd, &st) != 0) return log_dir_error(s->home->dir, errno, "fstat");
    int64_t count = st.st_size / LOG_ABORTED_BYTES, at, before = -1;
    int result = st.st_size % LOG_ABORTED_BYTES != 0
                     ? LOG_E_CORRUPT
                     : aborted_search(s, fd, count, q->offset, &at);
    while (result == 0 && at < count && !q->past) {
        int64_t left = count - at, most = LOG_ABORTED_CHUNK_BYTES / LOG_ABORTED_BYTES;
        uint32_t some = (uint32_t)(left < most ? left : most);
        if ((result = aborted_read(s, fd, at, chunk, some)) != 0) break;
        if (aborted_whole(chunk, (size_t)some * LOG_ABORTED_BYTES, before) != some)
            return LOG_E_CORRUPT;
        before = aborted_last(chunk + (size_t)(some - 1) * LOG_ABORTED_BYTES);
        result = aborted_collect(q, chunk, some);
        at += some;
    }
    return result;
}

/* Returns 0, -ENOENT if the segment was removed or replaced, or a log_error. */
static int aborted_in(struct segment *s, struct aborted_query *q) {
    char path[SEGMENT_PATH_BYTES];
    struct log_dir *dir = s->home->dir;
    lock_acquire(&s->index_lock);
    bool here = s->aborted != NULL, absent = s->aborted_absent;
    uint32_t loads = s->aborted_loads;
    int result = here ? aborted_collect(q, s->aborted->entries, s->aborted->count) : 0;
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
    bool lost = none && faccessat(dir->fd, path, F_OK, 0) != 0 && errno == ENOENT &&
                !s->home->deleted;
    if (lost) segment_home_lose(s->home);
    none = none && !lost;
    lock_release(&dir->files_lock);
    if (fd >= 0) {
        result = aborted_collect_file(s, fd, q);
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

static int aborted_look(struct log *log, struct aborted_query *q) {
    struct log_lookup l;
    int result = log_lookup_begin(log, &l);
    if (result != 0) return result;
    for (uint32_t i = 0; i < l.count && result == 0 && !q->past; i++) {
        int64_t end = i + 1 < l.count ? l.segments[i + 1]->base_offset : l.end;
        if (end > q->offset) result = aborted_in(l.segments[i], q);
    }
    log_lookup_end(&l);
    return result;
}

int log_aborted_between(struct log *log, int64_t offset, int64_t upper, int64_t keep_below,
                        uint32_t count_max, struct log_aborted_list *out) {
    struct aborted_query q;
    int result = -ENOENT;
    *out = (struct log_aborted_list){.upper = upper};
    for (int i = 0; i < LOG_ABORTED_ATTEMPTS && result == -ENOENT; i++) {
        q = (struct aborted_query){
            .offset = offset, .upper = upper, .keep_below = keep_below, .count_max = count_max};
        result = aborted_look(log, &q);
        if (result == 0) break;
        free(q.found);
        if (result == -ENOENT && atomic_load(&log->deleted)) return LOG_E_DELETED;
        /* Compaction changes the list under this lock. */
        if (result == -ENOENT) {
            log_append_lock(log);
            log_append_unlock(log);
        }
    }
    if (result != 0) return result == -ENOENT ? LOG_E_CORRUPT : result;
    aborted_bound(&q);
    *out = (struct log_aborted_list){q.found, q.count, q.upper};
    return 0;
}
