/* See lines.h. JSON as in RFC 8259, escaping only what it requires. Valid UTF-8 has no overlong
 * forms, no surrogates and no characters above U+10FFFF. */
#include "columns/lines.h"

#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"

enum {
    LINES_NUMBER_BYTES_MAX = 20,  /* an int64 */
    LINES_ESCAPE_BYTES_MAX = 6,   /* backslash, u, four digits */
    LINES_FIXED_BYTES = 160,      /* per document: names, numbers, brackets, quotes */
    LINES_HEADER_FIXED_BYTES = 32 /* per header: the same */
};

static const char hex_digits[] = "0123456789abcdef";

/* ---- reading lines */

int64_t lines_count(const uint8_t *data, size_t len, bool last, int64_t rows_max, size_t *bytes) {
    const uint8_t *p = data, *end = data + len;
    int64_t rows = 0;
    while (rows < rows_max && p < end) {
        const uint8_t *found = memchr(p, '\n', (size_t)(end - p));
        if (found == NULL) {
            if (!last)
                break;
            found = end - 1;
        }
        p = found + 1;
        rows++;
    }
    *bytes = (size_t)(p - data);
    return rows;
}

static const uint8_t *find_separator(const uint8_t *p, const uint8_t *end, const uint8_t *separator,
                                     size_t len) {
    return memmem(p, (size_t)(end - p), separator, len);
}

static void add(struct lines_column *column, int64_t row, const uint8_t *bytes, size_t len) {
    int32_t at = column->offsets[row];
    memcpy(column->data + at, bytes, len);
    column->offsets[row + 1] = at + (int32_t)len;
    if (column->validity != NULL && len > 0)
        column->validity[row >> 3] |= (uint8_t)(1 << (row & 7));
}

int64_t lines_split(const uint8_t *data, size_t len, int64_t rows, const uint8_t *separator,
                    size_t separator_len, struct lines_column *key, struct lines_column *value) {
    const uint8_t *p = data, *end = data + len;
    assert(len <= INT32_MAX);
    value->offsets[0] = 0;
    if (separator_len > 0)
        key->offsets[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *stop = memchr(p, '\n', (size_t)(end - p));
        const uint8_t *next = stop == NULL ? end : stop + 1;
        if (stop == NULL)
            stop = end;
        if (separator_len > 0) {
            const uint8_t *cut = find_separator(p, stop, separator, separator_len);
            if (cut == NULL)
                return row;
            add(key, row, p, (size_t)(cut - p));
            p = cut + separator_len;
        }
        add(value, row, p, (size_t)(stop - p));
        p = next;
    }
    return rows;
}

/* ---- writing lines */

static bool reserve(struct lines_text *out, size_t more) {
    if (out->room - out->len >= more)
        return true;
    size_t room = out->room * 2 > out->len + more ? out->room * 2 : out->len + more;
    uint8_t *grown = realloc(out->bytes, room);
    if (grown == NULL)
        return false;
    out->bytes = grown;
    out->room = room;
    return true;
}

static bool is_null(const struct lines_values *values, int64_t row) {
    return values->validity != NULL && !(values->validity[row >> 3] >> (row & 7) & 1);
}

static const uint8_t *value_at(const struct lines_values *values, int64_t row, size_t *len) {
    *len = (size_t)(values->offsets[row + 1] - values->offsets[row]);
    return values->data + values->offsets[row];
}

static void put(struct lines_text *out, const void *bytes, size_t len) {
    assert_slow(out->room - out->len >= len);
    memcpy(out->bytes + out->len, bytes, len);
    out->len += len;
}

static void put_text(struct lines_text *out, const char *text) {
    put(out, text, strlen(text));
}

bool lines_raw(const struct lines_rows *rows, int64_t start, int64_t stop, bool with_keys,
               struct lines_text *out) {
    for (int64_t row = start; row < stop; row++) {
        size_t key_len = 0, value_len;
        const uint8_t *value = value_at(&rows->value, row, &value_len), *key = NULL;
        if (with_keys)
            key = value_at(&rows->key, row, &key_len);
        if (!reserve(out, key_len + value_len + 2))
            return false;
        if (with_keys) {
            put(out, key, key_len);
            out->bytes[out->len++] = '\t';
        }
        put(out, value, value_len);
        out->bytes[out->len++] = '\n';
    }
    return true;
}

static void put_number(struct lines_text *out, int64_t number) {
    uint8_t digits[LINES_NUMBER_BYTES_MAX];
    size_t at = sizeof digits;
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        digits[--at] = (uint8_t)('0' + left % 10);
    while (left /= 10);
    if (number < 0)
        digits[--at] = '-';
    put(out, digits + at, sizeof digits - at);
}

/* Returns the length of the UTF-8 character at `p` in bytes, 0 if it is invalid. */
static size_t character_bytes(const uint8_t *p, size_t left) {
    uint8_t lead = p[0];
    size_t len = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3
                                                          : lead < 0xF5 ? 4 : 0;
    if (len == 0 || len > left)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    if ((lead == 0xE0 && p[1] < 0xA0) || (lead == 0xED && p[1] > 0x9F) ||
        (lead == 0xF0 && p[1] < 0x90) || (lead == 0xF4 && p[1] > 0x8F))
        return 0;
    return len;
}

/* Returns true if one of eight bytes is a control character, quote, backslash or non-ASCII. */
static bool any_special(uint64_t eight) {
    const uint64_t ones = 0x0101010101010101ULL, tops = 0x8080808080808080ULL;
    uint64_t quote = eight ^ ones * '"', backslash = eight ^ ones * '\\';
    uint64_t low = (eight - ones * 0x20) & ~eight;
    uint64_t found = low | ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | eight;
    return (found & tops) != 0;
}

static void put_escaped(struct lines_text *out, uint8_t byte) {
    static const char short_names[] = "btn\0fr"; /* 0x08 to 0x0D; 0x0B has no short name */
    out->bytes[out->len++] = '\\';
    if (byte == '"' || byte == '\\') {
        out->bytes[out->len++] = byte;
    } else if (byte >= 0x08 && byte <= 0x0D && byte != 0x0B) {
        out->bytes[out->len++] = (uint8_t)short_names[byte - 0x08];
    } else {
        put_text(out, "u00");
        out->bytes[out->len++] = (uint8_t)hex_digits[byte >> 4];
        out->bytes[out->len++] = (uint8_t)hex_digits[byte & 15];
    }
}

/* Writes the bytes as the content of a JSON string. Returns false and writes nothing if they are
 * not valid UTF-8. */
static bool put_string(struct lines_text *out, const uint8_t *p, size_t len) {
    size_t begin = out->len, i = 0;
    while (i < len) {
        uint64_t eight;
        while (len - i >= sizeof eight) {
            memcpy(&eight, p + i, sizeof eight);
            if (any_special(eight))
                break;
            memcpy(out->bytes + out->len, &eight, sizeof eight);
            out->len += sizeof eight;
            i += sizeof eight;
        }
        if (i == len)
            break;
        if (p[i] < 0x20 || p[i] == '"' || p[i] == '\\') {
            put_escaped(out, p[i++]);
            continue;
        }
        size_t whole = character_bytes(p + i, len - i);
        if (whole == 0) {
            out->len = begin;
            return false;
        }
        put(out, p + i, whole);
        i += whole;
    }
    return true;
}

static void put_hex(struct lines_text *out, const uint8_t *p, size_t len) {
    put_text(out, "0x");
    for (size_t i = 0; i < len; i++) {
        out->bytes[out->len++] = (uint8_t)hex_digits[p[i] >> 4];
        out->bytes[out->len++] = (uint8_t)hex_digits[p[i] & 15];
    }
}

static void put_value(struct lines_text *out, const struct lines_values *values, int64_t row) {
    if (is_null(values, row)) {
        put_text(out, "null");
        return;
    }
    size_t len;
    const uint8_t *p = value_at(values, row, &len);
    out->bytes[out->len++] = '"';
    bool has_prefix = len >= 2 && p[0] == '0' && p[1] == 'x';
    if (has_prefix || !put_string(out, p, len))
        put_hex(out, p, len);
    out->bytes[out->len++] = '"';
}

/* Returns the maximum size of the written values: escaped, or as hexadecimal digits after 0x. */
static size_t bytes_most(const struct lines_values *values, int64_t start, int64_t stop) {
    return (size_t)(values->offsets[stop] - values->offsets[start]) * LINES_ESCAPE_BYTES_MAX;
}

static void put_headers(struct lines_text *out, const struct lines_rows *rows, int64_t row) {
    int32_t start = rows->header_offsets[row], stop = rows->header_offsets[row + 1];
    for (int32_t header = start; header < stop; header++) {
        put_text(out, header == start ? "{\"key\": \"" : ", {\"key\": \"");
        size_t len;
        const uint8_t *name = value_at(&rows->header_key, header, &len);
        if (!put_string(out, name, len)) /* columns.c has made it valid UTF-8; only a fallback */
            put_hex(out, name, len);
        put_text(out, "\", \"value\": ");
        put_value(out, &rows->header_value, header);
        out->bytes[out->len++] = '}';
    }
}

bool lines_json(const struct lines_rows *rows, int64_t start, int64_t stop, const uint8_t *head,
                size_t head_len, struct lines_text *out) {
    for (int64_t row = start; row < stop; row++) {
        size_t most = head_len + LINES_FIXED_BYTES + bytes_most(&rows->key, row, row + 1) +
                      bytes_most(&rows->value, row, row + 1);
        if (rows->header_offsets != NULL) {
            int32_t first = rows->header_offsets[row], after = rows->header_offsets[row + 1];
            most += (size_t)(after - first) * LINES_HEADER_FIXED_BYTES +
                    bytes_most(&rows->header_key, first, after) +
                    bytes_most(&rows->header_value, first, after);
        }
        if (!reserve(out, most))
            return false;
        put(out, head, head_len);
        put_number(out, rows->offsets[row]);
        put_text(out, ", \"timestamp\": ");
        put_number(out, rows->timestamps[row]);
        put_text(out, ", \"key\": ");
        put_value(out, &rows->key, row);
        put_text(out, ", \"value\": ");
        put_value(out, &rows->value, row);
        put_text(out, ", \"headers\": [");
        if (rows->header_offsets != NULL)
            put_headers(out, rows, row);
        put_text(out, "]}\n");
    }
    return true;
}
