/* Appends short Produce requests of one turn together: one lock, one write and one wake-up per
 * log.
 *
 * Each batch is copied behind earlier batches of the same log, so that its request's frame can
 * be reused and a single write appends all of them. A request is appended separately, after the
 * queued ones, if it is too long, has several parts, belongs to a transaction or counts against
 * a quota. */
#include "serve/produce_internal.h"

#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"

enum {
    GROUPS_MAX = 4,
    GROUP_REQUESTS_MAX = 64,
    GROUP_BYTES_MAX = 32768,
    GROUPED_BYTES_MAX = 4096 /* longest batch: copying it costs as much as a write */
};

struct produce_group {
    struct log *log; /* borrowed through its requests */
    uint32_t count;
    size_t bytes_used;
    struct produce *of[GROUP_REQUESTS_MAX];
    uint8_t bytes[GROUP_BYTES_MAX];
};

struct produce_groups {
    struct produce *first, *last; /* appended, status not yet returned */
    struct produce_group groups[GROUPS_MAX]; /* serve->group_count of them are in use */
};

void produce_free_groups(struct serve *s) {
    assert(s->groups == NULL || (s->group_count == 0 && s->groups->first == NULL));
    free(s->groups);
}

/* Returns the log's group or an empty one, or NULL if there is no room. */
static struct produce_group *group_for(struct serve *s, struct log *log, size_t len) {
    struct produce_groups *all = s->groups;
    for (uint32_t i = 0; i < s->group_count; i++) {
        struct produce_group *g = &all->groups[i];
        if (g->log != log) continue;
        bool room = g->count < GROUP_REQUESTS_MAX && g->bytes_used + len <= GROUP_BYTES_MAX;
        return room ? g : NULL;
    }
    if (s->group_count == GROUPS_MAX) return NULL;
    struct produce_group *g = &all->groups[s->group_count++];
    g->log = log;
    g->count = 0;
    g->bytes_used = 0;
    return g;
}

bool produce_batcher_add(struct serve *s, struct serve_request *r, struct produce *q) {
    assert_slow(produce_batcher_accepts(s, r, q));
    struct produce_part *p = q->parts;
    if (p->error != 0 || p->len > GROUPED_BYTES_MAX || p->recoded != NULL ||
        (p->summary->header.attributes & BATCH_TRANSACTIONAL))
        return false;
    if (s->groups == NULL) s->groups = calloc(1, sizeof *s->groups);
    if (s->groups == NULL) return false;
    struct produce_group *g = group_for(s, p->log, p->len);
    if (g == NULL) {
        produce_batcher_append(s);
        g = group_for(s, p->log, p->len);
    }
    assert(g != NULL && p->base_offset == -1); /* appended only once */
    uint8_t *copy = g->bytes + g->bytes_used;
    memcpy(copy, p->records, p->len);
    p->records = copy;
    g->bytes_used += p->len;
    g->of[g->count++] = q;
    q->request = r;
    q->stage = PRODUCE_QUEUED;
    r->body_needed = !produce_keep_keys(q);
    r->exclusive = false;
    assert(!r->body_needed);
    return true;
}

static void append_group(struct produce_group *g, int64_t now_ms) {
    struct log_append_part parts[GROUP_REQUESTS_MAX];
    assert(g->count > 0);
    for (uint32_t i = 0; i < g->count; i++) {
        struct produce_part *p = g->of[i]->parts;
        assert(p->log == g->log && p->len == batch_bytes(&p->summary->header));
        parts[i].batch = p->records;
        parts[i].len = p->len;
        parts[i].summary = p->summary;
        parts[i].transaction = NULL;
    }
    log_append_for_clients(g->log, parts, g->count, now_ms);
    for (uint32_t i = 0; i < g->count; i++)
        produce_appended(g->of[i]->parts, parts[i].result, &parts[i].out);
}

void produce_batcher_append(struct serve *s) {
    struct produce_groups *all = s->groups;
    if (s->group_count == 0) return;
    int64_t now_ms = serve_wall_ms(s);
    for (uint32_t i = 0; i < s->group_count; i++) {
        struct produce_group *g = &all->groups[i];
        append_group(g, now_ms);
        for (uint32_t k = 0; k < g->count; k++) {
            struct produce *q = g->of[k];
            q->stage = PRODUCE_APPENDED;
            q->next = NULL;
            *(all->first == NULL ? &all->first : &all->last->next) = q;
            all->last = q;
        }
    }
    s->group_count = 0;
}

static struct produce *take_first(struct produce_groups *all) {
    struct produce *q = all->first;
    assert(q->stage == PRODUCE_APPENDED);
    all->first = q->next;
    q->stage = PRODUCE_ACKNOWLEDGE;
    return q;
}

bool serve_is_queued(const struct serve *s) {
    return s->groups != NULL && (s->group_count != 0 || s->groups->first != NULL);
}

struct produce *produce_batcher_next(struct serve *s) {
    if (s->groups == NULL) return NULL;
    produce_batcher_append(s);
    return s->groups->first == NULL ? NULL : take_first(s->groups);
}

void produce_batcher_cancel(struct serve *s, struct produce *q) {
    if (q->stage == PRODUCE_QUEUED) produce_batcher_append(s);
    if (q->stage != PRODUCE_APPENDED) return;
    struct produce_groups *all = s->groups;
    if (all->first == q) {
        take_first(all);
        return;
    }
    struct produce *before = all->first;
    while (before->next != q) before = before->next;
    before->next = q->next;
    if (all->last == q) all->last = before;
    q->stage = PRODUCE_ACKNOWLEDGE;
}
