/* Allocations that fail when the scene requires it. Link with -Wl,--wrap=malloc,calloc,realloc. */
#ifndef PYLOG_FAILING_MEMORY_H
#define PYLOG_FAILING_MEMORY_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { NO_MEMORY_LIMIT = -1 };
static _Atomic int memory_left = NO_MEMORY_LIMIT; /* remaining allocations */

static inline bool starved(void) {
    if (memory_left == NO_MEMORY_LIMIT) return false;
    if (memory_left == 0) {
        errno = ENOMEM;
        return true;
    }
    memory_left--;
    return false;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_malloc(size_t bytes) { return starved() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) {
    return starved() ? NULL : __real_calloc(count, bytes);
}
void *__wrap_realloc(void *p, size_t bytes) { return starved() ? NULL : __real_realloc(p, bytes); }

#endif
