/* Responses to consumers at the end of a log: when to send them, and which copies they share
 * with other consumers that read the same records. */
#include "serve/fetch_internal.h"

#include "format/assertion.h"

bool fetch_gathers(struct serve *s, struct serve_request *r, struct fetch *f) {
    if (!fetch_is_short(f)) return false;
    int64_t until_ms = gather_until(&s->gather, r->now_ms), last_ms = r->received_ms + f->wait_ms;
    if (until_ms == 0 || last_ms <= r->now_ms) return false;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) fetch_release(p->read);
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
