/* The connection to one leader: sends requests, processes responses and maintains the session.
 *
 * Bytes are processed as they arrive: complete batches are appended while the rest is in flight,
 * so the buffer holds little more than one batch, and stays in the CPU cache. After several fast
 * responses without data in a row, the next request waits. */
#include "replica/fetcher_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "tables/error_codes.h"

enum { SIZE_BYTES = 4, RESPONSE_BYTES_MIN = 4 };

/* ---- the connection ---- */

static void poll_for(struct fetcher *f, struct leader *l, bool write) REQUIRES(f->role) {
    if (l->polled == write) return;
    struct epoll_event event = {.events = EPOLLIN | (write ? (uint32_t)EPOLLOUT : 0),
                                .data.u64 = (uint32_t)l->id};
    l->polled = write;
    epoll_ctl(f->epoll, EPOLL_CTL_MOD, l->transport.fd, &event);
}

void leader_attach(struct fetcher *f, struct leader *l, struct connecting *c) {
    assert(l->id == c->leader_id);
    leader_disconnect(f, l, 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint32_t)l->id};
    l->connection = c;
    l->transport = c->transport;
    l->version = c->version;
    l->in = malloc(FETCHER_RECEIVE_BYTES);
    l->in_room = l->in == NULL ? 0 : FETCHER_RECEIVE_BYTES;
    l->want = SIZE_BYTES;
    if (l->in == NULL)
        leader_disconnect(f, l, ENOMEM);
    else if (epoll_ctl(f->epoll, EPOLL_CTL_ADD, l->transport.fd, &event) != 0)
        leader_disconnect(f, l, errno);
}

static void post_lost(struct fetcher *f, struct connecting *c, int error) {
    meter_add(&f->connections_lost, 1);
    c->lost.what = (struct fetchers_notice){.kind = FETCHERS_LOST, .code = error,
                                            .leader_id = c->leader_id, .leader_epoch = -1,
                                            .token = c->serial};
    c->lost.link.message = (struct message){.kind = NOTICE_LOST, .data = c};
    mailbox_post_link(f->all->notices, &c->lost.link);
}

void leader_disconnect(struct fetcher *f, struct leader *l, int error) {
    struct connecting *c = l->connection;
    if (c == NULL) return;
    transport_close(&l->transport);
    l->connection = NULL;
    timers_cancel(&f->timers, &l->timer);
    reply_clear(&l->out);
    free(l->in);
    l->in = NULL;
    l->in_room = l->in_start = l->in_end = 0;
    if (l->current != NULL) {
        l->current->grew = l->current->cut = false;
        l->current->failure = 0;
    }
    l->current = NULL;
    l->request_in_flight = l->response_begun = l->paused = l->polled = l->unread = false;
    l->session_id = l->session_epoch = 0;
    l->forgotten_count = 0;
    l->fast_responses = 0;
    for (uint32_t i = 0; i < l->followed_count; i++) l->followed[i]->in_session = false;
    if (error != 0)
        post_lost(f, c, error);
    else
        free(c);
}

void leader_free(struct fetcher *f, struct leader *l) {
    assert(leader_idle(l));
    timers_cancel(&f->timers, &l->timer);
    free(l->followed);
    free(l->forgotten);
    free(l);
}

/* ---- requests ---- */

static void send_rest(struct fetcher *f, struct leader *l) REQUIRES(f->role) {
    while (l->sent < l->out.len) {
        struct iovec piece = {l->out.bytes + l->sent, l->out.len - l->sent};
        ssize_t n = l->transport.calls->send(&l->transport, &piece, 1, false);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            leader_disconnect(f, l, errno);
            return;
        }
        if (n < 0) break;
        l->sent += (uint32_t)n;
    }
    poll_for(f, l, l->sent < l->out.len);
}

void leader_send_next(struct fetcher *f, struct leader *l) {
    if (l->connection == NULL || l->request_in_flight || l->paused) return;
    if (l->fetching_count == 0) return;
    if (l->flushing_count > 0) return;
    if (l->session_epoch == 0) fetch_partition_change_all(l);
    if (!flush_wait_begin(f, l) || l->fetching_count == 0) return;
    l->correlation_id = l->correlation_id == INT32_MAX ? 0 : l->correlation_id + 1;
    if (!fetch_request_write(f, l)) {
        leader_disconnect(f, l, ENOMEM);
        return;
    }
    l->request_in_flight = true;
    l->made_progress = false;
    l->sent = 0;
    l->requested_ms = f->now_ms;
    timers_set(&f->timers, &l->timer, f->now_ms + f->all->config.answer_ms_max);
    meter_add(&f->requests, 1);
    send_rest(f, l);
}

void leader_on_timer(struct fetcher *f, struct leader *l) {
    assert(l->request_in_flight != l->paused);
    if (l->request_in_flight)
        leader_disconnect(f, l, ETIMEDOUT);
    else
        l->paused = false;
}

/* ---- responses ---- */

static void pause_requests(struct fetcher *f, struct leader *l) REQUIRES(f->role) {
    int32_t most = f->all->config.backoff_ms_max;
    int32_t doubled = l->pause_ms == 0 ? BACKOFF_MS_FIRST : 2 * l->pause_ms;
    l->pause_ms = doubled < most ? doubled : most;
    l->paused = true;
    timers_set(&f->timers, &l->timer, f->now_ms + (l->pause_ms > 0 ? l->pause_ms : 1));
}

static void end_session_step(struct leader *l) {
    const struct fetch_response *a = &l->response;
    if (a->error_code != 0) {
        if (a->error_code == ERROR_FETCH_SESSION_ID_NOT_FOUND) l->session_id = 0;
        l->session_epoch = 0;
    } else if (l->full) {
        l->session_id = a->session_id;
        l->session_epoch = a->session_id != 0 ? 1 : 0;
    } else if (a->session_id != l->session_id) {
        l->session_id = l->session_epoch = 0;
    } else if (l->session_epoch != 0) { /* Stays 0 if leader_forget ran out of memory. */
        l->session_epoch = l->session_epoch == INT32_MAX ? 1 : l->session_epoch + 1;
    }
}

static void end_response(struct fetcher *f, struct leader *l) REQUIRES(f->role) {
    assert(l->request_in_flight);
    assert(l->current == NULL);
    l->request_in_flight = l->response_begun = false;
    timers_cancel(&f->timers, &l->timer);
    meter_add(&f->answers, 1);
    end_session_step(l);
    /* Shrink only while no batches arrive: otherwise each response would allocate and free the
     * pages. */
    if (!l->made_progress && l->in_room > FETCHER_RECEIVE_BYTES && l->in_start == l->in_end) {
        uint8_t *smaller = realloc(l->in, FETCHER_RECEIVE_BYTES);
        if (smaller != NULL) {
            l->in = smaller;
            l->in_room = FETCHER_RECEIVE_BYTES;
        }
        l->in_start = l->in_end = 0;
    }
    bool fast = f->now_ms - l->requested_ms < f->all->config.wait_ms_max / 2;
    if (l->made_progress || (!fast && l->response.error_code == 0)) {
        l->fast_responses = 0;
        l->pause_ms = 0;
    } else if (++l->fast_responses > FETCHER_FAST_RESPONSES_MAX) {
        pause_requests(f, l);
    }
}

/* Returns the partition whose part of the response begins, or NULL if it is not in the session
 * or no longer fetching. */
static struct fetch_partition *find_current(struct fetcher *f, struct leader *l) REQUIRES(f->role) {
    struct fetch_partition *p = fetcher_find(f, l->response.topic_id, l->response.partition.index);
    bool wants = p != NULL && p->leader == l && p->in_session &&
                 atomic_load(&p->state) == FETCH_PARTITION_FETCHING;
    assert(!wants || (!p->grew && !p->cut && p->failure == 0));
    return wants ? p : NULL;
}

static bool take_records(struct fetcher *f, struct leader *l, size_t have) REQUIRES(f->role) {
    uint64_t left = l->response.records_left, done;
    size_t len = have < left ? have : (size_t)left;
    done = l->current == NULL || l->response.partition.error_code != 0
               ? len
               : fetch_partition_append(f, l->current, l->in + l->in_start, len, left, &l->want);
    assert(done <= len);
    if (done == 0) {
        assert(l->want > len);
        return false;
    }
    fetch_response_consume(&l->response, done);
    l->in_start += done;
    return true;
}

/* Reads the size of a frame. Returns false if it needs more bytes or rejected the frame. */
static bool begin_response(struct fetcher *f, struct leader *l, size_t have) REQUIRES(f->role) {
    l->want = SIZE_BYTES;
    if (have == 0) return false;
    if (!l->request_in_flight || l->sent < l->out.len) {
        leader_disconnect(f, l, EPROTO);
        return false;
    }
    if (have < SIZE_BYTES) return false;
    int32_t size = get_i32(l->in + l->in_start);
    if (size < RESPONSE_BYTES_MIN) {
        leader_disconnect(f, l, EPROTO);
        return false;
    }
    l->in_start += SIZE_BYTES;
    l->response_begun = true;
    fetch_response_begin(&l->response, (uint32_t)size);
    return true;
}

/* Processes the received bytes. Returns false if it needs more bytes or the connection is
 * closed. */
static bool take_step(struct fetcher *f, struct leader *l) REQUIRES(f->role) {
    size_t have = l->in_end - l->in_start, used;
    if (!l->response_begun) return begin_response(f, l, have);
    int step = fetch_response_step(&l->response, l->in + l->in_start, have, &used);
    assert(used <= have);
    l->in_start += used;
    have -= used;
    switch (step) {
    case RESPONSE_MORE: l->want = have + 1; return false;
    case RESPONSE_OPENED:
        if (l->response.correlation_id == l->correlation_id) return true;
        leader_disconnect(f, l, EPROTO);
        return false;
    case RESPONSE_PARTITION: l->current = find_current(f, l); return true;
    case RESPONSE_RECORDS: return take_records(f, l, have);
    case RESPONSE_PARTITION_END:
        if (l->current != NULL) fetch_partition_on_response(f, l->current, &l->response.partition);
        l->current = NULL;
        return true;
    case RESPONSE_END: end_response(f, l); return true;
    default: leader_disconnect(f, l, EPROTO); return false;
    }
}

/* Makes room for the next bytes. A full buffer doubles: its size follows the bytes received, not
 * the length that a batch claims. */
static bool make_room(struct leader *l) {
    size_t have = l->in_end - l->in_start;
    if (have == l->in_room) {
        assert(l->in_start == 0 && l->want > have);
        uint8_t *grown = realloc(l->in, 2 * l->in_room);
        if (grown == NULL) return false;
        l->in = grown;
        l->in_room *= 2;
    } else if (l->in_start != 0 &&
               (have == 0 || l->in_start + l->want > l->in_room || l->in_end == l->in_room)) {
        memmove(l->in, l->in + l->in_start, have);
        l->in_start = 0;
        l->in_end = have;
    }
    return true;
}

static void receive(struct fetcher *f, struct leader *l) REQUIRES(f->role) {
    l->unread = false;
    for (size_t turn = 0; turn < FETCHER_TURN_BYTES;) {
        if (!make_room(l)) {
            leader_disconnect(f, l, ENOMEM);
            return;
        }
        size_t have = l->in_end - l->in_start, room = l->in_room - l->in_end;
        assert(room > 0);
        /* Read a long batch exactly to its end, so that the next one starts in an empty buffer. */
        if (l->want >= have + FETCHER_EXACT_BYTES && l->want - have < room) room = l->want - have;
        ssize_t n = l->transport.calls->recv(&l->transport, l->in + l->in_end, room);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (l->transport.left) continue;
            return;
        }
        if (n <= 0) {
            leader_disconnect(f, l, n == 0 ? ECONNRESET : errno);
            return;
        }
        l->in_end += (size_t)n;
        turn += (size_t)n;
        meter_add(&f->bytes_in, (uint64_t)n);
        while (take_step(f, l)) {}
        if (l->connection == NULL || ((size_t)n < room && !l->transport.left)) return;
    }
    l->unread = true; /* epoll does not report bytes that TLS has already read from the socket */
}

void leader_read_on(struct fetcher *f, struct leader *l) {
    assert(l->unread && l->connection != NULL);
    receive(f, l);
}

void leader_on_events(struct fetcher *f, struct leader *l, uint32_t events) {
    if (events & EPOLLOUT) send_rest(f, l);
    if (l->connection != NULL && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) receive(f, l);
}
