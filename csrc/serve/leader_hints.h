/* The current leader and its endpoint as two tagged fields of Produce and Fetch responses, so
 * that clients can switch without a Metadata request (KIP-951). */
#ifndef PYLOG_LEADER_HINTS_H
#define PYLOG_LEADER_HINTS_H

#include "serve/serve_context.h"

enum { LEADERS_NAMED_MAX = 64 };

/* The leaders named in a response; initially `count` is 0. */
struct leaders {
    uint32_t count;
    int32_t ids[LEADERS_NAMED_MAX];
};

/* Returns false if the partition's leader is unknown here. */
static inline bool leaders_of(const struct topic *t, int32_t partition,
                              struct topic_leader *leader) {
    if (t == NULL || t->leaders == NULL || partition < 0 || partition >= t->partition_count)
        return false;
    *leader = t->leaders[partition];
    return true;
}
/* Writes a partition's tagged field CurrentLeader and records the leader for
 * leaders_answer_endpoints. */
void leaders_answer(struct leaders *l, struct reply *a, uint8_t tag, struct topic_leader leader);
/* Writes the response's own tagged fields: NodeEndpoints, tag 0, if a leader was named. */
void leaders_answer_endpoints(const struct leaders *l, const struct serve *s,
                              const struct serve_request *r, struct reply *a);

#endif
