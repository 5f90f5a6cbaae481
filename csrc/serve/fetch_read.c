/* Reads the partitions of a Fetch: checks epochs, takes ranges of the logs, reads cold data. */
#include "serve/fetch_internal.h"

#include <string.h>

#include "format/assertion.h"
#include "os/rate_limit.h"

enum { COLD_BYTES_MAX = 4 << 20 }; /* responses with cold data */

/* Returns true if out-of-sync followers must wait before they fetch more of throttled
 * partitions. */
static bool is_over(const struct serve *s) {
    return throttle_is_over(s->shared->limits.throttle, quotas_monotonic_ns() / NS_PER_MS);
}

void fetch_count_throttled(const struct serve *s, const struct fetch_part *p) {
    assert(p->read->throttled);
    throttle_count(s->shared->limits.throttle, p->read->range.length,
                   quotas_monotonic_ns() / NS_PER_MS);
}

/* From v11 on, consumers may also read from followers (KIP-392). */
static bool may_read(const struct fetch *f, const struct log *log) {
    return log_is_leader(log) ||
           (f->version >= 11 && !fetch_is_follower(f) && log_is_readable(log));
}

int16_t fetch_check_epochs(const struct fetch *f, struct fetch_part *p) {
    assert(p->read->topic != NULL && p->read->log != NULL);
    /* Check this before the epoch: if the disk has failed, the partition has no leader, and
     * leaderless partitions have a different epoch. */
    if (log_failed(p->read->log) == LOG_E_OFFLINE) return ERROR_KAFKA_STORAGE_ERROR;
    int32_t epoch = log_leader_epoch(p->read->log);
    if (p->leader_epoch >= 0 && p->leader_epoch < epoch) return ERROR_FENCED_LEADER_EPOCH;
    if (p->leader_epoch >= 0 && p->leader_epoch > epoch) return ERROR_UNKNOWN_LEADER_EPOCH;
    if (!may_read(f, p->read->log)) return ERROR_NOT_LEADER_OR_FOLLOWER;
    if (p->last_fetched_epoch < 0) return 0;
    /* The current epoch ends at the log end offset. */
    if (p->last_fetched_epoch == epoch && p->offset <= log_end_offset(p->read->log)) return 0;
    int32_t found;
    int64_t end;
    log_end_for_epoch(p->read->log, p->last_fetched_epoch, &found, &end);
    if (found < 0 || end < 0) return ERROR_OFFSET_OUT_OF_RANGE;
    if (found < p->last_fetched_epoch || end < p->offset) {
        p->read->diverging_epoch = found;
        p->read->diverging_end = end;
    }
    return 0;
}

static enum log_bound bound_of(const struct fetch *f) {
    if (fetch_is_follower(f)) return LOG_BOUND_END;
    return f->read_committed ? LOG_BOUND_LAST_STABLE : LOG_BOUND_HIGH_WATERMARK;
}

/* Takes one partition's range. `over`: the replication throttle has no quota left. Returns false
 * if finding it would block on a disk (only with `nowait`). */
static bool read_part(struct fetch *f, struct fetch_part *p, int32_t bytes_left, bool at_least_one,
                      bool nowait, bool over) {
    struct fetch_read *read = p->read;
    if (over && read->throttled && read->behind) {
        bytes_left = 0;
        at_least_one = false;
    }
    assert_slow(bytes_left >= 0 && read->waiter.mailbox == NULL);
    fetch_release(read);
    memset(&read->range, 0, sizeof read->range);
    read->diverging_epoch = -1;
    read->error = read->grant_error;
    if (read->error == 0) read->error = fetch_check_epochs(f, p);
    if (read->error == 0) read->error = read->follow_error;
    if (read->error != 0) return true;
    int32_t bytes = p->bytes_max < bytes_left ? p->bytes_max : bytes_left;
    struct log_read_request request = {.offset = p->offset,
                                       .bound = bound_of(f),
                                       .bytes_max = bytes < 0 ? 0 : bytes,
                                       .at_least_one = at_least_one,
                                       .nowait = nowait};
    if (read->diverging_epoch >= 0 || read->preferred >= 0) {
        /* The log has diverged or the client must read from another replica: return only the
         * offsets of the log, no records. */
        request.offset = log_end_offset(read->log);
        request.bytes_max = 0;
        request.at_least_one = false;
    }
    struct log_range *range = &read->range;
    int error = log_read(read->log, &request, range);
    if (error == LOG_E_WOULD_BLOCK) return false;
    assert_slow(range->length >= 0);
    if (error != 0) {
        log_range_release(range);
        memset(range, 0, sizeof *range);
        read->error = log_error_code(error);
    }
    return true;
}

int64_t fetch_awaited_end(const struct fetch *f, const struct log_range *range, uint8_t *kind) {
    if (fetch_is_follower(f)) {
        *kind = LOG_WAIT_END;
        return range->log_end_offset;
    }
    *kind = f->read_committed ? LOG_WAIT_LAST_STABLE : LOG_WAIT_HIGH_WATERMARK;
    return f->read_committed ? range->last_stable_offset : range->high_watermark;
}

static bool has_all(const struct fetch *f, const struct fetch_read *read) {
    uint8_t kind;
    return read->range.next_offset >= fetch_awaited_end(f, &read->range, &kind);
}

static bool reaches_end(const struct fetch *f, const struct fetch_read *read) {
    return read->error == 0 && (read->range.length == 0 || has_all(f, read));
}

void fetch_read_all(struct serve *s, struct fetch *f, bool nowait) {
    int64_t limit = f->bytes_max;
    if (limit > s->shared->limits.fetch_bytes_max) limit = s->shared->limits.fetch_bytes_max;
    int64_t bytes = 0;
    uint32_t ranges = 0; /* each may become a part of the reply */
    bool ready = false, any = false, at_end = true, over = f->throttled && is_over(s);
    bool full = false; /* the limit left no room for available records */
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        int64_t left = ranges < REPLY_PARTS_MAX ? limit - bytes : 0;
        if (!read_part(f, p, left < 0 ? 0 : (int32_t)left, bytes == 0, nowait, over)) {
            f->found = (struct fetch_found){.ready = true, .needs_disk = true};
            return;
        }
        bytes += p->read->range.length;
        ranges += p->read->range.length > 0;
        if (!reaches_end(f, p->read)) at_end = false;
        if (left < p->bytes_max && p->read->error == 0 && !has_all(f, p->read)) full = true;
        /* An unknown partition is part of the response, but does not end the wait. */
        if (fetch_is_unknown(p)) continue;
        any = true;
        if (p->read->error != 0 || p->read->diverging_epoch >= 0 || p->read->preferred >= 0)
            ready = true;
    }
    /* As in Kafka, the limit also limits the minimum. Batches are not cut, so a full response can
     * be a little shorter than the limit; while all partitions are throttled it has no bytes. */
    int64_t needed = f->bytes_min < limit ? f->bytes_min : limit;
    bool enough = bytes >= needed || (full && bytes > 0);
    f->found = (struct fetch_found){.bytes = bytes,
                                    .ready = ready || !any || enough,
                                    .at_end = at_end && !ready};
}

void fetch_warm(struct fetch *f) {
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next)
        if (p->read->range.length > 0 && log_range_warm(&p->read->range))
            log_count_cold(p->read->log);
}

int fetch_cold_job(struct iojob *job, void *worker_scratch) {
    struct fetch *f = (struct fetch *)job;
    (void)worker_scratch;
    assert(!f->waiting); /* only the job's own message may access it */
    if (f->found.needs_disk) {
        fetch_read_all(f->serve, f, false);
        f->below_min_bytes = !f->found.ready;
    }
    fetch_warm(f);
    return 0;
}

bool fetch_is_cold(const struct fetch *f) {
    if (f->found.needs_disk) return true;
    for (const struct fetch_part *p = f->set->first; p != NULL; p = p->next)
        if (p->read->range.length > 0 && p->read->copy == NULL &&
            log_range_is_cold(&p->read->range))
            return true;
    return false;
}

void fetch_narrow(struct serve *s, struct fetch *f, bool nowait) {
    if (f->bytes_max <= COLD_BYTES_MAX) return;
    f->bytes_max = COLD_BYTES_MAX;
    fetch_read_all(s, f, nowait);
}
