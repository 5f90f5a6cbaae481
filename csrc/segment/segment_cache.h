/* The open descriptors of a directory's segments: a clock with second chances. */
#ifndef PYLOG_SEGMENT_CACHE_H
#define PYLOG_SEGMENT_CACHE_H

#include <stdatomic.h>
#include <stdint.h>

#include "os/lock.h"
#include "segment/log_dir.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

enum {
    EVICT_SCAN_MAX = 64, /* eviction checks per opened segment, at the limit of open files */
    EVICT_SCAN_MAX_UNDER_PRESSURE = 1024,
    EVICT_COUNT_UNDER_PRESSURE = 64 /* segments to close when the process is out of descriptors */
};

/* Closes up to `count` unpinned, flushed segments, checking at most `looks_max`. */
void segment_cache_evict(struct log_dir *dir, uint32_t count, uint32_t looks_max)
    REQUIRES(dir->files_lock);
/* Closes segments above the limit, a few at a time. */
void segment_cache_trim(struct log_dir *dir);
/* Call after open_count or open_max has changed. */
static inline void segment_cache_update_limits(struct log_dir *dir) REQUIRES(dir->files_lock) {
    uint32_t too_many = dir->open_count > dir->open_max ? dir->open_count - dir->open_max : 0;
    atomic_store_explicit(&dir->over_limit, too_many != 0, memory_order_relaxed);
    atomic_store_explicit(&dir->over_hard_limit, too_many > dir->open_max / 2,
                          memory_order_relaxed);
}

/* Adds a segment that was opened. */
void segment_cache_add(struct segment *s) REQUIRES(s->partition->dir->files_lock);
/* Unmaps and closes a segment that is not pinned; under files_lock. */
void segment_cache_close(struct segment *s);

#endif
