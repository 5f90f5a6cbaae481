/* One segment: `<base offset, 20 digits>.log` with `.index` and `.timeindex`, its descriptor,
 * maps and unwritten index tail.
 *
 * A segment has references (memory) and pins (open descriptor). Unpinned descriptors stay open
 * up to the directory's limit and are closed in clock order. Segments with unflushed bytes stay
 * open, so that the descriptor that flushes also sees a failed write-back. Index entries of the
 * writable segment are collected in memory and written to the file in groups: they can be
 * rebuilt, and searches use both.
 *
 * Locks: `index_lock` guards maps, counts and tail; the log's append lock guards the fields of
 * the writable end. */
#ifndef PYLOG_SEGMENT_H
#define PYLOG_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "format/batch.h"
#include "os/io_pool.h"
#include "os/lock.h"
#include "os/mapped.h"

struct log_dir;
struct restart_checkpoint_slot;

/* Entries of the writable segment that are not in its index files yet. */
struct segment_tail {
    uint8_t *offsets, *times;
    uint32_t offset_count, time_count, offset_room, time_room;
};

struct segment {
    _Atomic uint32_t references;
    _Atomic int32_t pins;     /* >= 0: open, number of users; -1: closed */
    _Atomic bool used, dirty; /* second chance; unflushed bytes */
    _Atomic bool flush_done;  /* flushed and trimmed since it was sealed */
    bool removed;             /* files renamed or gone: never opened again (files_lock) */
    int fd;
    struct partition_dir *partition;
    struct segment *clock_next, *clock_prev;
    int64_t base_offset;
    _Atomic int64_t bytes;     /* written, whole batches */
    _Atomic int64_t allocated; /* preallocated up to here; 0: never */
    _Atomic int64_t largest_timestamp,
        largest_timestamp_offset; /* offset: last of its batch; -1: unknown */
    _Atomic int64_t modified_ms; /* of a sealed segment's file; -1: not read yet */
    int64_t first_timestamp, created_ms;
    int32_t index_interval_bytes, since_entry_bytes, jitter_ms;
    _Atomic bool preallocating, sealed;
    _Atomic bool aborted_due;              /* the .txnindex is incomplete or not on disk */
    /* NULL: none found yet; contents under index_lock */
    _Atomic(struct corrupt_ranges *) corrupt_ranges;
    _Atomic bool damaged;                  /* invalid bytes were found */
    struct lock index_lock;
    bool counted GUARDED_BY(index_lock); /* index counts are set */
    /* Indexes were rebuilt once: do not rebuild them for the same damage. */
    bool rebuilt GUARDED_BY(index_lock);
    /* The files lack written entries: do not read or write them until they are rebuilt. */
    bool index_lost GUARDED_BY(index_lock);
    bool index_invalidated GUARDED_BY(index_lock); /* a search found wrong entries, once */
    /* Entries in the files; the last timestamp of the time index, INT64_MIN: none. */
    uint32_t offset_count GUARDED_BY(index_lock), time_count GUARDED_BY(index_lock);
    int64_t last_indexed_time GUARDED_BY(index_lock);
    struct mapped_read maps GUARDED_BY(index_lock); /* of the offset index and the time index */
    struct segment_tail *tail GUARDED_BY(index_lock);
    /* txn_index.c; NULL: the file is complete. */
    struct segment_aborted *aborted GUARDED_BY(index_lock);
    uint32_t aborted_loads GUARDED_BY(index_lock); /* changes if entries may have been added */
    bool aborted_absent GUARDED_BY(index_lock);    /* the file does not exist: readers check once */
    /* Damage below these positions was recorded. */
    int64_t reported_ranges_end GUARDED_BY(index_lock), reported_batches_end GUARDED_BY(index_lock);
    struct iojob job; /* preallocation */
    /* last segment: its log's slot, or NULL */
    _Atomic(struct restart_checkpoint_slot *) restart_checkpoint;
};

/* The largest timestamp so far, and the last offset of its batch. */
struct segment_largest {
    int64_t timestamp, offset;
};

static inline struct segment_largest segment_largest_of(const struct segment *s) {
    return (struct segment_largest){
        atomic_load_explicit(&s->largest_timestamp, memory_order_relaxed),
        atomic_load_explicit(&s->largest_timestamp_offset, memory_order_relaxed)};
}

static inline void segment_largest_publish(struct segment *s, struct segment_largest largest) {
    atomic_store_explicit(&s->largest_timestamp, largest.timestamp, memory_order_relaxed);
    atomic_store_explicit(&s->largest_timestamp_offset, largest.offset, memory_order_relaxed);
}

struct segment *segment_new(struct partition_dir *partition, int64_t base_offset, int64_t bytes,
                            int64_t largest_timestamp);
void segment_retain(struct segment *s);
/* For a segment found in the directory's clock, under files_lock. Returns false if its last
 * reference is gone. */
bool segment_try_retain(struct segment *s);
void segment_release(struct segment *s);
/* Returns when a segment's records were written, for retention and compaction: the largest
 * timestamp or, if no record has one of 1970 or later, the file's modification time, as in
 * Kafka. -1: unknown. */
int64_t segment_written_ms(struct segment *s);

/* Makes a sealed segment writable again. Resets the file's modification time, which would be too
 * old for new records: retention would delete them early. */
static inline void segment_unseal(struct segment *s) {
    atomic_store(&s->sealed, false);
    atomic_store(&s->modified_ms, -1);
}

/* For segment_pin: opens the file, unless another thread has opened it. */
int segment_pin_closed(struct segment *s, bool create);
/* Opens the file if necessary. Returns 0 or -errno. `create`: replaces any existing file by an
 * empty one. */
static inline int segment_pin(struct segment *s, bool create) {
    atomic_store_explicit(&s->used, true, memory_order_relaxed);
    int32_t pins = atomic_load_explicit(&s->pins, memory_order_acquire);
    while (pins >= 0)
        if (atomic_compare_exchange_weak_explicit(&s->pins, &pins, pins + 1, memory_order_acquire,
                                                  memory_order_acquire))
            return 0;
    return segment_pin_closed(s, create);
}
static inline void segment_unpin(struct segment *s) {
    int32_t pins = atomic_fetch_sub_explicit(&s->pins, 1, memory_order_release);
    assert(pins > 0);
    (void)pins;
}

/* Closes the file unless it is in use. The last user then leaves it open for eviction. */
void segment_close_idle(struct segment *s);

/* Preallocates ahead of `bytes`, on the pool if it has space; `limit`: the segment's configured
 * size. */
void segment_preallocate(struct segment *s, int64_t limit, bool whole);
/* A file with a second name also belongs to a branch: it is never written or cut in place. */
bool segment_is_shared(const struct segment *s); /* pinned */
/* Returns true if another program unlinked the segment's file. Appends to such a file are lost
 * when the last descriptor closes. Pinned; takes files_lock if the file is unlinked. */
bool segment_is_unlinked(struct segment *s);
/* Cuts the file to `bytes` and syncs it. Copies a shared file up to that position first, and
 * unlinks its indexes. Returns 0 or -errno. Pinned. */
int segment_cut(struct segment *s, int64_t bytes);
/* Cuts space beyond the written bytes. Returns 0 or -errno. Pinned. */
int segment_trim(struct segment *s);
/* The same for a sealed segment; a preallocation that is still running trims it instead. */
void segment_trim_sealed(struct segment *s);
/* Reads exactly `len` bytes at `position`. Returns 0, LOG_E_IO or LOG_E_CORRUPT (the file is
 * shorter). */
int segment_read(struct segment *s, int64_t position, uint8_t *to, size_t len);

#endif

/* Takes logs offline whose files were unlinked by another program while they were written. */
void segment_check_all_linked(struct log_dir *dir);
