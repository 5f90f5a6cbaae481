/* The threads that flush the logs of one log directory in groups. */
#ifndef PYLOG_FLUSHER_H
#define PYLOG_FLUSHER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "os/lock.h"

struct log;
struct log_dir;
/* Returns 0 or an errno. */
int flusher_start(struct log_dir *dir);
/* Flushes all requested logs, then joins the threads. */
void flusher_stop(struct log_dir *dir);

#endif
