/* Allocates, parses and frees Produce requests, v3-13. Finished ones are kept for reuse. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"
#include "serve/produce_internal.h"
#include "serve/wire.h"

void produce_free(struct serve_request *r) {
    struct produce *q = r->state;
    if (q == NULL) return;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (p->waiting) log_unwait(p->log, &p->waiter);
        p->waiting = false;
        produce_set_topic(p, NULL, 0);
        free(p->recoded);
        if (p->summary != &q->summary_first) free(p->summary);
    }
    if (q->parts != q->parts_inline) free(q->parts);
    grant_requests_clear(&q->grant_requests, r);
    r->state = NULL;
    struct serve *s = q->serve;
    if (s->spare_count == PRODUCE_SPARES_MAX) {
        free(q);
        return;
    }
    assert(q->stage != PRODUCE_QUEUED && q->stage != PRODUCE_APPENDED);
    q->next = s->spares;
    s->spares = q;
    s->spare_count++;
}

static struct produce *produce_new(struct serve *s) {
    struct produce *q = s->spares;
    if (q == NULL) {
        q = malloc(sizeof *q);
    } else {
        assert_slow(s->spare_count > 0);
        s->spares = q->next;
        s->spare_count--;
    }
    if (q != NULL) memset(q, 0, offsetof(struct produce, summary_first));
    return q;
}

void produce_free_spares(struct serve *s) {
    while (s->spares != NULL) {
        struct produce *q = s->spares;
        s->spares = q->next;
        free(q);
    }
    s->spare_count = 0;
}

static struct produce_part *produce_add_part(struct produce *q) {
    if (q->part_count == q->part_cap) {
        uint32_t cap = q->part_cap * 2;
        struct produce_part *grown = cap > PRODUCE_PARTS_MAX ? NULL : malloc(cap * sizeof *grown);
        if (grown == NULL) return NULL;
        memcpy(grown, q->parts, q->part_count * sizeof *grown);
        if (q->parts != q->parts_inline) free(q->parts);
        q->parts = grown;
        q->part_cap = cap;
    }
    assert_slow(q->part_count < q->part_cap);
    struct produce_part *p = &q->parts[q->part_count++];
    memset(p, 0, sizeof *p);
    p->base_offset = p->append_time_ms = p->log_start_offset = -1;
    return p;
}

static bool parse_partitions(struct produce *q, struct cursor *c, struct topic_key key) {
    int64_t count = wire_count(c, q->flexible);
    for (int64_t i = 0; i < count && c->p != NULL; i++) {
        int32_t partition = cursor_i32(c);
        int64_t len;
        const uint8_t *records = wire_bytes(c, q->flexible, &len);
        wire_skip_tags(c, q->flexible);
        struct produce_part *p = c->p == NULL ? NULL : produce_add_part(q);
        if (p == NULL) return false;
        p->key = key;
        p->partition = partition;
        p->first_of_topic = i == 0;
        /* The leader stamps the batch in place: the frame belongs to this request. */
        p->records = len < 0 ? NULL : (uint8_t *)(uintptr_t)records;
        p->len = len < 0 ? 0 : (size_t)len;
    }
    return c->p != NULL && count >= 0;
}

static bool produce_parse_body(struct produce *q, const struct serve_request *r) {
    struct cursor c = {r->body, r->body + r->body_len};
    struct wire_string id = wire_string(&c, q->flexible);
    q->transactional = id.len >= 0;
    q->transaction = (struct serve_transaction){.id = id.p, .id_len = id.len};
    q->acks = cursor_i16(&c);
    q->timeout_ms = cursor_i32(&c);
    int64_t count = wire_count(&c, q->flexible);
    for (int64_t i = 0; i < count && c.p != NULL; i++) {
        struct topic_key key;
        if (!wire_topic_key(&c, q->flexible, q->by_id, &key)) return false;
        if (!parse_partitions(q, &c, key)) return false;
        wire_skip_tags(&c, q->flexible);
    }
    wire_skip_tags(&c, q->flexible);
    return c.p != NULL && count >= 0;
}

struct produce *produce_parse(struct serve *s, struct serve_request *r) {
    struct produce *q = produce_new(s);
    if (q == NULL) return NULL;
    r->state = q;
    q->serve = s;
    q->parts = q->parts_inline;
    q->part_cap = PARTS_INLINE;
    q->version = r->api_version;
    q->flexible = r->api_version >= 9; /* v9: tagged fields (KIP-482) */
    q->by_id = r->api_version >= 13;   /* v13: topic ids in place of names (KIP-516) */
    if (produce_parse_body(q, r)) return q;
    produce_free(r);
    return NULL;
}
