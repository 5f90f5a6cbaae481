"""The C declarations of csrc/, one section per header; the contracts are in the headers."""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

# ---- bytes.h
cdef extern from "format/bytes.h" nogil:
    size_t get_uvarint(const uint8_t *p, const uint8_t *end, size_t bytes_max, uint64_t *v)
    size_t put_uvarint(uint8_t *p, uint64_t v)
    size_t uvarint_bytes(uint64_t v)
    int64_t zigzag_decode(uint64_t v)
    uint64_t zigzag_encode(int64_t v)
    void put_i16(uint8_t *p, int16_t v)
    void put_i32(uint8_t *p, int32_t v)
    void put_i64(uint8_t *p, int64_t v)

# ---- crc32c.h
cdef extern from "format/crc32c.h" nogil:
    uint32_t crc32c_extend(uint32_t crc, const void *data, size_t n)
    uint32_t crc32c_extend_portable(uint32_t crc, const void *data, size_t n)

# ---- compress.h
cdef extern from "format/compress.h" nogil:
    enum: CODEC_NONE, CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD
    enum: COMPRESS_E_CORRUPT, COMPRESS_E_LIMIT, COMPRESS_E_CODEC, COMPRESS_E_MEMORY
    struct inflater
    inflater *inflater_new()
    void inflater_free(inflater *inflater)
    int inflater_begin(inflater *inflater, int codec, const uint8_t *src, size_t len,
                       uint64_t out_max)
    int inflater_next(inflater *inflater, const uint8_t **chunk, size_t *len)
    int compress_block(int codec, int level, const uint8_t *src, size_t len, uint8_t **out,
                       size_t *out_len)

# ---- batch.h
cdef extern from "format/batch.h" nogil:
    enum: BATCH_LOG_OVERHEAD, BATCH_HEADER_BYTES, BATCH_BYTES_MAX, BATCH_BAD_RECORDS_MAX
    enum: BATCH_LENGTH_AT, BATCH_MAGIC_AT, BATCH_ATTRIBUTES_AT, BATCH_LAST_OFFSET_DELTA_AT
    enum: BATCH_RECORD_COUNT_AT
    enum: BATCH_CODEC_MASK, BATCH_LOG_APPEND_TIME, BATCH_TRANSACTIONAL, BATCH_CONTROL
    enum: BATCH_E_SHORT, BATCH_E_RECORD, BATCH_E_CODEC, BATCH_E_MEMORY
    int16_t batch_error_code(int error)
    const char *batch_error_text(int error)
    struct batch_header:
        int64_t base_offset, base_timestamp, max_timestamp, producer_id
        int32_t batch_length, leader_epoch, last_offset_delta, base_sequence, record_count
        uint32_t crc
        int16_t attributes, producer_epoch
        int8_t magic
    size_t batch_bytes(const batch_header *h)
    int batch_codec(const batch_header *h)
    int batch_parse(const uint8_t *p, size_t len, batch_header *h)
    int batch_check_crc(const uint8_t *p, const batch_header *h)
    struct batch_rules:
        int64_t now_ms
        int64_t timestamp_before_max_ms, timestamp_after_max_ms
        int64_t inflated_bytes_max
        int32_t batch_bytes_max
        bint key_required
        bint log_append_time
        bint walk_records
    struct batch_summary:
        batch_header header
        int64_t max_timestamp
        int64_t inflated_bytes
        int32_t max_timestamp_delta
        int32_t bad_record_count
        int32_t *bad_records
    int batch_check(const uint8_t *p, size_t len, const batch_rules *rules, inflater *inflater,
                    batch_summary *out)
    void batch_stamp(uint8_t *p, int64_t base_offset, int32_t leader_epoch)
    void batch_stamp_append_time(uint8_t *p, size_t len, int64_t now_ms)
    bint batch_stamp_max_timestamp(uint8_t *p, size_t len, int64_t max_timestamp)
    int batch_find_timestamp(const uint8_t *p, size_t len, int64_t target_ms, int64_t from_offset,
                             inflater *inflater, int64_t *offset, int64_t *timestamp_ms)
    int batch_find_max_timestamp(const uint8_t *p, size_t len, inflater *inflater, int64_t *offset,
                                 int64_t *timestamp_ms)
    int batch_inflate(const uint8_t *p, const batch_header *h, uint64_t inflated_bytes_max,
                      inflater *inflater, uint8_t **out, size_t *out_len)
    int batch_assemble(const uint8_t *header, int codec, int level, const uint8_t *plain,
                       size_t plain_len, uint8_t **out, size_t *out_len)
    int batch_recompress(const uint8_t *p, size_t len, int codec, int level,
                         int64_t inflated_bytes_max, size_t bytes_max, inflater *inflater,
                         uint8_t **out, size_t *out_len)

# ---- columns.h
cdef extern from "columns/columns.h" nogil:
    enum: COLUMNS_VIEWS_MAX, COLUMNS_NEEDS_INFLATER, COLUMNS_FULL
    struct columns_view:
        int64_t offset, timestamp
        const uint8_t *key
        const uint8_t *value
        const uint8_t *headers
        int32_t key_len, value_len, headers_len, header_count
    struct columns_aborted:
        int64_t producer_id, first_offset
    struct columns_source:
        const uint8_t *p
        const uint8_t *end
        int64_t next_offset
        uint64_t inflated_bytes_max
        inflater *inflater
        bint read_committed, check_crc, exhausted, any_batch, append_time
        int error
        int32_t leader_epoch
        columns_view *views
        int32_t view_at, view_count
    int columns_source_begin(columns_source *s, const columns_aborted *aborted, size_t count)
    void columns_source_end(columns_source *s)
    int columns_source_look(columns_source *s)
    void columns_source_took(columns_source *s, int32_t n)
    struct columns_bytes:
        int32_t *offsets
        uint8_t *data
        uint8_t *validity
        size_t len, room, null_count
    struct columns_run:
        int64_t count
        int32_t source
    struct columns:
        int64_t *offsets
        int64_t *timestamps
        size_t rows, rows_room
        columns_bytes key, value
        int32_t *header_offsets
        size_t headers
        columns_bytes header_key, header_value
        columns_run *runs
        size_t run_count, bytes_max
        bint with_headers
    int64_t columns_append(columns *c, columns_source *s, int32_t source, int64_t rows_max)
    void columns_note_sizes(columns *c)
    void columns_clear(columns *c)
    bint columns_spread(const columns_run *runs, size_t run_count, const int32_t *values,
                        size_t value_count, int32_t *out)
    bint columns_fixed(const int32_t *offsets, const uint8_t *data, const uint8_t *validity,
                       size_t start, size_t rows, size_t width, bint swap, uint8_t *out)

# ---- builder.h
cdef extern from "columns/builder.h" nogil:
    enum: BUILDER_FULL, BUILDER_E_MEMORY, BUILDER_E_SIZE, BUILDER_E_PARTITION, BUILDER_E_COLUMN
    enum: BUILDER_E_CODEC
    uint32_t builder_murmur2(const uint8_t *key, size_t len)
    uint32_t builder_crc32(const uint8_t *key, size_t len)
    struct builder_pool:
        size_t bytes, bytes_max
    void builder_pool_begin(builder_pool *pool, size_t bytes_max)
    void builder_pool_end(builder_pool *pool)
    void builder_pool_give(builder_pool *pool, uint8_t *bytes, size_t room)
    struct builder:
        builder_pool *pool
        uint8_t *bytes
        size_t len, room, bytes_max
        int64_t base_timestamp, max_timestamp
        int32_t count
    struct builder_batch:
        uint8_t *bytes
        size_t len, room
        int64_t max_timestamp
        int32_t count, partition
    struct builder_record:
        int64_t timestamp
        const uint8_t *key
        const uint8_t *value
        int64_t key_len, value_len
        const uint8_t *headers
        size_t headers_len
    int builder_append(builder *b, const builder_record *r)
    int builder_close(builder *b, int codec, int level, builder_batch *out)
    void builder_free(builder *b)
    void builder_stamp(uint8_t *batch, int64_t producer_id, int16_t epoch, int32_t base_sequence,
                       bint transactional)
    void builder_seal(uint8_t *batch, size_t len)
    enum builder_partitioner: BUILDER_MURMUR2, BUILDER_CRC32
    struct builder_column:
        const void *offsets
        const uint8_t *data
        const uint8_t *validity
        int64_t start, data_len
        int width
    struct builder_rows:
        builder_column key, value
        const int64_t *timestamps
        const int32_t *partitions
        const int32_t *header_offsets
        builder_column header_key, header_value
        int64_t header_count, now
    struct builder_writer:
        builder *open
        builder_pool *pool
        int32_t partition_count
        builder_partitioner partitioner
        size_t bytes_max, record_bytes_max
        int codec, level
        builder_batch *closed
        size_t closed_count, closed_bytes
    int builder_writer_begin(builder_writer *w, int32_t partition_count, const int32_t *sticky,
                             int32_t sticky_count)
    void builder_writer_end(builder_writer *w)
    int64_t builder_write(builder_writer *w, const builder_rows *rows, int64_t row, int64_t stop,
                          size_t closed_bytes_max, int *error)
    int builder_flush(builder_writer *w)

# ---- avro.h
cdef extern from "columns/avro.h" nogil:
    enum: AVRO_NULL, AVRO_BOOLEAN, AVRO_INT, AVRO_LONG, AVRO_FLOAT, AVRO_DOUBLE, AVRO_BYTES
    enum: AVRO_FIXED, AVRO_ENUM, AVRO_NO_UNION
    enum: AVRO_E_MEMORY, AVRO_E_VALUE, AVRO_E_SIZE, AVRO_E_COLUMN
    struct avro_field:
        int kind, null_branch
        int32_t column, size
        const int32_t *symbol_ends
        const uint8_t *symbols
    struct avro_column:
        int kind
        int32_t size
        uint8_t *values
        size_t len
        int32_t *offsets
        uint8_t *validity
        int64_t null_count
    int avro_column_begin(avro_column *c, size_t rows)
    void avro_column_end(avro_column *c)
    int64_t avro_schema_id(const builder_column *rows, int64_t row)
    int64_t avro_decode(const avro_field *fields, size_t field_count, int64_t id,
                        avro_column *columns, size_t column_count, const builder_column *rows,
                        int64_t row, int64_t stop, int *error)

# ---- lock.h
cdef extern from "os/lock.h" nogil:
    struct lock:
        pass

    void lock_init(lock *l)
    void lock_destroy(lock *l)
    void lock_acquire(lock *l)
    bint lock_try_acquire(lock *l)
    void lock_release(lock *l)

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

# ---- index_search.h
cdef extern from "segment/index_search.h" nogil:
    uint32_t index_count_offsets(const uint8_t *entries, uint32_t count, int64_t relative)

# ---- meter.h
cdef extern from "os/meter.h" nogil:
    enum: METER_BUCKETS, METER_NS_FIRST, METER_BYTES_FIRST, METER_ERRORS, METER_KINDS
    struct meter_figures:
        uint64_t sum
        uint64_t *counts
    struct meter_api_figures:
        meter_figures *histograms
        uint64_t *errors

# ---- prometheus_text.h
cdef extern from "os/prometheus_text.h" nogil:
    struct exposition:
        char *bytes
        size_t len
        bint failed
    struct exposition_rows:
        const char *labels
        const size_t *ends
        size_t count
    void exposition_clear(exposition *e)
    void exposition_put(exposition *e, const char *bytes, size_t len)
    void exposition_integers(exposition *e, const char *name, size_t name_len,
                             const exposition_rows *rows, const int64_t *values, size_t stride)
    void exposition_thousandths(exposition *e, const char *name, size_t name_len,
                                const exposition_rows *rows, const int64_t *values, size_t stride)

# ---- log_manager.h, log.h
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
    void log_dir_remember(log_dir *dir, const char *where)
    void log_dir_forget(log_dir *dir)
    bint log_dir_give_up(log_dir *dir, int error)
    struct disk
    enum disk_kind:
        DISK_SYSTEM, DISK_FULL, DISK_NO_SYNC, DISK_BROKEN
    void log_dir_set_reserve(log_dir *dir, int64_t bytes)
    bint log_dir_tend(log_dir *dir, int64_t *free_bytes, int64_t *total_bytes)
    const char *log_dir_syncfs_silent(const log_dir *dir)
    bint log_dir_short_of_space(const log_dir *dir)
    const disk *disk_of(disk_kind kind)
    void log_dir_set_disk(log_dir *dir, const disk *table)
    int log_dir_failure(const log_dir *dir, const char **call)
    void log_dir_set_open_files(log_dir *dir, uint32_t open_max)
    struct log_dir_figures:
        uint64_t open_files, flush_groups, flush_files, rolls, segments_deleted
        uint64_t recovered_bytes, trusted_bytes, damages_cut, damages_kept, bytes_cut
        uint64_t shortages, short_error
    struct log_damage:
        char partition[256]
        int64_t segment, offset, position, bytes
        int kind, why
    uint32_t log_dir_take_damages(log_dir *dir, log_damage *out, uint32_t max)
    void log_dir_stop_recovery(log_dir *dir)
    void log_dir_stats(log_dir *dir, log_dir_figures *out)
    void log_dir_flush_times(log_dir *dir, meter_figures *out)
    int log_dir_flush(log_dir *dir)
    int log_dir_settle(log_dir *dir)
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
        int64_t epoch, offset, start_offset, now_ns, told_high
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
    struct log_figures:
        int64_t start_offset, high_watermark
    void log_figures_take(log_t *log, log_figures *out)
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
    int log_read(log_t *log, int64_t offset, log_bound bound, int32_t bytes_max, bint at_least_one,
                 log_range *out)
    int log_read_nowait(log_t *log, int64_t offset, log_bound bound, int32_t bytes_max,
                        bint at_least_one, log_range *out)
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

# ---- grants.h
cdef extern from "tables/grants.h" nogil:
    enum: GRANT_READ, GRANT_WRITE, GRANT_FOLLOW
    struct topic:
        int16_t absent_error
        int32_t partition_count
    struct grants
    grants *grants_new(uint32_t topics_max)
    void grants_free(grants *g)
    topic *topic_new(const char *name, const uint8_t *id, bint internal, log_t **partitions,
                     int32_t count)
    void topic_release(topic *t)
    struct topic_leader:
        int32_t id, epoch
    bint topic_set_leaders(topic *t, const topic_leader *leaders)
    struct nodes
    void grants_set_nodes(grants *g, nodes *nodes)
    int grants_install(grants *g, topic *t)
    void grants_remove(grants *g, const char *name, uint16_t name_len)
    int grants_allow(grants *g, uint32_t principal, const uint8_t *id, uint8_t rights)
    void grants_void(grants *g)
    uint64_t grants_holder(grants *g, uint32_t principal)

# ---- rate_limit.h
cdef extern from "os/rate_limit.h" nogil:
    int64_t THROTTLE_NONE
    struct throttle
    throttle *throttle_new(uint32_t samples, int64_t window_ms)
    void throttle_free(throttle *t)
    void throttle_set(throttle *t, int64_t bytes_per_second)
    bint throttle_is_over(throttle *t, int64_t now_ms)
    void throttle_count(throttle *t, int64_t count, int64_t now_ms)
    double throttle_rate(throttle *t, int64_t now_ms)

# ---- heartbeat_cache.h
cdef extern from "tables/heartbeat_cache.h" nogil:
    struct repeat_key:
        const uint8_t *client_id
        const uint8_t *body
        size_t body_len
        int32_t client_id_len
        uint32_t principal
        int16_t api_key, api_version
        const uint8_t *address
    struct repeats:
        pass
    struct repeat:
        pass
    repeats *repeats_new(uint32_t seed)
    void repeats_free(repeats *rs)
    repeat *repeats_add(repeats *rs, const repeat_key *key, const uint8_t *frame, size_t len,
                        int64_t until_ms)
    int64_t repeats_end(repeats *rs, repeat *e)
    int64_t repeats_last_ms(repeats *rs, repeat *e, int64_t after_ms)
    void repeats_void(repeats *rs)
    uint32_t repeats_count(repeats *rs)

# ---- quotas.h
cdef extern from "tables/quotas.h" nogil:
    enum quota_kind:
        QUOTA_PRODUCE, QUOTA_FETCH, QUOTA_REQUEST
    enum: QUOTA_KINDS
    struct quotas:
        pass
    struct quota_client:
        pass
    struct quota_limit:
        const uint8_t *key
        uint32_t key_len
        double per_second
    struct quota_address:
        uint8_t ip[16]
        double per_second
    int quotas_set_addresses(quotas *q, const quota_address *addresses, uint32_t count,
                             double others)
    int32_t quotas_connection(quotas *q, const uint8_t *ip, int64_t now_ms)
    quotas *quotas_new(uint32_t samples, int64_t window_ms)
    void quotas_free(quotas *q)
    void quotas_void(quotas *q, bint enabled)
    int quotas_install(quotas *q, uint32_t principal, const uint8_t *client_id, uint32_t len,
                       const quota_limit *limits, int64_t now_ms)
    void quotas_count(quotas *q, uint32_t *clients, uint32_t *rates)
    uint64_t quotas_throttled(quotas *q, const uint8_t *client_id, uint32_t len, int64_t since_ms)
    quota_client *quotas_client(quotas *q, uint32_t principal, const uint8_t *client_id,
                                uint32_t len)
    void quota_client_release(quota_client *c)
    int32_t quota_client_charge(quota_client *c, quota_kind kind, double value, int64_t now_ms)
    int32_t quota_client_charge_fetch(quota_client *c, double value, int64_t now_ms)
    int32_t quota_client_fetch_max(quota_client *c, int32_t most)

# ---- events.h
cdef extern from "net/events.h" nogil:
    enum: EVENT_REQUEST, EVENT_MISS, EVENT_CLOSED, EVENT_QUOTA, EVENT_SLOW
    enum: EVENT_CONNECTED, EVENT_UNSAFE, EVENT_VERIFY, EVENT_MAY_JOIN
    struct event_address:
        uint8_t ip[16]
        uint16_t port
    struct event_missing:
        uint32_t name_at
        int32_t name_len
        uint8_t id[16]
        int32_t partition
    struct event_verify:
        int64_t producer_id
        int32_t id_len
        int16_t epoch
    struct event_slow:
        int64_t total_ns, local_ns, remote_ns, send_ns
        uint64_t request_bytes, response_bytes
        uint32_t left_out
    struct event:
        event *next
        uint64_t token, connection
        int64_t began_ns
        uint32_t kind, principal
        int32_t listener, correlation_id, client_id_len
        int16_t api_key, api_version
        uint8_t right
        event_address local, peer
        uint32_t missing_count
        size_t body_at, body_len, data_len
        uint8_t *data
    struct events:
        pass
    int events_fd(const events *e)
    event *events_take(events *e, uint32_t count_max)

# ---- broker_endpoints.h
cdef extern from "tables/broker_endpoints.h" nogil:
    struct node:
        int32_t listener, id, port
        const char *host
        const char *rack
    nodes *nodes_new(const node *of, uint32_t count)

# ---- frames.h
cdef extern from "net/frames.h" nogil:
    enum: FRAMES_API_KEYS_MAX
    struct frames_versions:
        int16_t min, max, flexible_from
    struct frames_rules:
        frames_versions *apis
        int32_t control_bytes_max
    void frames_rules_init(frames_rules *rules, int32_t request_bytes_max)

# ---- api_keys.h
cdef extern from "serve/api_keys.h" nogil:
    enum: API_PRODUCE, API_FETCH
    enum: PRODUCE_VERSION_MIN, PRODUCE_VERSION_MAX, FETCH_VERSION_MIN, FETCH_VERSION_MAX

# ---- serve.h
cdef extern from "serve/serve.h" nogil:
    struct serve_limits:
        int32_t fetch_bytes_max, sessions_max, inline_inflate_bytes, gather_ms_max
        bint rack_aware
        throttle *throttle
    struct serve_join:
        uint8_t *topic_id
        int32_t partition, broker
    struct serve_shared:
        pass
    serve_shared *serve_shared_new(grants *grants, iopool *pool, const serve_limits *limits)
    void serve_shared_free(serve_shared *shared)
    void serve_shared_set_wall_ahead(serve_shared *shared, int64_t ahead_ms)
    void serve_shared_stats(serve_shared *shared, uint64_t *sessions)

# ---- transport.h
cdef extern from "transport/transport.h" nogil:
    enum: TRANSPORT_TEXT_BYTES
    enum transport_shake:
        TRANSPORT_FAILED, TRANSPORT_WAITS, TRANSPORT_SAFE
    struct transport_report:
        char text[TRANSPORT_TEXT_BYTES]
    struct iovec:
        void *iov_base
        size_t iov_len
    struct transport
    struct transport_calls:
        ssize_t (*recv)(transport *t, void *to, size_t room) noexcept nogil
        ssize_t (*send)(transport *t, iovec *pieces, size_t count, bint more) noexcept nogil
        transport_shake (*handshake)(transport *t, transport_report *out) noexcept nogil
        const char *(*failure)(const transport *t) noexcept nogil
        void (*end)(transport *t) noexcept nogil
    struct transport:
        const transport_calls *calls
        int fd
        bint left
        void *session
    const transport_calls transport_plain
    struct transport_maker:
        void (*retain)(transport_maker *m)
        void (*release)(transport_maker *m)

# ---- tls_context.h
cdef extern from "transport/tls_context.h" nogil:
    enum: TLS_WHY_BYTES
    enum tls_client_auth:
        TLS_CLIENT_NONE
        TLS_CLIENT_REQUESTED
        TLS_CLIENT_REQUIRED
    struct tls_settings:
        const char *chain
        const char *key
        const char *key_password
        const char *trusted
        const char *revoked
        const char *ciphers
        int version_min, version_max
        tls_client_auth client_auth
        bint connects
    struct tls:
        pass
    bint transport_tls_connect(tls *context, transport *t, const char *host, bint checked)
    tls *tls_new(const tls_settings *settings, char *why)
    void tls_release(tls *context)
    struct tls_server:
        pass
    tls_server *tls_server_new()
    void tls_server_use(tls_server *server, tls *context)
    transport_maker *tls_server_maker(tls_server *server)
    void tls_server_release(tls_server *server)
    struct tls_store:
        char *key
        char *chain
        char *trusted
    bint tls_store_open(const void *data, size_t size, const char *password, tls_store *out,
                        char *why)
    void tls_store_close(tls_store *store)
    const char *tls_library()

# ---- reactor.h
cdef extern from "net/reactor.h" nogil:
    enum: REACTOR_THREADS_MAX, GUARD_RAW_VERSION
    enum: LISTENER_GUARDED, LISTENER_CONTROL, LISTENER_ASKS
    enum: REACTOR_SAME_SESSION
    struct reactors_config:
        frames_rules rules
        int threads
        uint32_t queued_requests_max
        int64_t idle_ms_max
        uint64_t input_bytes_max
        int32_t stranger_bytes_max
        int send_buffer_bytes, receive_buffer_bytes
        quotas *quotas
        repeats *repeats
    struct reactors_limits:
        uint32_t connections_max, connections_per_ip_max, descriptors_max, descriptor_end
    struct reactors:
        pass
    reactors *reactors_new(serve_shared *shared, const reactors_config *config)
    void reactors_free(reactors *rs)
    struct reactors_listener:
        int listener, port, backlog
        unsigned flags
        const char *host
        transport_maker *maker
    int reactors_join(reactors *rs, const reactors_listener *l, int first)
    void reactors_unlisten(reactors *rs, int listener)
    void reactors_set_limits(reactors *rs, const reactors_limits *limits)
    bint reactors_set_listener_limit(reactors *rs, int listener, uint32_t connections_max)
    bint reactors_set_overrides(reactors *rs, const uint8_t *addresses,
                                const uint32_t *counts_max, uint32_t count)
    int reactors_resize(reactors *rs, int threads)
    int reactors_threads(const reactors *rs)
    int reactors_start(reactors *rs)
    events *reactors_events(reactors *rs)
    void reactors_taken(reactors *rs)
    void reactors_dropped(reactors *rs, size_t size)
    bint reactors_reply(reactors *rs, uint64_t token, const uint8_t *frame, size_t len, bint close,
                        int32_t throttle_ms)
    bint reactors_queue_reply(reactors *rs, uint64_t token, const uint8_t *frame, size_t len,
                              int32_t correlation_id, int32_t throttle_ms)
    void reactors_flush_replies(reactors *rs)
    void reactors_retry(reactors *rs, uint64_t connection)
    bint reactors_resume(reactors *rs, uint64_t token, const int16_t *errors, uint32_t count)
    void reactors_set_principal(reactors *rs, uint64_t connection, uint32_t principal,
                                int32_t session_ms)
    void reactors_watch(reactors *rs, uint64_t connection)
    void reactors_close(reactors *rs, uint64_t connection)
    void reactors_stop_accepting(reactors *rs)
    void reactors_stop(reactors *rs, int64_t drain_ms)
    const char *reactors_stat_name(int i)
    uint64_t reactors_stat(reactors *rs, int i)

# ---- offset_map.h, pass.h
cdef extern from "compaction/offset_map.h" nogil:
    enum: KEYMAP_SLOT_BYTES
    struct keymap:
        uint64_t capacity, count
    bint keymap_init(keymap *m, size_t bytes, double load_factor)
    void keymap_free(keymap *m)
    void keymap_clear(keymap *m)
cdef extern from "compaction/pass.h" nogil:
    struct log_clean_rules:
        int64_t now_ms, delete_retention_ms, min_compaction_lag_ms, first_dirty, inflated_bytes_max
        int32_t segment_bytes
    struct log_clean_look_t "log_clean_look":
        int64_t clean_bytes, dirty_bytes, first_dirty, cleanable_end, first_dirty_timestamp
    void log_clean_look(log_t *log, const log_clean_rules *rules, log_clean_look_t *out)
    struct log_clean_figures:
        int64_t end_offset, bytes_mapped, bytes_read, bytes_written, batches_read, batches_kept
        int64_t records_read, records_kept, bytes_damaged
        uint32_t segments_before, segments_after
    struct log_clean:
        pass
    int log_clean_begin(log_t *log, keymap *map, const log_clean_rules *rules, log_clean **out)
    int log_clean_step(log_clean *c, int64_t bytes_max)
    void log_clean_figures_of "log_clean_figures"(const log_clean *c, log_clean_figures *out)
    void log_clean_end(log_clean *c)

    void reactors_meter(reactors *rs, int api_key, meter_api_figures *out)
    void reactors_rounds(reactors *rs, meter_figures *out)
    void reactors_meter_control(reactors *rs, int api_key, int64_t queue_ns, int64_t local_ns,
                                int64_t remote_ns, int error_code)
    void reactors_set_slow(reactors *rs, int64_t slow_ms)
    int64_t reactors_now_ns()

# ---- fetcher_pool.h
cdef extern from "replica/fetcher_pool.h" nogil:
    enum: FETCHERS_THREADS_MAX, FETCHERS_REFUSED, FETCHERS_DIVERGED, FETCHERS_OUT_OF_RANGE
    enum: FETCHERS_FAILED, FETCHERS_LOST
    enum: FOLLOWED_FETCHING, FOLLOWED_BACKING_OFF, FOLLOWED_WAITING, FOLLOWED_LEFT
    struct fetchers
    struct followed
    struct fetchers_config:
        int threads
        int32_t replica_id, wait_ms_max, bytes_min, bytes_max, partition_bytes_max
        int32_t backoff_ms_max, answer_ms_max
        bint flush_first
        throttle *throttle
    fetchers *fetchers_new(const fetchers_config *config)
    int fetchers_start(fetchers *fs)
    void fetchers_stop(fetchers *fs)
    void fetchers_free(fetchers *fs)
    void fetchers_set_broker_epoch(fetchers *fs, int64_t broker_epoch)
    int fetchers_thread_of(const fetchers *fs, const uint8_t *topic_id, int32_t index)
    followed *fetchers_follow(fetchers *fs, log_t *log, const uint8_t *topic_id, int32_t index,
                              int32_t leader_id, int32_t leader_epoch, uint64_t token)
    void fetchers_unfollow(fetchers *fs, followed *p)
    void fetchers_resume(fetchers *fs, followed *p)
    void followed_release(followed *p)
    struct followed_figures:
        int64_t lag, answered_ns
        int state
    void followed_figures_take(const followed *p, followed_figures *out)
    bint fetchers_attach(fetchers *fs, int thread, int32_t leader_id, const transport *to,
                         int16_t version, uint64_t serial)
    bint fetchers_detach(fetchers *fs, int thread, int32_t leader_id)
    struct fetchers_notice:
        uint32_t kind
        int32_t code, epoch, leader_id, leader_epoch
        int64_t end_offset
        uint64_t token
    int fetchers_fd(const fetchers *fs)
    uint32_t fetchers_take(fetchers *fs, fetchers_notice *out, uint32_t max)
    struct fetchers_figures:
        uint64_t requests, answers, bytes_in, batches_bytes, refusals, connections_lost
    void fetchers_figures_take(const fetchers *fs, fetchers_figures *out)

# ---- fetch_response.h
cdef extern from "replica/fetch_response.h" nogil:
    enum: ANSWER_VERSION_MIN, ANSWER_VERSION_MAX
