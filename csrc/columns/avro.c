/* Decodes Avro 1.11's binary encoding: numbers as varints or little-endian, length-prefixed
 * bytes, unions prefixed with the branch index. Visits each field of a row once. */
#include "columns/avro.h"

#include <stdlib.h>
#include <string.h>

#include "format/varint.h"

#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum { AVRO_DATA_BYTES_MIN = 4096 };

static size_t avro_value_bytes(const struct avro_column *c) {
    switch (c->kind) {
    case AVRO_INT:
    case AVRO_FLOAT: return 4;
    case AVRO_LONG:
    case AVRO_DOUBLE: return 8;
    case AVRO_FIXED: return (size_t)c->size;
    default: return 0;
    }
}

int avro_column_begin(struct avro_column *c, size_t rows) {
    size_t bitmap_bytes = rows / 8 + 1;
    assert(c->kind >= AVRO_NULL && c->kind <= AVRO_ENUM && c->size >= 0);
    assert(rows <= INT32_MAX); /* 32-bit offsets */
    c->len = c->room = 0;
    c->null_count = 0;
    c->offsets = NULL;
    c->values = NULL;
    c->validity = malloc(bitmap_bytes);
    if (c->kind == AVRO_BYTES || c->kind == AVRO_ENUM) {
        c->offsets = calloc(rows + 1, sizeof *c->offsets);
    } else {
        /* Null values are zero bytes. */
        c->values = calloc(1, bitmap_bytes + rows * avro_value_bytes(c));
    }
    if (c->validity == NULL || (c->offsets == NULL && c->values == NULL)) {
        avro_column_end(c);
        return AVRO_E_MEMORY;
    }
    memset(c->validity, 0xff, bitmap_bytes);
    return 0;
}

void avro_column_end(struct avro_column *c) {
    free(c->values);
    free(c->offsets);
    free(c->validity);
    c->values = c->validity = NULL;
    c->offsets = NULL;
}

static void avro_put_null(struct avro_column *c, size_t row) {
    c->validity[row >> 3] &= (uint8_t)~(1u << (row & 7));
    c->null_count++;
    assert_slow(c->null_count > 0 && c->len <= INT32_MAX);
    if (c->offsets != NULL) {
        c->offsets[row + 1] = (int32_t)c->len;
    }
}

static __attribute__((noinline)) int avro_grow(struct avro_column *c, size_t more) {
    assert(c->offsets != NULL && c->len <= c->room);
    if (c->len + more > INT32_MAX) {
        return AVRO_E_SIZE;
    }
    size_t room = c->room * 2 > c->len + more ? c->room * 2 : c->len + more;
    room = room < AVRO_DATA_BYTES_MIN ? (size_t)AVRO_DATA_BYTES_MIN : room;
    uint8_t *grown = realloc(c->values, room);
    if (grown == NULL) {
        return AVRO_E_MEMORY;
    }
    c->values = grown;
    c->room = room;
    assert(c->room - c->len >= more);
    return 0;
}

static inline int avro_put_bytes(struct avro_column *c, size_t row, const uint8_t *p, size_t len) {
    if (UNLIKELY(c->room - c->len < len)) {
        int rc = avro_grow(c, len);
        if (rc < 0) {
            return rc;
        }
    }
    if (len > 0) {
        memcpy(c->values + c->len, p, len);
        c->len += len;
    }
    /* The next row's value starts where this one ends. */
    assert_slow(c->offsets[row] <= (int32_t)c->len);
    c->offsets[row + 1] = (int32_t)c->len;
    return 0;
}

/* Decodes an int or long and moves *p past it. */
static inline int avro_number(const struct avro_field *f, struct avro_column *c, size_t row,
                              const uint8_t **p, const uint8_t *end) {
    int64_t v;
    *p = varint_get(*p, end, f->kind == AVRO_INT ? VARINT_BYTES_MAX : VARLONG_BYTES_MAX, &v);
    if (UNLIKELY(*p == NULL)) {
        return AVRO_E_VALUE;
    }
    if (c == NULL) {
        return 0;
    }
    assert_slow(c->kind == AVRO_LONG || (c->kind == AVRO_INT && f->kind == AVRO_INT));
    if (c->kind == AVRO_INT) {
        int32_t narrow = (int32_t)v;
        memcpy(c->values + 4 * row, &narrow, 4);
    } else {
        memcpy(c->values + 8 * row, &v, 8);
    }
    return 0;
}

static inline int avro_fixed(struct avro_column *c, size_t row, const uint8_t **p,
                             const uint8_t *end, size_t size) {
    if (UNLIKELY((size_t)(end - *p) < size)) {
        return AVRO_E_VALUE;
    }
    if (c != NULL) {
        assert_slow(size == avro_value_bytes(c));
        memcpy(c->values + size * row, *p, size);
    }
    *p += size;
    return 0;
}

static inline int avro_text(struct avro_column *c, size_t row, const uint8_t **p,
                            const uint8_t *end) {
    int64_t len;
    const uint8_t *at = varint_get(*p, end, VARLONG_BYTES_MAX, &len);
    if (UNLIKELY(at == NULL || len < 0 || len > end - at)) {
        return AVRO_E_VALUE;
    }
    *p = at + len;
    return c == NULL ? 0 : avro_put_bytes(c, row, at, (size_t)len);
}

static inline int avro_boolean(struct avro_column *c, size_t row, const uint8_t **p,
                               const uint8_t *end) {
    if (UNLIKELY(*p == end || **p > 1)) {
        return AVRO_E_VALUE;
    }
    if (c != NULL) {
        c->values[row >> 3] |= (uint8_t)(**p << (row & 7));
    }
    ++*p;
    return 0;
}

static int avro_enum(const struct avro_field *f, struct avro_column *c, size_t row,
                     const uint8_t **p, const uint8_t *end) {
    int64_t symbol;
    *p = varint_get(*p, end, VARINT_BYTES_MAX, &symbol);
    if (*p == NULL || symbol < 0 || symbol >= f->size) {
        return AVRO_E_VALUE;
    }
    size_t from = symbol == 0 ? 0 : (size_t)f->symbol_ends[symbol - 1];
    size_t to = (size_t)f->symbol_ends[symbol];
    assert_slow(from <= to);
    return c == NULL ? 0 : avro_put_bytes(c, row, f->symbols + from, to - from);
}

static inline int avro_value(const struct avro_field *f, struct avro_column *c, size_t row,
                             const uint8_t **p, const uint8_t *end) {
    if (f->null_branch != AVRO_NO_UNION) {
        int64_t branch;
        *p = varint_get(*p, end, VARLONG_BYTES_MAX, &branch);
        if (UNLIKELY(*p == NULL || branch < 0 || branch > 1)) {
            return AVRO_E_VALUE;
        }
        if (branch == f->null_branch) {
            if (c != NULL) {
                avro_put_null(c, row);
            }
            return 0;
        }
    }
    switch (f->kind) {
    case AVRO_BOOLEAN: return avro_boolean(c, row, p, end);
    case AVRO_INT:
    case AVRO_LONG: return avro_number(f, c, row, p, end);
    case AVRO_FLOAT: return avro_fixed(c, row, p, end, 4);
    case AVRO_DOUBLE: return avro_fixed(c, row, p, end, 8);
    case AVRO_BYTES: return avro_text(c, row, p, end);
    case AVRO_FIXED: return avro_fixed(c, row, p, end, (size_t)f->size);
    case AVRO_ENUM: return avro_enum(f, c, row, p, end);
    default:
        if (c != NULL) {
            avro_put_null(c, row);
        }
        return 0;
    }
}

int64_t avro_schema_id(const struct builder_column *rows, int64_t row) {
    const uint8_t *p;
    int64_t len;
    if (!builder_column_at(rows, row, &p, &len)) {
        return AVRO_E_COLUMN - 1;
    }
    if (len < 0) {
        return -1;
    }
    return len < AVRO_HEAD_BYTES || p[0] != 0 ? AVRO_E_VALUE - 1 : (int64_t)get_u32(p + 1);
}

int64_t avro_decode(const struct avro_field *fields, size_t field_count, int64_t id,
                    struct avro_column *columns, size_t column_count,
                    const struct builder_column *rows, int64_t row, int64_t stop, int *error) {
    assert(row >= 0 && row <= stop);
    for (size_t i = 0; i < field_count; i++) {
        assert(fields[i].column < 0 || (size_t)fields[i].column < column_count);
    }
    *error = 0;
    for (; row < stop; row++) {
        const uint8_t *p;
        int64_t len;
        if (UNLIKELY(!builder_column_at(rows, row, &p, &len))) {
            *error = AVRO_E_COLUMN;
            return row;
        }
        if (len < 0) {
            for (size_t i = 0; i < column_count; i++) {
                avro_put_null(&columns[i], (size_t)row);
            }
            continue;
        }
        if (UNLIKELY(len < AVRO_HEAD_BYTES || p[0] != 0)) {
            *error = AVRO_E_VALUE;
            return row;
        }
        if (UNLIKELY((int64_t)get_u32(p + 1) != id)) {
            return row;
        }
        const uint8_t *end = p + len;
        p += AVRO_HEAD_BYTES;
        assert_slow(p <= end);
        for (size_t i = 0; i < field_count && *error == 0; i++) {
            const struct avro_field *f = &fields[i];
            *error = avro_value(f, f->column < 0 ? NULL : &columns[f->column], (size_t)row, &p,
                                end);
        }
        if (UNLIKELY(*error < 0)) {
            return row;
        }
    }
    return row;
}
