/* A readers-writer lock, checked by Clang like lock.h. */
#ifndef PYLOG_SHARED_LOCK_H
#define PYLOG_SHARED_LOCK_H

#include "os/lock.h"

/* For a function that releases the lock, whether held by a reader or the writer. */
#define RELEASE_GENERIC(...) LOCK_ATTRIBUTE(release_generic_capability(__VA_ARGS__))

struct CAPABILITY("shared lock") shared_lock {
    pthread_rwlock_t rwlock;
};

/* Returns false if the system cannot create the lock. */
static inline bool shared_lock_init(struct shared_lock *l) {
    return pthread_rwlock_init(&l->rwlock, NULL) == 0;
}
static inline void shared_lock_destroy(struct shared_lock *l) {
    int result = pthread_rwlock_destroy(&l->rwlock);
    assert(result == 0); /* EBUSY: a thread still holds it */
    (void)result;
}
static inline void shared_lock_read(struct shared_lock *l)
    ACQUIRE_SHARED(*l) NO_THREAD_SAFETY_ANALYSIS {
    int result = pthread_rwlock_rdlock(&l->rwlock);
    assert(result == 0); /* EDEADLK: this thread holds it for writing */
    (void)result;
}
static inline void shared_lock_write(struct shared_lock *l) ACQUIRE(*l) NO_THREAD_SAFETY_ANALYSIS {
    int result = pthread_rwlock_wrlock(&l->rwlock);
    assert(result == 0); /* EDEADLK: this thread already holds it */
    (void)result;
}
static inline void shared_lock_release(struct shared_lock *l)
    RELEASE_GENERIC(*l) NO_THREAD_SAFETY_ANALYSIS {
    pthread_rwlock_unlock(&l->rwlock);
}

#endif
