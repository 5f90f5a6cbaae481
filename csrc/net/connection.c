/* The life of a connection: open, process events, expire, close.
 *
 * Edge-triggered and registered once: events are stored in `readable` and WAIT_OUTPUT, so pausing
 * and continuing need no system call. */
#include "net/reactor_internal.h"

#include <string.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "format/assertion.h"

void connection_run_list(struct reactor *r, struct connection_list *list) {
    struct connection_list now = *list;
    *list = (struct connection_list){0};
    for (struct connection *c = now.first; c != NULL; c = c->list_next) c->list = &now;
    while (now.first != NULL) {
        struct connection *c = now.first;
        c->frame_ms = r->now_ms; /* the broker, not the client, caused the wait */
        connection_delist(c);
        connection_run(r, c);
    }
}

void connection_run_ready(struct reactor *r) {
    if (r->ready.first == NULL) return;
    int64_t until_ns = reactors_now_ns() + READY_TURN_NS;
    struct connection_list now = r->ready;
    r->ready = (struct connection_list){0};
    for (struct connection *c = now.first; c != NULL; c = c->list_next) c->list = &now;
    while (now.first != NULL) {
        struct connection *c = now.first;
        connection_delist(c);
        connection_run(r, c);
        if (reactors_now_ns() >= until_ns) break;
    }
    if (now.first == NULL) return;
    /* Put the others back at the head of the list. */
    for (struct connection *c = now.first; c != NULL; c = c->list_next) c->list = &r->ready;
    now.last->list_next = r->ready.first;
    if (r->ready.first != NULL)
        r->ready.first->list_prev = now.last;
    else
        r->ready.last = now.last;
    r->ready.first = now.first;
}

static void left(struct reactor *r, const uint8_t ip[16], struct listener_limit *limit)
    REQUIRES(r->role) {
    peers_leave(r->all->peers, ip);
    unsigned before = atomic_fetch_sub(&r->all->connections, 1);
    unsigned of_listener = atomic_fetch_sub(&limit->connections, 1);
    unsigned load = atomic_fetch_sub(&r->load, 1);
    assert(load > 0 && before > 0 && of_listener > 0);
}

static void read_local_address(struct connection *c) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    if (getsockname(c->transport.fd, (struct sockaddr *)&a, &len) == 0)
        listener_address(&a, &c->local);
}

static bool open_transport(struct reactor *r, struct connection *c,
                           const struct listener_accepted *a) {
    c->transport =
        (struct transport){.calls = &transport_plain, .fd = a->fd, .workspace = r->workspace};
    return a->maker == NULL || a->refused_ms > 0 || a->maker->open(a->maker, &c->transport);
}

static void end_transport(struct connection *c) {
    if (c->transport.session != NULL) c->transport.calls->end(&c->transport);
    assert(c->transport.session == NULL);
}

/* Returns the idle limit in ms; < 0: none. */
static int64_t idle_max(const struct reactor *r, const struct connection *c) REQUIRES(r->role) {
    int64_t idle_ms_max = r->all->config.idle_ms_max;
    if (!connection_is_unauthenticated(c)) return idle_ms_max;
    return idle_ms_max < 0 || idle_ms_max > AUTH_IDLE_MS_MAX ? AUTH_IDLE_MS_MAX : idle_ms_max;
}

/* Sets the first deadline. */
static void set_first_timer(struct reactor *r, struct connection *c) REQUIRES(r->role) {
    int64_t wait_ms = c->transport.handshaking ? HANDSHAKE_MS_MAX : idle_max(r, c);
    if (wait_ms >= 0) timers_set(&r->timers, &c->timer, r->now_ms + wait_ms);
}

void connection_open(struct reactor *r, const struct listener_accepted *a) {
    bool grew;
    bool refused = !r->accepting || atomic_load(&a->limit->closed);
    struct connection *c = refused ? NULL : slab_take(&r->connections, &grew);
    if (c != NULL && grew && !timers_reserve(&r->timers, SLAB_CHUNK_ITEMS)) {
        slab_undo(&r->connections, c);
        c = NULL;
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    if (c != NULL) {
        event.data.u64 = reactor_name(r, &c->item);
        if (!open_transport(r, c, a) || epoll_ctl(r->epoll, EPOLL_CTL_ADD, a->fd, &event) != 0) {
            end_transport(c);
            slab_give(&r->connections, c);
            c = NULL;
        }
    }
    if (a->maker != NULL) a->maker->release(a->maker);
    if (c == NULL) {
        close(a->fd);
        left(r, a->peer.ip, a->limit);
        return;
    }
    c->timer.kind = TIMER_CONNECTION;
    c->listener = a->listener;
    c->limit = a->limit;
    c->peer = a->peer;
    c->active_ms = r->now_ms;
    c->mark_bytes = 1;
    read_local_address(c);
    STAT_ADD(r, connections, 1);
    STAT_ADD(r, connections_accepted, 1);
    if (a->refused_ms > 0) {
        STAT_ADD(r, connections_refused, 1);
        c->state = CONNECTION_REFUSED;
        c->waits = WAIT_MUTE;
        c->muted_until_ms = r->now_ms + a->refused_ms;
        timers_set(&r->timers, &c->timer, c->muted_until_ms);
        return;
    }
    if (!auth_gate_open(r, c, a->flags)) {
        connection_close(r, c);
        return;
    }
    set_first_timer(r, c);
}

void connection_close(struct reactor *r, struct connection *c) {
    requests_abandon_all(r, c);
    connection_delist(c);
    timers_cancel(&r->timers, &c->timer);
    c->in_start = c->in_end = 0;
    receive_trim(r, c, false);
    end_transport(c);
    close(c->transport.fd);
    left(r, c->peer.ip, c->limit);
    if (c->quota != NULL) quota_client_release(c->quota);
    if (c->watched) {
        struct event *e = events_make(EVENT_CLOSED, 0);
        if (e != NULL) {
            e->connection = reactor_name(r, &c->item);
            events_post(r->all->events, e);
        }
    }
    assert(c->first == NULL && c->list == NULL && c->in == NULL);
    assert(r->over_limit_allowed != c && c->timer.heap_index == 0);
    slab_give(&r->connections, c);
    STAT_ADD(r, connections, -1);
    STAT_ADD(r, connections_closed, 1);
}

/* Returns the end of the mute. If the peer has closed its side and no response is pending, the
 * idle limit applies too: a mute can last days, and would hold a descriptor for that long. */
static int64_t mute_deadline(const struct reactor *r, const struct connection *c)
    REQUIRES(r->role) {
    int64_t idle_ms_max = idle_max(r, c);
    if (!c->hung_up || c->first != NULL || idle_ms_max < 0) return c->muted_until_ms;
    int64_t idle_ms = c->active_ms + idle_ms_max;
    return idle_ms < c->muted_until_ms ? idle_ms : c->muted_until_ms;
}

/* Deadline of a client that reads nothing of its response. Progress before the response was
 * ready belongs to an earlier one. */
static int64_t stall_deadline(const struct connection *c) {
    assert_slow(c->first != NULL && c->first->state == SLOT_ANSWERED);
    int64_t answered_ms = c->first->mark_ns / 1000000;
    return (answered_ms > c->progress_ms ? answered_ms : c->progress_ms) + STALL_MS_MAX;
}

static int64_t frame_deadline(const struct connection *c) {
    size_t pending = c->in_end - c->in_start;
    return c->frame_ms + FRAME_MS_MAX + (int64_t)(pending / FRAME_BYTES_PER_MS);
}

/* Returns the time at which the connection has made too little progress; INT64_MAX while it
 * waits for the broker. */
static int64_t deadline(const struct reactor *r, const struct connection *c) REQUIRES(r->role) {
    if (c->transport.handshaking) return c->active_ms + HANDSHAKE_MS_MAX;
    if (c->waits & WAIT_OUTPUT) return stall_deadline(c);
    if (c->waits & WAIT_MUTE) return mute_deadline(r, c);
    if (c->first != NULL || c->list != NULL || (c->waits & WAIT_CONTROL)) return INT64_MAX;
    if (c->in_end == c->in_start) {
        int64_t idle_ms_max = idle_max(r, c);
        return idle_ms_max < 0 ? INT64_MAX : c->active_ms + idle_ms_max;
    }
    int64_t at_ms = frame_deadline(c), shrink_ms = c->active_ms + SHRINK_MS;
    return shrink_ms < at_ms && receive_wants_shrink(c) ? shrink_ms : at_ms;
}

/* Moves a timer only to an earlier time. A timer that fires too early is checked and set again,
 * so most requests change no timer. */
static void arm(struct reactor *r, struct connection *c) REQUIRES(r->role) {
    int64_t at_ms = deadline(r, c);
    if (at_ms == INT64_MAX || (c->timer.heap_index != 0 && c->timer.at_ms <= at_ms)) return;
    timers_set(&r->timers, &c->timer, at_ms);
}

void connection_on_timer(struct reactor *r, struct connection *c) {
    if (deadline(r, c) > r->now_ms) {
        arm(r, c);
        return;
    }
    if (c->state == CONNECTION_REFUSED) {
        connection_close(r, c);
        return;
    }
    if (c->transport.handshaking) {
        handshake_expire(r, c);
        connection_close(r, c);
        return;
    }
    if (c->waits & WAIT_OUTPUT) {
        STAT_ADD(r, connections_stalled, 1);
        connection_close(r, c);
        return;
    }
    if ((c->waits & WAIT_MUTE) && c->muted_until_ms <= r->now_ms) {
        c->waits &= (uint8_t)~WAIT_MUTE;
        c->active_ms = c->frame_ms = r->now_ms; /* the broker, not the client, caused the wait */
        connection_run(r, c);
        return;
    }
    if (c->waits & WAIT_MUTE) {
        STAT_ADD(r, connections_idle, 1); /* its client has hung up */
    } else if (receive_unmark(c)) {
        timers_set(&r->timers, &c->timer, r->now_ms + RELIEF_MS);
        return;
    } else if (c->in_end == c->in_start) {
        STAT_ADD(r, connections_idle, 1);
    } else if (frame_deadline(c) <= r->now_ms) {
        STAT_ADD(r, frames_late, 1);
    } else {
        receive_trim(r, c, true);
        c->active_ms = r->now_ms; /* do not retry immediately if it could not shrink */
        arm(r, c);
        return;
    }
    connection_close(r, c);
}

/* Removes the requests whose responses have been sent. */
static inline void pop_sent(struct reactor *r, struct connection *c) REQUIRES(r->role) {
    if (c->first != NULL && slot_is_sent(c->first)) requests_pop(r, c);
}

/* Sends due responses. The time counts toward the client's request quota, if it has one. */
static enum output_result send_responses(struct reactor *r, struct connection *c)
    REQUIRES(r->role) {
    bool timed = c->quota != NULL && quota_client_timed(c->quota);
    int64_t began_ns = timed ? quotas_monotonic_ns() : 0;
    enum output_result sent = output_run(r, c);
    pop_sent(r, c);
    if (timed)
        quota_client_count(c->quota, QUOTA_REQUEST,
                           quotas_percent(quotas_monotonic_ns() - began_ns), r->now_ms);
    return sent;
}

/* Reads once. Returns false when this turn is over. */
static bool read_more(struct reactor *r, struct connection *c, size_t *turn, bool *failed)
    REQUIRES(r->role) {
    if (!c->readable || !requests_may_read(c) || r->draining) return false;
    if (*turn >= RECEIVE_TURN_BYTES) {
        connection_enlist(c, &r->ready);
        return false;
    }
    size_t bytes = 0;
    switch (receive_some(r, c, &bytes)) {
    case RECEIVE_SOME: *turn += bytes; return true;
    case RECEIVE_NOTHING: return false;
    case RECEIVE_ENDED: connection_set_closing(c); return true;
    case RECEIVE_NO_ROOM:
        receive_wait(r, c);
        return false;
    case RECEIVE_FAILED: break;
    }
    *failed = true;
    return false;
}

/* Reports a failure of a peer without a request so far: it may not trust the broker's
 * certificate. */
static void report_failure(struct reactor *r, struct connection *c) REQUIRES(r->role) {
    const struct transport *t = &c->transport;
    const char *why = t->session == NULL ? NULL : t->calls->failure(t);
    if (why != NULL) handshake_report(r, c, why);
}

void connection_run(struct reactor *r, struct connection *c) {
    size_t turn = 0;
    int rounds = 0;
    connection_delist(c);
    if (c->transport.handshaking) {
        enum handshake_result result = handshake_run(r, c);
        if (result == HANDSHAKE_FAILED) connection_close(r, c);
        if (result != HANDSHAKE_DONE) return;
    }
    for (;;) {
        int started = requests_start(r, c);
        uint8_t before = c->slot_count;
        enum output_result sent = send_responses(r, c);
        bool failed = sent == OUTPUT_FAILED || c->state == CONNECTION_FAILED;
        bool ended = (c->state >= CONNECTION_CLOSING || r->draining) && c->first == NULL;
        if (!failed && !ended) {
            if (sent == OUTPUT_TURN) connection_enlist(c, &r->ready);
            if (sent != OUTPUT_DONE) break;
            if (started > 0 || c->slot_count < before) {
                if (++rounds < ROUNDS_TURN) continue;
                connection_enlist(c, &r->ready); /* let other connections run */
                break;
            }
            if (read_more(r, c, &turn, &failed)) continue;
        }
        if (failed || ended) {
            if (failed && c->receive_budget == 0) report_failure(r, c);
            connection_close(r, c);
            return;
        }
        break;
    }
    receive_trim(r, c, false);
    if (!c->readable) receive_mark(r, c);
    arm(r, c);
}

void connection_on_events(struct reactor *r, struct connection *c, uint32_t events) {
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) c->readable = true;
    bool goes_on = (c->waits & WAIT_OUTPUT) && (events & EPOLLOUT);
    if (events & EPOLLOUT) c->waits &= (uint8_t)~WAIT_OUTPUT;
    /* TLS may need to write before it can read, and vice versa. */
    if (c->transport.session != NULL) {
        c->readable = true;
        c->waits &= (uint8_t)~WAIT_OUTPUT;
    }
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) c->hung_up = true;
    bool gone = (events & (EPOLLHUP | EPOLLERR)) != 0;
    /* After a half-close, earlier requests still count (acks=0), but the response to a waiting
     * Fetch would be useless. */
    if ((c->waits & WAIT_MUTE) && gone) {
        connection_close(r, c);
        return;
    }
    if (c->first != NULL && (gone || (c->hung_up && c->first->state == SLOT_WAITING &&
                                      c->first->r.api_key == API_FETCH))) {
        connection_close(r, c);
        return;
    }
    if (goes_on)
        connection_enlist(c, &r->ready); /* a long response: after the requests of others */
    else
        connection_run(r, c);
}

void connection_drain(struct reactor *r, struct connection *c) {
    if (c->first != NULL && c->first->state == SLOT_WAITING && c->first->r.api_key == API_FETCH)
        requests_resume(r, c->first, SERVE_TIMEOUT);
    connection_enlist(c, &r->ready);
}
