/* Threads with a fixed stack size. The C library's default, 128 KiB (musl) to 8 MiB (glibc),
 * must not decide whether the broker works. */
#ifndef PYLOG_STACK_H
#define PYLOG_STACK_H

#include <assert.h>
#include <pthread.h>

/* Address space: only used pages take memory. The deepest call chain is a TLS handshake;
 * sanitizers need several times its stack. */
enum { STACK_BYTES = 512 * 1024 };

/* Starts a thread with a stack of STACK_BYTES. Returns 0 or an errno. */
static inline int stack_begin(pthread_t *thread, void *(*run)(void *), void *argument) {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) return error;
    error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    assert(error == 0); /* whole pages, above the system's minimum */
    error = pthread_create(thread, &attributes, run, argument);
    pthread_attr_destroy(&attributes);
    return error;
}

#endif
