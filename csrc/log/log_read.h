/* Reads with append.lock held. */
#ifndef PYLOG_LOG_READ_H
#define PYLOG_LOG_READ_H

#include <stdint.h>

#include "log/log_internal.h"

/* log_read up to the log's end, with append.lock held. */
int log_read_locked(struct log *log, int64_t offset, int32_t bytes_max, struct log_range *out);

#endif
