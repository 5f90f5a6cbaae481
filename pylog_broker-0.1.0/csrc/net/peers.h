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
/* Other limits for some addresses, 16 bytes each, in place of those before. False: out of memory,
 * nothing has changed. */
bool peers_set_overrides(struct peers *p, const uint8_t *addresses, const uint32_t *counts_max,
                         uint32_t count);
void peers_leave(struct peers *p, const uint8_t address[16]);

#endif
