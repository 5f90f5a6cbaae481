/* Allocates, parses and frees Fetch requests, v4-18. */
#include "serve/fetch_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

static bool fetch_parse_body(struct serve *s, struct fetch *f, const struct serve_request *r) {
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
    if (f->version >= 7 && !fetch_set_forget(NULL, &c, f->flexible, f->by_id)) return false;
    return parse_tail(s, f, &c) && c.p != NULL;
}

struct fetch *fetch_parse(struct serve *s, struct serve_request *r) {
    struct fetch *f = malloc(sizeof *f); /* unlike calloc, uses the thread's cache */
    if (f == NULL) return NULL;
    memset(f, 0, sizeof *f);
    r->state = f;
    f->candidates = &s->candidates;
    f->version = r->api_version;
    f->flexible = r->api_version >= 12; /* v12: tagged fields (KIP-482) */
    f->by_id = r->api_version >= 13;    /* v13: topic ids in place of names (KIP-516) */
    fetch_set_init(&f->own, f->by_id, s->shared->session_seed);
    f->set = &f->own;
    if (fetch_parse_body(s, f, r)) return f;
    fetch_free(s, r);
    return NULL;
}

void fetch_unwait(struct fetch *f) {
    assert_slow(f->waiting);
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next)
        if (p->read->waiter.mailbox != NULL) {
            assert_slow(p->read->log != NULL);
            log_unwait(p->read->log, &p->read->waiter);
            p->read->waiter.mailbox = NULL;
        }
    f->waiting = false;
}

void fetch_release_ranges(struct fetch *f) {
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) fetch_release(p->read);
}

/* Zeroed. A wide fetch uses mmap: tens of megabytes must not stay in a worker's heap. */
static struct fetch_read *reads_new(const struct fetch *f) {
    size_t bytes = f->set->count * sizeof *f->reads;
    if (f->wide == NULL) {
        struct fetch_read *reads = malloc(bytes);
        return reads == NULL ? NULL : memset(reads, 0, bytes);
    }
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

static void reads_free(struct fetch *f) {
    if (f->wide == NULL)
        free(f->reads);
    else
        munmap(f->reads, f->set->count * sizeof *f->reads);
    f->reads = NULL;
}

bool fetch_take_reads(struct fetch *f) {
    if (f->set->count == 0) return true;
    f->reads = reads_new(f);
    if (f->reads == NULL) return false;
    assert_slow(f->set->first != NULL);
    struct fetch_read *read = f->reads;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        p->read = read++;
        assert_slow(read <= f->reads + f->set->count);
        p->read->diverging_epoch = p->read->preferred = -1;
    }
    assert(read == f->reads + f->set->count); /* the list length matches the count */
    return true;
}

void fetch_release_reads(struct fetch *f) {
    if (f->reads == NULL) return;
    if (f->waiting) fetch_unwait(f);
    fetch_release_ranges(f);
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        if (p->read->topic != NULL) topic_release(p->read->topic);
        p->read = NULL;
    }
    reads_free(f);
}

void fetch_free(struct serve *s, struct serve_request *r) {
    struct fetch *f = r->state;
    if (f == NULL) return;
    assert(!f->job_running);
    fetch_release_reads(f);
    if (f->counted != 0) {
        int64_t before = atomic_fetch_sub(&s->shared->fetches_waiting, f->counted);
        assert(before >= f->counted);
    }
    /* Use the current time, not the arrival time: a long poll uses its session until it ends. */
    if (f->session != NULL)
        sessions_return(s->shared->sessions, f->session, quotas_monotonic_ns() / NS_PER_MS);
    fetch_set_clear(&f->own);
    grant_requests_clear(&f->grant_requests, r);
    if (f->wide != NULL) reply_clear(&f->wide->reply);
    free(f->wide);
    free(f->rack);
    free(f);
    r->state = NULL;
}
