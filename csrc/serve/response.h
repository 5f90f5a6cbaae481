/* A response under construction: bytes with ranges of log files in between, sent in order
 * without copying them together. */
#ifndef PYLOG_RESPONSE_H
#define PYLOG_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/assertion.h"
#include "format/bytes.h"
#include "log/log.h"
#include "serve/shared_reads.h"

/* Ranges up to this length are read into the bytes, which is cheaper than a separate sendfile:
 * that costs as much as copying 32 to 64 KiB (bench/native/test_reply.py). The total is limited,
 * because a client that does not read would keep it allocated. */
enum {
    REPLY_COPY_BYTES_MAX = 32768,
    REPLY_COPIED_BYTES_MAX = 1 << 20,
    REPLY_SHARED_BYTES_MIN = 1024, /* shorter parts of a shared copy are copied into the bytes */
    REPLY_PARTS_MAX = 65536
};

struct reply_part {
    uint32_t bytes_end;     /* send the bytes up to here first, then the range */
    struct log_range range; /* owned */
    struct copy *copy; /* one reference; then only the range's length is set. NULL: send the file */
};

struct reply {
    uint8_t *bytes; /* begins with the 4-byte frame size, patched by reply_finish */
    uint32_t len, cap;
    struct reply_part *parts;
    uint32_t part_count, part_cap;
    uint64_t file_bytes;   /* sum of the ranges */
    uint32_t copied_bytes; /* of ranges in memory: in the bytes, or copies */
    bool failed;           /* memory ran out or a limit was exceeded: close the connection */
};

void reply_init(struct reply *r);
/* Frees the bytes and releases the ranges. The reply can be used again, as after reply_init. */
void reply_clear(struct reply *r);
/* Allocates room for n bytes now, on this thread instead of the one that writes them. */
void reply_prepare(struct reply *r, size_t n);
/* Adds n bytes and returns their position, or NULL if failed. reply_reserve usually has room
 * already. */
uint8_t *reply_reserve_more(struct reply *r, size_t n);
static inline uint8_t *reply_reserve(struct reply *r, size_t n) {
    assert_slow(r->len <= r->cap); /* runs for each integer of a response */
    if (r->failed || n > r->cap - r->len) return reply_reserve_more(r, n);
    uint8_t *at = r->bytes + r->len;
    r->len += (uint32_t)n;
    return at;
}
/* Takes ownership of the range (reply_clear releases it). Short ranges are read into the bytes
 * at once. */
void reply_range(struct reply *r, struct log_range *range);
/* Same, from a copy that begins with the range's bytes; takes ownership of its reference. */
void reply_copy(struct reply *r, struct log_range *range, struct copy *copy);
/* Patches the frame size. The total to send is r->len + r->file_bytes. */
void reply_finish(struct reply *r);

static inline void reply_i8(struct reply *r, int8_t v) {
    uint8_t *p = reply_reserve(r, 1);
    if (p) *p = (uint8_t)v;
}
static inline void reply_i16(struct reply *r, int16_t v) {
    uint8_t *p = reply_reserve(r, 2);
    if (p) put_i16(p, v);
}
static inline void reply_i32(struct reply *r, int32_t v) {
    uint8_t *p = reply_reserve(r, 4);
    if (p) put_i32(p, v);
}
static inline void reply_i64(struct reply *r, int64_t v) {
    uint8_t *p = reply_reserve(r, 8);
    if (p) put_i64(p, v);
}
static inline void reply_bytes(struct reply *r, const void *src, size_t n) {
    uint8_t *p = reply_reserve(r, n);
    if (p != NULL && n != 0) memcpy(p, src, n);
}
static inline void reply_uvarint(struct reply *r, uint64_t v) {
    uint8_t tmp[10];
    reply_bytes(r, tmp, put_uvarint(tmp, v));
}

#endif
