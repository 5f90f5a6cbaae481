/* The last steps of a Produce: append, then wait for the requested acknowledgement. */
#include "serve/produce_internal.h"

#include "format/assertion.h"

enum {
    FILES_PAUSE_MS = 20, /* pause before checking again for free file descriptors */
    FILES_WAIT_MS_MAX = 10000
};
/* Time that one request may append before other connections of the reactor run. */
#define APPEND_TURN_NS ((int64_t)5 * NS_PER_MS)

void produce_appended(struct produce_part *p, int error, const struct log_appended *done) {
    if (error != 0) {
        p->error = log_error_code(error);
        p->cause = error;
        /* A marker arrived in between. When the client retries, the coordinator verifies the
         * transaction again. */
        if (error == LOG_E_TXN_STATE) p->error = ERROR_NOT_ENOUGH_REPLICAS;
        p->refused = error == LOG_E_SEQUENCE || error == LOG_E_EPOCH;
        return;
    }
    assert_slow(done->base_offset >= 0 && done->base_offset <= done->last_offset);
    p->base_offset = done->base_offset;
    p->last_offset = done->last_offset;
    p->append_time_ms = done->append_time_ms;
    p->leadership_losses = done->leadership_losses;
    p->log_start_offset = done->log_start_offset;
}

void produce_append_part(const struct produce *q, struct produce_part *p, int64_t now_ms) {
    struct log_appended done;
    assert(p->log != NULL && p->base_offset == -1); /* appended only once */
    if (!log_reserve_space(p->log, (int64_t)p->len)) {
        p->error = log_error_code(LOG_E_FULL);
        p->cause = LOG_E_FULL;
        p->below_reserve = true;
        log_count_refused(p->log);
        return;
    }
    assert(p->summary != NULL && p->len == batch_bytes(&p->summary->header));
    int error;
    if (p->summary->header.attributes & BATCH_TRANSACTIONAL)
        error = log_append_verified(p->log, p->records, p->len, p->summary, p->last_marker,
                                    q->version >= ADDING_VERSION_MIN, q->holder, now_ms, &done);
    else
        error = log_append(p->log, p->records, p->len, p->summary, -1, now_ms, &done);
    log_unreserve_space(p->log, (int64_t)p->len);
    produce_appended(p, error, &done);
}

/* Checks, after the high watermark has passed the records, that they still exist and on enough
 * replicas. */
static int16_t check_replicas(const struct produce_part *p) {
    if (log_leadership_losses(p->log) != p->leadership_losses) return ERROR_NOT_LEADER_OR_FOLLOWER;
    return log_below_min_isr(p->log, true) ? ERROR_NOT_ENOUGH_REPLICAS_AFTER_APPEND : 0;
}

/* Returns true if the acknowledgement's offsets are reached or the part has an error, false if
 * the waiter is linked. */
static bool acknowledged(struct produce_part *p) {
    assert_slow(p->waiter.mailbox != NULL);
    p->waiting = false;
    if (p->error != 0) return true;
    assert_slow(p->last_offset >= 0); /* a part that waits was appended */
    for (int step = 0; step < 2; step++) {
        if (step == 1 && (p->error = check_replicas(p)) != 0) return true;
        if (step == 1 && !log_flush_before_ack(p->log)) return true;
        p->waiter.wait_for = step == 0 ? LOG_WAIT_HIGH_WATERMARK : LOG_WAIT_FLUSHED;
        p->waiter.offset = p->last_offset;
        if (log_wait(p->log, &p->waiter)) continue;
        p->waiting = true;
        return false;
    }
    return true;
}

bool produce_keep_keys(struct produce *q) {
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (p->topic == NULL) return false;
        p->key.bytes = q->by_id ? p->topic->id : (const uint8_t *)p->topic->name;
    }
    return true;
}

enum serve_status produce_acknowledge(struct serve_request *r, struct produce *q) {
    bool pending = false;
    for (uint32_t i = 0; q->acks == -1 && i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        p->waiter.mailbox = q->serve->mailbox;
        p->waiter.token = r->token;
        if (!acknowledged(p)) pending = true;
    }
    if (!pending) return produce_answer(r, q);
    r->exclusive = false;
    r->body_needed = !produce_keep_keys(q);
    r->deadline_ms = r->received_ms + (q->timeout_ms < 0 ? 0 : q->timeout_ms);
    return SERVE_WAIT;
}

/* Returns true if too many files are open: the request waits until some are flushed and closed,
 * but tries to append anyway after FILES_WAIT_MS_MAX. Nothing of it is appended yet, and later
 * requests of its connection do not start. */
static bool lacks_files(const struct serve_request *r, const struct produce *q) {
    int64_t wait_ms = q->timeout_ms < FILES_WAIT_MS_MAX ? q->timeout_ms : FILES_WAIT_MS_MAX;
    if (r->now_ms - r->received_ms >= wait_ms) return false;
    for (uint32_t i = 0; i < q->part_count; i++) {
        const struct produce_part *p = &q->parts[i];
        if (p->error == 0 && log_is_leader(p->log) && log_descriptors_exhausted(p->log))
            return true;
    }
    return false;
}

/* Appends the remaining parts for one turn. Returns false if parts remain. */
static bool append_parts(struct produce *q, int64_t now_ms) {
    int64_t began_ns = quotas_monotonic_ns();
    while (q->appended_count < q->part_count) {
        struct produce_part *p = &q->parts[q->appended_count++];
        assert(p->topic != NULL || (p->log == NULL && p->error != 0));
        if (p->error == 0)
            produce_append_part(q, p, now_ms);
        else if (p->log != NULL)
            log_count_refused(p->log);
        if (quotas_monotonic_ns() - began_ns >= APPEND_TURN_NS) break;
    }
    return q->appended_count == q->part_count;
}

enum serve_status produce_append(struct serve_request *r, struct produce *q, int64_t now_ms) {
    bool begins = q->appended_count == 0;
    assert(q->checked_count == q->part_count);
    q->pauses = begins && lacks_files(r, q);
    if (q->pauses) {
        assert(r->exclusive && r->body_needed);
        r->deadline_ms = r->now_ms + FILES_PAUSE_MS;
        return SERVE_WAIT;
    }
    if (begins && produce_group_take(q->serve, r, q)) return SERVE_QUEUED;
    produce_group_append(q->serve); /* earlier requests first */
    q->pauses = !append_parts(q, now_ms);
    if (q->pauses) {
        assert(r->exclusive && r->body_needed);
        r->deadline_ms = r->now_ms; /* after the requests that are ready now */
        return SERVE_WAIT;
    }
    r->deadline_ms = INT64_MAX;
    return produce_acknowledge(r, q);
}

enum serve_status produce_look_again(struct serve_request *r, struct produce *q, bool timed_out) {
    bool pending = false;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (!p->waiting) continue;
        assert(p->log != NULL && p->error == 0 && q->acks == -1);
        log_unwait(p->log, &p->waiter);
        int failed = log_failed(p->log);
        if (failed == 0 && !acknowledged(p)) {
            if (!timed_out) {
                pending = true;
                continue;
            }
            log_unwait(p->log, &p->waiter);
            p->error = ERROR_REQUEST_TIMED_OUT;
        } else if (failed != 0) {
            p->error = log_error_code(failed);
            p->cause = failed;
        }
        p->waiting = false;
    }
    return pending ? SERVE_WAIT : produce_answer(r, q);
}
