/* Streams of cold reads: each drops only the pages that it loaded. */
#include "segment/cold_reads.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/disk.h"
#include "os/lock.h"
#include "segment/file_range.h"
#include "segment/log_dir.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

enum {
    COLD_PROBE_BYTES = 128 << 10, /* precision of the border of resident pages */
    COLD_AHEAD_BYTES = 32 << 20,  /* the kernel's maximum read-ahead */
    COLD_FOLIO_BYTES = 4 << 20,   /* unit of dropping: a partly dropped folio stays */
    COLD_AGAIN_BYTES = 16 << 20,
    COLD_COPY_BYTES = 64 << 10,
    COLD_IDLE_MS = 1000
};

void cold_init(struct cold *cold) {
    memset(cold, 0, sizeof *cold);
    lock_init(&cold->lock);
    cold->null = open("/dev/null", O_WRONLY | O_CLOEXEC);
}

int64_t cold_resident(int fd, int64_t position, int64_t length) {
    struct {
        uint64_t from, bytes;
    } range = {(uint64_t)position, (uint64_t)length};
    struct {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } pages;
    if (length <= 0) return 0;
    if (syscall(SYS_cachestat, fd, &range, &pages, 0) != 0) return -1;
    return (int64_t)pages.cached * (int64_t)sysconf(_SC_PAGESIZE);
}

/* ---- resident pages ---- */

/* Finds the first position in [from, to) that is resident (`wanted`) or not; `to` if there is
 * none. A few resident pages are headers from searches and do not count as resident. */
static int64_t cold_find(int fd, int64_t from, int64_t to, bool wanted) {
    if (wanted && cold_resident(fd, from, to - from) == 0) return to;
    while (from < to) {
        int64_t step = COLD_PROBE_BYTES - from % COLD_PROBE_BYTES;
        if (step > to - from) step = to - from;
        if ((cold_resident(fd, from, step) > step / 2) == wanted) return from;
        from += step;
    }
    return to;
}

/* Before a read, checks which pages the kernel may read ahead with this range. */
static void cold_note_resident(struct cold_stream *s, int fd, int64_t end, int64_t bytes) {
    int64_t to = end + COLD_AHEAD_BYTES < bytes ? end + COLD_AHEAD_BYTES : bytes;
    if (s->warm_at < s->known || to <= s->known) return;
    s->warm_at = cold_find(fd, s->known, to, true);
    assert(s->warm_at >= s->known);
    s->known = to;
}

/* Drops [from, to), limited to pages that this reader loaded. Pages that sockets still held last
 * time stayed resident, so ranges overlap: each part is dropped more than once, until all of it
 * is gone. */
static void cold_drop_pages(struct cold_stream *s, int fd, int64_t from, int64_t to) {
    if (from < s->from) from = s->from;
    if (to > s->warm_at) to = s->warm_at;
    if (to <= from) return;
    assert(from >= s->from); /* Never drops pages that were already resident. */
    assert(to <= s->warm_at);
    posix_fadvise(fd, from, to - from, POSIX_FADV_DONTNEED);
    s->forgotten = to;
}

static void cold_end(struct cold_stream *s) {
    if (segment_pin(s->segment, false) == 0) {
        cold_drop_pages(s, s->segment->fd, s->from, s->known);
        segment_unpin(s->segment);
    }
    segment_release(s->segment);
}

/* ---- streams ---- */

static struct cold_stream *cold_find_stream(struct cold *cold, const struct log_range *range)
    REQUIRES(cold->lock) {
    for (int i = 0; i < COLD_STREAMS_MAX; i++) {
        struct cold_stream *s = &cold->streams[i];
        if (s->segment == range->segment && s->next == range->position && !s->busy) return s;
    }
    return NULL;
}

/* Returns a free slot, or the least recently used one: `*old` is its previous content. */
static struct cold_stream *cold_claim_stream(struct cold *cold, struct cold_stream *old)
    REQUIRES(cold->lock) {
    struct cold_stream *oldest = NULL;
    old->segment = NULL;
    for (int i = 0; i < COLD_STREAMS_MAX; i++) {
        struct cold_stream *s = &cold->streams[i];
        if (s->busy) continue;
        if (s->segment == NULL) {
            atomic_fetch_add(&cold->live, 1);
            return s;
        }
        if (oldest == NULL || s->used_ms < oldest->used_ms) oldest = s;
    }
    if (oldest != NULL) *old = *oldest;
    return oldest;
}

bool cold_expects(struct cold *cold, const struct log_range *range) {
    if (atomic_load_explicit(&cold->live, memory_order_relaxed) == 0) return false;
    lock_acquire(&cold->lock);
    bool found = cold_find_stream(cold, range) != NULL;
    lock_release(&cold->lock);
    return found;
}

static void cold_read_in(struct cold *cold, const struct log_range *range) {
    uint8_t copy[COLD_COPY_BYTES];
    off_t position = range->position, end = position + range->length;
    /* If a test replaces the disk functions, they must see all reads. Compare the function, not
     * the table: every extension module has its own tables. */
    bool splice = cold->null >= 0 && log_dir_disk(range->segment->partition->dir)->pread == pread;
    while (position < end) {
        size_t left = (size_t)(end - position);
        ssize_t n =
            splice ? sendfile(cold->null, range->fd, &position, left)
                   : log_range_read(range, copy, left < sizeof copy ? left : sizeof copy, position);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && splice && (errno == EINVAL || errno == ENOSYS || errno == EIO)) {
            splice = false; /* no splice support, or a fault, which pread reports */
            continue;
        }
        if (n <= 0) return; /* the send gets the same error and closes the connection */
        if (!splice) position += n;
    }
}

/* Begins a stream with this range if part of it is not resident. */
static bool cold_begin(struct cold_stream *s, const struct log_range *range) {
    int64_t end = range->position + range->length;
    int64_t from = cold_find(range->fd, range->position, end, false);
    if (from == end) return false;
    *s = (struct cold_stream){
        .segment = range->segment, .from = from, .forgotten = from, .known = from, .warm_at = from};
    segment_retain(range->segment);
    return true;
}

/* Puts the stream back into its slot, where its reader may continue it. */
static void cold_store(struct cold *cold, struct cold_stream *slot, struct cold_stream *s) {
    s->used_ms = clock_read_ms(CLOCK_MONOTONIC);
    assert(!s->busy);
    lock_acquire(&cold->lock);
    assert(slot->busy); /* No other thread used it. */
    *slot = *s;
    assert(atomic_load(&cold->live) > 0);
    if (s->segment == NULL) atomic_fetch_sub(&cold->live, 1);
    lock_release(&cold->lock);
}

bool cold_read(struct cold *cold, const struct log_range *range) {
    struct cold_stream own = {.segment = NULL}, old = {.segment = NULL};
    assert(range->length > 0);
    assert(range->fd == range->segment->fd);
    int64_t end = range->position + range->length;
    int64_t bytes = atomic_load_explicit(&range->segment->bytes, memory_order_relaxed);
    lock_acquire(&cold->lock);
    struct cold_stream *slot = cold_find_stream(cold, range);
    if (slot != NULL)
        own = *slot;
    else
        slot = cold_claim_stream(cold, &old);
    if (slot != NULL) slot->busy = true;
    lock_release(&cold->lock);
    if (old.segment != NULL) cold_end(&old);
    if (own.segment != NULL && range->position >= own.warm_at) {
        /* It has reached pages that other readers loaded. */
        cold_end(&own);
        own.segment = NULL;
    }
    bool known = cold_resident(range->fd, range->position, range->length) >= 0;
    bool cold_here = known && (own.segment != NULL || cold_begin(&own, range));
    if (cold_here) cold_note_resident(&own, range->fd, end, bytes);
    cold_read_in(cold, range);
    if (own.segment != NULL) {
        /* The reader has received everything before this range, because it requests the next
         * one. */
        int64_t to = range->position / COLD_FOLIO_BYTES * COLD_FOLIO_BYTES;
        if (to > own.forgotten)
            cold_drop_pages(&own, range->fd, own.forgotten - COLD_AGAIN_BYTES, to);
        own.next = end;
    }
    /* A stream without a slot is never found again. Keep its pages: they are not sent yet. */
    if (slot != NULL)
        cold_store(cold, slot, &own);
    else if (own.segment != NULL)
        segment_release(own.segment);
    return cold_here || !known;
}

void cold_sweep(struct cold *cold, bool all) {
    if (atomic_load(&cold->live) == 0) return;
    int64_t now_ms = clock_read_ms(CLOCK_MONOTONIC);
    for (int i = 0; i < COLD_STREAMS_MAX; i++) {
        struct cold_stream *s = &cold->streams[i], own;
        lock_acquire(&cold->lock);
        bool left = s->segment != NULL && !s->busy && (all || now_ms - s->used_ms >= COLD_IDLE_MS);
        own = *s;
        if (left) {
            s->segment = NULL;
            assert(atomic_load(&cold->live) > 0);
            atomic_fetch_sub(&cold->live, 1);
        }
        lock_release(&cold->lock);
        if (left) cold_end(&own);
    }
}

void cold_clear(struct cold *cold) {
    cold_sweep(cold, true);
    assert(atomic_load(&cold->live) == 0);
    if (cold->null >= 0) close(cold->null);
    lock_destroy(&cold->lock);
}
