/* Settings of a log and a batch of one record, for the programs that test logs. */
#ifndef PYLOG_LOG_SCENES_H
#define PYLOG_LOG_SCENES_H

#include "format/batch.h"
#include "format/bytes.h"
#include "format/crc32c.h"
#include "log/log.h"
#include "scenes.h"

/* Nothing is deleted or flushed automatically; everything is checked. */
static inline struct log_config scene_config(int32_t segment_bytes, int32_t index_interval_bytes) {
    return (struct log_config){.segment_ms = 1 << 30,
                               .retention_ms = -1,
                               .retention_bytes = -1,
                               .flush_messages = INT64_MAX,
                               .flush_ms = INT64_MAX,
                               .timestamp_before_max_ms = INT64_MAX,
                               .timestamp_after_max_ms = INT64_MAX,
                               .producer_id_expiration_ms = INT64_MAX,
                               .inflated_bytes_max = 1 << 20,
                               .segment_bytes = segment_bytes,
                               .segment_index_bytes = 1 << 20,
                               .index_interval_bytes = index_interval_bytes,
                               .max_message_bytes = 1 << 20,
                               .compression_level = INT32_MIN,
                               .compression_codec = -1,
                               .min_insync_replicas = 1,
                               .cleanup_delete = true,
                               .walk_records = true};
}

/* Update the CRC after a change to the bytes it covers. */
static inline void scene_seal(uint8_t *p, size_t len) {
    put_u32(p + 17, crc32c_extend(0, p + 21, len - 21));
}

/* Make a batch of this record at offset 0; producer -1: none. Return its size. */
static inline size_t scene_batch(uint8_t *p, const uint8_t *record, size_t record_len,
                                 int64_t timestamp, int64_t producer_id, int32_t sequence) {
    size_t len = BATCH_HEADER_BYTES + record_len;
    memset(p, 0, BATCH_HEADER_BYTES);
    put_i32(p + 8, (int32_t)len - BATCH_LOG_OVERHEAD);
    p[16] = 2;
    put_i64(p + 27, timestamp);
    put_i64(p + 35, timestamp);
    put_i64(p + 43, producer_id);
    put_i16(p + 51, producer_id < 0 ? -1 : 0);
    put_i32(p + 53, sequence);
    put_i32(p + 57, 1);
    memcpy(p + BATCH_HEADER_BYTES, record, record_len);
    scene_seal(p, len);
    return len;
}

#endif
