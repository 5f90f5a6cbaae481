/* Record batches of magic 2 in place (KIP-98): parse, check, stamp, search, re-encode.
 *
 * A header of 61 bytes, big-endian (enum batch_position), then the records. The checksum,
 * CRC-32C, covers everything from the attributes on. Base offset and leader epoch are outside
 * it. */
#ifndef PYLOG_BATCH_H
#define PYLOG_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/compress.h"

/* Offsets of the header fields, with Kafka's names. */
enum batch_position {
    BATCH_BASE_OFFSET_AT = 0,
    BATCH_LENGTH_AT = 8,
    BATCH_LEADER_EPOCH_AT = 12,
    BATCH_MAGIC_AT = 16,
    BATCH_CRC_AT = 17,
    BATCH_ATTRIBUTES_AT = 21, /* first byte that the checksum covers */
    BATCH_LAST_OFFSET_DELTA_AT = 23,
    BATCH_BASE_TIMESTAMP_AT = 27,
    BATCH_MAX_TIMESTAMP_AT = 35,
    BATCH_PRODUCER_ID_AT = 43,
    BATCH_PRODUCER_EPOCH_AT = 51,
    BATCH_BASE_SEQUENCE_AT = 53,
    BATCH_RECORD_COUNT_AT = 57
};

enum {
    BATCH_LOG_OVERHEAD = 12, /* bytes before the part that batchLength counts */
    BATCH_HEADER_BYTES = 61,
    BATCH_BYTES_MAX = 1 << 30, /* largest batch, in bytes; readers and writers reject longer ones */
    BATCH_BAD_RECORDS_MAX = 32 /* record errors that one response lists */
};

enum batch_attribute {
    BATCH_CODEC_MASK = 0x07,
    BATCH_LOG_APPEND_TIME = 0x08,
    BATCH_TRANSACTIONAL = 0x10,
    BATCH_CONTROL = 0x20,
    BATCH_DELETE_HORIZON = 0x40
};

enum batch_error {
    BATCH_E_SHORT = -1,     /* cut short */
    BATCH_E_LENGTH = -2,    /* batchLength below the header or negative */
    BATCH_E_MAGIC = -3,     /* magic is not 0, 1 or 2 */
    BATCH_E_OLD_MAGIC = -4, /* magic 0 or 1 */
    BATCH_E_CRC = -5,
    BATCH_E_COUNT = -6,        /* record count, last offset delta and records disagree */
    BATCH_E_RECORD = -7,       /* a record's structure is invalid */
    BATCH_E_KEY = -8,          /* records without key where a key is required: bad_records */
    BATCH_E_TIMESTAMP = -9,    /* outside message.timestamp.{before,after}.max.ms: bad_records */
    BATCH_E_CODEC = -10,       /* codec id above 4 */
    BATCH_E_INFLATE = -11,     /* compressed bytes that cannot be decompressed */
    BATCH_E_INFLATE_MAX = -12, /* decompressed size over the limit */
    BATCH_E_TOO_LARGE = -13,   /* whole batch over max.message.bytes or BATCH_BYTES_MAX */
    BATCH_E_CONTROL = -14,     /* control bit in a client's batch */
    BATCH_E_SEQUENCE = -15,    /* producer id without sequence */
    BATCH_E_BASE_OFFSET = -16, /* a producer's base offset is not 0 */
    BATCH_E_MANY = -17,        /* more than one batch, or trailing bytes */
    BATCH_E_EMPTY = -18,       /* no records at all */
    BATCH_E_MEMORY = -19,
    BATCH_E_APPEND_TIME = -20 /* LogAppendTime bit set by a producer */
};

/* Kafka's error code for a batch_error (2, 10, 32, 76, 87 ...), and
 * a short message. */
int16_t batch_error_code(int error);
const char *batch_error_text(int error);

struct batch_header {
    int64_t base_offset, base_timestamp, max_timestamp, producer_id;
    int32_t batch_length, leader_epoch, last_offset_delta, base_sequence, record_count;
    uint32_t crc;
    int16_t attributes, producer_epoch;
    int8_t magic;
};

/* Wraps around if damaged bytes would overflow. Callers that read from disk compare the result
 * with the expected offset. */
static inline int64_t batch_last_offset(const struct batch_header *h) {
    return (int64_t)((uint64_t)h->base_offset + (uint64_t)(int64_t)h->last_offset_delta);
}
static inline size_t batch_bytes(const struct batch_header *h) {
    return (size_t)h->batch_length + BATCH_LOG_OVERHEAD;
}
static inline int batch_codec(const struct batch_header *h) {
    return h->attributes & BATCH_CODEC_MASK;
}

/* Reads the header. Returns 0, or BATCH_E_SHORT (fewer than 61 bytes), _LENGTH, _MAGIC,
 * _OLD_MAGIC, _TOO_LARGE. Does not check the CRC, nor whether the whole batch is present. */
int batch_parse(const uint8_t *p, size_t len, struct batch_header *h);

/* Verifies the CRC of the whole batch at `p` (batch_bytes(h) must be readable). Returns 0 or
 * BATCH_E_CRC. */
int batch_check_crc(const uint8_t *p, const struct batch_header *h);

/* Rules for a producer's batch; constant per topic except for now_ms. */
struct batch_rules {
    int64_t now_ms;
    int64_t timestamp_before_max_ms, timestamp_after_max_ms; /* checked only with CreateTime */
    int64_t inflated_bytes_max;
    int32_t batch_bytes_max; /* max.message.bytes */
    bool key_required;       /* cleanup.policy has compact */
    bool log_append_time;    /* the broker sets timestamps: not checked */
    bool walk_records;       /* records.validate.enable; false relies on the CRC */
};

struct batch_summary {
    struct batch_header header;
    int64_t max_timestamp; /* from the records if walked, with CreateTime; else the header's */
    int64_t inflated_bytes;
    int32_t
        max_timestamp_delta;  /* offset delta of the first record with max_timestamp; -1: unknown */
    int32_t bad_record_count; /* number of indexes in bad_records, at most BATCH_BAD_RECORDS_MAX */
    int32_t bad_records[BATCH_BAD_RECORDS_MAX];
};

/* Checks the record set of one partition of a Produce request: exactly one batch, its CRC, its
 * records. `in` may be NULL if walk_records is false. Returns 0 and *out, or a batch_error
 * (header and bad_records are then set as far as known). The checks have Kafka's order, so that
 * the same damage gets the same code. */
int batch_check(const uint8_t *p, size_t len, const struct batch_rules *rules, struct inflater *in,
                struct batch_summary *out);

/* Writes the fields that the leader decides; both are outside the checksum. */
void batch_stamp(uint8_t *p, int64_t base_offset, int32_t leader_epoch);

/* LogAppendTime: sets the attribute bit and maxTimestamp, recomputes the CRC. */
void batch_stamp_append_time(uint8_t *p, size_t len, int64_t now_ms);

/* CreateTime: sets maxTimestamp to the records' maximum (batch_summary.max_timestamp, if walked)
 * and clears the LogAppendTime bit, as Kafka does. Returns true, with a new CRC, if the
 * producer's header differed. */
bool batch_stamp_max_timestamp(uint8_t *p, size_t len, int64_t max_timestamp);

/* Converts a compress_error to a batch_error. */
int batch_inflate_error(int error);

/* Finds the first record with offset >= from_offset and timestamp >= target. Returns 1 (found),
 * 0 (none) or a negative batch_error. */
int batch_find_timestamp(const uint8_t *p, size_t len, int64_t target_ms, int64_t from_offset,
                         struct inflater *in, int64_t *offset, int64_t *timestamp_ms);

/* Finds the first record with the batch's greatest timestamp. Returns as above. */
int batch_find_max_timestamp(const uint8_t *p, size_t len, struct inflater *in, int64_t *offset,
                             int64_t *timestamp_ms);

/* Of a control batch: returns the type of its marker (0 abort, 1 commit) and the coordinator's
 * epoch if present; -1 if it has no marker. */
int batch_marker(const uint8_t *p, const struct batch_header *h, int32_t *coordinator_epoch);

/* Decompresses all records of the batch at `p`. *out is malloc'd (NULL without records) and
 * grows only as output arrives. */
int batch_inflate(const uint8_t *p, const struct batch_header *h, uint64_t inflated_bytes_max,
                  struct inflater *in, uint8_t **out, size_t *out_len);

/* Builds a batch from `header` (61 bytes; sets length, codec bits and CRC) and plain records,
 * compressed with `codec`. */
int batch_assemble(const uint8_t *header, int codec, int level, const uint8_t *plain,
                   size_t plain_len, uint8_t **out, size_t *out_len);

/* Re-encodes a batch with another codec (CODEC_NONE: plain), with the same records and a new
 * CRC. *out is malloc'd. Returns 0 or an error: BATCH_E_TOO_LARGE if it would be longer than
 * bytes_max. */
int batch_recompress(const uint8_t *p, size_t len, int codec, int level, int64_t inflated_bytes_max,
                     size_t bytes_max, struct inflater *in, uint8_t **out, size_t *out_len);

#endif
