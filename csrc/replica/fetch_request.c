/* Writes a follower's Fetch, versions 15 to 18: the first request of a session lists all
 * partitions, later requests list changes (KIP-227). */
#include "replica/fetcher_internal.h"

#include "serve/api_keys.h"
#include "serve/wire.h"

enum { REPLICA_STATE_TAG = 1 };

/* The epoch of the record before the position, never an epoch without records: a leader that
 * does not have that epoch would send the follower back to the same position forever. */
static int32_t fetched_epoch(const struct fetch_partition *p, int64_t position) {
    return position == 0 ? -1 : log_epoch_of(p->log, position - 1);
}

static void write_partition(struct fetch_partition *p, struct reply *r) {
    p->sent_end = log_end_offset(p->log);
    p->sent_start = log_start_offset(p->log);
    p->in_session = true;
    reply_i32(r, p->index);
    reply_i32(r, p->leader_epoch);
    reply_i64(r, p->sent_end);
    reply_i32(r, fetched_epoch(p, p->sent_end));
    reply_i64(r, p->sent_start);
    reply_i32(r, p->partition_bytes);
    reply_no_tags(r, true);
}

static bool same_topic(const struct fetch_partition *a, const struct fetch_partition *b) {
    return memcmp(a->topic_id, b->topic_id, sizeof a->topic_id) == 0;
}

static void write_topics(const struct leader *l, struct reply *r) {
    uint32_t topics = 0;
    const struct fetch_partition *before = NULL;
    for (struct fetch_partition *p = l->changed; p != NULL; before = p, p = p->next_changed)
        topics += before == NULL || !same_topic(before, p);
    reply_count(r, true, topics);
    for (struct fetch_partition *p = l->changed; p != NULL;) {
        uint32_t partitions = 0;
        struct fetch_partition *first = p;
        for (; p != NULL && same_topic(first, p); p = p->next_changed) partitions++;
        reply_bytes(r, first->topic_id, sizeof first->topic_id);
        reply_count(r, true, partitions);
        for (struct fetch_partition *q = first; q != p; q = q->next_changed) write_partition(q, r);
        reply_no_tags(r, true);
    }
}

/* Returns true if the request also adds the partition: a leader processes removals after
 * additions. */
static bool comes_back(struct fetcher *f, const struct leader *l, const struct forgotten *gone)
    REQUIRES(f->role) {
    const struct fetch_partition *p = fetcher_find(f, gone->topic_id, gone->index);
    return p != NULL && p->leader == l && p->changed;
}

static void write_forgotten(struct fetcher *f, struct leader *l, struct reply *r)
    REQUIRES(f->role) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < l->forgotten_count; i++)
        if (!comes_back(f, l, &l->forgotten[i])) l->forgotten[count++] = l->forgotten[i];
    reply_count(r, true, count);
    for (uint32_t i = 0; i < count; i++) {
        reply_bytes(r, l->forgotten[i].topic_id, sizeof l->forgotten[i].topic_id);
        reply_count(r, true, 1);
        reply_i32(r, l->forgotten[i].index);
        reply_no_tags(r, true);
    }
    l->forgotten_count = 0;
}

static void write_replica_state(const struct fetchers *fs, struct reply *r) {
    uint8_t state[13];
    put_i32(state, fs->config.replica_id);
    put_i64(state + 4, atomic_load(&fs->broker_epoch));
    state[12] = 0; /* no tags */
    reply_uvarint(r, 1);
    reply_uvarint(r, REPLICA_STATE_TAG);
    reply_uvarint(r, sizeof state);
    reply_bytes(r, state, sizeof state);
}

static void write_header(const struct fetcher *f, const struct leader *l, struct reply *r) {
    size_t len = strlen(f->client_id);
    reply_i32(r, 0);
    reply_i16(r, API_FETCH);
    reply_i16(r, l->version);
    reply_i32(r, l->correlation_id);
    reply_i16(r, (int16_t)len);
    reply_bytes(r, f->client_id, len);
    reply_no_tags(r, true);
}

bool fetch_request_write(struct fetcher *f, struct leader *l) {
    const struct fetchers_config *config = &f->all->config;
    struct reply *r = &l->out;
    assert(!l->request_in_flight);
    assert(l->version >= RESPONSE_VERSION_MIN && l->version <= RESPONSE_VERSION_MAX);
    l->full = l->session_epoch == 0;
    if (l->full) l->forgotten_count = 0;
    r->len = 0;
    write_header(f, l, r);
    reply_i32(r, config->wait_ms_max);
    reply_i32(r, config->bytes_min);
    reply_i32(r, config->bytes_max);
    reply_i8(r, 0); /* read uncommitted */
    reply_i32(r, l->session_id);
    reply_i32(r, l->session_epoch);
    write_topics(l, r);
    write_forgotten(f, l, r);
    reply_string(r, true, "", 0); /* no rack: only consumers set it */
    write_replica_state(f->all, r);
    reply_finish(r);
    fetch_partition_unchange_all(l);
    return !r->failed;
}
