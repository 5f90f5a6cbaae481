/* Builds batches of magic 2 as a producer does: one open batch to which records are appended,
 * and a writer that distributes rows of Arrow columns over the open batches of a topic's
 * partitions. */
#ifndef PYLOG_BUILDER_H
#define PYLOG_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/assertion.h"
#include "os/lock.h"

enum {
    BUILDER_FULL = 1,          /* the record would exceed bytes_max: close the batch first */
    BUILDER_E_MEMORY = -1,
    BUILDER_E_SIZE = -2,       /* a record or batch over 2 GiB, or a record over record_bytes_max */
    BUILDER_E_PARTITION = -3,  /* a row's partition does not exist */
    BUILDER_E_COLUMN = -4,     /* offsets decrease or are outside the data */
    BUILDER_E_CODEC = -5       /* unknown codec, or invalid level for the codec */
};

enum { BUILDER_POOL_MAX = 64 };

/* Java's default partitioner: murmur2 with the sign bit cleared. */
uint32_t builder_murmur2(const uint8_t *key, size_t len);

/* librdkafka's `consistent`: zlib's CRC-32. */
uint32_t builder_crc32(const uint8_t *key, size_t len);

/* Buffers of sent batches, for reuse: a new buffer costs a page fault for every 4 KiB. */
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

/* Returns a buffer of at least *room bytes and stores its size in *room. Returns NULL if out of
 * memory. Here and in builder_pool_give, `pool` may be NULL. */
uint8_t *builder_pool_take(struct builder_pool *pool, size_t *room);
void builder_pool_give(struct builder_pool *pool, uint8_t *bytes, size_t room);

struct builder {
    struct builder_pool *pool; /* NULL: none */
    uint8_t *bytes; /* space for the header, then records */
    size_t len, room, bytes_max;
    size_t hint; /* size of the last batch: the first allocation for the next one */
    int64_t base_timestamp, max_timestamp;
    int32_t count;
};

struct builder_batch {
    uint8_t *bytes; /* return it to the builder's pool */
    size_t len, room;
    int64_t max_timestamp;
    int32_t count, partition;
};

struct builder_record {
    int64_t timestamp;
    const uint8_t *key, *value;
    int64_t key_len, value_len; /* -1: null */
    const uint8_t *headers;     /* header count and headers, encoded as in a record; NULL: none */
    size_t headers_len;
};

/* Returns 0, BUILDER_FULL (only if the batch has records) or an error. */
int builder_append(struct builder *b, const struct builder_record *r);

/* Finishes the batch, without checksum and producer fields, and empties the builder. Returns 0,
 * or an error without changing the builder. The batch must have records. */
int builder_close(struct builder *b, int codec, int level, struct builder_batch *out);
void builder_free(struct builder *b);

/* Sets the producer fields and the transactional bit. Call builder_seal afterwards to compute
 * the checksum. */
void builder_stamp(uint8_t *batch, int64_t producer_id, int16_t epoch, int32_t base_sequence,
                   bool transactional);
void builder_seal(uint8_t *batch, size_t len);

/* ---- rows of columns */

enum builder_partitioner {
    BUILDER_MURMUR2,
    BUILDER_CRC32
};

/* An Arrow binary or string array; `width` is the size of an offset, 4 or 8. offsets NULL: all
 * null. */
struct builder_column {
    const void *offsets;
    const uint8_t *data, *validity; /* validity NULL: no nulls */
    int64_t start;                  /* index of the first row in the buffers */
    int64_t data_len;
    int width;
};

/* Returns the bytes of one row; *len is -1 if it is null. Returns false if the offsets are
 * invalid. */
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
    const int64_t *timestamps; /* NULL: all rows use `now` */
    const int32_t *partitions; /* NULL or -1: use the key */
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
    int32_t *sticky; /* partitions used in turn for null keys */
    int32_t sticky_count, sticky_at;
    struct builder_batch *closed;
    size_t closed_count, closed_room, closed_bytes;
    uint8_t *headers; /* of the current row */
    size_t headers_room;
};

/* Allocates `partition_count` builders and copies the sticky list. */
int builder_writer_begin(struct builder_writer *w, int32_t partition_count, const int32_t *sticky,
                         int32_t sticky_count);
void builder_writer_end(struct builder_writer *w);

/* Writes the rows [row, stop) in order. Returns the next row, below `stop` after an error or
 * once closed batches hold more than closed_bytes_max bytes. *error is 0, or the error of that
 * row. */
int64_t builder_write(struct builder_writer *w, const struct builder_rows *rows, int64_t row,
                      int64_t stop, size_t closed_bytes_max, int *error);

/* Closes all open batches. */
int builder_flush(struct builder_writer *w);

#endif
