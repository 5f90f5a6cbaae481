/* Each module that links this file has its own handler. They form a chain: each handles faults
 * in its own maps and passes on the others. Signals are per process, hence the only globals of
 * csrc/. */
#include "os/mapped.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/lock.h"

_Thread_local struct mapped_read *mapped_reading __attribute__((tls_model("initial-exec")));
atomic_bool mapped_handles;

struct mapped_registration {
    atomic_bool in_use;
    _Atomic uintptr_t from; /* 0: unused */
    _Atomic size_t bytes;
};
static struct mapped_registration mapped_registrations[MAPPED_REGISTRATIONS_MAX];
static struct lock mapped_lock = LOCK_INITIALIZER; /* prevents installing the handler twice */
static struct sigaction mapped_before;

static bool mapped_holds(uintptr_t from, size_t bytes, uintptr_t at) {
    return from != 0 && at >= from && at - from < bytes;
}

/* Runs in a signal handler: system calls only. */
static bool mapped_patch(uintptr_t at, int protection) {
    uintptr_t page = at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    return syscall(SYS_mmap, page, sysconf(_SC_PAGESIZE), protection,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != -1;
}

static bool mapped_take(uintptr_t at) {
    struct mapped_read *r = mapped_reading;
    for (int i = 0; r != NULL && i < MAPPED_READ_MAPS; i++)
        if (mapped_holds((uintptr_t)r->at[i], r->bytes[i], at) && mapped_patch(at, PROT_READ)) {
            r->failed = 1;
            return true;
        }
    for (int i = 0; i < MAPPED_REGISTRATIONS_MAX; i++) {
        struct mapped_registration *registration = &mapped_registrations[i];
        if (mapped_holds(atomic_load(&registration->from), atomic_load(&registration->bytes), at))
            return mapped_patch(at, PROT_READ | PROT_WRITE);
    }
    return false;
}

static void mapped_fault(int number, siginfo_t *info, void *context) {
    int saved = errno;
    if (info->si_code > 0 && mapped_take((uintptr_t)info->si_addr)) {
        errno = saved;
        return;
    }
    if (mapped_before.sa_flags & SA_SIGINFO)
        mapped_before.sa_sigaction(number, info, context);
    else if (mapped_before.sa_handler != SIG_DFL && mapped_before.sa_handler != SIG_IGN)
        mapped_before.sa_handler(number);
    else {
        /* Restore the default: a fault repeats and ends the process; a signal sent with kill is
         * raised again. */
        sigaction(number, &mapped_before, NULL);
        if (info->si_code <= 0) raise(number);
    }
    errno = saved;
}

void mapped_handle(void) {
    struct sigaction ours = {.sa_sigaction = mapped_fault,
                             .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigemptyset(&ours.sa_mask);
    lock_acquire(&mapped_lock);
    if (!atomic_load(&mapped_handles)) {
        /* Read first, for a fault before the next line ends. Read again, in case another module
         * has installed its handler since. */
        sigaction(SIGBUS, NULL, &mapped_before);
        if (sigaction(SIGBUS, &ours, &mapped_before) != 0) abort();
        atomic_store_explicit(&mapped_handles, true, memory_order_release);
    }
    lock_release(&mapped_lock);
}

struct mapped_registration *mapped_register(const uint8_t *map, size_t bytes) {
    assert(map != NULL && bytes > 0);
    mapped_handle();
    for (int i = 0; i < MAPPED_REGISTRATIONS_MAX; i++) {
        struct mapped_registration *registration = &mapped_registrations[i];
        bool in_use = false;
        if (!atomic_compare_exchange_strong(&registration->in_use, &in_use, true)) continue;
        atomic_store(&registration->bytes, bytes);
        atomic_store(&registration->from, (uintptr_t)map);
        return registration;
    }
    return NULL;
}

void mapped_unregister(struct mapped_registration *registration) {
    assert(atomic_load(&registration->in_use));
    atomic_store(&registration->from, 0);
    atomic_store(&registration->in_use, false);
}

void mapped_read_unmap(struct mapped_read *r) {
    for (int i = 0; i < MAPPED_READ_MAPS; i++) {
        assert((r->at[i] == NULL) == (r->bytes[i] == 0));
        if (r->at[i] != NULL) munmap((void *)r->at[i], r->bytes[i]);
        r->at[i] = NULL;
        r->bytes[i] = 0;
    }
}
