/* Parts of an append that the leader and a follower share. */
#ifndef PYLOG_LOG_APPEND_H
#define PYLOG_LOG_APPEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "log/log_struct.h"
#include "os/lock.h"

void log_publish(struct log *log, struct segment *s, int64_t bytes, int64_t end) LOG_APPENDING(log);
bool log_append_must_roll(const struct log *log, struct segment *s, size_t len,
                          int64_t timestamp, int64_t last_offset, int64_t now_ms)
    REQUIRES_SHARED(log->view.access);
/* Writes all bytes or none: if the disk is full, cuts off a partial write. */
int log_append_write(struct log *log, struct segment *s, const uint8_t *bytes, size_t len)
    LOG_APPENDING(log);
int log_append_check_online(struct log *log);

#endif
