/* Walks the records of one magic 2 batch, fed in chunks of any size: checks the structure,
 * stores nothing.
 *
 * A record: length varint, then in that many bytes: attributes int8, timestampDelta varlong,
 * offsetDelta varint, key and value (varint length, -1 null), header count varint, headers (key
 * length varint, never null; value as above). */
#ifndef PYLOG_RECORDS_H
#define PYLOG_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/batch.h"

enum {
    RECORDS_BYTES_MIN = 7 /* a record without key, value, headers */
};

enum records_mode {
    RECORDS_CHECK,   /* checks offset deltas 0..n-1, timestamps, keys; finds the maximum */
    RECORDS_FIND,    /* stops at the first record at or after target and from_offset */
    RECORDS_FIND_MAX /* finds the greatest timestamp; offset deltas may have gaps (compacted) */
};

/* A record that is being read across chunks. */
struct records_partial {
    uint64_t bits; /* of the current varint */
    int64_t timestamp_delta;
    int64_t left; /* bytes of the record's body that have not been read */
    int64_t skip; /* bytes of the current field */
    int32_t offset_delta, headers;
    uint8_t field, shift;
    bool has_key;
};

struct records {
    enum records_mode mode;
    int64_t base_offset, base_timestamp;
    int64_t append_time; /* every record's timestamp if has_append_time */
    int64_t timestamp_low, timestamp_high;
    int64_t target_ms, from_offset;
    int32_t count_max; /* declared in the header */
    bool has_append_time, key_required;
    /* results */
    int32_t count;
    int32_t
        max_timestamp_delta; /* offset delta of the first record with max_timestamp; -1: none */
    int64_t max_timestamp;   /* -1: no larger timestamp */
    int64_t found_offset, found_timestamp;
    bool found, bad_timestamp;
    int32_t bad_count;
    int32_t bad[BATCH_BAD_RECORDS_MAX];
    struct records_partial partial;
};

/* `rules` only for RECORDS_CHECK. */
void records_begin(struct records *r, enum records_mode mode, const struct batch_header *h,
                   const struct batch_rules *rules);

/* Returns 0 (continue with the next chunk), 1 (found, RECORDS_FIND) or a negative batch_error. */
int records_feed(struct records *r, const uint8_t *p, size_t len);

/* Call after the last chunk. Returns 0, or BATCH_E_RECORD (truncated), _COUNT, _KEY, _TIMESTAMP. */
int records_end(const struct records *r);

#endif
