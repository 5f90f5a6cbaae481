/* The event loop of a fetcher thread: wait in epoll, process messages, sockets and timers, then
 * send the next request to each leader. Each round is bounded by a number of messages and by
 * FETCHER_TURN_BYTES per connection. The rest waits for the next round. */
#include "replica/fetcher_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>

enum { EPOLL_EVENTS = 64, MESSAGES_TURN = 256 };

#define FETCH_PARTITION_OF(t)                                                                      \
    ((struct fetch_partition *)(void *)((char *)(t)-offsetof(struct fetch_partition, timer)))
#define LEADER_OF(t) ((struct leader *)(void *)((char *)(t)-offsetof(struct leader, timer)))

/* ---- messages ---- */

static void attach(struct fetcher *f, struct connecting *c) REQUIRES(f->role) {
    struct leader *l = fetcher_leader(f, c->leader_id);
    if (l != NULL) {
        leader_attach(f, l, c);
        return;
    }
    transport_close(&c->transport);
    c->lost.what = (struct fetchers_notice){.kind = FETCHERS_LOST, .code = ENOMEM,
                                            .leader_id = c->leader_id, .leader_epoch = -1,
                                            .token = c->serial};
    c->lost.link.message = (struct message){.kind = NOTICE_LOST, .data = c};
    mailbox_post_link(f->all->notices, &c->lost.link);
}

static void detach(struct fetcher *f, struct connecting *c) REQUIRES(f->role) {
    struct leader *l = fetcher_find_leader(f, c->leader_id);
    if (l != NULL) leader_disconnect(f, l, 0);
    free(c);
}

static void on_message(struct fetcher *f, const struct message *m) REQUIRES(f->role) {
    struct fetch_partition *p = m->data;
    switch (m->kind) {
    case MESSAGE_WAKE: flush_wait_woken(f, m->token); return;
    case MESSAGE_ATTACH: attach(f, m->data); return;
    case MESSAGE_DETACH: detach(f, m->data); return;
    case MESSAGE_STOP: f->stopping = true; return;
    case MESSAGE_FOLLOW: fetch_partition_join(f, p); break;
    case MESSAGE_UNFOLLOW: fetch_partition_leave(f, p); break;
    case MESSAGE_RESUME: fetch_partition_resume(f, p); break;
    default: assert(!"a message that no fetcher knows");
    }
    fetch_partition_release(p);
}

static void take_messages(struct fetcher *f) REQUIRES(f->role) {
    struct message messages[MESSAGES_TURN];
    uint32_t count = mailbox_take(f->mailbox, messages, MESSAGES_TURN);
    for (uint32_t i = 0; i < count; i++) on_message(f, &messages[i]);
    if (mailbox_overflowed(f->mailbox)) flush_wait_poll(f);
}

/* ---- rounds ---- */

static int64_t read_clock_ms(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void read_clocks(struct fetcher *f) REQUIRES(f->role) {
    f->now_ms = read_clock_ms(CLOCK_MONOTONIC);
    f->real_now_ms = read_clock_ms(CLOCK_REALTIME);
}

static void expire_timers(struct fetcher *f) REQUIRES(f->role) {
    struct timer *t;
    while ((t = timers_take(&f->timers, f->now_ms)) != NULL) {
        if (t->kind == TIMER_LEADER)
            leader_on_timer(f, LEADER_OF(t));
        else
            fetch_partition_on_timer(f, FETCH_PARTITION_OF(t));
    }
}

/* Continues with leaders that reached FETCHER_TURN_BYTES in the last round. */
static void continue_reading(struct fetcher *f) REQUIRES(f->role) {
    if (!f->unread) return;
    for (struct leader *l = f->leaders; l != NULL; l = l->next)
        if (l->unread) leader_read_on(f, l);
}

/* Sends requests at the end of a round, so that partitions that changed in the same round share
 * a request. */
static void send_requests(struct fetcher *f) REQUIRES(f->role) {
    f->unread = false;
    for (struct leader **at = &f->leaders, *l; (l = *at) != NULL;) {
        if (leader_idle(l)) {
            *at = l->next;
            f->leader_count--;
            leader_free(f, l);
        } else {
            leader_send_next(f, l);
            f->unread = f->unread || l->unread;
            at = &l->next;
        }
    }
}

/* Sets the alarm no later than the first deadline. Postponing a deadline needs no system call:
 * an early alarm only causes a round without work. */
static void set_alarm(struct fetcher *f, int64_t at_ms) REQUIRES(f->role) {
    if (at_ms >= f->alarm_ms) return;
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(at_ms / 1000),
                                           .tv_nsec = (long)(at_ms % 1000) * 1000000}};
    int result = timerfd_settime(f->alarm, TFD_TIMER_ABSTIME, &when, NULL);
    assert(result == 0); /* cannot fail: time and clock are valid */
    (void)result;
    f->alarm_ms = at_ms;
}

/* Returns the timeout for epoll_wait: 0, or -1 to wait for an event (at most until the alarm). */
static int sleep_ms(struct fetcher *f) REQUIRES(f->role) {
    if (f->stopping || f->unread || !mailbox_arm(f->mailbox)) return 0;
    int64_t first_ms = timers_first_ms(&f->timers);
    if (first_ms <= f->now_ms) return 0;
    if (first_ms != INT64_MAX) set_alarm(f, first_ms);
    return -1;
}

static void on_event(struct fetcher *f, const struct epoll_event *event) REQUIRES(f->role) {
    if (event->data.u64 == FETCHER_EPOLL_MAILBOX) return; /* each round processes messages anyway */
    if (event->data.u64 == FETCHER_EPOLL_ALARM) {          /* and timers */
        f->alarm_ms = INT64_MAX;
        return;
    }
    struct leader *l = fetcher_find_leader(f, (int32_t)event->data.u64);
    if (l != NULL && l->connection != NULL) leader_on_events(f, l, event->events);
}

static void release_all(struct fetcher *f) REQUIRES(f->role) {
    flush_wait_end(f);
    for (struct leader *l = f->leaders; l != NULL; l = l->next) {
        leader_disconnect(f, l, 0);
        while (l->followed_count > 0) fetch_partition_leave(f, l->followed[l->followed_count - 1]);
    }
    send_requests(f);
    assert(f->leaders == NULL);
    assert(f->followed_count == 0);
    assert(f->timers.count == 0);
}

void *fetcher_main(void *argument) {
    struct fetcher *f = argument;
    lock_role_assert(&f->role);
    struct epoll_event events[EPOLL_EVENTS];
    pthread_setname_np(pthread_self(), "fetcher");
    while (!f->stopping) {
        read_clocks(f);
        int count = epoll_wait(f->epoll, events, EPOLL_EVENTS, sleep_ms(f));
        read_clocks(f);
        take_messages(f);
        continue_reading(f);
        for (int i = 0; i < count; i++) on_event(f, &events[i]);
        take_messages(f);
        expire_timers(f);
        send_requests(f);
    }
    release_all(f);
    lock_role_end(&f->role);
    return NULL;
}
