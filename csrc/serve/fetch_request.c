/* Parses the body of a Fetch request, v4-18, into the request's own set of partitions. */
#include "serve/fetch_internal.h"

#include <string.h>

#include "format/assertion.h"
#include "serve/wire.h"

static bool parse_partition(struct fetch *f, struct cursor *c, struct topic_key key) {
    int32_t partition = cursor_i32(c);
    /* v9: the consumer's leader epoch, for fencing (KIP-320) */
    int32_t leader_epoch = f->version >= 9 ? cursor_i32(c) : -1;
    int64_t offset = cursor_i64(c);
    /* v12: leader epoch of the last fetched record, to detect diverging logs (KIP-595) */
    int32_t last_fetched_epoch = f->version >= 12 ? cursor_i32(c) : -1;
    /* v5: a follower's log start offset (KIP-107) */
    int64_t start_offset = f->version >= 5 ? cursor_i64(c) : -1;
    int32_t bytes_max = cursor_i32(c);
    wire_skip_tags(c, f->flexible);
    struct fetch_part *p =
        c->p == NULL ? NULL : fetch_set_part(&f->own, key.bytes, key.len, partition, true);
    if (p == NULL) return false;
    p->leader_epoch = leader_epoch;
    p->offset = offset;
    p->start_offset = start_offset;
    p->last_fetched_epoch = last_fetched_epoch;
    p->bytes_max = bytes_max;
    return true;
}

static bool parse_topics(struct fetch *f, struct cursor *c) {
    int64_t topics = wire_count(c, f->flexible);
    for (int64_t i = 0; i < topics && c->p != NULL; i++) {
        struct topic_key key;
        if (!wire_topic_key(c, f->flexible, f->by_id, &key)) return false;
        int64_t count = wire_count(c, f->flexible);
        if (count < 0) return false;
        for (int64_t j = 0; j < count; j++)
            if (!parse_partition(f, c, key)) return false;
        wire_skip_tags(c, f->flexible);
    }
    return c->p != NULL && topics >= 0;
}

bool fetch_parse_forgotten(struct fetch *f, struct cursor *c, struct fetch_set *apply) {
    int64_t topics = wire_count(c, f->flexible);
    for (int64_t i = 0; i < topics && c->p != NULL; i++) {
        struct topic_key key;
        if (!wire_topic_key(c, f->flexible, f->by_id, &key)) return false;
        int64_t count = wire_count(c, f->flexible);
        if (count < 0) return false;
        for (int64_t j = 0; j < count && c->p != NULL; j++) {
            int32_t partition = cursor_i32(c);
            if (c->p == NULL || apply == NULL) continue;
            struct fetch_part *p = fetch_set_part(apply, key.bytes, key.len, partition, false);
            if (p != NULL) fetch_set_remove(apply, p);
        }
        wire_skip_tags(c, f->flexible);
    }
    return c->p != NULL && topics >= 0;
}

/* Returns false if out of memory. */
static bool parse_tail(struct serve *s, struct fetch *f, struct cursor *c) {
    struct wire_string rack = {NULL, -1};
    if (f->version >= 11) rack = wire_string(c, f->flexible); /* v11: client rack (KIP-392) */
    uint64_t left = wire_tags(c, f->flexible), tag;
    struct cursor value;
    while (wire_tag(c, &left, &tag, &value))
        /* v15: the replica id is a tagged field that only followers send (KIP-903) */
        if (tag == 1 && f->version >= 15) {
            f->replica_id = cursor_i32(&value);
            f->replica_epoch = cursor_i64(&value);
            if (value.p == NULL) c->p = NULL;
        }
    if (!s->shared->limits.rack_aware || rack.len <= 0 || fetch_is_follower(f)) return true;
    f->rack = strndup((const char *)rack.p, (size_t)rack.len);
    return f->rack != NULL;
}

bool fetch_parse(struct serve *s, struct fetch *f, const struct serve_request *r) {
    struct cursor c = {r->body, r->body + r->body_len};
    f->replica_id = f->version <= 14 ? cursor_i32(&c) : -1;
    f->replica_epoch = -1;
    f->wait_ms = cursor_i32(&c);
    f->bytes_min = cursor_i32(&c);
    f->bytes_max = cursor_i32(&c);
    f->read_committed = cursor_i8(&c) == 1;
    f->session_epoch = -1;
    if (f->version >= 7) { /* v7: fetch sessions (KIP-227) */
        f->session_id = cursor_i32(&c);
        f->session_epoch = cursor_i32(&c);
    }
    if (!parse_topics(f, &c)) return false;
    f->forgotten = c;
    if (f->version >= 7 && !fetch_parse_forgotten(f, &c, NULL)) return false;
    return parse_tail(s, f, &c) && c.p != NULL;
}
