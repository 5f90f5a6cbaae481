/* Descriptors of segments: unused ones stay open up to the directory's limit and are closed in
 * clock order. */
#include "segment/segment_cache.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "os/lock.h"
#include "os/mapped.h"
#include "segment/log_dir.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

/* The segment is not pinned, so no reader uses its maps.
 * index_lock comes before files_lock in the lock order, so the maps are released without it. */
void segment_cache_close(struct segment *s) NO_THREAD_SAFETY_ANALYSIS {
    assert(s->fd >= 0);
    assert(atomic_load(&s->pins) == -1);
    assert(!atomic_load(&s->preallocating));
    mapped_read_unmap(&s->maps);
    close(s->fd);
    s->fd = -1;
    struct log_dir *dir = s->partition->dir;
    if (dir->clock == s) dir->clock = s->clock_next == s ? NULL : s->clock_next;
    s->clock_prev->clock_next = s->clock_next;
    s->clock_next->clock_prev = s->clock_prev;
    s->clock_next = s->clock_prev = NULL;
    assert(dir->open_count > 0);
    dir->open_count--;
    segment_cache_update_limits(dir);
    assert((dir->clock == NULL) == (dir->open_count == 0));
}

void segment_cache_add(struct segment *s) {
    struct log_dir *dir = s->partition->dir;
    assert(s->clock_next == NULL);
    if (dir->clock == NULL) {
        dir->clock = s->clock_next = s->clock_prev = s;
    } else {
        s->clock_next = dir->clock;
        s->clock_prev = dir->clock->clock_prev;
        s->clock_prev->clock_next = s;
        s->clock_next->clock_prev = s;
    }
    dir->open_count++;
    segment_cache_update_limits(dir);
}

void segment_cache_evict(struct log_dir *dir, uint32_t count, uint32_t looks_max) {
    /* Two rounds: the first one clears second chances. */
    uint32_t all = dir->open_count * 2 < looks_max ? dir->open_count * 2 : looks_max;
    for (uint32_t seen = 0; count > 0 && seen < all && dir->clock != NULL; seen++) {
        struct segment *s = dir->clock;
        dir->clock = s->clock_next;
        int32_t idle = 0;
        if (atomic_exchange_explicit(&s->used, false, memory_order_relaxed) ||
            atomic_load(&s->dirty))
            continue;
        if (atomic_load(&s->preallocating) || !atomic_compare_exchange_strong(&s->pins, &idle, -1))
            continue;
        segment_cache_close(s);
        count--;
    }
}

void segment_cache_trim(struct log_dir *dir) {
    uint32_t looked = 0, all = 0;
    do {
        lock_acquire(&dir->files_lock);
        if (looked == 0) all = 2 * dir->open_count;
        if (dir->open_count > dir->open_max)
            segment_cache_evict(dir, dir->open_count - dir->open_max, EVICT_SCAN_MAX);
        else
            all = 0;
        lock_release(&dir->files_lock);
        looked += EVICT_SCAN_MAX;
    } while (looked < all);
}
