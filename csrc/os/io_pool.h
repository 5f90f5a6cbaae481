/* Worker threads for calls that may block: cold reads, large decompressions, preallocation,
 * flushes, unlinks. The queue is bounded. Jobs are embedded in their owners' structures, so
 * queueing does not allocate. */
#ifndef PYLOG_IO_POOL_H
#define PYLOG_IO_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "os/mailbox.h"

enum { IOPOOL_THREADS_MAX = 256 };

struct iopool;

struct iojob {
    struct iojob *next;
    int (*run)(struct iojob *job,
               void *worker_scratch); /* on a worker; its result becomes the message's status */
    struct mailbox *mailbox;          /* NULL: no message is sent, and run frees the job */
    uint64_t token;                   /* token of the MESSAGE_IO_DONE, whose data is the job */
    struct message_link done;         /* space for that message, so posting it cannot fail */
    bool patient; /* runs last, on at most half of the workers, with long slices (time_slice.h) */
};

/* `scratch_new/free`: a context per worker, passed to run (an inflater and buffers); may be
 * NULL. */
struct iopool *iopool_new(int threads, uint32_t jobs_max, void *(*scratch_new)(void),
                          void (*scratch_free)(void *));
/* Returns false if the queue is full or closing: the caller runs the job itself or returns an
 * error. */
bool iopool_submit(struct iopool *pool, struct iojob *job);
/* Call from one thread at a time; waits until surplus threads have finished their jobs. Returns
 * false if not all `threads` could be started. */
bool iopool_resize(struct iopool *pool, int threads);
/* Runs all queued jobs, then joins the threads. */
void iopool_free(struct iopool *pool);
/* Number of jobs queued now, and finished since the start. */
void iopool_stats(const struct iopool *pool, uint64_t *waiting, uint64_t *done);

#endif
