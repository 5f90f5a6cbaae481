/* The clocks of the operating system, read as numbers. */
#ifndef PYLOG_CLOCK_H
#define PYLOG_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_read_ms(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
static inline int64_t clock_read_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#endif
