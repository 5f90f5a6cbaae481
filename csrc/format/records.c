/* Three readers of one format. records_run reads complete records as most producers write them,
 * in registers. records_whole reads any record that is complete in one chunk. records_step is a
 * state machine for a record that spans chunks and reads a byte or a run of bytes at a time.
 * Each leaves unusual input to the next one, and the fuzzer compares them with each other. */
#include "format/records.h"

#include <string.h>

#include "format/bytes.h"
#include "format/varint.h"

#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    RECORDS_VARINT_SHIFT_MAX = 28,
    RECORDS_VARLONG_SHIFT_MAX = 63,
    RECORDS_RUN_SLACK = 24, /* five varints of three bytes, the attributes, and a margin */
    /* A value that three bytes cannot hold; odd, so that it is not a valid length. */
    RECORDS_SHORT_VARINT_END = (1 << 21) + 1
};

enum records_field {
    FIELD_LENGTH,
    FIELD_ATTRIBUTES,
    FIELD_TIMESTAMP,
    FIELD_OFFSET,
    FIELD_KEY_LENGTH,
    FIELD_KEY,
    FIELD_VALUE_LENGTH,
    FIELD_VALUE,
    FIELD_HEADERS,
    FIELD_HEADER_KEY_LENGTH,
    FIELD_HEADER_KEY,
    FIELD_HEADER_VALUE_LENGTH,
    FIELD_HEADER_VALUE
};

static int64_t minus_saturating(int64_t a, int64_t b) {
    int64_t out;
    return __builtin_sub_overflow(a, b, &out) ? (b > 0 ? INT64_MIN : INT64_MAX) : out;
}

static int64_t plus_saturating(int64_t a, int64_t b) {
    int64_t out;
    return __builtin_add_overflow(a, b, &out) ? (b > 0 ? INT64_MAX : INT64_MIN) : out;
}

void records_begin(struct records *r, enum records_mode mode, const struct batch_header *h,
                   const struct batch_rules *rules) {
    memset(r, 0, offsetof(struct records, bad));
    memset(&r->partial, 0, sizeof r->partial);
    r->mode = mode;
    r->base_offset = h->base_offset;
    r->base_timestamp = h->base_timestamp;
    r->append_time = h->max_timestamp;
    r->has_append_time = (h->attributes & BATCH_LOG_APPEND_TIME) != 0;
    r->count_max = h->record_count;
    r->max_timestamp = -1;
    r->max_timestamp_delta = -1;
    r->timestamp_low = INT64_MIN;
    r->timestamp_high = INT64_MAX;
    if (mode == RECORDS_CHECK) {
        r->key_required = rules->key_required;
        if (!rules->log_append_time) {
            r->timestamp_low = minus_saturating(rules->now_ms, rules->timestamp_before_max_ms);
            r->timestamp_high = plus_saturating(rules->now_ms, rules->timestamp_after_max_ms);
        }
    }
}

static __attribute__((noinline)) void records_note_bad(struct records *r, int64_t timestamp,
                                                       bool has_key) {
    bool bad_key = r->key_required && !has_key;
    /* -1 means that the producer set no timestamp: never too old. A record without a key is
     * reported only for the missing key, as in Kafka. */
    bool bad_timestamp = !bad_key && timestamp != -1 &&
                         (timestamp < r->timestamp_low || timestamp > r->timestamp_high);
    if (!bad_key && !bad_timestamp) {
        return;
    }
    r->bad_timestamp |= bad_timestamp;
    if (r->bad_count < BATCH_BAD_RECORDS_MAX) {
        r->bad[r->bad_count++] = r->count;
    }
}

static inline int records_visit(struct records *r, int64_t timestamp_delta, int32_t offset_delta,
                                bool has_key) {
    int64_t timestamp = (int64_t)((uint64_t)r->base_timestamp + (uint64_t)timestamp_delta);
    if (UNLIKELY(r->has_append_time)) {
        timestamp = r->append_time;
    }
    if (LIKELY(r->mode == RECORDS_CHECK)) {
        if (UNLIKELY(offset_delta != r->count || r->count >= r->count_max)) {
            return BATCH_E_COUNT;
        }
        if (UNLIKELY(timestamp < r->timestamp_low || timestamp > r->timestamp_high ||
                     (r->key_required && !has_key))) {
            records_note_bad(r, timestamp, has_key);
        }
    } else if (r->mode == RECORDS_FIND) {
        int64_t offset = (int64_t)((uint64_t)r->base_offset + (uint64_t)(int64_t)offset_delta);
        if (offset >= r->from_offset && timestamp >= r->target_ms) {
            r->found = true;
            r->found_offset = offset;
            r->found_timestamp = timestamp;
            return 1;
        }
    }
    if (timestamp > r->max_timestamp) {
        r->max_timestamp = timestamp;
        r->max_timestamp_delta = offset_delta;
    }
    r->count++;
    return 0;
}

/* ---- records that are complete in a chunk
 * ----------------------------------------------------------------------------- */

/* Skips a key or value; NULL if it is invalid. */
static inline const uint8_t *skip_bytes(const uint8_t *p, const uint8_t *end, int64_t null_len,
                                        int64_t *len) {
    p = varint_get(p, end, VARINT_BYTES_MAX, len);
    if (UNLIKELY(p == NULL || *len < null_len || *len > end - p)) {
        return NULL;
    }
    return *len < 0 ? p : p + *len;
}

static const uint8_t *skip_headers(const uint8_t *p, const uint8_t *end, int64_t count) {
    int64_t len;
    if (count < 0 || count > (end - p) / 2) {
        return NULL;
    }
    while (count-- > 0) {
        p = skip_bytes(p, end, 0, &len);
        if (p == NULL) {
            return NULL;
        }
        p = skip_bytes(p, end, -1, &len);
        if (p == NULL) {
            return NULL;
        }
    }
    return p;
}

/* Reads the body [p, end) of one record. */
static inline int records_whole(struct records *r, const uint8_t *p, const uint8_t *end) {
    int64_t timestamp_delta, offset_delta, key_len, value_len, headers;
    p = varint_get(p + 1, end, VARLONG_BYTES_MAX, &timestamp_delta);
    if (UNLIKELY(p == NULL)) {
        return BATCH_E_RECORD;
    }
    p = varint_get(p, end, VARINT_BYTES_MAX, &offset_delta);
    if (UNLIKELY(p == NULL)) {
        return BATCH_E_RECORD;
    }
    p = skip_bytes(p, end, -1, &key_len);
    if (UNLIKELY(p == NULL)) {
        return BATCH_E_RECORD;
    }
    p = skip_bytes(p, end, -1, &value_len);
    if (UNLIKELY(p == NULL)) {
        return BATCH_E_RECORD;
    }
    if (UNLIKELY(end - p != 1 || *p != 0)) {
        p = varint_get(p, end, VARINT_BYTES_MAX, &headers);
        if (p == NULL || skip_headers(p, end, headers) != end) {
            return BATCH_E_RECORD;
        }
    }
    return records_visit(r, timestamp_delta, (int32_t)offset_delta, key_len >= 0);
}

/* ---- a record that spans chunks
 * -------------------------------------------------------------------------------------- */

/* Stores the length of a byte field; `then` is the field that holds the bytes. */
static int partial_length(struct records_partial *s, int64_t len, int64_t null_len, uint8_t then) {
    if (len < null_len || len > s->left) {
        return BATCH_E_RECORD;
    }
    s->skip = len < 0 ? 0 : len;
    s->field = then;
    return 0;
}

/* The field after the current byte field, whose bytes have all been read. */
static void partial_skipped(struct records_partial *s) {
    switch (s->field) {
    case FIELD_KEY: s->field = FIELD_VALUE_LENGTH; break;
    case FIELD_VALUE: s->field = FIELD_HEADERS; break;
    case FIELD_HEADER_KEY: s->field = FIELD_HEADER_VALUE_LENGTH; break;
    default: s->field = --s->headers > 0 ? FIELD_HEADER_KEY_LENGTH : FIELD_LENGTH; break;
    }
}

/* Processes a complete varint of the record. Returns the result of records_visit if the record
 * is complete. */
static int partial_value(struct records_partial *s, int64_t v) {
    switch (s->field) {
    case FIELD_LENGTH:
        s->left = v;
        s->field = FIELD_ATTRIBUTES;
        return v < RECORDS_BYTES_MIN - 1 ? BATCH_E_RECORD : 0;
    case FIELD_TIMESTAMP:
        s->timestamp_delta = v;
        s->field = FIELD_OFFSET;
        return 0;
    case FIELD_OFFSET:
        s->offset_delta = (int32_t)v;
        s->field = FIELD_KEY_LENGTH;
        return 0;
    case FIELD_KEY_LENGTH: s->has_key = v >= 0; return partial_length(s, v, -1, FIELD_KEY);
    case FIELD_VALUE_LENGTH: return partial_length(s, v, -1, FIELD_VALUE);
    case FIELD_HEADERS:
        s->headers = (int32_t)v;
        s->field = v == 0 ? FIELD_LENGTH : FIELD_HEADER_KEY_LENGTH;
        return v < 0 || v > s->left / 2 ? BATCH_E_RECORD : 0;
    case FIELD_HEADER_KEY_LENGTH: return partial_length(s, v, 0, FIELD_HEADER_KEY);
    default: return partial_length(s, v, -1, FIELD_HEADER_VALUE);
    }
}

static bool partial_in_bytes(const struct records_partial *s) {
    return s->field == FIELD_KEY || s->field == FIELD_VALUE || s->field == FIELD_HEADER_KEY ||
           s->field == FIELD_HEADER_VALUE;
}

/* Processes one byte of a varint or of the attributes. */
static int partial_byte(struct records_partial *s, uint8_t byte) {
    if (s->field != FIELD_LENGTH && --s->left < 0) {
        return BATCH_E_RECORD;
    }
    if (s->field == FIELD_ATTRIBUTES) {
        s->field = FIELD_TIMESTAMP;
        return 0;
    }
    int shift_max =
        s->field == FIELD_TIMESTAMP ? RECORDS_VARLONG_SHIFT_MAX : RECORDS_VARINT_SHIFT_MAX;
    s->bits |= (uint64_t)(byte & 0x7f) << s->shift;
    if (byte & 0x80) {
        s->shift = (uint8_t)(s->shift + 7);
        return s->shift > shift_max ? BATCH_E_RECORD : 0;
    }
    if (s->field != FIELD_TIMESTAMP && s->bits > UINT32_MAX) {
        return BATCH_E_RECORD;
    }
    int64_t v = zigzag_decode(s->bits);
    s->bits = 0;
    s->shift = 0;
    return partial_value(s, v);
}

/* Continues with the current record until its end or the end of the chunk, and advances *p.
 * Returns 1 if the record is complete. */
static int records_step(struct records *r, const uint8_t **p, const uint8_t *end) {
    struct records_partial *s = &r->partial;
    bool begun = s->field != FIELD_LENGTH;
    while (*p < end || (partial_in_bytes(s) && s->skip == 0)) {
        if (partial_in_bytes(s)) {
            int64_t n = end - *p < s->skip ? end - *p : s->skip;
            *p += n;
            s->skip -= n;
            s->left -= n;
            if (s->skip > 0) {
                return 0;
            }
            partial_skipped(s);
        } else {
            int rc = partial_byte(s, *(*p)++);
            if (rc < 0) {
                return rc;
            }
        }
        if (s->field != FIELD_LENGTH) {
            begun = true;
        } else if (begun) {
            return s->left == 0 ? 1 : BATCH_E_RECORD;
        }
    }
    return 0;
}

static bool partial_idle(const struct records_partial *s) {
    return s->field == FIELD_LENGTH && s->shift == 0;
}

/* ---- a run of usual records: varints of at most three bytes, no headers, nothing to report
 * ---------- */

/* Returns the bits of a varint of up to three bytes and advances p; RECORDS_SHORT_VARINT_END if
 * it is longer. */
static inline uint32_t short_varint(const uint8_t **p) {
    uint32_t first = (*p)[0];
    if (LIKELY(first < 0x80)) {
        *p += 1;
        return first;
    }
    uint32_t second = (*p)[1];
    if (LIKELY(second < 0x80)) {
        *p += 2;
        return (first & 0x7f) | second << 7;
    }
    uint32_t third = (*p)[2];
    *p += 3;
    uint32_t bits = (first & 0x7f) | (second & 0x7f) << 7 | third << 14;
    return LIKELY(third < 0x80) ? bits : (uint32_t)RECORDS_SHORT_VARINT_END;
}

/* Returns true if the body [q, end) is a usual record and its offset delta is `count`. Reads at
 * most RECORDS_RUN_SLACK bytes beyond q unchecked, and three beyond a key, never past
 * `chunk_end`. The last line verifies that they are in the body: every length must have been
 * right. */
static inline bool usual_body(const uint8_t *q, const uint8_t *end, const uint8_t *chunk_end,
                              uint32_t count, bool key_required, uint32_t *timestamp_bits) {
    q += 1;
    *timestamp_bits = short_varint(&q);
    uint32_t offset_bits = short_varint(&q);
    uint32_t key_bits = short_varint(&q);
    if (UNLIKELY(offset_bits != count << 1)) {
        return false;
    }
    if (key_bits == 1) {
        if (UNLIKELY(key_required)) {
            return false;
        }
    } else {
        if (UNLIKELY((key_bits & 1) != 0 || (ptrdiff_t)(key_bits >> 1) > chunk_end - q - 3)) {
            return false;
        }
        q += key_bits >> 1;
    }
    uint32_t value_bits = short_varint(&q);
    ptrdiff_t value_bytes = (ptrdiff_t)(value_bits >> 1);
    return LIKELY((value_bits & 1) == 0 && end - q == value_bytes + 1 && end[-1] == 0);
}

/* Walks usual records from p and returns the position of the first record that is not one, or
 * the end of the chunk. The results are kept in locals, because a store through r could alias
 * the bytes. */
static const uint8_t *records_run(struct records *r, const uint8_t *p, const uint8_t *end) {
    const uint64_t base = (uint64_t)r->base_timestamp;
    const int64_t low = r->timestamp_low, high = r->timestamp_high;
    const uint32_t count_max = (uint32_t)r->count_max < RECORDS_SHORT_VARINT_END / 2
                                   ? (uint32_t)r->count_max
                                   : RECORDS_SHORT_VARINT_END / 2;
    const bool key_required = r->key_required;
    uint32_t count = (uint32_t)r->count;
    int64_t max_timestamp = r->max_timestamp;
    int32_t max_timestamp_delta = r->max_timestamp_delta;
    while (count < count_max && end - p >= RECORDS_RUN_SLACK) {
        const uint8_t *q = p;
        uint32_t bits = short_varint(&q), timestamp_bits;
        ptrdiff_t bytes = (ptrdiff_t)(bits >> 1);
        if (UNLIKELY((bits & 1) != 0 || bytes < RECORDS_BYTES_MIN - 1 || bytes > end - q)) {
            break;
        }
        if (UNLIKELY(!usual_body(q, q + bytes, end, count, key_required, &timestamp_bits))) {
            break;
        }
        int64_t timestamp = (int64_t)(base + (uint64_t)zigzag_decode(timestamp_bits));
        if (UNLIKELY(timestamp < low || timestamp > high ||
                     timestamp_bits == RECORDS_SHORT_VARINT_END)) {
            break;
        }
        if (timestamp > max_timestamp) {
            max_timestamp = timestamp;
            max_timestamp_delta = (int32_t)count;
        }
        count++;
        p = q + bytes;
    }
    r->count = (int32_t)count;
    r->max_timestamp = max_timestamp;
    r->max_timestamp_delta = max_timestamp_delta;
    return p;
}

int records_feed(struct records *r, const uint8_t *p, size_t len) {
    const uint8_t *end = p + len;
    const bool run = r->mode == RECORDS_CHECK && !r->has_append_time;
    while (p < end) {
        if (LIKELY(partial_idle(&r->partial))) {
            if (run) {
                p = records_run(r, p, end);
                if (p == end) {
                    return 0;
                }
            }
            int64_t body;
            const uint8_t *at = varint_get(p, end, VARINT_BYTES_MAX, &body);
            if (LIKELY(at != NULL && body <= end - at)) {
                if (UNLIKELY(body < RECORDS_BYTES_MIN - 1)) {
                    return BATCH_E_RECORD;
                }
                int rc = records_whole(r, at, at + body);
                if (UNLIKELY(rc != 0)) {
                    return rc;
                }
                p = at + body;
                continue;
            }
        }
        int rc = records_step(r, &p, end);
        if (rc < 0) {
            return rc;
        }
        if (rc == 1) {
            rc = records_visit(r, r->partial.timestamp_delta, r->partial.offset_delta,
                               r->partial.has_key);
            if (rc != 0) {
                return rc;
            }
        }
    }
    return 0;
}

int records_end(const struct records *r) {
    if (!partial_idle(&r->partial)) {
        return BATCH_E_RECORD;
    }
    if (r->mode != RECORDS_CHECK) {
        return 0;
    }
    if (r->count != r->count_max) {
        return BATCH_E_COUNT;
    }
    if (r->bad_count > 0) {
        return r->bad_timestamp ? BATCH_E_TIMESTAMP : BATCH_E_KEY;
    }
    return 0;
}
