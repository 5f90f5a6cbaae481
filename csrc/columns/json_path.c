/* Values before the wanted one are skipped by counting brackets outside strings. Strings are
 * skipped eight bytes at a time. Numbers are compared as decimal digits, so that integers of 64
 * bits and decimal fractions are never rounded. */
#include "columns/json_path.h"

#include <string.h>

#include "format/assertion.h"

#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    JSON_EXPONENT_MAX = 1000000000, /* larger ones are limited to it */
    JSON_UTF8_BYTES_MAX = 4
};

static inline bool json_is_space(uint8_t c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static inline const uint8_t *json_skip_space(const uint8_t *p, const uint8_t *end) {
    while (p < end && json_is_space(*p)) {
        p++;
    }
    return p;
}

/* ---- skipping values */

/* Returns nonzero if some of the eight bytes are `"` or a backslash. */
static inline uint64_t json_special(uint64_t bytes) {
    const uint64_t low = 0x0101010101010101, high = 0x8080808080808080;
    uint64_t quote = bytes ^ (low * '"'), escape = bytes ^ (low * '\\');
    return ((quote - low) & ~quote & high) | ((escape - low) & ~escape & high);
}

/* Returns the position of the closing quote of a string that starts at p, NULL without one. */
static const uint8_t *json_string_end(const uint8_t *p, const uint8_t *end, bool *has_escapes) {
    bool escapes = false;
    for (;;) {
        uint64_t bytes;
        while (end - p >= (ptrdiff_t)sizeof bytes) {
            memcpy(&bytes, p, sizeof bytes);
            if (json_special(bytes) != 0) {
                break;
            }
            p += sizeof bytes;
        }
        while (p < end && *p != '"' && *p != '\\') {
            p++;
        }
        if (end - p < 1 || (*p == '\\' && end - p < 2)) {
            return NULL;
        }
        if (*p == '"') {
            *has_escapes = escapes;
            return p;
        }
        escapes = true;
        p += 2;
    }
}

/* Returns the position after a number or literal. */
static const uint8_t *json_scalar_end(const uint8_t *p, const uint8_t *end) {
    while (p < end && *p != ',' && *p != '}' && *p != ']' && !json_is_space(*p)) {
        p++;
    }
    return p;
}

/* Returns the position after the object or array that starts at p, NULL if it does not end. */
static const uint8_t *json_container_end(const uint8_t *p, const uint8_t *end) {
    int64_t depth = 0;
    bool escapes;
    assert(p < end && (*p == '{' || *p == '['));
    while (p < end) {
        uint8_t c = *p++;
        if (c == '"') {
            p = json_string_end(p, end, &escapes);
            if (p == NULL) {
                return NULL;
            }
            p++;
        } else if ((c | 0x20) == '{') { /* { and [ differ in this bit, and so do } and ] */
            depth++;
        } else if ((c | 0x20) == '}' && --depth == 0) {
            return p;
        }
    }
    return NULL;
}

/* Reads the beginning of the value at p. Returns the position after a scalar, p for an object or
 * an array, NULL if there is no value. */
static const uint8_t *json_value_at(const uint8_t *p, const uint8_t *end, struct json_value *out) {
    out->has_escapes = false;
    if (p >= end) {
        return NULL;
    }
    out->text = p;
    out->len = (size_t)(end - p);
    if (*p == '{' || *p == '[') {
        out->kind = *p == '{' ? JSON_OBJECT : JSON_ARRAY;
        return p;
    }
    if (*p == '"') {
        const uint8_t *close = json_string_end(p + 1, end, &out->has_escapes);
        if (close == NULL) {
            return NULL;
        }
        out->kind = JSON_STRING;
        out->text = p + 1;
        out->len = (size_t)(close - p - 1);
        return close + 1;
    }
    const uint8_t *stop = json_scalar_end(p, end);
    out->kind = *p == '-' || (*p >= '0' && *p <= '9') ? JSON_NUMBER : JSON_LITERAL;
    out->len = (size_t)(stop - p);
    return stop == p ? NULL : stop;
}

/* Reads the value at p and returns the position after it, NULL if it does not end. */
static const uint8_t *json_whole_value(const uint8_t *p, const uint8_t *end,
                                       struct json_value *out) {
    const uint8_t *after = json_value_at(p, end, out);
    return after == p ? json_container_end(p, end) : after;
}

/* Values before the wanted one may be other words: NaN, as some libraries write it. */
static bool json_is_literal(const uint8_t *p, size_t len) {
    return (len == 4 && (memcmp(p, "true", 4) == 0 || memcmp(p, "null", 4) == 0)) ||
           (len == 5 && memcmp(p, "false", 5) == 0);
}

/* ---- strings */

static bool json_hex(const uint8_t *p, uint32_t *out) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i], letter = (uint8_t)(c | 0x20);
        if (c >= '0' && c <= '9') {
            value = value << 4 | (uint32_t)(c - '0');
        } else if (letter >= 'a' && letter <= 'f') {
            value = value << 4 | (uint32_t)(letter - 'a' + 10);
        } else {
            return false;
        }
    }
    *out = value;
    return true;
}

static size_t json_utf8(uint32_t code, uint8_t *out) {
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (uint8_t)(first[n] | code);
    return n;
}

/* Decodes the byte or escape at *p, which moves on. Returns the number of bytes written. */
static size_t json_unit(const uint8_t **p, const uint8_t *end, uint8_t out[JSON_UTF8_BYTES_MAX]) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const uint8_t *at = *p;
    uint32_t code, low;
    assert_slow(at < end);
    if (*at != '\\' || end - at < 2) {
        out[0] = *at;
        *p = at + 1;
        return 1;
    }
    if (at[1] == 'u' && end - at >= 6 && json_hex(at + 2, &code)) {
        *p = at + 6;
        if (code >= 0xd800 && code < 0xdc00 && end - at >= 12 && at[6] == '\\' && at[7] == 'u' &&
            json_hex(at + 8, &low) && low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            *p = at + 12;
        }
        return json_utf8(code, out);
    }
    const char *found = at[1] == 0 ? NULL : strchr(from, at[1]);
    out[0] = found == NULL ? *at : (uint8_t)to[found - from];
    *p = found == NULL ? at + 1 : at + 2;
    return 1;
}

static int json_order(const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len) {
    size_t both = a_len < b_len ? a_len : b_len;
    int order = both == 0 ? 0 : memcmp(a, b, both);
    return order != 0 ? (order > 0) - (order < 0) : (a_len > b_len) - (a_len < b_len);
}

int json_compare_string(const struct json_value *string, const uint8_t *text, size_t len) {
    assert(string->kind == JSON_STRING);
    if (LIKELY(!string->has_escapes)) {
        return json_order(string->text, string->len, text, len);
    }
    const uint8_t *p = string->text, *end = p + string->len;
    uint8_t unit[JSON_UTF8_BYTES_MAX];
    while (p < end) {
        size_t n = json_unit(&p, end, unit);
        int order = json_order(unit, n, text, n < len ? n : len);
        if (order != 0) {
            return order;
        }
        text += n;
        len -= n;
    }
    return len == 0 ? 0 : -1;
}

size_t json_decode_string(const struct json_value *string, uint8_t *out) {
    const uint8_t *p = string->text, *end = p + string->len;
    size_t written = 0;
    assert(string->kind == JSON_STRING);
    while (p < end) {
        uint8_t unit[JSON_UTF8_BYTES_MAX];
        size_t n = json_unit(&p, end, unit);
        memcpy(out + written, unit, n);
        written += n;
    }
    assert(written <= string->len); /* no escape is shorter than its character */
    return written;
}

/* ---- numbers */

/* A number as 0.ddd × 10^exponent. */
struct json_decimal {
    const uint8_t *digits, *end; /* from the first digit that is not 0; may contain a point */
    int64_t exponent;
    bool negative, zero;
};

static const uint8_t *json_digits(const uint8_t *p, const uint8_t *end) {
    while (p < end && *p >= '0' && *p <= '9') {
        p++;
    }
    return p;
}

/* Reads the exponent after the digits. Returns false if the text is not an exponent. */
static bool json_exponent(const uint8_t *p, const uint8_t *end, int64_t *out) {
    int64_t value = 0;
    *out = 0;
    if (p == end) {
        return true;
    }
    if ((*p | 0x20) != 'e' || ++p == end) {
        return false;
    }
    bool negative = *p == '-';
    p += *p == '-' || *p == '+';
    if (p == end || json_digits(p, end) != end) {
        return false;
    }
    for (; p < end; p++) {
        value = value * 10 + (*p - '0');
        value = value < JSON_EXPONENT_MAX ? value : JSON_EXPONENT_MAX;
    }
    *out = negative ? -value : value;
    return true;
}

static bool json_decimal_of(const uint8_t *p, size_t len, struct json_decimal *out) {
    const uint8_t *end = p + len, *whole, *point, *fraction_end;
    out->negative = p < end && *p == '-';
    p += out->negative;
    whole = p;
    point = fraction_end = json_digits(p, end);
    if (point == whole) {
        return false;
    }
    if (point < end && *point == '.') {
        fraction_end = json_digits(point + 1, end);
        if (fraction_end == point + 1) {
            return false;
        }
    }
    while (p < fraction_end && (*p == '0' || *p == '.')) {
        p++;
    }
    out->digits = p;
    out->end = fraction_end;
    out->zero = p == fraction_end;
    bool exponent = json_exponent(fraction_end, end, &out->exponent);
    out->exponent += p < point ? point - p : point - p + 1;
    return exponent;
}

int json_compare_numbers(const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len,
                         bool *valid) {
    struct json_decimal x, y;
    *valid = json_decimal_of(a, a_len, &x) && json_decimal_of(b, b_len, &y);
    if (!*valid) {
        return 0;
    }
    int x_sign = x.zero ? 0 : x.negative ? -1 : 1, y_sign = y.zero ? 0 : y.negative ? -1 : 1;
    if (x_sign != y_sign || x_sign == 0) {
        return (x_sign > y_sign) - (x_sign < y_sign);
    }
    if (x.exponent != y.exponent) {
        return x.exponent > y.exponent ? x_sign : -x_sign;
    }
    const uint8_t *p = x.digits, *q = y.digits;
    while (p < x.end || q < y.end) {
        p += p < x.end && *p == '.';
        q += q < y.end && *q == '.';
        int left = p < x.end ? *p++ - '0' : 0, right = q < y.end ? *q++ - '0' : 0;
        if (left != right) {
            return left > right ? x_sign : -x_sign;
        }
    }
    return 0;
}

/* ---- paths */

/* Moves to the first element or member. Returns NULL if there is none. */
static const uint8_t *json_first(const uint8_t *p, const uint8_t *end, uint8_t close) {
    p = json_skip_space(p, end);
    return p < end && *p != close ? p : NULL;
}

/* Moves past a comma to the next element or member. Returns NULL after the last one. */
static const uint8_t *json_next(const uint8_t *p, const uint8_t *end) {
    p = json_skip_space(p, end);
    return p < end && *p == ',' ? json_skip_space(p + 1, end) : NULL;
}

/* Returns the position of the member's value, NULL if the object has no such member. */
static const uint8_t *json_member(const uint8_t *p, const uint8_t *end,
                                  const struct json_step *step) {
    struct json_value name, skipped;
    for (p = json_first(p + 1, end, '}'); p != NULL; p = json_next(p, end)) {
        if (p == end || *p != '"') {
            return NULL;
        }
        p = json_value_at(p, end, &name);
        p = p == NULL ? NULL : json_skip_space(p, end);
        if (p == NULL || p == end || *p != ':') {
            return NULL;
        }
        p = json_skip_space(p + 1, end);
        if ((name.has_escapes || name.len == step->name_len) &&
            json_compare_string(&name, step->name, step->name_len) == 0) {
            return p;
        }
        p = json_whole_value(p, end, &skipped);
        if (p == NULL) {
            return NULL;
        }
    }
    return NULL;
}

bool json_next_element(const uint8_t **next, const uint8_t *end, struct json_value *out) {
    const uint8_t *p = *next;
    if (p == NULL) {
        return false;
    }
    p = json_first(p, end, ']');
    if (p == NULL) {
        *next = NULL;
        return false;
    }
    const uint8_t *after = json_whole_value(p, end, out);
    *next = after == NULL ? NULL : json_next(after, end);
    return after != NULL;
}

/* Returns the position of the element, NULL if the array is shorter. */
static const uint8_t *json_element(const uint8_t *p, const uint8_t *end, int64_t index) {
    struct json_value skipped;
    p = json_first(p + 1, end, ']');
    while (p != NULL && index-- > 0) {
        p = json_whole_value(p, end, &skipped);
        p = p == NULL ? NULL : json_next(p, end);
    }
    return p;
}

bool json_find(const uint8_t *document, size_t len, const struct json_step *steps, size_t count,
               struct json_value *out) {
    const uint8_t *end = document + len, *p = json_skip_space(document, end);
    for (size_t i = 0; i < count; i++) {
        const struct json_step *step = &steps[i];
        if (p >= end || *p != (step->name != NULL ? '{' : '[')) {
            return false;
        }
        p = step->name != NULL ? json_member(p, end, step) : json_element(p, end, step->index);
        if (p == NULL) {
            return false;
        }
        assert(p <= end);
    }
    if (json_value_at(p, end, out) == NULL) {
        return false;
    }
    struct json_decimal number;
    return out->kind == JSON_NUMBER    ? json_decimal_of(out->text, out->len, &number)
           : out->kind == JSON_LITERAL ? json_is_literal(out->text, out->len)
                                       : true;
}
