/* Memory and locks that a program must release, and allocations that fail on demand. Linked with
 * programs.WATCHED; exactly one source of a program includes it. */
#ifndef PYLOG_WATCHED_H
#define PYLOG_WATCHED_H

#include <pthread.h>
#include <stdatomic.h>

#include "scenes.h"

static atomic_long watched_blocks, watched_locks;
/* Per thread: remaining allocations, -1: unlimited; failures after those, before allocations
 * succeed again; blocks held. */
static _Thread_local long blocks_left = -1, refusals_left = -1;
static _Thread_local int watched_held;

static bool watched_refused(void) {
    if (blocks_left < 0) return false;
    if (blocks_left > 0) {
        blocks_left--;
        return false;
    }
    if (refusals_left > 0 && --refusals_left == 0) blocks_left = refusals_left = -1;
    return true;
}

#define REAL(type, name, ...)                                                                      \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)

/* A block is preceded by its size and followed by a fence that is no address and must not be
 * overwritten. */
enum { FENCE_BYTES = 16, FENCE = 0xa5 };
struct watched_block {
    size_t bytes;
    uint64_t mark;
};
static const uint64_t WATCHED_MARK = 0x9e3779b97f4a7c15u;

void *__real_malloc(size_t n);
void __real_free(void *p);

static void *watched_new(size_t n) {
    if (watched_refused()) return NULL;
    struct watched_block *block = __real_malloc(sizeof *block + n + FENCE_BYTES);
    CHECK(block != NULL);
    *block = (struct watched_block){n, WATCHED_MARK};
    memset((uint8_t *)(block + 1) + n, FENCE, FENCE_BYTES);
    atomic_fetch_add(&watched_blocks, 1);
    return block + 1;
}

static struct watched_block *watched_block(void *p) {
    struct watched_block *block = (struct watched_block *)p - 1;
    CHECK(block->mark == WATCHED_MARK);
    for (int i = 0; i < FENCE_BYTES; i++) CHECK(((uint8_t *)p)[block->bytes + (size_t)i] == FENCE);
    return block;
}

REAL(void *, malloc, size_t n) { return watched_new(n); }
REAL(void *, calloc, size_t n, size_t size) {
    void *p = watched_new(n * size);
    return p == NULL ? NULL : memset(p, 0, n * size);
}
REAL(void, free, void *p) {
    if (p == NULL) return;
    struct watched_block *block = watched_block(p);
    block->mark = 0;
    atomic_fetch_sub(&watched_blocks, 1);
    __real_free(block);
}
REAL(void *, realloc, void *p, size_t n) {
    void *grown = watched_new(n);
    if (grown == NULL || p == NULL) return grown;
    size_t bytes = watched_block(p)->bytes;
    memcpy(grown, p, bytes < n ? bytes : n);
    __wrap_free(p);
    return grown;
}
REAL(char *, strndup, const char *s, size_t n) {
    size_t len = strnlen(s, n);
    char *p = watched_new(len + 1);
    if (p == NULL) return NULL;
    p[len] = 0;
    return memcpy(p, s, len);
}
REAL(char *, strdup, const char *s) { return __wrap_strndup(s, strlen(s)); }

/* A mutex that is locked twice, or unlocked by another thread, is reported. */
REAL(int, pthread_mutex_init, pthread_mutex_t *m, const pthread_mutexattr_t *given) {
    pthread_mutexattr_t checked;
    (void)given;
    pthread_mutexattr_init(&checked);
    pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
    atomic_fetch_add(&watched_locks, 1);
    int result = __real_pthread_mutex_init(m, &checked);
    pthread_mutexattr_destroy(&checked);
    return result;
}
REAL(int, pthread_mutex_destroy, pthread_mutex_t *m) {
    atomic_fetch_sub(&watched_locks, 1);
    return __real_pthread_mutex_destroy(m);
}
REAL(int, pthread_mutex_lock, pthread_mutex_t *m) {
    CHECK(__real_pthread_mutex_lock(m) == 0);
    return 0;
}
REAL(int, pthread_mutex_unlock, pthread_mutex_t *m) {
    CHECK(__real_pthread_mutex_unlock(m) == 0);
    return 0;
}

/* A thread holds at most one of these. */
REAL(int, pthread_rwlock_init, pthread_rwlock_t *l, const pthread_rwlockattr_t *given) {
    if (watched_refused()) return 1;
    atomic_fetch_add(&watched_locks, 1);
    return __real_pthread_rwlock_init(l, given);
}
REAL(int, pthread_rwlock_destroy, pthread_rwlock_t *l) {
    atomic_fetch_sub(&watched_locks, 1);
    return __real_pthread_rwlock_destroy(l);
}
REAL(int, pthread_rwlock_rdlock, pthread_rwlock_t *l) {
    CHECK(watched_held++ == 0);
    return __real_pthread_rwlock_rdlock(l);
}
REAL(int, pthread_rwlock_wrlock, pthread_rwlock_t *l) {
    CHECK(watched_held++ == 0);
    return __real_pthread_rwlock_wrlock(l);
}
REAL(int, pthread_rwlock_unlock, pthread_rwlock_t *l) {
    CHECK(watched_held-- == 1);
    return __real_pthread_rwlock_unlock(l);
}

/* Called at the end of a scene. */
static inline void check_given_back(void) {
    CHECK(blocks_left == -1 && refusals_left == -1 && watched_held == 0);
    CHECK(atomic_load(&watched_blocks) == 0);
    CHECK(atomic_load(&watched_locks) == 0);
}

#endif
