/* Appending: one mutex, stamps in place, one pwrite per batch into preallocated space, an index
 * entry at intervals. The end is published under the view lock, so that readers see offset and
 * position together. Batches of one group that are adjacent in memory share all of this. */
#include "log/log_append.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "format/assertion.h"
#include "format/batch.h"
#include "log/active_segment.h"
#include "log/flush_queue.h"
#include "log/log_ends.h"
#include "log/log_epochs.h"
#include "log/log_failure.h"
#include "log/log_internal.h"
#include "log/log_replicas.h"
#include "log/log_segments.h"
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

bool log_reserve_space(struct log *log, int64_t bytes) {
    return log_dir_reserve(log->partition->dir, bytes);
}

void log_unreserve_space(struct log *log, int64_t bytes) {
    log_dir_unreserve(log->partition->dir, bytes);
}

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

static void log_append_duplicate(struct log *log, const struct producers_batch *seen,
                                 struct log_appended *out) {
    out->last_offset = seen->last_offset;
    out->base_offset = seen->last_offset - seen->offset_delta;
    out->append_time_ms = seen->timestamp_ms; /* as in Kafka, for both timestamp types */
    out->log_start_offset = atomic_load(&log->ends.start_offset);
    out->duplicate = true;
}

int log_append_last(struct log *log, struct segment *s, const uint8_t *batch, size_t len,
                    const struct batch_header *h, int64_t now_ms) {
    int result = segment_pin(s, false);
    if (result != 0) return log_storage_error(log, result, "open");
    result = log_append_write(log, s, batch, len);
    /* Allocate memory for the producer before the end moves: a batch that is not recorded must
     * not be appended. */
    if (result == 0) result = log_update_producer(log, s, h, batch, now_ms);
    if (result == 0) {
        int64_t position = atomic_load_explicit(&s->bytes, memory_order_relaxed);
        segment_index_batch(s, h, position);
        log_restart_checkpoint_grown(log, position + (int64_t)len);
        log_publish(log, s, position + (int64_t)len, batch_last_offset(h) + 1);
        if (atomic_load_explicit(&log->append.quiet, memory_order_relaxed) == 0)
            segment_preallocate(s, log->view.config.segment_bytes, log->view.config.preallocate);
    }
    segment_unpin(s);
    return result;
}

static int log_append_batch(struct log *log, uint8_t *batch, size_t len, struct batch_header *h,
                            int64_t now_ms) LOG_APPENDING(log) {
    int64_t base = atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed);
    int64_t timestamp = log->view.config.log_append_time ? now_ms : h->max_timestamp;
    struct segment *s = log->view.segments[log->view.segment_count - 1];
    int result;
    if (log_append_must_roll(log, s, len, timestamp, base + h->last_offset_delta, now_ms)) {
        if ((result = log_roll(log, base, now_ms)) != 0) return result;
        s = log->view.segments[log->view.segment_count - 1];
    }
    int32_t epoch = atomic_load_explicit(&log->role.leader_epoch, memory_order_relaxed);
    if ((result = log_begin_epoch(log, epoch, base)) != 0) return result;
    if (log->view.config.log_append_time) batch_stamp_append_time(batch, len, now_ms);
    batch_stamp(batch, base, epoch);
    h->base_offset = base;
    h->max_timestamp = timestamp;
    return log_append_last(log, s, batch, len, h, now_ms);
}

/* Additional conditions for a client's transactional batch. */
struct log_verified {
    int64_t last_marker;
    uint64_t holder;
    bool from_zero;
};

static int log_append_verify(const struct log *log, const struct batch_header *h,
                             const struct log_verified *verified) LOG_APPENDING(log) {
    const struct producers_entry *e = producers_find(&log->append.producers, h->producer_id);
    assert_slow(h->attributes & BATCH_TRANSACTIONAL);
    if (e != NULL && h->producer_epoch < e->epoch) return LOG_E_EPOCH;
    bool open = e != NULL && e->transaction_first_offset >= 0 && e->epoch == h->producer_epoch;
    if (!open && (e == NULL ? -1 : e->last_marker) != verified->last_marker)
        return LOG_E_TXN_STATE;
    bool unknown = e == NULL || (e->batch_count == 0 && e->epoch < 0);
    return unknown && verified->from_zero && h->base_sequence != 0 ? LOG_E_SEQUENCE : 0;
}

/* Returns 0 (append it), 1 (already appended, as *seen), or why it must not be appended.
 * leader_epoch: -1 for any. */
static int log_append_admit(struct log *log, const struct batch_header *h, int32_t leader_epoch,
                            const struct log_verified *verified, int64_t now_ms,
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

static void log_append_count(struct log *log, const struct batch_header *h, size_t len, int result)
    LOG_APPENDING(log) {
    if (result == 0) {
        meter_add(&log->counts.batches_in, 1);
        meter_add(&log->counts.records_in, (uint64_t)h->record_count);
        meter_add(&log->counts.bytes_in, len);
    } else {
        meter_add(&log->counts.append_failures, 1);
    }
}

/* Returns true if the unflushed messages reach flush.messages. */
static bool log_append_needs_flush(const struct log *log) REQUIRES_SHARED(log->view.access) {
    return atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed) -
               atomic_load_explicit(&log->ends.flushed, memory_order_relaxed) >=
           log->view.config.flush_messages;
}

/* Fills the result of an appended batch: `h` has its offsets. */
static void log_append_fill_result(struct log *log, const uint8_t *batch,
                                   const struct batch_header *h, struct log_appended *out) {
    assert(h->base_offset >= 0);
    out->base_offset = h->base_offset;
    out->last_offset = batch_last_offset(h);
    out->append_time_ms =
        batch[BATCH_ATTRIBUTES_AT + 1] & BATCH_LOG_APPEND_TIME ? h->max_timestamp : -1;
    out->log_start_offset = atomic_load(&log->ends.start_offset);
}

static int log_append_checked(struct log *log, uint8_t *batch, size_t len,
                              const struct batch_summary *summary, int32_t leader_epoch,
                              const struct log_verified *verified, int64_t now_ms,
                              struct log_appended *out) {
    struct batch_header h = summary->header;
    struct producers_batch seen;
    memset(out, 0, sizeof *out);
    if (batch_bytes(&h) != len) return LOG_E_CORRUPT;
    log_append_lock(log);
    meter_add(&log->counts.appends, 1);
    out->leadership_losses =
        atomic_load_explicit(&log->role.leadership_losses, memory_order_relaxed);
    int result = log_append_admit(log, &h, leader_epoch, verified, now_ms, &seen);
    if (result == 1) {
        log_append_duplicate(log, &seen, out);
        log_append_unlock(log);
        return 0;
    }
    if (result == 0) result = log_append_batch(log, batch, len, &h, now_ms);
    if (result == 0 && verified != NULL)
        producers_verify(&log->append.producers, h.producer_id, h.producer_epoch,
                         verified->holder);
    log_append_count(log, &h, len, result);
    bool ask = result == 0 && log_append_needs_flush(log);
    log_append_unlock(log);
    if (result != 0) return result;
    log_append_fill_result(log, batch, &h, out);
    log_wake_after_append(log);
    if (ask) flush_queue_add(log);
    return 0;
}

int log_append(struct log *log, uint8_t *batch, size_t len, const struct batch_summary *summary,
               int32_t leader_epoch, int64_t now_ms, struct log_appended *out) {
    return log_append_checked(log, batch, len, summary, leader_epoch, NULL, now_ms, out);
}

int log_append_verified(struct log *log, uint8_t *batch, size_t len,
                        const struct batch_summary *summary, int64_t last_marker, bool from_zero,
                        uint64_t holder, int64_t now_ms, struct log_appended *out) {
    const struct log_verified verified = {last_marker, holder, from_zero};
    return log_append_checked(log, batch, len, summary, -1, &verified, now_ms, out);
}

/* ---- as leader, several batches ---- */

/* Returns true if part `i` can be written together with the parts from `from` on, which take
 * `used` bytes: it follows them in memory, and appending them first would change neither the
 * decision to roll nor the index. */
static bool log_group_joins(const struct log *log, struct segment *s,
                            const struct log_group_part *parts, uint32_t from, uint32_t i,
                            size_t used, int64_t now_ms) LOG_APPENDING(log) {
    const struct log_group_part *p = &parts[i];
    const struct batch_header *h = &p->summary->header;
    if (p->batch != parts[from].batch + used || s->first_timestamp < 0) return false;
    int64_t bytes = atomic_load_explicit(&s->bytes, memory_order_relaxed) + (int64_t)used;
    if (log_append_may_fill_index(log, s, bytes)) return false;
    int64_t timestamp = log->view.config.log_append_time ? now_ms : h->max_timestamp;
    int64_t last = batch_last_offset(&parts[i - 1].header) + 1 + h->last_offset_delta;
    return !log_append_must_roll(log, s, used + p->len, timestamp, last, now_ms);
}

/* Returns true if part `i` is certain to be accepted once the parts from `from` on are appended:
 * it must continue the newest of them from the same producer. */
static bool log_group_admits(struct log *log, const struct log_group_part *parts, uint32_t from,
                             uint32_t i, int64_t now_ms) LOG_APPENDING(log) {
    const struct batch_header *h = &parts[i].summary->header;
    struct producers_batch seen;
    if (batch_bytes(h) != parts[i].len) return false;
    for (uint32_t k = i; h->producer_id >= 0 && k-- > from;) {
        if (parts[k].header.producer_id != h->producer_id) continue;
        return producers_continues(&log->append.producers, &parts[k].header, h);
    }
    return log_append_admit(log, h, -1, NULL, now_ms, &seen) == 0;
}

static void log_group_stamp(struct log *log, struct log_group_part *p, int64_t base, int64_t now_ms)
    LOG_APPENDING(log) {
    p->header = p->summary->header;
    if (log->view.config.log_append_time) {
        batch_stamp_append_time(p->batch, p->len, now_ms);
        p->header.max_timestamp = now_ms;
    }
    int32_t epoch = atomic_load_explicit(&log->role.leader_epoch, memory_order_relaxed);
    batch_stamp(p->batch, base, epoch);
    p->header.base_offset = base;
}

/* Records the parts [from, to) after they were written, and publishes the end. If memory runs
 * out for a part, it gets the error and ends the group. Returns the first part without a result. */
static uint32_t log_group_account(struct log *log, struct segment *s, struct log_group_part *parts,
                                  uint32_t from, uint32_t to, int64_t now_ms) LOG_APPENDING(log) {
    int64_t position = atomic_load_explicit(&s->bytes, memory_order_relaxed), end = -1;
    uint32_t i = from;
    for (; i < to; i++) {
        struct log_group_part *p = &parts[i];
        p->result = log_update_producer(log, s, &p->header, p->batch, now_ms);
        if (p->result != 0) break;
        segment_index_batch(s, &p->header, position);
        position += (int64_t)p->len;
        end = batch_last_offset(&p->header) + 1;
    }
    if (end >= 0) {
        log_restart_checkpoint_grown(log, position);
        log_publish(log, s, position, end);
        if (atomic_load_explicit(&log->append.quiet, memory_order_relaxed) == 0)
            segment_preallocate(s, log->view.config.segment_bytes, log->view.config.preallocate);
    }
    return i < to ? i + 1 : to;
}

/* Writes the parts [from, *to), which take `used` bytes. In a shortage, writes only the first
 * and sets *to accordingly. */
static int log_group_write(struct log *log, struct segment *s, struct log_group_part *parts,
                           uint32_t from, uint32_t *to, size_t used) LOG_APPENDING(log) {
    int result = log_append_write(log, s, parts[from].batch, used);
    if (*to == from + 1 || !log_error_is_shortage(result)) return result;
    *to = from + 1;
    return log_append_write(log, s, parts[from].batch, parts[from].len);
}

/* Decides about part `from` and appends it with as many following parts as fit in one write.
 * Returns the first part without a result. */
static uint32_t log_group_run(struct log *log, struct log_group_part *parts, uint32_t from,
                              uint32_t count, int64_t now_ms) LOG_APPENDING(log) {
    struct producers_batch seen;
    struct log_group_part *first = &parts[from];
    const struct batch_header *h = &first->summary->header;
    first->result = batch_bytes(h) == first->len
                        ? log_append_admit(log, h, -1, NULL, now_ms, &seen)
                        : LOG_E_CORRUPT;
    if (first->result == 1) {
        first->result = 0;
        log_append_duplicate(log, &seen, &first->out);
    }
    if (first->result != 0 || first->out.duplicate) return from + 1;
    int64_t base = atomic_load_explicit(&log->ends.end_offset, memory_order_relaxed);
    int64_t timestamp = log->view.config.log_append_time ? now_ms : h->max_timestamp;
    struct segment *s = log->view.segments[log->view.segment_count - 1];
    if (log_append_must_roll(log, s, first->len, timestamp, base + h->last_offset_delta, now_ms)) {
        if ((first->result = log_roll(log, base, now_ms)) != 0) return from + 1;
        s = log->view.segments[log->view.segment_count - 1];
    }
    int32_t epoch = atomic_load_explicit(&log->role.leader_epoch, memory_order_relaxed);
    if ((first->result = log_begin_epoch(log, epoch, base)) != 0) return from + 1;
    size_t used = 0;
    uint32_t to = from;
    do {
        log_group_stamp(log, &parts[to], base, now_ms);
        base = batch_last_offset(&parts[to].header) + 1;
        used += parts[to++].len;
    } while (to < count && log_group_joins(log, s, parts, from, to, used, now_ms) &&
             log_group_admits(log, parts, from, to, now_ms));
    if ((first->result = segment_pin(s, false)) != 0) {
        first->result = log_storage_error(log, first->result, "open");
        return from + 1;
    }
    first->result = log_group_write(log, s, parts, from, &to, used);
    if (first->result == 0) to = log_group_account(log, s, parts, from, to, now_ms);
    segment_unpin(s);
    return first->result == 0 ? to : from + 1;
}

void log_append_group(struct log *log, struct log_group_part *parts, uint32_t count,
                      int64_t now_ms) {
    bool any = false;
    for (uint32_t i = 0; i < count; i++) memset(&parts[i].out, 0, sizeof parts[i].out);
    log_append_lock(log);
    meter_add(&log->counts.appends, count);
    uint32_t leadership_losses =
        atomic_load_explicit(&log->role.leadership_losses, memory_order_relaxed);
    for (uint32_t i = 0; i < count;) {
        uint32_t next = log_group_run(log, parts, i, count, now_ms);
        assert(next > i && next <= count);
        i = next;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct log_group_part *p = &parts[i];
        p->out.leadership_losses = leadership_losses;
        if (p->out.duplicate) continue;
        log_append_count(log, &p->summary->header, p->len, p->result);
        any = any || p->result == 0;
    }
    bool ask = any && log_append_needs_flush(log);
    log_append_unlock(log);
    for (uint32_t i = 0; i < count; i++) {
        struct log_group_part *p = &parts[i];
        if (p->result == 0 && !p->out.duplicate)
            log_append_fill_result(log, p->batch, &p->header, &p->out);
    }
    if (any) log_wake_after_append(log);
    if (ask) flush_queue_add(log);
}
