/* One segment: `<base offset, 20 digits>.log` with `.index` and `.timeindex`, its descriptor, maps
 * and unwritten index tail.
 *
 * A segment is held by reference (memory) and by pin (open descriptor). Unpinned descriptors stay
 * open under their directory's limit and are closed in clock order; segments with unflushed bytes
 * are not, so that a failed write-back is seen by the descriptor that flushes. Index entries of the
 * writable segment gather in memory and go to the file in groups: they are derivable, and searches
 * look at both. Locks: `index_lock` guards maps, counts and tail; the log's append lock guards the
 * fields of the writable end. */
#ifndef PYLOG_SEGMENT_H
#define PYLOG_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "format/batch.h"
#include "thread/iopool.h"
#include "log/log.h"
#include "thread/lock.h"
#include "thread/mapped.h"

struct log_dir;
struct crash_state_slot;

/* Where a log's files are; shared by its segments, which may outlive it in a reader's hands. */
struct segment_home {
    _Atomic uint32_t references;
    struct log_dir *dir;
    char *name; /* directory below the log directory; changes on deletion, under the dir's
                   files_lock */
    bool deleted; /* the log was deleted: its files are unlinked later (files_lock) */
};
struct segment_home *segment_home_new(struct log_dir *dir, const char *name);
void segment_home_retain(struct segment_home *home);
void segment_home_release(struct segment_home *home);

/* Entries of the writable segment that are not in its index files yet. */
struct segment_tail {
    uint8_t *offsets, *times;
    uint32_t offset_count, time_count, offset_room, time_room;
};

/* Bytes inside a segment that are no batches: [position, end). The batch before ends below
 * `offset`, the next good one begins with `next_offset` (-1: none follows). A wrong length may lead
 * a walk past good batches, up to `reach`. */
struct segment_hole {
    int64_t position, end, reach, offset, next_offset;
};
struct segment_holes {
    int64_t mapped; /* bytes of the segment that were looked through */
    uint32_t count;
    struct segment_hole at[];
};

struct segment {
    _Atomic uint32_t references;
    _Atomic int32_t pins;     /* >= 0: open, and how many use it; -1: closed */
    _Atomic bool used, dirty; /* second chance; unflushed bytes */
    _Atomic bool flush_done;  /* flushed and trimmed since it was sealed */
    bool removed;             /* files renamed or gone: never opened again (files_lock) */
    int fd;
    struct segment_home *home;
    struct segment *clock_next, *clock_prev;
    int64_t base_offset;
    _Atomic int64_t bytes;     /* written, whole batches */
    _Atomic int64_t allocated; /* preallocated up to here; 0: never */
    _Atomic int64_t largest_timestamp,
        largest_timestamp_offset; /* offset: last of its batch; -1: not known */
    _Atomic int64_t modified_ms; /* of a sealed segment's file; -1: not asked for yet */
    int64_t first_timestamp, created_ms;
    int32_t index_interval_bytes, since_entry_bytes, jitter_ms;
    _Atomic bool preallocating, sealed;
    _Atomic bool aborted_due;              /* the .txnindex does not have all, or not on disk */
    _Atomic(struct segment_holes *) holes; /* NULL: none was met; contents under index_lock */
    _Atomic bool damaged;                  /* bytes that are no good batches were met */
    struct lock index_lock;
    bool counted GUARDED_BY(index_lock); /* index counts are known */
    /* Indexes were rebuilt once: not again for the same damage. */
    bool rebuilt GUARDED_BY(index_lock);
    /* The files do not have what was written: neither read nor written until they are made anew. */
    bool index_lost GUARDED_BY(index_lock);
    bool index_doubted GUARDED_BY(index_lock); /* that was found by what they led to, once */
    /* Entries in the files; the last timestamp of the time index, INT64_MIN none. */
    uint32_t offset_count GUARDED_BY(index_lock), time_count GUARDED_BY(index_lock);
    int64_t last_indexed_time GUARDED_BY(index_lock);
    struct mapped_read maps GUARDED_BY(index_lock); /* of the offset index and the time index */
    struct segment_tail *tail GUARDED_BY(index_lock);
    /* log_aborted.c; NULL: the file is all. */
    struct segment_aborted *aborted GUARDED_BY(index_lock);
    uint32_t aborted_loads GUARDED_BY(index_lock); /* how often there may have been more since */
    bool aborted_absent GUARDED_BY(index_lock);    /* there is no file: readers look once */
    /* Damage below was noted. */
    int64_t reported_holes GUARDED_BY(index_lock), reported_batches GUARDED_BY(index_lock);
    struct iojob job; /* preallocation */
    _Atomic(struct crash_state_slot *) crash_state; /* of the last segment: its log's, or NULL */
};

/* The largest timestamp so far, and the last offset of the batch that has it. */
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

struct segment *segment_new(struct segment_home *home, int64_t base_offset, int64_t bytes,
                            int64_t largest_timestamp);
void segment_retain(struct segment *s);
void segment_release(struct segment *s);

/* "<home>/<base>.<extension>" below the log directory. */
enum { SEGMENT_PATH_BYTES = 320 };
void segment_path_locked(const struct segment *s, const char *extension,
                         char path[SEGMENT_PATH_BYTES]); /* files_lock */
void segment_path(struct segment *s, const char *extension, char path[SEGMENT_PATH_BYTES]);

/* When the records of a segment were written, for retention and compaction: its largest timestamp
 * or, where no record has one from 1970 on, the time of its file, as in Kafka. -1: not known. */
int64_t segment_written_ms(struct segment *s);

/* Makes a sealed segment writable again. The time that its file had must not stand for the records
 * that come now: retention would delete them early. */
static inline void segment_unseal(struct segment *s) {
    atomic_store(&s->sealed, false);
    atomic_store(&s->modified_ms, -1);
}

/* Opens when needed. 0 or -errno. `create`: a new empty file, whatever was there before. */
int segment_pin(struct segment *s, bool create);
void segment_unpin(struct segment *s);

/* Closes the file unless it is in use: whoever uses it last leaves it open for eviction. */
void segment_close_idle(struct segment *s);

/* Preallocation ahead of `bytes`, on the pool when it has room; `limit`: the segment's configured
 * size. */
void segment_preallocate(struct segment *s, int64_t limit, bool whole);
/* A file that has a second name belongs to a branch too: it is never written or cut in place. */
bool segment_is_shared(const struct segment *s); /* pinned */
/* Returns true if another program unlinked the segment's file. Appends to such a file are lost when
 * the last descriptor closes. Pinned, or with files_lock (the _locked form). */
bool segment_is_unlinked(struct segment *s);
bool segment_is_unlinked_locked(const struct segment *s);
/* Cuts the file to `bytes` and brings that to disk; a shared one is copied up to there first, and
 * its indexes lose their names. 0 or -errno. Pinned. */
int segment_cut(struct segment *s, int64_t bytes);
/* Cuts space beyond the written bytes. 0 or -errno. Pinned. */
int segment_trim(struct segment *s);
/* The same for a sealed segment, by whoever is last: this or a preallocation under way. */
void segment_trim_sealed(struct segment *s);

/* ---- index ---- */
/* Called once per appended batch, in order. Returns whether an entry was added. */
bool segment_index_batch(struct segment *s, const struct batch_header *h, int64_t position);
/* Writes the tail to the files; `final` adds the last time entry. 0 or -errno (the entries stay in
 * memory). */
int segment_index_write(struct segment *s, bool final);
/* Drops entries at or above the offset / position. */
void segment_index_truncate(struct segment *s, int64_t offset, int64_t position);
void segment_index_unmap(struct segment *s) REQUIRES(s->index_lock);
uint32_t segment_index_entries(struct segment *s, bool times);
/* Forgets everything and empties the files, before a rebuild. */
void segment_index_reset(struct segment *s);
/* 1: a file is missing where one is due, or its entries cannot be right. 0: sane. -errno: something
 * is short. Reads the files whole. */
int segment_index_damaged(struct segment *s);
/* They led where no batch begins, or not the one that they told of: made anew, but not for ever. */
void segment_index_distrust(struct segment *s);
/* Of a segment that nobody appends to, before its files are synced: both are there with all their
 * entries. A full disk leaves those in memory. 0 or -errno. Pinned. */
int segment_index_finish(struct segment *s);
/* Entries wait in memory: their files had no room. */
bool segment_index_waits(struct segment *s);

/* Position to scan from for `offset`: of the last indexed batch whose last offset is <= offset; 0
 * when none. -EAGAIN: the index is not in the page cache (only with `nowait`); other -errno, or
 * LOG_E_IO. Files that somebody cut or damaged are made anew. Pinned. */
int segment_index_floor(struct segment *s, int64_t offset, bool nowait, int64_t *position);
/* The last indexed batch start at or below `position` (0 when none). */
int segment_index_border(struct segment *s, int64_t position, bool nowait, int64_t *border);
/* Offset (absolute) from which records at or after `timestamp_ms` may lie. */
int segment_index_floor_time(struct segment *s, int64_t timestamp_ms, int64_t *offset);
/* The last time entry (file or tail): false when there is none. */
bool segment_index_last_time(struct segment *s, int64_t *timestamp_ms, int64_t *offset);

/* ---- scan: headers in order, through a window ---- */
enum { SEGMENT_WINDOW_BYTES = 4096 };
struct segment_scan {
    struct segment *segment;
    int64_t position, end; /* of the next header; scanned bytes */
    int64_t window_position;
    int64_t hole_end; /* of the last hole that was passed over, -1 */
    uint32_t window_bytes, window_room;
    bool nowait, strict; /* strict: damage ends the scan */
    uint8_t *window;     /* `own`, or a larger one that the caller lends after segment_scan_begin */
    uint8_t own[SEGMENT_WINDOW_BYTES];
};
void segment_scan_begin(struct segment_scan *scan, struct segment *s, int64_t position, int64_t end,
                        bool nowait);
/* 1 and the header at `position`, which moves only over holes; 0 at the end; LOG_E_CORRUPT,
 * LOG_E_IO, or -EAGAIN with nowait. Whole batches only. */
int segment_scan_peek(struct segment_scan *scan, struct batch_header *h);
static inline void segment_scan_skip(struct segment_scan *scan, const struct batch_header *h) {
    scan->position += (int64_t)batch_bytes(h);
}
/* Reads `len` bytes at `position` whole. 0, LOG_E_IO or LOG_E_CORRUPT (the file is shorter). */
int segment_read(struct segment *s, int64_t position, uint8_t *to, size_t len);

/* ---- holes (log_damage.c): the readable rest of a damaged segment stays readable ---- */
/* Offsets rise, and stay within what an index entry of the segment can say. */
bool segment_batch_fits(int64_t base_offset, const struct batch_header *h, int64_t next);
/* Of a position where no header parses: 1 and the hole that holds it or led there, 0: none does;
 * negative as a scan. The first time the headers
 * of the whole segment are walked, and what is found is reported. Pinned. */
int segment_hole_at(struct segment *s, int64_t position, bool nowait, struct segment_hole *out);
/* The first known hole that ends behind `position`. Does not block. */
bool segment_hole_behind(struct segment *s, int64_t position, struct segment_hole *out);
/* Of a batch with a right header whose CRC or records are not: noted once. */
void segment_report_batch(struct segment *s, const struct batch_header *h, int64_t position,
                          enum log_damage_why why);
/* After the file was cut. */
void segment_holes_forget(struct segment *s);

#endif
