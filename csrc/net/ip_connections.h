/* Counts connections per client address, for max.connections.per.ip. Shared by all reactors;
 * used only when a connection opens or closes. */
#ifndef PYLOG_IP_CONNECTIONS_H
#define PYLOG_IP_CONNECTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct peers;
struct peers *peers_new(void);
void peers_free(struct peers *p);
/* Counts a connection. IPv4 addresses are IPv4-mapped IPv6. Returns false if `count_max`
 * connections exist, or if out of memory. */
bool peers_enter(struct peers *p, const uint8_t address[16], uint32_t count_max);
/* Replaces the limits of individual addresses, 16 bytes each. Returns false without changes if
 * out of memory. */
bool peers_set_overrides(struct peers *p, const uint8_t *addresses, const uint32_t *counts_max,
                         uint32_t count);
void peers_leave(struct peers *p, const uint8_t address[16]);

#endif
