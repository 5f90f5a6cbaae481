/* A log directory while it is open: its failure state, calls on its files, its free space and
 * delayed removals.
 *
 * Lock order: the locks of a log (see log/log_internal.h) and a segment's index_lock come before
 * files_lock. flush_lock and damages_lock are taken last; logs_lock comes before a log's
 * wait.lock, syncfs_lock before flush_lock. ACQUIRED_AFTER declares what Clang can compare: two
 * locks of one structure. */
#ifndef PYLOG_LOG_DIR_H
#define PYLOG_LOG_DIR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/io_pool.h"
#include "os/lock.h"
#include "os/meter.h"
#include "segment/cold_reads.h"
#include "segment/damage_report.h"

struct restart_checkpoint;
struct log;
struct log_dir;
struct segment;

enum { LOG_DIR_OPEN_MAX = 4096, LOG_DELETE_SUFFIX_BYTES = 40 };

/* A path below the log directory to unlink (a directory: with its files) at due_ms. */
struct log_dir_removal {
    struct log_dir_removal *next;
    struct iojob job;
    struct log_dir *dir;
    int64_t due_ms; /* CLOCK_MONOTONIC */
    bool again;     /* failed with a shortage: do not retry before due_ms */
    char path[];
};

enum { FLUSHER_THREADS = 4 };

struct flush_queue_list {
    struct log *first, **last;
}; /* linked by flush_next, one reference each */

struct flusher {
    struct flush_queue_list requested; /* the next group */
    struct flush_queue_list ready;     /* write-back has started */
    struct flush_queue_list later;     /* failed with a shortage: retry at later_ms */
    int64_t later_ms;           /* CLOCK_MONOTONIC */
    struct log *lazy_first, **lazy_last;
    bool lazy_busy, syncfs_busy, relief_busy, closing, reported;
    _Atomic bool relief_wanted;
    _Atomic uint32_t syncfs_skips;
    _Atomic uint64_t groups, files;
    int thread_count;
    pthread_t threads[FLUSHER_THREADS];
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
    _Atomic int64_t room_bytes, measure_below_bytes, reserved_bytes, refused_bytes;
    _Atomic int64_t free_bytes; /* at the last measurement */
    _Atomic bool short_of_space;
    _Atomic bool offline;
    /* over_limit: more segments are open than the limit, because unflushed ones cannot be closed.
     * over_hard_limit: 50 % over it; the remaining descriptors are reserved for other uses. */
    _Atomic bool over_limit, over_hard_limit;
    _Atomic int failure;
    _Atomic(const char *) failed_call;
    _Atomic uint64_t lost_logs; /* so far; see partition_dir.lost */
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
    struct lock_condition jobs_done;                    /* signalled when `jobs` decreases */
    struct lock_condition changed; /* signalled when there is work for the flusher */
    struct log_dir_removal *removals GUARDED_BY(flush_lock);
    uint32_t jobs GUARDED_BY(flush_lock); /* jobs on the pool that point to this directory */
    struct flusher flusher;
    struct lock damages_lock ACQUIRED_AFTER(flush_lock);
    struct log_damage *damages GUARDED_BY(damages_lock); /* LOG_DAMAGES_MAX, or NULL */
    uint32_t damage_count GUARDED_BY(damages_lock);
    _Atomic uint64_t damage_counts[LOG_DAMAGE_KINDS], damage_bytes[LOG_DAMAGE_KINDS];
    _Atomic uint64_t recovered_bytes, trusted_bytes;
    /* NULL: nothing is recorded for the next process */
    struct restart_checkpoint *restart_checkpoint;
    const char *syncfs_problem; /* why each log is synced separately; NULL: one syncfs per group */
    _Atomic bool recovery_stopped;
    _Atomic uint64_t rolls, segments_deleted;
    struct meter_histogram flush_ns;
    struct cold cold; /* readers of data outside the page cache */
};

bool log_dir_offline(const struct log_dir *dir);
/* Returns how many logs went offline so far because another program removed their files. */
uint64_t log_dir_lost_logs(const struct log_dir *dir);
/* Replaces the disk functions of the directory's logs, to test disk failures. */
void log_dir_set_disk(struct log_dir *dir, const struct disk *disk);
/* Reports the errno of a failed call on a file next to the logs. Returns true if the directory
 * is now offline, false for a shortage. */
bool log_dir_report_error(struct log_dir *dir, int error);
/* Returns the errno that took the directory offline and the failing call's name; 0 while it is
 * online. */
int log_dir_failure(const struct log_dir *dir, const char **call);
/* Call before opening any log. Records the state of each log's last segment in `where`, a tmpfs,
 * and loads the records that a killed process left there. Recovery walks segments that have not
 * changed since without reading their contents. Does nothing if the system cannot support this. */
void log_dir_use_restart_checkpoint(struct log_dir *dir, const char *where);
/* Call at shutdown, before another process can open the directory. */
void log_dir_drop_restart_checkpoint(struct log_dir *dir);
/* Rejects client appends (log_dir_reserve) while less than `bytes` is free, so that retention,
 * compaction, groups and metadata can continue. 0 disables the reserve. */
void log_dir_set_reserve(struct log_dir *dir, int64_t bytes);
/* Measures free space now; preallocation measures it too. *free_bytes is the space available to
 * unprivileged programs. Returns false if it cannot be measured. */
bool log_dir_measure_space(struct log_dir *dir, int64_t *free_bytes, int64_t *total_bytes);
/* Returns why one syncfs cannot flush many logs here; NULL: it can. */
const char *log_dir_syncfs_problem(const struct log_dir *dir);
bool log_dir_short_of_space(const struct log_dir *dir);
/* Ends current and future recoveries in this directory with LOG_E_OFFLINE, for shutdown. */
void log_dir_stop_recovery(struct log_dir *dir);

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
/* Wakes the flusher, after the directory failed or a removal was queued. */
void log_dir_signal_changed(struct log_dir *dir);
/* Reserves space for an append of `bytes`; release it with log_dir_unreserve. Returns false if
 * the append would use the reserve (log_dir_set_reserve). */
bool log_dir_reserve(struct log_dir *dir, int64_t bytes);
void log_dir_unreserve(struct log_dir *dir, int64_t bytes);

#endif
