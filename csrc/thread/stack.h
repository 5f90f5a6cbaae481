/* Threads with a stack of a stated size: the C library's own choice is between 128 KiB (musl) and
 * 8 MiB (glibc), and must not decide whether the broker runs. */
#ifndef PYLOG_STACK_H
#define PYLOG_STACK_H

#include <assert.h>
#include <pthread.h>

/* Address space; only the pages that are used take memory. Sanitizers need several times as much
 * as the largest chain of calls, which is a TLS handshake. */
enum { STACK_BYTES = 512 * 1024 };

/* Begins a thread that has a stack of STACK_BYTES. Returns 0 or an errno. */
static inline int stack_begin(pthread_t *thread, void *(*run)(void *), void *argument) {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) return error;
    error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    assert(error == 0); /* the size is above the system's least and whole pages */
    error = pthread_create(thread, &attributes, run, argument);
    pthread_attr_destroy(&attributes);
    return error;
}

#endif
