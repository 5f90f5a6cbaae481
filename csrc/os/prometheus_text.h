/* The text of a metrics scrape: one sample per line, in a growing buffer.
 *
 * A row is a set of labels that several samples share, formatted once:
 * `topic="a",partition="0"`. _native/server/metrics calls these functions without the GIL. */
#ifndef PYLOG_PROMETHEUS_TEXT_H
#define PYLOG_PROMETHEUS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct exposition {
    char *bytes;
    size_t len, cap;
    bool failed; /* memory ran out: further output is dropped */
};
void exposition_clear(struct exposition *e);
void exposition_put(struct exposition *e, const char *bytes, size_t len);

/* The labels of all rows, concatenated: row i is [ends[i - 1], ends[i]). */
struct exposition_rows {
    const char *labels;
    const size_t *ends;
    size_t count;
};
/* Writes `name{labels} value` for every row; value i is values[i * stride]. */
void exposition_integers(struct exposition *e, const char *name, size_t name_len,
                         const struct exposition_rows *rows, const int64_t *values, size_t stride);
/* Writes values given in thousandths (milliseconds exposed as seconds). A row with a negative
 * value gets no sample. */
void exposition_thousandths(struct exposition *e, const char *name, size_t name_len,
                            const struct exposition_rows *rows, const int64_t *values,
                            size_t stride);

#endif
