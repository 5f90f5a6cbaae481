/* Columns as lines of text, and lines as columns: what a command line tool reads and prints.
 *
 * Callers do not hold the GIL. */
#ifndef PYLOG_LINES_H
#define PYLOG_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- lines in */

/* How many lines of `data` end in it, up to `rows_max`; *bytes: what they take, ends included. With
 * `last`, bytes behind the last end are a line too. */
int64_t lines_count(const uint8_t *data, size_t len, bool last, int64_t rows_max, size_t *bytes);

/* Where lines go: columns as Arrow lays them out, with room for all bytes and rows + 1 offsets.
 * Validity may be NULL: then nothing is null; else it has a bit for each row and is zero. */
struct lines_column {
    int32_t *offsets;
    uint8_t *data, *validity;
};

/* `len` bytes of exactly `rows` lines, whose last may lack its end, each cut at the first
 * `separator` into key and value; without one (separator_len 0) they are values, and `key` may be
 * NULL. Empty values are null where the value has a validity. The rows done: fewer than `rows` when
 * that row has no separator. `len` is at most INT32_MAX. */
int64_t lines_split(const uint8_t *data, size_t len, int64_t rows, const uint8_t *separator,
                    size_t separator_len, struct lines_column *key, struct lines_column *value);

/* ---- lines out */

struct lines_values {
    const int32_t *offsets;
    const uint8_t *data, *validity; /* validity NULL: no nulls */
};

struct lines_rows {
    const int64_t *offsets, *timestamps;
    struct lines_values key, value, header_key, header_value;
    const int32_t *header_offsets; /* NULL: no record has headers */
};

/* Grows as needed; zero it first, free() its bytes. */
struct lines_text {
    uint8_t *bytes;
    size_t len, room;
};

/* Rows [start, stop): each value's bytes and a line's end, with `with_keys` the key and a tab
 * before it. False without memory. */
bool lines_raw(const struct lines_rows *rows, int64_t start, int64_t stop, bool with_keys,
               struct lines_text *out);

/* The same as a JSON document each: `head` is its beginning, up to the offset. Bytes that are no
 * UTF-8, and texts that begin with 0x, are 0x and hexadecimal digits. */
bool lines_json(const struct lines_rows *rows, int64_t start, int64_t stop, const uint8_t *head,
                size_t head_len, struct lines_text *out);

#endif
