/* What a consumer does with fetched bytes: batches walked, checked and inflated, their records seen
 * one by one, and appended to columns as Arrow lays them out.
 *
 * The bytes come from any broker, so nothing in them is believed: every length is held against what
 * is there, memory follows what was really read, offsets only rise. */
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
    COLUMNS_FULL = -101            /* columns_append: the record would pass bytes_max */
};

/* One record where it lies: in the fetched bytes, the inflater's window, or the source's carry. */
struct columns_view {
    int64_t offset, timestamp;
    const uint8_t *key, *value;
    const uint8_t *headers;                   /* behind their count, up to the record's end */
    int32_t key_len, value_len;               /* -1: null */
    int32_t headers_len, header_count;
};

struct columns_aborted {
    int64_t producer_id, first_offset;
};

struct columns_open; /* a producer of an aborted transaction, and whether one is open */

/* Zero it, set the first group, call columns_source_begin. */
struct columns_source {
    const uint8_t *p, *end; /* p: the first batch not yet begun */
    int64_t next_offset;    /* first offset wanted; moved on as records are taken */
    uint64_t inflated_bytes_max;
    struct inflater *inflater; /* the caller's, while compressed batches are at hand */
    bool read_committed, check_crc;

    bool exhausted; /* nothing more to take */
    bool any_batch; /* a whole batch was there */
    int error;      /* sticky */
    int32_t leader_epoch;
    bool append_time; /* of the batch at hand */

    struct columns_aborted *aborted; /* by first offset */
    struct columns_open *open;       /* by producer id */
    size_t aborted_count, aborted_next, open_count;

    struct batch_header header;
    bool in_batch, inflating;
    int32_t records_left;
    int64_t offset_delta_min; /* of the next record: beyond 32 bits after the largest */
    const uint8_t *piece, *piece_end;
    uint8_t *carry; /* a record that straddles two pieces */
    size_t carry_len, carry_room;

    struct columns_view views[COLUMNS_VIEWS_MAX];
    int32_t view_at, view_count;
};

/* Takes a copy of `aborted`. 0 or BATCH_E_MEMORY. */
int columns_source_begin(struct columns_source *s, const struct columns_aborted *aborted,
                         size_t aborted_count);
void columns_source_end(struct columns_source *s);

/* Makes views[view_at, view_count) not empty: how many, 0 at the end, COLUMNS_NEEDS_INFLATER or a
 * batch_error. Views stay valid until the next call. */
int columns_source_look(struct columns_source *s);

/* `n` of the views are used: next_offset follows. */
void columns_source_took(struct columns_source *s, int32_t n);

/* ---- columns */

struct columns_bytes {
    int32_t *offsets; /* rows + 1, NULL without room */
    uint8_t *data, *validity;
    size_t len, room, null_count;
    size_t hint; /* what the last ones took: the first room of the next */
};

struct columns_run {
    int64_t count;
    int32_t source;
};

struct columns {
    int64_t *offsets, *timestamps;
    size_t rows, rows_room, rows_hint;
    struct columns_bytes key, value;
    int32_t *header_offsets; /* rows + 1, also while there are no headers */
    size_t headers, headers_room;
    struct columns_bytes header_key, header_value;
    struct columns_run *runs;
    size_t run_count, runs_room;
    size_t bytes_max;
    bool with_headers;
};

/* Up to `rows_max` records of `s`. The number appended; with none: 0 at the end, COLUMNS_FULL,
 * COLUMNS_NEEDS_INFLATER or a batch_error. */
int64_t columns_append(struct columns *c, struct columns_source *s, int32_t source,
                       int64_t rows_max);

/* Notes how large the columns have become, so that the next ones need not grow step by step. */
void columns_note_sizes(struct columns *c);

/* Frees everything, but for settings and what was noted. */
void columns_clear(struct columns *c);

/* Each record's values[its source] into out[rows]. False when a source is not below value_count. */
bool columns_spread(const struct columns_run *runs, size_t run_count, const int32_t *values,
                    size_t value_count, int32_t *out);

/* Values of `width` bytes each into out[rows * width], reversed if `swap`; nulls become zero.
 * False when one has another length. `validity` may be NULL; `start`: the first row's bit. */
bool columns_fixed(const int32_t *offsets, const uint8_t *data, const uint8_t *validity,
                   size_t start, size_t rows, size_t width, bool swap, uint8_t *out);

#endif
