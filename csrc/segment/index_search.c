/* Binary search over mapped index bytes: branch-light halving; entries are byte-swapped when
 * they are compared. */
#include "segment/index_search.h"

#define INDEX_COUNT(name, read)                                                                    \
    uint32_t name(const uint8_t *entries, uint32_t count, int64_t wanted) {                        \
        uint32_t low = 0, n = count;                                                               \
        while (n > 0) {                                                                            \
            uint32_t half = n / 2;                                                                 \
            bool below = (int64_t)read(entries, low + half) <= wanted;                             \
            low = below ? low + half + 1 : low;                                                    \
            n = below ? n - half - 1 : half;                                                       \
        }                                                                                          \
        return low;                                                                                \
    }

INDEX_COUNT(index_count_offsets, index_offset_at)
INDEX_COUNT(index_count_positions, index_position_at)
INDEX_COUNT(index_count_times, index_time_at)
INDEX_COUNT(index_count_time_offsets, index_time_offset_at)

bool index_offsets_sane(const uint8_t *entries, uint32_t count, int64_t bytes) {
    int32_t offset = -1, position = -1;
    for (uint32_t i = 0; i < count; i++) {
        if (index_offset_at(entries, i) <= offset || index_position_at(entries, i) <= position)
            return false;
        offset = index_offset_at(entries, i);
        position = index_position_at(entries, i);
    }
    return position < bytes;
}

bool index_times_sane(const uint8_t *entries, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (index_time_offset_at(entries, i) < 0) return false;
        if (i == 0) continue;
        if (index_time_at(entries, i) <= index_time_at(entries, i - 1)) return false;
        if (index_time_offset_at(entries, i) < index_time_offset_at(entries, i - 1)) return false;
    }
    return true;
}

bool index_offsets_plausible(const uint8_t *entries, uint32_t count, int64_t bytes) {
    if (count == 0) return true;
    if (index_position_at(entries, count - 1) >= bytes) return false;
    if (index_offset_at(entries, count - 1) < (int32_t)(count - 1)) return false;
    return count == 1 || index_position_at(entries, count - 1) > index_position_at(entries, 0);
}

bool index_times_plausible(const uint8_t *entries, uint32_t count) {
    return count < 2 || index_time_at(entries, count - 1) > index_time_at(entries, 0);
}

bool index_rises(const uint8_t *entries, uint32_t i, int64_t bytes) {
    int32_t before = i > 0 ? index_position_at(entries, i - 1) : -1;
    return index_position_at(entries, i) > before && index_position_at(entries, i) <= bytes;
}

bool index_time_rises(const uint8_t *entries, uint32_t i) {
    int32_t offset = index_time_offset_at(entries, i);
    return offset >= 0 && (i == 0 || (index_time_at(entries, i) > index_time_at(entries, i - 1) &&
                                      offset >= index_time_offset_at(entries, i - 1)));
}
