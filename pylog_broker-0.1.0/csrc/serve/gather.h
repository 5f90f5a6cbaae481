/* When a long poll is answered that could be answered now: at once by a reactor with time, a little
 * later, and then with more, by one that spends too much of its time on short answers to many.
 *
 * What each short answer takes is a debt, GATHER_SHARE times what it costs by a model of the cost,
 * which time pays off. Who owes a millisecond or more lets those who read wait until it is paid;
 * all who wait are answered together then, with the same bytes. Few readers never wait: they could
 * not keep a reactor from anything. Pure: times come from the caller, of the monotonic clock. */
#ifndef PYLOG_GATHER_H
#define PYLOG_GATHER_H

#include <stdint.h>

enum {
    GATHER_ANSWER_NS = 16000, /* what an answer costs, and 1 ns for so many of its bytes */
    GATHER_BYTES_PER_NS = 5,
    GATHER_SHARE = 16,       /* a sixteenth of the reactor's time goes into short answers */
    GATHER_READERS_MIN = 4,  /* fewer are answered in one turn of what is ready */
    GATHER_BYTES = 256 << 10, /* an answer of so much is long, and leaves at once */
    GATHER_WINDOW_MS = 64    /* readers are counted for so long, and as long again */
};

struct gather {
    int64_t wait_ms_max; /* 0: nobody waits */
    int64_t owed_ns, fresh_ns; /* up to at_ms; in that millisecond */
    int64_t at_ms, until_ms, window_ms;
    uint64_t readers, readers_before; /* of this window and the one before, a bit for each */
};

void gather_init(struct gather *g, int64_t wait_ms_max);
/* A short answer of so many bytes goes to the reader. `reader`: any number that is its own. */
void gather_answered(struct gather *g, uint32_t reader, int64_t bytes, int64_t now_ms);
/* How many were answered lately, as far as a word can tell them apart. */
static inline int gather_readers(const struct gather *g) {
    return __builtin_popcountll(g->readers | g->readers_before);
}
/* Until when a short answer waits for more; 0: it leaves now. */
int64_t gather_until(struct gather *g, int64_t now_ms);

#endif
