/* Metrics of a log: end offsets, counters, and the time of one record. */
#include <stdlib.h>

#include "format/batch.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "os/meter.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_lookup.h"

static int64_t log_stats_count(const _Atomic uint64_t *counter) {
    return (int64_t)meter_read(counter);
}

void log_read_stats(struct log *log, struct log_stats *out) {
    const struct log_counts *c = &log->counts;
    out->start_offset = atomic_load(&log->ends.start_offset);
    out->end_offset = atomic_load(&log->ends.end_offset);
    out->high_watermark = atomic_load(&log->ends.high_watermark);
    out->last_stable_offset = atomic_load(&log->ends.last_stable);
    out->size_bytes = atomic_load_explicit(&log->view.size_bytes, memory_order_relaxed);
    log_view_lock(log);
    out->segments = log->view.segment_count;
    log_view_unlock(log);
    int64_t refused = log_stats_count(&c->refused);
    out->produce_requests = log_stats_count(&c->appends) + refused;
    out->produce_failures = log_stats_count(&c->append_failures) + refused;
    out->batches_in = log_stats_count(&c->batches_in);
    out->records_in = log_stats_count(&c->records_in);
    out->bytes_in = log_stats_count(&c->bytes_in);
    out->fetch_requests = log_stats_count(&c->reads);
    out->fetch_failures = log_stats_count(&c->read_failures);
    out->bytes_out = log_stats_count(&c->bytes_out);
    out->cold_reads = log_stats_count(&c->cold_reads);
    out->offline = log_failed(log) == LOG_E_OFFLINE;
}

void log_count_refused(struct log *log) { meter_add_shared(&log->counts.refused, 1); }

void log_count_read(struct log *log, int32_t bytes, bool failed) {
    meter_add_shared(&log->counts.reads, 1);
    if (bytes > 0) meter_add_shared(&log->counts.bytes_out, (uint64_t)bytes);
    if (failed) meter_add_shared(&log->counts.read_failures, 1);
}

void log_count_cold(struct log *log) { meter_add_shared(&log->counts.cold_reads, 1); }

/* ---- the time of a record ---- */

/* In the pinned segment. Returns 1 (found), 0 (nothing at or above the offset) or an error. */
static int log_time_in(struct segment *s, int64_t offset, int64_t bytes, struct inflater *in,
                       int64_t *timestamp_ms) {
    uint8_t head[BATCH_HEADER_BYTES], *whole;
    struct batch_header h;
    int64_t position = -1, first, ignored;
    int result = segment_find_batch(s, offset, bytes, false, &position, &first);
    /* The offset is inside damage: use the next record after it. */
    if (result == LOG_E_CORRUPT && position >= 0) result = position < bytes;
    if (result != 1) return result;
    if ((result = segment_read(s, position, head, sizeof head)) != 0) return result;
    if (batch_parse(head, sizeof head, &h) != 0) return LOG_E_CORRUPT;
    if (h.attributes & BATCH_LOG_APPEND_TIME || offset <= h.base_offset) {
        *timestamp_ms =
            h.attributes & BATCH_LOG_APPEND_TIME ? h.max_timestamp : h.base_timestamp;
        return 1;
    }
    size_t len = batch_bytes(&h);
    if ((int64_t)len > bytes - position) return LOG_E_CORRUPT;
    if ((whole = malloc(len)) == NULL) return LOG_E_MEMORY;
    result = segment_read(s, position, whole, len);
    if (result == 0)
        result = batch_find_timestamp(whole, len, INT64_MIN, offset, in, &ignored, timestamp_ms);
    free(whole);
    /* A batch with records removed by compaction may end below the offset; a damaged batch still
     * has its header. */
    if (result == 0 || (result > LOG_E_IO && result != BATCH_E_MEMORY && result != 1))
        *timestamp_ms = h.max_timestamp;
    return result <= LOG_E_IO || result == BATCH_E_MEMORY ? result : 1;
}

/* Returns the segment `skip` places after the one that contains the offset, with a reference;
 * NULL past the last. */
static struct segment *log_time_segment(struct log *log, int64_t offset, int32_t skip,
                                        int64_t *bytes) {
    struct segment *s = NULL;
    log_view_lock(log);
    int32_t i = log_find_segment(log, offset);
    i = (i < 0 ? 0 : i) + skip;
    if (i < (int32_t)log->view.segment_count) {
        s = log->view.segments[i];
        segment_retain(s);
        *bytes = atomic_load(&s->bytes);
    }
    log_view_unlock(log);
    return s;
}

int log_time_of(struct log *log, int64_t offset, struct inflater *in, int64_t *timestamp_ms) {
    int64_t bytes = 0;
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    for (int32_t skip = 0;; skip++) {
        struct segment *s = log_time_segment(log, offset, skip, &bytes);
        if (s == NULL) return 0;
        int result = bytes == 0 ? 0 : segment_pin(s, false);
        if (bytes != 0 && result == 0) {
            result = log_time_in(s, offset, bytes, in, timestamp_ms);
            segment_unpin(s);
        } else if (result != 0) {
            result = LOG_E_RANGE; /* removed by retention */
        }
        segment_release(s);
        if (result != 0) return result;
    }
}
