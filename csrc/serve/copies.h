/* Bytes of logs that several readers want, read from the file once and sent to each from memory.
 *
 * A range that was asked for once is remembered; who asks for the same bytes again has them copied,
 * and all others share that copy. A range is the same when its segment and position are, and the
 * log was not cut since. Threads: one reactor's own, with the answers that hold copies.
 *
 * Invariants: (1) the copies that are remembered take at most COPIES_BYTES_MAX; (2) an entry holds
 * its segment, so that no other one is taken for it; (3) nothing that a second went by without is
 * remembered. */
#ifndef PYLOG_COPIES_H
#define PYLOG_COPIES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "format/assertion.h"
#include "log/log.h"

enum {
    COPIES_MAX = 128,
    COPIES_BYTES_MAX = 4 << 20,
    COPY_BYTES_MAX = 64 << 10 /* what is longer costs less by sendfile (bench/csrc/reply.c) */
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

/* The range's bytes: one reference. NULL: memory or the file refused, or a disk would have to be
 * waited for. */
struct copy *copy_read(const struct log_range *range);

struct copies_entry {
    struct segment *segment; /* one reference; NULL: the entry is free */
    struct copy *copy;       /* one reference; NULL: one reader asked so far */
    int64_t position;
    uint64_t truncations;
    bool used; /* since the last tick */
};
struct copies {
    struct copies_entry entries[COPIES_MAX];
    uint64_t bytes; /* of the copies that are remembered */
};

void copies_init(struct copies *c);
void copies_clear(struct copies *c);
/* Each second. Keeps (3). */
void copies_tick(struct copies *c);
/* A copy that begins with the range's bytes: one reference. NULL: nobody else asked for them so far
 * (`many`: others will), they are too many, they are not in the page cache, or memory is short. */
struct copy *copies_take(struct copies *c, const struct log_range *range, bool many);

#endif
