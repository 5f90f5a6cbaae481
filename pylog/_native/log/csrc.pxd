"""The C declarations for this folder, one section per header; the headers hold the contracts."""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from pylog._native.records.csrc cimport (
    batch_check, batch_error_text, batch_parse, batch_rules, batch_summary, inflater,
)

# ---- mailbox.h
cdef extern from "os/mailbox.h" nogil:
    enum: MESSAGE_WAKE, MESSAGE_IO_DONE, MESSAGE_FIRST_FREE
    struct message:
        uint32_t kind
        int32_t status
        uint64_t token
        void *data
        uint64_t size
    struct mailbox
    mailbox *mailbox_new(uint32_t messages_max)
    void mailbox_free(mailbox *m)
    int mailbox_fd(const mailbox *m)
    uint32_t mailbox_take(mailbox *m, message *out, uint32_t max)
    bint mailbox_arm(mailbox *m)
    void mailbox_disarm(mailbox *m)

# ---- io_pool.h
cdef extern from "os/io_pool.h" nogil:
    enum: IOPOOL_THREADS_MAX
    struct iopool
    struct iojob:
        iojob *next
        int (*run)(iojob *job, void *worker_scratch)
        mailbox *mailbox
        uint64_t token
    iopool *iopool_new(int threads, uint32_t jobs_max, void *(*scratch_new)() noexcept,
                       void (*scratch_free)(void *) noexcept)
    bint iopool_resize(iopool *pool, int threads)
    void iopool_free(iopool *pool)
    void iopool_stats(const iopool *pool, uint64_t *waiting, uint64_t *done)

# ---- meter.h
cdef extern from "os/meter.h" nogil:
    enum: METER_BUCKETS, METER_NS_FIRST, METER_BYTES_FIRST, METER_ERRORS, METER_KINDS
    struct meter_stats:
        uint64_t sum
        uint64_t *counts
    struct meter_api_stats:
        meter_stats *histograms
        uint64_t *errors

# ---- log_manager.h
cdef extern from "log_manager/log_manager.h" nogil:
    enum: LOG_E_IO, LOG_E_OFFLINE, LOG_E_RANGE, LOG_E_SEQUENCE, LOG_E_EPOCH, LOG_E_DUPLICATE
    enum: LOG_E_NOT_LEADER, LOG_E_DELETED, LOG_E_FULL, LOG_E_MEMORY, LOG_E_CORRUPT
    enum: LOG_E_TXN_STATE, LOG_E_WOULD_BLOCK, LOG_E_NOT_REPLICA
    int16_t log_error_code(int error)
    struct log_t "log":
        pass
    struct log_dir
    struct segment
    log_dir *log_dir_new(const char *path, iopool *pool, int *error)
    void log_dir_free(log_dir *dir)
    bint log_dir_offline(const log_dir *dir)
    uint64_t log_dir_lost_logs(const log_dir *dir)
    void log_dir_use_restart_checkpoint(log_dir *dir, const char *where)
    void log_dir_drop_restart_checkpoint(log_dir *dir)
    bint log_dir_report_error(log_dir *dir, int error)
    struct disk
    enum disk_kind:
        DISK_SYSTEM, DISK_FULL, DISK_NO_SYNC, DISK_BROKEN
    void log_dir_set_reserve(log_dir *dir, int64_t bytes)
    bint log_dir_upkeep(log_dir *dir, int64_t *free_bytes, int64_t *total_bytes)
    const char *log_dir_syncfs_problem(const log_dir *dir)
    bint log_dir_short_of_space(const log_dir *dir)
    const disk *disk_of(disk_kind kind)
    void log_dir_set_disk(log_dir *dir, const disk *table)
    int log_dir_failure(const log_dir *dir, const char **call)
    void log_dir_set_open_files(log_dir *dir, uint32_t open_max)
    struct log_dir_stats:
        uint64_t open_files, flush_groups, flush_files, rolls, segments_deleted
        uint64_t recovered_bytes, trusted_bytes, damages_cut, damages_kept, bytes_cut
        uint64_t shortages, short_error
    struct log_damage:
        char partition[256]
        int64_t segment, offset, position, bytes
        int kind, why
    uint32_t log_dir_fetch_damages(log_dir *dir, log_damage *out, uint32_t max)
    void log_dir_stop_recovery(log_dir *dir)
    void log_dir_read_stats(log_dir *dir, log_dir_stats *out)
    void log_dir_flush_times(log_dir *dir, meter_stats *out)
    int log_dir_flush(log_dir *dir)
    int log_dir_close_files(log_dir *dir)
    struct log_config:
        int64_t segment_ms, segment_jitter_ms, retention_ms, retention_bytes, file_delete_delay_ms
        int64_t flush_messages, flush_ms, timestamp_before_max_ms, timestamp_after_max_ms
        int64_t producer_id_expiration_ms, inflated_bytes_max
        int32_t segment_bytes, segment_index_bytes, index_interval_bytes, max_message_bytes
        int32_t compression_level, min_insync_replicas
        int8_t compression_codec
        bint log_append_time, cleanup_delete, cleanup_compact, preallocate, walk_records
        bint acks_all_flush, flush_before_fetch, flushed_records_only
        int64_t replica_lag_ms
    struct log_checkpoint:
        int64_t recovery_point, log_start_offset, high_watermark
        bint clean
        const int64_t *segments
        uint32_t segment_count
        int64_t log_end_offset
        int32_t last_epoch
    void log_retain(log_t *log)
    void log_release(log_t *log)
    int log_open_as(log_dir *dir, const char *name, const uint8_t *topic_id,
                    const log_config *config, const log_checkpoint *checkpoint, int64_t now_ms,
                    log_t **out)
    int log_rename(log_t *log, const char *name)
    int log_seal(log_t *log, int64_t now_ms)
    int log_copy(log_t *source, log_t *to, int64_t bytes_max, int64_t now_ms, int64_t *damaged)
    int log_hand_over(log_t *source, log_t *to, int64_t now_ms, int64_t *damaged)
    int log_close_clean(log_t *log, int64_t now_ms)
    int log_delete(log_t *log, int64_t now_ms)
    void log_abandon(log_t *log)
    void log_set_config(log_t *log, const log_config *config)
    const log_config *log_config_get(log_t *log, log_config *copy)
    int log_become_leader(log_t *log, int32_t epoch, int32_t in_sync_count)
    int log_lead_replicas(log_t *log, int32_t epoch, int32_t in_sync_count)
    void log_become_follower(log_t *log, int32_t epoch)
    void log_set_readable(log_t *log, bint readable)
    bint log_high_watermark_is_current(const log_t *log)
    enum: LOG_REPLICAS_MAX
    struct log_replica:
        int64_t epoch
        int32_t broker
        bint in_sync, maximal, eligible
    int log_set_replicas(log_t *log, int32_t partition_epoch, const log_replica *named,
                         uint32_t count, int32_t in_sync_count)
    void log_set_throttled(log_t *log, bint leading, bint following)
    struct log_follower_fetch:
        int64_t epoch, offset, start_offset, now_ns, sent_high_watermark
        int32_t broker, leader_epoch
        bint may_ask
    int log_follower_at(log_t *log, log_follower_fetch *at)
    struct log_follower:
        int64_t epoch, end, start, fetched_ns, caught_up_ns
        int32_t broker
        bint in_sync
    uint32_t log_followers(log_t *log, log_follower *out, uint32_t max)
    bint log_is_leader(const log_t *log)
    int32_t log_leader_epoch(const log_t *log)
    void log_advance_high_watermark(log_t *log, int64_t high_watermark)
    int log_failed(const log_t *log)
    bint log_offline(const log_t *log)
    int32_t log_in_sync_count(const log_t *log)
    int64_t log_start_offset(const log_t *log)
    int64_t log_end_offset(const log_t *log)
    int64_t log_high_watermark(const log_t *log)
    int64_t log_last_stable_offset(const log_t *log)
    int64_t log_open_transaction(const log_t *log)
    int64_t log_flushed_offset(const log_t *log)
    int64_t log_size_bytes(const log_t *log)
    struct log_stats:
        int64_t start_offset, high_watermark
    void log_read_stats(log_t *log, log_stats *out)
    int log_time_of(log_t *log, int64_t offset, inflater *inflater, int64_t *timestamp_ms)
    struct log_appended:
        int64_t base_offset, last_offset, append_time_ms, log_start_offset
        bint duplicate
    int log_append(log_t *log, uint8_t *batch, size_t len, const batch_summary *summary,
                   int32_t leader_epoch, int64_t now_ms, log_appended *out)
    struct log_producer:
        int64_t transaction_first_offset, last_marker
        int32_t coordinator_epoch
        int16_t epoch
    bint log_producer_of(log_t *log, int64_t producer_id, int64_t now_ms, log_producer *out)
    void log_verify_producer(log_t *log, int64_t producer_id, int16_t epoch, uint64_t holder)
    bint log_flush_before_ack(const log_t *log)
    int log_append_as_follower(log_t *log, const uint8_t *batches, size_t len, int64_t now_ms,
                               size_t *taken)
    enum log_bound:
        LOG_BOUND_END, LOG_BOUND_HIGH_WATERMARK, LOG_BOUND_LAST_STABLE
    struct log_range:
        segment *segment
        int fd
        int64_t position
        int32_t length
        int64_t first_offset, next_offset
        int64_t high_watermark, last_stable_offset, log_start_offset, log_end_offset
    struct log_read_request:
        int64_t offset
        log_bound bound
        int32_t bytes_max
        bint at_least_one
        bint nowait
        bint locked
    int log_read(log_t *log, const log_read_request *request, log_range *out)
    void log_range_release(log_range *range)
    ssize_t log_range_read(const log_range *range, void *to, size_t len, int64_t position)
    int64_t log_bytes_from(log_t *log, int64_t offset, log_bound bound)
    int log_range_cached(const log_range *range)
    struct log_aborted:
        int64_t producer_id, first_offset
    struct log_aborted_list:
        log_aborted *at
        uint32_t count
        int64_t upper
    int log_aborted_between(log_t *log, int64_t offset, int64_t upper, int64_t keep_below,
                            uint32_t count_max, log_aborted_list *out)
    int log_offset_for_time(log_t *log, int64_t target_ms, int64_t *offset, int64_t *timestamp_ms,
                            int32_t *leader_epoch)
    int log_offset_of_max_time(log_t *log, int64_t *offset, int64_t *timestamp_ms,
                               int32_t *leader_epoch)
    void log_end_for_epoch(log_t *log, int32_t epoch, int32_t *found_epoch, int64_t *end_offset)
    int32_t log_epoch_of(log_t *log, int64_t offset)
    int32_t log_last_epoch(log_t *log)
    enum log_wait_for:
        LOG_WAIT_HIGH_WATERMARK, LOG_WAIT_LAST_STABLE, LOG_WAIT_END, LOG_WAIT_FLUSHED
    struct log_waiter:
        log_waiter *next
        log_waiter *prev
        mailbox *mailbox
        uint64_t token
        int64_t offset
        uint8_t wait_for
        bint linked
    bint log_wait(log_t *log, log_waiter *waiter)
    void log_unwait(log_t *log, log_waiter *waiter)
    int log_flush(log_t *log)
    int log_roll_if_due(log_t *log, int64_t now_ms)
    int log_apply_retention(log_t *log, int64_t now_ms)
    int log_move_start(log_t *log, int64_t offset, int64_t now_ms)
    int log_truncate(log_t *log, int64_t offset, int32_t leader_epoch)
    int log_restart_at(log_t *log, int64_t offset, int32_t leader_epoch)
    void log_expire_producers(log_t *log, int64_t now_ms)
    int64_t log_recovery_point(const log_t *log)
    uint8_t *log_copy_producers(log_t *log, int64_t now_ms, size_t *bytes)
    uint32_t log_segments(log_t *log, int64_t *triples, uint32_t max)
    void log_recovery_report(const log_t *log, int64_t *bytes_cut, uint32_t *segments_scanned)

# ---- producer_state.h
cdef extern from "segment/producer_state.h" nogil:
    enum: PRODUCERS_HEAD_BYTES

# ---- scratch.h
cdef extern from "format/scratch.h" nogil:
    void *scratch_new()
    void scratch_free(void *scratch)

# ---- offset_map.h
cdef extern from "compaction/offset_map.h" nogil:
    enum: KEYMAP_SLOT_BYTES
    struct offset_map:
        uint64_t capacity, count
    bint offset_map_init(offset_map *m, size_t bytes, double load_factor)
    void offset_map_free(offset_map *m)
    void offset_map_clear(offset_map *m)

# ---- pass.h
cdef extern from "compaction/pass.h" nogil:
    struct log_clean_rules:
        int64_t now_ms, delete_retention_ms, min_compaction_lag_ms, first_dirty, inflated_bytes_max
        int32_t segment_bytes
    struct log_clean_estimate_t "log_clean_estimate":
        int64_t clean_bytes, dirty_bytes, first_dirty, cleanable_end, first_dirty_timestamp
    void log_clean_estimate(log_t *log, const log_clean_rules *rules, log_clean_estimate_t *out)
    struct log_clean_stats:
        int64_t end_offset, bytes_mapped, bytes_read, bytes_written, batches_read, batches_kept
        int64_t records_read, records_kept, bytes_damaged
        uint32_t segments_before, segments_after
    struct log_clean:
        pass
    int log_clean_begin(log_t *log, offset_map *map, const log_clean_rules *rules, log_clean **out)
    int log_clean_step(log_clean *c, int64_t bytes_max)
    void log_clean_stats_of "log_clean_stats"(const log_clean *c, log_clean_stats *out)
    void log_clean_end(log_clean *c)
