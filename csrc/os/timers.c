/* A binary heap with the root at 1. Each timer stores its position, so cancelling needs no
 * search. */
#include "os/timers.h"

#include <stdlib.h>

#include "format/assertion.h"

void timers_init(struct timers *t) { *t = (struct timers){0}; }

void timers_clear(struct timers *t) {
    free(t->heap);
    timers_init(t);
}

bool timers_reserve(struct timers *t, uint32_t count) {
    uint32_t reserved = t->reserved + count;
    if (reserved + 1 > t->room) {
        uint32_t room = reserved + 1 < 2 * t->room ? 2 * t->room : reserved + 1;
        struct timer **grown = realloc(t->heap, room * sizeof *grown);
        if (grown == NULL) return false;
        t->heap = grown;
        t->room = room;
    }
    t->reserved = reserved;
    return true;
}

static void put(struct timers *t, uint32_t heap_index, struct timer *timer) {
    assert_slow(heap_index > 0 && heap_index <= t->count);
    t->heap[heap_index] = timer;
    timer->heap_index = heap_index;
}

static void rise(struct timers *t, uint32_t heap_index, struct timer *timer) {
    while (heap_index > 1 && t->heap[heap_index / 2]->at_ms > timer->at_ms) {
        put(t, heap_index, t->heap[heap_index / 2]);
        heap_index /= 2;
    }
    put(t, heap_index, timer);
}

static void sink(struct timers *t, uint32_t heap_index, struct timer *timer) {
    for (;;) {
        uint32_t child = 2 * heap_index;
        if (child > t->count) break;
        if (child < t->count && t->heap[child + 1]->at_ms < t->heap[child]->at_ms) child++;
        if (t->heap[child]->at_ms >= timer->at_ms) break;
        put(t, heap_index, t->heap[child]);
        heap_index = child;
    }
    put(t, heap_index, timer);
}

void timers_set(struct timers *t, struct timer *timer, int64_t at_ms) {
    if (timer->heap_index == 0) {
        assert(t->count < t->reserved && "a timer that was not reserved");
        assert_slow(t->reserved < t->room);
        timer->at_ms = at_ms;
        t->count++;
        rise(t, t->count, timer);
        return;
    }
    int64_t before_ms = timer->at_ms;
    timer->at_ms = at_ms;
    if (at_ms < before_ms)
        rise(t, timer->heap_index, timer);
    else
        sink(t, timer->heap_index, timer);
}

void timers_cancel(struct timers *t, struct timer *timer) {
    uint32_t heap_index = timer->heap_index;
    if (heap_index == 0) return;
    assert_slow(t->heap[heap_index] == timer);
    timer->heap_index = 0;
    struct timer *last = t->heap[t->count--];
    if (last == timer) return;
    rise(t, heap_index, last);
    sink(t, last->heap_index, last);
}

struct timer *timers_take(struct timers *t, int64_t now_ms) {
    if (t->count == 0 || t->heap[1]->at_ms > now_ms) return NULL;
    struct timer *first = t->heap[1];
    timers_cancel(t, first);
    assert_slow(t->count == 0 || t->heap[1]->at_ms >= first->at_ms);
    return first;
}
