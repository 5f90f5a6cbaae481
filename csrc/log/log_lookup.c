/* Searches by time. */
#include <errno.h>
#include <stdlib.h>

#include "format/batch.h"
#include "format/compress.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "segment/damage_report.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_lookup.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"

enum { LOG_LOOKUP_ATTEMPTS = 16 };

struct log_lookup_batch {
    struct batch_header header;
    uint8_t *bytes;
};

static int log_lookup_load(struct segment *s, int64_t position, struct log_lookup_batch *batch) {
    size_t len = batch_bytes(&batch->header);
    if ((batch->bytes = malloc(len)) == NULL) return LOG_E_MEMORY;
    int result = segment_read(s, position, batch->bytes, len);
    return result;
}

/* A query for one record. Functions return 1 (found), 0 (not in this batch or segment) or an
 * error. */
struct log_lookup_query {
    int64_t target_ms, start, offset, timestamp_ms;
    int32_t epoch;
    bool greatest;
};

static int log_lookup_in_batch(struct segment *s, int64_t position, const struct batch_header *h,
                               struct inflater *in, struct log_lookup_query *q) {
    struct log_lookup_batch batch = {*h, NULL};
    int result = log_lookup_load(s, position, &batch);
    bool damaged = result == 0 && batch_check_crc(batch.bytes, h) != 0;
    if (damaged)
        segment_report_batch(s, h, position, LOG_WHY_CRC);
    else if (result == 0 && q->greatest)
        result =
            batch_find_max_timestamp(batch.bytes, batch_bytes(h), in, &q->offset, &q->timestamp_ms);
    else if (result == 0)
        result = batch_find_timestamp(batch.bytes, batch_bytes(h), q->target_ms, q->start, in,
                                      &q->offset, &q->timestamp_ms);
    free(batch.bytes);
    q->epoch = h->leader_epoch;
    /* Skip unreadable batches, like holes. */
    return damaged || (result < 0 && result > LOG_E_IO && result != BATCH_E_MEMORY) ? 0 : result;
}

/* Searches the batches from `offset` on; opens only those whose header reaches the target. */
static int log_lookup_scan(struct segment *s, int64_t offset, int64_t end, struct inflater *in,
                           struct log_lookup_query *q) {
    struct segment_scan scan;
    struct batch_header h;
    int64_t position = -1, first, bytes = atomic_load(&s->bytes);
    int result = segment_find_batch(s, offset, bytes, false, &position, &first);
    if (result != 1 && !(result == LOG_E_CORRUPT && position >= 0)) return result;
    segment_scan_begin(&scan, s, position, bytes, false);
    while ((result = segment_scan_peek(&scan, &h)) == 1 && h.base_offset < end) {
        if (h.max_timestamp >= q->target_ms && batch_last_offset(&h) >= q->start) {
            result = log_lookup_in_batch(s, scan.position, &h, in, q);
            if (result != 0) return result;
        }
        segment_scan_skip(&scan, &h);
    }
    return result < 0 ? result : 0;
}

/* Returns the largest timestamp of a segment, which a clean start may not have loaded. */
static int64_t log_lookup_largest(struct segment *s) {
    int64_t timestamp, offset;
    if (atomic_load(&s->largest_timestamp) < 0 && segment_index_last_time(s, &timestamp, &offset))
        atomic_store(&s->largest_timestamp, timestamp);
    return atomic_load(&s->largest_timestamp);
}

/* Keeps -ENOENT: the segment was removed. */
static int log_lookup_error(struct segment *s, int result) {
    if (result == 0 || result == -ENOENT || log_is_error(result)) return result;
    return log_dir_error(s->partition->dir, -result, "open");
}

static int log_lookup_pin(struct segment *s) {
    return log_lookup_error(s, segment_pin(s, false));
}

/* Searches from the first batch of a pinned segment that may reach the target. */
static int log_lookup_in(const struct log_lookup *l, struct segment *s, struct inflater *in,
                         struct log_lookup_query *q) {
    int64_t from;
    int result = segment_index_floor_time(s, q->target_ms, &from);
    if (result != 0) return log_lookup_error(s, result);
    return log_lookup_scan(s, from > l->start ? from : l->start, l->end, in, q);
}

static int log_lookup_first(const struct log_lookup *l, struct inflater *in,
                            struct log_lookup_query *q) {
    int result = 0;
    for (uint32_t i = 0; i < l->count && result == 0; i++) {
        struct segment *s = l->segments[i];
        if (atomic_load(&s->bytes) == 0) continue;
        if ((result = log_lookup_pin(s)) != 0) return result;
        int64_t largest = log_lookup_largest(s);
        if (largest >= q->target_ms || (largest < 0 && i + 1 == l->count))
            result = log_lookup_in(l, s, in, q);
        segment_unpin(s);
    }
    return result;
}

/* Finds the largest timestamp below `below` in the readable batches; -1: none. */
static int log_lookup_next_largest(const struct log_lookup *l, struct segment *s, int64_t below,
                                   int64_t *largest) {
    struct segment_scan scan;
    struct batch_header h;
    int result;
    *largest = -1;
    segment_scan_begin(&scan, s, 0, atomic_load(&s->bytes), false);
    while ((result = segment_scan_peek(&scan, &h)) == 1 && h.base_offset < l->end) {
        if (h.max_timestamp > *largest && h.max_timestamp < below &&
            batch_last_offset(&h) >= l->start)
            *largest = h.max_timestamp;
        segment_scan_skip(&scan, &h);
    }
    return result < 0 ? result : 0;
}

static int log_lookup_greatest(const struct log_lookup *l, struct inflater *in,
                               struct log_lookup_query *q) {
    int64_t *largest = malloc((l->count + 1) * sizeof *largest);
    int result = largest == NULL ? LOG_E_MEMORY : 0;
    for (uint32_t i = 0; i < l->count && result == 0; i++) {
        largest[i] = -1;
        if (atomic_load(&l->segments[i]->bytes) == 0) continue;
        if ((result = log_lookup_pin(l->segments[i])) != 0) break;
        largest[i] = log_lookup_largest(l->segments[i]);
        segment_unpin(l->segments[i]);
    }
    while (result == 0) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < l->count; i++)
            if (largest[i] > largest[best]) best = i;
        if (l->count == 0 || largest[best] < 0) break;
        struct segment *s = l->segments[best];
        if ((result = log_lookup_pin(s)) != 0) break;
        q->target_ms = largest[best];
        result = log_lookup_in(l, s, in, q);
        /* The latest record is damaged, or below the log's start. */
        if (result == 0) result = log_lookup_next_largest(l, s, q->target_ms, &largest[best]);
        segment_unpin(s);
    }
    free(largest);
    return result;
}

/* Returns -ENOENT if a segment was removed or replaced. */
static int log_lookup_once(struct log *log, struct log_lookup_query *q) {
    struct log_lookup l;
    int result = log_lookup_begin(log, &l);
    if (result != 0) return result;
    struct inflater *in = inflater_new();
    q->start = l.start;
    if (in == NULL)
        result = LOG_E_MEMORY;
    else
        result = q->greatest ? log_lookup_greatest(&l, in, q) : log_lookup_first(&l, in, q);
    if (in != NULL) inflater_free(in);
    log_lookup_end(&l);
    return result;
}

static int log_lookup_run(struct log *log, struct log_lookup_query *q) {
    int result;
    for (int i = 0; i < LOG_LOOKUP_ATTEMPTS; i++) {
        if ((result = log_lookup_once(log, q)) != -ENOENT) return result;
        if (atomic_load(&log->deleted)) return LOG_E_DELETED;
        /* Compaction changes the list under this lock. */
        log_append_lock(log);
        log_append_unlock(log);
    }
    return LOG_E_CORRUPT;
}

static int log_lookup_time(struct log *log, struct log_lookup_query *q, int64_t *offset,
                           int64_t *timestamp_ms, int32_t *leader_epoch) {
    *offset = *timestamp_ms = -1;
    *leader_epoch = -1;
    if (atomic_load(&log->deleted)) return LOG_E_DELETED;
    int result = log_lookup_run(log, q);
    if (result != 1) return result;
    *offset = q->offset;
    *timestamp_ms = q->timestamp_ms;
    *leader_epoch = q->epoch;
    return 1;
}

int log_offset_for_time(struct log *log, int64_t target_ms, int64_t *offset, int64_t *timestamp_ms,
                        int32_t *leader_epoch) {
    struct log_lookup_query q = {.target_ms = target_ms};
    return log_lookup_time(log, &q, offset, timestamp_ms, leader_epoch);
}

int log_offset_of_max_time(struct log *log, int64_t *offset, int64_t *timestamp_ms,
                           int32_t *leader_epoch) {
    struct log_lookup_query q = {.greatest = true};
    return log_lookup_time(log, &q, offset, timestamp_ms, leader_epoch);
}
