/* Headers of a segment in order, through a window; and its holes, so that the undamaged rest
 * stays readable. */
#ifndef PYLOG_SEGMENT_SCAN_H
#define PYLOG_SEGMENT_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "format/batch.h"
#include "segment/damage_report.h"
#include "segment/segment.h"

/* Invalid bytes inside a segment: [position, end). The batch before ends below `offset`, the
 * next valid one begins with `next_offset` (-1: none follows). A wrong length may lead a walk
 * past valid batches, up to `reach`. */
struct corrupt_range {
    int64_t position, end, reach, offset, next_offset;
};
struct corrupt_ranges {
    int64_t mapped; /* bytes of the segment that were searched */
    uint32_t count;
    struct corrupt_range at[];
};

enum { SEGMENT_WINDOW_BYTES = 4096 };
struct segment_scan {
    struct segment *segment;
    int64_t position, end; /* of the next header; end of the scanned bytes */
    int64_t window_position;
    int64_t corrupt_end; /* of the last hole that was skipped, -1 */
    uint32_t window_bytes, window_room;
    bool nowait, strict; /* strict: damage ends the scan */
    uint8_t *window;     /* `own`, or a larger buffer set after segment_scan_begin */
    uint8_t own[SEGMENT_WINDOW_BYTES];
};
void segment_scan_begin(struct segment_scan *scan, struct segment *s, int64_t position, int64_t end,
                        bool nowait);
/* Returns 1 and the header at `position` (which moves only over holes); 0 at the end;
 * LOG_E_CORRUPT, LOG_E_IO, or -EAGAIN with nowait. Whole batches only. */
int segment_scan_peek(struct segment_scan *scan, struct batch_header *h);
static inline void segment_scan_skip(struct segment_scan *scan, const struct batch_header *h) {
    scan->position += (int64_t)batch_bytes(h);
}

/* Returns true if the batch's offsets rise and an index entry of the segment can represent them. */
bool segment_batch_fits(int64_t base_offset, const struct batch_header *h, int64_t next);
/* For a position where no header parses: returns 1 and the hole that contains it or led there, 0
 * if there is none; negative as a scan. The first call walks the headers of the whole segment
 * and reports the damage. Pinned. */
int segment_find_corrupt_range(struct segment *s, int64_t position, bool nowait,
                               struct corrupt_range *out);
/* Finds the first known hole that ends after `position`. Does not block. */
bool segment_next_corrupt_range(struct segment *s, int64_t position, struct corrupt_range *out);
/* Reports a batch with a valid header but an invalid CRC or records; recorded once. */
void segment_report_batch(struct segment *s, const struct batch_header *h, int64_t position,
                          enum log_damage_why why);
/* Call after the file was cut. */
void segment_forget_corrupt_ranges(struct segment *s);
/* Returns why no valid batch begins at `position`, where one at or above `next` was expected.
 * Pinned. */
enum log_damage_why segment_damage_cause(struct segment *s, int64_t position, int64_t end,
                                         int64_t next);

#endif
