/* The text that a scrape is answered with: samples, one a line, in a buffer that grows.
 *
 * A row is the labels that several samples share, written once: `topic="a",partition="0"`. Called
 * by _native/metrics without the GIL. */
#ifndef PYLOG_EXPOSITION_H
#define PYLOG_EXPOSITION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct exposition {
    char *bytes;
    size_t len, cap;
    bool failed; /* memory ran out: what follows is left out */
};
void exposition_clear(struct exposition *e);
void exposition_put(struct exposition *e, const char *bytes, size_t len);

/* Labels of many rows, one behind the other: row i is [ends[i - 1], ends[i]). */
struct exposition_rows {
    const char *labels;
    const size_t *ends;
    size_t count;
};
/* `name{labels} value` for every row; value i is values[i * stride]. */
void exposition_integers(struct exposition *e, const char *name, size_t name_len,
                         const struct exposition_rows *rows, const int64_t *values, size_t stride);
/* The same in thousandths of what is exposed (milliseconds as seconds); a negative value: the row
 * has no sample. */
void exposition_thousandths(struct exposition *e, const char *name, size_t name_len,
                            const struct exposition_rows *rows, const int64_t *values,
                            size_t stride);

#endif
