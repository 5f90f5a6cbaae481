/* Deadlines of one thread, in milliseconds: a binary heap of timers embedded in their owners'
 * structures. */
#ifndef PYLOG_TIMERS_H
#define PYLOG_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct timer {
    int64_t at_ms;
    uint32_t heap_index; /* position in the heap, from 1; 0: not set */
    uint32_t kind;  /* for the owner's use */
};

struct timers {
    struct timer **heap; /* [1..count] */
    uint32_t count, room, reserved;
};

void timers_init(struct timers *t);
void timers_clear(struct timers *t);
/* Reserves memory for `count` additional timers, so that setting one cannot fail. */
bool timers_reserve(struct timers *t, uint32_t count);
/* Sets the timer or changes its deadline. */
void timers_set(struct timers *t, struct timer *timer, int64_t at_ms);
void timers_cancel(struct timers *t, struct timer *timer);
/* Removes and returns one timer that is due, or NULL. */
struct timer *timers_take(struct timers *t, int64_t now_ms);
/* Returns the earliest deadline; INT64_MAX if no timer is set. */
static inline int64_t timers_first_ms(const struct timers *t) {
    return t->count == 0 ? INT64_MAX : t->heap[1]->at_ms;
}

#endif
