/* One open batch (KIP-98): records are encoded directly into the buffer that is sent, after
 * space for the header, which is written when the batch closes. */
#include "columns/builder.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "format/batch.h"
#include "format/bytes.h"
#include "format/compress.h"
#include "format/crc32c.h"

#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    BUILDER_ROOM_MIN = 2048,
    BUILDER_POOLED_BYTES_MIN = 16 * 1024, /* below this, malloc's free lists are as fast */
    BUILDER_VARINTS_BYTES_MAX = 64 /* upper limit for a record without key, value and headers */
};

uint32_t builder_murmur2(const uint8_t *key, size_t len) {
    const uint32_t m = 0x5bd1e995;
    uint32_t h = 0x9747b28cu ^ (uint32_t)len;
    const uint8_t *p = key, *end = key + (len & ~(size_t)3);
    for (; p < end; p += 4) {
        uint32_t k;
        memcpy(&k, p, 4);
        k *= m;
        k ^= k >> 24;
        k *= m;
        h = h * m ^ k;
    }
    switch (len & 3) {
    case 3: h ^= (uint32_t)p[2] << 16; /* fall through */
    case 2: h ^= (uint32_t)p[1] << 8;  /* fall through */
    case 1: h = (h ^ p[0]) * m; break;
    default: break;
    }
    h ^= h >> 13;
    h *= m;
    h ^= h >> 15;
    return h & 0x7fffffff;
}

uint32_t builder_crc32(const uint8_t *key, size_t len) {
    return (uint32_t)crc32_z(0, key, len);
}

static inline size_t varint_bytes(int64_t v) {
    uint64_t bits = zigzag_encode(v) | 1;
    return (size_t)(70 - __builtin_clzll(bits)) / 7;
}

static inline uint8_t *put_varint(uint8_t *p, int64_t v) {
    uint64_t bits = zigzag_encode(v);
    if (LIKELY(bits < 0x80)) {
        *p = (uint8_t)bits;
        return p + 1;
    }
    return p + put_uvarint(p, bits);
}

static inline uint8_t *put_bytes(uint8_t *p, const uint8_t *data, int64_t len) {
    p = put_varint(p, len);
    if (len > 0) {
        memcpy(p, data, (size_t)len);
        p += len;
    }
    return p;
}

void builder_pool_begin(struct builder_pool *pool, size_t bytes_max) {
    memset(pool, 0, sizeof *pool);
    lock_init(&pool->lock);
    pool->bytes_max = bytes_max;
}

void builder_pool_end(struct builder_pool *pool) {
    lock_acquire(&pool->lock);
    while (pool->count > 0) {
        struct builder_room *room = &pool->free[--pool->count];
        assert(room->bytes != NULL && room->room >= BUILDER_POOLED_BYTES_MIN);
        pool->bytes -= room->room;
        free(room->bytes);
    }
    assert(pool->bytes == 0);
    lock_release(&pool->lock);
    lock_destroy(&pool->lock);
}

uint8_t *builder_pool_take(struct builder_pool *pool, size_t *room) {
    struct builder_room found = {NULL, 0};
    assert(*room > 0);
    if (pool != NULL && *room >= BUILDER_POOLED_BYTES_MIN) {
        lock_acquire(&pool->lock);
        assert(pool->count >= 0 && pool->count <= BUILDER_POOL_MAX);
        assert(pool->bytes <= pool->bytes_max);
        /* Prefer the buffer returned last: it is most likely in the CPU cache. */
        for (int i = pool->count - 1; i >= 0; i--) {
            if (pool->free[i].room >= *room) {
                found = pool->free[i];
                pool->free[i] = pool->free[--pool->count];
                assert(pool->bytes >= found.room);
                pool->bytes -= found.room;
                break;
            }
        }
        lock_release(&pool->lock);
    }
    if (found.bytes == NULL) {
        return malloc(*room);
    }
    *room = found.room;
    return found.bytes;
}

void builder_pool_give(struct builder_pool *pool, uint8_t *bytes, size_t room) {
    if (pool != NULL && bytes != NULL && room >= BUILDER_POOLED_BYTES_MIN) {
        lock_acquire(&pool->lock);
        if (pool->count < BUILDER_POOL_MAX && pool->bytes + room <= pool->bytes_max) {
            pool->free[pool->count++] = (struct builder_room){bytes, room};
            pool->bytes += room;
            bytes = NULL;
        }
        lock_release(&pool->lock);
    }
    free(bytes);
}

static __attribute__((noinline)) bool builder_grow(struct builder *b, size_t len) {
    size_t room = b->room * 2 > BUILDER_ROOM_MIN ? b->room * 2 : BUILDER_ROOM_MIN;
    room = b->room == 0 && b->hint > room ? b->hint : room;
    room = room > b->bytes_max + BUILDER_VARINTS_BYTES_MAX
               ? b->bytes_max + BUILDER_VARINTS_BYTES_MAX
               : room;
    room = room > len ? room : len;
    uint8_t *grown = b->bytes == NULL ? builder_pool_take(b->pool, &room)
                                      : realloc(b->bytes, room);
    if (grown == NULL) {
        return false;
    }
    b->bytes = grown;
    b->room = room;
    assert(b->room >= len && b->len <= b->room);
    return true;
}

static inline int64_t length_or_zero(int64_t len) { return len > 0 ? len : 0; }

int builder_append(struct builder *b, const struct builder_record *r) {
    size_t at = b->count == 0 ? (size_t)BATCH_HEADER_BYTES : b->len;
    assert_slow(b->count >= 0 && (b->count == 0) == (b->len == 0) && b->len <= b->room);
    assert_slow(r->key_len >= -1 && r->value_len >= -1);
    int64_t delta = b->count == 0
                        ? 0
                        : (int64_t)((uint64_t)r->timestamp - (uint64_t)b->base_timestamp);
    if (UNLIKELY(r->key_len > INT32_MAX || r->value_len > INT32_MAX ||
                 r->headers_len > INT32_MAX)) {
        return BUILDER_E_SIZE;
    }
    size_t headers_len = r->headers == NULL ? 1 : r->headers_len;
    size_t body = 1 + varint_bytes(delta) + varint_bytes(b->count) + varint_bytes(r->key_len) +
                  (size_t)length_or_zero(r->key_len) + varint_bytes(r->value_len) +
                  (size_t)length_or_zero(r->value_len) + headers_len;
    size_t bytes = varint_bytes((int64_t)body) + body;
    if (UNLIKELY(at + bytes > b->bytes_max && b->count > 0)) {
        return BUILDER_FULL;
    }
    if (UNLIKELY(at + bytes > BATCH_BYTES_MAX || b->count == INT32_MAX)) {
        return BUILDER_E_SIZE;
    }
    if (UNLIKELY(at + bytes > b->room) && !builder_grow(b, at + bytes)) {
        return BUILDER_E_MEMORY;
    }
    uint8_t *p = put_varint(b->bytes + at, (int64_t)body);
    *p++ = 0;
    p = put_varint(p, delta);
    p = put_varint(p, b->count);
    p = put_bytes(p, r->key, r->key_len);
    p = put_bytes(p, r->value, r->value_len);
    if (LIKELY(r->headers == NULL)) {
        *p = 0;
    } else {
        memcpy(p, r->headers, r->headers_len);
    }
    b->len = at + bytes;
    assert_slow(p + headers_len == b->bytes + b->len && b->len <= b->room);
    if (b->count == 0) {
        b->base_timestamp = b->max_timestamp = r->timestamp;
    } else if (r->timestamp > b->max_timestamp) {
        b->max_timestamp = r->timestamp;
    }
    b->count++;
    return 0;
}

static void builder_put_header(const struct builder *b, uint8_t *p, size_t len, int codec) {
    assert(len > BATCH_HEADER_BYTES && len <= INT32_MAX);
    assert(codec >= CODEC_NONE && codec <= CODEC_ZSTD);
    assert(b->max_timestamp >= b->base_timestamp);
    memset(p, 0, BATCH_HEADER_BYTES);
    put_i32(p + BATCH_LENGTH_AT, (int32_t)(len - BATCH_LOG_OVERHEAD));
    put_i32(p + BATCH_LEADER_EPOCH_AT, -1);
    p[BATCH_MAGIC_AT] = 2;
    put_i16(p + BATCH_ATTRIBUTES_AT, (int16_t)codec);
    put_i32(p + BATCH_LAST_OFFSET_DELTA_AT, b->count - 1);
    put_i64(p + BATCH_BASE_TIMESTAMP_AT, b->base_timestamp);
    put_i64(p + BATCH_MAX_TIMESTAMP_AT, b->max_timestamp);
    put_i64(p + BATCH_PRODUCER_ID_AT, -1);
    put_i16(p + BATCH_PRODUCER_EPOCH_AT, -1);
    put_i32(p + BATCH_BASE_SEQUENCE_AT, -1);
    put_i32(p + BATCH_RECORD_COUNT_AT, b->count);
}

/* Compresses the records into a new buffer, after space for a header. */
static int builder_deflate(const struct builder *b, int codec, int level,
                           struct builder_batch *out) {
    uint8_t *payload;
    size_t payload_len;
    int rc = compress_block(codec, level, b->bytes + BATCH_HEADER_BYTES,
                            b->len - BATCH_HEADER_BYTES, &payload, &payload_len);
    if (rc < 0) {
        return rc == COMPRESS_E_MEMORY ? BUILDER_E_MEMORY : BUILDER_E_CODEC;
    }
    assert(payload != NULL && payload_len > 0);
    out->len = BATCH_HEADER_BYTES + payload_len;
    out->room = out->len;
    out->bytes = out->len > INT32_MAX ? NULL : builder_pool_take(b->pool, &out->room);
    if (out->bytes != NULL) {
        memcpy(out->bytes + BATCH_HEADER_BYTES, payload, payload_len);
    }
    free(payload);
    return out->bytes == NULL ? BUILDER_E_MEMORY : 0;
}

int builder_close(struct builder *b, int codec, int level, struct builder_batch *out) {
    assert(b->count > 0 && b->len > BATCH_HEADER_BYTES && b->len <= b->room);
    if (codec == CODEC_NONE) {
        out->bytes = b->bytes;
        out->len = b->len;
        out->room = b->room;
    } else {
        int rc = builder_deflate(b, codec, level, out);
        if (rc < 0) {
            return rc;
        }
    }
    b->hint = b->len + BUILDER_VARINTS_BYTES_MAX;
    out->count = b->count;
    out->max_timestamp = b->max_timestamp;
    assert(out->bytes != NULL && out->len <= out->room);
    builder_put_header(b, out->bytes, out->len, codec);
    if (codec == CODEC_NONE) {
        b->bytes = NULL;
        b->room = 0;
    } else if (b->room > b->bytes_max + BUILDER_VARINTS_BYTES_MAX) {
        builder_free(b); /* enlarged by one large record */
    }
    b->len = 0;
    b->count = 0;
    return 0;
}

void builder_free(struct builder *b) {
    builder_pool_give(b->pool, b->bytes, b->room);
    b->bytes = NULL;
    b->len = b->room = 0;
    b->count = 0;
}

void builder_stamp(uint8_t *batch, int64_t producer_id, int16_t epoch, int32_t base_sequence,
                   bool transactional) {
    assert(batch[BATCH_MAGIC_AT] == 2);
    int16_t attributes = (int16_t)(get_i16(batch + BATCH_ATTRIBUTES_AT) & ~BATCH_TRANSACTIONAL);
    attributes = (int16_t)(attributes | (transactional ? BATCH_TRANSACTIONAL : 0));
    put_i16(batch + BATCH_ATTRIBUTES_AT, attributes);
    put_i64(batch + BATCH_PRODUCER_ID_AT, producer_id);
    put_i16(batch + BATCH_PRODUCER_EPOCH_AT, epoch);
    put_i32(batch + BATCH_BASE_SEQUENCE_AT, base_sequence);
}

void builder_seal(uint8_t *batch, size_t len) {
    assert(len > BATCH_HEADER_BYTES && batch[BATCH_MAGIC_AT] == 2);
    assert(get_i32(batch + BATCH_LENGTH_AT) == (int32_t)(len - BATCH_LOG_OVERHEAD));
    put_u32(batch + BATCH_CRC_AT, crc32c_extend(0, batch + BATCH_ATTRIBUTES_AT,
                                                len - BATCH_ATTRIBUTES_AT));
}
