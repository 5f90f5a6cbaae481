/* Communication between threads, each part in isolation at its limits: mailboxes, events, io
 * pools, timers. */
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include "net/events.h"
#include "net/ip_connections.h"
#include "failing_memory.h"
#include "scene_names.h"
#include "os/io_pool.h"
#include "os/mailbox.h"
#include "os/timers.h"

/* ---- mailboxes */

static int eventfd_error;
int __real_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags) {
    errno = eventfd_error;
    return eventfd_error != 0 ? -1 : __real_eventfd(count, flags);
}

static bool post(struct mailbox *m, uint32_t kind, uint64_t token) {
    return mailbox_post(m, &(struct message){.kind = kind, .token = token});
}
static bool rung(struct mailbox *m) {
    uint64_t count;
    return read(mailbox_fd(m), &count, sizeof count) == sizeof count && count == 1;
}

SCENE(wake_ups_use_at_most_half_of_a_mailbox) {
    struct mailbox *m = mailbox_new(6);
    struct message out[8];
    for (uint64_t i = 0; i < 3; i++) CHECK(post(m, MESSAGE_WAKE, i));
    CHECK(!mailbox_overflowed(m));
    CHECK(post(m, MESSAGE_WAKE, 9)); /* dropped, and reported */
    CHECK(mailbox_overflowed(m) && !mailbox_overflowed(m));
    for (uint64_t i = 3; i < 6; i++) CHECK(post(m, MESSAGE_IO_DONE, i));
    CHECK(!post(m, MESSAGE_IO_DONE, 9) && !mailbox_overflowed(m));
    CHECK(!mailbox_queue(m, &(struct message){.kind = MESSAGE_IO_DONE}));
    CHECK(mailbox_take(m, out, 8) == 6 && !rung(m));
    for (uint64_t i = 0; i < 6; i++) CHECK(out[i].token == i);
    mailbox_free(m);
}

SCENE(messages_keep_their_order_across_ring_wraparound) {
    struct mailbox *m = mailbox_new(4);
    struct message out[4];
    uint64_t put = 0, taken = 0;
    for (int i = 0; i < 40; i++) {
        while (post(m, MESSAGE_IO_DONE, put)) put++;
        CHECK(put == taken + 4 && mailbox_take(m, out, 3) == 3);
        for (int n = 0; n < 3; n++) CHECK(out[n].token == taken++);
    }
    CHECK(mailbox_take(m, out, 4) == 1 && mailbox_take(m, out, 4) == 0);
    mailbox_free(m);
}

SCENE(linked_messages_come_first_and_are_unlimited) {
    struct mailbox *m = mailbox_new(2);
    struct message_link links[5];
    struct message out[8];
    CHECK(post(m, MESSAGE_IO_DONE, 100) && post(m, MESSAGE_IO_DONE, 101));
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < 5; i++) {
            links[i].message = (struct message){.kind = MESSAGE_IO_DONE, .token = i};
            mailbox_post_link(m, &links[i]);
        }
        CHECK(!rung(m)); /* no thread sleeps */
        CHECK(mailbox_take(m, out, 3) == 3 && out[0].token == 0 && out[2].token == 2);
        CHECK(!mailbox_arm(m) && mailbox_take(m, out, 8) == (round == 0 ? 4 : 2));
        CHECK(out[0].token == 3 && out[1].token == 4);
        if (round == 0) CHECK(out[2].token == 100 && out[3].token == 101);
    }
    CHECK(mailbox_arm(m));
    mailbox_post_link(m, &links[0]);
    CHECK(rung(m) && mailbox_take(m, out, 8) == 1);
    mailbox_free(m);
}

SCENE(only_a_sleeping_reader_is_woken_once) {
    struct mailbox *m = mailbox_new(8);
    struct message out[8];
    CHECK(post(m, MESSAGE_IO_DONE, 1) && !rung(m));
    CHECK(!mailbox_arm(m) && mailbox_take(m, out, 8) == 1);
    CHECK(mailbox_arm(m));
    CHECK(post(m, MESSAGE_WAKE, 1) && post(m, MESSAGE_IO_DONE, 2) && rung(m) && !rung(m));
    CHECK(mailbox_take(m, out, 8) == 2 && mailbox_arm(m));
    CHECK(mailbox_queue(m, &(struct message){.kind = MESSAGE_IO_DONE}) && !rung(m));
    mailbox_flush(m);
    CHECK(rung(m));
    mailbox_flush(m); /* it was woken */
    CHECK(!rung(m) && mailbox_take(m, out, 8) == 1 && mailbox_arm(m));
    mailbox_flush(m); /* without effect */
    CHECK(!rung(m));
    CHECK(mailbox_take(m, out, 8) == 0 && post(m, MESSAGE_IO_DONE, 1) && !rung(m));
    /* A thread that woke for another reason is awake. */
    CHECK(mailbox_take(m, out, 8) == 1 && mailbox_arm(m));
    CHECK(post(m, MESSAGE_IO_DONE, 1));
    mailbox_disarm(m);
    CHECK(!rung(m) && mailbox_take(m, out, 8) == 1 && mailbox_arm(m));
    mailbox_disarm(m);
    CHECK(post(m, MESSAGE_IO_DONE, 1) && !rung(m));
    mailbox_free(m);
}

SCENE(dropped_wake_up_still_wakes_a_sleeping_reader) {
    struct mailbox *m = mailbox_new(2);
    struct message out[2];
    CHECK(mailbox_arm(m) && mailbox_queue(m, &(struct message){.kind = MESSAGE_IO_DONE}));
    CHECK(post(m, MESSAGE_WAKE, 1) && rung(m) && mailbox_overflowed(m));
    CHECK(mailbox_take(m, out, 2) == 1);
    mailbox_free(m);
}

SCENE(mailbox_creation_fails_without_memory_or_descriptors) {
    memory_left = 0;
    CHECK(mailbox_new(8) == NULL && events_new() == NULL && peers_new() == NULL);
    CHECK(iopool_new(1, 1, NULL, NULL) == NULL && events_make(EVENT_CLOSED, 1) == NULL);
    CHECK(events_text(EVENT_UNSAFE, "why") == NULL);
    memory_left = NO_MEMORY_LIMIT;
    eventfd_error = EMFILE;
    CHECK(mailbox_new(8) == NULL && events_new() == NULL);
}

/* ---- the control plane's events */

SCENE(remaining_events_keep_the_doorbell_set) {
    struct events *events = events_new();
    struct pollfd p = {.fd = events_fd(events), .events = POLLIN};
    for (uint64_t i = 0; i < 3; i++) {
        struct event *e = events_text(EVENT_UNSAFE, "why");
        CHECK(e->body_len == 3 && memcmp(e->data, "why", 3) == 0 && e->missing_count == 0);
        e->token = i;
        events_post(events, e);
    }
    struct event *two = events_take(events, 2);
    CHECK(two->token == 0 && two->next->token == 1 && two->next->next == NULL);
    CHECK(events_waiting(events) == 1 && poll(&p, 1, 0) == 1);
    free(two->next);
    free(two);
    two = events_take(events, 2);
    CHECK(two->token == 2 && two->next == NULL && events_waiting(events) == 0);
    free(two);
    CHECK(poll(&p, 1, 0) == 0 && events_take(events, 2) == NULL);
    events_post(events, events_make(EVENT_CLOSED, 0));
    CHECK(poll(&p, 1, 0) == 1);
    events_free(events);
}

/* ---- io pools */

static int threads_left = 1000;
int __real_pthread_create(pthread_t *to, const pthread_attr_t *how, void *(*run)(void *), void *of);
int __wrap_pthread_create(pthread_t *to, const pthread_attr_t *how, void *(*run)(void *), void *of);
int __wrap_pthread_create(pthread_t *to, const pthread_attr_t *how, void *(*run)(void *),
                          void *of) {
    return threads_left-- > 0 ? __real_pthread_create(to, how, run, of) : EAGAIN;
}

struct step {
    struct iojob job;
    sem_t began, may_end;
    bool waits;
    void *scratch;
    int number;
};
static _Atomic int order[64], ran;

static int run_step(struct iojob *job, void *scratch) {
    struct step *s = (struct step *)(void *)job;
    s->scratch = scratch;
    order[ran++] = s->number;
    int status = s->number + 1000;
    if (!s->waits) return status;
    sem_post(&s->began);
    while (sem_wait(&s->may_end) != 0) {}
    return status;
}
static struct step *step(struct step *s, int number, bool waits, bool patient) {
    *s = (struct step){.number = number, .waits = waits};
    s->job = (struct iojob){.run = run_step, .token = (uint64_t)number, .patient = patient};
    sem_init(&s->began, 0, 0);
    sem_init(&s->may_end, 0, 0);
    return s;
}
static void await(sem_t *s) {
    while (sem_wait(s) != 0) {}
}

SCENE(jobs_run_in_order_and_low_priority_ones_last) {
    struct step steps[6];
    struct iopool *pool = iopool_new(1, 5, NULL, NULL);
    uint64_t waiting, done;
    CHECK(iopool_submit(pool, &step(&steps[0], 0, true, false)->job));
    await(&steps[0].began);
    static const bool patient[] = {false, true, true, false, false, true};
    for (int i = 1; i < 6; i++)
        CHECK(iopool_submit(pool, &step(&steps[i], i, false, patient[i])->job));
    struct step late;
    CHECK(!iopool_submit(pool, &step(&late, 9, false, false)->job)); /* five are queued */
    CHECK(!iopool_submit(pool, &step(&late, 9, false, true)->job));
    iopool_stats(pool, &waiting, &done);
    CHECK(waiting == 5 && done == 0);
    sem_post(&steps[0].may_end);
    iopool_free(pool); /* runs the queued jobs */
    static const int expected[] = {0, 3, 4, 1, 2, 5};
    CHECK(ran == 6);
    for (int i = 0; i < 6; i++) CHECK(order[i] == expected[i]);
}

SCENE(low_priority_jobs_use_half_of_the_workers) {
    struct step patient[3], plain;
    struct iopool *pool = iopool_new(3, 10, NULL, NULL);
    uint64_t waiting, done;
    for (int i = 0; i < 3; i++) CHECK(iopool_submit(pool, &step(&patient[i], i, true, true)->job));
    await(&patient[0].began);
    await(&patient[1].began);
    CHECK(iopool_submit(pool, &step(&plain, 7, true, false)->job));
    await(&plain.began); /* the third worker's */
    iopool_stats(pool, &waiting, &done);
    CHECK(waiting == 1 && done == 0 && ran == 3);
    sem_post(&patient[0].may_end);
    await(&patient[2].began); /* its place is free */
    sem_post(&patient[1].may_end);
    sem_post(&patient[2].may_end);
    sem_post(&plain.may_end);
    iopool_free(pool);
    CHECK(ran == 4);
}

SCENE(single_worker_runs_low_priority_jobs) {
    struct step steps[3];
    struct mailbox *m = mailbox_new(8);
    struct iopool *pool = iopool_new(1, 10, NULL, NULL);
    CHECK(mailbox_arm(m));
    for (int i = 0; i < 3; i++) {
        step(&steps[i], i, false, true)->job.mailbox = m;
        CHECK(iopool_submit(pool, &steps[i].job));
    }
    struct pollfd p = {.fd = mailbox_fd(m), .events = POLLIN};
    CHECK(poll(&p, 1, -1) == 1);
    iopool_free(pool);
    struct message out[4];
    CHECK(mailbox_take(m, out, 4) == 3);
    for (int i = 0; i < 3; i++) {
        CHECK(out[i].kind == MESSAGE_IO_DONE && out[i].token == (uint64_t)i);
        CHECK(out[i].status == 1000 + i && out[i].data == &steps[i]);
    }
    mailbox_free(m);
}

static _Atomic int scratches;
static void *scratch_one(void) {
    scratches++;
    return malloc(1);
}
static void free_one(void *p) {
    scratches--;
    free(p);
}

SCENE(each_worker_has_its_own_scratch_memory) {
    struct step steps[4];
    struct iopool *pool = iopool_new(1, 10, scratch_one, free_one);
    CHECK(iopool_resize(pool, 3));
    for (int i = 0; i < 3; i++) CHECK(iopool_submit(pool, &step(&steps[i], i, true, false)->job));
    for (int i = 0; i < 3; i++) await(&steps[i].began); /* all three at once */
    CHECK(scratches == 3 && steps[0].scratch != NULL);
    CHECK(steps[0].scratch != steps[1].scratch && steps[1].scratch != steps[2].scratch);
    for (int i = 0; i < 3; i++) sem_post(&steps[i].may_end);
    CHECK(iopool_resize(pool, 1) && scratches == 1);
    CHECK(iopool_submit(pool, &step(&steps[3], 3, true, false)->job));
    await(&steps[3].began);
    sem_post(&steps[3].may_end);
    CHECK(iopool_resize(pool, 2));
    iopool_free(pool);
    CHECK(scratches == 0 && ran == 4);
    iopool_free(NULL);
}

SCENE(pool_runs_with_the_workers_that_started) {
    threads_left = 0;
    CHECK(iopool_new(2, 10, NULL, NULL) == NULL);
    threads_left = 1;
    struct step one;
    struct iopool *pool = iopool_new(2, 10, NULL, NULL);
    CHECK(pool != NULL && iopool_submit(pool, &step(&one, 1, true, false)->job));
    await(&one.began);
    CHECK(!iopool_resize(pool, 3));
    threads_left = 1;
    CHECK(iopool_resize(pool, 2));
    sem_post(&one.may_end);
    iopool_free(pool);
}

/* ---- timers */

SCENE(timer_can_be_moved_and_cancelled_twice) {
    struct timers heap;
    struct timer timers[5] = {0};
    timers_init(&heap);
    CHECK(timers_first_ms(&heap) == INT64_MAX && timers_take(&heap, INT64_MAX) == NULL);
    CHECK(timers_reserve(&heap, 5));
    for (int i = 0; i < 5; i++) timers_set(&heap, &timers[i], 10 + i);
    timers_set(&heap, &timers[4], 5);
    CHECK(timers_first_ms(&heap) == 5 && timers_take(&heap, 4) == NULL);
    timers_set(&heap, &timers[4], 100);
    timers_cancel(&heap, &timers[0]);
    timers_cancel(&heap, &timers[0]);
    CHECK(heap.count == 4 && timers_first_ms(&heap) == 11);
    CHECK(timers_take(&heap, 11) == &timers[1] && timers_take(&heap, 11) == NULL);
    CHECK(timers_take(&heap, 100) == &timers[2] && timers_take(&heap, 100) == &timers[3]);
    CHECK(timers_take(&heap, 100) == &timers[4] && heap.count == 0);
    memory_left = 0;
    uint32_t reserved = heap.reserved;
    CHECK(!timers_reserve(&heap, 1000) && heap.reserved == reserved);
    memory_left = NO_MEMORY_LIMIT;
    timers_clear(&heap);
}
