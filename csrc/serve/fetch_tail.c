/* Answers to consumers that have read a log to its end: when they leave, and what they share with
 * those to others that read the same. */
#include "serve/fetch_state.h"

#include "format/assertion.h"

bool fetch_gathers(struct serve *s, struct serve_request *r, struct fetch *f) {
    if (!fetch_is_short(f)) return false;
    int64_t until_ms = gather_until(&s->gather, r->now_ms), last_ms = r->received_ms + f->wait_ms;
    if (until_ms == 0 || last_ms <= r->now_ms) return false;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) fetch_release(p->read);
    assert(until_ms > r->now_ms && !f->waiting); /* nothing but its timer may wake it */
    r->deadline_ms = until_ms < last_ms ? until_ms : last_ms;
    return true;
}

/* What the answer copies anyway is read here without waiting for a disk: to ask first whether it is
 * in the page cache, and to read it then, is three calls of the kernel for one. */
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
