/* The I/O pool: a bounded list of embedded jobs, and threads that run them in order. */
#include "os/io_pool.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "os/lock.h"
#include "os/stack.h"
#include "os/time_slice.h"

struct worker {
    struct iopool *pool;
    pthread_t thread;
    bool begun;
    bool leaves; /* protected by the pool's lock */
};
struct iopool {
    struct lock lock;
    struct lock_condition more;
    uint32_t jobs_max;
    struct iojob *first GUARDED_BY(lock), **last GUARDED_BY(lock);
    struct iojob *patient_first GUARDED_BY(lock), **patient_last GUARDED_BY(lock);
    uint32_t waiting GUARDED_BY(lock); /* jobs in both lists */
    int threads GUARDED_BY(lock), patient_running GUARDED_BY(lock);
    bool closing GUARDED_BY(lock);
    _Atomic uint64_t done;
    void *(*scratch_new)(void);
    void (*scratch_free)(void *);
    struct worker workers[IOPOOL_THREADS_MAX];
};

static struct iojob *iopool_take(struct iopool *pool) REQUIRES(pool->lock) {
    struct iojob *job = pool->first;
    assert(pool->waiting > 0 || (job == NULL && pool->patient_first == NULL));
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

/* Returns the next job, or NULL if the worker must exit. `was_patient`: the job it just finished
 * was patient. */
static struct iojob *iopool_next(struct worker *worker, bool was_patient) {
    struct iopool *pool = worker->pool;
    struct iojob *job = NULL;
    lock_acquire(&pool->lock);
    if (was_patient) {
        assert(pool->patient_running > 0);
        pool->patient_running--;
        /* Workers may be waiting because half of the pool ran patient jobs or, when closing,
         * because patient jobs were queued. */
        if (pool->closing)
            lock_condition_broadcast(&pool->more);
        else if (pool->patient_first != NULL)
            lock_condition_signal(&pool->more);
    }
    while (!worker->leaves && (job = iopool_take(pool)) == NULL &&
           !(pool->closing && pool->patient_first == NULL))
        lock_condition_wait(&pool->more, &pool->lock);
    assert(job != NULL || worker->leaves || pool->closing);
    if (job != NULL) pool->waiting--;
    lock_release(&pool->lock);
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
        /* Copy fields first: without a mailbox, run may free the job. */
        patient = job->patient;
        time_slice_request(&slice_ns, patient ? SLICES_LONG_NS : SLICES_USUAL_NS);
        struct mailbox *mailbox = job->mailbox;
        struct message message = {.kind = MESSAGE_IO_DONE, .token = job->token, .data = job};
        message.status = job->run(job, scratch);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_relaxed);
        if (mailbox == NULL) continue;
        job->done.message = message;
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
    *pool = (struct iopool){.jobs_max = jobs_max,
                            .last = &pool->first,
                            .patient_last = &pool->patient_first,
                            .scratch_new = scratch_new,
                            .scratch_free = scratch_free};
    lock_init(&pool->lock);
    lock_condition_init(&pool->more);
    if (iopool_resize(pool, threads) || pool->workers[0].begun) return pool;
    iopool_free(pool);
    return NULL;
}

static bool begin(struct iopool *pool, struct worker *worker) {
    assert(!worker->begun);
    worker->pool = pool;
    lock_acquire(&pool->lock);
    worker->leaves = false;
    lock_release(&pool->lock);
    worker->begun = stack_begin(&worker->thread, iopool_work, worker) == 0;
    return worker->begun;
}

bool iopool_resize(struct iopool *pool, int threads) {
    assert(threads > 0 && threads <= IOPOOL_THREADS_MAX);
    lock_acquire(&pool->lock);
    pool->threads = threads;
    for (int i = threads; i < IOPOOL_THREADS_MAX; i++) pool->workers[i].leaves = true;
    lock_condition_broadcast(&pool->more);
    lock_release(&pool->lock);
    for (int i = threads; i < IOPOOL_THREADS_MAX; i++) {
        if (pool->workers[i].begun) pthread_join(pool->workers[i].thread, NULL);
        pool->workers[i].begun = false;
    }
    for (int i = 0; i < threads; i++)
        if (!pool->workers[i].begun && !begin(pool, &pool->workers[i])) return false;
    return true;
}

bool iopool_submit(struct iopool *pool, struct iojob *job) {
    assert(job->run != NULL);
    lock_acquire(&pool->lock);
    bool accepted = !pool->closing && pool->waiting < pool->jobs_max;
    if (accepted) {
        struct iojob ***last = job->patient ? &pool->patient_last : &pool->last;
        job->next = NULL;
        **last = job;
        *last = &job->next;
        pool->waiting++;
        lock_condition_signal(&pool->more);
    }
    lock_release(&pool->lock);
    return accepted;
}

void iopool_free(struct iopool *pool) {
    if (pool == NULL) return;
    lock_acquire(&pool->lock);
    pool->closing = true;
    lock_condition_broadcast(&pool->more);
    lock_release(&pool->lock);
    for (int i = 0; i < IOPOOL_THREADS_MAX; i++)
        if (pool->workers[i].begun) pthread_join(pool->workers[i].thread, NULL);
    lock_acquire(&pool->lock);
    assert(pool->waiting == 0 && pool->patient_running == 0);
    lock_release(&pool->lock);
    lock_condition_destroy(&pool->more);
    lock_destroy(&pool->lock);
    free(pool);
}

void iopool_stats(const struct iopool *pool, uint64_t *waiting, uint64_t *done) {
    struct iopool *p = (struct iopool *)pool;
    lock_acquire(&p->lock);
    *waiting = p->waiting;
    lock_release(&p->lock);
    *done = atomic_load_explicit(&p->done, memory_order_relaxed);
}
