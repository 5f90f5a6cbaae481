/* The structure behind log.h, for the modules that maintain logs: csrc/log/, log_manager/ and
 * compaction/. All others use log.h.
 *
 * Lock order: log->flush.lock, append.lock, view.lock; then the locks in segment/log_dir.h.
 * log->wait.lock is taken last; the directory's logs_lock comes before it. */
#ifndef PYLOG_LOG_STRUCT_H
#define PYLOG_LOG_STRUCT_H

#include <dirent.h>
#include <stdatomic.h>
#include <stddef.h>

#include "log/log.h"
#include "os/lock.h"
#include "os/meter.h"
#include "segment/leader_epochs.h"
#include "segment/log_dir.h"
#include "segment/producer_state.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

enum { LOG_HINTS = 8, LOG_HINTS_LEFT = 4, LOG_WAIT_KINDS = 4 };

/* Largest base offset of a segment or batch: a segment's offsets reach INT32_MAX above its base,
 * and the log continues after them. */
#define LOG_OFFSET_MAX (INT64_MAX - 2 * (int64_t)INT32_MAX)

struct log_counts {
    _Atomic uint64_t appends, append_failures, batches_in, records_in, bytes_in; /* append.lock */
    _Atomic uint64_t refused, reads, read_failures, bytes_out, cold_reads;       /* any thread */
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
    struct log *next, *lazy_next;
    bool wanted, lazy_wanted; /* queued */
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
    _Atomic uint32_t leadership_losses;
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
    int64_t leader_end_then, sent_high_watermark;
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
    _Atomic int64_t held_recovery_point; /* log_hold_recovery_point; INT64_MAX: none */
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
    struct partition_dir *partition;
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
    _Atomic(struct restart_checkpoint_slot *) restart_checkpoint; /* set once; NULL: none */
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

#endif
