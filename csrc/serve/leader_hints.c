/* A tagged field consists of tag, size and bytes, so sizes are computed before writing. */
#include "serve/leader_hints.h"

#include <string.h>

#include "format/assertion.h"
#include "serve/wire.h"
#include "tables/broker_endpoints.h"

enum { CURRENT_LEADER_BYTES = 4 + 4 + 1, NODE_BYTES = 4 + 4 + 1, ENDPOINTS_TAG = 0 };

void leaders_answer(struct leaders *l, struct reply *a, uint8_t tag, struct topic_leader leader) {
    reply_i8(a, (int8_t)tag);
    reply_uvarint(a, CURRENT_LEADER_BYTES);
    reply_i32(a, leader.id);
    reply_i32(a, leader.epoch);
    reply_i8(a, 0);
    uint32_t i = 0;
    while (i < l->count && l->ids[i] != leader.id) i++;
    if (i == l->count && i < LEADERS_NAMED_MAX && leader.id >= 0) l->ids[l->count++] = leader.id;
    assert_slow(l->count <= LEADERS_NAMED_MAX);
}

static size_t text_bytes(const char *text) {
    size_t len = text == NULL ? 0 : strlen(text) + 1;
    return uvarint_bytes(len) + (len == 0 ? 0 : len - 1);
}

static void answer_node(struct reply *a, const struct node *n) {
    reply_i32(a, n->id);
    reply_string(a, true, n->host, strlen(n->host));
    reply_i32(a, n->port);
    reply_string(a, true, n->rack, n->rack == NULL ? 0 : strlen(n->rack));
    reply_i8(a, 0);
}

void leaders_answer_endpoints(const struct leaders *l, const struct serve *s,
                              const struct serve_request *r, struct reply *a) {
    struct nodes *nodes = l->count == 0 ? NULL : grants_nodes(s->shared->grants);
    const struct node *found[LEADERS_NAMED_MAX];
    uint32_t count = 0;
    size_t bytes = 0;
    for (uint32_t i = 0; nodes != NULL && i < l->count; i++) {
        const struct node *n = nodes_find(nodes, r->listener, l->ids[i]);
        if (n == NULL) continue;
        found[count++] = n;
        bytes += NODE_BYTES + text_bytes(n->host) + text_bytes(n->rack);
    }
    if (count == 0) {
        reply_i8(a, 0);
    } else {
        reply_i8(a, 1);
        reply_i8(a, ENDPOINTS_TAG);
        reply_uvarint(a, bytes + uvarint_bytes(count + 1));
        reply_count(a, true, count);
        for (uint32_t i = 0; i < count; i++) answer_node(a, found[i]);
    }
    if (nodes != NULL) nodes_release(nodes);
}
