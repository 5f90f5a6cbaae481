/* Rows, followed by their strings in the same allocation. */
#include "tables/broker_endpoints.h"

#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"

struct nodes {
    atomic_int references;
    uint32_t count;
    struct node of[];
};

static const char *keep(char **at, const char *text) {
    if (text == NULL) return NULL;
    const char *stored = *at;
    size_t bytes = strlen(text) + 1;
    memcpy(*at, text, bytes);
    *at += bytes;
    return stored;
}

struct nodes *nodes_new(const struct node *of, uint32_t count) {
    size_t text_bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        text_bytes += strlen(of[i].host) + 1 + (of[i].rack == NULL ? 0 : strlen(of[i].rack) + 1);
    struct nodes *nodes =
        count > NODES_MAX ? NULL : malloc(sizeof *nodes + count * sizeof *of + text_bytes);
    if (nodes == NULL) return NULL;
    atomic_init(&nodes->references, 1);
    nodes->count = count;
    char *at = (char *)(nodes->of + count);
    for (uint32_t i = 0; i < count; i++) {
        nodes->of[i] = of[i];
        nodes->of[i].host = keep(&at, of[i].host);
        nodes->of[i].rack = keep(&at, of[i].rack);
    }
    assert(at == (char *)(nodes->of + count) + text_bytes);
    return nodes;
}

void nodes_retain(struct nodes *nodes) {
    int before = atomic_fetch_add_explicit(&nodes->references, 1, memory_order_relaxed);
    assert(before > 0);
    (void)before;
}

void nodes_release(struct nodes *nodes) {
    int before = atomic_fetch_sub_explicit(&nodes->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1) free(nodes);
}

const struct node *nodes_find(const struct nodes *nodes, int32_t listener, int32_t id) {
    for (uint32_t i = 0; i < nodes->count; i++)
        if (nodes->of[i].id == id && nodes->of[i].listener == listener) return &nodes->of[i];
    return NULL;
}
