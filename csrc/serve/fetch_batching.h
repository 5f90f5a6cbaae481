/* Decides when to answer a long poll that could be answered now. A reactor with spare time
 * answers at once. A reactor that spends too much time on short responses to many consumers
 * waits a little and then sends more records per response.
 *
 * Each short response adds GATHER_SHARE times its modelled cost to the reactor's debt, and
 * passing time pays it off. While the debt is a millisecond or more, consumers wait until it is
 * paid off. They are then answered together, with the same bytes. With few consumers there is no
 * delay, because they cannot overload a reactor. Pure: callers pass times of the monotonic
 * clock. */
#ifndef PYLOG_FETCH_BATCHING_H
#define PYLOG_FETCH_BATCHING_H

#include <stdint.h>

enum {
    GATHER_ANSWER_NS = 16000, /* cost of a response, plus 1 ns per GATHER_BYTES_PER_NS bytes */
    GATHER_BYTES_PER_NS = 5,
    GATHER_SHARE = 16,       /* 1/16 of the reactor's time may go into short responses */
    GATHER_READERS_MIN = 4,  /* fewer consumers are never delayed */
    GATHER_BYTES = 256 << 10, /* responses of this size are sent at once */
    GATHER_WINDOW_MS = 64    /* consumers are counted over this and the preceding window */
};

struct gather {
    int64_t wait_ms_max; /* 0: never delay */
    int64_t owed_ns, fresh_ns; /* debt up to at_ms; debt added in that millisecond */
    int64_t at_ms, until_ms, window_ms;
    uint64_t readers, readers_before; /* of this window and the one before; one bit per consumer */
};

void gather_init(struct gather *g, int64_t wait_ms_max);
/* Records a short response of `bytes` bytes. `reader`: a number that identifies the consumer. */
void gather_answered(struct gather *g, uint32_t reader, int64_t bytes, int64_t now_ms);
/* Returns how many consumers were answered recently, estimated with one bit each. */
static inline int gather_readers(const struct gather *g) {
    return __builtin_popcountll(g->readers | g->readers_before);
}
/* Returns until when a short response is delayed; 0: send it now. */
int64_t gather_until(struct gather *g, int64_t now_ms);

#endif
