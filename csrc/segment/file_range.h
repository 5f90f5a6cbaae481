/* Ranges of whole batches in one file, for readers. */
#ifndef PYLOG_FILE_RANGE_H
#define PYLOG_FILE_RANGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct segment;

struct log_range {           /* whole batches in one segment; release with log_range_release */
    struct segment *segment; /* holds the descriptor; NULL if length is 0 */
    int fd;
    int64_t position;     /* in the file, in bytes */
    int32_t length;       /* bytes; 0 at the end */
    int64_t first_offset; /* base offset of the first batch (<= the requested offset) */
    int64_t next_offset;  /* the offset after the range, for the next read */
    int64_t high_watermark, last_stable_offset, log_start_offset, log_end_offset;
    uint64_t truncations; /* of the log so far; the next one may change the bytes */
};

void log_range_release(struct log_range *range);
/* log_range_read calls pread on a range's file and retries after a signal. log_range_failed
 * reports a failed read or send of a range to its directory. */
ssize_t log_range_read(const struct log_range *range, void *to, size_t len, int64_t position);
void log_range_failed(const struct log_range *range, int error);

#endif
