/* Shared by the log's parts: the structures behind log.h. Included only by csrc/log_*.c and
 * segment*.c.
 *
 * Lock order: log->flush.lock, append.lock, view.lock; a segment's index_lock; the directory's
 * files_lock. log->wait.lock and the directory's flush_lock and damages_lock are taken last; its
 * logs_lock comes before wait.lock, its syncfs_lock before flush_lock. ACQUIRED_AFTER declares
 * what Clang can compare: two locks of one structure. */
#ifndef PYLOG_LOG_INTERNAL_H
#define PYLOG_LOG_INTERNAL_H

#include <dirent.h>
#include <stdatomic.h>
#include <stddef.h>

#include "log/log.h"
#include "log_manager/flusher.h"
#include "os/clock.h"
#include "os/lock.h"
#include "segment/cold_reads.h"
#include "segment/leader_epochs.h"
#include "segment/producer_state.h"
#include "segment/restart_checkpoint.h"
#include "segment/segment.h"

enum {
    LOG_DIR_OPEN_MAX = 4096,
    LOG_HINTS = 8,
    LOG_HINTS_LEFT = 4,
    LOG_WAIT_KINDS = 4,
    LOG_DELETE_SUFFIX_BYTES = 40,
    SEGMENTS_LOOKED_AT = 64, /* eviction checks per opened segment, at the limit of open files */
    SEGMENTS_LOOKED_AT_WHEN_SHORT = 1024,
    SEGMENTS_EVICTED_WHEN_SHORT = 64, /* segments to close when the process is out of descriptors */
    /* Largest pwrite call: with 10 MB per call, ext4 (Linux 6.18) makes folios that cost 0.8 to
     * 1.9 CPU s/GB to fill; with 512 KiB to 2 MiB, 0.17 to 0.21. */
    LOG_WRITE_BYTES_MAX = 1 << 20,
    LOG_DAMAGES_MAX = 1024
};

/* Largest base offset of a segment or batch: a segment's offsets reach INT32_MAX above its base,
 * and the log continues after them. */
#define LOG_OFFSET_MAX (INT64_MAX - 2 * (int64_t)INT32_MAX)

/* A path below the log directory to unlink (a directory: with its files) at due_ms. */
struct log_dir_removal {
    struct log_dir_removal *next;
    struct iojob job;
    struct log_dir *dir;
    int64_t due_ms; /* CLOCK_MONOTONIC */
    bool again;     /* failed with a shortage: do not retry before due_ms */
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
    /* Space above the reserve, minus allocations since it was measured, and the value at which
     * to measure again; bytes that current appends will need; the smallest request rejected
     * since. */
    _Atomic int64_t room_bytes, room_look_bytes, under_way_bytes, refused_bytes;
    _Atomic int64_t free_bytes; /* at the last measurement */
    _Atomic bool short_of_space;
    _Atomic bool offline;
    /* crowded: more segments are open than the limit, because unflushed ones cannot be closed.
     * full: 50 % over it; the remaining descriptors are reserved for other uses. */
    _Atomic bool crowded, full;
    _Atomic int failure;
    _Atomic(const char *) failed_call;
    _Atomic uint64_t lost_logs; /* so far; see segment_home.lost */
    _Atomic bool losses_due;    /* waiters of lost logs are not notified yet */
    _Atomic uint64_t shortages; /* so far */
    _Atomic int short_error;    /* errno of the last one */
    struct lock logs_lock;
    struct log *logs GUARDED_BY(logs_lock);           /* linked by log->link */
    struct lock files_lock ACQUIRED_AFTER(logs_lock); /* also guards descriptors and names */
    struct segment *clock GUARDED_BY(files_lock);
    uint32_t open_count GUARDED_BY(files_lock), open_max GUARDED_BY(files_lock);
    /* Held during the call: the kernel reports a write-back failure only once, to the first
     * caller. */
    struct lock syncfs_lock ACQUIRED_AFTER(files_lock);
    struct lock flush_lock ACQUIRED_AFTER(syncfs_lock); /* also guards the flusher's queues */
    struct lock_condition flush_quiet;                 /* signalled when `jobs` decreases */
    struct log_dir_removal *removals GUARDED_BY(flush_lock);
    uint32_t jobs GUARDED_BY(flush_lock); /* jobs on the pool that point to this directory */
    struct flusher flusher;
    struct lock damages_lock ACQUIRED_AFTER(flush_lock);
    struct log_damage *damages GUARDED_BY(damages_lock); /* LOG_DAMAGES_MAX, or NULL */
    uint32_t damage_count GUARDED_BY(damages_lock);
    _Atomic uint64_t damage_counts[LOG_DAMAGE_KINDS], damage_bytes[LOG_DAMAGE_KINDS];
    _Atomic uint64_t recovered_bytes, trusted_bytes;
    struct crash_state *crash_state; /* NULL: nothing is recorded for the next process */
    const char *syncfs_silent; /* why each log is synced separately; NULL: one syncfs per group */
    _Atomic bool recovery_stopped;
    _Atomic uint64_t rolls, segments_deleted;
    struct meter_histogram flush_ns;
    struct cold cold; /* readers of data outside the page cache */
};

/* Change counters for a sync: read `made` before syncing and store it in `synced` afterwards.
 * Changes during the sync then stay marked. */
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

/* The log's position in the directory's lists. */
struct log_link {
    struct log *next, *prev; /* dir->logs_lock */
    bool listed;             /* in dir->logs: opened completely */
};

/* The log's position in the flusher's queues; guarded by dir->flush_lock. */
struct log_queue {
    struct log *next, *slow_next;
    bool wanted, slow_wanted; /* queued */
    bool flushing, again;     /* a thread is flushing it; another flush was requested */
    /* For the flusher's sync: written by the thread that set `flushing`. */
    int64_t sync_target;
    uint64_t sync_truncations;
};

/* Permission to append, and the inputs of the high watermark. Written under append.lock (`alone`
 * and in_sync_count_min: under view.lock), read anywhere. */
struct log_role {
    _Atomic bool leader;
    _Atomic bool readable; /* by consumers, although it is a follower */
    _Atomic bool alone; /* no other replica limits the high watermark */
    _Atomic int32_t leader_epoch, in_sync_count, maximal_count;
    _Atomic int32_t in_sync_count_min; /* min.insync.replicas, at most the replication factor */
    _Atomic uint32_t resignations;
    _Atomic int64_t epoch_start; /* log end when it became leader */
    _Atomic bool throttled_leading, throttled_following; /* log_set_throttled; at any time */
    /* Copies of the settings acks_all_flush, flush_before_fetch and flushed_records_only,
     * readable without a lock. */
    _Atomic bool flush_before_ack, flush_before_fetch, flushed_records_only;
};

/* A leader's state of another replica: its metadata and its last fetch. */
struct log_remote {
    int64_t epoch;         /* broker epoch in the metadata */
    int64_t fetched_epoch; /* broker epoch of the fetch, -1: not sent */
    int64_t end, start;    /* -1: no fetch yet */
    int64_t leader_end_then, told_high;
    int64_t fetched_ns, caught_up_ns; /* CLOCK_MONOTONIC; 0: not yet */
    int32_t broker;
    bool in_sync, maximal, eligible;
    bool asked; /* log_follower_at returned that it can join */
};
struct log_replicas {
    int32_t partition_epoch;
    uint32_t count, maximal_count;
    struct log_remote of[];
};

/* log_start <= last_stable <= high_watermark <= log_end, and flushed <= log_end
 * (log_ends_check). Written under view.lock, read anywhere, one at a time: without the lock, a
 * reader may see values of different ages. */
struct log_ends {
    _Atomic int64_t start_offset, end_offset, high_watermark, last_stable, flushed;
};

/* The writable end, and the state derived from the batches. */
struct log_append_side {
    struct lock lock;
    bool clean GUARDED_BY(lock); /* opened from the checkpoint only: no file was read yet */
    bool writable GUARDED_BY(lock); /* the last segment is open for appends */
    bool producers_loaded GUARDED_BY(lock), epochs_loaded GUARDED_BY(lock);
    struct producers producers GUARDED_BY(lock);
    struct epochs epochs GUARDED_BY(lock);
    int32_t last_epoch GUARDED_BY(lock);      /* while epochs are not loaded */
    int64_t snapshot_offset GUARDED_BY(lock); /* of the newest .snapshot written or loaded, -1 */
    _Atomic int64_t first_open; /* of the oldest open transaction, -1; written under the lock */
    _Atomic uint32_t quiet;     /* no new preallocation while above 0 */
};

/* The right to access the segment list and the settings: append.lock or view.lock allows
 * reading, both together allow changes. Has no effect at run time. */
struct CAPABILITY("segment list") log_access {
    char nothing;
};

/* The state that readers use. */
struct log_view {
    struct lock lock;
    struct log_access access;
    struct segment **segments GUARDED_BY(access);
    uint32_t segment_count GUARDED_BY(access), segment_capacity GUARDED_BY(access);
    struct log_config config GUARDED_BY(access);
    _Atomic int64_t size_bytes;              /* of all segments; written under append.lock */
    uint64_t truncations GUARDED_BY(access); /* so far */
    /* Ends of the last reads (LOG_HINTS), then start positions of the last reads that continued
     * from a hint (LOG_HINTS_LEFT); or NULL. */
    struct log_hint *hints GUARDED_BY(lock);
    uint32_t next_hint GUARDED_BY(lock), next_left GUARDED_BY(lock);
    /* Transactions that ended above the high watermark, from completed_from to completed_end:
     * both offsets rise. Leaves out a transaction that began later and ended earlier than
     * another, because it cannot limit the last stable offset. */
    struct log_completed *completed GUARDED_BY(lock);
    uint32_t completed_from GUARDED_BY(lock), completed_end GUARDED_BY(lock),
        completed_room GUARDED_BY(lock);
    struct log_replicas *replicas GUARDED_BY(lock); /* NULL: no other replicas are set */
};

/* One flush, truncation, swap or deletion at a time. */
struct log_flush_state {
    struct lock lock;
    /* Epochs that are not in their file; directory entries that are not on disk. */
    struct log_marks epochs_marks, files_marks;
    _Atomic int64_t held_point;    /* log_hold_point; INT64_MAX: none */
    _Atomic int64_t last_flush_ms; /* CLOCK_REALTIME */
    /* Indexes of flushed segments could not be written for lack of space: their entries are in
     * memory. */
    _Atomic bool indexes_due;
};

struct log_waiting {
    struct lock lock;
    struct log_waiter *lists[LOG_WAIT_KINDS] GUARDED_BY(lock);
    _Atomic uint32_t counts[LOG_WAIT_KINDS];
};

/* Results of recovery; set before the log is shared. */
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
    _Atomic(struct crash_state_slot *) crash_state; /* set once; NULL: none */
    struct log_counts counts;
};

/* For a function that is called with the append lock held: it may also read the segment list. */
#define LOG_APPENDING(log) REQUIRES(log->append.lock) REQUIRES_SHARED(log->view.access)

/* Clang's analysis cannot verify these accessors; it relies on them here and nowhere else. */
static inline void log_append_lock(struct log *log) ACQUIRE(log->append.lock)
    ACQUIRE_SHARED(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_acquire(&log->append.lock);
}
static inline void log_append_unlock(struct log *log) RELEASE(log->append.lock)
    RELEASE_SHARED(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_release(&log->append.lock);
}
/* For code whose caller has the lock on a path that the analysis cannot follow. */
static inline void log_append_assert(struct log *log) ASSERT_CAPABILITY(log->append.lock)
    ASSERT_SHARED_CAPABILITY(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_assert_held(&log->append.lock);
}
/* Without the append lock: read access. */
static inline void log_view_lock(struct log *log) ACQUIRE(log->view.lock)
    ACQUIRE_SHARED(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_acquire(&log->view.lock);
}
static inline void log_view_unlock(struct log *log) RELEASE(log->view.lock)
    RELEASE_SHARED(log->view.access) NO_THREAD_SAFETY_ANALYSIS {
    lock_release(&log->view.lock);
}
/* With the append lock: write access. */
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

/* The high watermark of a leader without other replicas. It never moves back, because consumers
 * may have read up to it before flushed_records_only was set. */
static inline int64_t log_high_watermark_alone(const struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access) {
    int64_t high = atomic_load_explicit(&log->ends.high_watermark, memory_order_relaxed);
    int64_t to = atomic_load_explicit(log->view.config.flushed_records_only ? &log->ends.flushed
                                                                            : &log->ends.end_offset,
                                      memory_order_relaxed);
    return to > high ? to : high;
}

/* Returns true if consumers wait for a flush of this leader. */
static inline bool log_hides_records(const struct log *log) {
    return atomic_load(&log->role.flushed_records_only) && atomic_load(&log->role.leader) &&
           atomic_load(&log->ends.high_watermark) < atomic_load(&log->ends.end_offset) &&
           atomic_load(&log->ends.flushed) < atomic_load(&log->ends.end_offset);
}

/* Call after any end offset moved. */
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

/* segment_scan.c */
/* Records damage found by a recovery or a read, for log_dir_take_damages. Any lock may be held. */
void log_damage_note(struct segment *s, enum log_damage_kind kind, enum log_damage_why why,
                     int64_t offset, int64_t position, int64_t bytes);
/* Records that the file of leader epochs, of `bytes` bytes, could not be parsed. */
void log_damage_note_epochs(struct segment_home *home, int64_t bytes);
/* Returns why no valid batch begins at `position`, where one at or above `next` was expected.
 * Pinned. */
enum log_damage_why log_damage_look(struct segment *s, int64_t position, int64_t end, int64_t next);

/* segment.c */
/* Closes up to `count` unpinned, flushed segments, checking at most `looks_max`. */
void segment_evict(struct log_dir *dir, uint32_t count, uint32_t looks_max)
    REQUIRES(dir->files_lock);
/* Closes segments above the limit, a few at a time. */
void segment_evict_spare(struct log_dir *dir);
/* Call after open_count or open_max has changed. */
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
/* The failing call in log_dir_failure if another program removed the directory. */
#define LOG_DIR_GONE "the directory was deleted, renamed or covered by another mount"
/* Takes the directory offline if its path no longer leads to the open directory, because another
 * program deleted or renamed it or mounted over it. Returns false if it is offline. */
bool log_dir_check_present(struct log_dir *dir);
/* Records a shortage and returns LOG_E_FULL or LOG_E_MEMORY. For any other errno, takes the
 * directory offline and returns LOG_E_IO. */
int log_dir_error(struct log_dir *dir, int error, const char *call);
/* Calls on paths below the directory, through its disk functions. Open returns a descriptor, or
 * -1 and errno; the others return 0 or -errno. */
int log_dir_open(struct log_dir *dir, const char *path, int flags);
int log_dir_open_locked(struct log_dir *dir, const char *path, int flags) REQUIRES(dir->files_lock);
int log_dir_rename(struct log_dir *dir, const char *from, const char *to);
int log_dir_unlink(struct log_dir *dir, const char *path);
/* Unlinks after the delay, or sooner if the disk is nearly full. Readers that hold the
 * descriptor can finish. */
void log_dir_remove_later(struct log_dir *dir, const char *path, int64_t delay_ms);
/* Returns true if allocating `bytes` leaves the reserve intact, according to the last
 * measurement. */
bool log_dir_may_allocate(const struct log_dir *dir, int64_t bytes);
/* fsyncs a directory below it, NULL: itself. Returns 0, -errno if it cannot be opened, or
 * LOG_E_IO: the directory is offline. */
int log_dir_sync(struct log_dir *dir, const char *name);
/* Syncs the whole file system. Returns 0, or LOG_E_IO or LOG_E_OFFLINE if this sync or another
 * call failed. */
int log_dir_syncfs(struct log_dir *dir);
/* Read (malloc'd) and replace (by rename) whole small files below the directory. Return 0 or
 * -errno; LOG_E_CORRUPT if the file is longer than bytes_max, the most that its writer writes. */
int log_dir_read_file(struct log_dir *dir, const char *path, size_t bytes_max, uint8_t **out,
                      size_t *len);
int log_dir_write_file(struct log_dir *dir, const char *path, const void *bytes, size_t len,
                       bool sync);
/* Call around a job on the pool that uses the directory: log_dir_free waits for it. */
void log_dir_job_begin(struct log_dir *dir);
void log_dir_job_end(struct log_dir *dir);

/* log_flush.c */
static inline bool log_is_error(int result) { /* a log_error, not -errno */
    return result <= LOG_E_IO && result >= LOG_E_NOT_REPLICA;
}
/* Takes the log offline if another program unlinked its last segment's file. */
void log_check_linked(struct log *log);
/* Files of the log are missing: takes it offline, or the directory if that is missing too. */
void log_lose_files(struct log *log);
bool log_is_short(int result); /* -errno or a log_error: out of space, memory or descriptors */
/* Keeps the recovery point at `offset` while a shortage prevents writing a small file. Nothing
 * is lost: a start from this offset rebuilds the file. */
void log_hold_point(struct log *log, int64_t offset);
void log_flush_publish(struct log *log, int64_t target, uint64_t truncations);
/* Sync a file: by its path below the directory, or a segment's. Return 0, -errno or LOG_E_IO;
 * _index returns 0 if the file is missing, because a start can rebuild it. */
int log_flush_file(struct log_dir *dir, const char *path);
int log_flush_index(struct segment *s, const char *extension);

/* log_waiters.c */
void log_wait_wake_some(struct log *log, enum log_wait_for kind, int64_t end);
/* Called at every append after the end has moved, mostly without waiters. */
static inline void log_wait_wake(struct log *log, enum log_wait_for kind, int64_t end) {
    if (atomic_load(&log->wait.counts[kind]) != 0) log_wait_wake_some(log, kind, end);
}
void log_wait_fail(struct log *log, int32_t status);

/* log_manager/open.c */
/* Takes a reference to a log found in dir->logs, under logs_lock. Returns false if its last
 * reference is gone. */
bool log_try_retain(struct log *log);
int log_storage_error(struct log *log, int error,
                      const char *call); /* -errno to a log_error; may take the directory offline */
void log_tune_last(struct log *log, struct segment *s) LOG_APPENDING(log);
/* Creates the file of a new last segment; log_add_segment adds it to the list. */
int log_create_last(struct log *log, int64_t base_offset, int64_t now_ms, struct segment **out)
    LOG_APPENDING(log);
void log_path(struct log *log, const char *file, char path[SEGMENT_PATH_BYTES]);
int log_make_writable(struct log *log, int64_t now_ms)
    LOG_APPENDING(log); /* opens the last segment for appends */
int log_load_producers(struct log *log, int64_t now_ms) LOG_APPENDING(log);
/* Reads the epochs from their file. If it is missing or damaged, reads them from the batches;
 * _upto: from those below an offset, because the caller walks the others. */
int log_load_epochs(struct log *log) LOG_APPENDING(log);
int log_load_epochs_upto(struct log *log, int64_t upto) LOG_APPENDING(log);
/* Takes append.lock for a copy. `sync`: the file is on disk when it returns 0; otherwise *made
 * is the value that a later sync covers. */
int log_write_epochs(struct log *log, bool sync, uint32_t *made) REQUIRES(log->flush.lock);
int log_close_files(struct log *log); /* log_close_clean without the flush */
int log_write_snapshot(struct log *log, int64_t offset) LOG_APPENDING(log);
int log_add_segment(struct log *log, struct segment *s)
    LOG_APPENDING(log); /* takes the reference */
/* Renames a segment's files to delete them later. Readers that hold the descriptor can finish.
 * If a rename fails, takes the directory offline and returns false. */
bool log_remove_files(struct log *log, struct segment *s, int64_t delay_ms);
void log_drop_segments(struct log *log, uint32_t from, uint32_t count, int64_t delay_ms)
    LOG_APPENDING(log);

/* log_segments.c */
/* Records that the next start can rely on the segment as it is now. `st` is its file's status
 * (NULL: read it here). Pinned. */
void log_crash_state_record(struct log *log, struct segment *s, const struct stat *st)
    LOG_APPENDING(log);
/* The next start must verify the segment unless it is recorded again. */
void log_crash_state_clear(struct log *log) LOG_APPENDING(log);
/* With append.lock: the last segment has grown to `bytes`. */
static inline void log_crash_state_grown(struct log *log, int64_t bytes) {
    struct crash_state_slot *slot = atomic_load_explicit(&log->crash_state, memory_order_relaxed);
    if (slot != NULL) crash_state_grown(slot, bytes);
}
/* Call after the recovery point has moved; files of sealed segments may have been trimmed
 * before. */
void log_crash_state_flushed(struct log *log);
void log_crash_state_give_back(struct log *log);

/* log_replay.c */
/* Walks a segment from `position`: producer state, epochs, index (with `index`), CRCs of batches
 * at or above `check_from`. Ends at the first invalid batch at or above `keep_below` (check_from
 * at least); *good is the position after the last valid batch, *next the offset after it. */
struct log_walk {
    int64_t check_from, keep_below, replay_from, position, good, next;
    int64_t aborts_from;       /* with `aborts`: records aborts by markers at or above it */
    bool index, aborts, holed; /* holed: its last bytes are a hole */
    bool trusted;              /* read only headers; any damage is LOG_E_CORRUPT */
    bool tail; /* the log's last segment: bytes not followed by a valid batch are damaged */
};
int log_walk_segment(struct log *log, struct segment *s, struct log_walk *walk, int64_t now_ms)
    LOG_APPENDING(log);

/* log_manager/recovery.c */
/* Returns the extension and the offset of a name "<20 digits>.<extension>"; NULL for other
 * names. */
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
/* Reads the next entry of a directory, NULL at its end. Returns 0 or -errno: an error must not
 * count as the end, because the remaining segments would be missing. */
int log_next_entry(DIR *entries, struct dirent **entry);
/* Lists a partition's directory. `finish`: also complete interrupted swaps, at start-up, before
 * the files are used. Returns 0 or -errno. */
int log_list(struct log *log, bool finish, struct log_listing *listing);
void log_list_free(struct log_listing *listing);

/* log_producers.c */
/* Loads the newest valid snapshot at or below `end` and returns its offset, -1 if there is none.
 * Removes snapshots above `end` durably, because a later start would use them. */
int64_t log_load_snapshot(struct log *log, const struct log_offsets *snapshots, int64_t end)
    LOG_APPENDING(log);
/* Restores what a snapshot does not contain, from the batches just below it. Returns 0 or
 * LOG_E_MEMORY. */
int log_recall_producers(struct log *log, int64_t snapshot) LOG_APPENDING(log);
int log_restore_producers(struct log *log, int64_t end, int64_t now_ms)
    LOG_APPENDING(log); /* newest valid snapshot, then replay */

/* log_lookup.c */
/* A copy of the segment list with references, because searches may block and hold no lock. */
struct log_lookup {
    struct segment **segments;
    uint32_t count;
    int64_t start, end;
};
int log_lookup_begin(struct log *log, struct log_lookup *l);
void log_lookup_end(struct log_lookup *l);

/* log_transactions.c */
/* Updates the producers' state for an appended or replayed batch. Records an abort in the
 * segment, unless it is NULL. `batch`: the bytes of a marker, not read otherwise. Returns 0 or
 * LOG_E_MEMORY, LOG_E_IO. */
int log_account(struct log *log, struct segment *noted_in, const struct batch_header *h,
                const uint8_t *batch, int64_t now_ms) LOG_APPENDING(log);
/* The same for a batch at `position` of the segment, which is pinned. */
int log_account_in(struct log *log, struct segment *s, const struct batch_header *h,
                   int64_t position, bool note, int64_t now_ms) LOG_APPENDING(log);
/* Removes aborted transactions that end at or above `offset`. Returns 0 or a log_error. */
int log_aborted_cut(struct segment *s, int64_t offset);
/* Writes missing entries to the file and syncs it. Needs flush.lock, unless the log is not
 * shared yet. Returns 0 or -errno. */
int log_aborted_write(struct log *log, struct segment *s);
void log_aborted_free(struct segment *s) REQUIRES(s->index_lock);

/* log_role.c */
/* Begins the current leader epoch at `offset` if it has no entry yet. */
int log_begin_epoch(struct log *log, int32_t epoch, int64_t offset) LOG_APPENDING(log);
/* The same for the epoch of a replicated record. Removes later epochs without records in this
 * log. */
int log_follow_epoch(struct log *log, int32_t epoch, int64_t offset) LOG_APPENDING(log);
void log_set_last_stable(struct log *log) REQUIRES(log->view.lock);
/* Call after the producers' state was replaced: updates the open transactions and the last
 * stable offset. */
void log_open_changed(struct log *log) LOG_APPENDING(log);
/* Records that a transaction has ended; it is stable when its marker is below the high
 * watermark. Returns 0 or LOG_E_MEMORY. */
int log_complete(struct log *log, int64_t first_offset, int64_t last_offset) LOG_APPENDING(log);

/* log_replicas.c */
/* Moves the high watermark as far as the replicas in the metadata allow. */
void log_replicas_move(struct log *log, int64_t now_ns) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
/* Call after the end moved if appends do not move the high watermark directly. */
void log_replicas_appended(struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
/* Updates in_sync_count_min, after the replicas or the settings changed. */
void log_replicas_bound(struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
void log_replicas_forget(struct log *log) REQUIRES(log->view.lock)
    REQUIRES_SHARED(log->view.access);
/* As log_replicas_move, with wake-ups, after the settings or the flushed offset changed. */
void log_replicas_look(struct log *log);

/* log_append.c */
/* Takes append.lock with no preallocation queued or running: before a file is cut, closed, or
 * opened by another log. */
void log_lock_quiet(struct log *log) ACQUIRE(log->append.lock) ACQUIRE_SHARED(log->view.access);
void log_unlock_quiet(struct log *log) RELEASE(log->append.lock) RELEASE_SHARED(log->view.access);
/* Returns true if the last segment holds offsets, so that another may follow it. A hole may
 * contain none. */
static inline bool log_may_roll(const struct log *log) REQUIRES_SHARED(log->view.access) {
    const struct segment *s = log->view.segments[log->view.segment_count - 1];
    return atomic_load_explicit(&s->bytes, memory_order_relaxed) > 0 &&
           atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed) > s->base_offset;
}
int log_roll(struct log *log, int64_t base_offset, int64_t now_ms) LOG_APPENDING(log);
void log_publish(struct log *log, struct segment *s, int64_t bytes, int64_t end) LOG_APPENDING(log);
void log_wake_after_append(struct log *log);
/* Sets the start and end of an empty log whose files do not exist yet. */
void log_begin_at(struct log *log, int64_t offset) LOG_APPENDING(log);

/* log_read.c */
/* Finds the position of the first batch whose last offset is >= offset; *first is its base
 * offset. Returns 1 (found), 0 (none) or an error: LOG_E_CORRUPT with a *position >= 0 if that
 * batch is after a hole that contains `offset`. Pinned. */
int log_locate(struct segment *s, int64_t offset, int64_t end, bool nowait, int64_t *position,
               int64_t *first);
/* log_read up to the log's end, with append.lock held. */
int log_read_locked(struct log *log, int64_t offset, int32_t bytes_max, struct log_range *out);
int32_t log_find_segment(const struct log *log, int64_t offset)
    REQUIRES_SHARED(log->view.access); /* index of the last segment with base <= offset, -1 */

#endif
