/* Maps of files that somebody may cut, or that the disk may fail to read. The kernel reports such
 * a page by SIGBUS, which ends the process unless it is handled. Here a page of zeros takes the
 * place of what cannot be read, and the reader is informed; the file itself is left alone.
 *
 * A thread that reads says which maps, from mapped_read_begin to mapped_read_end. A map that is
 * written, at any time and by any thread, is kept whole from mapped_keep to mapped_let_go: what is
 * stored where the file is no longer goes nowhere. Other faults go to whoever had them before. */
#ifndef PYLOG_MAPPED_H
#define PYLOG_MAPPED_H

#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAPPED_READ_MAPS = 2, MAPPED_KEPT_MAX = 64 };

/* Maps that are read together, by one thread at a time. NULL: none. */
struct mapped_read {
    const uint8_t *at[MAPPED_READ_MAPS];
    size_t bytes[MAPPED_READ_MAPS];
    volatile sig_atomic_t failed; /* zeros were put in the place of a page */
};

/* The signal handler's view of its own thread: one word, there without being made (a handler must
 * not allocate). */
extern _Thread_local struct mapped_read *mapped_reading
    __attribute__((tls_model("initial-exec")));
/* Whether this copy of the code has its handler; a library is linked into several modules. */
extern atomic_bool mapped_handles;
void mapped_handle(void);

/* One at a time for each thread. */
static inline void mapped_read_begin(struct mapped_read *r) {
    assert(mapped_reading == NULL);
    r->failed = 0;
    if (!atomic_load_explicit(&mapped_handles, memory_order_acquire)) mapped_handle();
    mapped_reading = r;
    /* For the compiler: what is read stays between here and the end. */
    atomic_signal_fence(memory_order_seq_cst);
}
/* Whether a page could not be read: zeros were found there. */
static inline bool mapped_read_end(struct mapped_read *r) {
    assert(mapped_reading == r);
    atomic_signal_fence(memory_order_seq_cst);
    mapped_reading = NULL;
    return r->failed != 0;
}

/* NULL: there are MAPPED_KEPT_MAX already. It may be let go by another module than kept it. */
struct mapped_kept;
struct mapped_kept *mapped_keep(const uint8_t *map, size_t bytes);
void mapped_let_go(struct mapped_kept *kept);

#endif
