/* A pass's sources, read completely and in order through a window: valid batches, and the bytes
 * between them. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "compaction/pass_internal.h"
#include "format/batch.h"
#include "log/log_failure.h"
#include "segment/damage_report.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_scan.h"

enum { CLEAN_WINDOW_BYTES = 1 << 20 };

static int read_window(struct log_clean *c, struct segment *s, size_t wanted) {
    int64_t left = atomic_load(&s->bytes) - c->position;
    if ((int64_t)wanted > left) return LOG_E_CORRUPT;
    if (wanted > c->window.room) {
        size_t room = wanted > CLEAN_WINDOW_BYTES ? wanted : CLEAN_WINDOW_BYTES;
        uint8_t *bytes = realloc(c->window.bytes, room);
        if (bytes == NULL) return LOG_E_MEMORY;
        c->window.bytes = bytes;
        c->window.room = room;
    }
    size_t take = left < (int64_t)c->window.room ? (size_t)left : c->window.room;
    assert(take >= wanted);
    int result = segment_read(s, c->position, c->window.bytes, take);
    c->window.position = c->position;
    c->window.len = result == 0 ? take : 0;
    return result;
}

/* Measures the invalid bytes at `position`. `h`: the header of a whole batch with a wrong CRC,
 * or NULL. */
static int measure_damage(struct log_clean *c, struct segment *s, const struct batch_header *h) {
    struct corrupt_range corrupt;
    int result = segment_find_corrupt_range(s, c->position, false, &corrupt);
    if (result < 0) return result;
    if (result == 1 && corrupt.position <= c->position && c->position < corrupt.end) {
        /* The segment was truncated during the pass. */
        if (corrupt.end > atomic_load(&s->bytes)) return LOG_E_WOULD_BLOCK;
        c->damaged = corrupt.end - c->position;
        if (corrupt.next_offset >= 0) c->next_offset = corrupt.next_offset;
    } else if (h != NULL) {
        segment_report_batch(s, h, c->position, LOG_WHY_CRC);
        c->damaged = (int64_t)batch_bytes(h);
    } else {
        return LOG_E_CORRUPT;
    }
    return CLEAN_NEXT_DAMAGE;
}

/* Offsets fall: an earlier batch has a wrong offset but was accepted. If this search finds it,
 * the next pass knows the hole from the start. */
static int report_step_back(struct segment *s, int64_t position) {
    struct corrupt_range corrupt;
    bool known = atomic_load(&s->corrupt_ranges) != NULL;
    int result = segment_find_corrupt_range(s, position, false, &corrupt);
    return result < 0 ? result : result == 1 && !known ? LOG_E_WOULD_BLOCK : LOG_E_CORRUPT;
}

int clean_source_next(struct log_clean *c, struct segment *s, const uint8_t **p,
                      struct batch_header *h) {
    struct corrupt_range corrupt;
    assert(c->pinned);
    if (c->position >= atomic_load(&s->bytes)) return CLEAN_NEXT_END;
    if (segment_next_corrupt_range(s, c->position, &corrupt) && corrupt.position <= c->position)
        return measure_damage(c, s, NULL);
    for (size_t wanted = BATCH_HEADER_BYTES;;) {
        int64_t within = c->position - c->window.position;
        if (within < 0 || within + (int64_t)wanted > (int64_t)c->window.len) {
            int result = read_window(c, s, wanted);
            if (result == LOG_E_CORRUPT) return measure_damage(c, s, NULL);
            if (result != 0) return result;
            within = 0;
        }
        *p = c->window.bytes + within;
        if (batch_parse(*p, c->window.len - (size_t)within, h) != 0)
            return measure_damage(c, s, NULL);
        if (wanted >= batch_bytes(h)) break;
        wanted = batch_bytes(h);
    }
    if (batch_check_crc(*p, h) != 0) return measure_damage(c, s, h);
    /* No CRC covers the base offset. If it were too high, the records would supersede newer
     * ones. */
    if (!segment_batch_fits(s->base_offset, h, s->base_offset) ||
        batch_last_offset(h) >= c->sources[c->at + 1]->base_offset)
        return measure_damage(c, s, NULL);
    if (h->base_offset < c->next_offset) return report_step_back(s, c->position);
    c->next_offset = batch_last_offset(h) + 1;
    return CLEAN_NEXT_BATCH;
}

int clean_source_open(struct log_clean *c, struct segment *s) {
    if (c->pinned) return 0;
    int result = segment_pin(s, false);
    if (result == -ENOENT) return LOG_E_WOULD_BLOCK; /* Stops the pass at unexpected segments. */
    if (result != 0) return log_storage_error(c->log, result, "open");
    c->pinned = true;
    c->position = 0;
    c->next_offset = s->base_offset;
    c->window.len = 0;
    return 0;
}

void clean_source_close(struct log_clean *c, struct segment *s) {
    assert(c->pinned);
    assert(s == c->sources[c->at]);
    segment_unpin(s);
    c->pinned = false;
    c->at++;
}
