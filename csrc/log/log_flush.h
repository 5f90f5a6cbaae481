/* The flush of one log, in parts. */
#ifndef PYLOG_LOG_FLUSH_H
#define PYLOG_LOG_FLUSH_H

#include <stdint.h>

#include "log/log_struct.h"

/* Keeps the recovery point at `offset` while a shortage prevents writing a small file. Nothing
 * is lost: a start from this offset rebuilds the file. */
void log_hold_recovery_point(struct log *log, int64_t offset);
void log_flush_publish(struct log *log, int64_t target, uint64_t truncations);
/* Sync a file: by its path below the directory, or a segment's. Return 0, -errno or LOG_E_IO;
 * _index returns 0 if the file is missing, because a start can rebuild it. */
int log_flush_file(struct log_dir *dir, const char *path);
int log_flush_index(struct segment *s, const char *extension);

#endif
