/* Distributes rows of Arrow columns over a topic's partitions, keeping their order within each.
 *
 * Each row costs one hash of its key and one copy of its bytes. Batches close when they are
 * full. All offsets are checked against the buffers. */
#include <stdlib.h>
#include <string.h>

#include "columns/builder.h"
#include "format/bytes.h"

#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    WRITER_HEADERS_BYTES_MAX = 1 << 30,
    WRITER_VARINT_BYTES_MAX = 10
};

int builder_writer_begin(struct builder_writer *w, int32_t partition_count, const int32_t *sticky,
                         int32_t sticky_count) {
    assert(partition_count > 0 && sticky_count > 0);
    assert(w->open == NULL && w->closed_count == 0);
    w->open = calloc((size_t)partition_count, sizeof *w->open);
    w->sticky = calloc((size_t)sticky_count, sizeof *w->sticky);
    if (w->open == NULL || w->sticky == NULL) {
        builder_writer_end(w);
        return BUILDER_E_MEMORY;
    }
    w->partition_count = partition_count;
    w->sticky_count = sticky_count;
    memcpy(w->sticky, sticky, (size_t)sticky_count * sizeof *sticky);
    for (int32_t i = 0; i < sticky_count; i++) {
        assert(sticky[i] >= 0 && sticky[i] < partition_count);
    }
    for (int32_t i = 0; i < partition_count; i++) {
        w->open[i].bytes_max = w->bytes_max;
        w->open[i].pool = w->pool;
    }
    return 0;
}

void builder_writer_end(struct builder_writer *w) {
    for (int32_t i = 0; i < w->partition_count; i++) {
        builder_free(&w->open[i]);
    }
    for (size_t i = 0; i < w->closed_count; i++) {
        builder_pool_give(w->pool, w->closed[i].bytes, w->closed[i].room);
    }
    free(w->open);
    free(w->sticky);
    free(w->closed);
    free(w->headers);
    memset(w, 0, sizeof *w);
}

static int writer_close(struct builder_writer *w, int32_t partition) {
    assert(partition >= 0 && partition < w->partition_count);
    assert(w->closed_count <= w->closed_room);
    if (w->closed_count == w->closed_room) {
        size_t room = w->closed_room > 0 ? w->closed_room * 2 : 64;
        struct builder_batch *grown = realloc(w->closed, room * sizeof *grown);
        if (grown == NULL) {
            return BUILDER_E_MEMORY;
        }
        w->closed = grown;
        w->closed_room = room;
    }
    struct builder_batch *batch = &w->closed[w->closed_count];
    int rc = builder_close(&w->open[partition], w->codec, w->level, batch);
    if (rc < 0) {
        return rc;
    }
    batch->partition = partition;
    assert(w->open[partition].count == 0);
    w->closed_count++;
    w->closed_bytes += batch->len;
    /* KIP-480: null keys use one partition until its batch is full, then the next. */
    if (w->sticky[w->sticky_at] == partition) {
        w->sticky_at = (w->sticky_at + 1) % w->sticky_count;
    }
    return 0;
}

int builder_flush(struct builder_writer *w) {
    for (int32_t i = 0; i < w->partition_count; i++) {
        int rc = w->open[i].count > 0 ? writer_close(w, i) : 0;
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

static bool headers_reserve(struct builder_writer *w, size_t room) {
    if (w->headers_room >= room) {
        return true;
    }
    room = room < w->headers_room * 2 ? w->headers_room * 2 : room;
    uint8_t *grown = realloc(w->headers, room);
    if (grown == NULL) {
        return false;
    }
    w->headers = grown;
    w->headers_room = room;
    assert(w->headers_room > 0);
    return true;
}

static int headers_put(struct builder_writer *w, size_t *used, const uint8_t *data, int64_t len) {
    if (*used + (size_t)(len > 0 ? len : 0) > WRITER_HEADERS_BYTES_MAX) {
        return BUILDER_E_SIZE;
    }
    if (!headers_reserve(w, *used + WRITER_VARINT_BYTES_MAX + (size_t)(len > 0 ? len : 0))) {
        return BUILDER_E_MEMORY;
    }
    *used += put_uvarint(w->headers + *used, zigzag_encode(len));
    if (len > 0) {
        memcpy(w->headers + *used, data, (size_t)len);
        *used += (size_t)len;
    }
    assert_slow(*used <= w->headers_room);
    return 0;
}

/* Encodes a row's headers as in a record. */
static int writer_headers(struct builder_writer *w, const struct builder_rows *rows, int64_t row,
                          struct builder_record *r) {
    int64_t from = rows->header_offsets[row], to = rows->header_offsets[row + 1];
    if (from < 0 || to < from || to > rows->header_count) {
        return BUILDER_E_COLUMN;
    }
    if (from == to) {
        return 0;
    }
    if (!headers_reserve(w, WRITER_VARINT_BYTES_MAX)) {
        return BUILDER_E_MEMORY;
    }
    size_t used = put_uvarint(w->headers, zigzag_encode(to - from));
    for (int64_t i = from; i < to; i++) {
        const uint8_t *at;
        int64_t len;
        /* Kafka does not allow null keys in headers. */
        if (!builder_column_at(&rows->header_key, i, &at, &len) || len < 0) {
            return BUILDER_E_COLUMN;
        }
        int rc = headers_put(w, &used, at, len);
        if (rc == 0) {
            rc = builder_column_at(&rows->header_value, i, &at, &len)
                     ? headers_put(w, &used, at, len)
                     : BUILDER_E_COLUMN;
        }
        if (rc < 0) {
            return rc;
        }
    }
    r->headers = w->headers;
    r->headers_len = used;
    return 0;
}

static inline int32_t writer_partition(const struct builder_writer *w,
                                       const struct builder_rows *rows, int64_t row,
                                       const struct builder_record *r) {
    int32_t partition = rows->partitions == NULL ? -1 : rows->partitions[row];
    if (partition >= 0) {
        return partition < w->partition_count ? partition : BUILDER_E_PARTITION;
    }
    if (partition < -1) {
        return BUILDER_E_PARTITION;
    }
    if (r->key_len < 0) {
        assert_slow(w->sticky_at >= 0 && w->sticky_at < w->sticky_count);
        return w->sticky[w->sticky_at];
    }
    size_t len = (size_t)r->key_len;
    uint32_t hash = w->partitioner == BUILDER_MURMUR2 ? builder_murmur2(r->key, len)
                                                      : builder_crc32(r->key, len);
    return (int32_t)(hash % (uint32_t)w->partition_count);
}

static int writer_row(struct builder_writer *w, const struct builder_rows *rows, int64_t row) {
    struct builder_record r;
    r.timestamp = rows->timestamps == NULL ? rows->now : rows->timestamps[row];
    r.headers = NULL;
    r.headers_len = 0;
    if (UNLIKELY(!builder_column_at(&rows->key, row, &r.key, &r.key_len) ||
                 !builder_column_at(&rows->value, row, &r.value, &r.value_len))) {
        return BUILDER_E_COLUMN;
    }
    if (UNLIKELY(rows->header_offsets != NULL)) {
        int rc = writer_headers(w, rows, row, &r);
        if (rc < 0) {
            return rc;
        }
    }
    size_t bytes = (size_t)(r.key_len > 0 ? r.key_len : 0) +
                   (size_t)(r.value_len > 0 ? r.value_len : 0) + r.headers_len;
    if (UNLIKELY(bytes > w->record_bytes_max)) {
        return BUILDER_E_SIZE;
    }
    for (;;) {
        int32_t partition = writer_partition(w, rows, row, &r);
        if (UNLIKELY(partition < 0)) {
            return partition;
        }
        assert_slow(partition < w->partition_count);
        int rc = builder_append(&w->open[partition], &r);
        if (LIKELY(rc != BUILDER_FULL)) {
            return rc;
        }
        /* This builder is empty now, but the next sticky partition may be full as well. */
        rc = writer_close(w, partition);
        if (rc < 0) {
            return rc;
        }
    }
}

int64_t builder_write(struct builder_writer *w, const struct builder_rows *rows, int64_t row,
                      int64_t stop, size_t closed_bytes_max, int *error) {
    assert(row >= 0 && row <= stop);
    *error = 0;
    for (; row < stop && w->closed_bytes <= closed_bytes_max; row++) {
        *error = writer_row(w, rows, row);
        if (UNLIKELY(*error < 0)) {
            break;
        }
    }
    assert(row <= stop && *error <= 0);
    return row;
}
