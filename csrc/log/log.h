/* The partition log: ordered segments and the writable end. File formats are Kafka's (see
 * docs/reference/file-formats.md).
 *
 * Threads: append, roll, truncation and retention run under the log's own mutex. Readers take no
 * append lock: end offsets are published atomically, and readers hold references to segments.
 * Reactors, I/O workers and Python (with the GIL released) may call every function here.
 *
 * Invariants: base offsets strictly rise; log_start <= last_stable <= high_watermark <= log_end;
 * every byte below recovery_point is on disk; flushed <= log_end, and an acknowledgement that
 * guarantees durability waits for flushed. */
#ifndef PYLOG_LOG_H
#define PYLOG_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "format/batch.h"
#include "os/disk.h"
#include "os/io_pool.h"
#include "os/mailbox.h"
#include "os/meter.h"
#include "segment/damage_report.h"
#include "segment/file_range.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/txn_index.h"

struct log;
struct log_dir;
struct segment;

/* ---- settings of a log (topic configuration, resolved) ---- */
struct log_config {
    int64_t segment_ms, segment_jitter_ms, retention_ms, retention_bytes, file_delete_delay_ms;
    int64_t flush_messages, flush_ms, timestamp_before_max_ms, timestamp_after_max_ms;
    int64_t producer_id_expiration_ms, inflated_bytes_max;
    int32_t segment_bytes, segment_index_bytes, index_interval_bytes, max_message_bytes;
    int32_t compression_level; /* for compression_codec; INT32_MIN: the codec's default */
    int32_t min_insync_replicas;
    int8_t compression_codec; /* -1: producer's, stored unchanged; else enum codec */
    bool log_append_time, cleanup_delete, cleanup_compact, preallocate, walk_records;
    bool acks_all_flush; /* acks=all waits for the flush if this is the only in-sync replica */
    bool flush_before_fetch; /* a replica's flushed offset counts for the high watermark */
    bool flushed_records_only; /* the leader's unflushed records stay above the high watermark */
    int64_t replica_lag_ms; /* a follower that caught up within it is about to join the ISR */
};

void log_retain(struct log *log);
/* ---- role: permission to append, and rules for the high watermark ---- */
/* Makes this replica leader of `epoch`. in_sync_count includes it: with 1, appends move the high
 * watermark directly. Call it also if only the ISR changed. */
int log_become_leader(struct log *log, int32_t epoch, int32_t in_sync_count);
/* The same for a partition with other replicas. The high watermark does not move until
 * log_set_replicas lists them. */
int log_lead_replicas(struct log *log, int32_t epoch, int32_t in_sync_count);
void log_become_follower(struct log *log, int32_t epoch);
/* While the log is a follower, lets consumers read below its high watermark (KIP-392). */
void log_set_readable(struct log *log, bool readable);
bool log_is_readable(const struct log *log);
bool log_is_leader(const struct log *log);
int32_t log_leader_epoch(const struct log *log);
void log_advance_high_watermark(struct log *log, int64_t high_watermark);

/* Returns 0, or why the log cannot act as leader: LOG_E_OFFLINE, LOG_E_DELETED or
 * LOG_E_NOT_LEADER. Check it when a waiter is woken although its end was not reached. */
int log_failed(const struct log *log);
/* Returns true if the log serves no requests: its directory failed, or another program removed
 * its files. It stays offline until it is opened again. */
bool log_offline(const struct log *log);
/* Returns true if acks=all must wait for LOG_WAIT_FLUSHED: acks_all_flush requires it while no
 * other replica is in sync, flush_before_fetch otherwise. Then the high watermark usually waits
 * for the flush too, but not for records that were appended before the log had other replicas. */
bool log_flush_before_ack(const struct log *log);
/* Writes why the log's directory rejected an append to `text`, for the client's error message,
 * without paths. error, below_reserve: of the append. */
enum { LOG_CAUSE_BYTES = 192 };
void log_storage_cause(const struct log *log, int error, bool below_reserve,
                       char text[LOG_CAUSE_BYTES]);
/* Number of in-sync replicas, including this one, for min.insync.replicas. */
int32_t log_in_sync_count(const struct log *log);

/* Returns true if the ISR has fewer members than min.insync.replicas (at most the replication
 * factor). With `maximal`, replicas that are joining count too. */
bool log_below_min_isr(const struct log *log, bool maximal);
/* Returns true if an append would open a file while too many open files wait for a flush before
 * they can be closed. Also requests that flush. */
bool log_descriptors_exhausted(struct log *log);
/* Number of times this log lost leadership. Records appended under another number may be gone. */
uint32_t log_leadership_losses(const struct log *log);
/* Returns true if the high watermark has reached the log's end at the start of this leadership.
 * Before that, a reader may have seen a higher one from the previous leader (KIP-207). */
bool log_high_watermark_is_current(const struct log *log);

/* ---- the other replicas of a partition that this log leads ---- */
enum { LOG_REPLICAS_MAX = 1024 };
struct log_replica {
    int64_t epoch; /* broker epoch in the metadata */
    int32_t broker;
    bool in_sync, maximal; /* in the ISR; in it or about to join it (KIP-497) */
    bool eligible;         /* can join the ISR: its broker is neither fenced nor shutting down */
};
/* Sets all other replicas from the metadata. Keeps the positions of brokers whose epoch is
 * unchanged. Returns 0; 1: a newer partition epoch is already set; LOG_E_NOT_LEADER,
 * LOG_E_MEMORY. */
int log_set_replicas(struct log *log, int32_t partition_epoch, const struct log_replica *named,
                     uint32_t count, int32_t in_sync_count);
struct log_follower_fetch {
    int64_t epoch; /* broker epoch, -1: not sent */
    int64_t offset, start_offset; /* of the fetch: it has everything before; of its log */
    int64_t now_ns;               /* CLOCK_MONOTONIC */
    /* out: high watermark in the previous response, -1: there was none */
    int64_t sent_high_watermark;
    int32_t broker;
    int32_t leader_epoch; /* the leader epoch under which its fetch offset was validated */
    bool in_sync; /* out: it is in the ISR */
    bool may_ask; /* the function may return 1 */
};
/* Records that a follower fetches from `offset` and moves the high watermark. Returns 0; 1: it
 * can join the ISR (returned once for each log_set_replicas); LOG_E_NOT_LEADER: this log does
 * not lead, leads in another epoch, or another process of that broker has registered since;
 * LOG_E_NOT_REPLICA; LOG_E_RANGE. */
int log_follower_at(struct log *log, struct log_follower_fetch *at);
/* Sets which replication traffic of this log counts for the throttles (KIP-73): fetches by its
 * followers, and its own fetches as a follower. */
void log_set_throttled(struct log *log, bool leading, bool following);
bool log_is_throttled_leading(const struct log *log);
bool log_is_throttled_following(const struct log *log);
struct log_follower {
    int64_t epoch, end, start;        /* from its last fetch; -1: it has not fetched yet */
    int64_t fetched_ns, caught_up_ns; /* 0: not yet */
    int32_t broker;
    bool in_sync;
};
/* Fills up to `max` entries; returns the total number of followers. */
uint32_t log_followers(struct log *log, struct log_follower *out, uint32_t max);

int64_t log_start_offset(const struct log *log);
int64_t log_end_offset(const struct log *log);
int64_t log_high_watermark(const struct log *log);
int64_t log_last_stable_offset(const struct log *log);
int64_t log_flushed_offset(const struct log *log);
/* First offset of the oldest open transaction, -1 if there is none. A log with an open
 * transaction is never opened as clean, because its last stable offset would be unknown. */
int64_t log_open_transaction(const struct log *log);
int64_t log_size_bytes(const struct log *log);

/* ---- metrics: offsets, and counters since the log was opened ---- */
struct log_stats {
    int64_t start_offset, end_offset, high_watermark, last_stable_offset, size_bytes, segments;
    int64_t produce_requests, produce_failures, batches_in, records_in, bytes_in;
    int64_t fetch_requests, fetch_failures, bytes_out, cold_reads;
    int64_t offline; /* 1: its directory failed */
};
void log_read_stats(struct log *log, struct log_stats *out);
/* Counts events outside the log: a Produce partition rejected before log_append, a Fetch
 * partition with a response, a range that had to be read from disk first. */
void log_count_refused(struct log *log);
void log_count_read(struct log *log, int32_t bytes, bool failed);
void log_count_cold(struct log *log);
/* Reads the timestamp of the first record at or above `offset`. Returns 1 (found), 0 (none) or
 * an error. May block; does not change the readers' hints. */
int log_time_of(struct log *log, int64_t offset, struct inflater *in, int64_t *timestamp_ms);

/* ---- append ---- */
struct log_appended {
    int64_t base_offset, last_offset;
    int64_t append_time_ms; /* -1 with CreateTime */
    int64_t log_start_offset;
    uint32_t leadership_losses; /* log_leadership_losses at the append */
    bool duplicate; /* known from producer state; nothing was written */
    bool below_reserve; /* LOG_E_FULL: the append would use the reserve (log_dir_set_reserve) */
};
/* Additional conditions for a client's transactional batch. Unless the transaction is open here,
 * `last_marker` must still have its value from before the check with the coordinator (KIP-890),
 * else LOG_E_TXN_STATE. from_zero: an unknown producer must begin with sequence 0. The append
 * marks the producer as verified for this holder; another holder needs its own check. */
struct log_transaction_check {
    int64_t last_marker;
    uint64_t holder;
    bool from_zero;
};
struct log_append_part {
    uint8_t *batch;
    size_t len;
    const struct batch_summary *summary;
    const struct log_transaction_check *transaction; /* or NULL */
    int result; /* out: 0 or a log_error */
    struct log_appended out;
    struct batch_header header; /* internal: the header as stored */
};
/* Appends checked batches in order as the leader of `leader_epoch` (-1: any epoch), each with its
 * own result: verifies producer state, assigns offsets, stamps in place (and LogAppendTime), rolls
 * if due, writes, indexes and publishes the end. Batches that are adjacent in memory are written
 * together if that does not change the files. Wakes waiters once. */
void log_append_batches(struct log *log, struct log_append_part *parts, uint32_t count,
                        int32_t leader_epoch, int64_t now_ms);
/* The same for batches of clients, in any epoch: reserves disk space for them first. Without space
 * for all of them, reserves it for each batch separately. */
void log_append_for_clients(struct log *log, struct log_append_part *parts, uint32_t count,
                            int64_t now_ms);
/* As log_append_batches for one batch. */
int log_append(struct log *log, uint8_t *batch, size_t len, const struct batch_summary *summary,
               int32_t leader_epoch, int64_t now_ms, struct log_appended *out);
/* Reads the log's state of a producer; all fields are -1 if it is unknown. Returns false if the
 * state cannot be read now. */
struct log_producer {
    int64_t transaction_first_offset; /* of the open transaction */
    int64_t last_marker;              /* offset of the newest marker since the log was opened */
    int32_t coordinator_epoch;
    int16_t epoch;
    int16_t verified_epoch; /* from log_verify_producer, since that marker */
    uint64_t verified_for;
};
bool log_producer_of(struct log *log, int64_t producer_id, int64_t now_ms,
                     struct log_producer *out);
/* Records that the coordinator confirmed the partition as part of this producer's open
 * transaction in this epoch. `holder` is a number that identifies the client and its
 * permissions. Until the marker, its batches need no further check with the coordinator. Does
 * nothing if the producer is unknown. */
void log_verify_producer(struct log *log, int64_t producer_id, int16_t epoch, uint64_t holder);
/* Appends as a follower or loader: one or several batches that already have offsets and epochs,
 * stored unchanged. Ignores a truncated last batch, because leaders send byte ranges.
 * *appended_bytes is also set with an error. */
int log_append_as_follower(struct log *log, const uint8_t *batches, size_t len, int64_t now_ms,
                           size_t *appended_bytes);

/* Appends invalid bytes unchanged, as a copy of another log has them. The log then ends at
 * `end`. */
int log_append_damage(struct log *log, const uint8_t *bytes, size_t len, int64_t end,
                      int64_t now_ms);

/* ---- read ---- */
enum log_bound { LOG_BOUND_END = 0, LOG_BOUND_HIGH_WATERMARK = 1, LOG_BOUND_LAST_STABLE = 2 };

struct log_read_request {
    int64_t offset;
    enum log_bound bound;
    int32_t bytes_max;
    bool at_least_one; /* return a longer first batch whole (KIP-74) */
    /* Return LOG_E_WOULD_BLOCK instead of waiting for disk to find the range (index and header
     * pages). */
    bool nowait;
    bool locked; /* the caller holds append.lock */
};
/* Returns whole batches, starting with the one that contains `offset`, below `bound`, at most
 * `bytes_max`. Returns 0 (with length 0 between bound and log end: nothing is visible yet),
 * LOG_E_RANGE outside [log start, log end] with the end offsets set, or an error. Sequential reads
 * need no index search. */
int log_read(struct log *log, const struct log_read_request *request, struct log_range *out);
/* If log_read finds no valid batch for `offset`: returns the bytes there, a hole or a whole
 * damaged batch; next_offset is the first offset after it. LOG_E_RANGE: there is no damage.
 * Blocks. */
int log_read_damage(struct log *log, int64_t offset, struct log_range *out);
/* Returns true if the range's file still belongs to the log. After retention or compaction
 * removed the file, the log no longer has its aborted transactions. */
bool log_range_is_current(struct log *log, const struct log_range *range);
/* Reads the whole range without waiting for disk. Returns false if part of it is cold or
 * unreadable. */
bool log_range_read_cached(const struct log_range *range, uint8_t *to);
/* Bytes available from `offset` to `bound`, without searching batch boundaries: for min_bytes. */
int64_t log_bytes_from(struct log *log, int64_t offset, enum log_bound bound);
/* 1: the range's pages are in the page cache (sendfile will not block); 0: some are not. */
int log_range_cached(const struct log_range *range);
/* For a range that is not empty: log_range_is_cold returns true if a worker must call
 * log_range_warm before the range is sent. log_range_warm loads it into the page cache and drops
 * pages that its reader has passed; it returns true if it read from disk. */
bool log_range_is_cold(const struct log_range *range);
bool log_range_warm(const struct log_range *range);

/* Aborted transactions that overlap [offset, upper), by first offset. */
struct log_aborted_list {
    struct log_aborted *at; /* malloc'd; NULL if count is 0 */
    uint32_t count;
    int64_t upper;
};
/* Lists all aborted transactions that overlap [offset, upper). If there are more than
 * `count_max`, leaves out those with the highest first offsets and sets out->upper to the first
 * of these: the list is complete for [offset, out->upper). Always includes transactions that
 * began below `keep_below`; if they are many, the same number of others is included too.
 *
 * Returns 0; or LOG_E_CORRUPT (a damaged file), LOG_E_MEMORY, LOG_E_IO, with an empty list. */
int log_aborted_between(struct log *log, int64_t offset, int64_t upper, int64_t keep_below,
                        uint32_t count_max, struct log_aborted_list *out);
/* Ends the range before the batch that contains `offset`. Returns 0; LOG_E_CORRUPT if that is
 * the first batch or there is none; or another error. May block. */
int log_range_cut(struct log_range *range, int64_t offset);

/* ---- search ---- */
/* Finds the first record with timestamp >= target (target >= 0), exact to the record. Returns 1
 * (found), 0 (none) or an error. May block. */
int log_offset_for_time(struct log *log, int64_t target_ms, int64_t *offset, int64_t *timestamp_ms,
                        int32_t *leader_epoch);
/* Finds the record with the greatest timestamp (ListOffsets -3). Returns as above. */
int log_offset_of_max_time(struct log *log, int64_t *offset, int64_t *timestamp_ms,
                           int32_t *leader_epoch);
/* Returns the largest epoch <= `epoch` and its end offset (KIP-101): -1/-1 if unknown, `epoch`
 * and the log's end if the epochs cannot be read now. */
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
struct log_waiter { /* part of the owner's structure; linked while it waits */
    struct log_waiter *next, *prev;
    struct mailbox *mailbox;
    uint64_t token;
    int64_t offset; /* woken if the end is > offset, or on deletion, failure or resignation */
    uint8_t wait_for;
    bool as_follower; /* do not wake it immediately just because the log does not lead */
    bool linked;      /* under the log's waiter lock */
};
/* Returns true if the condition is already met (nothing linked), false if the waiter is linked.
 * LOG_WAIT_FLUSHED also requests a group commit that covers `offset`. */
bool log_wait(struct log *log, struct log_waiter *waiter);
void log_unwait(struct log *log,
                struct log_waiter *waiter); /* no message is posted for it after this returns */

/* ---- maintenance (I/O workers, Python timers) ---- */
int log_flush(
    struct log *log); /* blocks; moves flushed and recovery point to the end at the call */
int64_t log_recovery_point(const struct log *log);

#endif
