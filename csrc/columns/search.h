/* Finds the records of fetched batches that match a compiled predicate, and appends them to
 * columns.
 *
 * The batches may come from any broker; columns_source checks them. A search allocates only for
 * matches and to decode strings with escapes, at most the length of such a string. */
#ifndef PYLOG_SEARCH_H
#define PYLOG_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "columns/columns.h"
#include "columns/json_path.h"

enum search_field {
    SEARCH_RECORD_KEY,
    SEARCH_RECORD_VALUE,
    SEARCH_HEADER,
    SEARCH_KEY_JSON,
    SEARCH_VALUE_JSON,   /* also after the prefix of JSON Schema: 0 and a schema id */
    SEARCH_RECORD_SIZE, /* key, value and headers */
    SEARCH_BATCH_SIZE,  /* of the record's batch as stored: compressed */
    SEARCH_PRODUCER_ID,
    SEARCH_TIMESTAMP,
    SEARCH_FIELD_COUNT
};

enum search_op {
    SEARCH_EXISTS,   /* not null; of a header or JSON path: present */
    SEARCH_IS_NULL,  /* of a key or value */
    SEARCH_EQUALS,
    SEARCH_DIFFERS,  /* a JSON path: present with another value */
    SEARCH_PREFIX,
    SEARCH_CONTAINS, /* a JSON path: a string with this part, or an array with this element */
    SEARCH_LESS,     /* this and the next three: a JSON path with a value of the same kind */
    SEARCH_AT_MOST,
    SEARCH_GREATER,
    SEARCH_AT_LEAST,
    SEARCH_BETWEEN,  /* a number: low <= it <= high */
    SEARCH_OP_COUNT
};

/* One comparison. Tests of one group are alternatives; every group must have a match. */
struct search_test {
    int32_t group;
    enum search_field field;
    enum search_op op;
    const uint8_t *name; /* of a header */
    size_t name_len;
    const struct json_step *steps; /* of a JSON path */
    size_t step_count;
    enum json_kind kind; /* of the text, for a JSON path */
    const uint8_t *text;
    size_t text_len;
    int64_t low, high;
};

/* Zero it and set the first group of fields. Free `decoded` at the end. */
struct search {
    const struct search_test *tests; /* groups one after the other */
    size_t test_count;               /* 0: all records match */
    int64_t end_offset;              /* records from here on are left in the source */

    int64_t records, bytes; /* compared so far; bytes of keys, values and headers */
    uint8_t *decoded;
    size_t decoded_room;
};

/* Returns whether a field can be compared in this way. */
bool search_test_is_valid(const struct search_test *test);

/* Appends matches from `source` until there are `rows_max`, about `bytes_max` bytes were compared,
 * or the next record is not before end_offset. Returns the number appended. If none, also
 * COLUMNS_FULL, COLUMNS_NEEDS_INFLATER or a batch_error. source->next_offset is the first offset
 * that was not compared. */
int64_t search_append(struct search *s, struct columns_source *source, struct columns *out,
                      int32_t source_number, int64_t rows_max, int64_t bytes_max);

#endif
