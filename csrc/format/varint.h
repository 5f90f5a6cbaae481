/* Signed varints of Kafka and Avro (zigzag, then LEB128): one or two bytes, the usual lengths,
 * in registers; longer ones out of line. */
#ifndef PYLOG_VARINT_H
#define PYLOG_VARINT_H

#include "format/bytes.h"

enum {
    VARINT_BYTES_MAX = 5,   /* of 32 bits */
    VARLONG_BYTES_MAX = 10, /* of 64 bits */
};

static __attribute__((noinline, unused)) const uint8_t *
varint_get_long(const uint8_t *p, const uint8_t *end, size_t bytes_max, int64_t *v) {
    uint64_t bits;
    size_t n = get_uvarint(p, end, bytes_max, &bits);
    if (n == 0 || (bytes_max == VARINT_BYTES_MAX && bits > UINT32_MAX)) {
        return NULL;
    }
    *v = zigzag_decode(bits);
    return p + n;
}

/* Returns the byte after the varint at p, or NULL if it is truncated, too long or over its
 * number of bits. */
static inline const uint8_t *varint_get(const uint8_t *p, const uint8_t *end, size_t bytes_max,
                                        int64_t *v) {
    if (__builtin_expect(end - p >= 2, 1)) {
        uint32_t first = p[0];
        if (__builtin_expect(first < 0x80, 1)) {
            *v = (int64_t)(first >> 1) ^ -(int64_t)(first & 1);
            return p + 1;
        }
        uint32_t second = p[1];
        if (__builtin_expect(second < 0x80, 1)) {
            uint32_t bits = (first & 0x7f) | second << 7;
            *v = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
            return p + 2;
        }
    }
    return varint_get_long(p, end, bytes_max, v);
}

#endif
