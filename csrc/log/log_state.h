/* What the log's parts share: the structures behind log.h. Included by csrc/log_*.c and segment*.c
 * only.
 *
 * Locks are taken in this order: log->flush.lock, append.lock, view.lock; a segment's index_lock;
 * the directory's files_lock. log->wait.lock and the directory's flush_lock and damages_lock are
 * taken last; its logs_lock comes before wait.lock, its syncfs_lock before flush_lock. What Clang
 * can compare, two locks of one structure, is ACQUIRED_AFTER. */
#ifndef PYLOG_LOG_STATE_H
#define PYLOG_LOG_STATE_H

#include <stdatomic.h>
#include <stddef.h>

#include "log/cold.h"
#include "log/epochs.h"
#include "log/flusher.h"
#include "log/log.h"
#include "log/producers.h"
#include "log/segment.h"
#include "log/crash_state.h"
#include "thread/lock.h"

enum {
    LOG_DIR_OPEN_MAX = 4096,
    LOG_HINTS = 8,
    LOG_HINTS_LEFT = 4,
    LOG_WAIT_KINDS = 4,
    LOG_DELETE_SUFFIX_BYTES = 40,
    SEGMENTS_LOOKED_AT = 64, /* by one who opens a segment when as many are open as may be */
    SEGMENTS_LOOKED_AT_WHEN_SHORT = 1024,
    SEGMENTS_EVICTED_WHEN_SHORT = 64, /* descriptors are short: so many at rest are closed */
    /* By one call: of 10 MB at once ext4 (Linux 6.18) makes folios that cost 0.8 to 1.9 CPU s/GB to
     * fill, in pieces of 512 KiB to 2 MiB 0.17 to 0.21. */
    LOG_WRITE_BYTES_MAX = 1 << 20,
    LOG_DAMAGES_MAX = 1024
};

/* Of a segment or a batch's base offset: a segment's offsets reach INT32_MAX above its first, and a
 * log goes on behind them. */
#define LOG_OFFSET_MAX (INT64_MAX - 2 * (int64_t)INT32_MAX)

/* A path below the log directory that is to be unlinked (a directory: with its files) when its time
 * has come. */
struct log_dir_removal {
    struct log_dir_removal *next;
    struct iojob job;
    struct log_dir *dir;
    int64_t due_ms; /* CLOCK_MONOTONIC */
    bool again;     /* it met a shortage: not before its time */
    char path[];
};

struct log_counts {
    _Atomic uint64_t appends, append_failures, batches_in, records_in, bytes_in; /* append.lock */
    _Atomic uint64_t refused, reads, read_failures, bytes_out, cold_reads;       /* any thread */
};

struct log_dir {
    int fd;
    char *path;
    struct iopool *pool;
    _Atomic(const struct disk *) disk;
    _Atomic int64_t reserve_bytes;
    /* Free above the reserve, less what was taken since it was measured, and where it is measured
     * again; what appends under way will take; the least that was refused since. */
    _Atomic int64_t room_bytes, room_look_bytes, under_way_bytes, refused_bytes;
    _Atomic int64_t free_bytes; /* at the last measurement */
    _Atomic bool short_of_space;
    _Atomic bool offline;
    /* More segments are open than should be: those that are not on disk cannot be closed. Half as
     * many again: the rest of the descriptors is for others. */
    _Atomic bool crowded, full;
    _Atomic int failure;
    _Atomic(const char *) failed_call;
    _Atomic uint64_t shortages; /* met so far */
    _Atomic int short_error;    /* errno of the last */
    struct lock logs_lock;
    struct log *logs GUARDED_BY(logs_lock);           /* by log->link */
    struct lock files_lock ACQUIRED_AFTER(logs_lock); /* descriptors and names, too */
    struct segment *clock GUARDED_BY(files_lock);
    uint32_t open_count GUARDED_BY(files_lock), open_max GUARDED_BY(files_lock);
    /* Held over the call: the kernel tells of a failure once, to whoever comes first. */
    struct lock syncfs_lock ACQUIRED_AFTER(files_lock);
    struct lock flush_lock ACQUIRED_AFTER(syncfs_lock); /* the flusher's queues, too */
    struct lock_condition flush_quiet;                 /* jobs fell */
    struct log_dir_removal *removals GUARDED_BY(flush_lock);
    uint32_t jobs GUARDED_BY(flush_lock); /* on the pool, with a pointer to this directory */
    struct flusher flusher;
    struct lock damages_lock ACQUIRED_AFTER(flush_lock);
    struct log_damage *damages GUARDED_BY(damages_lock); /* LOG_DAMAGES_MAX, or NULL */
    uint32_t damage_count GUARDED_BY(damages_lock);
    _Atomic uint64_t damage_counts[LOG_DAMAGE_KINDS], damage_bytes[LOG_DAMAGE_KINDS];
    _Atomic uint64_t recovered_bytes, trusted_bytes;
    struct crash_state *crash_state; /* NULL: nothing is recorded for the next process */
    const char *syncfs_silent; /* why each log is synced by itself; NULL: groups by one syncfs */
    _Atomic bool recovery_stopped;
    _Atomic uint64_t rolls, segments_deleted;
    struct meter_histogram flush_ns;
    struct cold cold; /* readers of what is not in the page cache */
};

/* What changed, and how much of it is on disk: whoever syncs notes `made` first, and a change
 * meanwhile stays visible. */
struct log_marks {
    _Atomic uint32_t made, synced;
};
static inline void log_mark(struct log_marks *m) { atomic_fetch_add(&m->made, 1); }
static inline bool log_marked(struct log_marks *m) {
    return atomic_load(&m->made) != atomic_load(&m->synced);
}

struct log_completed {
    int64_t first_offset, last_offset;
};
struct log_hint {
    int64_t offset, base_offset;
    int32_t position;
};

/* Where the log stands in its directory's lists. */
struct log_link {
    struct log *next, *prev; /* dir->logs_lock */
    bool listed;             /* in dir->logs: opened whole */
};

/* Where it stands in the flusher's queues; all under dir->flush_lock. */
struct log_queue {
    struct log *next, *slow_next;
    bool wanted, slow_wanted; /* queued */
    bool flushing, again;     /* a thread is at it; it was asked for meanwhile */
    /* Of the flusher's sync: whoever has `flushing` set them. */
    int64_t sync_target;
    uint64_t sync_truncations;
};

/* Who may append, and what moves the high watermark. Written under append.lock (alone and
 * in_sync_count_min: under view.lock), read anywhere. */
struct log_role {
    _Atomic bool leader;
    _Atomic bool readable; /* by consumers, though it does not lead */
    _Atomic bool alone; /* no other replica limits the high watermark */
    _Atomic int32_t leader_epoch, in_sync_count, maximal_count;
    _Atomic int32_t in_sync_count_min; /* min.insync.replicas, at most all replicas */
    _Atomic uint32_t resignations;
    _Atomic int64_t epoch_start; /* the end at which it became leader */
    _Atomic bool throttled_leading, throttled_following; /* log_set_throttled; any time */
    /* The settings acks_all_flush, flush_before_fetch and flushed_records_only, readable without a
     * lock. */
    _Atomic bool flush_before_ack, flush_before_fetch, flushed_records_only;
};

/* What a leader knows of another replica: the row of the metadata, and its last fetch. */
struct log_remote {
    int64_t epoch;         /* its broker's in the metadata */
    int64_t fetched_epoch; /* that it fetched with, -1: it did not say */
    int64_t end, start;    /* -1: it has not fetched yet */
    int64_t leader_end_then, told_high;
    int64_t fetched_ns, caught_up_ns; /* CLOCK_MONOTONIC; 0: not yet */
    int32_t broker;
    bool in_sync, maximal, eligible;
    bool asked; /* it was said that it may join */
};
struct log_replicas {
    int32_t partition_epoch;
    uint32_t count, maximal_count;
    struct log_remote of[];
};

/* log_start <= last_stable <= high_watermark <= log_end, and flushed <= log_end: log_ends_check.
 * Written under view.lock, read anywhere, one at a time: a reader without the lock may see one of
 * them older than another. */
struct log_ends {
    _Atomic int64_t start_offset, end_offset, high_watermark, last_stable, flushed;
};

/* The writable end, and what is derived from the batches. */
struct log_append_side {
    struct lock lock;
    bool clean GUARDED_BY(lock); /* opened by checkpoint alone: the files are not looked at yet */
    bool writable GUARDED_BY(lock); /* the last segment is open for appends */
    bool producers_loaded GUARDED_BY(lock), epochs_loaded GUARDED_BY(lock);
    struct producers producers GUARDED_BY(lock);
    struct epochs epochs GUARDED_BY(lock);
    int32_t last_epoch GUARDED_BY(lock);      /* while epochs are not loaded */
    int64_t snapshot_offset GUARDED_BY(lock); /* of the newest .snapshot written or loaded, -1 */
    _Atomic int64_t first_open; /* of the oldest open transaction, -1; written under the lock */
    _Atomic uint32_t quiet;     /* no new preallocation while above 0 */
};

/* The right to read the segment list and the settings, which append.lock or view.lock gives, or to
 * change them, for which both are held. It is nothing at run time. */
struct CAPABILITY("segment list") log_access {
    char nothing;
};

/* What readers go by. */
struct log_view {
    struct lock lock;
    struct log_access access;
    struct segment **segments GUARDED_BY(access);
    uint32_t segment_count GUARDED_BY(access), segment_capacity GUARDED_BY(access);
    struct log_config config GUARDED_BY(access);
    _Atomic int64_t size_bytes;              /* of all segments; written under append.lock */
    uint64_t truncations GUARDED_BY(access); /* so far */
    /* Ends of the last reads, LOG_HINTS, and behind them where the last of those that went on
     * began, LOG_HINTS_LEFT; or NULL. */
    struct log_hint *hints GUARDED_BY(lock);
    uint32_t next_hint GUARDED_BY(lock), next_left GUARDED_BY(lock);
    /* Transactions that ended above the high watermark, from completed_from to completed_end: both
     * offsets rise. One that began later and ended earlier than another bounds nothing, and is left
     * out. */
    struct log_completed *completed GUARDED_BY(lock);
    uint32_t completed_from GUARDED_BY(lock), completed_end GUARDED_BY(lock),
        completed_room GUARDED_BY(lock);
    struct log_replicas *replicas GUARDED_BY(lock); /* NULL: no others are named */
};

/* One flush, truncation, swap or deletion at a time. */
struct log_flush_state {
    struct lock lock;
    /* Epochs that are not in their file; directory entries that are not on disk. */
    struct log_marks epochs_marks, files_marks;
    _Atomic int64_t held_point;    /* log_hold_point; INT64_MAX: none */
    _Atomic int64_t last_flush_ms; /* CLOCK_REALTIME */
    /* Indexes of segments that are flushed had no room: they wait in memory. */
    _Atomic bool indexes_due;
};

struct log_waiting {
    struct lock lock;
    struct log_waiter *lists[LOG_WAIT_KINDS] GUARDED_BY(lock);
    _Atomic uint32_t counts[LOG_WAIT_KINDS];
};

/* What the open did: set before others have the log. */
struct log_recovery {
    uint32_t segments_scanned;
    int64_t bytes_cut;
};

struct log {
    _Atomic uint32_t references;
    struct segment_home *home;
    uint8_t topic_id[16];
    _Atomic bool deleted;
    struct log_link link;
    struct log_queue queue;
    struct log_flush_state flush;
    struct log_role role;
    struct log_ends ends;
    struct log_append_side append;
    struct log_view view;
    struct log_waiting wait;
    struct log_recovery recovery;
    _Atomic(struct crash_state_slot *) crash_state; /* set once; NULL: it has none */
    struct log_counts counts;
};

/* Of a function that is called with the append lock held: it may read the segment list too. */
#define LOG_APPENDING(log) REQUIRES(log->append.lock) REQUIRES_SHARED(log->view.access)

/* The analysis takes the accesses on trust here, and nowhere else. */
static inline void log_append_lock(struct log *log) ACQUIRE(log->append.lock)
    ACQUIRE_SHARED(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_acquire(&log->append.lock);
}
static inline void log_append_unlock(struct log *log) RELEASE(log->append.lock)
    RELEASE_SHARED(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_release(&log->append.lock);
}
/* By whoever was called by one who has it, on ways that the analysis cannot follow. */
static inline void log_append_assert(struct log *log) ASSERT_CAPABILITY(log->append.lock)
    ASSERT_SHARED_CAPABILITY(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_assert_held(&log->append.lock);
}
/* By whoever does not have the append lock: to read. */
static inline void log_view_lock(struct log *log) ACQUIRE(log->view.lock)
    ACQUIRE_SHARED(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_acquire(&log->view.lock);
}
static inline void log_view_unlock(struct log *log) RELEASE(log->view.lock)
    RELEASE_SHARED(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_release(&log->view.lock);
}
/* By whoever has the append lock: to change. */
static inline void log_view_change(struct log *log) REQUIRES(log->append.lock)
    RELEASE_SHARED(log->view.access) ACQUIRE(log->view.lock)
        ACQUIRE(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_acquire(&log->view.lock);
}
static inline void log_view_changed(struct log *log) REQUIRES(log->append.lock)
    RELEASE(log->view.lock) RELEASE(log->view.access)
        ACQUIRE_SHARED(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_release(&log->view.lock);
}

/* The high watermark of a leader that waits for no other replica. It never moves back, because
 * consumers may have read up to it before flushed_records_only was set. */
static inline int64_t log_high_watermark_alone(const struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access) {
    int64_t high = atomic_load_explicit(&log->ends.high_watermark, memory_order_relaxed);
    int64_t to = atomic_load_explicit(log->view.config.flushed_records_only ? &log->ends.flushed
                                                                            : &log->ends.end_offset,
                                      memory_order_relaxed);
    return to > high ? to : high;
}

/* Consumers wait for a flush of this leader. */
static inline bool log_hides_records(const struct log *log) {
    return atomic_load(&log->role.flushed_records_only) && atomic_load(&log->role.leader) &&
           atomic_load(&log->ends.high_watermark) < atomic_load(&log->ends.end_offset) &&
           atomic_load(&log->ends.flushed) < atomic_load(&log->ends.end_offset);
}

/* After any of them moved. */
static inline void log_ends_check(const struct log *log) REQUIRES(log->view.lock) {
    int64_t stable = atomic_load_explicit(&log->ends.last_stable, memory_order_relaxed);
    int64_t high = atomic_load_explicit(&log->ends.high_watermark, memory_order_relaxed);
    int64_t end = atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed);
    assert(atomic_load_explicit(&log->ends.start_offset, memory_order_relaxed) >= 0);
    assert(atomic_load_explicit(&log->ends.start_offset, memory_order_relaxed) <= stable);
    assert(stable <= high);
    assert(high <= end);
    assert(atomic_load_explicit(&log->ends.flushed, memory_order_relaxed) <= end);
}

/* log_damage.c */
/* Notes what a recovery or a read met, for log_dir_take_damages. Any lock may be held. */
void log_damage_note(struct segment *s, enum log_damage_kind kind, enum log_damage_why why,
                     int64_t offset, int64_t position, int64_t bytes);
/* Why no good batch begins at `position`, where one at or above `next` was due. Pinned. */
enum log_damage_why log_damage_look(struct segment *s, int64_t position, int64_t end, int64_t next);

/* segment.c */
/* Closes `count` unpinned, flushed segments, or as many as it meets in `looks_max` looks. */
void segment_evict(struct log_dir *dir, uint32_t count, uint32_t looks_max)
    REQUIRES(dir->files_lock);
/* Closes as many as are too many, a few at a time. */
void segment_evict_spare(struct log_dir *dir);
/* After open_count or open_max has changed. */
static inline void segment_look_at_count(struct log_dir *dir) REQUIRES(dir->files_lock) {
    uint32_t too_many = dir->open_count > dir->open_max ? dir->open_count - dir->open_max : 0;
    atomic_store_explicit(&dir->crowded, too_many != 0, memory_order_relaxed);
    atomic_store_explicit(&dir->full, too_many > dir->open_max / 2, memory_order_relaxed);
}

/* log_dir.c */
static inline const struct disk *log_dir_disk(struct log_dir *dir) {
    return atomic_load_explicit(&dir->disk, memory_order_relaxed);
}
void log_dir_fail(struct log_dir *dir, int error, const char *call);
/* What log_dir_failure reports as the failing call when another program removed the files. */
#define LOG_DIR_GONE "the directory was deleted, renamed or covered by another mount"
#define LOG_DIR_PARTITION_DELETED "a partition's directory was deleted while in use"
#define LOG_DIR_FILE_DELETED "a segment file was deleted while in use"
/* Takes the directory offline if its path no longer leads to the directory that is open, because
 * another program deleted or renamed it or mounted over it. False: it is offline. */
bool log_dir_check_present(struct log_dir *dir);
/* A shortage is noted and LOG_E_FULL or LOG_E_MEMORY; any other errno takes the directory offline:
 * LOG_E_IO. */
int log_dir_error(struct log_dir *dir, int error, const char *call);
/* By the directory's disk, of paths below it: a descriptor, or -1 and errno; 0 or -errno. */
int log_dir_open(struct log_dir *dir, const char *path, int flags);
int log_dir_open_locked(struct log_dir *dir, const char *path, int flags) REQUIRES(dir->files_lock);
int log_dir_rename(struct log_dir *dir, const char *from, const char *to);
int log_dir_unlink(struct log_dir *dir, const char *path);
/* Sooner when the disk is nearly full: who reads it keeps its descriptor. */
void log_dir_remove_later(struct log_dir *dir, const char *path, int64_t delay_ms);
/* Whether so many bytes leave the reserve as it is, and as far as is known without a look. */
bool log_dir_may_allocate(const struct log_dir *dir, int64_t bytes);
int log_dir_sync(struct log_dir *dir,
                 const char *name); /* fsyncs a directory below it, NULL: itself. 0, -errno of its
                                       opening, or LOG_E_IO: the directory is offline */
/* All that its file system has. 0; LOG_E_IO or LOG_E_OFFLINE: this sync or another call failed. */
int log_dir_syncfs(struct log_dir *dir);
/* Whole small files below the directory: read (malloc'd) and replace by rename. 0 or -errno;
 * LOG_E_CORRUPT: it has more than bytes_max, which is more than its writer may write. */
int log_dir_read_file(struct log_dir *dir, const char *path, size_t bytes_max, uint8_t **out,
                      size_t *len);
int log_dir_write_file(struct log_dir *dir, const char *path, const void *bytes, size_t len,
                       bool sync);
int64_t log_dir_now_ms(clockid_t clock);
int64_t log_dir_now_ns(void); /* CLOCK_MONOTONIC */
/* Around a job on the pool that knows the directory: log_dir_free waits for it. */
void log_dir_job_begin(struct log_dir *dir);
void log_dir_job_end(struct log_dir *dir);

/* log_flush.c */
/* For a small file that a shortage keeps from being written: nothing is lost but time, for a start
 * from this offset on makes it anew. So the recovery point stays here until the file is written. */
static inline bool log_is_error(int result) { /* a log_error, and no -errno */
    return result <= LOG_E_IO && result >= LOG_E_NOT_REPLICA;
}
/* Takes the directory offline if another program unlinked the log's last segment file. */
void log_check_linked(struct log *log);
bool log_is_short(int result); /* -errno, or a log_error: room, memory or descriptors are short */
void log_hold_point(struct log *log, int64_t offset);
void log_flush_publish(struct log *log, int64_t target, uint64_t truncations);
int log_flush_index(struct segment *s, const char *extension); /* 0 or -errno */

/* log_wait.c */
void log_wait_wake_some(struct log *log, enum log_wait_for kind, int64_t end);
/* After the end has moved, at every append: mostly nobody waits. */
static inline void log_wait_wake(struct log *log, enum log_wait_for kind, int64_t end) {
    if (atomic_load(&log->wait.counts[kind]) != 0) log_wait_wake_some(log, kind, end);
}
void log_wait_fail(struct log *log, int32_t status);

/* log_open.c */
/* A reference on a log that was found in dir->logs, under logs_lock. False: its last one is gone.
 */
bool log_try_retain(struct log *log);
int log_storage_error(struct log *log, int error,
                      const char *call); /* -errno to a log_error; may take the dir offline */
void log_tune_last(struct log *log, struct segment *s) LOG_APPENDING(log);
/* Creates the file of a new last segment; log_add_segment lists it. */
int log_create_last(struct log *log, int64_t base_offset, int64_t now_ms, struct segment **out)
    LOG_APPENDING(log);
void log_path(struct log *log, const char *file, char path[SEGMENT_PATH_BYTES]);
int log_make_writable(struct log *log, int64_t now_ms)
    LOG_APPENDING(log); /* the last segment, opened for appends */
int log_load_producers(struct log *log, int64_t now_ms) LOG_APPENDING(log);
int log_load_epochs(struct log *log) LOG_APPENDING(log);
/* Takes append.lock for a copy; `sync`: the file is on disk when it returns 0,
 * else *made is what a later sync covers. */
int log_write_epochs(struct log *log, bool sync, uint32_t *made) REQUIRES(log->flush.lock);
int log_close_files(struct log *log); /* everything of log_close_clean but the flush */
int log_write_snapshot(struct log *log, int64_t offset) LOG_APPENDING(log);
int log_add_segment(struct log *log, struct segment *s)
    LOG_APPENDING(log); /* takes the reference */
/* Renames a segment's files away; whoever reads it keeps its descriptor. A name that stays takes
 * the directory offline; false. */
bool log_remove_files(struct log *log, struct segment *s, int64_t delay_ms);
void log_drop_segments(struct log *log, uint32_t from, uint32_t count, int64_t delay_ms)
    LOG_APPENDING(log);

/* log_crash_state.c */
/* Pinned: from now on a start may rely on the segment
 * as it is, its file having been `st` (NULL: it is looked at). */
void log_crash_state_record(struct log *log, struct segment *s, const struct stat *st)
    LOG_APPENDING(log);
/* Until it is recorded again the segment is to be checked. */
void log_crash_state_clear(struct log *log) LOG_APPENDING(log);
/* With append.lock: the last segment has grown to `bytes`. */
static inline void log_crash_state_grown(struct log *log, int64_t bytes) {
    struct crash_state_slot *slot = atomic_load_explicit(&log->crash_state, memory_order_relaxed);
    if (slot != NULL) crash_state_grown(slot, bytes);
}
/* The recovery point has moved, and files of sealed segments may have been trimmed before. */
void log_crash_state_flushed(struct log *log);
void log_crash_state_give_back(struct log *log);

/* log_walk.c */
/* Walks a segment from `position`: producer state, epochs, index (when asked), CRCs of batches at
 * or above `check_from`. Ends at the first bad batch at or above `keep_below` (check_from at
 * least); *good is the position after the last good one, *next the offset after it. */
struct log_walk {
    int64_t check_from, keep_below, replay_from, position, good, next;
    int64_t aborts_from;       /* with `aborts`, those of markers at or above it are noted */
    bool index, aborts, holed; /* holed: its last bytes are a hole */
    bool trusted;              /* headers alone, and anything wrong is LOG_E_CORRUPT */
    bool tail; /* the log's last segment: what no good batch follows is wrong from there on */
};
int log_walk_segment(struct log *log, struct segment *s, struct log_walk *walk, int64_t now_ms)
    LOG_APPENDING(log);

/* log_recover.c */
/* Of "<20 digits>.<extension>": the extension, and the offset; NULL for other names. */
const char *log_file_extension(const char *name, int64_t *offset);
int log_recover(struct log *log, const struct log_checkpoint *given, int64_t now_ms)
    LOG_APPENDING(log);
struct log_offsets {
    int64_t *at;
    uint32_t count, capacity;
};
struct log_listing {
    struct log_offsets segments, snapshots;
};
/* A partition's directory. `finish`: at a start, before anybody uses the files. 0 or -errno. */
int log_list(struct log *log, bool finish, struct log_listing *listing);
void log_list_free(struct log_listing *listing);

/* log_producers.c */
/* The newest snapshot at or below `end` that is whole, -1: none. Others above it would be used by a
 * later start and go, also for a power cut. */
int64_t log_load_snapshot(struct log *log, const struct log_offsets *snapshots, int64_t end)
    LOG_APPENDING(log);
/* Adds what a snapshot does not say: the batches just below it. */
void log_recall_producers(struct log *log, int64_t snapshot) LOG_APPENDING(log);
int log_restore_producers(struct log *log, int64_t end, int64_t now_ms)
    LOG_APPENDING(log); /* newest valid snapshot, then replay */

/* log_lookup.c */
/* A referenced copy of the segment list: look-ups may block, and hold no lock meanwhile. */
struct log_lookup {
    struct segment **segments;
    uint32_t count;
    int64_t start, end;
};
int log_lookup_begin(struct log *log, struct log_lookup *l);
void log_lookup_end(struct log_lookup *l);

/* log_aborted.c */
/* What the producers' state takes from a batch that is appended or replayed; an abort
 * is noted in the segment, unless that is NULL. `batch`: the bytes of a marker, not looked at
 * otherwise. 0 or LOG_E_MEMORY, LOG_E_IO. */
int log_account(struct log *log, struct segment *noted_in, const struct batch_header *h,
                const uint8_t *batch, int64_t now_ms) LOG_APPENDING(log);
/* The same for a batch at `position` of the segment, which has it pinned. */
int log_account_in(struct log *log, struct segment *s, const struct batch_header *h,
                   int64_t position, bool note, int64_t now_ms) LOG_APPENDING(log);
/* Forgets what ends at or above `offset`. 0 or a log_error. */
int log_aborted_cut(struct segment *s, int64_t offset);
/* With flush.lock, or nobody else knows the log: what the file does not have is on disk then. 0 or
 * -errno. */
int log_aborted_write(struct log *log, struct segment *s);
void log_aborted_free(struct segment *s) REQUIRES(s->index_lock);

/* log_role.c */
/* The current leader epoch begins at `offset` when it has no entry yet. */
int log_begin_epoch(struct log *log, int32_t epoch, int64_t offset) LOG_APPENDING(log);
/* So does that of a record which a leader sent: epochs above it in which nothing was appended here
 * give way. */
int log_follow_epoch(struct log *log, int32_t epoch, int64_t offset) LOG_APPENDING(log);
void log_set_last_stable(struct log *log) REQUIRES(log->view.lock);
/* The producers' state is another: so are the open transactions, and what is stable. */
void log_open_changed(struct log *log) LOG_APPENDING(log);
/* A transaction has ended; it is stable when its marker is below the high watermark.
 * 0 or LOG_E_MEMORY. */
int log_complete(struct log *log, int64_t first_offset, int64_t last_offset) LOG_APPENDING(log);

/* log_replicas.c */
/* Moves the high watermark as far as the replicas allow, which the metadata has named. */
void log_replicas_move(struct log *log, int64_t now_ns) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
/* The end moved, and appends do not move the high watermark by themselves. */
void log_replicas_appended(struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
/* in_sync_count_min, after the table or the settings changed. */
void log_replicas_bound(struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
void log_replicas_forget(struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
/* As log_replicas_move, with its wake-ups: the settings or the flushed offset have changed. */
void log_replicas_look(struct log *log);

/* log_append.c */
/* Takes append.lock with no preallocation queued or running: before a file is cut, closed, or
 * opened by another log. */
void log_lock_quiet(struct log *log) ACQUIRE(log->append.lock) ACQUIRE_SHARED(log->view.access);
void log_unlock_quiet(struct log *log) RELEASE(log->append.lock) RELEASE_SHARED(log->view.access);
/* The last segment holds offsets, so that another may follow it. A hole may have taken
 * none. */
static inline bool log_may_roll(const struct log *log) REQUIRES_SHARED(log->view.access) {
    const struct segment *s = log->view.segments[log->view.segment_count - 1];
    return atomic_load_explicit(&s->bytes, memory_order_relaxed) > 0 &&
           atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed) > s->base_offset;
}
int log_roll(struct log *log, int64_t base_offset, int64_t now_ms) LOG_APPENDING(log);
void log_publish(struct log *log, struct segment *s, int64_t bytes, int64_t end) LOG_APPENDING(log);
void log_wake_after_append(struct log *log);
/* Where an empty log begins and ends, whose files are not made yet. */
void log_begin_at(struct log *log, int64_t offset) LOG_APPENDING(log);

/* log_read.c */
/* Position of the first batch whose last offset is >= offset; *first its base offset. 1 found, 0
 * none, or an error: LOG_E_CORRUPT with a *position >= 0 when that batch lies behind a hole that
 * took `offset`. Pinned. */
int log_locate(struct segment *s, int64_t offset, int64_t end, bool nowait, int64_t *position,
               int64_t *first);
/* log_read to the log's end by whoever holds append.lock. */
int log_read_locked(struct log *log, int64_t offset, int32_t bytes_max, struct log_range *out);
int32_t log_find_segment(const struct log *log, int64_t offset)
    REQUIRES_SHARED(log->view.access); /* index of the last with base <= offset, -1 */

#endif
