/* Reads of data outside the page cache, which leave the page cache as it was.
 *
 * A worker reads a range that is not resident, so that no reactor waits for disk, and drops it
 * again after its reader has continued: reading a log's history must not evict pages that other
 * readers need next. Pages that were already resident are never dropped; cachestat (Linux 6.5)
 * reports them. Without cachestat, nothing is dropped.
 *
 * Measured on Linux 6.18 with ext4 (1 MiB ranges over loopback, CPU of the sending side per GB):
 * splicing the pages into /dev/null and sendfile: 0.14-0.18 s; copying them once and sendfile:
 * 0.18-0.20; reading around the cache and sending (O_DIRECT): 0.16-0.25 at 40 % of the speed;
 * the same with RWF_DONTCACHE: 0.31-0.38; POSIX_FADV_WILLNEED: 0.49-0.56, because the pages then
 * arrive one by one and not in large folios. Dropping them costs 0.005.
 *
 * Threads: any; one thread at a time works on a stream, others skip it. */
#ifndef PYLOG_COLD_READS_H
#define PYLOG_COLD_READS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "os/lock.h"

struct log_range;
struct segment;

enum { COLD_STREAMS_MAX = 64 };

/* One reader on its way through a segment. [from, known) was not resident at the first check,
 * unless `warm_at`, where resident pages begin, is below `known`. */
struct cold_stream {
    struct segment *segment; /* one reference; NULL: free */
    int64_t next;            /* start of its next range */
    int64_t from, forgotten, known, warm_at;
    int64_t used_ms;
    bool busy;
};
struct cold {
    struct lock lock;
    int null; /* /dev/null, or -1 */
    _Atomic uint32_t live;
    struct cold_stream streams[COLD_STREAMS_MAX] GUARDED_BY(lock);
};

void cold_init(struct cold *cold);
void cold_clear(struct cold *cold);
/* Returns true if this range begins where a range that was read from disk ended. */
bool cold_expects(struct cold *cold, const struct log_range *range);
/* Reads the range into the page cache; blocks. Drops pages that its reader has passed. Returns
 * true if it read from disk. */
bool cold_read(struct cold *cold, const struct log_range *range);
/* Drops pages of readers that have been idle for a second (`all`: of all readers). Blocks. */
void cold_sweep(struct cold *cold, bool all);
/* Number of resident bytes of [position, position + length); -1 if the kernel cannot report it. */
int64_t cold_resident(int fd, int64_t position, int64_t length);

#endif
