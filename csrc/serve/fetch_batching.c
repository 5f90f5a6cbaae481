/* The debt of a millisecond counts from the next millisecond on, so that consumers woken
 * together are answered together. */
#include "serve/fetch_batching.h"

#include "format/assertion.h"
#include "serve/fetch_internal.h"

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

bool fetch_delay_response(struct serve *s, struct serve_request *r, struct fetch *f) {
    if (!fetch_is_short(f)) return false;
    int64_t until_ms = gather_until(&s->gather, r->now_ms), last_ms = r->received_ms + f->wait_ms;
    if (until_ms == 0 || last_ms <= r->now_ms) return false;
    fetch_release_ranges(f);
    assert(until_ms > r->now_ms && !f->waiting); /* only its timer may wake it */
    r->deadline_ms = until_ms < last_ms ? until_ms : last_ms;
    return true;
}

/* Ranges that the response copies anyway are read here without waiting for a disk: checking the
 * page cache first and reading later takes three system calls instead of one. */
void fetch_take_copies(struct serve *s, struct fetch *f) {
    int readers = gather_readers(&s->gather);
    int64_t bytes = 0;
    bool shares = readers >= 2 && fetch_is_short(f);
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        struct fetch_read *read = p->read;
        assert(read->copy == NULL);
        if (read->range.length == 0) continue;
        if (shares)
            read->copy = copies_take(&s->copies, &read->range, readers >= GATHER_READERS_MIN);
        if (read->copy != NULL || read->range.length > REPLY_COPY_BYTES_MAX) continue;
        bytes += read->range.length;
        if (bytes <= REPLY_COPIED_BYTES_MAX) read->copy = copy_read(&read->range);
    }
}

void fetch_release_copies(struct fetch *f) {
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        if (p->read->copy != NULL) copy_release(p->read->copy);
        p->read->copy = NULL;
    }
}
