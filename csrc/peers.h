/* How many connections there are from each address, for max.connections.per.ip. Shared by all
 * reactors; touched only when a connection begins or ends. */
#ifndef PYLOG_PEERS_H
#define PYLOG_PEERS_H

#include <stdbool.h>
#include <stdint.h>

struct peers;
struct peers *peers_new(void);
void peers_free(struct peers *p);
/* IPv4 addresses are given as v4-mapped IPv6. False: `count_max` connections are there already, or
 * out of memory. */
bool peers_enter(struct peers *p, const uint8_t address[16], uint32_t count_max);
void peers_leave(struct peers *p, const uint8_t address[16]);

#endif
