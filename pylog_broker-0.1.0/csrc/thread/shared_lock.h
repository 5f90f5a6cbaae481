/* A lock that many readers have together, or one writer alone; as lock.h, checked by Clang. */
#ifndef PYLOG_SHARED_LOCK_H
#define PYLOG_SHARED_LOCK_H

#include "thread/lock.h"

/* Of a function: it gives back the lock, whether a reader's or the writer's. */
#define RELEASE_GENERIC(...) LOCK_ATTRIBUTE(release_generic_capability(__VA_ARGS__))

struct CAPABILITY("shared lock") shared_lock {
    pthread_rwlock_t rwlock;
};

/* False: the system gives none. */
static inline bool shared_lock_init(struct shared_lock *l) {
    return pthread_rwlock_init(&l->rwlock, NULL) == 0;
}
static inline void shared_lock_destroy(struct shared_lock *l) {
    int result = pthread_rwlock_destroy(&l->rwlock);
    assert(result == 0); /* EBUSY: somebody still has it. */
    (void)result;
}
static inline void shared_lock_read(struct shared_lock *l)
    ACQUIRE_SHARED(*l) NO_THREAD_SAFETY_ANALYSIS {
    int result = pthread_rwlock_rdlock(&l->rwlock);
    assert(result == 0); /* EDEADLK: this thread writes. */
    (void)result;
}
static inline void shared_lock_write(struct shared_lock *l) ACQUIRE(*l) NO_THREAD_SAFETY_ANALYSIS {
    int result = pthread_rwlock_wrlock(&l->rwlock);
    assert(result == 0); /* EDEADLK: this thread has it already. */
    (void)result;
}
static inline void shared_lock_release(struct shared_lock *l)
    RELEASE_GENERIC(*l) NO_THREAD_SAFETY_ANALYSIS {
    pthread_rwlock_unlock(&l->rwlock);
}

#endif
