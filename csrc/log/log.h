/* The partition log: ordered segments and the writable end. Formats are Kafka's (see
 * docs/formats.md).
 *
 * Threads: append, roll, truncate, retention under the log's own mutex; readers take no append lock
 * (ends are published atomically, segments are held by reference). Everything here may be called
 * from reactors, io workers and Python (GIL released). Invariants: (1) base offsets strictly rise;
 * (2) log_start <= last_stable <= high_watermark <= log_end; (3) every byte below recovery_point is
 * on disk; (4) flushed <= log_end, and an acknowledgement that promises the disk waits for flushed.
 */
#ifndef PYLOG_LOG_H
#define PYLOG_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "format/batch.h"
#include "thread/disk.h"
#include "thread/iopool.h"
#include "thread/mailbox.h"
#include "thread/meter.h"

struct log;
struct log_dir;
struct segment;

enum log_error {                  /* negative results; log_error_code maps them to Kafka's codes */
                 LOG_E_IO = -101, /* 56 KAFKA_STORAGE_ERROR; errno in log_dir_failure */
                 LOG_E_OFFLINE = -102,  /* 56: the log directory failed before */
                 LOG_E_RANGE = -103,    /* 1 OFFSET_OUT_OF_RANGE */
                 LOG_E_SEQUENCE = -104, /* 45 OUT_OF_ORDER_SEQUENCE_NUMBER */
                 LOG_E_EPOCH = -105,    /* 47 INVALID_PRODUCER_EPOCH */
                 LOG_E_DUPLICATE =
                     -106, /* 46; only for duplicates older than remembered where Kafka says so */
                 LOG_E_NOT_LEADER = -107, /* 6 */
                 LOG_E_DELETED = -108,    /* 3 UNKNOWN_TOPIC_OR_PARTITION */
                 LOG_E_FULL =
                     -109, /* 56: no space left; nothing was appended, the log stays readable */
                 LOG_E_MEMORY = -110,
                 LOG_E_CORRUPT = -111,   /* 2: a batch on disk does not parse */
                 LOG_E_TXN_STATE = -112, /* 48 */
                 LOG_E_WOULD_BLOCK =
                     -113, /* only from log_read_nowait: a page that it needs is not cached */
                 LOG_E_NOT_REPLICA = -114 /* 75: the leader knows of no such replica */
};
int16_t log_error_code(int error);

/* ---- log directories: one per disk; the flusher's unit ---- */
/* `pool` runs preallocation, flushes and unlinks. NULL and *error (errno) when it cannot be opened
 * or is not writable. */
struct log_dir *log_dir_new(const char *path, struct iopool *pool, int *error);
void log_dir_free(struct log_dir *dir);
bool log_dir_offline(const struct log_dir *dir);
/* From now on its logs use this disk: for tests of what a failing one does. */
void log_dir_set_disk(struct log_dir *dir, const struct disk *disk);
/* A file beside the logs met this errno. True: the directory is offline; false: a shortage. */
bool log_dir_give_up(struct log_dir *dir, int error);
/* Why it went offline: errno and the failing call's name; 0 while it is online. */
int log_dir_failure(const struct log_dir *dir, const char **call);
/* Descriptors of segments kept open while nobody uses them; segments in use or with unflushed bytes
 * may exceed it. */
void log_dir_set_open_files(struct log_dir *dir, uint32_t open_max);
/* Before any log is opened: keeps in `where`, a tmpfs, what its logs' last segments look like, and
 * learns what a process that was killed kept there. Segments that have not changed since are walked
 * without their contents. Nothing happens where that cannot be had. */
void log_dir_remember(struct log_dir *dir, const char *where);
/* Before another process may have the directory, at a stop. */
void log_dir_forget(struct log_dir *dir);
/* Below `bytes` of free space clients' appends are refused (log_take_room), so that retention,
 * compaction, groups and metadata can go on. 0: never. */
void log_dir_set_reserve(struct log_dir *dir, int64_t bytes);
/* Looks at the file system now; also whenever space is preallocated. *free_bytes is what an
 * unprivileged program may use. False: it cannot be told. */
bool log_dir_look_at_space(struct log_dir *dir, int64_t *free_bytes, int64_t *total_bytes);
/* The same, about once a second: also forgets what was read cold by those who did not come back,
 * and takes the directory offline if another program deleted it or a file that is written. */
bool log_dir_tend(struct log_dir *dir, int64_t *free_bytes, int64_t *total_bytes);
/* Why one syncfs does not serve for many logs here; NULL: it does. */
const char *log_dir_syncfs_silent(const struct log_dir *dir);
bool log_dir_short_of_space(const struct log_dir *dir);
struct log_dir_figures {
    uint64_t open_files, flush_groups, flush_files, rolls, segments_deleted;
    uint64_t recovered_bytes;                      /* checked by recoveries */
    uint64_t trusted_bytes; /* of which they read the headers alone: see log_dir_remember */
    uint64_t damages_cut, damages_kept, bytes_cut; /* dropped segments count as cut */
    uint64_t shortages, short_error; /* disk_is_short: how often, and the errno of the last */
};
void log_dir_stats(struct log_dir *dir, struct log_dir_figures *out);
/* ---- damage: what a recovery cut off, and bytes amid a log that are no batches ---- */
enum log_damage_kind {
    LOG_DAMAGE_CUT,     /* the end of a log, after its last good batch */
    LOG_DAMAGE_DROPPED, /* a whole segment behind such a cut */
    LOG_DAMAGE_KEPT,    /* amid good batches: left where it is, passed over by readers */
    LOG_DAMAGE_KINDS
};
enum log_damage_why {
    LOG_WHY_SHORT,  /* a batch that is cut short */
    LOG_WHY_ZEROS,  /* zeros: allocated, never written */
    LOG_WHY_HEADER, /* bytes that are no header of a batch */
    LOG_WHY_CRC,
    LOG_WHY_ORDER, /* an offset below that of the batch before */
    LOG_WHY_GAP,   /* the segment behind begins later than this one ends */
    LOG_WHY_BEHIND, /* behind a cut */
    LOG_WHY_RECORDS /* a batch with a right CRC whose records cannot be inflated */
};
struct log_damage {
    char partition[256]; /* the name of its directory */
    int64_t segment, offset, position, bytes;
    enum log_damage_kind kind;
    enum log_damage_why why;
};
/* Moves up to `max` noted damages to `out`, oldest first; returns how many. Of more than were
 * fetched in time only log_dir_figures tells. */
uint32_t log_dir_take_damages(struct log_dir *dir, struct log_damage *out, uint32_t max);
/* A recovery under way or to come in this directory ends with LOG_E_OFFLINE: for a stop. */
void log_dir_stop_recovery(struct log_dir *dir);

/* Adds what each fdatasync of a segment took, in ns. */
void log_dir_flush_times(struct log_dir *dir, struct meter_figures *out);
/* log_flush for all logs that have something to flush, with one sync of the file system when they
 * are many. */
int log_dir_flush(struct log_dir *dir);
/* log_close_clean for all logs in the same way: before each is closed, at a stop. */
int log_dir_settle(struct log_dir *dir);

/* ---- settings of a log (topic configuration, resolved) ---- */
struct log_config {
    int64_t segment_ms, segment_jitter_ms, retention_ms, retention_bytes, file_delete_delay_ms;
    int64_t flush_messages, flush_ms, timestamp_before_max_ms, timestamp_after_max_ms;
    int64_t producer_id_expiration_ms, inflated_bytes_max;
    int32_t segment_bytes, segment_index_bytes, index_interval_bytes, max_message_bytes;
    int32_t compression_level; /* for compression_codec; INT32_MIN: the codec's default */
    int32_t min_insync_replicas;
    int8_t compression_codec; /* -1: producer's, by copy; else enum codec */
    bool log_append_time, cleanup_delete, cleanup_compact, preallocate, walk_records;
    bool acks_all_flush; /* acks=all waits for the disk when this replica is alone */
    bool flush_before_fetch; /* a replica counts for the high watermark with what it has on disk */
    bool flushed_records_only; /* the leader's unflushed records stay above the high watermark */
    int64_t replica_lag_ms; /* who caught up within it is about to join the ISR */
};

/* What a clean start knows without touching the directory; all -1/0: scan and recover. */
struct log_checkpoint {
    int64_t recovery_point;   /* everything below is on disk; 0: recover from the log's start */
    int64_t log_start_offset; /* -1: the first segment's base */
    int64_t high_watermark;   /* -1: not known */
    bool clean;               /* stopped cleanly: trust `segments`, scan nothing */
    const int64_t
        *segments; /* clean only: segment_count triples (base offset, bytes, largest timestamp) */
    uint32_t segment_count;
    int64_t log_end_offset; /* clean only */
    int32_t last_epoch;     /* clean only: the newest leader epoch, -1 none */
};

/* Opens (creating the directory, partition.metadata with `topic_id`, and a first segment lazily)
 * <dir>/<topic>-<partition>. Opens no descriptor for a clean log: a partition at rest costs memory
 * only. 0 and *out (one reference), or a log_error. Recovery drops a torn tail after the last good
 * batch and rebuilds missing or wrong indexes and producer state. */
int log_open(struct log_dir *dir, const char *topic, int32_t partition, const uint8_t topic_id[16],
             const struct log_config *config, const struct log_checkpoint *checkpoint,
             int64_t now_ms, struct log **out);
/* The same in a directory of another name: a replica that is being moved here. */
int log_open_as(struct log_dir *dir, const char *name, const uint8_t topic_id[16],
                const struct log_config *config, const struct log_checkpoint *checkpoint,
                int64_t now_ms, struct log **out);
/* Gives the log's directory another name. 0 or a log_error. */
int log_rename(struct log *log, const char *name);
/* Appends to `to`, a follower in another log directory, what `from` has beyond its end: about
 * bytes_max. Bytes that are no good batches are copied as they lie, and counted in *damaged. 1:
 * there is more, 0: the ends are equal, negative: a log_error. */
int log_copy(struct log *from, struct log *to, int64_t bytes_max, int64_t now_ms, int64_t *damaged);
/* Ends a move: with no append in between `to` gets the rest and is brought to disk, and `from`
 * leads no more. Waiters of `from` stay, until its flush or its end. */
int log_hand_over(struct log *from, struct log *to, int64_t now_ms, int64_t *damaged);
void log_retain(struct log *log);
void log_release(struct log *log); /* the last one closes the files */
/* Flushes, writes the producer snapshot and the epoch checkpoint, trims preallocated space. */
int log_close_clean(struct log *log, int64_t now_ms);
/* Nothing is written to its files any more, by nobody; appends, reads and waiters get
 * LOG_E_DELETED. Before another log_open of the same partition in this process, after
 * log_close_clean or instead of it. */
void log_abandon(struct log *log);
/* Renames the directory to <topic>-<partition>.<uuid>-delete, fails waiters and appends, unlinks
 * after file.delete.delay.ms. */
int log_delete(struct log *log, int64_t now_ms);
void log_set_config(struct log *log, const struct log_config *config);
const struct log_config *log_config_get(struct log *log, struct log_config *copy);

/* ---- role: who may append, and what moves the high watermark ---- */
/* Leader of `epoch` with so many in-sync replicas, this one included: with one, appends move the
 * high watermark by themselves. Also when only the ISR changed. */
int log_become_leader(struct log *log, int32_t epoch, int32_t in_sync_count);
/* The same of a partition with other replicas: they are named by log_set_replicas, and before that
 * the high watermark stays. */
int log_lead_replicas(struct log *log, int32_t epoch, int32_t in_sync_count);
void log_become_follower(struct log *log, int32_t epoch);
/* As long as it follows, consumers may read what is below its high watermark (KIP-392). */
void log_set_readable(struct log *log, bool readable);
bool log_is_readable(const struct log *log);
bool log_is_leader(const struct log *log);
int32_t log_leader_epoch(const struct log *log);
void log_advance_high_watermark(struct log *log, int64_t high_watermark);

/* Why the log cannot serve as leader: 0, LOG_E_OFFLINE, LOG_E_DELETED or LOG_E_NOT_LEADER. A waiter
 * that was woken although its end was not reached asks this. */
int log_failed(const struct log *log);
/* acks=all must wait for LOG_WAIT_FLUSHED: the setting asks for it and no other in-sync replica
 * holds the records. */
bool log_flush_before_ack(const struct log *log);
/* What batches are to be stored with, as in log_config; without a lock. */
/* Before a client's append of so many bytes, which ends with log_give_room. False: they would be
 * taken from the reserve (log_dir_set_reserve). */
bool log_take_room(struct log *log, int64_t bytes);
void log_give_room(struct log *log, int64_t bytes);
/* Writes why the log's directory refused an append to `text`, for the client's error message: no
 * paths. error: the append's log_error. below_reserve: log_take_room returned false. */
enum { LOG_CAUSE_BYTES = 192 };
void log_storage_cause(const struct log *log, int error, bool below_reserve,
                       char text[LOG_CAUSE_BYTES]);
/* In-sync replicas, this one included, for min.insync.replicas. */
int32_t log_in_sync_count(const struct log *log);

/* Fewer are in the ISR than min.insync.replicas asks for, of as many replicas as there are. With
 * `maximal` those on their way into it count, too. */
bool log_lacks_replicas(const struct log *log, bool maximal);
/* An append would open a file while too many are open that cannot be closed before they are
 * flushed, which is asked for. */
bool log_lacks_files(struct log *log);
/* How often it has ceased to lead: what was appended under another number may be gone. */
uint32_t log_resignations(const struct log *log);
/* Its high watermark has reached what this leader began with: until then a reader may have seen a
 * higher one from the leader before (KIP-207). */
bool log_high_watermark_is_current(const struct log *log);

/* ---- the other replicas of a partition that this log leads ---- */
enum { LOG_REPLICAS_MAX = 1024 };
struct log_replica {
    int64_t epoch; /* its broker's in the metadata */
    int32_t broker;
    bool in_sync, maximal; /* in the ISR; in it or on the way into it (KIP-497) */
    bool eligible;         /* for the ISR: its broker is neither fenced nor shutting down */
};
/* What the metadata says of all others. Positions of a broker whose epoch is equal are carried
 * over. 0; 1: a newer partition epoch is known; LOG_E_NOT_LEADER, LOG_E_MEMORY. */
int log_set_replicas(struct log *log, int32_t partition_epoch, const struct log_replica *named,
                     uint32_t count, int32_t in_sync_count);
struct log_follower_fetch {
    int64_t epoch; /* of its broker, -1: it does not say */
    int64_t offset, start_offset; /* where it reads: it has all before; and where it begins */
    int64_t now_ns;               /* CLOCK_MONOTONIC */
    int64_t told_high; /* out: the high watermark at its fetch before, -1: there was none */
    int32_t broker;
    int32_t leader_epoch; /* this log's, by which its offset was found to be of one history */
    bool in_sync; /* out: it is in the ISR */
    bool may_ask; /* whether 1 may be answered */
};
/* A follower fetches from `offset` on; moves the high watermark. 0; 1: it may join the ISR, which
 * is said once for each log_set_replicas; LOG_E_NOT_LEADER: this log does not lead, or does anew,
 * or another process of that broker is registered since; LOG_E_NOT_REPLICA; LOG_E_RANGE. */
int log_follower_at(struct log *log, struct log_follower_fetch *at);
/* Whether its replication counts on the throttles (KIP-73): what its followers fetch from here, and
 * what is fetched for it as a follower. */
void log_set_throttled(struct log *log, bool leading, bool following);
bool log_is_throttled_leading(const struct log *log);
bool log_is_throttled_following(const struct log *log);
struct log_follower {
    int64_t epoch, end, start;        /* as it said; -1: it has said nothing yet */
    int64_t fetched_ns, caught_up_ns; /* 0: not yet */
    int32_t broker;
    bool in_sync;
};
/* Fills up to `max`; returns how many there are. */
uint32_t log_followers(struct log *log, struct log_follower *out, uint32_t max);

int64_t log_start_offset(const struct log *log);
int64_t log_end_offset(const struct log *log);
int64_t log_high_watermark(const struct log *log);
int64_t log_last_stable_offset(const struct log *log);
int64_t log_flushed_offset(const struct log *log);
/* First offset of the oldest open transaction, -1 when none is open. A log that has one is never
 * opened as clean: its last stable offset would not be known. */
int64_t log_open_transaction(const struct log *log);
int64_t log_size_bytes(const struct log *log);

/* ---- figures: where the log is, and what was counted since it was opened ---- */
struct log_figures {
    int64_t start_offset, end_offset, high_watermark, last_stable_offset, size_bytes, segments;
    int64_t produce_requests, produce_failures, batches_in, records_in, bytes_in;
    int64_t fetch_requests, fetch_failures, bytes_out, cold_reads;
    int64_t offline; /* 1: its directory failed */
};
void log_figures_take(struct log *log, struct log_figures *out);
/* What the log does not see itself: a part of a Produce that was refused before log_append, an
 * answered part of a Fetch, a range that had to be read from the disk first. */
void log_count_refused(struct log *log);
void log_count_read(struct log *log, int32_t bytes, bool failed);
void log_count_cold(struct log *log);
/* The timestamp of the first record at or above `offset`. 1 found, 0 none, negative error. May
 * block; leaves the readers' hints alone. */
int log_time_of(struct log *log, int64_t offset, struct inflater *in, int64_t *timestamp_ms);

/* ---- append ---- */
struct log_appended {
    int64_t base_offset, last_offset;
    int64_t append_time_ms; /* -1 for CreateTime */
    int64_t log_start_offset;
    uint32_t resignations; /* log_resignations at the append */
    bool duplicate; /* answered from producer state; nothing was written */
};
/* Appends one checked batch as the leader of `leader_epoch` (-1: whatever the epoch is): producer
 * state, offsets, stamps in place (and LogAppendTime), roll if due, pwrite, index entries;
 * publishes the end, wakes waiters. */
int log_append(struct log *log, uint8_t *batch, size_t len, const struct batch_summary *summary,
               int32_t leader_epoch, int64_t now_ms, struct log_appended *out);
/* The same for several batches, none of them transactional, in their order, each with a result of
 * its own; those that lie in memory behind each other are written together where that makes no
 * difference to the files. Waiters are woken once. */
struct log_group_part {
    uint8_t *batch;
    size_t len;
    const struct batch_summary *summary;
    int result; /* out: 0 or a log_error */
    struct log_appended out;
    struct batch_header header; /* the log's own: as it is stored */
};
void log_append_group(struct log *log, struct log_group_part *parts, uint32_t count,
                      int64_t now_ms);
/* What the log knows of a producer; all -1 when nothing. False: its state cannot be read now. */
struct log_producer {
    int64_t transaction_first_offset; /* of the open one */
    int64_t last_marker;              /* offset of the newest one since the log was opened */
    int32_t coordinator_epoch;
    int16_t epoch;
    int16_t verified_epoch; /* of log_verify_producer, since that marker */
    uint64_t verified_for;
};
bool log_producer_of(struct log *log, int64_t producer_id, int64_t now_ms,
                     struct log_producer *out);
/* The coordinator has the partition in the open transaction of this producer and epoch, which the
 * holder (a number that says who, and by which rights) may write to: until the marker comes it need
 * not be asked. Nothing where the log does not know the producer. */
void log_verify_producer(struct log *log, int64_t producer_id, int16_t epoch, uint64_t holder);
/* As log_append, of a client's transactional batch. Unless its transaction is open here,
 * `last_marker` must be what it was when the coordinator was asked (KIP-890), else LOG_E_TXN_STATE;
 * from_zero: who is not known begins with sequence 0. What is appended verifies the producer for
 * the holder: for another one the coordinator is asked again. */
int log_append_verified(struct log *log, uint8_t *batch, size_t len,
                        const struct batch_summary *summary, int64_t last_marker, bool from_zero,
                        uint64_t holder, int64_t now_ms, struct log_appended *out);
/* As a follower or a loader: batches that already carry offsets and epochs, one or several, written
 * as they are. A last one that is cut short stays out, as leaders send byte ranges: *taken says how
 * many bytes are in the log, also beside an error. */
int log_append_as_follower(struct log *log, const uint8_t *batches, size_t len, int64_t now_ms,
                           size_t *taken);

/* Bytes that are no good batches, as a copy of another log has them; the log ends at `end` then. */
int log_append_damage(struct log *log, const uint8_t *bytes, size_t len, int64_t end,
                      int64_t now_ms);

/* ---- read ---- */
enum log_bound { LOG_BOUND_END = 0, LOG_BOUND_HIGH_WATERMARK = 1, LOG_BOUND_LAST_STABLE = 2 };

struct log_range {           /* whole batches in one segment; release with log_range_release */
    struct segment *segment; /* holds the descriptor; NULL when length is 0 */
    int fd;
    int64_t position;     /* bytes in the file */
    int32_t length;       /* bytes; 0 at the end */
    int64_t first_offset; /* base offset of the first batch (<= the wanted offset) */
    int64_t next_offset;  /* the offset after the range: where the next read goes on */
    int64_t high_watermark, last_stable_offset, log_start_offset, log_end_offset;
    uint64_t truncations; /* of the log so far: the segment's bytes stay until the next one */
};
/* Whole batches from the one that holds `offset`, below `bound`, at most `bytes_max` (a longer
 * first batch whole when `at_least_one`, KIP-74). 0 (length 0 between bound and log end: nothing is
 * visible yet), LOG_E_RANGE outside [log start, log end] with the ends filled in, or an error. A
 * reader that goes on where its last read ended searches no index. */
int log_read(struct log *log, int64_t offset, enum log_bound bound, int32_t bytes_max,
             bool at_least_one, struct log_range *out);
/* The same, but LOG_E_WOULD_BLOCK instead of waiting for a disk to find the range (index and header
 * pages). */
int log_read_nowait(struct log *log, int64_t offset, enum log_bound bound, int32_t bytes_max,
                    bool at_least_one, struct log_range *out);
/* Where log_read finds no good batch for `offset`: what lies there instead, a hole or a batch that
 * is broken, whole; next_offset is the first that it did not take. LOG_E_RANGE: there is nothing
 * wrong. Blocks. */
int log_read_damage(struct log *log, int64_t offset, struct log_range *out);
void log_range_release(struct log_range *range);
/* Whether its file is still the log's. Of one that retention or the cleaner took away the log no
 * longer knows what was aborted in it. */
bool log_range_is_current(struct log *log, const struct log_range *range);
/* pread of a range's file, again after a signal; and what a failed read or send of one means for
 * its directory. */
ssize_t log_range_read(const struct log_range *range, void *to, size_t len, int64_t position);
void log_range_failed(const struct log_range *range, int error);
/* The whole range, without waiting for a disk. False: some of it is cold, or cannot be read. */
bool log_range_read_cached(const struct log_range *range, uint8_t *to);
/* Bytes available from `offset` to `bound` without finding batch borders: for min_bytes. */
int64_t log_bytes_from(struct log *log, int64_t offset, enum log_bound bound);
/* 1: the range's pages are in the page cache (sendfile will not block), 0: not all are. */
int log_range_cached(const struct log_range *range);
/* Of a range that is not empty: whether it is to be read by log_range_warm, on a worker, before it
 * is sent. That brings it into the page cache and forgets what its reader has left behind; true:
 * some came from the disk. */
bool log_range_is_cold(const struct log_range *range);
bool log_range_warm(const struct log_range *range);

/* An aborted transaction; and those that overlap [offset, upper), by first offset. */
struct log_aborted {
    int64_t producer_id, first_offset;
};
struct log_aborted_list {
    struct log_aborted *at; /* malloc'd; NULL when count is 0 */
    uint32_t count;
    int64_t upper;
};
/* All aborted transactions that overlap [offset, upper). Of more than `count_max` those that began
 * last are left out, and out->upper is the first offset of the first of them: the list is whole for
 * [offset, out->upper). Those that began below `keep_below` are never left out, and when they are
 * many, as many others are not either.
 * 0; or LOG_E_CORRUPT (a damaged file), LOG_E_MEMORY, LOG_E_IO, and the list is empty. */
int log_aborted_between(struct log *log, int64_t offset, int64_t upper, int64_t keep_below,
                        uint32_t count_max, struct log_aborted_list *out);
/* Ends the range before the batch that holds `offset`. 0; LOG_E_CORRUPT: that is its first batch,
 * or none; or another error. May block. */
int log_range_cut(struct log_range *range, int64_t offset);

/* ---- look-ups ---- */
/* First record with timestamp >= target (target >= 0), exact to the record. 1 found, 0 none,
 * negative error. May block. */
int log_offset_for_time(struct log *log, int64_t target_ms, int64_t *offset, int64_t *timestamp_ms,
                        int32_t *leader_epoch);
/* The record with the greatest timestamp (ListOffsets -3). As above. */
int log_offset_of_max_time(struct log *log, int64_t *offset, int64_t *timestamp_ms,
                           int32_t *leader_epoch);
/* Largest epoch <= `epoch` and its end offset (KIP-101): out -1/-1 when unknown, `epoch` and the
 * end of the log when the cache cannot be read just now. */
void log_end_for_epoch(struct log *log, int32_t epoch, int32_t *found_epoch, int64_t *end_offset);
int32_t log_epoch_of(struct log *log, int64_t offset); /* -1: unknown, or as above */
int32_t log_last_epoch(struct log *log);

/* ---- waiting: one-shot, posted as MESSAGE_WAKE to the waiter's mailbox ---- */
enum log_wait_for {
    LOG_WAIT_HIGH_WATERMARK = 0,
    LOG_WAIT_LAST_STABLE = 1,
    LOG_WAIT_END = 2,
    LOG_WAIT_FLUSHED = 3
};
struct log_waiter { /* lives in the owner's structure; linked while it waits */
    struct log_waiter *next, *prev;
    struct mailbox *mailbox;
    uint64_t token;
    int64_t offset; /* woken when the watched end is > offset, and on deletion, offline, loss of
                       leadership */
    uint8_t wait_for;
    bool as_follower; /* that the log does not lead is no reason to wake it at once */
    bool linked;      /* under the log's waiter lock */
};
/* True: the condition holds already (nothing linked). False: linked. LOG_WAIT_FLUSHED also asks the
 * directory's flusher for a group commit that covers `offset`. */
bool log_wait(struct log *log, struct log_waiter *waiter);
void log_unwait(struct log *log,
                struct log_waiter *waiter); /* no message is posted for it after this returns */

/* ---- upkeep (io workers, Python timers) ---- */
int log_flush(
    struct log *log); /* blocks; moves flushed and recovery point to the end at the call */
int log_roll_if_due(struct log *log, int64_t now_ms);
/* Begins a new segment unless the last is empty: all records are in sealed ones then. */
int log_seal(struct log *log, int64_t now_ms);
int log_apply_retention(struct log *log, int64_t now_ms); /* segments deleted, or an error */
int log_move_start(struct log *log, int64_t offset,
                   int64_t now_ms); /* DeleteRecords; LOG_E_RANGE above the high watermark */
/* Drops what is at and above offset, leader epochs that begin there too, also where the log ends
 * already. A checkpoint must not name a recovery point above it any more. leader_epoch: only while
 * it follows the leader of that epoch, else LOG_E_NOT_LEADER; -1: whatever it does. */
int log_truncate(struct log *log, int64_t offset, int32_t leader_epoch);
/* Drops everything and goes on from `offset`: a follower whose leader begins there. As above, and a
 * checkpoint must not name another start. */
int log_restart_at(struct log *log, int64_t offset, int32_t leader_epoch);
void log_expire_producers(struct log *log, int64_t now_ms);
/* The producers' state as a .snapshot file holds it (see producers.h), malloc'd; NULL when it
 * cannot be had. */
uint8_t *log_copy_producers(struct log *log, int64_t now_ms, size_t *bytes);
int64_t log_recovery_point(const struct log *log);
/* Triples as in log_checkpoint for the clean-stop record; returns the count (call with max 0 to
 * size). */
uint32_t log_segments(struct log *log, int64_t *triples, uint32_t max);
/* After log_open: bytes cut from a torn tail, and segments scanned, for the start's report. */
void log_recovery_report(const struct log *log, int64_t *bytes_cut, uint32_t *segments_scanned);

#endif
