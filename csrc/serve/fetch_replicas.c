/* Replication and Fetch: a follower's fetch offsets advance the leader's high watermark, and a
 * consumer may be redirected to a closer replica. */
#include "serve/fetch_internal.h"

#include <string.h>

#include "format/assertion.h"
#include "tables/broker_endpoints.h"

enum { READERS_MAX = 16 }; /* replicas considered for KIP-392 */

static void add_isr_candidate(const struct fetch *f, const struct fetch_part *p) {
    assert(f->candidates->count < ISR_CANDIDATES_MAX);
    struct isr_candidate *candidate = &f->candidates->at[f->candidates->count++];
    memcpy(candidate->topic_id, p->read->topic->id, sizeof candidate->topic_id);
    candidate->partition = p->partition;
    candidate->broker = f->replica_id;
}

static void follow_part(struct serve *s, struct fetch *f, struct fetch_part *p, int64_t now_ns) {
    struct fetch_read *read = p->read;
    int32_t leader_epoch = log_leader_epoch(read->log);
    /* A rejected or diverging offset does not show how far the follower has replicated. */
    if (fetch_check_epochs(f, p) != 0 || read->diverging_epoch >= 0) return;
    struct log_follower_fetch at = {.broker = f->replica_id,
                                    .leader_epoch = leader_epoch,
                                    .epoch = f->replica_epoch,
                                    .offset = p->offset,
                                    .start_offset = p->start_offset,
                                    .now_ns = now_ns,
                                    .may_ask = f->candidates->count < ISR_CANDIDATES_MAX};
    int result = log_follower_at(read->log, &at);
    if (result == 1) add_isr_candidate(f, p);
    /* The follower may have newer metadata than this leader; without an epoch, it fetched from
     * the wrong broker. */
    if (result == LOG_E_NOT_REPLICA && p->leader_epoch < 0)
        read->follow_error = ERROR_NOT_LEADER_OR_FOLLOWER;
    else if (result < 0)
        read->follow_error = log_error_code(result);
    if (result >= 0 && s->shared->limits.throttle != NULL && log_is_throttled_leading(read->log)) {
        read->behind = !at.in_sync;
        f->throttled = read->throttled = true;
    }
    if (result >= 0 && s->shared->limits.rack_aware &&
        log_high_watermark(read->log) > at.sent_high_watermark)
        f->watermark_moved = true;
}

void fetch_follow(struct serve *s, struct fetch *f) {
    int64_t now_ns = quotas_monotonic_ns();
    assert(fetch_is_follower(f) && !f->recorded);
    f->recorded = true;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next)
        if (p->read->log != NULL && p->read->grant_error == 0) follow_part(s, f, p, now_ns);
}

static bool is_in_rack(const struct nodes *nodes, const struct serve_request *r, int32_t id,
                       const char *rack) {
    const struct node *n = nodes_find(nodes, r->listener, id);
    return n != NULL && n->rack != NULL && strcmp(n->rack, rack) == 0;
}

/* Returns, of the in-sync replicas in the consumer's rack that have the offset, the one with the
 * highest end offset, like Kafka's RackAwareReplicaSelector. Returns -1 if the leader itself is
 * in that rack. */
static int32_t nearest(const struct nodes *nodes, const struct serve_request *r,
                       const struct fetch *f, const struct fetch_part *p, int32_t leader) {
    struct log_follower found[READERS_MAX];
    const struct log_follower *best = NULL;
    if (is_in_rack(nodes, r, leader, f->rack)) return -1;
    uint32_t count = log_followers(p->read->log, found, READERS_MAX);
    for (uint32_t i = 0; i < count && i < READERS_MAX; i++) {
        const struct log_follower *at = &found[i];
        if (!at->in_sync || at->end < p->offset || at->start > p->offset) continue;
        if (!is_in_rack(nodes, r, at->broker, f->rack)) continue;
        if (best == NULL || at->end > best->end ||
            (at->end == best->end && at->caught_up_ns > best->caught_up_ns))
            best = at;
    }
    return best == NULL ? -1 : best->broker;
}

int32_t fetch_preferred(struct serve *s, const struct serve_request *r, const struct fetch *f,
                        const struct fetch_part *p) {
    struct topic_leader leader;
    assert(f->rack != NULL && !fetch_is_follower(f));
    if (!log_is_leader(p->read->log) || !leaders_of(p->read->topic, p->partition, &leader))
        return -1;
    struct nodes *nodes = grants_nodes(s->shared->grants);
    if (nodes == NULL) return -1;
    int32_t id = nearest(nodes, r, f, p, leader.id);
    nodes_release(nodes);
    return id;
}
