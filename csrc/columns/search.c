/* Evaluates the predicate on views of records: one pass over the fetched bytes, in which memmem
 * and the JSON scanner read most of them once. */
#include "columns/search.h"

#include <stdlib.h>
#include <string.h>

#include "format/bytes.h"

#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    SEARCH_SCHEMA_PREFIX_BYTES = 5,
    SEARCH_RECORD_COST_BYTES = 16, /* counted for a record besides its bytes */
    SEARCH_STOP = 1
};

/* ---- comparing */

static inline bool search_between(int64_t number, const struct search_test *t) {
    return number >= t->low && number <= t->high;
}

static bool search_contains(const uint8_t *p, size_t len, const struct search_test *t) {
    return t->text_len <= len && (t->text_len == 0 || memmem(p, len, t->text, t->text_len) != NULL);
}

/* Compares bytes; `len` -1: null. */
static bool search_bytes(const struct search_test *t, const uint8_t *p, int32_t len) {
    if (len < 0 || t->op == SEARCH_IS_NULL) {
        return len < 0 && t->op == SEARCH_IS_NULL;
    }
    size_t n = (size_t)len;
    switch (t->op) {
    case SEARCH_EXISTS:
        return true;
    case SEARCH_EQUALS:
        return n == t->text_len && (n == 0 || memcmp(p, t->text, n) == 0);
    case SEARCH_PREFIX:
        return n >= t->text_len && (t->text_len == 0 || memcmp(p, t->text, t->text_len) == 0);
    case SEARCH_CONTAINS:
        return search_contains(p, n, t);
    default:
        return false;
    }
}

static bool search_headers(const struct search_test *t, const struct columns_view *v) {
    const uint8_t *p = v->headers, *end = v->headers + v->headers_len, *name, *value;
    int32_t name_len, value_len;
    for (int32_t i = 0; i < v->header_count; i++) {
        p = columns_header_field(p, end, &name, &name_len);
        p = columns_header_field(p, end, &value, &value_len);
        if (name_len >= 0 && (size_t)name_len == t->name_len &&
            (name_len == 0 || memcmp(name, t->name, t->name_len) == 0) &&
            (t->op == SEARCH_EXISTS || search_bytes(t, value, value_len))) {
            return true;
        }
    }
    return false;
}

/* ---- JSON */

static bool search_grow(struct search *s, size_t room) {
    if (s->decoded_room >= room) {
        return true;
    }
    uint8_t *grown = realloc(s->decoded, room);
    if (grown == NULL) {
        return false;
    }
    s->decoded = grown;
    s->decoded_room = room;
    return true;
}

/* Orders a value and the test's text. Returns false if they are of different kinds. */
static bool search_order(const struct search_test *t, const struct json_value *v, int *order) {
    bool valid = v->kind == t->kind;
    if (!valid) {
        return false;
    }
    if (v->kind == JSON_NUMBER) {
        *order = json_compare_numbers(v->text, v->len, t->text, t->text_len, &valid);
    } else if (v->kind == JSON_STRING) {
        *order = json_compare_string(v, t->text, t->text_len);
    } else {
        valid = v->kind == JSON_LITERAL && v->len == t->text_len &&
                memcmp(v->text, t->text, v->len) == 0;
        *order = 0;
    }
    return valid;
}

/* Returns true if the string contains the text or the array contains the element. Sets *error if
 * memory runs out. */
static bool search_json_contains(struct search *s, const struct search_test *t,
                                 const struct json_value *v, int *error) {
    if (v->kind == JSON_STRING && t->kind == JSON_STRING) {
        if (LIKELY(!v->has_escapes)) {
            return search_contains(v->text, v->len, t);
        }
        if (!search_grow(s, v->len)) {
            *error = BATCH_E_MEMORY;
            return false;
        }
        return search_contains(s->decoded, json_decode_string(v, s->decoded), t);
    }
    if (v->kind != JSON_ARRAY) {
        return false;
    }
    const uint8_t *next = v->text + 1, *end = v->text + v->len;
    struct json_value element;
    int order;
    while (json_next_element(&next, end, &element)) {
        if (search_order(t, &element, &order) && order == 0) {
            return true;
        }
    }
    return false;
}

static bool search_json(struct search *s, const struct search_test *t, const uint8_t *p,
                        int32_t len, int *error) {
    struct json_value found;
    size_t n = len < 0 ? 0 : (size_t)len;
    if (n > SEARCH_SCHEMA_PREFIX_BYTES && *p == 0) {
        p += SEARCH_SCHEMA_PREFIX_BYTES;
        n -= SEARCH_SCHEMA_PREFIX_BYTES;
    }
    if (n == 0 || !json_find(p, n, t->steps, t->step_count, &found)) {
        return false;
    }
    if (t->op == SEARCH_EXISTS) {
        return true;
    }
    if (t->op == SEARCH_CONTAINS) {
        return search_json_contains(s, t, &found, error);
    }
    int order = 0;
    bool comparable = search_order(t, &found, &order);
    switch (t->op) {
    case SEARCH_EQUALS:
        return comparable && order == 0;
    case SEARCH_DIFFERS:
        return !comparable || order != 0;
    case SEARCH_LESS:
        return comparable && order < 0;
    case SEARCH_AT_MOST:
        return comparable && order <= 0;
    case SEARCH_GREATER:
        return comparable && order > 0;
    case SEARCH_AT_LEAST:
        return comparable && order >= 0;
    default:
        return false;
    }
}

/* ---- records */

bool search_test_is_valid(const struct search_test *t) {
    unsigned ops;
    switch (t->field) {
    case SEARCH_RECORD_KEY:
    case SEARCH_RECORD_VALUE:
        ops = 1u << SEARCH_EXISTS | 1u << SEARCH_IS_NULL | 1u << SEARCH_EQUALS |
              1u << SEARCH_PREFIX | 1u << SEARCH_CONTAINS;
        break;
    case SEARCH_HEADER:
        ops = 1u << SEARCH_EXISTS | 1u << SEARCH_EQUALS | 1u << SEARCH_PREFIX |
              1u << SEARCH_CONTAINS;
        break;
    case SEARCH_KEY_JSON:
    case SEARCH_VALUE_JSON:
        ops = 1u << SEARCH_EXISTS | 1u << SEARCH_EQUALS | 1u << SEARCH_DIFFERS |
              1u << SEARCH_CONTAINS | 1u << SEARCH_LESS | 1u << SEARCH_AT_MOST |
              1u << SEARCH_GREATER | 1u << SEARCH_AT_LEAST;
        break;
    default:
        ops = t->field < SEARCH_FIELD_COUNT ? 1u << SEARCH_BETWEEN : 0;
    }
    return t->op < SEARCH_OP_COUNT && (ops >> t->op & 1) != 0;
}

static int64_t search_record_bytes(const struct columns_view *v) {
    return (v->key_len > 0 ? v->key_len : 0) + (int64_t)(v->value_len > 0 ? v->value_len : 0) +
           (v->header_count > 0 ? v->headers_len : 0);
}

static bool search_holds(struct search *s, const struct search_test *t,
                         const struct columns_source *source, const struct columns_view *v,
                         int *error) {
    switch (t->field) {
    case SEARCH_RECORD_KEY:
        return search_bytes(t, v->key, v->key_len);
    case SEARCH_RECORD_VALUE:
        return search_bytes(t, v->value, v->value_len);
    case SEARCH_HEADER:
        return search_headers(t, v);
    case SEARCH_KEY_JSON:
        return search_json(s, t, v->key, v->key_len, error);
    case SEARCH_VALUE_JSON:
        return search_json(s, t, v->value, v->value_len, error);
    case SEARCH_RECORD_SIZE:
        return search_between(search_record_bytes(v), t);
    case SEARCH_BATCH_SIZE:
        return search_between((int64_t)batch_bytes(&source->header), t);
    case SEARCH_PRODUCER_ID:
        return search_between(source->header.producer_id, t);
    case SEARCH_TIMESTAMP:
        return search_between(v->timestamp, t);
    default:
        return false;
    }
}

static bool search_matches(struct search *s, const struct columns_source *source,
                           const struct columns_view *v, int *error) {
    size_t i = 0;
    while (i < s->test_count) {
        bool found = false;
        for (int32_t group = s->tests[i].group;
             i < s->test_count && s->tests[i].group == group; i++) {
            found = found || search_holds(s, &s->tests[i], source, v, error);
        }
        if (!found) {
            return false;
        }
    }
    return true;
}

/* Compares up to `count` views. Returns how many are done. *stop: SEARCH_STOP, or the error of the
 * next view. */
static int32_t search_views(struct search *s, const struct columns_source *source,
                            struct columns *out, int32_t source_number, int32_t count,
                            int64_t *rows_left, int *stop) {
    const struct columns_view *views = &source->views[source->view_at];
    for (int32_t i = 0; i < count; i++) {
        const struct columns_view *v = &views[i];
        int error = 0;
        if (v->offset >= s->end_offset) {
            *stop = SEARCH_STOP;
            return i;
        }
        if (search_matches(s, source, v, &error)) {
            error = columns_append_view(out, v, source_number);
            *rows_left -= error == 0;
        }
        if (UNLIKELY(error < 0)) {
            *stop = error;
            return i;
        }
        s->records++;
        s->bytes += search_record_bytes(v);
        if (*rows_left == 0) {
            *stop = SEARCH_STOP;
            return i + 1;
        }
    }
    return count;
}

int64_t search_append(struct search *s, struct columns_source *source, struct columns *out,
                      int32_t source_number, int64_t rows_max, int64_t bytes_max) {
    int64_t rows_left = rows_max, bytes_before = s->bytes, records_before = s->records;
    int stop = 0;
    assert(source_number >= 0 && rows_max > 0 && bytes_max > 0);
    while (stop == 0 && source->next_offset < s->end_offset &&
           s->bytes - bytes_before +
                   (s->records - records_before) * SEARCH_RECORD_COST_BYTES <
               bytes_max) {
        int count = columns_source_next(source);
        if (count <= 0) {
            stop = count < 0 ? count : SEARCH_STOP;
            break;
        }
        int32_t done = search_views(s, source, out, source_number, count, &rows_left, &stop);
        bool ended = done < count && source->views[source->view_at + done].offset >= s->end_offset;
        columns_source_consume(source, done);
        if (ended) {
            source->next_offset = s->end_offset; /* the offsets before it have no records */
        }
    }
    assert(rows_left >= 0 && s->records >= records_before);
    int64_t appended = rows_max - rows_left;
    return appended > 0 || stop >= 0 ? appended : stop;
}
