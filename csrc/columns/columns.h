/* The consumer's data path: checks and decompresses fetched batches, iterates over their
 * records, and appends them to Arrow columns.
 *
 * The bytes may come from any broker, so all of them are checked: lengths against the available
 * bytes, memory grows only with bytes actually read, and offsets must increase. */
#ifndef PYLOG_COLUMNS_H
#define PYLOG_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/assertion.h"
#include "format/batch.h"
#include "format/compress.h"

enum {
    COLUMNS_VIEWS_MAX = 64,
    COLUMNS_NEEDS_INFLATER = -100, /* set source.inflater and call again */
    COLUMNS_FULL = -101            /* columns_append: the record would exceed bytes_max */
};

/* Pointers to one record in the fetched bytes, the inflater's window, or the source's carry. */
struct columns_view {
    int64_t offset, timestamp;
    const uint8_t *key, *value;
    const uint8_t *headers; /* after the header count, to the record's end; undefined without any */
    int32_t key_len, value_len;               /* -1: null */
    int32_t headers_len, header_count;
};

struct columns_aborted {
    int64_t producer_id, first_offset;
};

struct columns_open; /* a producer with aborted transactions, and whether one is open */

/* Zero it, set the first group of fields, then call columns_source_begin. */
struct columns_source {
    const uint8_t *p, *end; /* p: the next batch to read */
    int64_t next_offset;    /* first offset to return; increases as records are taken */
    uint64_t inflated_bytes_max;
    struct inflater *inflater; /* owned by the caller; needed for compressed batches */
    bool read_committed, check_crc;

    bool exhausted; /* no more records */
    bool any_batch; /* at least one complete batch was found */
    int error;      /* sticky: later calls return it again */
    int32_t leader_epoch;
    bool append_time; /* of the current batch */

    struct columns_aborted *aborted; /* sorted by first offset */
    struct columns_open *open;       /* sorted by producer id */
    size_t aborted_count, aborted_next, open_count;

    struct batch_header header;
    bool in_batch, inflating;
    int32_t records_left;
    int64_t offset_delta_min; /* minimum for the next record; may exceed 32 bits by one */
    const uint8_t *chunk, *chunk_end;
    uint8_t *carry; /* buffer for a record that spans two pieces */
    size_t carry_len, carry_room;

    struct columns_view views[COLUMNS_VIEWS_MAX];
    int32_t view_at, view_count;
};

/* Copies `aborted`. Returns 0 or BATCH_E_MEMORY. */
int columns_source_begin(struct columns_source *s, const struct columns_aborted *aborted,
                         size_t aborted_count);
void columns_source_end(struct columns_source *s);

/* Fills views[view_at, view_count) if it is empty. Returns the number of views, 0 at the end,
 * COLUMNS_NEEDS_INFLATER or a batch_error. Views are valid until the next call. */
int columns_source_next(struct columns_source *s);

/* Consumes `n` views and advances next_offset. */
void columns_source_consume(struct columns_source *s, int32_t n);

/* ---- columns */

struct columns_bytes {
    int32_t *offsets; /* rows + 1; NULL before the first allocation */
    uint8_t *data, *validity;
    size_t len, room, null_count;
    size_t hint; /* size of earlier columns: the first allocation for the next ones */
};

struct columns_run {
    int64_t count;
    int32_t source;
};

struct columns {
    int64_t *offsets, *timestamps;
    size_t rows, rows_room, rows_hint;
    struct columns_bytes key, value;
    int32_t *header_offsets; /* rows + 1, even without headers */
    size_t headers, headers_room;
    struct columns_bytes header_key, header_value;
    struct columns_run *runs;
    size_t run_count, runs_room;
    size_t bytes_max;
    bool with_headers;
};

/* Appends up to `rows_max` records of `s`. Returns the number appended or, if none, 0 at the
 * end, COLUMNS_FULL, COLUMNS_NEEDS_INFLATER or a batch_error. */
int64_t columns_append(struct columns *c, struct columns_source *s, int32_t source,
                       int64_t rows_max);

/* Appends one record. Returns 0, COLUMNS_FULL or BATCH_E_MEMORY. */
int columns_append_view(struct columns *c, const struct columns_view *v, int32_t source);

/* Reads one key or value of a record's headers from p. *len -1: null. Returns the position after
 * it. The source has checked the headers, but the caller's bytes may have changed since: never
 * reads past `end`. */
const uint8_t *columns_header_field(const uint8_t *p, const uint8_t *end, const uint8_t **at,
                                    int32_t *len);

/* Saves the current sizes as hints, so that the next columns can be allocated at once. */
void columns_note_sizes(struct columns *c);

/* Frees all buffers; keeps settings and size hints. */
void columns_clear(struct columns *c);

/* Writes values[source] of each record to out[rows]. Returns false if a source is not below
 * value_count. */
bool columns_spread(const struct columns_run *runs, size_t run_count, const int32_t *values,
                    size_t value_count, int32_t *out);

/* Copies values of `width` bytes to out[rows * width], byte-swapped if `swap`; nulls become
 * zero. Returns false if a value has another length. `validity` may be NULL; `start`: bit of the
 * first row. */
bool columns_fixed(const int32_t *offsets, const uint8_t *data, const uint8_t *validity,
                   size_t start, size_t rows, size_t width, bool swap, uint8_t *out);

#endif
