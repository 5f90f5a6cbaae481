/* Big-endian integers and Kafka's varints over borrowed bytes. All functions are inline. Callers
 * check bounds, except with `struct cursor`, which checks each read and becomes invalid (p ==
 * NULL) instead of reading past the end. */
#ifndef PYLOG_BYTES_H
#define PYLOG_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t get_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return __builtin_bswap16(v);
}
static inline uint32_t get_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
static inline uint64_t get_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}
static inline int16_t get_i16(const uint8_t *p) { return (int16_t)get_u16(p); }
static inline int32_t get_i32(const uint8_t *p) { return (int32_t)get_u32(p); }
static inline int64_t get_i64(const uint8_t *p) { return (int64_t)get_u64(p); }
static inline void put_u16(uint8_t *p, uint16_t v) {
    v = __builtin_bswap16(v);
    memcpy(p, &v, 2);
}
static inline void put_u32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}
static inline void put_u64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}
static inline void put_i16(uint8_t *p, int16_t v) { put_u16(p, (uint16_t)v); }
static inline void put_i32(uint8_t *p, int32_t v) { put_u32(p, (uint32_t)v); }
static inline void put_i64(uint8_t *p, int64_t v) { put_u64(p, (uint64_t)v); }

/* Reads an unsigned LEB128 of at most `bytes_max` bytes. Returns the bytes used, or 0 if it is
 * truncated or too long. */
static inline size_t get_uvarint(const uint8_t *p, const uint8_t *end, size_t bytes_max,
                                 uint64_t *v) {
    uint64_t out = 0;
    for (size_t i = 0; i < bytes_max && p + i < end; i++) {
        out |= (uint64_t)(p[i] & 0x7f) << (7 * i);
        if (!(p[i] & 0x80)) {
            *v = out;
            return i + 1;
        }
    }
    return 0;
}
static inline size_t put_uvarint(uint8_t *p, uint64_t v) {
    size_t n = 0;
    while (v >= 0x80) {
        p[n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    p[n++] = (uint8_t)v;
    return n;
}
static inline size_t uvarint_bytes(uint64_t v) {
    size_t n = 1;
    while (v >= 0x80) {
        v >>= 7;
        n++;
    }
    return n;
}
static inline int64_t zigzag_decode(uint64_t v) { return (int64_t)(v >> 1) ^ -(int64_t)(v & 1); }
static inline uint64_t zigzag_encode(int64_t v) { return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63); }

/* A reader over one message. After a read past the end, `p` is NULL and every later read returns
 * zero. */
struct cursor {
    const uint8_t *p, *end;
};

static inline bool cursor_take(struct cursor *c, size_t n, const uint8_t **at) {
    if (c->p == NULL || (size_t)(c->end - c->p) < n) {
        c->p = NULL;
        return false;
    }
    *at = c->p;
    c->p += n;
    return true;
}
static inline int8_t cursor_i8(struct cursor *c) {
    const uint8_t *p;
    return cursor_take(c, 1, &p) ? (int8_t)*p : 0;
}
static inline int16_t cursor_i16(struct cursor *c) {
    const uint8_t *p;
    return cursor_take(c, 2, &p) ? get_i16(p) : 0;
}
static inline int32_t cursor_i32(struct cursor *c) {
    const uint8_t *p;
    return cursor_take(c, 4, &p) ? get_i32(p) : 0;
}
static inline int64_t cursor_i64(struct cursor *c) {
    const uint8_t *p;
    return cursor_take(c, 8, &p) ? get_i64(p) : 0;
}
static inline uint64_t cursor_uvarint(struct cursor *c) {
    uint64_t v = 0;
    size_t n = c->p == NULL ? 0 : get_uvarint(c->p, c->end, 5, &v);
    if (n == 0) {
        c->p = NULL;
        return 0;
    }
    c->p += n;
    return v;
}

#endif
