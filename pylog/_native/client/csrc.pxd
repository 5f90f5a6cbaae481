"""The C declarations for this folder, one section per header; the headers hold the contracts."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from pylog._native.records.csrc cimport (
    BATCH_E_MEMORY, BATCH_HEADER_BYTES, CODEC_NONE, CODEC_ZSTD, batch_bytes, batch_check_crc,
    batch_error_code, batch_error_text, batch_header, batch_parse, batch_stamp, get_uvarint,
    inflater, put_uvarint, zigzag_decode, zigzag_encode,
)

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
    int columns_source_next(columns_source *s)
    void columns_source_consume(columns_source *s, int32_t n)
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

# ---- json_path.h
cdef extern from "columns/json_path.h" nogil:
    enum json_kind: JSON_STRING, JSON_NUMBER, JSON_LITERAL
    struct json_step:
        const uint8_t *name
        size_t name_len
        int64_t index

# ---- search.h
cdef extern from "columns/search.h" nogil:
    enum search_field:
        SEARCH_RECORD_KEY, SEARCH_RECORD_VALUE, SEARCH_HEADER, SEARCH_KEY_JSON, SEARCH_VALUE_JSON
        SEARCH_RECORD_SIZE, SEARCH_BATCH_SIZE, SEARCH_PRODUCER_ID, SEARCH_TIMESTAMP
    enum search_op:
        SEARCH_EXISTS, SEARCH_IS_NULL, SEARCH_EQUALS, SEARCH_DIFFERS, SEARCH_PREFIX
        SEARCH_CONTAINS, SEARCH_LESS, SEARCH_AT_MOST, SEARCH_GREATER, SEARCH_AT_LEAST
        SEARCH_BETWEEN
    struct search_test:
        int32_t group
        search_field field
        search_op op
        const uint8_t *name
        size_t name_len
        const json_step *steps
        size_t step_count
        json_kind kind
        const uint8_t *text
        size_t text_len
        int64_t low, high
    struct search:
        const search_test *tests
        size_t test_count
        int64_t end_offset, records, bytes
        uint8_t *decoded
    bint search_test_is_valid(const search_test *test)
    int64_t search_append(search *s, columns_source *source, columns *out, int32_t source_number,
                          int64_t rows_max, int64_t bytes_max)

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
