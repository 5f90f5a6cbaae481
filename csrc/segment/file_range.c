/* Ranges of a segment's file: reads through the directory's disk functions. */
#include "segment/file_range.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#include "os/disk.h"
#include "segment/log_dir.h"
#include "segment/segment.h"
#include "segment/segment_path.h"

void log_range_release(struct log_range *range) {
    if (range->segment == NULL) return;
    assert(range->fd == range->segment->fd);
    segment_unpin(range->segment);
    segment_release(range->segment);
    range->segment = NULL;
    range->fd = -1;
    range->length = 0;
}

void log_range_failed(const struct log_range *range, int error) {
    log_dir_fail(range->segment->partition->dir, error, "read");
}

ssize_t log_range_read(const struct log_range *range, void *to, size_t len, int64_t position) {
    const struct disk *disk = log_dir_disk(range->segment->partition->dir);
    ssize_t n;
    do n = disk->pread(range->fd, to, len, position);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EIO) log_range_failed(range, errno);
    return n;
}
