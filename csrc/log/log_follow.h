/* The empty log of a follower whose leader begins later. */
#ifndef PYLOG_LOG_FOLLOW_H
#define PYLOG_LOG_FOLLOW_H

#include <stdint.h>

#include "log/log_struct.h"

/* Sets the start and end of an empty log whose files do not exist yet. */
void log_begin_at(struct log *log, int64_t offset) LOG_APPENDING(log);

#endif
