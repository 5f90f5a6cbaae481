/* The brokers' endpoints by listener: an immutable table that is replaced as a whole. */
#ifndef PYLOG_BROKER_ENDPOINTS_H
#define PYLOG_BROKER_ENDPOINTS_H

#include <stdatomic.h>
#include <stdint.h>

enum { NODES_MAX = 65536 };

struct node {
    int32_t listener, id, port;
    const char *host, *rack; /* rack NULL: none */
};
struct nodes;
/* Copies the rows. Returns one reference, or NULL if out of memory or over NODES_MAX. */
struct nodes *nodes_new(const struct node *of, uint32_t count);
void nodes_retain(struct nodes *nodes);
void nodes_release(struct nodes *nodes);
/* Returns a node borrowed through the table, or NULL if the broker has no such listener. */
const struct node *nodes_find(const struct nodes *nodes, int32_t listener, int32_t id);

#endif
