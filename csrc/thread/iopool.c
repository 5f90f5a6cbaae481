/* The io pool: a bounded list of embedded jobs, and threads that take them in order. */
#include "thread/iopool.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "thread/slices.h"

enum { IOPOOL_STACK_BYTES = 256 * 1024 };

struct worker {
    struct iopool *pool;
    pthread_t thread;
    bool begun;
    bool leaves; /* under the pool's lock once it runs */
};
struct iopool {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct iojob *first, **last;
    struct iojob *patient_first, **patient_last;
    uint32_t waiting, jobs_max;
    int threads, patient_running;
    bool closing;
    _Atomic uint64_t done;
    void *(*scratch_new)(void);
    void (*scratch_free)(void *);
    struct worker workers[IOPOOL_THREADS_MAX];
};

static struct iojob *iopool_take(struct iopool *pool) {
    struct iojob *job = pool->first;
    if (job != NULL) {
        pool->first = job->next;
        if (pool->first == NULL) pool->last = &pool->first;
        return job;
    }
    if (pool->patient_first == NULL || pool->patient_running * 2 >= pool->threads) return NULL;
    job = pool->patient_first;
    pool->patient_first = job->next;
    if (pool->patient_first == NULL) pool->patient_last = &pool->patient_first;
    pool->patient_running++;
    return job;
}

/* NULL: the worker is to end. `was_patient`: of the job that it comes from. */
static struct iojob *iopool_next(struct worker *worker, bool was_patient) {
    struct iopool *pool = worker->pool;
    struct iojob *job = NULL;
    pthread_mutex_lock(&pool->lock);
    if (was_patient) {
        pool->patient_running--;
        /* Some may have waited for the half, or at the end for the last of them to be taken. */
        if (pool->closing)
            pthread_cond_broadcast(&pool->more);
        else if (pool->patient_first != NULL)
            pthread_cond_signal(&pool->more);
    }
    while (!worker->leaves && (job = iopool_take(pool)) == NULL &&
           !(pool->closing && pool->patient_first == NULL))
        pthread_cond_wait(&pool->more, &pool->lock);
    if (job != NULL) pool->waiting--;
    pthread_mutex_unlock(&pool->lock);
    return job;
}

static void *iopool_work(void *argument) {
    struct worker *worker = argument;
    struct iopool *pool = worker->pool;
    pthread_setname_np(pthread_self(), "io-worker");
    void *scratch = pool->scratch_new != NULL ? pool->scratch_new() : NULL;
    struct iojob *job;
    bool patient = false;
    uint32_t slice_ns = SLICES_USUAL_NS;
    while ((job = iopool_next(worker, patient)) != NULL) {
        /* The job may be freed by run when nobody is told: its fields are read first. */
        patient = job->patient;
        slices_ask(&slice_ns, patient ? SLICES_LONG_NS : SLICES_USUAL_NS);
        struct mailbox *mailbox = job->mailbox;
        struct letter letter = {.kind = LETTER_IO_DONE, .token = job->token, .data = job};
        letter.status = job->run(job, scratch);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_relaxed);
        if (mailbox == NULL) continue;
        job->done.letter = letter;
        mailbox_post_link(mailbox, &job->done);
    }
    if (pool->scratch_free != NULL && scratch != NULL) pool->scratch_free(scratch);
    return NULL;
}

struct iopool *iopool_new(int threads, uint32_t jobs_max, void *(*scratch_new)(void),
                          void (*scratch_free)(void *)) {
    assert(threads > 0 && threads <= IOPOOL_THREADS_MAX && jobs_max > 0);
    struct iopool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->more, NULL);
    pool->last = &pool->first;
    pool->patient_last = &pool->patient_first;
    pool->jobs_max = jobs_max;
    pool->scratch_new = scratch_new;
    pool->scratch_free = scratch_free;
    if (iopool_resize(pool, threads) || pool->workers[0].begun) return pool;
    iopool_free(pool);
    return NULL;
}

static bool begin(struct iopool *pool, struct worker *worker) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, IOPOOL_STACK_BYTES);
    worker->pool = pool;
    worker->leaves = false;
    worker->begun = pthread_create(&worker->thread, &attributes, iopool_work, worker) == 0;
    pthread_attr_destroy(&attributes);
    return worker->begun;
}

bool iopool_resize(struct iopool *pool, int threads) {
    assert(threads > 0 && threads <= IOPOOL_THREADS_MAX);
    pthread_mutex_lock(&pool->lock);
    pool->threads = threads;
    for (int i = threads; i < IOPOOL_THREADS_MAX; i++) pool->workers[i].leaves = true;
    pthread_cond_broadcast(&pool->more);
    pthread_mutex_unlock(&pool->lock);
    for (int i = threads; i < IOPOOL_THREADS_MAX; i++) {
        if (pool->workers[i].begun) pthread_join(pool->workers[i].thread, NULL);
        pool->workers[i].begun = false;
    }
    for (int i = 0; i < threads; i++)
        if (!pool->workers[i].begun && !begin(pool, &pool->workers[i])) return false;
    return true;
}

bool iopool_submit(struct iopool *pool, struct iojob *job) {
    pthread_mutex_lock(&pool->lock);
    bool taken = !pool->closing && pool->waiting < pool->jobs_max;
    if (taken) {
        struct iojob ***last = job->patient ? &pool->patient_last : &pool->last;
        job->next = NULL;
        **last = job;
        *last = &job->next;
        pool->waiting++;
        pthread_cond_signal(&pool->more);
    }
    pthread_mutex_unlock(&pool->lock);
    return taken;
}

void iopool_free(struct iopool *pool) {
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->more);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < IOPOOL_THREADS_MAX; i++)
        if (pool->workers[i].begun) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->more);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void iopool_stats(const struct iopool *pool, uint64_t *waiting, uint64_t *done) {
    struct iopool *p = (struct iopool *)pool;
    pthread_mutex_lock(&p->lock);
    *waiting = p->waiting;
    pthread_mutex_unlock(&p->lock);
    *done = atomic_load_explicit(&p->done, memory_order_relaxed);
}
