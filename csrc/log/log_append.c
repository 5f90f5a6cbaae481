/* Appending: one mutex, stamps in place, one pwrite per batch into preallocated space, an index
 * entry at intervals. The end is published under the view lock, so that readers see offset and
 * position together. Batches of one group that are adjacent in memory share all of this. */
#include "log/log_append.h"

#include <assert.h>
#include <errno.h>
#include <unistd.h>

#include "format/assertion.h"
#include "format/batch.h"
#include "log/active_segment.h"
#include "log/flush_queue.h"
#include "log/log_ends.h"
#include "log/log_epochs.h"
#include "log/log_failure.h"
#include "log/log_replicas.h"
#include "log/log_segments.h"
#include "log/log_struct.h"
#include "log/log_transactions.h"
#include "log/log_waiters.h"
#include "os/disk.h"
#include "os/lock.h"
#include "os/meter.h"
#include "segment/log_dir.h"
#include "segment/log_error.h"
#include "segment/producer_state.h"
#include "segment/segment.h"
#include "segment/segment_index.h"
#include "segment/segment_path.h"

/* Largest pwrite call: with 10 MB per call, ext4 (Linux 6.18) makes folios that cost 0.8 to
 * 1.9 CPU s/GB to fill; with 512 KiB to 2 MiB, 0.17 to 0.21. */
enum { LOG_WRITE_BYTES_MAX = 1 << 20 };

/* Each index entry needs at least the interval in bytes: most segments cannot fill their index. */
static bool log_append_may_fill_index(const struct log *log, const struct segment *s,
                                      int64_t bytes) REQUIRES_SHARED(log->view.access) {
    int64_t entries = bytes / (s->index_interval_bytes + 1) + 1;
    return entries >= log->view.config.segment_index_bytes / 12;
}

bool log_append_must_roll(const struct log *log, struct segment *s, size_t len,
                          int64_t timestamp, int64_t last_offset, int64_t now_ms) {
    int64_t bytes = atomic_load_explicit(&s->bytes, memory_order_relaxed);
    if (!log_may_roll(log)) return false;
    if (bytes + (int64_t)len > log->view.config.segment_bytes) return true;
    if (last_offset - s->base_offset > INT32_MAX) return true;
    int64_t since =
        s->first_timestamp >= 0 ? timestamp - s->first_timestamp : now_ms - s->created_ms;
    if (since > log->view.config.segment_ms - s->jitter_ms) return true;
    if (!log_append_may_fill_index(log, s, bytes)) return false;
    return segment_index_entries(s, false) >= (uint32_t)log->view.config.segment_index_bytes / 8 ||
           segment_index_entries(s, true) + 1 >=
               (uint32_t)log->view.config.segment_index_bytes / 12;
}

int log_append_write(struct log *log, struct segment *s, const uint8_t *bytes, size_t len) {
    int64_t position = atomic_load_explicit(&s->bytes, memory_order_relaxed), at = position;
    const struct disk *disk = log_dir_disk(log->partition->dir);
    assert(len <= BATCH_BYTES_MAX); /* Readers reject longer batches. */
    assert(!atomic_load_explicit(&s->sealed, memory_order_relaxed));
    assert_slow(log->append.writable);
    assert_slow(atomic_load(&s->pins) > 0);
    assert_slow(!segment_is_shared(s)); /* A branch shares the file: never write it in place. */
    atomic_store(&s->dirty, true); /* Before writing: a flush clears it and then syncs. */
    while (len > 0) {
        size_t some = len < LOG_WRITE_BYTES_MAX ? len : LOG_WRITE_BYTES_MAX;
        ssize_t n = disk->pwrite(s->fd, bytes, some, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            int error = n < 0 ? errno : ENOSPC;
            if (at > position && disk->ftruncate(s->fd, position) == 0) {
                atomic_store(&s->allocated, 0);
                log_restart_checkpoint_grown(log, position);
            }
            return log_storage_error(log, -error, "pwrite");
        }
        bytes += n;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

/* ---- bookkeeping ---- */

void log_publish(struct log *log, struct segment *s, int64_t bytes, int64_t end) {
    log_view_change(log);
    assert(end >= atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed));
    assert(bytes >= atomic_load_explicit(&s->bytes, memory_order_relaxed));
    assert_slow(s == log->view.segments[log->view.segment_count - 1]);
    assert_slow(end >= s->base_offset);
    atomic_fetch_add_explicit(&log->view.size_bytes,
                              bytes - atomic_load_explicit(&s->bytes, memory_order_relaxed),
                              memory_order_relaxed);
    atomic_store_explicit(&s->bytes, bytes, memory_order_relaxed);
    atomic_store(&log->ends.end_offset, end);
    if (atomic_load_explicit(&log->role.alone, memory_order_relaxed)) {
        atomic_store(&log->ends.high_watermark, log_high_watermark_alone(log));
        log_set_last_stable(log);
    } else if (log->view.replicas != NULL) {
        log_replicas_appended(log);
    }
    log_ends_check(log);
    log_view_changed(log);
}

/* ---- as leader ---- */

int log_append_check_online(struct log *log) {
    if (atomic_load_explicit(&log->deleted, memory_order_relaxed)) return LOG_E_DELETED;
    return log_offline(log) ? LOG_E_OFFLINE : 0;
}

static int log_append_verify(const struct log *log, const struct batch_header *h,
                             const struct log_transaction_check *verified) LOG_APPENDING(log) {
    const struct producers_entry *e = producers_find(&log->append.producers, h->producer_id);
    assert_slow(h->attributes & BATCH_TRANSACTIONAL);
    if (e != NULL && h->producer_epoch < e->epoch) return LOG_E_EPOCH;
    bool open = e != NULL && e->transaction_first_offset >= 0 && e->epoch == h->producer_epoch;
    if (!open && (e == NULL ? -1 : e->last_marker) != verified->last_marker)
        return LOG_E_TXN_STATE;
    bool unknown = e == NULL || (e->batch_count == 0 && e->epoch < 0);
    return unknown && verified->from_zero && h->base_sequence != 0 ? LOG_E_SEQUENCE : 0;
}

/* Returns 0 (append it), 1 (already appended, as *seen), or why it must not be appended. */
static int log_append_admit(struct log *log, const struct batch_header *h, int32_t leader_epoch,
                            const struct log_transaction_check *verified, int64_t now_ms,
                            struct producers_batch *seen) LOG_APPENDING(log) {
    int result = log_append_check_online(log);
    if (result == 0 &&
        (!atomic_load_explicit(&log->role.leader, memory_order_relaxed) ||
         (leader_epoch >= 0 &&
          leader_epoch != atomic_load_explicit(&log->role.leader_epoch, memory_order_relaxed))))
        result = LOG_E_NOT_LEADER;
    if (result == 0 && !log->append.writable) result = log_make_writable(log, now_ms);
    if (result == 0 && h->producer_id >= 0)
        result = producers_check(&log->append.producers, h, seen);
    if (result == 0 && verified != NULL) result = log_append_verify(log, h, verified);
    return result;
}

/* Returns true if the unflushed messages reach flush.messages. */
static bool log_append_needs_flush(const struct log *log) REQUIRES_SHARED(log->view.access) {
    return atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed) -
               atomic_load_explicit(&log->ends.flushed, memory_order_relaxed) >=
           log->view.config.flush_messages;
}

/* ---- results: each part gets exactly one ---- */

static struct log_appended log_append_result(const struct log *log, int64_t last_offset,
                                             int64_t offset_delta, int64_t append_time_ms) {
    return (struct log_appended){
        .base_offset = last_offset - offset_delta,
        .last_offset = last_offset,
        .append_time_ms = append_time_ms,
        .log_start_offset = atomic_load_explicit(&log->ends.start_offset, memory_order_relaxed),
        .leadership_losses =
            atomic_load_explicit(&log->role.leadership_losses, memory_order_relaxed)};
}

static void log_append_reject(struct log *log, struct log_append_part *p, int error)
    LOG_APPENDING(log) {
    meter_add(&log->counts.append_failures, 1);
    p->result = error;
    p->out = log_append_result(log, 0, 0, 0);
}

static void log_append_duplicate(struct log *log, struct log_append_part *p,
                                 const struct producers_batch *seen) LOG_APPENDING(log) {
    p->result = 0;
    /* Both timestamp types return the time of the first append, as in Kafka. */
    p->out = log_append_result(log, seen->last_offset, seen->offset_delta, seen->timestamp_ms);
    p->out.duplicate = true;
}

static void log_append_accept(struct log *log, struct log_append_part *p) LOG_APPENDING(log) {
    const struct batch_header *h = &p->header;
    assert(h->base_offset >= 0);
    meter_add(&log->counts.batches_in, 1);
    meter_add(&log->counts.records_in, (uint64_t)h->record_count);
    meter_add(&log->counts.bytes_in, p->len);
    p->result = 0;
    bool log_append_time = p->batch[BATCH_ATTRIBUTES_AT + 1] & BATCH_LOG_APPEND_TIME;
    p->out = log_append_result(log, batch_last_offset(h), h->last_offset_delta,
                               log_append_time ? h->max_timestamp : -1);
}

/* Returns true if `next` can be written together with the parts [first, next), which take `used`
 * bytes: it follows them in memory, and appending them first would change neither the decision to
 * roll nor the index. */
static bool log_append_joins(const struct log *log, struct segment *s,
                             const struct log_append_part *first,
                             const struct log_append_part *next, size_t used, int64_t now_ms)
    LOG_APPENDING(log) {
    const struct batch_header *h = &next->summary->header;
    if (next->batch != first->batch + used || s->first_timestamp < 0) return false;
    if (next->transaction != NULL || first->transaction != NULL) return false;
    int64_t bytes = atomic_load_explicit(&s->bytes, memory_order_relaxed) + (int64_t)used;
    if (log_append_may_fill_index(log, s, bytes)) return false;
    int64_t timestamp = log->view.config.log_append_time ? now_ms : h->max_timestamp;
    int64_t last = batch_last_offset(&next[-1].header) + 1 + h->last_offset_delta;
    return !log_append_must_roll(log, s, used + next->len, timestamp, last, now_ms);
}

/* Returns true if `next` is certain to be accepted once the parts [first, next) are appended: it
 * must continue the newest of them from the same producer. */
static bool log_append_admits_next(struct log *log, const struct log_append_part *first,
                                   const struct log_append_part *next, int32_t leader_epoch,
                                   int64_t now_ms) LOG_APPENDING(log) {
    const struct batch_header *h = &next->summary->header;
    struct producers_batch seen;
    if (batch_bytes(h) != next->len) return false;
    for (const struct log_append_part *p = next; h->producer_id >= 0 && p-- > first;) {
        if (p->header.producer_id != h->producer_id) continue;
        return producers_continues(&log->append.producers, &p->header, h);
    }
    return log_append_admit(log, h, leader_epoch, NULL, now_ms, &seen) == 0;
}

static void log_append_stamp(struct log *log, struct log_append_part *p, int64_t base,
                             int64_t now_ms) LOG_APPENDING(log) {
    p->header = p->summary->header;
    if (log->view.config.log_append_time) {
        batch_stamp_append_time(p->batch, p->len, now_ms);
        p->header.max_timestamp = now_ms;
    }
    batch_stamp(p->batch, base,
                atomic_load_explicit(&log->role.leader_epoch, memory_order_relaxed));
    p->header.base_offset = base;
}

/* Records the parts [first, end) after they were written, and publishes the end offset. Allocates
 * memory for producers before the end offset moves: a batch that is not recorded must not be
 * appended. If memory runs out for a part, rejects it; the parts after it remain to be appended.
 * Returns the first part without a result. */
static struct log_append_part *log_append_record(struct log *log, struct segment *s,
                                                 struct log_append_part *first,
                                                 struct log_append_part *end, int64_t now_ms)
    LOG_APPENDING(log) {
    int64_t position = atomic_load_explicit(&s->bytes, memory_order_relaxed);
    int error = 0;
    struct log_append_part *p = first;
    for (; p < end; p++) {
        if ((error = log_update_producer(log, s, &p->header, p->batch, now_ms)) != 0) break;
        if (p->transaction != NULL)
            producers_verify(&log->append.producers, p->header.producer_id,
                             p->header.producer_epoch, p->transaction->holder);
        segment_index_batch(s, &p->header, position);
        position += (int64_t)p->len;
        log_append_accept(log, p);
    }
    if (p > first) {
        log_restart_checkpoint_grown(log, position);
        log_publish(log, s, position, p[-1].out.last_offset + 1);
        if (atomic_load_explicit(&log->append.quiet, memory_order_relaxed) == 0)
            segment_preallocate(s, log->view.config.segment_bytes, log->view.config.preallocate);
    }
    if (error != 0) log_append_reject(log, p++, error);
    return p;
}

/* Writes the parts [first, *end), which take `used` bytes. In a shortage, writes only the first
 * and sets *end accordingly. */
static int log_append_write_parts(struct log *log, struct segment *s,
                                  struct log_append_part *first, struct log_append_part **end,
                                  size_t used) LOG_APPENDING(log) {
    int result = log_append_write(log, s, first->batch, used);
    if (*end == first + 1 || !log_error_is_shortage(result)) return result;
    *end = first + 1;
    return log_append_write(log, s, first->batch, first->len);
}

/* Admits a part and rolls the segment and begins the leader epoch if they are due. Returns 0, 1
 * (already appended, as *seen) or an error. */
static int log_append_begin(struct log *log, const struct log_append_part *p, int32_t leader_epoch,
                            int64_t now_ms, struct producers_batch *seen) LOG_APPENDING(log) {
    const struct batch_header *h = &p->summary->header;
    if (batch_bytes(h) != p->len) return LOG_E_CORRUPT;
    int result = log_append_admit(log, h, leader_epoch, p->transaction, now_ms, seen);
    if (result != 0) return result;
    int64_t base = atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed);
    int64_t timestamp = log->view.config.log_append_time ? now_ms : h->max_timestamp;
    struct segment *s = log->view.segments[log->view.segment_count - 1];
    if (log_append_must_roll(log, s, p->len, timestamp, base + h->last_offset_delta, now_ms) &&
        (result = log_roll(log, base, now_ms)) != 0)
        return result;
    return log_begin_epoch(
        log, atomic_load_explicit(&log->role.leader_epoch, memory_order_relaxed), base);
}

/* Decides about the first part and appends it with as many of the parts up to `end` as fit in one
 * write. Returns the first part without a result. */
static struct log_append_part *log_append_next(struct log *log, struct log_append_part *first,
                                               struct log_append_part *end, int32_t leader_epoch,
                                               int64_t now_ms) LOG_APPENDING(log) {
    struct producers_batch seen;
    int result = log_append_begin(log, first, leader_epoch, now_ms, &seen);
    if (result != 0) {
        if (result == 1)
            log_append_duplicate(log, first, &seen);
        else
            log_append_reject(log, first, result);
        return first + 1;
    }
    struct segment *s = log->view.segments[log->view.segment_count - 1];
    struct log_append_part *next = first;
    int64_t base = atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed);
    size_t used = 0;
    do {
        log_append_stamp(log, next, base, now_ms);
        base = batch_last_offset(&next->header) + 1;
        used += next++->len;
    } while (next < end && log_append_joins(log, s, first, next, used, now_ms) &&
             log_append_admits_next(log, first, next, leader_epoch, now_ms));
    if ((result = segment_pin(s, false)) != 0) {
        log_append_reject(log, first, log_storage_error(log, result, "open"));
        return first + 1;
    }
    if ((result = log_append_write_parts(log, s, first, &next, used)) == 0) {
        next = log_append_record(log, s, first, next, now_ms);
    } else {
        log_append_reject(log, first, result);
        next = first + 1;
    }
    segment_unpin(s);
    return next;
}

void log_append_batches(struct log *log, struct log_append_part *parts, uint32_t count,
                        int32_t leader_epoch, int64_t now_ms) {
    struct log_append_part *end = parts + count;
    log_append_lock(log);
    meter_add(&log->counts.appends, count);
    int64_t end_offset = atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed);
    while (parts < end) parts = log_append_next(log, parts, end, leader_epoch, now_ms);
    assert(parts == end);
    bool appended =
        atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed) > end_offset;
    bool needs_flush = appended && log_append_needs_flush(log);
    log_append_unlock(log);
    if (appended) log_wake_after_append(log);
    if (needs_flush) flush_queue_add(log);
}

static void log_append_refuse(struct log *log, struct log_append_part *p) {
    p->result = LOG_E_FULL;
    p->out = (struct log_appended){.below_reserve = true};
    log_count_refused(log);
}

void log_append_for_clients(struct log *log, struct log_append_part *parts, uint32_t count,
                            int64_t now_ms) {
    struct log_dir *dir = log->partition->dir;
    int64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes += (int64_t)parts[i].len;
    if (log_dir_reserve(dir, bytes)) {
        log_append_batches(log, parts, count, -1, now_ms);
        log_dir_unreserve(dir, bytes);
        return;
    }
    if (count == 1) {
        log_append_refuse(log, parts);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        bytes = (int64_t)parts[i].len;
        if (!log_dir_reserve(dir, bytes)) {
            log_append_refuse(log, &parts[i]);
            continue;
        }
        log_append_batches(log, &parts[i], 1, -1, now_ms);
        log_dir_unreserve(dir, bytes);
    }
}

int log_append(struct log *log, uint8_t *batch, size_t len, const struct batch_summary *summary,
               int32_t leader_epoch, int64_t now_ms, struct log_appended *out) {
    struct log_append_part part = {.batch = batch, .len = len, .summary = summary};
    log_append_batches(log, &part, 1, leader_epoch, now_ms);
    *out = part.out;
    return part.result;
}
