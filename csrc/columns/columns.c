/* Arrow columns (columnar format 1.4), little-endian: int64 offsets and timestamps, binary
 * arrays with 32-bit offsets, bytes and validity bits, headers as a list of such pairs.
 *
 * Buffers grow by doubling, so a record costs a few stores and one copy of its bytes. */
#include "columns/columns.h"

#include <stdlib.h>
#include <string.h>

#include "format/bytes.h"

#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    COLUMNS_ROWS_MIN = 1024,
    COLUMNS_DATA_BYTES_MIN = 16 * 1024,
    COLUMNS_HINT_MAX = 64 * 1024 * 1024, /* bytes, or rows */
    COLUMNS_REPLACEMENT_BYTES = 3 /* U+FFFD replaces each invalid byte */
};

/* ---- allocation */

static bool columns_resize(void *at, size_t bytes) {
    void *old, *grown;
    memcpy(&old, at, sizeof old);
    grown = realloc(old, bytes);
    if (grown == NULL) {
        return false;
    }
    memcpy(at, &grown, sizeof grown);
    return true;
}

static bool bytes_grow_rows(struct columns_bytes *b, size_t old_room, size_t room) {
    size_t old_bits = b->validity == NULL ? 0 : (old_room + 7) / 8, bits = (room + 7) / 8;
    bool first = b->offsets == NULL;
    assert(room > old_room && b->null_count <= old_room);
    if (!columns_resize(&b->offsets, (room + 1) * sizeof *b->offsets) ||
        !columns_resize(&b->validity, bits)) {
        return false;
    }
    if (first) {
        b->offsets[0] = 0;
    }
    memset(b->validity + old_bits, 0, bits - old_bits);
    return true;
}

static bool columns_grow_rows(struct columns *c) {
    size_t room = c->rows_room * 2 > COLUMNS_ROWS_MIN ? c->rows_room * 2 : COLUMNS_ROWS_MIN;
    room = c->rows_room == 0 && c->rows_hint > room ? c->rows_hint : room;
    bool first = c->header_offsets == NULL;
    assert(c->rows == c->rows_room && room > c->rows_room);
    if (!columns_resize(&c->offsets, room * sizeof *c->offsets) ||
        !columns_resize(&c->timestamps, room * sizeof *c->timestamps) ||
        !bytes_grow_rows(&c->key, c->rows_room, room) ||
        !bytes_grow_rows(&c->value, c->rows_room, room)) {
        return false;
    }
    if (c->with_headers) {
        if (!columns_resize(&c->header_offsets, (room + 1) * sizeof *c->header_offsets)) {
            return false;
        }
        if (first) {
            c->header_offsets[0] = 0;
        }
    }
    c->rows_room = room;
    return true;
}

static bool columns_grow_headers(struct columns *c) {
    size_t room =
        c->headers_room * 2 > COLUMNS_ROWS_MIN ? c->headers_room * 2 : COLUMNS_ROWS_MIN;
    assert(c->with_headers && c->headers <= c->headers_room);
    if (!bytes_grow_rows(&c->header_key, c->headers_room, room) ||
        !bytes_grow_rows(&c->header_value, c->headers_room, room)) {
        return false;
    }
    c->headers_room = room;
    return true;
}

static __attribute__((noinline)) bool bytes_grow_data(struct columns_bytes *b, size_t more) {
    assert(b->len <= b->room && b->room - b->len < more);
    size_t room = b->room * 2 > b->len + more ? b->room * 2 : b->len + more;
    room = b->room == 0 && b->hint > room ? b->hint : room;
    room = room < COLUMNS_DATA_BYTES_MIN ? (size_t)COLUMNS_DATA_BYTES_MIN : room;
    if (!columns_resize(&b->data, room)) {
        return false;
    }
    b->room = room;
    assert(b->room - b->len >= more);
    return true;
}

static inline bool bytes_reserve(struct columns_bytes *b, size_t more) {
    return LIKELY(b->room - b->len >= more) || bytes_grow_data(b, more);
}

/* Sets the bytes of row `row`, which must have room. `len` -1: null. */
static inline void bytes_put(struct columns_bytes *b, size_t row, const uint8_t *p, int32_t len) {
    if (len > 0) {
        assert_slow(b->room - b->len >= (size_t)len);
        memcpy(b->data + b->len, p, (size_t)len);
        b->len += (size_t)len;
    }
    b->offsets[row + 1] = (int32_t)b->len;
    if (UNLIKELY(len < 0)) {
        b->null_count++;
    } else {
        b->validity[row >> 3] = (uint8_t)(b->validity[row >> 3] | 1u << (row & 7));
    }
}

/* ---- headers */

/* Returns the length of the UTF-8 character at p in bytes, 0 if it is invalid (RFC 3629). */
static size_t utf8_character(const uint8_t *p, const uint8_t *end) {
    uint8_t first = *p;
    size_t left = (size_t)(end - p);
    if (first < 0x80) {
        return 1;
    }
    size_t n = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : 0;
    n = first >= 0xf0 && first < 0xf5 ? 4 : n;
    if (n == 0 || left < n) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (first == 0xe0 && p[1] < 0xa0) || (first == 0xf0 && p[1] < 0x90);
    bool surrogate = first == 0xed && p[1] > 0x9f;
    bool beyond = first == 0xf4 && p[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : n;
}

static bool utf8_is_valid(const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        size_t n = utf8_character(p, end);
        if (n == 0) {
            return false;
        }
        p += n;
    }
    return true;
}

/* Appends a header's key. Arrow strings must be valid UTF-8, which producers do not guarantee. */
static void header_key_put(struct columns_bytes *b, size_t row, const uint8_t *p, int32_t len) {
    const uint8_t *end = p + len;
    assert_slow(len >= 0);
    if (LIKELY(utf8_is_valid(p, end))) {
        bytes_put(b, row, p, len);
        return;
    }
    while (p < end) {
        size_t n = utf8_character(p, end);
        assert_slow(b->room - b->len >= (n == 0 ? (size_t)COLUMNS_REPLACEMENT_BYTES : n));
        memcpy(b->data + b->len, n == 0 ? (const uint8_t *)"\xef\xbf\xbd" : p, n == 0 ? 3 : n);
        b->len += n == 0 ? (size_t)COLUMNS_REPLACEMENT_BYTES : n;
        p += n == 0 ? 1 : n;
    }
    b->offsets[row + 1] = (int32_t)b->len;
    b->validity[row >> 3] = (uint8_t)(b->validity[row >> 3] | 1u << (row & 7));
}

const uint8_t *columns_header_field(const uint8_t *p, const uint8_t *end, const uint8_t **at,
                                    int32_t *len) {
    uint64_t bits = 0;
    p += get_uvarint(p, end, 5, &bits);
    int64_t n = zigzag_decode(bits);
    n = n < end - p ? n : end - p;
    *at = p;
    *len = (int32_t)n;
    assert_slow(p <= end && n <= end - p);
    return n < 0 ? p : p + n;
}

/* Appends the headers of one record. */
static void headers_put(struct columns *c, const struct columns_view *v) {
    const uint8_t *p = v->headers, *end = v->headers + v->headers_len, *at;
    int32_t len;
    assert_slow(c->headers_room - c->headers >= (size_t)v->header_count);
    for (int32_t i = 0; i < v->header_count; i++) {
        p = columns_header_field(p, end, &at, &len);
        header_key_put(&c->header_key, c->headers, at, len < 0 ? 0 : len);
        p = columns_header_field(p, end, &at, &len);
        bytes_put(&c->header_value, c->headers, at, len);
        c->headers++;
    }
}

static __attribute__((noinline)) bool headers_reserve(struct columns *c,
                                                      const struct columns_view *v) {
    while (c->headers_room - c->headers < (size_t)v->header_count) {
        if (!columns_grow_headers(c)) {
            return false;
        }
    }
    size_t bytes = (size_t)v->headers_len;
    return bytes_reserve(&c->header_key, bytes * COLUMNS_REPLACEMENT_BYTES) &&
           bytes_reserve(&c->header_value, bytes);
}

/* ---- rows */

static inline bool columns_fit(const struct columns *c, const struct columns_view *v) {
    size_t key = v->key_len > 0 ? (size_t)v->key_len : 0;
    size_t value = v->value_len > 0 ? (size_t)v->value_len : 0;
    size_t headers =
        c->with_headers ? (size_t)v->headers_len * COLUMNS_REPLACEMENT_BYTES : 0;
    return c->key.len + key <= c->bytes_max && c->value.len + value <= c->bytes_max &&
           c->header_key.len + headers <= c->bytes_max &&
           c->header_value.len + headers <= c->bytes_max;
}

static bool columns_put(struct columns *c, const struct columns_view *v) {
    size_t row = c->rows;
    bool headers = c->with_headers && v->header_count > 0;
    /* Reserve all room first, so that a row is appended completely or not at all. */
    if (UNLIKELY((row == c->rows_room && !columns_grow_rows(c)) ||
                 (v->key_len > 0 && !bytes_reserve(&c->key, (size_t)v->key_len)) ||
                 (v->value_len > 0 && !bytes_reserve(&c->value, (size_t)v->value_len)) ||
                 (headers && !headers_reserve(c, v)))) {
        return false;
    }
    assert_slow(row < c->rows_room);
    c->offsets[row] = v->offset;
    c->timestamps[row] = v->timestamp;
    bytes_put(&c->key, row, v->key, v->key_len);
    bytes_put(&c->value, row, v->value, v->value_len);
    if (c->with_headers) {
        if (UNLIKELY(headers)) {
            headers_put(c, v);
        }
        c->header_offsets[row + 1] = (int32_t)c->headers;
    }
    c->rows++;
    return true;
}

/* Sets `n` validity bits from `row` on. */
static void bits_set(uint8_t *bits, size_t row, size_t n) {
    size_t end = row + n;
    while (row < end && (row & 7) != 0) {
        bits[row >> 3] = (uint8_t)(bits[row >> 3] | 1u << (row & 7));
        row++;
    }
    memset(bits + (row >> 3), 0xff, (end - row) >> 3);
    for (row += (end - row) & ~(size_t)7; row < end; row++) {
        bits[row >> 3] = (uint8_t)(bits[row >> 3] | 1u << (row & 7));
    }
}

/* Sets the bytes of `n` rows from `row` on, which must have room. */
static inline __attribute__((always_inline)) void
bytes_put_run(struct columns_bytes *b, size_t row, const struct columns_view *v, size_t n,
              bool is_key) {
    uint8_t *data = b->data;
    int32_t *offsets = b->offsets + row + 1;
    size_t len = b->len, nulls = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t size = is_key ? v[i].key_len : v[i].value_len;
        if (size > 0) {
            memcpy(data + len, is_key ? v[i].key : v[i].value, (size_t)size);
            len += (size_t)size;
        }
        offsets[i] = (int32_t)len;
        nulls += size < 0;
    }
    assert(len <= b->room);
    b->len = len;
    b->null_count += nulls;
    if (nulls == 0) {
        bits_set(b->validity, row, n);
    }
    for (size_t i = 0; nulls > 0 && nulls < n && i < n; i++) {
        if ((is_key ? v[i].key_len : v[i].value_len) >= 0) {
            bits_set(b->validity, row + i, 1);
        }
    }
}

/* Appends `n` records, column by column. Returns false and appends nothing if a record has
 * headers, or if there is not enough room for all. Appending records one at a time is slower: it
 * checks room and reads every field again for each. */
static bool columns_put_run(struct columns *c, const struct columns_view *v, size_t n) {
    size_t row = c->rows, key = 0, value = 0;
    bool headers = false;
    for (size_t i = 0; i < n; i++) {
        key += v[i].key_len > 0 ? (size_t)v[i].key_len : 0;
        value += v[i].value_len > 0 ? (size_t)v[i].value_len : 0;
        headers = headers || v[i].header_count > 0;
    }
    if ((headers && c->with_headers) || c->rows_room - row < n ||
        c->key.len + key > c->bytes_max || c->value.len + value > c->bytes_max ||
        !bytes_reserve(&c->key, key) || !bytes_reserve(&c->value, value)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        c->offsets[row + i] = v[i].offset;
        c->timestamps[row + i] = v[i].timestamp;
    }
    bytes_put_run(&c->key, row, v, n, true);
    bytes_put_run(&c->value, row, v, n, false);
    for (size_t i = 0; c->with_headers && i < n; i++) {
        c->header_offsets[row + 1 + i] = (int32_t)c->headers;
    }
    c->rows += n;
    return true;
}

/* Returns the run that counts the next records of `source`, or NULL if out of memory. */
static struct columns_run *columns_run_of(struct columns *c, int32_t source) {
    if (c->run_count > 0 && c->runs[c->run_count - 1].source == source) {
        return &c->runs[c->run_count - 1];
    }
    assert(c->run_count <= c->runs_room);
    if (c->run_count == c->runs_room) {
        size_t room = c->runs_room > 0 ? c->runs_room * 2 : 16;
        if (!columns_resize(&c->runs, room * sizeof *c->runs)) {
            return NULL;
        }
        c->runs_room = room;
    }
    c->runs[c->run_count] = (struct columns_run){.count = 0, .source = source};
    return &c->runs[c->run_count++];
}

int64_t columns_append(struct columns *c, struct columns_source *s, int32_t source,
                       int64_t rows_max) {
    int64_t done = 0;
    int rc = 1;
    assert(source >= 0 && rows_max >= 0);
    assert(c->bytes_max > 0 && c->bytes_max <= INT32_MAX); /* 32-bit offsets */
    size_t rows_before = c->rows;
    struct columns_run *run = columns_run_of(c, source);
    if (run == NULL) {
        return BATCH_E_MEMORY;
    }
    while (done < rows_max && rc > 0) {
        rc = columns_source_next(s);
        if (rc <= 0) {
            break;
        }
        int32_t row_count = 0, most = rows_max - done < rc ? (int32_t)(rows_max - done) : rc;
        const struct columns_view *views = &s->views[s->view_at];
        if (LIKELY(columns_put_run(c, views, (size_t)most))) {
            row_count = most;
        }
        for (; row_count < most; row_count++) {
            const struct columns_view *v = &views[row_count];
            if (UNLIKELY(!columns_fit(c, v))) {
                rc = COLUMNS_FULL;
                break;
            }
            if (UNLIKELY(!columns_put(c, v))) {
                rc = BATCH_E_MEMORY;
                break;
            }
        }
        columns_source_consume(s, row_count);
        done += row_count;
    }
    assert(done <= rows_max && c->rows == rows_before + (size_t)done);
    run->count += done;
    c->run_count -= run->count == 0;
    return done > 0 || rc > 0 ? done : rc;
}

int columns_append_view(struct columns *c, const struct columns_view *v, int32_t source) {
    assert(source >= 0 && c->bytes_max > 0 && c->bytes_max <= INT32_MAX);
    if (!columns_fit(c, v)) {
        return COLUMNS_FULL;
    }
    struct columns_run *run = columns_run_of(c, source);
    if (run == NULL) {
        return BATCH_E_MEMORY;
    }
    if (!columns_put(c, v)) {
        c->run_count -= run->count == 0;
        return BATCH_E_MEMORY;
    }
    run->count++;
    return 0;
}

static size_t columns_hint(size_t size) {
    size += size / 8;
    return size < COLUMNS_HINT_MAX ? size : (size_t)COLUMNS_HINT_MAX;
}

void columns_note_sizes(struct columns *c) {
    assert(c->rows <= c->rows_room && c->key.null_count <= c->rows);
    assert(c->value.null_count <= c->rows && c->header_value.null_count <= c->headers);
    c->rows_hint = columns_hint(c->rows);
    c->key.hint = columns_hint(c->key.len);
    c->value.hint = columns_hint(c->value.len);
}

static void bytes_clear(struct columns_bytes *b) {
    size_t hint = b->hint;
    free(b->offsets);
    free(b->data);
    free(b->validity);
    memset(b, 0, sizeof *b);
    b->hint = hint;
}

void columns_clear(struct columns *c) {
    free(c->offsets);
    free(c->timestamps);
    free(c->header_offsets);
    free(c->runs);
    bytes_clear(&c->key);
    bytes_clear(&c->value);
    bytes_clear(&c->header_key);
    bytes_clear(&c->header_value);
    struct columns empty = {.bytes_max = c->bytes_max,
                            .with_headers = c->with_headers,
                            .rows_hint = c->rows_hint,
                            .key.hint = c->key.hint,
                            .value.hint = c->value.hint};
    *c = empty;
}

bool columns_spread(const struct columns_run *runs, size_t run_count, const int32_t *values,
                    size_t value_count, int32_t *out) {
    for (size_t i = 0; i < run_count; i++) {
        if (runs[i].source < 0 || (size_t)runs[i].source >= value_count) {
            return false;
        }
        int32_t value = values[runs[i].source];
        assert(runs[i].count > 0); /* columns_append removes empty runs */
        for (int64_t j = 0; j < runs[i].count; j++) {
            *out++ = value;
        }
    }
    return true;
}

/* ---- fixed-width values */

static inline void fixed_copy(uint8_t *out, const uint8_t *p, size_t width, bool swap) {
    uint64_t v8;
    uint32_t v4;
    uint16_t v2;
    switch (width) {
    case 8:
        memcpy(&v8, p, 8);
        v8 = swap ? __builtin_bswap64(v8) : v8;
        memcpy(out, &v8, 8);
        break;
    case 4:
        memcpy(&v4, p, 4);
        v4 = swap ? __builtin_bswap32(v4) : v4;
        memcpy(out, &v4, 4);
        break;
    case 2:
        memcpy(&v2, p, 2);
        v2 = swap ? __builtin_bswap16(v2) : v2;
        memcpy(out, &v2, 2);
        break;
    default: *out = *p; break;
    }
}

bool columns_fixed(const int32_t *offsets, const uint8_t *data, const uint8_t *validity,
                   size_t start, size_t rows, size_t width, bool swap, uint8_t *out) {
    assert(width == 1 || width == 2 || width == 4 || width == 8);
    for (size_t row = 0; row < rows; row++, out += width) {
        size_t bit = start + row;
        if (validity != NULL && (validity[bit >> 3] >> (bit & 7) & 1) == 0) {
            memset(out, 0, width);
        } else if ((size_t)(offsets[row + 1] - offsets[row]) == width) {
            fixed_copy(out, data + offsets[row], width, swap);
        } else {
            return false;
        }
    }
    return true;
}
