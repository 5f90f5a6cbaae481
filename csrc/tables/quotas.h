/* Client quotas (KIP-13, KIP-124): limit how fast the clients of one entity may produce, fetch
 * and use threads, measured over sliding samples and shared by all reactors.
 *
 * As in grants.h, the control plane decides and installs, and reactors look up. A `quota_client`
 * is a principal with one client id and the `rates` that its requests count against. Clients of
 * the same entity share a rate. The functions block only on a rate's mutex, which is held while
 * its samples are summed. Times are CLOCK_MONOTONIC in ms. */
#ifndef PYLOG_QUOTAS_H
#define PYLOG_QUOTAS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "os/roles.h"

enum quota_kind { QUOTA_PRODUCE = 0, QUOTA_FETCH = 1, QUOTA_REQUEST = 2, QUOTA_KINDS = 3 };
enum {
    /* Unused entries are retained up to this number, so that a reconnecting client keeps its
     * usage. */
    QUOTA_IDLE_MAX = 65536
};

struct quotas;
struct quota_client;

/* Sums `samples` samples of `window_ms` each (quota.window.num, quota.window.size.seconds). */
struct quotas *quotas_new(uint32_t samples, int64_t window_ms);
/* Call only after all clients are released. */
void quotas_free(struct quotas *q);

/* ---- control plane */
/* Invalidates all clients: the next request of each client asks the control plane again.
 * `enabled`: some quota is set. Rates keep their samples. */
void quotas_void(struct quotas *q, bool enabled) ON_CONTROL_PLANE;
struct quota_limit {
    const uint8_t *key; /* of the entity's rate; NULL: no limit of this kind */
    uint32_t key_len;
    double per_second; /* bytes, or percent of one thread */
};
/* Returns 0, or -1 if out of memory. */
int quotas_install(struct quotas *q, uint32_t principal, const uint8_t *client_id, uint32_t len,
                   const struct quota_limit limits[QUOTA_KINDS], int64_t now_ms) ON_CONTROL_PLANE;
/* Returns the total throttle time in ms of all clients with this id that were throttled since
 * `since_ms`. */
uint64_t quotas_throttled(struct quotas *q, const uint8_t *client_id, uint32_t len,
                          int64_t since_ms);
/* Limits of new connections per second and address (KIP-612), for the given addresses and for
 * each other address; 0: no limit. */
struct quota_address {
    uint8_t ip[16]; /* v4-mapped for IPv4 */
    double per_second;
};
/* Replaces the earlier limits. Returns 0, or -1 if out of memory. */
int quotas_set_addresses(struct quotas *q, const struct quota_address *addresses, uint32_t count,
                         double others) ON_CONTROL_PLANE;
/* Counts the clients and rates in the tables. */
void quotas_count(struct quotas *q, uint32_t *clients, uint32_t *rates);

/* ---- reactors */
/* Changes with every quotas_void; 0: no quota is set. A broker without quotas checks nothing
 * else. */
atomic_uint *quotas_generation(struct quotas *q);
/* Counts a new connection and returns 0, or for how many ms to delay closing it because it
 * exceeds the limit. Any thread. */
int32_t quotas_connection(struct quotas *q, const uint8_t ip[16], int64_t now_ms);
/* Returns the client with one reference for the caller, or NULL if the control plane must
 * install it. */
struct quota_client *quotas_client(struct quotas *q, uint32_t principal, const uint8_t *client_id,
                                   uint32_t len);
/* Returns true if quotas_client would still return `c`. */
bool quota_client_is(const struct quota_client *c, uint32_t generation, uint32_t principal,
                     const uint8_t *client_id, uint32_t len);
/* Records that the client's connection is muted for `throttle_ms`, for quotas_throttled. */
void quota_client_note(struct quota_client *c, int32_t throttle_ms, int64_t now_ms);
void quota_client_retain(struct quota_client *c);
void quota_client_release(struct quota_client *c);
/* Returns true if the client has a limit of any kind. */
bool quota_client_limited(const struct quota_client *c);
bool quota_client_timed(const struct quota_client *c); /* limited by QUOTA_REQUEST */

/* CLOCK_MONOTONIC, and thread time in the unit of QUOTA_REQUEST. */
int64_t quotas_monotonic_ns(void);
double quotas_percent(int64_t busy_ns);

/* Counts `value` and returns for how many ms to mute the client; 0 if within the limit. For
 * QUOTA_REQUEST at most one window. */
int32_t quota_client_charge(struct quota_client *c, enum quota_kind kind, double value,
                            int64_t now_ms);
/* Same for a fetch response. A response over the limit is not sent and therefore not counted. A
 * response larger than the samples' capacity is sent if they are empty, otherwise it could never
 * be sent. */
int32_t quota_client_charge_fetch(struct quota_client *c, double bytes, int64_t now_ms);
/* Counts without checking the limit; negative values undo earlier counts. */
void quota_client_count(struct quota_client *c, enum quota_kind kind, double value, int64_t now_ms);
/* Returns how many bytes the samples can hold within the limit, at most `most`. */
int32_t quota_client_fetch_max(struct quota_client *c, int32_t most);

#endif
