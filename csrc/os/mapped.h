/* Maps of files that another process may truncate, or that the disk may fail to read. The kernel
 * reports access to such a page by SIGBUS, which ends the process unless handled. This handler
 * maps a page of zeros there and informs the reader. The file does not change.
 *
 * A reading thread registers its maps from mapped_read_begin to mapped_read_end. A map that any
 * thread may write at any time is registered from mapped_register to mapped_unregister; writes
 * beyond the end of the file are lost. All other faults go to the previous handler. */
#ifndef PYLOG_MAPPED_H
#define PYLOG_MAPPED_H

#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAPPED_READ_MAPS = 2, MAPPED_REGISTRATIONS_MAX = 64 };

/* Maps read together by one thread. Unused entries are NULL. */
struct mapped_read {
    const uint8_t *at[MAPPED_READ_MAPS];
    size_t bytes[MAPPED_READ_MAPS];
    volatile sig_atomic_t failed; /* a page was replaced by zeros */
};

/* The current thread's maps, for the signal handler. Static TLS, because a handler must not
 * allocate. */
extern _Thread_local struct mapped_read *mapped_reading
    __attribute__((tls_model("initial-exec")));
/* Each extension module links its own copy of this file, so each needs its own handler. */
extern atomic_bool mapped_handles;
void mapped_handle(void);

/* One at a time per thread. */
static inline void mapped_read_begin(struct mapped_read *r) {
    assert(mapped_reading == NULL);
    r->failed = 0;
    if (!atomic_load_explicit(&mapped_handles, memory_order_acquire)) mapped_handle();
    mapped_reading = r;
    /* Compiler barrier: keeps reads between begin and end. */
    atomic_signal_fence(memory_order_seq_cst);
}
/* Returns true if a page could not be read: zeros were read instead. */
static inline bool mapped_read_end(struct mapped_read *r) {
    assert(mapped_reading == r);
    atomic_signal_fence(memory_order_seq_cst);
    mapped_reading = NULL;
    return r->failed != 0;
}
void mapped_read_unmap(struct mapped_read *r);

/* Returns NULL if MAPPED_REGISTRATIONS_MAX maps are registered. Another module may release it. */
struct mapped_registration;
struct mapped_registration *mapped_register(const uint8_t *map, size_t bytes);
void mapped_unregister(struct mapped_registration *registration);

#endif
