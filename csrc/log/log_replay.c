/* A walk through a segment: derives state from its batches, and finds where they stop being
 * valid.
 *
 * Above the recovery point every batch is checked. Below the flushed offset, an invalid batch is
 * skipped if a valid one follows: a crash cannot cause it, and the later records were
 * acknowledged. */
#include "log/log_replay.h"

#include <assert.h>
#include <stdlib.h>

#include "format/batch.h"
#include "log/log_struct.h"
#include "log/log_transactions.h"
#include "os/meter.h"
#include "segment/damage_report.h"
#include "segment/leader_epochs.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/segment.h"
#include "segment/segment_index.h"
#include "segment/segment_path.h"
#include "segment/segment_scan.h"

enum {
    LOG_REPLAY_WINDOW_BYTES = 256 << 10,
    LOG_REPLAY_FAR_BYTES = 8 << 10, /* a separate read costs less than copying this much */
    LOG_REPLAY_REPORT_BYTES = 4 << 20
};

struct log_replay_buffer {
    uint8_t *bytes;
    size_t room;
};

static int log_replay_check(const struct segment_scan *scan, const struct batch_header *h,
                            struct log_replay_buffer *buffer) {
    size_t len = batch_bytes(h), within = (size_t)(scan->position - scan->window_position);
    if (within + len <= scan->window_bytes)
        return batch_check_crc(scan->window + within, h) == 0 ? 0 : LOG_E_CORRUPT;
    if (len > buffer->room) {
        /* The file contains these bytes: `len` was checked against its end. */
        uint8_t *bytes = realloc(buffer->bytes, len + len / 2);
        if (bytes == NULL) return LOG_E_MEMORY;
        buffer->bytes = bytes;
        buffer->room = len + len / 2;
    }
    int result = segment_read(scan->segment, scan->position, buffer->bytes, len);
    if (result != 0) return result;
    return batch_check_crc(buffer->bytes, h) == 0 ? 0 : LOG_E_CORRUPT;
}

/* Batches contain their epoch: an epoch file that differs was lost, torn or from another
 * history. */
static void log_replay_epoch(struct log *log, const struct batch_header *h, bool only_index)
    LOG_APPENDING(log) {
    const struct epochs_entry *first = log->append.epochs.entries;
    if (h->leader_epoch < 0 || epochs_at(&log->append.epochs, h->base_offset) == h->leader_epoch)
        return;
    /* The file has no entries below the log's start. Keep its later entries, because this walk
     * may not reach their batches. */
    if (only_index && log->append.epochs.count > 0 && h->base_offset < first->start_offset) return;
    epochs_truncate_end(&log->append.epochs, h->base_offset);
    epochs_assign(&log->append.epochs, h->leader_epoch, h->base_offset);
    log_mark(&log->flush.epochs_marks);
}

/* Batches whose CRC is checked are read completely anyway: use a large window. The same for
 * headers of a trusted file while they are close together. Do not map the file, so that a page
 * that disk cannot read becomes an error of its directory. Without memory for the window, the
 * walk is only slower. */
static void log_replay_use_window(const struct log_replay *walk, struct segment_scan *scan,
                                  struct log_replay_buffer *window) {
    if (scan->end <= SEGMENT_WINDOW_BYTES) return;
    if (!walk->trusted && walk->check_from == INT64_MAX) return;
    if ((window->bytes = malloc(LOG_REPLAY_WINDOW_BYTES)) == NULL) return;
    scan->window = window->bytes;
    scan->window_room = LOG_REPLAY_WINDOW_BYTES;
}

/* Headers that are far apart are read one by one. */
static void log_replay_resize_window(const struct log_replay *walk,
                                     const struct log_replay_buffer *window,
                                     struct segment_scan *scan, const struct batch_header *h) {
    if (!walk->trusted || window->bytes == NULL) return;
    bool far = batch_bytes(h) >= LOG_REPLAY_FAR_BYTES;
    scan->window_room = far ? BATCH_HEADER_BYTES : LOG_REPLAY_WINDOW_BYTES;
}

/* A running walk. `doubt`: the first of the invalid batches that no valid one has followed yet,
 * and its header, if it has one. */
struct log_replay_run {
    struct log *log;
    struct segment_scan scan;
    struct log_replay_buffer buffer, window;
    int64_t next, doubt_position, doubt_next;
    struct batch_header doubt;
    bool doubt_fits;
};

static void log_replay_note_doubt(struct log_replay_run *w, const struct batch_header *h,
                                  bool fits) {
    if (w->doubt_position >= 0) return;
    w->doubt_position = w->scan.position;
    w->doubt_next = w->next;
    w->doubt_fits = fits;
    if (fits) w->doubt = *h;
}

/* Keeps the doubtful batch; holes were reported when they were found. */
static void log_replay_resolve_doubt(struct log_replay_run *w) {
    if (w->doubt_position >= 0 && w->doubt_fits)
        segment_report_batch(w->scan.segment, &w->doubt, w->doubt_position, LOG_WHY_CRC);
    w->doubt_position = -1;
}

/* Handles invalid bytes or an invalid batch (`fits`: its header is valid). Returns 1 if the walk
 * continues after it. */
static int log_replay_damage(struct log_replay_run *w, struct log_replay *walk,
                             const struct batch_header *h, bool fits) {
    struct corrupt_range corrupt;
    struct segment *s = w->scan.segment;
    /* A crash cannot cause damage below the recovery point: keep what follows. */
    if (walk->trusted || w->next >= walk->keep_below) return LOG_E_CORRUPT;
    int found = segment_find_corrupt_range(s, w->scan.position, false, &corrupt);
    if (found < 0) return found;
    if (found == 1 && corrupt.position < walk->position) return LOG_E_CORRUPT;
    /* Holes are found from headers: a batch whose header fits is in a hole only if the hole
     * surrounds it. */
    if (found == 1 && !(fits && corrupt.end <= w->scan.position)) {
        if (w->next >= walk->check_from) log_replay_note_doubt(w, h, false);
        w->scan.position = corrupt.end;
        walk->ends_corrupt = corrupt.next_offset < 0;
        if (corrupt.next_offset >= 0) w->next = corrupt.next_offset;
        return 1;
    }
    if (!fits) return LOG_E_CORRUPT;
    /* Ignore its offsets: they may be the damage. */
    log_replay_note_doubt(w, h, true);
    segment_scan_skip(&w->scan, h);
    return 1;
}

/* Derives state from a valid batch. */
static int log_replay_apply(struct log_replay_run *w, const struct log_replay *walk,
                            const struct batch_header *h, int64_t now_ms) {
    struct log *log = w->log;
    struct segment *s = w->scan.segment;
    int result = 0;
    log_append_assert(log);
    assert(h->base_offset >= w->next); /* ensured by segment_batch_fits */
    log_replay_resolve_doubt(w);
    if (walk->index) segment_index_batch(s, h, w->scan.position);
    if (h->base_offset >= walk->replay_from)
        result =
            log_update_producer_at(log, s, h, w->scan.position,
                                   walk->aborts && h->base_offset >= walk->aborts_from, now_ms);
    if (result != 0) return result;
    if (walk->index && log->append.epochs_loaded)
        log_replay_epoch(log, h, walk->replay_from == INT64_MAX);
    w->next = batch_last_offset(h) + 1;
    segment_scan_skip(&w->scan, h);
    log_replay_resize_window(walk, &w->window, &w->scan, h);
    return 0;
}

/* No CRC covers a base offset. If a batch leads past the flushed offset, check it against the
 * batches after it. */
static bool log_replay_offset_is_wrong(const struct log_replay_run *w,
                                       const struct log_replay *walk,
                                       const struct batch_header *h) {
    struct corrupt_range corrupt;
    return !walk->trusted && w->next < walk->keep_below &&
           batch_last_offset(h) >= walk->keep_below &&
           segment_find_corrupt_range(w->scan.segment, w->scan.position, false, &corrupt) == 1 &&
           corrupt.position <= w->scan.position && w->scan.position < corrupt.end;
}

/* Returns 1 (the walk continues after a batch), 0 (the end) or why the walk ends earlier. */
static int log_replay_batch(struct log_replay_run *w, struct log_replay *walk, int64_t now_ms) {
    struct batch_header h;
    struct segment *s = w->scan.segment;
    int result = segment_scan_peek(&w->scan, &h);
    if (result == 0) return 0;
    if (atomic_load_explicit(&s->partition->dir->recovery_stopped, memory_order_relaxed))
        result = LOG_E_OFFLINE;
    if (result == 1 && !segment_batch_fits(s->base_offset, &h, w->next)) result = LOG_E_CORRUPT;
    bool fits = result == 1;
    if (fits && !walk->trusted && h.base_offset >= walk->check_from) {
        int checked = log_replay_check(&w->scan, &h, &w->buffer);
        if (checked != 0) result = checked;
    }
    if (result == 1 && log_replay_offset_is_wrong(w, walk, &h)) result = LOG_E_CORRUPT;
    if (result == LOG_E_CORRUPT) return log_replay_damage(w, walk, &h, fits);
    if (result == 1) result = log_replay_apply(w, walk, &h, now_ms);
    return result == 0 ? 1 : result;
}

int log_replay_segment(struct log *log, struct segment *s, struct log_replay *walk,
                       int64_t now_ms) {
    struct log_replay_run w = {.log = log, .doubt_position = -1};
    struct log_dir *dir = s->partition->dir;
    int result;
    w.next = walk->next > s->base_offset ? walk->next : s->base_offset;
    if (walk->keep_below < walk->check_from) walk->keep_below = walk->check_from;
    assert(atomic_load(&s->pins) > 0);
    assert(walk->keep_below >= walk->check_from);
    assert(!walk->index || walk->position == 0); /* An index is built from the first batch. */
    if (walk->index) segment_index_reset(s);
    segment_scan_begin(&w.scan, s, walk->position, atomic_load(&s->bytes), false);
    log_replay_use_window(walk, &w.scan, &w.window);
    w.scan.strict = true;
    _Atomic uint64_t *counted = walk->trusted ? &dir->trusted_bytes : &dir->recovered_bytes;
    int64_t reported = w.scan.position;
    walk->ends_corrupt = false;
    while ((result = log_replay_batch(&w, walk, now_ms)) == 1) {
        if (w.scan.position - reported < LOG_REPLAY_REPORT_BYTES) continue;
        meter_add_shared(counted, (uint64_t)(w.scan.position - reported));
        reported = w.scan.position;
    }
    /* No valid batch follows: treat it as any other torn tail. */
    if (walk->tail && w.doubt_position >= 0 && (result == 0 || result == LOG_E_CORRUPT)) {
        result = LOG_E_CORRUPT;
        walk->ends_corrupt = false;
        w.scan.position = w.doubt_position;
        w.next = w.doubt_next;
    } else if (result == 0) {
        log_replay_resolve_doubt(&w);
    }
    if (w.scan.position > reported)
        meter_add_shared(counted, (uint64_t)(w.scan.position - reported));
    free(w.buffer.bytes);
    free(w.window.bytes);
    assert(w.scan.position <= w.scan.end);
    assert(w.next >= s->base_offset);
    walk->good = w.scan.position;
    walk->next = w.next;
    return result;
}
