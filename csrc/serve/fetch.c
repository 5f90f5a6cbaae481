/* Fetch v4-18: parse the request into a set of partitions (the session's or its own), look up
 * the topics, take ranges, wait while there are fewer than min_bytes, read cold data on the io
 * pool, respond with references to the log files. */
#include "serve/fetch_internal.h"

#include <stdlib.h>

#include "format/assertion.h"

enum {
    WORKER_PAUSE_MS = 10, /* pause before resubmitting a job if the pool is full */
    COUNTED_PARTITIONS = 1000,      /* larger fetches count towards the limit below */
    WAITING_PARTITIONS_MAX = 400000 /* over all counted fetches: about 130 MB */
};

/* Opens the request's session. Returns 0 or a top-level error. */
static int16_t open_session(struct serve *s, struct serve_request *r, struct fetch *f) {
    if (f->session_epoch == -1 && f->session_id == 0) {
        f->full = true;
        return 0;
    }
    struct fetch_sessions_open open = {.own = &f->own,
                                       .forgotten = f->forgotten,
                                       .flexible = f->flexible,
                                       .principal = r->principal,
                                       .now_ms = r->received_ms,
                                       .random = &s->shared->random,
                                       .id = f->session_id,
                                       .epoch = f->session_epoch};
    int16_t error = fetch_sessions_open(s->shared->sessions, &open);
    f->session = open.session;
    f->session_id = open.id;
    f->full = open.full;
    if (f->session != NULL) f->set = &f->session->set;
    return error;
}

static void fetch_set_topic(struct fetch_part *p, struct topic *topic) {
    assert(p->read->waiter.mailbox == NULL && (p->read->log == NULL || p->read->topic != NULL));
    if (p->read->topic != NULL) topic_release(p->read->topic);
    p->read->topic = topic;
    p->read->log = NULL;
    if (topic != NULL) p->read->log = topic_log(topic, p->partition, &p->read->grant_error);
}

static struct topic_key key_of(const struct fetch *f, const struct fetch_part *p) {
    return (struct topic_key){p->key->bytes, p->key->len, f->by_id};
}

static uint8_t right_for(const struct fetch *f) {
    return fetch_is_follower(f) ? GRANT_FOLLOW : GRANT_READ;
}

/* Like grants_find, but reuses the topic of the preceding partition if it is the same. */
static struct topic *find_topic(struct serve *s, const struct serve_request *r,
                                const struct fetch *f, const struct fetch_part *p,
                                uint32_t changes) {
    const struct fetch_part *before = p->prev;
    if (before != NULL && before->read->topic != NULL && before->read->changes == changes &&
        fetch_same_topic(before, p)) {
        topic_retain(before->read->topic);
        return before->read->topic;
    }
    return grants_find(s->shared->grants, r->principal, key_of(f, p), right_for(f));
}

/* Looks up topics that are new or whose grants have changed. Returns false if grants are
 * missing; r->missing then lists the topics. */
static bool fetch_look_up(struct serve *s, struct serve_request *r, struct fetch *f, bool granted) {
    bool complete = true, is_void = false;
    f->voids = grants_voids(s->shared->grants);
    uint32_t changes = grants_changes(s->shared->grants), result_at = 0;
    struct fetch_part *last = NULL;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        if (p->read->topic != NULL && p->read->changes == changes) continue;
        struct topic *topic = find_topic(s, r, f, p, changes);
        p->read->grant_error = 0;
        if (topic == NULL && granted) {
            int16_t verdict = grant_requests_result(r, key_of(f, p), &result_at);
            is_void |= verdict == 0;
            p->read->grant_error = verdict != 0 ? verdict : ERROR_NOT_LEADER_OR_FOLLOWER;
        } else if (topic == NULL) {
            complete = false;
            bool asked = last != NULL && fetch_same_topic(last, p);
            if (!asked && !grant_requests_add(&f->grant_requests, r, key_of(f, p), right_for(f))) {
                r->missing_count = 0;
                return false;
            }
            last = p;
        }
        fetch_set_topic(p, topic);
        p->read->changes = changes;
    }
    if (is_void && grant_requests_retry(&f->grant_requests, r))
        return fetch_look_up(s, r, f, false);
    return complete;
}

/* Determines for which partitions the consumer should read from another replica. */
static void prefer(struct serve *s, const struct serve_request *r, struct fetch *f) {
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next)
        if (p->read->log != NULL) p->read->preferred = fetch_preferred(s, r, f, p);
}

static void update_replicas(struct serve *s, const struct serve_request *r, struct fetch *f) {
    if (fetch_is_follower(f) && !f->recorded) fetch_follow(s, f);
    if (f->rack != NULL) prefer(s, r, f);
}

/* ---- waiting ---- */

/* Links a waiter to every partition. Returns true if an end offset has advanced since it was
 * read: evaluate again. */
static bool wait_all(struct serve *s, struct serve_request *r, struct fetch *f) {
    assert(!f->waiting);
    f->waiting = true;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        struct fetch_read *read = p->read;
        if (read->error != 0) continue;
        read->waiter = (struct log_waiter){.mailbox = s->mailbox, .token = r->token};
        read->waiter.as_follower = !fetch_is_follower(f) && log_is_readable(read->log);
        int64_t end = fetch_awaited_end(f, &read->range, &read->waiter.wait_for);
        read->waiter.offset = end > p->offset ? end : p->offset;
        if (log_wait(read->log, &read->waiter)) {
            read->waiter.mailbox = NULL;
            return true;
        }
    }
    return false;
}

/* Limits waiting fetches with very many partitions: beyond the limit they are answered
 * immediately, because a waiting fetch takes some 300 bytes per partition for as long as the
 * client chooses. */
static bool may_wait(struct serve *s, struct fetch *f) {
    uint32_t count = f->set->count;
    if (count <= COUNTED_PARTITIONS || f->counted != 0) return true;
    _Atomic int64_t *waiting = &s->shared->fetches_waiting;
    if (atomic_fetch_add(waiting, count) + count > WAITING_PARTITIONS_MAX) {
        atomic_fetch_sub(waiting, count);
        return false;
    }
    f->counted = count;
    return true;
}

/* Returns true if the waiters are linked, false if an end offset has advanced: evaluate again. */
static bool link_waiters(struct serve *s, struct serve_request *r, struct fetch *f) {
    fetch_release_ranges(f);
    bool moved = wait_all(s, r, f);
    if (moved) fetch_unwait(f);
    return !moved;
}

/* The reactor never waits for a worker: if the pool is full, it submits the job again after a
 * pause. */
static enum serve_status submit(struct serve *s, struct serve_request *r, struct fetch *f,
                                int (*work)(struct iojob *job, void *worker_scratch)) {
    f->serve = s;
    f->job = (struct iojob){
        .run = work, .mailbox = s->mailbox, .token = r->token, .patient = true};
    assert(!f->job_running);
    f->job_running = iopool_submit(s->shared->pool, &f->job);
    f->lacks_worker = !f->job_running;
    r->deadline_ms = f->lacks_worker ? r->now_ms + WORKER_PAUSE_MS : INT64_MAX;
    return SERVE_WAIT;
}

/* Reads cold data on the io pool. The reactor never waits for the disk. */
static enum serve_status read_cold(struct serve *s, struct serve_request *r, struct fetch *f) {
    fetch_release_copies(f); /* workers must not touch shared copies */
    if (!f->found.needs_disk) fetch_narrow(s, f, true);
    assert(!f->waiting);
    enum serve_status status = submit(s, r, f, fetch_cold_job);
    if (f->lacks_worker) fetch_release_ranges(f);
    return status;
}

/* ---- responding ---- */

/* Out of memory. */
static enum serve_status give_up(struct serve *s, struct serve_request *r) {
    fetch_free(s, r);
    return SERVE_CLOSE;
}

/* Frees the state of a request whose response is complete. */
static enum serve_status finish(struct serve *s, struct serve_request *r, struct fetch *f) {
    if (fetch_is_short(f)) gather_answered(&s->gather, r->connection, f->found.bytes, r->now_ms);
    fetch_free(s, r);
    return r->reply.failed ? SERVE_CLOSE : SERVE_ANSWER;
}

/* The client exceeds its quota: the response contains only the throttle time. An existing
 * session stays unchanged; a new session is discarded. */
static enum serve_status respond_throttled(struct serve *s, struct serve_request *r,
                                           struct fetch *f) {
    if (f->full && f->session != NULL) {
        sessions_close(s->shared->sessions, f->session_id, r->principal);
        f->session_id = 0;
    }
    fetch_encode_throttled(r, f, &r->reply);
    fetch_free(s, r);
    return r->reply.failed ? SERVE_CLOSE : SERVE_ANSWER;
}

/* Charges the client, builds the response from the partitions' ranges and frees the request. */
static enum serve_status fetch_respond(struct serve *s, struct serve_request *r, struct fetch *f) {
    assert_slow(!f->job_running);
    if (r->quota != NULL && !fetch_is_follower(f) &&
        serve_charge_fetch(r, fetch_response_bytes(f)) > 0)
        return respond_throttled(s, r, f);
    fetch_encode(s, r, f, &r->reply);
    return finish(s, r, f);
}

/* Rejects the request as a whole. */
static enum serve_status reject(struct serve *s, struct serve_request *r, struct fetch *f,
                                int16_t error) {
    fetch_set_clear(&f->own);
    f->set = &f->own;
    f->error = error;
    f->session_id = 0;
    return fetch_respond(s, r, f);
}

/* ---- the request ---- */

/* Runs the request's stages until it must wait or is done. `granted`: the control plane has
 * decided on the missing topics. `last_chance`: respond with the data available now. */
static enum serve_status fetch_advance(struct serve *s, struct serve_request *r, struct fetch *f,
                                       bool granted, bool last_chance) {
    for (;;) switch (f->stage) {
        case FETCH_LOOK_UP:
            if (!fetch_look_up(s, r, f, granted))
                return r->missing_count != 0 ? SERVE_MISS : give_up(s, r);
            f->stage = FETCH_READ;
            break;
        case FETCH_READ:
            if (f->waiting) fetch_unwait(f);
            if (fetch_is_follower(f) || f->rack != NULL) update_replicas(s, r, f);
            fetch_read_all(s, f, true);
            bool ready = f->found.ready || f->watermark_moved;
            if (ready && !last_chance && fetch_is_short(f) && fetch_delay_response(s, r, f))
                return SERVE_WAIT;
            bool waits = !ready && f->wait_ms > 0 && !last_chance && may_wait(s, f);
            f->stage = waits ? FETCH_WAIT : FETCH_COLD;
            break;
        case FETCH_WAIT:
            f->stage = FETCH_READ;
            if (!link_waiters(s, r, f)) break;
            r->deadline_ms = r->received_ms + f->wait_ms;
            return SERVE_WAIT;
        case FETCH_COLD:
            if (!f->found.needs_disk) fetch_take_copies(s, f);
            if (fetch_is_cold(f)) return read_cold(s, r, f);
            f->stage = FETCH_RESPOND;
            break;
        case FETCH_RESPOND: return fetch_respond(s, r, f);
        }
}

/* After the job. If the range was found on disk but is too small, the fetch waits as it would
 * have without the job. */
static enum serve_status advance_after_job(struct serve *s, struct serve_request *r,
                                           struct fetch *f) {
    assert(f->stage == FETCH_COLD);
    bool waits = f->below_min_bytes && !f->watermark_moved && may_wait(s, f) &&
                 r->now_ms < r->received_ms + f->wait_ms;
    f->below_min_bytes = false;
    f->stage = waits ? FETCH_WAIT : FETCH_RESPOND;
    return fetch_advance(s, r, f, false, false);
}

/* ---- wide fetches: a worker processes their partitions */

static enum fetch_outcome wide_read(struct serve *s, struct serve_request *r, struct fetch *f) {
    struct wide *w = f->wide;
    bool first = f->reads == NULL;
    if (first && !fetch_take_reads(f)) return FETCH_FAILED;
    if (f->waiting) fetch_unwait(f);
    if (first || w->granted || grants_voids(s->shared->grants) != f->voids) {
        if (!w->granted) r->missing_count = 0;
        if (!fetch_look_up(s, r, f, w->granted))
            return r->missing_count != 0 ? FETCH_MISSES : FETCH_FAILED;
        w->granted = false;
    }
    update_replicas(s, r, f);
    for (;;) {
        fetch_read_all(s, f, false);
        if (f->found.ready || f->watermark_moved) break;
        if (f->wait_ms <= 0 || w->last_chance || !may_wait(s, f)) break;
        if (link_waiters(s, r, f)) return FETCH_WAITS;
    }
    if (fetch_is_cold(f)) fetch_narrow(s, f, false);
    fetch_warm(f);
    w->answer_bytes = fetch_response_bytes(f);
    return FETCH_READY;
}

/* Runs the next step of a wide fetch on a worker. */
static int wide_job(struct iojob *job, void *worker_scratch) {
    struct fetch *f = (struct fetch *)job;
    struct wide *w = f->wide;
    (void)worker_scratch;
    if (w->outcome == FETCH_RELEASED) {
        fetch_release_reads(f);
    } else if (w->outcome == FETCH_READY) {
        fetch_encode(f->serve, w->request, f, &w->reply);
        fetch_release_reads(f);
        w->outcome = FETCH_BUILT;
    } else {
        w->outcome = wide_read(f->serve, w->request, f);
    }
    return 0;
}

static enum serve_status wide_submit(struct serve *s, struct serve_request *r, struct fetch *f) {
    f->wide->again = false;
    f->wide->last_chance = f->wide->timed_out;
    f->wide->outcome = FETCH_FAILED;
    return submit(s, r, f, wide_job);
}

static enum serve_status start_wide(struct serve *s, struct serve_request *r, struct fetch *f) {
    f->wide = calloc(1, sizeof *f->wide);
    if (f->wide == NULL) return give_up(s, r);
    f->wide->request = r;
    reply_init(&f->wide->reply);
    f->candidates = &f->wide->candidates;
    return wide_submit(s, r, f);
}

/* Also for an abandoned fetch: a follower that caught up is reported only once. */
static void take_isr_candidates(struct serve *s, struct wide *w) {
    struct isr_candidates *to = &s->candidates;
    for (uint32_t i = 0; i < w->candidates.count && to->count < ISR_CANDIDATES_MAX; i++)
        to->at[to->count++] = w->candidates.at[i];
    w->candidates.count = 0;
}

/* Continues on the reactor with the worker's result. */
static enum serve_status wide_advance(struct serve *s, struct serve_request *r, struct fetch *f) {
    struct wide *w = f->wide;
    take_isr_candidates(s, w);
    switch (w->outcome) {
    case FETCH_MISSES: return SERVE_MISS;
    case FETCH_WAITS:
        if (w->again) return wide_submit(s, r, f);
        r->deadline_ms = r->received_ms + f->wait_ms;
        return SERVE_WAIT;
    case FETCH_READY:
        if (r->quota != NULL && !fetch_is_follower(f) &&
            serve_charge_fetch(r, w->answer_bytes) > 0)
            return respond_throttled(s, r, f);
        /* Allocate here: on a worker, its heap would keep megabytes. */
        reply_prepare(&w->reply, w->answer_bytes - (size_t)f->found.bytes + REPLY_COPIED_BYTES_MAX);
        return submit(s, r, f, wide_job);
    case FETCH_BUILT:
        r->reply = w->reply;
        reply_init(&w->reply);
        return finish(s, r, f);
    case FETCH_FAILED:
    case FETCH_RELEASED: break;
    }
    return give_up(s, r);
}

static enum serve_status resume_wide(struct serve *s, struct serve_request *r, struct fetch *f,
                                     enum serve_reason reason) {
    struct wide *w = f->wide;
    if (reason == SERVE_TIMEOUT && !f->lacks_worker) w->timed_out = true;
    if (f->job_running) {
        w->again = true;
        return SERVE_WAIT;
    }
    if (w->outcome == FETCH_READY) return submit(s, r, f, wide_job);
    w->granted = reason == SERVE_GRANTED;
    return wide_submit(s, r, f);
}

/* ---- calls from serve.c */

enum serve_status fetch_start(struct serve *s, struct serve_request *r) {
    assert_slow(r->api_key == API_FETCH);
    struct fetch *f = fetch_parse(s, r);
    if (f == NULL) return SERVE_CLOSE;
    int16_t error = open_session(s, r, f);
    r->body_needed = false; /* everything needed was copied */
    if (r->quota != NULL && !fetch_is_follower(f)) {
        /* A larger response could only be rejected by the quota. */
        int32_t max = quota_client_fetch_max(r->quota, s->shared->limits.fetch_bytes_max);
        if (f->bytes_max > max) f->bytes_max = max;
        if (f->bytes_min > f->bytes_max) f->bytes_min = f->bytes_max;
    }
    if (error != 0) return reject(s, r, f, error);
    if (f->set->count > s->shared->limits.wide_partitions) return start_wide(s, r, f);
    return fetch_take_reads(f) ? fetch_advance(s, r, f, false, false) : give_up(s, r);
}

enum serve_status fetch_resume(struct serve *s, struct serve_request *r, enum serve_reason reason) {
    struct fetch *f = r->state;
    if (reason == SERVE_IO_DONE) {
        assert(f->job_running);
        f->job_running = false;
        return f->wide != NULL ? wide_advance(s, r, f) : advance_after_job(s, r, f);
    }
    if (f->wide != NULL) return resume_wide(s, r, f, reason);
    if (f->job_running) return SERVE_WAIT;
    bool granted = reason == SERVE_GRANTED;
    f->stage = FETCH_READ;
    if (granted || grants_voids(s->shared->grants) != f->voids) {
        /* Records that arrived while the fetch waited may only be returned if the client still
         * has read permission. */
        if (!granted) {
            if (f->waiting) fetch_unwait(f);
            r->missing_count = 0;
        }
        f->stage = FETCH_LOOK_UP;
    }
    bool is_over = !f->lacks_worker || r->now_ms >= r->received_ms + f->wait_ms;
    f->lacks_worker = false;
    return fetch_advance(s, r, f, granted, reason == SERVE_TIMEOUT && is_over);
}

bool fetch_abandon(struct serve *s, struct serve_request *r) {
    struct fetch *f = r->state;
    if (f->job_running) {
        f->job_running = false;
        return false;
    }
    if (f->wide != NULL) take_isr_candidates(s, f->wide);
    if (f->wide != NULL && f->reads != NULL && f->wide->outcome != FETCH_MISSES) {
        f->wide->outcome = FETCH_RELEASED;
        (void)submit(s, r, f, wide_job);
        if (f->job_running) {
            f->job_running = false;
            return false;
        }
    }
    fetch_free(s, r);
    return true;
}
