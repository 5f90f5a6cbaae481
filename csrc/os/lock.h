/* Mutexes checked at compile time: Clang's thread-safety analysis uses the attributes below, gcc
 * ignores them. `make tidy` compiles all of csrc/ that way (tests/checks/locks.py).
 *
 *   struct log { struct lock lock; int64_t end GUARDED_BY(lock); };
 *   static void move_end(struct log *log) REQUIRES(log->lock);
 *
 * Limits of the analysis in C: GUARDED_BY and ACQUIRED_AFTER refer to a lock of the same
 * structure, and accept the same lock of another instance. REQUIRES compares expressions
 * (`x->lock`). Accesses through a pointer to a member (&x->end) are not checked. */
#ifndef PYLOG_LOCK_H
#define PYLOG_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "format/assertion.h"

/* Older versions cannot refer to a member by name in C. */
#if defined(__clang__) && __clang_major__ >= 20
#define LOCK_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define LOCK_ATTRIBUTE(...)
#endif

/* For a structure: threads can hold it. `word` appears in warnings. */
#define CAPABILITY(word) LOCK_ATTRIBUTE(capability(word))
/* For a member: accessed only while holding the lock. */
#define GUARDED_BY(lock) LOCK_ATTRIBUTE(guarded_by(&lock))
/* For a lock that is a member: the lock to acquire before it. */
#define ACQUIRED_AFTER(lock) LOCK_ATTRIBUTE(acquired_after(&lock))
/* For functions: the locks that callers must hold or must not hold, and those that the function
 * acquires or releases. _SHARED: together with other readers. */
#define REQUIRES(...) LOCK_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define REQUIRES_SHARED(...) LOCK_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define EXCLUDES(...) LOCK_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) LOCK_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) LOCK_ATTRIBUTE(release_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) LOCK_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) LOCK_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) LOCK_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
/* Asserts at run time that the thread holds it. */
#define ASSERT_CAPABILITY(x) LOCK_ATTRIBUTE(assert_capability(x))
#define ASSERT_SHARED_CAPABILITY(x) LOCK_ATTRIBUTE(assert_shared_capability(x))
/* Disables the check inside a function; add the reason in a comment. */
#define NO_THREAD_SAFETY_ANALYSIS LOCK_ATTRIBUTE(no_thread_safety_analysis)

struct CAPABILITY("mutex") lock {
    pthread_mutex_t mutex;
};
#define LOCK_INITIALIZER {PTHREAD_MUTEX_INITIALIZER}

static inline void lock_init(struct lock *l) { pthread_mutex_init(&l->mutex, NULL); }
/* For critical sections of a few microseconds: a waiter spins before it sleeps. musl's mutexes
 * always do. */
static inline void lock_init_adaptive(struct lock *l) {
    pthread_mutexattr_t adaptive;
    pthread_mutexattr_init(&adaptive);
#if defined(__GLIBC__)
    pthread_mutexattr_settype(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(&l->mutex, &adaptive);
    pthread_mutexattr_destroy(&adaptive);
}
static inline void lock_destroy(struct lock *l) {
    int result = pthread_mutex_destroy(&l->mutex);
    assert(result == 0); /* EBUSY: a thread still holds it */
    (void)result;
}
static inline void lock_acquire(struct lock *l) ACQUIRE(*l) NO_THREAD_SAFETY_ANALYSIS {
    pthread_mutex_lock(&l->mutex); /* no attributes on libc's mutex, here and below */
}
static inline bool lock_try_acquire(struct lock *l)
    TRY_ACQUIRE(true, *l) NO_THREAD_SAFETY_ANALYSIS {
    return pthread_mutex_trylock(&l->mutex) == 0;
}
static inline void lock_release(struct lock *l) RELEASE(*l) NO_THREAD_SAFETY_ANALYSIS {
    pthread_mutex_unlock(&l->mutex);
}

/* For code where the analysis cannot follow the lock, such as callbacks. */
static inline void lock_assert_held(struct lock *l) ASSERT_CAPABILITY(*l) {
    assert_slow(pthread_mutex_trylock(&l->mutex) != 0);
    (void)l;
}

/* A condition variable with CLOCK_MONOTONIC deadlines. */
struct lock_condition {
    pthread_cond_t condition;
};

static inline void lock_condition_init(struct lock_condition *c) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}
static inline void lock_condition_destroy(struct lock_condition *c) {
    pthread_cond_destroy(&c->condition);
}
static inline void lock_condition_wait(struct lock_condition *c, struct lock *l) REQUIRES(*l) {
    pthread_cond_wait(&c->condition, &l->mutex);
}
/* Returns false if the deadline has passed. */
static inline bool lock_condition_wait_until(struct lock_condition *c, struct lock *l,
                                             const struct timespec *deadline) REQUIRES(*l) {
    return pthread_cond_timedwait(&c->condition, &l->mutex, deadline) == 0;
}
static inline void lock_condition_signal(struct lock_condition *c) {
    pthread_cond_signal(&c->condition);
}
static inline void lock_condition_broadcast(struct lock_condition *c) {
    pthread_cond_broadcast(&c->condition);
}

/* State that belongs to one thread and needs no lock: members are GUARDED_BY the role, functions
 * REQUIRE it, and entry points assert it. Sanitizer builds compare thread ids; release builds
 * check nothing. The first thread that asserts it after lock_role_init or lock_role_end owns it. */
struct CAPABILITY("thread role") lock_role {
    uintptr_t thread; /* 0: no owner */
};

static inline void lock_role_init(struct lock_role *r) {
    __atomic_store_n(&r->thread, 0, __ATOMIC_RELAXED);
}
static inline void lock_role_assert(struct lock_role *r) ASSERT_CAPABILITY(*r) {
#if ASSERT_SLOW
    uintptr_t nobody = 0, me = (uintptr_t)pthread_self();
    bool mine = __atomic_compare_exchange_n(&r->thread, &nobody, me, false,
                                            __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
                nobody == me;
    assert(mine);
#else
    (void)r;
#endif
}
/* Releases ownership. The caller must order this before another thread asserts the role. */
static inline void lock_role_end(struct lock_role *r) { lock_role_init(r); }

#endif
