/* Log bytes that several consumers read: read once from the file, then sent to each of them from
 * memory.
 *
 * The first read of a range only records it. The second read copies the bytes, and all further
 * readers share that copy. Two ranges are the same if segment and position match and the log has
 * not been truncated in between. Threads: each reactor has its own table, and the copies stay on
 * that reactor.
 *
 * Invariants: memory is bounded: the cached copies take at most COPIES_BYTES_MAX; entries are
 * unambiguous: an entry holds a reference on its segment, so its address is not reused; entries
 * are recent: an entry that is not used for a second is dropped. */
#ifndef PYLOG_SHARED_READS_H
#define PYLOG_SHARED_READS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "format/assertion.h"
#include "log/log.h"

enum {
    COPIES_MAX = 128,
    COPIES_BYTES_MAX = 4 << 20,
    COPY_BYTES_MAX = 64 << 10 /* sendfile is cheaper for longer ranges (bench/csrc/reply.c) */
};

struct copy {
    uint32_t references;
    int32_t length;
    uint8_t bytes[];
};

static inline void copy_retain(struct copy *c) {
    assert(c->references > 0);
    c->references++;
}
static inline void copy_release(struct copy *c) {
    assert(c->references > 0);
    if (--c->references == 0) free(c);
}

/* Reads the range's bytes and returns one reference. Returns NULL if memory ran out, the file
 * could not be read, or reading would wait for a disk. */
struct copy *copy_read(const struct log_range *range);

struct copies_entry {
    struct segment *segment; /* one reference; NULL: free entry */
    struct copy *copy;       /* one reference; NULL: only one reader so far */
    int64_t position;
    uint64_t truncations;
    bool used; /* since the last tick */
};
struct copies {
    struct copies_entry entries[COPIES_MAX];
    uint64_t bytes; /* total size of the cached copies */
};

void copies_init(struct copies *c);
void copies_clear(struct copies *c);
/* Call each second. Keeps entries recent. */
void copies_tick(struct copies *c);
/* Returns a copy that begins with the range's bytes, with one reference. Returns NULL if this is
 * the first reader (unless `many`: more readers are expected), the range is too long, its bytes
 * are not in the page cache, or memory ran out. */
struct copy *copies_take(struct copies *c, const struct log_range *range, bool many);

#endif
