/* Worker threads for what may block: cold reads, large inflations, preallocation, flushes, unlinks.
 * A bounded queue; a job is embedded in its owner's structure, so queueing allocates nothing. */
#ifndef PYLOG_IOPOOL_H
#define PYLOG_IOPOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "thread/mailbox.h"

enum { IOPOOL_THREADS_MAX = 256 };

struct iopool;

struct iojob {
    struct iojob *next;
    int (*run)(struct iojob *job,
               void *worker_scratch); /* on a worker; the result becomes the message's status */
    struct mailbox *mailbox;          /* NULL: nobody is informed (run frees by itself) */
    uint64_t token;                   /* MESSAGE_IO_DONE with this token and data = the job */
    struct message_link done;         /* that message: it needs no room in the mailbox */
    bool patient; /* goes after the others, takes with its kind at most half the workers, and gives
                     way to every thread that wakes up (slices.h) */
};

/* `scratch_new/free`: a per-worker context handed to run (an inflater and buffers); may be NULL. */
struct iopool *iopool_new(int threads, uint32_t jobs_max, void *(*scratch_new)(void),
                          void (*scratch_free)(void *));
/* False when the queue is full or closing: the caller does the work itself or answers an error. */
bool iopool_submit(struct iopool *pool, struct iojob *job);
/* One caller at a time; waits for the jobs of the threads that are too many. False: fewer than
 * `threads` could be had. */
bool iopool_resize(struct iopool *pool, int threads);
/* Runs what is queued, then joins. */
void iopool_free(struct iopool *pool);
/* Jobs waiting now, and done since the start. */
void iopool_stats(const struct iopool *pool, uint64_t *waiting, uint64_t *done);

#endif
