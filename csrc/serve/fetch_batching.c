/* The debt of a millisecond counts from the next millisecond on, so that consumers woken
 * together are answered together. */
#include "serve/fetch_batching.h"

#include "format/assertion.h"

enum { NS_PER_MS_OWED = 1000000 };

void gather_init(struct gather *g, int64_t wait_ms_max) {
    assert(wait_ms_max >= 0);
    *g = (struct gather){.wait_ms_max = wait_ms_max};
}

static void go_on(struct gather *g, int64_t now_ms) {
    if (now_ms == g->at_ms) return;
    assert_slow(now_ms > g->at_ms); /* the clock is monotonic */
    int64_t elapsed_ms = now_ms - g->at_ms, max_ns = 2 * g->wait_ms_max * NS_PER_MS_OWED;
    int64_t owed_ns = g->owed_ns + g->fresh_ns;
    /* Limit the debt, so that delays end soon after a burst. */
    if (owed_ns > max_ns) owed_ns = max_ns;
    owed_ns = elapsed_ms >= owed_ns / NS_PER_MS_OWED + 1 ? 0
                                                         : owed_ns - elapsed_ms * NS_PER_MS_OWED;
    g->owed_ns = owed_ns < 0 ? 0 : owed_ns;
    g->fresh_ns = 0;
    g->at_ms = now_ms;
    if (now_ms - g->window_ms < GATHER_WINDOW_MS) return;
    g->readers_before = now_ms - g->window_ms < 2 * GATHER_WINDOW_MS ? g->readers : 0;
    g->readers = 0;
    g->window_ms = now_ms;
}

void gather_answered(struct gather *g, uint32_t reader, int64_t bytes, int64_t now_ms) {
    assert_slow(bytes >= 0);
    go_on(g, now_ms);
    g->readers |= (uint64_t)1 << (reader & 63);
    g->fresh_ns += GATHER_SHARE * (GATHER_ANSWER_NS + bytes / GATHER_BYTES_PER_NS);
}

int64_t gather_until(struct gather *g, int64_t now_ms) {
    if (g->wait_ms_max == 0) return 0;
    if (now_ms < g->until_ms) return g->until_ms;
    go_on(g, now_ms);
    if (gather_readers(g) < GATHER_READERS_MIN) return 0;
    int64_t wait_ms = g->owed_ns / NS_PER_MS_OWED;
    if (wait_ms > g->wait_ms_max) wait_ms = g->wait_ms_max;
    if (wait_ms == 0) return 0;
    assert(wait_ms > 0);
    return g->until_ms = now_ms + wait_ms;
}
