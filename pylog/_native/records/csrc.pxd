"""The C declarations for this folder, one section per header; the headers hold the contracts."""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

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
    enum: BATCH_DELETE_HORIZON
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

# ---- index_search.h
cdef extern from "segment/index_search.h" nogil:
    uint32_t index_count_offsets(const uint8_t *entries, uint32_t count, int64_t relative)
