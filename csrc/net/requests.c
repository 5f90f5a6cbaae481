/* Turns frames into requests, and processes their results.
 *
 * A request goes frame -> slot -> serve or control plane -> ANSWERED -> sent -> freed. Keeps the
 * response order and prevents overtaking (reactor.h): slots are in the order of their frames,
 * and only an appended (or answered) Produce lets another Produce start after it. */
#include "net/reactor_internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"

static bool is_exclusive(const struct slot *s) {
    if (s->r.api_key != API_PRODUCE) return true;
    bool waits = s->state == SLOT_WAITING || s->state == SLOT_QUEUED;
    return s->state != SLOT_ANSWERED && !(waits && !s->r.exclusive);
}

static bool may_start(const struct connection *c) {
    if (c->state != CONNECTION_OPEN || c->waits != 0) return false;
    return c->last == NULL ||
           (c->slot_count < REQUESTS_PER_CONNECTION_MAX && !is_exclusive(c->last));
}

bool requests_may_read(const struct connection *c) {
    /* A complete frame that may not start yet waits for a response to be sent, not for more
     * bytes. */
    return may_start(c) && (c->frame_bytes == 0 || c->in_end - c->in_start < c->frame_bytes);
}

static void drop_body(struct reactor *r, struct slot *s) REQUIRES(r->role) {
    if (s->held == NULL) return;
    receive_release(r, s->held);
    s->held = NULL;
}

static void uncount_copy(struct reactor *r, struct slot *s) REQUIRES(r->role) {
    if (s->copied_bytes == 0) return;
    receive_uncount(r, s->copied_bytes);
    s->copied_bytes = 0;
}

static void free_slot(struct reactor *r, struct slot *s) REQUIRES(r->role) {
    assert(s->r.state == NULL); /* serve has released its waiters and topics */
    timers_cancel(&r->timers, &s->timer);
    reply_clear(&s->r.reply);
    drop_body(r, s);
    uncount_copy(r, s);
    if (s->r.quota != NULL) quota_client_release(s->r.quota);
    slab_give(&r->slots, s);
    STAT_ADD(r, requests_in_flight, -1);
}

static void unlink_slot(struct connection *c, struct slot *s) {
    struct slot *before = NULL;
    for (struct slot *at = c->first; at != s; at = at->next) before = at;
    if (before == NULL)
        c->first = s->next;
    else
        before->next = s->next;
    if (c->last == s) c->last = before;
    assert_slow(c->slot_count > 0);
    c->slot_count--;
    assert_slow((c->slot_count == 0) == (c->first == NULL));
}

void requests_pop(struct reactor *r, struct connection *c) {
    int64_t now_ns = reactors_now_ns();
    struct slot *s = c->first;
    assert_slow(slot_is_sent(s));
    do {
        timing_end(r, c, s, now_ns);
        if (s->close_after) connection_set_closing(c);
        unlink_slot(c, s);
        free_slot(r, s);
        c->frame_ms = r->now_ms;
        s = c->first;
    } while (s != NULL && slot_is_sent(s));
}

static struct slot *new_slot(struct reactor *r, struct connection *c,
                             const struct frames_header *h) REQUIRES(r->role) {
    bool grew;
    assert_slow(c->slot_count < REQUESTS_PER_CONNECTION_MAX);
    struct slot *s = slab_take(&r->slots, &grew);
    if (s == NULL) return NULL;
    if (grew && !timers_reserve(&r->timers, SLAB_CHUNK_ITEMS)) {
        slab_undo(&r->slots, s);
        return NULL;
    }
    s->timer.kind = TIMER_SLOT;
    s->connection = c;
    s->r.body = h->body;
    s->r.body_len = h->body_len;
    s->r.token = reactor_name(r, &s->item);
    s->r.received_ms = s->r.now_ms = r->now_ms;
    s->r.connection = c->item.index;
    s->r.correlation_id = h->correlation_id;
    s->r.principal = c->principal;
    s->r.listener = c->listener;
    s->r.api_key = h->api_key;
    s->r.api_version = h->api_version;
    s->r.client_id = h->client_id;
    s->r.client_id_len = h->client_id_len;
    reply_init(&s->r.reply);
    if (c->quota != NULL && quota_client_limited(c->quota)) {
        quota_client_retain(c->quota);
        s->r.quota = c->quota;
        s->r.frame_bytes = c->frame_bytes - FRAMES_SIZE_BYTES;
    }
    if (c->last == NULL)
        c->first = s;
    else
        c->last->next = s;
    c->last = s;
    c->slot_count++;
    STAT_ADD(r, requests_in_flight, 1);
    return s;
}

static struct event *event_for(struct reactor *r, const struct slot *s, uint32_t kind,
                               size_t data_len) REQUIRES(r->role) {
    struct event *e = events_make(kind, data_len);
    if (e == NULL) return NULL;
    const struct connection *c = s->connection;
    e->token = s->r.token;
    e->connection = reactor_name(r, &c->item);
    e->principal = s->r.principal;
    e->listener = c->listener;
    e->correlation_id = s->r.correlation_id;
    e->client_id_len = s->r.client_id == NULL ? -1 : s->r.client_id_len;
    e->api_key = s->r.api_key;
    e->api_version = s->r.api_version;
    e->local = c->local;
    e->peer = c->peer;
    e->began_ns = s->began_ns;
    return e;
}

static bool post_request(struct reactor *r, struct slot *s) REQUIRES(r->role) {
    size_t client_id_len = s->r.client_id == NULL ? 0 : (size_t)s->r.client_id_len;
    struct event *e = event_for(r, s, EVENT_REQUEST, client_id_len + s->r.body_len);
    if (e == NULL) return false;
    if (client_id_len != 0) memcpy(e->data, s->r.client_id, client_id_len);
    if (s->r.body_len != 0) memcpy(e->data + client_id_len, s->r.body, s->r.body_len);
    e->body_at = client_id_len;
    e->body_len = s->r.body_len;
    s->state = SLOT_CONTROL;
    if (s->connection->needs_auth)
        auth_gate_request_posted(&r->all->config.rules, s->connection, s->r.api_key,
                                 s->r.api_version);
    s->copied_bytes = client_id_len + s->r.body_len;
    input_count(&r->input, s->copied_bytes);
    STAT_ADD(r, requests_control, 1);
    events_post(r->all->events, e);
    return true;
}

static bool post_miss(struct reactor *r, struct slot *s) REQUIRES(r->role) {
    uint32_t count = s->r.missing_count;
    assert(count <= SERVE_MISSING_MAX);
    size_t at = count * sizeof(struct event_missing), data_len = at;
    for (uint32_t i = 0; i < count; i++)
        if (s->r.missing[i].name != NULL) data_len += (size_t)s->r.missing[i].name_len;
    const struct serve_transaction *t = &s->r.transaction;
    size_t extra = t->id == NULL ? 0 : sizeof(struct event_verify) + (size_t)t->id_len;
    struct event *e =
        event_for(r, s, t->id == NULL ? EVENT_MISS : EVENT_VERIFY, data_len + extra);
    if (e == NULL) return false;
    struct event_missing *out = (struct event_missing *)(void *)e->data;
    for (uint32_t i = 0; i < count; i++) {
        const struct serve_missing *m = &s->r.missing[i];
        out[i] = (struct event_missing){
            .name_at = (uint32_t)at, .name_len = -1, .partition = m->partition};
        memcpy(out[i].id, m->id, sizeof m->id);
        if (m->name == NULL) continue;
        out[i].name_len = m->name_len;
        memcpy(e->data + at, m->name, (size_t)m->name_len);
        at += (size_t)m->name_len;
    }
    assert(at == data_len);
    if (t->id != NULL) {
        struct event_verify asked = {t->producer_id, t->id_len, t->epoch};
        memcpy(e->data + at, &asked, sizeof asked);
        memcpy(e->data + at + sizeof asked, t->id, (size_t)t->id_len);
        e->body_at = at;
    }
    e->missing_count = count;
    e->right = s->r.missing_right;
    s->state = SLOT_MISSING;
    STAT_ADD(r, requests_missed, 1);
    events_post(r->all->events, e);
    return true;
}

/* Reports followers whose Fetch shows that they may join the ISR. If memory is short, reports
 * them again after the next metadata update that names them. */
static void post_isr_candidates(struct reactor *r) REQUIRES(r->role) {
    const struct isr_candidate *candidates;
    uint32_t count = serve_take_isr_candidates(r->serve, &candidates);
    size_t bytes = count * sizeof *candidates;
    struct event *e = count == 0 ? NULL : events_make(EVENT_ISR_CANDIDATE, bytes);
    if (e == NULL) return;
    memcpy(e->data, candidates, bytes);
    e->missing_count = count;
    events_post(r->all->events, e);
}

/* Keeps the body in place only while serve needs it. */
static void keep_body(struct reactor *r, struct slot *s, bool first) REQUIRES(r->role) {
    if (!s->r.body_needed) {
        drop_body(r, s);
    } else if (first) {
        assert(s->held == NULL);
        s->held = s->connection->in;
        assert_slow(s->held->references > 0);
        s->held->references++;
    }
}

/* Applies the result of serve, at `now_ns`. `first`: it is the result of serve_start, and the
 * body is still in the connection's buffer. */
static void apply_status(struct reactor *r, struct slot *s, enum serve_status status, bool first,
                         int64_t now_ns) REQUIRES(r->role) {
    struct connection *c = s->connection;
    assert(s->state != SLOT_ANSWERED && s->state != SLOT_ABANDONED); /* answered only once */
    timers_cancel(&r->timers, &s->timer);
    timing_pause(s, now_ns);
    r->paused_ns = now_ns;
    if (s->r.throttle_ms > 0) connection_mute(r, c, s->r.throttle_ms);
    switch (status) {
    case SERVE_ANSWER:
        assert_slow(s->r.state == NULL && !s->r.reply.failed);
        s->state = SLOT_ANSWERED;
        drop_body(r, s);
        return;
    case SERVE_WAIT:
        s->state = SLOT_WAITING;
        s->asked = s->r.api_key != API_PRODUCE && s->r.deadline_ms != INT64_MAX;
        keep_body(r, s, first);
        if (s->r.deadline_ms != INT64_MAX) {
            int64_t soonest = r->now_ms + 1;
            timers_set(&r->timers, &s->timer,
                       s->r.deadline_ms > soonest ? s->r.deadline_ms : soonest);
        }
        return;
    case SERVE_MISS:
        keep_body(r, s, first);
        s->state = SLOT_MISSING;
        if (post_miss(r, s)) return;
        if (!serve_abandon(r->serve, &s->r)) assert(!"a miss runs no job");
        connection_set_closing(c);
        break;
    case SERVE_CLOSE:
        STAT_ADD(r, frames_illegal, 1);
        connection_set_closing(c); /* after earlier responses; later ones could not be matched */
        if (s != c->last) c->state = CONNECTION_FAILED;
        break;
    case SERVE_SILENT: timing_end(r, c, s, now_ns); break;
    case SERVE_QUEUED: assert(!"a queued request waits for its append"); break;
    }
    unlink_slot(c, s);
    free_slot(r, s);
}

/* Queues the request or applies its status. */
static void apply_or_queue(struct reactor *r, struct slot *s, enum serve_status status, bool first)
    REQUIRES(r->role) {
    if (status != SERVE_QUEUED) {
        apply_status(r, s, status, first, reactors_now_ns());
        return;
    }
    assert(!s->r.body_needed && !s->r.exclusive);
    timers_cancel(&r->timers, &s->timer);
    drop_body(r, s);
    s->state = SLOT_QUEUED;
    r->paused_ns = 0;
}

void requests_append(struct reactor *r) {
    enum serve_status status;
    struct serve_request *request = serve_next_appended(r->serve, &status);
    int64_t now_ns = request == NULL ? 0 : reactors_now_ns();
    for (; request != NULL; request = serve_next_appended(r->serve, &status)) {
        struct slot *s = (struct slot *)(void *)((char *)request - offsetof(struct slot, r));
        struct connection *c = s->connection;
        assert(s->state == SLOT_QUEUED && c != NULL);
        s->r.now_ms = r->now_ms;
        apply_status(r, s, status, false, now_ns);
        connection_enlist(c, &r->appended);
    }
}

/* The time in serve counts toward the client's request quota, if it has one. */
static void begin_work(struct slot *s) {
    if (s->r.quota != NULL && quota_client_timed(s->r.quota)) s->r.began_ns = quotas_monotonic_ns();
}

static void end_work(struct slot *s) {
    if (s->r.quota == NULL || !quota_client_timed(s->r.quota)) return;
    s->r.busy_ns += quotas_monotonic_ns() - s->r.began_ns;
}

/* Returns the cached response of a heartbeat that changes nothing, or NULL to ask the control
 * plane. With a request quota, the control plane answers and counts the time. */
static uint8_t *repeated(const struct reactor *r, const struct connection *c,
                         const struct frames_header *h, size_t *len) REQUIRES(r->role) {
    if (r->all->config.repeats == NULL || c->controls || c->needs_auth) return NULL;
    if (c->quota != NULL && quota_client_timed(c->quota)) return NULL;
    struct repeat_key key = {.client_id = h->client_id,
                             .client_id_len = h->client_id_len,
                             .body = h->body,
                             .body_len = h->body_len,
                             .principal = c->principal,
                             .api_key = h->api_key,
                             .api_version = h->api_version,
                             .address = c->peer.ip};
    return repeats_answer(r->all->config.repeats, &key, h->correlation_id, r->now_ms, len);
}

static void start_repeated(struct reactor *r, struct connection *c, const struct frames_header *h,
                           uint8_t *frame, size_t len, int64_t now_ns) REQUIRES(r->role) {
    struct slot *s = new_slot(r, c, h);
    if (s == NULL) {
        free(frame);
        connection_set_closing(c);
        return;
    }
    timing_begin(c, s, now_ns);
    s->local = true;
    STAT_ADD(r, requests_repeated, 1);
    s->r.reply.bytes = frame;
    s->r.reply.len = s->r.reply.cap = (uint32_t)len;
    apply_status(r, s, SERVE_ANSWER, true, reactors_now_ns());
}

static void start_one(struct reactor *r, struct connection *c, const struct frames_header *h,
                      bool served, int64_t now_ns) REQUIRES(r->role) {
    struct slot *s = new_slot(r, c, h);
    if (s != NULL) s->r.more = r->more_events || c->in_end - c->in_start > c->frame_bytes;
    if (s == NULL) {
        connection_set_closing(c);
        return;
    }
    timing_begin(c, s, now_ns);
    s->local = served;
    if (served) {
        if (h->api_key == API_PRODUCE)
            STAT_ADD(r, requests_produce, 1);
        else
            STAT_ADD(r, requests_fetch, 1);
        begin_work(s);
        enum serve_status status = serve_start(r->serve, &s->r);
        end_work(s);
        if (s->r.api_key == API_FETCH) post_isr_candidates(r);
        apply_or_queue(r, s, status, true);
    } else if (!post_request(r, s)) {
        connection_set_closing(c);
        unlink_slot(c, s);
        free_slot(r, s);
    }
}

static bool queue_has_room(const struct reactor *r) REQUIRES(r->role) {
    struct events *events = r->all->events;
    const struct reactors_config *config = &r->all->config;
    /* A closed connection's request does not count in its reactor's pool any more. */
    return events_waiting(events) < config->queued_requests_max &&
           events_held_bytes(events) < r->input.held_bytes_max * (uint64_t)config->threads;
}

/* Returns false if the connection must wait until the control plane has taken events. */
static bool control_has_room(struct reactor *r, struct connection *c) REQUIRES(r->role) {
    if (queue_has_room(r)) return true;
    /* Set room_wanted before checking again, so that either this check or reactors_events_consumed
     * notices the other. */
    atomic_store(&r->room_wanted, true);
    if (queue_has_room(r)) return true;
    STAT_ADD(r, queue_waits, 1);
    connection_enlist(c, &r->room_waiting);
    return false;
}

/* Finds the quotas of the request's client. Returns false if the control plane must resolve them
 * first, or if the connection closes. */
static bool resolve_quota(struct reactor *r, struct connection *c, const struct frames_header *h)
    REQUIRES(r->role) {
    uint32_t generation = atomic_load_explicit(r->all->quota_generation, memory_order_acquire);
    if (generation == 0 && c->quota == NULL) return true;
    uint32_t len = h->client_id == NULL ? 0 : (uint32_t)h->client_id_len;
    if (c->quota != NULL) {
        if (quota_client_is(c->quota, generation, c->principal, h->client_id, len)) return true;
        quota_client_release(c->quota);
        c->quota = NULL;
    }
    if (generation == 0) return true;
    c->quota = quotas_client(r->all->config.quotas, c->principal, h->client_id, len);
    if (c->quota != NULL) return true;
    struct event *e = events_make(EVENT_QUOTA, len);
    if (e == NULL) {
        connection_set_closing(c);
        return false;
    }
    e->connection = reactor_name(r, &c->item);
    e->principal = c->principal;
    e->client_id_len = (int32_t)len;
    if (len != 0) memcpy(e->data, h->client_id, len);
    c->waits |= WAIT_CONTROL;
    events_post(r->all->events, e);
    return false;
}

/* Rejects a frame; `at` points to its first bytes. */
static void refuse_frame(struct reactor *r, struct connection *c, const uint8_t *at)
    REQUIRES(r->role) {
    STAT_ADD(r, frames_illegal, 1);
    connection_set_closing(c);
    bool hello = at[0] == 22 && at[1] == 3; /* a TLS ClientHello record */
    if (hello && c->receive_budget == 0 && c->transport.session == NULL)
        handshake_report(r, c, "TLS on a plain-text port");
}

static int32_t frame_bytes_max(const struct reactor *r, const struct connection *c) {
    const struct reactors_config *config = &r->all->config;
    int32_t bytes_max = c->controls ? config->rules.control_bytes_max
                                    : config->rules.request_bytes_max;
    if (connection_is_unauthenticated(c) && config->unauthenticated_bytes_max < bytes_max)
        bytes_max = config->unauthenticated_bytes_max;
    return bytes_max;
}

/* Returns the next frame of the connection's buffer. Rejects a frame that is not allowed. */
static enum frames_result next_frame(struct reactor *r, struct connection *c,
                                     struct frames_header *h) REQUIRES(r->role) {
    size_t pending = c->in_end - c->in_start;
    assert_slow(c->in_start <= c->in_end && (c->in == NULL || c->in_end <= c->in->room));
    if (pending < FRAMES_SIZE_BYTES) return FRAMES_MORE;
    const uint8_t *at = c->in->bytes + c->in_start;
    enum frames_result result = frames_next(&r->all->config.rules, frame_bytes_max(r, c),
                                            c->raw_tokens, at, pending, &c->frame_bytes, h);
    if (result == FRAMES_READY && c->needs_auth && !auth_gate_admits(r, c, h))
        result = FRAMES_ILLEGAL;
    if (result == FRAMES_ILLEGAL) refuse_frame(r, c, at);
    return result;
}

/* Removes the frame of a started request from the buffer. */
static void consume_frame(struct reactor *r, struct connection *c) REQUIRES(r->role) {
    assert_slow(c->in_end - c->in_start >= c->frame_bytes);
    c->in_start += c->frame_bytes;
    c->receive_budget = receive_budget_after(r, c->frame_bytes);
    c->frame_bytes = 0;
    /* Privilege applies to one frame only. */
    if (r->over_limit_allowed == c) r->over_limit_allowed = NULL;
    c->waiting_ms = 0;
    c->frame_ms = r->now_ms;
}

/* Starts the request, or returns false if it may not start yet: requests stay in order, the
 * control plane has no room for it, or the client's quotas are unknown. */
static bool start_request(struct reactor *r, struct connection *c, const struct frames_header *h)
    REQUIRES(r->role) {
    if (c->slot_count > 0 && h->api_key != API_PRODUCE) return false;
    bool served = !c->controls && serve_knows(h->api_key, h->api_version);
    bool cacheable = h->api_key == API_CONSUMER_GROUP_HEARTBEAT;
    if (!served && !cacheable && !control_has_room(r, c)) return false;
    if (!resolve_quota(r, c, h)) return false;
    size_t len = 0;
    uint8_t *frame = cacheable ? repeated(r, c, h, &len) : NULL;
    if (cacheable && frame == NULL && !control_has_room(r, c)) return false;
    int64_t now_ns = r->paused_ns != 0 ? r->paused_ns : reactors_now_ns();
    if (frame != NULL)
        start_repeated(r, c, h, frame, len, now_ns);
    else
        start_one(r, c, h, served, now_ns);
    return true;
}

int requests_start(struct reactor *r, struct connection *c) {
    struct frames_header h;
    int started = 0;
    r->paused_ns = 0;
    while (may_start(c) && !r->draining && next_frame(r, c, &h) == FRAMES_READY &&
           start_request(r, c, &h)) {
        consume_frame(r, c);
        started++;
    }
    return started;
}

void requests_resume(struct reactor *r, struct slot *s, enum serve_reason reason) {
    struct connection *c = s->connection;
    assert_slow(s->state == (reason == SERVE_GRANTED ? SLOT_MISSING : SLOT_WAITING));
    s->woken = false;
    s->r.now_ms = r->now_ms;
    timing_resume(s);
    begin_work(s);
    enum serve_status status = serve_resume(r->serve, &s->r, reason);
    end_work(s);
    if (s->r.api_key == API_FETCH) post_isr_candidates(r);
    apply_or_queue(r, s, status, false);
    connection_enlist(c, &r->ready);
}

void requests_on_io_done(struct reactor *r, struct slot *s) {
    if (s->state == SLOT_WAITING) {
        requests_resume(r, s, SERVE_IO_DONE);
    } else if (s->state == SLOT_ABANDONED && serve_abandon(r->serve, &s->r)) {
        assert(r->abandoned > 0 && s->connection == NULL);
        r->abandoned--;
        free_slot(r, s);
    }
}

void requests_on_reply(struct reactor *r, struct slot *s, const struct message *l) {
    struct connection *c = s->connection;
    if (s->state == SLOT_MISSING) {
        if (!serve_abandon(r->serve, &s->r)) assert(!"a miss runs no job");
        reply_clear(&s->r.reply);
        drop_body(r, s);
    } else if (s->state != SLOT_CONTROL) {
        free(l->data); /* already answered */
        return;
    }
    uncount_copy(r, s);
    timing_resume(s);
    timing_pause(s, s->mark_ns);
    s->state = SLOT_ANSWERED;
    assert(l->size <= UINT32_MAX && (l->size == 0 || l->size >= FRAMES_SIZE_BYTES));
    s->close_after = l->status == REPLY_CLOSES;
    if (l->status > 0) connection_mute(r, c, l->status);
    s->r.reply.bytes = l->data;
    s->r.reply.len = s->r.reply.cap = (uint32_t)l->size;
    connection_enlist(c, &r->ready);
}

void requests_on_grant_result(struct reactor *r, struct slot *s, const struct message *l) {
    const int16_t *errors = l->data;
    if (s->state == SLOT_MISSING && l->size == s->r.missing_count) {
        for (uint32_t i = 0; i < s->r.missing_count; i++) s->r.missing[i].error = errors[i];
        requests_resume(r, s, SERVE_GRANTED);
    }
    free(l->data);
}

void requests_abandon_all(struct reactor *r, struct connection *c) {
    while (c->first != NULL) {
        struct slot *s = c->first;
        unlink_slot(c, s);
        timers_cancel(&r->timers, &s->timer);
        bool served = s->state == SLOT_WAITING || s->state == SLOT_QUEUED ||
                      s->state == SLOT_MISSING;
        if (s->state != SLOT_ANSWERED) STAT_ADD(r, requests_abandoned, 1);
        if (served && !serve_abandon(r->serve, &s->r)) {
            s->state = SLOT_ABANDONED;
            s->connection = NULL;
            r->abandoned++;
        } else {
            free_slot(r, s);
        }
    }
    assert(c->slot_count == 0 && c->last == NULL);
}
