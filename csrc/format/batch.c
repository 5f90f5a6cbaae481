/* The batch as a whole: header, checksum, rules for producers, stamps, search by time. records.c
 * reads the records. */
#include "format/batch.h"

#include <string.h>

#include "format/bytes.h"
#include "format/crc32c.h"
#include "format/records.h"
#include "format/varint.h"

enum {
    LEGACY_LENGTH_MIN = 14, /* bytes of a magic 0 message after its length: Kafka's minimum */
    HEADER_UP_TO_MAGIC_BYTES = BATCH_MAGIC_AT + 1
};

enum kafka_error {
    KAFKA_UNKNOWN_SERVER_ERROR = -1,
    KAFKA_CORRUPT_MESSAGE = 2,
    KAFKA_MESSAGE_TOO_LARGE = 10,
    KAFKA_INVALID_TIMESTAMP = 32,
    KAFKA_UNSUPPORTED_COMPRESSION_TYPE = 76,
    KAFKA_INVALID_RECORD = 87
};

struct batch_error_row {
    int16_t code;
    const char *text;
};

static const struct batch_error_row ERRORS[] = {
    [0] = {0, ""},
    [-BATCH_E_SHORT] = {KAFKA_INVALID_RECORD, "The record batch is cut short"},
    [-BATCH_E_LENGTH] = {KAFKA_CORRUPT_MESSAGE,
                         "The batch length is below the minimum of a batch"},
    [-BATCH_E_MAGIC] = {KAFKA_CORRUPT_MESSAGE, "The magic byte is unknown"},
    [-BATCH_E_OLD_MAGIC] = {KAFKA_INVALID_RECORD, "Only record batches of magic 2 are accepted"},
    [-BATCH_E_CRC] = {KAFKA_CORRUPT_MESSAGE, "The batch's checksum differs from its bytes"},
    [-BATCH_E_COUNT] = {KAFKA_INVALID_RECORD,
                        "The record count, last offset delta and records do not match"},
    [-BATCH_E_RECORD] = {KAFKA_INVALID_RECORD, "A record's structure is broken"},
    [-BATCH_E_KEY] = {KAFKA_INVALID_RECORD, "Compacted topics reject records without a key"},
    [-BATCH_E_TIMESTAMP] = {KAFKA_INVALID_TIMESTAMP,
                            "A record's timestamp is outside the range that the topic accepts"},
    [-BATCH_E_CODEC] = {KAFKA_UNSUPPORTED_COMPRESSION_TYPE, "The compression type is unknown"},
    [-BATCH_E_INFLATE] = {KAFKA_CORRUPT_MESSAGE, "The compressed records cannot be decompressed"},
    [-BATCH_E_INFLATE_MAX] = {KAFKA_MESSAGE_TOO_LARGE,
                              "The decompressed records exceed the broker's limit"},
    [-BATCH_E_TOO_LARGE] = {KAFKA_MESSAGE_TOO_LARGE, "The batch is larger than max.message.bytes"},
    [-BATCH_E_CONTROL] = {KAFKA_INVALID_RECORD, "Clients may not write control batches"},
    [-BATCH_E_SEQUENCE] = {KAFKA_INVALID_RECORD,
                           "A batch with a producer id needs a base sequence"},
    [-BATCH_E_BASE_OFFSET] = {KAFKA_INVALID_RECORD,
                              "The base offset of a produced batch must be 0"},
    [-BATCH_E_MANY] = {KAFKA_INVALID_RECORD,
                       "A produce request must hold exactly one batch per partition"},
    [-BATCH_E_EMPTY] = {KAFKA_INVALID_RECORD, "There are no records"},
    [-BATCH_E_MEMORY] = {KAFKA_UNKNOWN_SERVER_ERROR, "Out of memory"},
    [-BATCH_E_APPEND_TIME] = {KAFKA_INVALID_TIMESTAMP,
                              "A producer must not set the timestamp type to LogAppendTime"},
};

enum {
    ERRORS_COUNT = sizeof ERRORS / sizeof ERRORS[0]
};

int16_t batch_error_code(int error) {
    return error > 0 || -error >= ERRORS_COUNT ? (int16_t)KAFKA_UNKNOWN_SERVER_ERROR
                                               : ERRORS[-error].code;
}

const char *batch_error_text(int error) {
    return error > 0 || -error >= ERRORS_COUNT ? "Unknown error" : ERRORS[-error].text;
}

int batch_parse(const uint8_t *p, size_t len, struct batch_header *h) {
    if (len < HEADER_UP_TO_MAGIC_BYTES) {
        return BATCH_E_SHORT;
    }
    h->base_offset = get_i64(p);
    h->batch_length = get_i32(p + BATCH_LENGTH_AT);
    h->leader_epoch = get_i32(p + BATCH_LEADER_EPOCH_AT);
    h->magic = (int8_t)p[BATCH_MAGIC_AT];
    if (h->batch_length < LEGACY_LENGTH_MIN) {
        return BATCH_E_LENGTH;
    }
    if (h->magic != 2) {
        return h->magic == 0 || h->magic == 1 ? BATCH_E_OLD_MAGIC : BATCH_E_MAGIC;
    }
    /* The minimum for magic 2 is larger, but Kafka checks the magic first. */
    if (h->batch_length < BATCH_HEADER_BYTES - BATCH_LOG_OVERHEAD ||
        h->batch_length > INT32_MAX - BATCH_LOG_OVERHEAD) {
        return BATCH_E_LENGTH;
    }
    if (batch_bytes(h) > BATCH_BYTES_MAX) {
        return BATCH_E_TOO_LARGE;
    }
    if (len < BATCH_HEADER_BYTES) {
        return BATCH_E_SHORT;
    }
    h->crc = get_u32(p + BATCH_CRC_AT);
    h->attributes = get_i16(p + BATCH_ATTRIBUTES_AT);
    h->last_offset_delta = get_i32(p + BATCH_LAST_OFFSET_DELTA_AT);
    h->base_timestamp = get_i64(p + BATCH_BASE_TIMESTAMP_AT);
    h->max_timestamp = get_i64(p + BATCH_MAX_TIMESTAMP_AT);
    h->producer_id = get_i64(p + BATCH_PRODUCER_ID_AT);
    h->producer_epoch = get_i16(p + BATCH_PRODUCER_EPOCH_AT);
    h->base_sequence = get_i32(p + BATCH_BASE_SEQUENCE_AT);
    h->record_count = get_i32(p + BATCH_RECORD_COUNT_AT);
    return 0;
}

static uint32_t batch_crc(const uint8_t *p, size_t len) {
    return crc32c_extend(0, p + BATCH_ATTRIBUTES_AT, len - BATCH_ATTRIBUTES_AT);
}

int batch_check_crc(const uint8_t *p, const struct batch_header *h) {
    return batch_crc(p, batch_bytes(h)) == h->crc ? 0 : BATCH_E_CRC;
}

int batch_inflate_error(int error) {
    switch (error) {
    case COMPRESS_E_LIMIT: return BATCH_E_INFLATE_MAX;
    case COMPRESS_E_CODEC: return BATCH_E_CODEC;
    case COMPRESS_E_MEMORY: return BATCH_E_MEMORY;
    default: return BATCH_E_INFLATE;
    }
}

/* Feeds the batch's records, decompressed if necessary. Returns 0, 1 (stopped early) or an
 * error; *inflated counts the bytes fed. */
static int batch_feed(const uint8_t *p, const struct batch_header *h, uint64_t inflated_max,
                      struct inflater *in, struct records *records, int64_t *inflated) {
    const uint8_t *payload = p + BATCH_HEADER_BYTES;
    size_t payload_len = batch_bytes(h) - BATCH_HEADER_BYTES;
    *inflated = 0;
    if (batch_codec(h) == CODEC_NONE) {
        *inflated = (int64_t)payload_len;
        return records_feed(records, payload, payload_len);
    }
    if (in == NULL) {
        return BATCH_E_MEMORY;
    }
    int rc = inflater_begin(in, batch_codec(h), payload, payload_len, inflated_max);
    if (rc < 0) {
        return batch_inflate_error(rc);
    }
    for (;;) {
        const uint8_t *chunk;
        size_t len;
        rc = inflater_next(in, &chunk, &len);
        if (rc <= 0) {
            return rc < 0 ? batch_inflate_error(rc) : 0;
        }
        *inflated += (int64_t)len;
        rc = records_feed(records, chunk, len);
        if (rc != 0) {
            return rc;
        }
    }
}

/* Checks that need only the header, in Kafka's order. */
static int batch_check_header(const struct batch_header *h, const struct batch_rules *rules) {
    if (batch_codec(h) > CODEC_ZSTD) {
        return BATCH_E_CODEC;
    }
    if (h->record_count <= 0 || h->last_offset_delta != h->record_count - 1) {
        return BATCH_E_COUNT;
    }
    if (h->attributes & BATCH_CONTROL) {
        return BATCH_E_CONTROL;
    }
    if (h->producer_id > -1 && h->base_sequence < 0) {
        return BATCH_E_SEQUENCE;
    }
    /* With CreateTime, Kafka checks only the timestamps of records, if any. */
    if ((h->attributes & BATCH_LOG_APPEND_TIME) &&
        (rules->log_append_time || h->max_timestamp == -1)) {
        return BATCH_E_APPEND_TIME;
    }
    return 0;
}

static int batch_check_records(const uint8_t *p, const struct batch_rules *rules,
                               struct inflater *in, struct batch_summary *out) {
    const struct batch_header *h = &out->header;
    uint64_t inflated_max = rules->inflated_bytes_max < 0 ? 0 : (uint64_t)rules->inflated_bytes_max;
    uint64_t records_bytes_min = (uint64_t)h->record_count * RECORDS_BYTES_MIN;
    if (batch_codec(h) == CODEC_NONE) {
        if (records_bytes_min > batch_bytes(h) - BATCH_HEADER_BYTES) {
            return BATCH_E_COUNT;
        }
    } else if (records_bytes_min > inflated_max) {
        return BATCH_E_INFLATE_MAX; /* detected before any byte is decompressed */
    }
    struct records records;
    records_begin(&records, RECORDS_CHECK, h, rules);
    int rc = batch_feed(p, h, inflated_max, in, &records, &out->inflated_bytes);
    if (rc == 0) {
        rc = records_end(&records);
    }
    out->bad_record_count = records.bad_count;
    memcpy(out->bad_records, records.bad, (size_t)records.bad_count * sizeof records.bad[0]);
    out->max_timestamp = records.max_timestamp;
    out->max_timestamp_delta = records.max_timestamp_delta;
    return rc;
}

int batch_check(const uint8_t *p, size_t len, const struct batch_rules *rules, struct inflater *in,
                struct batch_summary *out) {
    struct batch_header *h = &out->header;
    memset(h, 0, sizeof *h);
    out->inflated_bytes = 0;
    out->bad_record_count = 0;
    out->max_timestamp = -1;
    out->max_timestamp_delta = -1;
    if (len == 0) {
        return BATCH_E_EMPTY;
    }
    int rc = batch_parse(p, len, h);
    if (rc < 0) {
        return rc == BATCH_E_TOO_LARGE && len < batch_bytes(h) ? BATCH_E_SHORT : rc;
    }
    if (len != batch_bytes(h)) {
        return len < batch_bytes(h) ? BATCH_E_SHORT : BATCH_E_MANY;
    }
    if (h->base_offset != 0) {
        return BATCH_E_BASE_OFFSET;
    }
    if (rules->batch_bytes_max >= 0 && len > (size_t)rules->batch_bytes_max) {
        return BATCH_E_TOO_LARGE;
    }
    rc = batch_check_crc(p, h);
    if (rc == 0) {
        rc = batch_check_header(h, rules);
    }
    if (rc < 0) {
        return rc;
    }
    out->max_timestamp = h->max_timestamp;
    return rules->walk_records ? batch_check_records(p, rules, in, out) : 0;
}

void batch_stamp(uint8_t *p, int64_t base_offset, int32_t leader_epoch) {
    put_i64(p, base_offset);
    put_i32(p + BATCH_LEADER_EPOCH_AT, leader_epoch);
}

void batch_stamp_append_time(uint8_t *p, size_t len, int64_t now_ms) {
    put_i16(p + BATCH_ATTRIBUTES_AT,
            (int16_t)(get_i16(p + BATCH_ATTRIBUTES_AT) | BATCH_LOG_APPEND_TIME));
    put_i64(p + BATCH_MAX_TIMESTAMP_AT, now_ms);
    put_u32(p + BATCH_CRC_AT, batch_crc(p, len));
}

bool batch_stamp_max_timestamp(uint8_t *p, size_t len, int64_t max_timestamp) {
    int16_t attributes = get_i16(p + BATCH_ATTRIBUTES_AT);
    if (get_i64(p + BATCH_MAX_TIMESTAMP_AT) == max_timestamp &&
        (attributes & BATCH_LOG_APPEND_TIME) == 0) {
        return false;
    }
    put_i16(p + BATCH_ATTRIBUTES_AT, (int16_t)(attributes & ~BATCH_LOG_APPEND_TIME));
    put_i64(p + BATCH_MAX_TIMESTAMP_AT, max_timestamp);
    put_u32(p + BATCH_CRC_AT, batch_crc(p, len));
    return true;
}

int batch_marker(const uint8_t *p, const struct batch_header *h, int32_t *coordinator_epoch) {
    const uint8_t *at = p + BATCH_HEADER_BYTES, *end = p + batch_bytes(h);
    int64_t value, len;
    if (batch_codec(h) != CODEC_NONE || at >= end) return -1;
    /* Length, attributes, timestamp and offset deltas, and the key's length. */
    if ((at = varint_get(at, end, VARINT_BYTES_MAX, &value)) == NULL || at >= end ||
        (at = varint_get(at + 1, end, VARLONG_BYTES_MAX, &value)) == NULL ||
        (at = varint_get(at, end, VARINT_BYTES_MAX, &value)) == NULL ||
        (at = varint_get(at, end, VARINT_BYTES_MAX, &len)) == NULL || len < 4 || len > end - at) {
        return -1;
    }
    int type = get_i16(at + 2);
    at = varint_get(at + len, end, VARINT_BYTES_MAX, &value);
    if (at != NULL && value >= 6 && value <= end - at) *coordinator_epoch = get_i32(at + 2);
    return type;
}

/* A batch from disk: producer rules do not apply, but every length is verified. */
static int batch_search(const uint8_t *p, const struct batch_header *h, struct inflater *in,
                        struct records *records) {
    int64_t inflated;
    int rc = batch_feed(p, h, UINT64_MAX, in, records, &inflated);
    return rc != 0 ? rc : records_end(records);
}

static int batch_parse_whole(const uint8_t *p, size_t len, struct batch_header *h) {
    int rc = batch_parse(p, len, h);
    if (rc < 0) {
        return rc;
    }
    return len < batch_bytes(h) ? BATCH_E_SHORT : 0;
}

int batch_find_timestamp(const uint8_t *p, size_t len, int64_t target_ms, int64_t from_offset,
                         struct inflater *in, int64_t *offset, int64_t *timestamp_ms) {
    struct batch_header h;
    int rc = batch_parse_whole(p, len, &h);
    if (rc < 0) {
        return rc;
    }
    struct records records;
    records_begin(&records, RECORDS_FIND, &h, NULL);
    records.target_ms = target_ms;
    records.from_offset = from_offset;
    rc = batch_search(p, &h, in, &records);
    if (rc == 1) {
        *offset = records.found_offset;
        *timestamp_ms = records.found_timestamp;
    }
    return rc;
}

int batch_find_max_timestamp(const uint8_t *p, size_t len, struct inflater *in, int64_t *offset,
                             int64_t *timestamp_ms) {
    struct batch_header h;
    int rc = batch_parse_whole(p, len, &h);
    if (rc < 0) {
        return rc;
    }
    struct records records;
    records_begin(&records, RECORDS_FIND_MAX, &h, NULL);
    rc = batch_search(p, &h, in, &records);
    if (rc < 0 || records.max_timestamp_delta < 0) {
        return rc;
    }
    *offset = (int64_t)((uint64_t)h.base_offset + (uint64_t)(int64_t)records.max_timestamp_delta);
    *timestamp_ms = records.max_timestamp;
    return 1;
}
