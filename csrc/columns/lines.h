/* Converts text lines to columns and columns to text lines, for the command line tools.
 *
 * Callers do not hold the GIL. */
#ifndef PYLOG_LINES_H
#define PYLOG_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- reading lines */

/* Returns the number of complete lines in `data`, up to `rows_max`; *bytes: their size,
 * including line ends. With `last`, bytes after the last line end count as a line. */
int64_t lines_count(const uint8_t *data, size_t len, bool last, int64_t rows_max, size_t *bytes);

/* Output for lines: an Arrow column with room for all bytes and rows + 1 offsets. Validity is
 * NULL (no nulls), or has one bit per row, initially zero. */
struct lines_column {
    int32_t *offsets;
    uint8_t *data, *validity;
};

/* Splits `len` bytes of exactly `rows` lines; the last one may lack its line end. Each line is
 * split into key and value at the first `separator`; without one (separator_len 0) the line is
 * the value, and `key` may be NULL. Empty keys and values are null if the column has a validity
 * bitmap. Returns the number of rows written, fewer than `rows` if the next row has no
 * separator. `len` is at most INT32_MAX. */
int64_t lines_split(const uint8_t *data, size_t len, int64_t rows, const uint8_t *separator,
                    size_t separator_len, struct lines_column *key, struct lines_column *value);

/* ---- writing lines */

struct lines_values {
    const int32_t *offsets;
    const uint8_t *data, *validity; /* validity NULL: no nulls */
};

struct lines_rows {
    const int64_t *offsets, *timestamps;
    struct lines_values key, value, header_key, header_value;
    const int32_t *header_offsets; /* NULL: no record has headers */
};

/* Grows as needed. Zero it before use; free() its bytes afterwards. */
struct lines_text {
    uint8_t *bytes;
    size_t len, room;
};

/* Writes the rows [start, stop): each value and a line end, with `with_keys` preceded by the key
 * and a tab. Returns false if out of memory. */
bool lines_raw(const struct lines_rows *rows, int64_t start, int64_t stop, bool with_keys,
               struct lines_text *out);

/* Writes one JSON document per row. `head` is the start of the document, up to the offset.
 * Values that are not valid UTF-8, or that start with 0x, are written as 0x and hexadecimal
 * digits. */
bool lines_json(const struct lines_rows *rows, int64_t start, int64_t stop, const uint8_t *head,
                size_t head_len, struct lines_text *out);

#endif
