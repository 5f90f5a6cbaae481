/* Aborted transactions: `.txnindex`, Kafka's: for each int16 version 0, producer id, first offset,
 * last offset (its marker's) and the last stable offset behind it, by rising last offsets.
 *
 * An entry is in memory when its marker is appended, and in the file before a flush says that the
 * marker is on disk. So a file is right below the recovery point; above it a recovery makes the
 * entries anew from the batches. Readers look at memory while there is something that the file does
 * not have. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/bytes.h"
#include "log/log_state.h"

enum {
    LOG_ABORTED_BYTES = 34,
    LOG_ABORTED_FIRST = 8,
    LOG_ABORTED_FILE_BYTES_MAX = 64 << 20,
    LOG_MARKER_BYTES_MAX = 4096,
    LOG_MARKER_ABORT = 0
};

/* `count` entries; the first `written` of what was ever in `entries` is what the file has, also
 * beyond `count`. ragged: the file may have more. */
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

/* ---- of one segment; index_lock held ---- */

static uint8_t *aborted_at(const struct segment_aborted *a, uint32_t i) {
    return a->entries + (size_t)i * LOG_ABORTED_BYTES;
}

/* The whole entries that a file can have. */
static uint32_t aborted_whole(const uint8_t *bytes, size_t len) {
    uint32_t count = 0;
    int64_t before = -1;
    for (const uint8_t *at = bytes; (size_t)(at - bytes) + LOG_ABORTED_BYTES <= len;
         at += LOG_ABORTED_BYTES, count++) {
        if (get_i16(at) != 0 || aborted_last(at) <= before || get_i64(at + 10) > aborted_last(at))
            break;
        before = aborted_last(at);
    }
    return count;
}

/* Brings the file's into memory. 0 or a log_error. */
static int aborted_load(struct segment *s) REQUIRES(s->index_lock) {
    char path[SEGMENT_PATH_BYTES];
    uint8_t *bytes = NULL;
    size_t len = 0;
    s->aborted_absent = false;
    s->aborted_loads++;
    if (s->aborted != NULL) return 0;
    segment_path(s, "txnindex", path);
    int result = log_dir_read_file(s->home->dir, path, LOG_ABORTED_FILE_BYTES_MAX, &bytes, &len);
    if (result != 0 && result != -ENOENT && result != -EFBIG)
        return log_dir_error(s->home->dir, -result, "open");
    struct segment_aborted *a = calloc(1, sizeof *a);
    if (a == NULL) {
        free(bytes);
        return LOG_E_MEMORY;
    }
    a->count = a->room = a->written = aborted_whole(bytes, len);
    a->ragged = result == -EFBIG || len > (size_t)a->count * LOG_ABORTED_BYTES;
    a->entries = bytes;
    s->aborted = a;
    return 0;
}

static int aborted_reserve(struct segment_aborted *a) {
    assert(a->count <= a->room);
    if (a->count < a->room) return 0;
    uint32_t room = a->room == 0 ? LOG_ABORTED_FIRST : a->room * 2;
    uint8_t *entries = realloc(a->entries, (size_t)room * LOG_ABORTED_BYTES);
    if (entries == NULL) return LOG_E_MEMORY;
    a->entries = entries;
    a->room = room;
    return 0;
}

/* There is room for it. */
static void aborted_push(struct segment *s, const uint8_t entry[LOG_ABORTED_BYTES])
    REQUIRES(s->index_lock) {
    struct segment_aborted *a = s->aborted;
    assert(a->count < a->room); /* aborted_reserve came first. */
    uint8_t *at = aborted_at(a, a->count);
    /* A recovery mostly makes what the file has. */
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

/* Entries [from, from + count) at their place, and none behind them. */
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
    /* Of a segment that is done, readers take the file. */
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
    /* Memory first: what is appended must be remembered whole. */
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
    uint8_t marker[LOG_MARKER_BYTES_MAX];
    bool whole = batch_bytes(h) <= sizeof marker;
    if (whole && h->producer_id >= 0 && h->attributes & BATCH_CONTROL) {
        int result = segment_read(s, position, marker, batch_bytes(h));
        if (result != 0) return result;
    }
    return log_account(log, note ? s : NULL, h, whole ? marker : NULL, now_ms);
}

/* ---- look-ups ---- */

struct log_aborted_question {
    int64_t offset, upper;
    struct log_aborted *out;
    uint32_t max, count;
    bool past;
};

static void aborted_collect(struct log_aborted_question *q, const uint8_t *entries,
                            uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *at = entries + (size_t)i * LOG_ABORTED_BYTES;
        int64_t first = get_i64(at + 10);
        if (aborted_last(at) >= q->offset && first < q->upper) {
            if (q->count < q->max) q->out[q->count] = (struct log_aborted){get_i64(at + 2), first};
            q->count++;
        }
        /* Whatever was aborted later began at or above the bound. */
        if (get_i64(at + 26) >= q->upper) q->past = true;
    }
}

/* False: its file cannot be read now. */
static bool aborted_in(struct segment *s, struct log_aborted_question *q) {
    char path[SEGMENT_PATH_BYTES];
    uint8_t *bytes;
    size_t len;
    lock_acquire(&s->index_lock);
    bool here = s->aborted != NULL, absent = s->aborted_absent;
    uint32_t loads = s->aborted_loads;
    if (here) aborted_collect(q, s->aborted->entries, s->aborted->count);
    lock_release(&s->index_lock);
    if (here || absent) return true;
    segment_path(s, "txnindex", path);
    int result =
        log_dir_read_file(s->home->dir, path, LOG_ABORTED_FILE_BYTES_MAX, &bytes, &len);
    if (result == -ENOENT) {
        lock_acquire(&s->index_lock);
        if (s->aborted_loads == loads) s->aborted_absent = true;
        lock_release(&s->index_lock);
    }
    if (result == -ENOENT || result == -EFBIG) return true; /* as when it is loaded */
    if (result != 0) {
        log_dir_error(s->home->dir, -result, "open");
        return false;
    }
    aborted_collect(q, bytes, aborted_whole(bytes, len));
    free(bytes);
    return true;
}

static int aborted_compare(const void *a, const void *b) {
    const struct log_aborted *x = a, *y = b;
    return x->first_offset < y->first_offset ? -1 : x->first_offset > y->first_offset;
}

uint32_t log_aborted_between(struct log *log, int64_t offset, int64_t upper,
                             struct log_aborted *out, uint32_t max) {
    struct log_lookup l;
    struct log_aborted_question q = {offset, upper, out, max, 0, false};
    if (log_lookup_begin(log, &l) != 0) return UINT32_MAX;
    bool known = true;
    for (uint32_t i = 0; i < l.count && known && !q.past; i++) {
        int64_t end = i + 1 < l.count ? l.segments[i + 1]->base_offset : l.end;
        if (end > offset) known = aborted_in(l.segments[i], &q);
    }
    log_lookup_end(&l);
    if (!known) return UINT32_MAX;
    uint32_t filled = q.count < max ? q.count : max;
    if (filled > 1) qsort(out, filled, sizeof *out, aborted_compare);
    return q.count;
}
