/* The reactor's small parts in isolation, compared with simple models: timers, names, buffers,
 * messages, the control plane's queue, addresses. Exits with 0, or with 1 and a line on stderr. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/events.h"
#include "net/input.h"
#include "os/io_pool.h"
#include "os/mailbox.h"
#include "net/ip_connections.h"
#include "net/slab.h"
#include "os/timers.h"
#include "scenes.h"

static uint32_t state;
static uint32_t draw(uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

enum { TIMERS = 200 };

static int64_t naive_first(const struct timer *timers) {
    int64_t first = INT64_MAX;
    for (int i = 0; i < TIMERS; i++)
        if (timers[i].heap_index != 0 && timers[i].at_ms < first) first = timers[i].at_ms;
    return first;
}

static void timers_agree_with_a_search_through_all(void) {
    struct timers heap;
    struct timer timers[TIMERS] = {0};
    timers_init(&heap);
    CHECK(timers_reserve(&heap, TIMERS / 2) && timers_reserve(&heap, TIMERS / 2));
    int64_t now = 0;
    for (int step = 0; step < 200000; step++) {
        struct timer *one = &timers[draw(TIMERS)];
        switch (draw(4)) {
        case 0: timers_cancel(&heap, one); break;
        case 1: now += draw(3); break;
        default: timers_set(&heap, one, now + draw(50)); break;
        }
        CHECK(timers_first_ms(&heap) == naive_first(timers));
        struct timer *due = timers_take(&heap, now);
        if (due != NULL)
            CHECK(due->heap_index == 0 && due->at_ms <= now && due->at_ms <= naive_first(timers));
        else
            CHECK(naive_first(timers) > now);
    }
    timers_clear(&heap);
}

/* The sanitizer detects a heap that is one entry too small. */
static void as_many_timers_as_were_reserved_find_room(void) {
    static const uint32_t counts[] = {1, 2, 7, 64};
    struct timer timers[TIMERS] = {0};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct timers heap;
        uint32_t set = 0;
        timers_init(&heap);
        for (int again = 0; again < 3; again++) {
            CHECK(timers_reserve(&heap, counts[i]));
            for (uint32_t n = 0; n < counts[i]; n++, set++)
                timers_set(&heap, &timers[set], 1000 - set);
            CHECK(timers_first_ms(&heap) == 1001 - (int64_t)set);
        }
        while (set-- > 0) CHECK(timers_take(&heap, 1000) != NULL);
        CHECK(timers_take(&heap, INT64_MAX) == NULL && timers_first_ms(&heap) == INT64_MAX);
        timers_clear(&heap);
    }
}

struct thing {
    struct slab_item item;
    uint64_t value;
};

static void a_name_that_outlived_its_item_finds_nothing(void) {
    struct slab slab;
    slab_init(&slab, sizeof(struct thing));
    struct thing *held[1000];
    bool grew;
    for (uint32_t i = 0; i < 1000; i++) {
        held[i] = slab_take(&slab, &grew);
        CHECK(held[i] != NULL && held[i]->value == 0 && grew == (i % SLAB_CHUNK_ITEMS == 0));
        held[i]->value = i;
    }
    for (int step = 0; step < 100000; step++) {
        uint32_t i = draw(1000);
        uint32_t index = held[i]->item.index, generation = held[i]->item.generation;
        CHECK(slab_find(&slab, index, generation) == held[i]);
        slab_give(&slab, held[i]);
        CHECK(slab_find(&slab, index, generation) == NULL && slab_at(&slab, index) == NULL);
        held[i] = slab_take(&slab, &grew);
        CHECK(held[i] != NULL && !grew && held[i]->value == 0);
        CHECK(slab_find(&slab, index, generation) == NULL);
    }
    CHECK(slab.live == 1000 && slab_find(&slab, slab_room(&slab), 1) == NULL);
    slab_clear(&slab);
}

static void buffers_are_counted_limited_and_given_back(void) {
    struct input_pool pool;
    input_pool_init(&pool, 8 << 20, 4 << 20);
    struct input_buffer *held[64] = {0};
    for (int step = 0; step < 50000; step++) {
        struct input_buffer **one = &held[draw(64)];
        if (*one != NULL) {
            input_release(&pool, *one);
            *one = NULL;
        } else {
            size_t room = (size_t)1 << draw(22);
            *one = input_take(&pool, room, false);
            if (*one != NULL) {
                CHECK((*one)->room >= room && (*one)->room == input_room_for(room));
                (*one)->bytes[0] = (*one)->bytes[(*one)->room - 1] = 1;
            }
        }
        CHECK(pool.held_bytes <= pool.held_bytes_max && pool.spare_bytes <= INPUT_SPARE_BYTES_MAX);
        if (step % 1000 == 0) input_pool_trim(&pool);
    }
    CHECK(input_take(&pool, (size_t)1 << 31, true) == NULL);
    for (int i = 0; i < 64; i++)
        if (held[i] != NULL) input_release(&pool, held[i]);
    input_pool_trim(&pool);
    input_pool_trim(&pool);
    CHECK(pool.held_bytes == 0 && pool.spare_bytes == 0);
    input_pool_clear(&pool);
}

static void a_flood_of_wakes_leaves_room_for_what_must_arrive(void) {
    struct mailbox *mailbox = mailbox_new(100);
    for (uint64_t i = 0; i < 1000; i++)
        CHECK(mailbox_post(mailbox, &(struct message){.kind = MESSAGE_WAKE, .token = i}));
    for (uint64_t i = 0; i < 50; i++)
        CHECK(mailbox_post(mailbox, &(struct message){.kind = MESSAGE_IO_DONE, .token = i}));
    CHECK(!mailbox_post(mailbox, &(struct message){.kind = MESSAGE_IO_DONE}));
    struct message messages[200];
    CHECK(mailbox_overflowed(mailbox) && !mailbox_overflowed(mailbox));
    CHECK(!mailbox_arm(mailbox) && mailbox_take(mailbox, messages, 200) == 100);
    for (uint64_t i = 0; i < 100; i++)
        CHECK(messages[i].token == i % 50 &&
              messages[i].kind == (i < 50 ? MESSAGE_WAKE : MESSAGE_IO_DONE));
    CHECK(mailbox_arm(mailbox));
    uint64_t rung;
    CHECK(mailbox_queue(mailbox, &(struct message){.kind = MESSAGE_IO_DONE, .token = 7}));
    CHECK(read(mailbox_fd(mailbox), &rung, sizeof rung) < 0); /* not woken yet */
    mailbox_flush(mailbox);
    mailbox_flush(mailbox);
    CHECK(read(mailbox_fd(mailbox), &rung, sizeof rung) == sizeof rung && rung == 1);
    CHECK(!mailbox_arm(mailbox) && mailbox_take(mailbox, messages, 200) == 1);
    mailbox_flush(mailbox);
    CHECK(read(mailbox_fd(mailbox), &rung, sizeof rung) < 0); /* no reason to wake */
    mailbox_free(mailbox);
}

static void a_wake_that_has_no_room_is_reported_all_the_same(void) {
    struct mailbox *mailbox = mailbox_new(8);
    struct message messages[8];
    for (uint64_t i = 0; i < 8; i++)
        CHECK(mailbox_post(mailbox, &(struct message){.kind = MESSAGE_FIRST_FREE, .token = i}));
    CHECK(!mailbox_overflowed(mailbox));
    CHECK(mailbox_post(mailbox, &(struct message){.kind = MESSAGE_WAKE}));
    CHECK(mailbox_overflowed(mailbox) && mailbox_take(mailbox, messages, 8) == 8);
    CHECK(mailbox_arm(mailbox));
    mailbox_free(mailbox);
}

enum { JOBS = 50 };
struct numbered_job {
    struct iojob job;
    int number, reported;
};

static int work(struct iojob *job, void *scratch) {
    (void)scratch;
    return ((struct numbered_job *)(void *)job)->number;
}

static void jobs_are_reported_whatever_room_the_mailbox_has(void) {
    static struct numbered_job jobs[JOBS];
    struct mailbox *mailbox = mailbox_new(8);
    struct iopool *pool = iopool_new(3, JOBS, NULL, NULL);
    struct message messages[JOBS];
    uint64_t rung;
    uint32_t count, others = 0, done = 0;
    for (int i = 0; i < 8; i++)
        CHECK(mailbox_post(mailbox, &(struct message){.kind = MESSAGE_FIRST_FREE}));
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = (struct numbered_job){.number = i};
        jobs[i].job = (struct iojob){
            .run = work, .mailbox = mailbox, .token = (uint64_t)i, .patient = i % 2 == 1};
        CHECK(iopool_submit(pool, &jobs[i].job));
    }
    iopool_free(pool); /* all have run */
    CHECK(!mailbox_arm(mailbox));
    while ((count = mailbox_take(mailbox, messages, 1 + draw(JOBS))) != 0)
        for (uint32_t i = 0; i < count; i++) {
            struct numbered_job *one = messages[i].data;
            others += messages[i].kind == MESSAGE_FIRST_FREE;
            if (messages[i].kind != MESSAGE_IO_DONE) continue;
            CHECK(messages[i].token == (uint64_t)one->number && messages[i].status == one->number);
            CHECK(one->reported++ == 0);
            done++;
        }
    CHECK(others == 8 && done == JOBS && mailbox_arm(mailbox));
    /* A single message wakes a sleeping reader. */
    pool = iopool_new(1, 1, NULL, NULL);
    CHECK(iopool_submit(pool, &jobs[0].job));
    iopool_free(pool);
    CHECK(read(mailbox_fd(mailbox), &rung, sizeof rung) == sizeof rung && rung == 1);
    mailbox_free(mailbox);
}

static bool readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void events_come_in_order_and_ring_until_the_last_is_taken(void) {
    struct events *events = events_new();
    CHECK(!readable(events_fd(events)) && events_take(events, 10) == NULL);
    for (uint64_t i = 0; i < 25; i++) {
        struct event *e = events_make(EVENT_REQUEST, i);
        e->token = i;
        events_post(events, e);
    }
    CHECK(events_waiting(events) == 25);
    uint64_t seen = 0;
    while (readable(events_fd(events))) {
        for (struct event *e = events_take(events, 10), *next; e != NULL; e = next) {
            next = e->next;
            CHECK(e->token == seen++);
            free(e);
        }
    }
    CHECK(seen == 25 && events_waiting(events) == 0);
    events_post(events, events_make(EVENT_CLOSED, 0));
    events_free(events);
}

static void addresses_are_counted_one_by_one(void) {
    struct peers *peers = peers_new();
    uint8_t address[16] = {0};
    for (uint32_t i = 0; i < 5000; i++) {
        memcpy(address, &i, sizeof i);
        for (int n = 0; n < 3; n++) CHECK(peers_enter(peers, address, 3));
        CHECK(!peers_enter(peers, address, 3));
    }
    for (uint32_t i = 0; i < 5000; i += 2) {
        memcpy(address, &i, sizeof i);
        for (int n = 0; n < 3; n++) peers_leave(peers, address);
        CHECK(peers_enter(peers, address, 1) && !peers_enter(peers, address, 1));
    }
    CHECK(!peers_enter(peers, (const uint8_t[16]){1, 2, 3, 4, 5}, 0));
    peers_free(peers);
}

int main(int argc, char **argv) {
    state = argc > 1 ? (uint32_t)atol(argv[1]) : 1;
    timers_agree_with_a_search_through_all();
    as_many_timers_as_were_reserved_find_room();
    a_name_that_outlived_its_item_finds_nothing();
    buffers_are_counted_limited_and_given_back();
    a_flood_of_wakes_leaves_room_for_what_must_arrive();
    a_wake_that_has_no_room_is_reported_all_the_same();
    jobs_are_reported_whatever_room_the_mailbox_has();
    events_come_in_order_and_ring_until_the_last_is_taken();
    addresses_are_counted_one_by_one();
    puts("ok");
    return 0;
}
