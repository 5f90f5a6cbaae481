/* The event loop of a reactor thread: wait in epoll, then process messages, sockets and timers. */
#include "net/reactor_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

enum {
    EPOLL_EVENTS = 128,
    MESSAGES_TURN = 256,
    SLEPT_NS = 20000 /* a longer epoll_wait means that the thread slept */
};
_Static_assert(REACTOR_MESSAGES_MAX / 2 >= MESSAGES_TURN,
               "wakes overflow what a turn leaves behind");

static struct slot *find_slot(struct reactor *r, uint64_t name) REQUIRES(r->role) {
    return slab_find(&r->slots, name_index(name), name_generation(name));
}

static struct connection *find_connection(struct reactor *r, uint64_t name) REQUIRES(r->role) {
    return slab_find(&r->connections, name_index(name), name_generation(name));
}

static void close_connections(struct reactor *r) REQUIRES(r->role) {
    for (uint32_t i = 0; i < slab_room(&r->connections); i++) {
        struct connection *c = slab_at(&r->connections, i);
        if (c != NULL) connection_close(r, c);
    }
}

static void drain(struct reactor *r) REQUIRES(r->role) {
    listener_close_all(r);
    r->draining = true;
    for (uint32_t i = 0; i < slab_room(&r->connections); i++) {
        struct connection *c = slab_at(&r->connections, i);
        if (c != NULL) connection_drain(r, c);
    }
}

static void stop(struct reactor *r, int64_t drain_ms) REQUIRES(r->role) {
    r->stopping = true;
    r->drain_until_ms = r->now_ms + drain_ms;
    drain(r);
}

static void unlisten(struct reactor *r, int listener) REQUIRES(r->role) {
    listener_close(r, listener);
    for (uint32_t i = 0; i < slab_room(&r->connections); i++) {
        struct connection *c = slab_at(&r->connections, i);
        if (c == NULL || c->listener != listener) continue;
        connection_set_closing(c);
        connection_drain(r, c);
    }
}

static void on_connection_message(struct reactor *r, const struct message *l) REQUIRES(r->role) {
    struct connection *c = find_connection(r, l->token);
    if (c == NULL) {
        struct event *e = l->kind == MESSAGE_WATCH ? events_make(EVENT_CLOSED, 0) : NULL;
        if (e == NULL) return;
        e->connection = l->token;
        events_post(r->all->events, e);
    } else if (l->kind == MESSAGE_WATCH) {
        c->watched = true;
    } else if (l->kind == MESSAGE_CLOSE) {
        connection_close(r, c);
    } else if (l->kind == MESSAGE_RETRY) {
        c->waits &= (uint8_t)~WAIT_CONTROL;
        c->frame_ms = r->now_ms; /* the broker, not the client, caused the wait */
        connection_enlist(c, &r->ready);
    } else {
        auth_gate_identify(r, c, (uint32_t)l->size, l->status);
    }
}

static void on_slot_message(struct reactor *r, const struct message *l) REQUIRES(r->role) {
    struct slot *s = find_slot(r, l->token);
    if (s == NULL) { /* its connection has closed */
        if (l->kind != MESSAGE_IO_DONE) free(l->data);
    } else if (l->kind == MESSAGE_IO_DONE) {
        requests_on_io_done(r, s);
    } else if (l->kind == MESSAGE_REPLY) {
        requests_on_reply(r, s, l);
    } else {
        requests_on_grant_result(r, s, l);
    }
}

static void on_message(struct reactor *r, const struct message *l) REQUIRES(r->role) {
    switch (l->kind) {
    case MESSAGE_IO_DONE:
    case MESSAGE_REPLY:
    case MESSAGE_GRANT_RESULT: on_slot_message(r, l); break;
    case MESSAGE_PRINCIPAL:
    case MESSAGE_WATCH:
    case MESSAGE_RETRY:
    case MESSAGE_CLOSE: on_connection_message(r, l); break;
    case MESSAGE_ROOM: connection_run_list(r, &r->room_waiting); break;
    case MESSAGE_LISTEN: listener_add(r, l->data); break;
    case MESSAGE_ADOPT:
        connection_open(r, l->data);
        free(l->data);
        break;
    case MESSAGE_STOP_ACCEPTING: listener_close_all(r); break;
    case MESSAGE_UNLISTEN: unlisten(r, (int)l->size); break;
    case MESSAGE_RETIRE: drain(r); break;
    case MESSAGE_RETURN:
        r->accepting = true;
        r->draining = false;
        break;
    case MESSAGE_STOP: stop(r, (int64_t)l->size); break;
    default: assert(!"a message that no reactor knows");
    }
}

/* Wake-ups were dropped: check every waiting request. */
static void wake_all(struct reactor *r) REQUIRES(r->role) {
    for (uint32_t i = 0; i < slab_room(&r->slots); i++) {
        struct slot *s = slab_at(&r->slots, i);
        if (s != NULL && s->state == SLOT_WAITING) requests_resume(r, s, SERVE_WOKEN);
    }
}

/* A request with many waiters may get many messages at once: check it once for all of them. */
static void take_messages(struct reactor *r) REQUIRES(r->role) {
    struct message messages[MESSAGES_TURN];
    uint64_t woken[MESSAGES_TURN];
    uint32_t woken_count = 0;
    uint32_t count = mailbox_take(r->mailbox, messages, MESSAGES_TURN);
    for (uint32_t i = 0; i < count; i++) {
        if (messages[i].kind != MESSAGE_WAKE) {
            on_message(r, &messages[i]);
            continue;
        }
        struct slot *s = find_slot(r, messages[i].token);
        if (s == NULL || s->state != SLOT_WAITING || s->woken) continue;
        s->woken = true;
        woken[woken_count++] = messages[i].token;
    }
    for (uint32_t i = 0; i < woken_count; i++) {
        struct slot *s = find_slot(r, woken[i]);
        if (s != NULL && s->woken && s->state == SLOT_WAITING) requests_resume(r, s, SERVE_WOKEN);
    }
    /* Wake-ups can be dropped only in a flood: the mailbox accepts far more of them than one
     * turn takes. */
    if (count == MESSAGES_TURN && mailbox_overflowed(r->mailbox)) wake_all(r);
}

static void on_tick(struct reactor *r) REQUIRES(r->role) {
    input_pool_trim(&r->input);
    connection_run_list(r, &r->input_waiting);
    r->slow_posted = r->unsafe_posted = 0;
    serve_tick(r->serve, r->now_ms);
    timers_set(&r->timers, &r->tick, r->now_ms + TICK_MS);
}

#define OWNER_OF(t, type) ((struct type *)(void *)((char *)(t)-offsetof(struct type, timer)))

static void expire_timers(struct reactor *r) REQUIRES(r->role) {
    struct timer *t;
    while ((t = timers_take(&r->timers, r->now_ms)) != NULL) {
        switch (t->kind) {
        case TIMER_CONNECTION: connection_on_timer(r, OWNER_OF(t, connection)); break;
        case TIMER_SLOT: requests_resume(r, OWNER_OF(t, slot), SERVE_TIMEOUT); break;
        case TIMER_LISTENER: listener_on_timer(r, OWNER_OF(t, listener_socket)); break;
        case TIMER_RELIEF: eviction_relieve(r); break;
        case TIMER_TICK: on_tick(r); break;
        default: assert(!"a timer of no kind");
        }
    }
}

static void on_event(struct reactor *r, const struct epoll_event *event) REQUIRES(r->role) {
    uint64_t name = event->data.u64;
    if (name == EPOLL_MAILBOX) return; /* each round processes messages anyway */
    if (name == EPOLL_ALARM) {         /* and timers */
        r->alarm_ms = INT64_MAX;
        return;
    }
    if (name & EPOLL_LISTENER) {
        struct listener_socket *l = listener_at(r, (uint32_t)name);
        if (l != NULL) accept_connections(r, l);
        return;
    }
    struct connection *c = find_connection(r, name);
    if (c != NULL) connection_on_events(r, c, event->events);
}

/* Sets the alarm no later than the first deadline. An early alarm costs one unnecessary round.
 * Moving a deadline therefore needs no system call, while a timeout in epoll_wait would set and
 * cancel a kernel timer in every call. */
static void set_alarm(struct reactor *r, int64_t at_ms) REQUIRES(r->role) {
    if (at_ms >= r->alarm_ms) return;
    int64_t over_ms = at_ms + 1; /* deadlines are rounded down: 1 ms more, never early */
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(over_ms / 1000),
                                           .tv_nsec = (long)(over_ms % 1000) * 1000000}};
    int result = timerfd_settime(r->alarm, TFD_TIMER_ABSTIME, &when, NULL);
    assert(result == 0); /* cannot fail: time and clock are valid */
    (void)result;
    r->alarm_ms = at_ms;
}

/* Returns the timeout for epoll_wait: 0, or -1 to wait for an event (at most until the alarm). */
static int sleep_ms(struct reactor *r, int64_t now_ms) REQUIRES(r->role) {
    if (r->ready.first != NULL || serve_is_queued(r->serve)) return 0;
    if (!mailbox_arm(r->mailbox)) return 0;
    int64_t first_ms = timers_first_ms(&r->timers);
    if (r->drain_until_ms < first_ms) first_ms = r->drain_until_ms;
    if (first_ms <= now_ms) return 0;
    set_alarm(r, first_ms);
    return -1;
}

/* Yields after running for a whole slice without sleeping: another reactor or the control plane
 * may need this processor. Returns the time afterwards. */
static int64_t give_way(struct reactor *r, int64_t done_ns, int64_t woke_ns) REQUIRES(r->role) {
    if (woke_ns - done_ns >= SLEPT_NS) r->ran_ns = 0;
    if (r->ran_ns < SLICES_SHORT_NS) return woke_ns;
    r->ran_ns = 0;
    time_slice_yield();
    return reactors_now_ns();
}

/* Appends queued Produce requests, and sends their responses. */
static void append_queued(struct reactor *r) REQUIRES(r->role) {
    requests_append(r);
    connection_run_list(r, &r->appended);
}

static bool is_over(struct reactor *r) REQUIRES(r->role) {
    if (!r->stopping) return false;
    if (r->now_ms >= r->drain_until_ms) close_connections(r);
    return r->connections.live == 0 && r->abandoned == 0;
}

void *reactor_main(void *argument) {
    struct reactor *r = argument;
    lock_role_assert(&r->role);
    struct epoll_event events[EPOLL_EVENTS];
    char name[16];
    snprintf(name, sizeof name, "reactor-%u", r->index);
    pthread_setname_np(pthread_self(), name);
    time_slice_request(&r->slice_ns, SLICES_SHORT_NS);
    int64_t woke_ns, done_ns = reactors_now_ns();
    r->now_ms = done_ns / 1000000;
    timers_set(&r->timers, &r->tick, r->now_ms + TICK_MS);
    while (!is_over(r)) {
        int wait_ms = sleep_ms(r, done_ns / 1000000);
        /* Return to a short slice, with which this thread runs first when it wakes: bulk
         * transfers have ended, or new requests have arrived. */
        if (wait_ms != 0) time_slice_request(&r->slice_ns, SLICES_SHORT_NS);
        int count = epoll_wait(r->epoll, events, EPOLL_EVENTS, wait_ms);
        if (count > 0) time_slice_request(&r->slice_ns, SLICES_SHORT_NS);
        woke_ns = give_way(r, done_ns, reactors_now_ns());
        r->now_ms = woke_ns / 1000000;
        r->handshakes_ns = 0;
        STAT_ADD(r, wakeups, 1);
        take_messages(r); /* also marks the mailbox awake: posts write no eventfd from here on */
        for (int i = 0; i < count; i++) {
            r->more_events = i + 1 < count;
            on_event(r, &events[i]);
        }
        take_messages(r);
        expire_timers(r);
        append_queued(r);
        connection_run_ready(r);
        append_queued(r); /* responses have been sent, so more requests could start */
        atomic_store_explicit(&r->stats.input_bytes, input_used(&r->input), memory_order_relaxed);
        done_ns = reactors_now_ns();
        meter_record(&r->rounds, METER_NS_FIRST, (uint64_t)(done_ns - woke_ns));
        r->ran_ns += done_ns - woke_ns;
    }
    listener_close_all(r);
    timers_cancel(&r->timers, &r->tick);
    timers_cancel(&r->timers, &r->relief);
    assert(r->slots.live == 0 && r->connections.live == 0 && r->timers.count == 0);
    assert(r->ready.first == NULL && r->input_waiting.first == NULL);
    lock_role_end(&r->role);
    return NULL;
}
