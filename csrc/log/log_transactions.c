/* The transactions of a log: producers' batches, markers, and the aborted transactions that
 * readers skip. */
#include "log/log_transactions.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format/batch.h"
#include "format/bytes.h"
#include "log/log_ends.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "os/lock.h"
#include "segment/log_error.h"
#include "segment/producer_state.h"
#include "segment/segment.h"
#include "segment/txn_index.h"

enum {
    LOG_ABORTED_ATTEMPTS = 16,
    LOG_MARKER_BYTES = 256, /* enough for every marker that a coordinator writes */
    LOG_MARKER_ABORT = 0
};

/* ---- markers ---- */

void log_update_first_open(struct log *log) {
    log->append.first_open = producers_first_open(&log->append.producers);
    log_view_change(log);
    log_set_last_stable(log);
    log_ends_check(log);
    log_view_changed(log);
}

/* Makes space for another entry at the end. */
static int completed_reserve(struct log_view *view) REQUIRES(view->lock) {
    uint32_t from = view->completed_from, end = view->completed_end;
    if (end < view->completed_room) return 0;
    if (from > 0 && from >= view->completed_room / 2) {
        memmove(view->completed, view->completed + from, (end - from) * sizeof *view->completed);
        view->completed_from = 0;
        view->completed_end = end - from;
        return 0;
    }
    uint32_t room = view->completed_room == 0 ? 4 : view->completed_room * 2;
    struct log_completed *completed = realloc(view->completed, room * sizeof *completed);
    if (completed == NULL) return LOG_E_MEMORY;
    view->completed = completed;
    view->completed_room = room;
    return 0;
}

int log_end_transaction(struct log *log, int64_t first_offset, int64_t last_offset) {
    if (last_offset < atomic_load(&log->ends.high_watermark)) return 0;
    log_view_change(log);
    struct log_view *view = &log->view;
    int result = completed_reserve(view);
    if (result == 0) {
        uint32_t end = view->completed_end;
        /* Drop transactions that began later: this one ends last, so they do not limit the last
         * stable offset. */
        while (end > view->completed_from && view->completed[end - 1].first_offset >= first_offset)
            end--;
        assert(end == view->completed_from || view->completed[end - 1].last_offset < last_offset);
        view->completed[end] = (struct log_completed){first_offset, last_offset};
        view->completed_end = end + 1;
    }
    log_view_changed(log);
    return result;
}

int64_t log_open_transaction(const struct log *log) { return atomic_load(&log->append.first_open); }

int log_aborted_write(struct log *log, struct segment *s) {
    bool written;
    int result = txn_index_write(s, &written);
    if (written) log_mark(&log->flush.files_marks);
    return result;
}

static int log_update_from_marker(struct log *log, struct segment *s, const struct batch_header *h,
                                  const uint8_t *batch, int64_t now_ms) LOG_APPENDING(log) {
    const struct producers_entry *e = producers_find(&log->append.producers, h->producer_id);
    int64_t first = e == NULL ? -1 : e->transaction_first_offset, last = batch_last_offset(h);
    int32_t coordinator_epoch = -1;
    int type = batch == NULL ? -1 : batch_marker(batch, h, &coordinator_epoch), result = 0;
    bool noted = s != NULL && first >= 0 && type == LOG_MARKER_ABORT;
    /* Allocate memory first: an appended marker must be recorded completely. */
    if (first >= 0) result = log_end_transaction(log, first, last);
    if (result == 0 && noted) result = txn_index_reserve(s);
    if (result == 0)
        result = producers_end_transaction(&log->append.producers, h, coordinator_epoch, now_ms);
    if (result != 0 || !noted) return result;
    int64_t open = producers_first_open(&log->append.producers);
    struct log_aborted aborted = {h->producer_id, first};
    txn_index_add(s, &aborted, last, open < 0 ? last + 1 : open);
    return 0;
}

int log_update_producer(struct log *log, struct segment *noted_in, const struct batch_header *h,
                        const uint8_t *batch, int64_t now_ms) {
    if (h->producer_id < 0) return 0;
    int result = h->attributes & BATCH_CONTROL
                     ? log_update_from_marker(log, noted_in, h, batch, now_ms)
                     : producers_update(&log->append.producers, h, now_ms);
    if (h->attributes & BATCH_TRANSACTIONAL)
        log->append.first_open = producers_first_open(&log->append.producers);
    return result;
}

int log_update_producer_at(struct log *log, struct segment *s, const struct batch_header *h,
                           int64_t position, bool note, int64_t now_ms) {
    struct segment *noted_in = note ? s : NULL;
    if (h->producer_id < 0 || !(h->attributes & BATCH_CONTROL))
        return log_update_producer(log, noted_in, h, NULL, now_ms);
    uint8_t usual[LOG_MARKER_BYTES], *marker = usual;
    if (batch_bytes(h) > sizeof usual && (marker = malloc(batch_bytes(h))) == NULL)
        return LOG_E_MEMORY;
    int result = segment_read(s, position, marker, batch_bytes(h));
    if (result == 0) result = log_update_producer(log, noted_in, h, marker, now_ms);
    if (marker != usual) free(marker);
    return result;
}

/* ---- queries ---- */

static int log_query_aborted(struct log *log, struct txn_index_query *q) {
    struct log_lookup l;
    int result = log_lookup_begin(log, &l);
    if (result != 0) return result;
    for (uint32_t i = 0; i < l.count && result == 0 && !q->past; i++) {
        int64_t end = i + 1 < l.count ? l.segments[i + 1]->base_offset : l.end;
        if (end > q->offset) result = txn_index_query_segment(l.segments[i], q);
    }
    log_lookup_end(&l);
    return result;
}

int log_aborted_between(struct log *log, int64_t offset, int64_t upper, int64_t keep_below,
                        uint32_t count_max, struct log_aborted_list *out) {
    struct txn_index_query q;
    int result = -ENOENT;
    *out = (struct log_aborted_list){.upper = upper};
    for (int i = 0; i < LOG_ABORTED_ATTEMPTS && result == -ENOENT; i++) {
        q = (struct txn_index_query){
            .offset = offset, .upper = upper, .keep_below = keep_below, .count_max = count_max};
        result = log_query_aborted(log, &q);
        if (result == 0) break;
        free(q.found);
        if (result == -ENOENT && atomic_load(&log->deleted)) return LOG_E_DELETED;
        /* Compaction changes the list under this lock. */
        if (result == -ENOENT) {
            log_append_lock(log);
            log_append_unlock(log);
        }
    }
    if (result != 0) return result == -ENOENT ? LOG_E_CORRUPT : result;
    txn_index_limit(&q);
    *out = (struct log_aborted_list){q.found, q.count, q.upper};
    return 0;
}
