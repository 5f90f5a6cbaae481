/* Writes decimal digits by hand: a scrape of 10,000 partitions has 50,000 samples, and printf
 * would take most of its time. */
#include "os/prometheus_text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { EXPOSITION_BYTES_FIRST = 64 << 10, EXPOSITION_NUMBER_BYTES = 32 };

void exposition_clear(struct exposition *e) {
    free(e->bytes);
    *e = (struct exposition){0};
}

static char *exposition_reserve(struct exposition *e, size_t len) {
    if (e->failed) return NULL;
    if (e->cap - e->len < len) {
        size_t cap = e->cap == 0 ? EXPOSITION_BYTES_FIRST : e->cap * 2;
        while (cap - e->len < len) cap *= 2;
        char *grown = realloc(e->bytes, cap);
        if (grown == NULL) {
            e->failed = true;
            return NULL;
        }
        e->bytes = grown;
        e->cap = cap;
    }
    assert(e->cap - e->len >= len);
    return e->bytes + e->len;
}

void exposition_put(struct exposition *e, const char *bytes, size_t len) {
    char *to = exposition_reserve(e, len);
    if (to == NULL) return;
    if (len != 0) memcpy(to, bytes, len);
    e->len += len;
}

static char *exposition_digits(char *to, uint64_t value) {
    char digits[20];
    int n = 0;
    do digits[n++] = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    while (n > 0) *to++ = digits[--n];
    return to;
}

/* Writes a sample up to its value and reserves room for the value. */
static char *exposition_begin(struct exposition *e, const char *name, size_t name_len,
                              const struct exposition_rows *rows, size_t i) {
    size_t from = i == 0 ? 0 : rows->ends[i - 1], len = rows->ends[i] - from;
    assert(from <= rows->ends[i]);
    char *to = exposition_reserve(e, name_len + len + 3 + EXPOSITION_NUMBER_BYTES);
    if (to == NULL) return NULL;
    memcpy(to, name, name_len);
    to += name_len;
    *to++ = '{';
    if (len != 0) memcpy(to, rows->labels + from, len);
    to += len;
    *to++ = '}';
    *to++ = ' ';
    return to;
}

static void exposition_end(struct exposition *e, char *to) {
    *to++ = '\n';
    e->len = (size_t)(to - e->bytes);
    assert(e->len <= e->cap); /* a number fits the reserved room */
}

void exposition_integers(struct exposition *e, const char *name, size_t name_len,
                         const struct exposition_rows *rows, const int64_t *values,
                         size_t stride) {
    for (size_t i = 0; i < rows->count; i++) {
        char *to = exposition_begin(e, name, name_len, rows, i);
        if (to == NULL) return;
        int64_t value = values[i * stride];
        if (value < 0) *to++ = '-';
        exposition_end(e, exposition_digits(to, value < 0 ? -(uint64_t)value : (uint64_t)value));
    }
}

void exposition_thousandths(struct exposition *e, const char *name, size_t name_len,
                            const struct exposition_rows *rows, const int64_t *values,
                            size_t stride) {
    for (size_t i = 0; i < rows->count; i++) {
        int64_t value = values[i * stride];
        if (value < 0) continue;
        char *to = exposition_begin(e, name, name_len, rows, i);
        if (to == NULL) return;
        to = exposition_digits(to, (uint64_t)value / 1000);
        *to++ = '.';
        for (uint64_t part = (uint64_t)value % 1000, place = 100; place != 0; place /= 10)
            *to++ = (char)('0' + part / place % 10);
        exposition_end(e, to);
    }
}
