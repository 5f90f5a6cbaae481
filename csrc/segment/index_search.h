/* Kafka's sparse indexes as bytes: the offset index (8-byte entries: relative last offset of a
 * batch, position of that batch) and the time index (12-byte entries: largest timestamp so far,
 * relative last offset of its batch). Big-endian, strictly rising in both fields. These
 * functions do not allocate or use I/O. */
#ifndef PYLOG_INDEX_SEARCH_H
#define PYLOG_INDEX_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "format/bytes.h"

enum { INDEX_OFFSET_BYTES = 8, INDEX_TIME_BYTES = 12 };

static inline int32_t index_offset_at(const uint8_t *entries, uint32_t i) {
    return get_i32(entries + i * 8u);
}
static inline int32_t index_position_at(const uint8_t *entries, uint32_t i) {
    return get_i32(entries + i * 8u + 4);
}
static inline int64_t index_time_at(const uint8_t *entries, uint32_t i) {
    return get_i64(entries + i * 12u);
}
static inline int32_t index_time_offset_at(const uint8_t *entries, uint32_t i) {
    return get_i32(entries + i * 12u + 8);
}

static inline void index_put_offset(uint8_t *p, int32_t relative, int32_t position) {
    put_i32(p, relative);
    put_i32(p + 4, position);
}
static inline void index_put_time(uint8_t *p, int64_t timestamp_ms, int32_t relative) {
    put_i64(p, timestamp_ms);
    put_i32(p + 8, relative);
}

/* Number of entries, from the front, with a relative offset (position, timestamp) at or below
 * the given one. Start at the last of these entries. */
uint32_t index_count_offsets(const uint8_t *entries, uint32_t count, int64_t relative);
uint32_t index_count_positions(const uint8_t *entries, uint32_t count, int64_t position);
uint32_t index_count_times(const uint8_t *entries, uint32_t count, int64_t timestamp_ms);
/* The same for the offsets of a time index. */
uint32_t index_count_time_offsets(const uint8_t *entries, uint32_t count, int64_t relative);

/* Return true if all entries rise and are inside a segment of `bytes` bytes (offset index) or
 * rise at all (time index). */
bool index_offsets_sane(const uint8_t *entries, uint32_t count, int64_t bytes);
bool index_times_sane(const uint8_t *entries, uint32_t count);
/* Cheap detection of a wrong file: the last entry must be inside the segment and above the
 * first. */
bool index_offsets_plausible(const uint8_t *entries, uint32_t count, int64_t bytes);
bool index_times_plausible(const uint8_t *entries, uint32_t count);
/* Return true if an entry is above the previous one and inside the segment: a truncated entry
 * reads as zeros. The batch of the last entry may not be published yet. */
bool index_rises(const uint8_t *entries, uint32_t i, int64_t bytes);
bool index_time_rises(const uint8_t *entries, uint32_t i);

#endif
