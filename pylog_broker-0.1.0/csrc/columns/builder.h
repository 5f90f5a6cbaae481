/* Batches of magic 2 as a producer makes them: one open batch that takes record by record, and a
 * writer that scatters rows of Arrow columns over the open batches of a topic's partitions. */
#ifndef PYLOG_BUILDER_H
#define PYLOG_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/assertion.h"
#include "thread/lock.h"

enum {
    BUILDER_FULL = 1,          /* the record would pass bytes_max: close first */
    BUILDER_E_MEMORY = -1,
    BUILDER_E_SIZE = -2,       /* a record or batch of 2 GiB, or above record_bytes_max */
    BUILDER_E_PARTITION = -3,  /* a row names a partition that there is not */
    BUILDER_E_COLUMN = -4,     /* offsets fall or leave their data */
    BUILDER_E_CODEC = -5       /* no such codec, or a level that it refuses */
};

enum { BUILDER_POOL_MAX = 64 };

/* Java's default partitioner: murmur2 made positive. */
uint32_t builder_murmur2(const uint8_t *key, size_t len);

/* librdkafka's `consistent`: zlib's CRC-32. */
uint32_t builder_crc32(const uint8_t *key, size_t len);

/* Memory of batches that are done with: a new piece costs a page fault for every 4 KiB. */
struct builder_pool {
    struct lock lock;
    size_t bytes_max;
    size_t bytes GUARDED_BY(lock);
    int count GUARDED_BY(lock);
    struct builder_room {
        uint8_t *bytes;
        size_t room;
    } free[BUILDER_POOL_MAX] GUARDED_BY(lock);
};

void builder_pool_begin(struct builder_pool *pool, size_t bytes_max);
void builder_pool_end(struct builder_pool *pool);

/* At least *room bytes, how many in *room; NULL without memory. `pool` may be NULL in both. */
uint8_t *builder_pool_take(struct builder_pool *pool, size_t *room);
void builder_pool_give(struct builder_pool *pool, uint8_t *bytes, size_t room);

struct builder {
    struct builder_pool *pool; /* NULL: none */
    uint8_t *bytes; /* the header's room, then records */
    size_t len, room, bytes_max;
    size_t hint; /* how long the last batch became: the first room of the next */
    int64_t base_timestamp, max_timestamp;
    int32_t count;
};

struct builder_batch {
    uint8_t *bytes; /* to be given back to the builder's pool */
    size_t len, room;
    int64_t max_timestamp;
    int32_t count, partition;
};

struct builder_record {
    int64_t timestamp;
    const uint8_t *key, *value;
    int64_t key_len, value_len; /* -1: null */
    const uint8_t *headers;     /* their count and bytes as in a record; NULL: none */
    size_t headers_len;
};

/* 0, BUILDER_FULL (only when the batch has records) or an error. */
int builder_append(struct builder *b, const struct builder_record *r);

/* The batch so far, without checksum and producer; the builder is empty again. 0 or an error; then
 * nothing has changed. Never without records. */
int builder_close(struct builder *b, int codec, int level, struct builder_batch *out);
void builder_free(struct builder *b);

/* Producer fields and transactional bit; the checksum is to be made anew. */
void builder_stamp(uint8_t *batch, int64_t producer_id, int16_t epoch, int32_t base_sequence,
                   bool transactional);
void builder_seal(uint8_t *batch, size_t len);

/* ---- rows of columns */

enum builder_partitioner {
    BUILDER_MURMUR2,
    BUILDER_CRC32
};

/* Binary or string as Arrow lays it out; `width` 4 or 8: of an offset. offsets NULL: all null. */
struct builder_column {
    const void *offsets;
    const uint8_t *data, *validity; /* validity NULL: no nulls */
    int64_t start;                  /* the first row's place in the buffers */
    int64_t data_len;
    int width;
};

/* The bytes of one row; *len -1: null. False when the offsets cannot be right. */
static inline bool builder_column_at(const struct builder_column *c, int64_t row,
                                     const uint8_t **at, int64_t *len) {
    assert_slow(c->start >= 0 && row >= 0);
    size_t i = (size_t)(c->start + row);
    int64_t from, to;
    *len = -1;
    *at = NULL;
    if (c->offsets == NULL ||
        (c->validity != NULL && (c->validity[i >> 3] >> (i & 7) & 1) == 0)) {
        return true;
    }
    assert_slow(c->width == 4 || c->width == 8);
    if (c->width == 4) {
        from = ((const int32_t *)c->offsets)[i];
        to = ((const int32_t *)c->offsets)[i + 1];
    } else {
        from = ((const int64_t *)c->offsets)[i];
        to = ((const int64_t *)c->offsets)[i + 1];
    }
    if (from < 0 || to < from || to > c->data_len) {
        return false;
    }
    *len = to - from;
    *at = c->data == NULL ? (const uint8_t *)"" : c->data + from;
    return true;
}

struct builder_rows {
    struct builder_column key, value;
    const int64_t *timestamps; /* NULL: `now` for all */
    const int32_t *partitions; /* NULL or -1: by key */
    const int32_t *header_offsets;
    struct builder_column header_key, header_value;
    int64_t header_count;
    int64_t now;
};

struct builder_writer {
    struct builder *open;
    struct builder_pool *pool; /* NULL: none */
    int32_t partition_count;
    enum builder_partitioner partitioner;
    size_t bytes_max, record_bytes_max;
    int codec, level;
    int32_t *sticky; /* the partitions among which null keys rotate */
    int32_t sticky_count, sticky_at;
    struct builder_batch *closed;
    size_t closed_count, closed_room, closed_bytes;
    uint8_t *headers; /* of the row at hand */
    size_t headers_room;
};

/* Makes room for `partition_count` builders and the sticky list, which is copied. */
int builder_writer_begin(struct builder_writer *w, int32_t partition_count, const int32_t *sticky,
                         int32_t sticky_count);
void builder_writer_end(struct builder_writer *w);

/* Rows [row, stop), in order. The row to go on with: below `stop` once closed batches hold more
 * than closed_bytes_max bytes. *error is then 0, or what that row is refused for. */
int64_t builder_write(struct builder_writer *w, const struct builder_rows *rows, int64_t row,
                      int64_t stop, size_t closed_bytes_max, int *error);

/* Closes what is open. */
int builder_flush(struct builder_writer *w);

#endif
