/* Reading what is not in the page cache, and leaving the page cache as it was.
 *
 * A range that is not resident is read in on a worker, so that no reactor waits for a disk, and is
 * forgotten again once its reader has gone on: whoever reads a log's history must not push out what
 * the others are about to read. What was resident before is never forgotten; the kernel tells by
 * cachestat (Linux 6.5). Where it does not, nothing is forgotten.
 *
 * Measured on Linux 6.18 with ext4 (1 MiB ranges over loopback, CPU of the sending side a GB): to
 * splice the pages into /dev/null and sendfile them 0.14-0.18 s, to copy them once and sendfile
 * 0.18-0.20, to read them past the cache and send (O_DIRECT) 0.16-0.25 at 40 % of the speed, the
 * same with RWF_DONTCACHE 0.31-0.38, with POSIX_FADV_WILLNEED 0.49-0.56: then the pages come one by
 * one and not in large folios. To forget them costs 0.005.
 *
 * Threads: any; a stream is worked on by one at a time, others leave it alone. */
#ifndef PYLOG_COLD_H
#define PYLOG_COLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "thread/lock.h"

struct log_range;
struct segment;

enum { COLD_STREAMS_MAX = 64 };

/* One reader on its way through a segment. [from, known) was not resident when it was first looked
 * at, unless `warm_at`, where resident pages begin, is below `known`. */
struct cold_stream {
    struct segment *segment; /* one reference; NULL: free */
    int64_t next;            /* where its next range begins */
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
/* Whether this range goes on where a range that was read from the disk ended. */
bool cold_expects(struct cold *cold, const struct log_range *range);
/* Brings the range into the page cache; blocks. Forgets what its reader has left behind. True: some
 * of it came from the disk. */
bool cold_read(struct cold *cold, const struct log_range *range);
/* Forgets what readers left behind that did not come back for a second (`all`: at once). Blocks. */
void cold_sweep(struct cold *cold, bool all);
/* Bytes of [position, position + length) that are resident; -1: the kernel cannot tell. */
int64_t cold_resident(int fd, int64_t position, int64_t length);

#endif
