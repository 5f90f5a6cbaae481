/* How logs and their directories are opened, maintained, moved and closed.
 *
 * Threads: I/O workers and Python (with the GIL released) may call every function here. */
#ifndef PYLOG_LOG_MANAGER_H
#define PYLOG_LOG_MANAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "log/log.h"

/* ---- log directories: one per disk; the flusher works per directory ---- */
/* `pool` runs preallocation, flushes and unlinks. Returns NULL and *error (errno) if the
 * directory cannot be opened or is not writable. */
struct log_dir *log_dir_new(const char *path, struct iopool *pool, int *error);
void log_dir_free(struct log_dir *dir);
/* Limits the descriptors of unused segments that stay open. Segments in use or with unflushed
 * bytes may exceed the limit. */
void log_dir_set_open_files(struct log_dir *dir, uint32_t open_max);
/* The same, for a timer of about one second. Also drops the pages of cold readers that have
 * stopped reading, and takes the directory offline if another program deleted it or a file that
 * is open for writing. */
bool log_dir_upkeep(struct log_dir *dir, int64_t *free_bytes, int64_t *total_bytes);

struct log_dir_stats {
    uint64_t open_files, flush_groups, flush_files, rolls, segments_deleted;
    uint64_t recovered_bytes;                      /* walked by recoveries, with contents */
    /* walked by recoveries, headers only: see log_dir_use_restart_checkpoint */
    uint64_t trusted_bytes;
    uint64_t damages_cut, damages_kept, bytes_cut; /* dropped segments count as cut */
    uint64_t shortages, short_error; /* disk_error_is_shortage: count, and the last errno */
};
void log_dir_read_stats(struct log_dir *dir, struct log_dir_stats *out);
/* Adds the duration of each fdatasync of a segment, in ns. */
void log_dir_flush_times(struct log_dir *dir, struct meter_stats *out);
/* Calls log_flush for all logs with unflushed data; uses one sync of the file system for many
 * logs. */
int log_dir_flush(struct log_dir *dir);
/* Does the same for log_close_clean, at shutdown, before each log is closed. */
int log_dir_close_files(struct log_dir *dir);

/* ---- logs ---- */
/* State from a clean shutdown, so that opening reads no directory. All -1/0: scan and recover. */
struct log_checkpoint {
    int64_t recovery_point;   /* everything below is on disk; 0: recover from the log's start */
    int64_t log_start_offset; /* -1: the first segment's base offset */
    int64_t high_watermark;   /* -1: unknown */
    bool clean;               /* clean shutdown: rely on `segments`, scan nothing */
    const int64_t
        *segments; /* clean only: segment_count triples (base offset, bytes, largest timestamp) */
    uint32_t segment_count;
    int64_t log_end_offset; /* clean only */
    int32_t last_epoch;     /* clean only: the newest leader epoch, -1 none */
};

/* Opens <dir>/<topic>-<partition>. Creates the directory, partition.metadata with `topic_id`
 * and, on first use, a segment. Opens no descriptor for a clean log: an idle partition costs
 * only memory. Returns 0 and *out (one reference), or a log_error. Recovery drops a torn tail
 * after the last valid batch and rebuilds missing or wrong indexes and producer state. */
int log_open(struct log_dir *dir, const char *topic, int32_t partition, const uint8_t topic_id[16],
             const struct log_config *config, const struct log_checkpoint *checkpoint,
             int64_t now_ms, struct log **out);
/* The same with a given directory name, for a replica that is being moved here. */
int log_open_as(struct log_dir *dir, const char *name, const uint8_t topic_id[16],
                const struct log_config *config, const struct log_checkpoint *checkpoint,
                int64_t now_ms, struct log **out);
/* After log_open: bytes cut from a torn tail, and segments scanned, for the start-up report. */
void log_recovery_report(const struct log *log, int64_t *bytes_cut, uint32_t *segments_scanned);
void log_release(struct log *log); /* the last reference closes the files */
/* Flushes, writes the producer snapshot and the epoch checkpoint, and trims preallocated space. */
int log_close_clean(struct log *log, int64_t now_ms);
/* Stops all writes to the log's files; appends, reads and waiters get LOG_E_DELETED. Call it
 * after or instead of log_close_clean, before opening the same partition again in this process. */
void log_abandon(struct log *log);
/* Renames the directory to <topic>-<partition>.<uuid>-delete, fails waiters and appends, and
 * unlinks the files after file.delete.delay.ms. */
int log_delete(struct log *log, int64_t now_ms);
void log_set_config(struct log *log, const struct log_config *config);
const struct log_config *log_config_get(struct log *log, struct log_config *copy);
/* Renames the log's directory. Returns 0 or a log_error. */
int log_rename(struct log *log, const char *name);
/* Copies about bytes_max from `from` to `to`, a follower in another log directory, starting at
 * the end of `to`. Copies invalid bytes unchanged and counts them in *damaged. Returns 1 (there
 * is more), 0 (the ends are equal) or a log_error. */
int log_copy(struct log *from, struct log *to, int64_t bytes_max, int64_t now_ms, int64_t *damaged);
/* Completes a move with appends blocked: copies the rest to `to`, flushes it, and ends the
 * leadership of `from`. Waiters stay on `from` until its flush or its end. */
int log_hand_over(struct log *from, struct log *to, int64_t now_ms, int64_t *damaged);

/* ---- maintenance ---- */
int log_roll_if_due(struct log *log, int64_t now_ms);
/* Begins a new segment unless the last one is empty, so that all records are in sealed segments. */
int log_seal(struct log *log, int64_t now_ms);
int log_apply_retention(struct log *log, int64_t now_ms); /* returns segments deleted or an error */
int log_move_start(struct log *log, int64_t offset,
                   int64_t now_ms); /* DeleteRecords; LOG_E_RANGE above the high watermark */
/* Drops records at and above offset, and leader epochs that begin there, also if the log already
 * ends there. Afterwards no checkpoint may contain a recovery point above it. leader_epoch:
 * returns LOG_E_NOT_LEADER unless the log follows the leader of that epoch; -1: any role. */
int log_truncate(struct log *log, int64_t offset, int32_t leader_epoch);
/* Drops everything and continues at `offset`, for a follower whose leader begins there.
 * Otherwise as above; no checkpoint may contain another start. */
int log_restart_at(struct log *log, int64_t offset, int32_t leader_epoch);
void log_expire_producers(struct log *log, int64_t now_ms);
/* Returns the producers' state in the .snapshot format (see producer_state.h), malloc'd; NULL on
 * failure. */
uint8_t *log_copy_producers(struct log *log, int64_t now_ms, size_t *bytes);
/* Writes triples as in log_checkpoint for the clean shutdown record. Returns the count (call
 * with max 0 to get the size). */
uint32_t log_segments(struct log *log, int64_t *triples, uint32_t max);

#endif
