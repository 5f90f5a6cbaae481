/* Reads and writes the protocol's strings, arrays and tagged fields in both encodings (KIP-482),
 * with the cursor of bytes.h. */
#ifndef PYLOG_WIRE_H
#define PYLOG_WIRE_H

#include "format/bytes.h"
#include "serve/response.h"
#include "tables/grants.h"

enum { WIRE_TAGGED_FIELDS_MAX = 1000 };

struct wire_string {
    const uint8_t *p;
    int32_t len; /* -1: null */
};

static inline struct wire_string wire_string(struct cursor *c, bool flexible) {
    struct wire_string s = {NULL, -1};
    int64_t len = flexible ? (int64_t)cursor_uvarint(c) - 1 : (int64_t)cursor_i16(c);
    if (c->p == NULL || len < 0) {
        if (c->p != NULL && len != -1) c->p = NULL;
        return s;
    }
    if (len > INT16_MAX || !cursor_take(c, (size_t)len, &s.p)) {
        c->p = NULL;
        return s;
    }
    s.len = (int32_t)len;
    return s;
}

/* Returns false if bytes are missing or the name is null. */
static inline bool wire_topic_key(struct cursor *c, bool flexible, bool by_id,
                                  struct topic_key *key) {
    *key = (struct topic_key){NULL, TOPIC_ID_BYTES, by_id};
    if (by_id) return cursor_take(c, TOPIC_ID_BYTES, &key->bytes);
    struct wire_string name = wire_string(c, flexible);
    if (c->p == NULL || name.len < 0) return false;
    key->bytes = name.p;
    key->len = (uint32_t)name.len;
    return true;
}

/* Returns bytes; len is -1 for null. */
static inline const uint8_t *wire_bytes(struct cursor *c, bool flexible, int64_t *len) {
    const uint8_t *p = NULL;
    *len = flexible ? (int64_t)cursor_uvarint(c) - 1 : (int64_t)cursor_i32(c);
    if (c->p == NULL || *len < -1) {
        c->p = NULL;
        *len = -1;
        return NULL;
    }
    if (*len > 0 && !cursor_take(c, (size_t)*len, &p)) *len = -1;
    return *len == 0 ? c->p : p;
}

/* Returns an array's element count; -1 for null. The elements may still be missing. */
static inline int64_t wire_count(struct cursor *c, bool flexible) {
    int64_t n = flexible ? (int64_t)cursor_uvarint(c) - 1 : (int64_t)cursor_i32(c);
    if (n < -1) c->p = NULL;
    return c->p == NULL ? -1 : n;
}

/* Reads one tagged field after another: `*left` counts down from wire_tags. Returns false at the
 * end or on an invalid cursor. */
static inline uint64_t wire_tags(struct cursor *c, bool flexible) {
    uint64_t n = flexible ? cursor_uvarint(c) : 0;
    if (n > WIRE_TAGGED_FIELDS_MAX) c->p = NULL;
    return c->p == NULL ? 0 : n;
}
static inline bool wire_tag(struct cursor *c, uint64_t *left, uint64_t *tag, struct cursor *value) {
    if (*left == 0 || c->p == NULL) return false;
    (*left)--;
    *tag = cursor_uvarint(c);
    uint64_t size = cursor_uvarint(c);
    if (!cursor_take(c, size, &value->p)) return false;
    value->end = value->p + size;
    return true;
}
static inline void wire_skip_tags(struct cursor *c, bool flexible) {
    uint64_t left = wire_tags(c, flexible), tag;
    struct cursor value;
    while (wire_tag(c, &left, &tag, &value)) {}
}

static inline void reply_count(struct reply *r, bool flexible, uint32_t n) {
    if (flexible)
        reply_uvarint(r, (uint64_t)n + 1);
    else
        reply_i32(r, (int32_t)n);
}
static inline void reply_string(struct reply *r, bool flexible, const char *s, size_t n) {
    if (flexible)
        reply_uvarint(r, s == NULL ? 0 : n + 1);
    else
        reply_i16(r, s == NULL ? -1 : (int16_t)n);
    if (s != NULL) reply_bytes(r, s, n);
}
static inline void reply_topic_key(struct reply *r, bool flexible, struct topic_key key) {
    if (key.by_id)
        reply_bytes(r, key.bytes, key.len);
    else
        reply_string(r, flexible, (const char *)key.bytes, key.len);
}
static inline void reply_no_tags(struct reply *r, bool flexible) {
    if (flexible) reply_i8(r, 0);
}
/* Writes the frame size (patched by reply_finish) and response header v0 or v1. */
static inline void reply_header(struct reply *r, int32_t correlation_id, bool flexible) {
    reply_i32(r, 0);
    reply_i32(r, correlation_id);
    reply_no_tags(r, flexible);
}

#endif
