/* Produce v3-13: parse, look up, check, append, wait, respond.
 *
 * All topics are looked up before the first append. A miss parks the whole request. It is looked
 * up again when the control plane has decided, so nothing is ever appended twice. The body stays
 * in place until the batches are appended, because they are stamped there. */
#include "format/assertion.h"
#include "serve/produce_internal.h"

enum {
    WORKER_PAUSE_MS = 10, /* pause before resubmitting a job if the pool is full */
    FILES_PAUSE_MS = 20,  /* pause before checking again for free file descriptors */
    FILES_WAIT_MS_MAX = 10000
};

/* Finds every part's log. Returns false if grants are missing (r->missing lists the topics) or
 * memory ran out (r->missing_count is 0). */
static bool produce_look_up(struct serve *s, struct serve_request *r, struct produce *q,
                            bool granted) {
    bool complete = true, is_void = false;
    struct topic *topic = NULL;
    int16_t error = 0;
    uint32_t result_at = 0;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (p->first_of_topic) {
            topic = grants_find(s->shared->grants, r->principal, p->key, GRANT_WRITE);
            bool found = topic != NULL;
            error = 0;
            if (!found && granted) {
                error = grant_requests_result(r, p->key, &result_at);
                is_void |= error == 0;
                if (error == 0) error = ERROR_NOT_LEADER_OR_FOLLOWER;
            } else if (!found) {
                complete = false;
                if (!grant_requests_add(&q->grant_requests, r, p->key, GRANT_WRITE)) {
                    r->missing_count = 0;
                    return false;
                }
            }
            if (topic != NULL && topic->internal) error = ERROR_INVALID_TOPIC_EXCEPTION;
        } else if (topic != NULL) {
            topic_retain(topic);
        }
        produce_set_topic(p, topic, error);
    }
    if (is_void && grant_requests_retry(&q->grant_requests, r))
        return produce_look_up(s, r, q, false);
    return complete;
}

/* ---- transactions: partitions verify with the coordinator before a transaction's first batch
 * (KIP-890) ---- */

/* Returns false if the request must be rejected as a whole. Adds the partition to r->missing if
 * the coordinator must verify it. */
static bool verify_part(struct serve_request *r, struct produce *q, struct produce_part *p) {
    struct batch_header h;
    struct log_producer known;
    if (p->error != 0 || p->len == 0 || batch_parse(p->records, p->len, &h) != 0) return true;
    if (!(h.attributes & BATCH_TRANSACTIONAL) || h.producer_id < 0) return true;
    if (!log_is_leader(p->log)) {
        p->error = ERROR_NOT_LEADER_OR_FOLLOWER;
        return true;
    }
    if (!log_producer_of(p->log, h.producer_id, serve_wall_ms(q->serve), &known)) {
        p->error = ERROR_KAFKA_STORAGE_ERROR;
        return true;
    }
    p->last_marker = known.last_marker;
    if (h.producer_epoch < known.epoch) {
        p->error = ERROR_INVALID_PRODUCER_EPOCH;
        return true;
    }
    bool verified = known.verified_epoch >= 0 && known.verified_epoch == h.producer_epoch;
    if (verified && known.verified_for == q->holder) return true;
    struct serve_transaction *t = &r->transaction;
    if (t->id == NULL) {
        *t = q->transaction;
        t->producer_id = h.producer_id;
        t->epoch = h.producer_epoch;
    } else if (t->producer_id != h.producer_id || t->epoch != h.producer_epoch) {
        p->error = ERROR_INVALID_PRODUCER_ID_MAPPING; /* a request has only one producer */
        return true;
    }
    struct topic_key name = {(const uint8_t *)p->topic->name, p->topic->name_len, false};
    if (!grant_requests_add(&q->grant_requests, r, name, GRANT_WRITE)) return false;
    r->missing[r->missing_count - 1].partition = p->partition;
    return p->unverified = true;
}

/* Finds the partitions to verify, in r->missing. Returns false if the request must be rejected as
 * a whole. */
static bool verify(struct serve_request *r, struct produce *q) {
    r->missing_count = 0;
    q->holder = grants_holder(q->serve->shared->grants, r->principal);
    for (uint32_t i = 0; i < q->part_count; i++)
        if (!verify_part(r, q, &q->parts[i])) return false;
    return true;
}

static void take_results(struct serve_request *r, struct produce *q) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (!p->unverified) continue;
        assert(n < r->missing_count);
        p->unverified = false;
        p->error = r->missing[n++].error;
    }
    assert(n == r->missing_count);
    r->transaction.id = NULL;
}

/* ---- check and append ---- */

/* Checks the next slice of the request on a worker. After its first slice (`patient`), a request
 * leaves half of the workers to other jobs. */
static enum serve_status check_on_worker(struct serve *s, struct serve_request *r,
                                         struct produce *q, bool patient) {
    assert(!q->job_running && r->exclusive && r->body_needed);
    q->job = (struct iojob){
        .run = produce_check_job, .mailbox = s->mailbox, .token = r->token, .patient = patient};
    q->job_running = iopool_submit(s->shared->pool, &q->job);
    r->deadline_ms = q->job_running ? INT64_MAX : r->now_ms + WORKER_PAUSE_MS;
    return SERVE_WAIT;
}

/* Takes the result of a worker's slice. Returns true if all parts are checked. */
static bool take_slice(struct serve_request *r, struct produce *q) {
    assert(q->job_running && q->job_ns >= 0);
    q->job_running = false;
    r->busy_ns += q->job_ns;
    return q->checked_count == q->part_count;
}

/* Returns true if too many files are open: the request waits until some are flushed and closed,
 * but tries to append anyway after FILES_WAIT_MS_MAX. Nothing of it is appended yet, and later
 * requests of its connection do not start. */
static bool awaits_descriptors(const struct serve_request *r, const struct produce *q) {
    int64_t wait_ms = q->timeout_ms < FILES_WAIT_MS_MAX ? q->timeout_ms : FILES_WAIT_MS_MAX;
    if (r->now_ms - r->received_ms >= wait_ms) return false;
    for (uint32_t i = 0; i < q->part_count; i++) {
        const struct produce_part *p = &q->parts[i];
        if (p->error == 0 && log_is_leader(p->log) && log_descriptors_exhausted(p->log))
            return true;
    }
    return false;
}

static enum serve_status pause_append(struct serve_request *r, int64_t until_ms) {
    assert(r->exclusive && r->body_needed);
    r->deadline_ms = until_ms;
    return SERVE_WAIT;
}

/* ---- acknowledge ---- */

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

/* Returns true if all parts can be acknowledged, false if the request must wait. */
static bool acknowledge(struct serve_request *r, struct produce *q) {
    bool pending = false;
    for (uint32_t i = 0; q->acks == -1 && i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        p->waiter.mailbox = q->serve->mailbox;
        p->waiter.token = r->token;
        if (!acknowledged(p)) pending = true;
    }
    if (!pending) return true;
    r->exclusive = false;
    r->body_needed = !produce_keep_keys(q);
    r->deadline_ms = r->received_ms + (q->timeout_ms < 0 ? 0 : q->timeout_ms);
    return false;
}

/* After a wake-up or at the deadline: checks all waiting parts; parts that cannot be acknowledged
 * get an error. Returns true if none waits any longer. */
static bool check_waiters(struct produce *q, bool timed_out) {
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
    return !pending;
}

/* ---- the request ---- */

static enum serve_status close_request(struct serve_request *r) {
    produce_free(r);
    return SERVE_CLOSE;
}

/* Counts errors, charges the client, builds the response and frees the request. */
static enum serve_status produce_respond(struct serve_request *r, struct produce *q) {
    bool failed = false;
    for (uint32_t i = 0; i < q->part_count; i++) {
        if (q->parts[i].error == 0) continue;
        serve_count_error(q->serve, API_PRODUCE, q->parts[i].error);
        failed = true;
    }
    int32_t throttle_ms = r->quota == NULL ? 0 : serve_charge_produce(r, q->acks != 0);
    enum serve_status status = SERVE_SILENT;
    if (q->acks != 0) {
        produce_encode(r, q, throttle_ms, &r->reply);
        status = r->reply.failed ? SERVE_CLOSE : SERVE_ANSWER;
    } else if (failed) {
        /* The client reads no response. Closing the connection makes it refresh its metadata. */
        status = SERVE_CLOSE;
    }
    produce_free(r);
    return status;
}

/* Runs the request's stages until it must wait or is done. `reason`: why it continues;
 * SERVE_STARTED also after it has been appended with others. */
static enum serve_status produce_advance(struct serve *s, struct serve_request *r,
                                         struct produce *q, enum serve_reason reason) {
    int64_t wall_ms = 0; /* 0: not read so far */
    for (;;) switch (q->stage) {
        case PRODUCE_LOOK_UP:
            if (!produce_look_up(s, r, q, reason == SERVE_GRANTED))
                return r->missing_count != 0 ? SERVE_MISS : close_request(r);
            q->stage = q->transactional ? PRODUCE_VERIFY : PRODUCE_CHECK;
            break;
        case PRODUCE_VERIFY:
            if (!verify(r, q)) return close_request(r);
            q->stage = r->missing_count > 0 ? PRODUCE_VERIFYING : PRODUCE_CHECK;
            if (r->missing_count > 0) return SERVE_MISS;
            break;
        case PRODUCE_VERIFYING:
            assert(reason == SERVE_GRANTED);
            take_results(r, q);
            q->stage = PRODUCE_CHECK;
            break;
        case PRODUCE_CHECK:
            wall_ms = serve_wall_ms(s);
            if (produce_check(q, wall_ms)) {
                q->stage = PRODUCE_APPEND_TO_LOGS;
                break;
            }
            q->stage = PRODUCE_CHECKING;
            return check_on_worker(s, r, q, false);
        case PRODUCE_CHECKING:
            if (reason != SERVE_IO_DONE && q->job_running) return SERVE_WAIT;
            if (reason != SERVE_IO_DONE) return check_on_worker(s, r, q, q->job_ns > 0);
            if (!take_slice(r, q)) return check_on_worker(s, r, q, true);
            q->stage = PRODUCE_APPEND_TO_LOGS;
            break;
        case PRODUCE_APPEND_TO_LOGS:
            if (q->appended_count == 0) {
                if (awaits_descriptors(r, q)) return pause_append(r, r->now_ms + FILES_PAUSE_MS);
                if (produce_batcher_accepts(s, r, q) && produce_batcher_add(s, r, q))
                    return SERVE_QUEUED;
            }
            if (s->group_count != 0) produce_batcher_append(s); /* earlier requests first */
            if (wall_ms == 0) wall_ms = serve_wall_ms(s);
            /* The rest is appended after the requests that are ready now. */
            if (!produce_append(q, wall_ms)) return pause_append(r, r->now_ms);
            r->deadline_ms = INT64_MAX;
            q->stage = PRODUCE_ACKNOWLEDGE;
            break;
        case PRODUCE_ACKNOWLEDGE:
            q->stage = acknowledge(r, q) ? PRODUCE_RESPOND : PRODUCE_REPLICATING;
            if (q->stage == PRODUCE_REPLICATING) return SERVE_WAIT;
            break;
        case PRODUCE_REPLICATING:
            if (!check_waiters(q, reason == SERVE_TIMEOUT)) return SERVE_WAIT;
            q->stage = PRODUCE_RESPOND;
            break;
        case PRODUCE_RESPOND: return produce_respond(r, q);
        case PRODUCE_QUEUED:
        case PRODUCE_APPENDED: assert(!"a queued request is appended first");
        }
}

enum serve_status produce_start(struct serve *s, struct serve_request *r) {
    assert_slow(r->api_key == API_PRODUCE);
    struct produce *q = produce_parse(s, r);
    return q == NULL ? SERVE_CLOSE : produce_advance(s, r, q, SERVE_STARTED);
}

enum serve_status produce_resume(struct serve *s, struct serve_request *r,
                                 enum serve_reason reason) {
    return produce_advance(s, r, r->state, reason);
}

struct serve_request *serve_next_appended(struct serve *s, enum serve_status *status) {
    struct produce *q = produce_batcher_next(s);
    if (q == NULL) return NULL;
    struct serve_request *r = q->request;
    *status = produce_advance(s, r, q, SERVE_STARTED);
    return r;
}

bool produce_abandon(struct serve_request *r) {
    struct produce *q = r->state;
    produce_batcher_cancel(q->serve, q);
    if (q->job_running) {
        /* Called again when the job's message arrives. The checks are discarded; nothing was
         * appended. */
        q->job_running = false;
        return false;
    }
    produce_free(r);
    return true;
}
