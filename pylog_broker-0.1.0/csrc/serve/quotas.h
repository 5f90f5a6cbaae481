/* Client quotas (KIP-13, KIP-124): how fast the clients of one entity may send, fetch and use
 * threads, counted over sliding samples and shared by all reactors.
 *
 * As in grants.h the control plane decides and installs, reactors look up: a `quota_client` is a
 * principal under one client id, with the `rates` that its requests count on; clients of the same
 * entity share a rate. Nothing here waits but for a rate's mutex, which is held for the sum of its
 * samples. Times are CLOCK_MONOTONIC in ms. */
#ifndef PYLOG_QUOTAS_H
#define PYLOG_QUOTAS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "thread/roles.h"

enum quota_kind { QUOTA_PRODUCE = 0, QUOTA_FETCH = 1, QUOTA_REQUEST = 2, QUOTA_KINDS = 3 };
enum {
    /* Entries that nobody uses are kept up to this many, so that a client which connects anew finds
     * what it has used. */
    QUOTA_IDLE_MAX = 65536
};

struct quotas;
struct quota_client;

/* `samples` of `window_ms` each are summed (quota.window.num, quota.window.size.seconds). */
struct quotas *quotas_new(uint32_t samples, int64_t window_ms);
/* No client is held any more. */
void quotas_free(struct quotas *q);

/* ---- control plane */
/* What was installed is void: the next request of each client asks anew. `enabled`: some quota is
 * set. Rates keep what they counted. */
void quotas_void(struct quotas *q, bool enabled) ON_CONTROL_PLANE;
struct quota_limit {
    const uint8_t *key; /* of the entity's rate; NULL: this kind has no limit */
    uint32_t key_len;
    double per_second; /* bytes, or percent of one thread */
};
/* 0, or -1 when out of memory. */
int quotas_install(struct quotas *q, uint32_t principal, const uint8_t *client_id, uint32_t len,
                   const struct quota_limit limits[QUOTA_KINDS], int64_t now_ms) ON_CONTROL_PLANE;
/* For how many ms in all clients of this id were throttled, of those that were since `since_ms`.
 */
uint64_t quotas_throttled(struct quotas *q, const uint8_t *client_id, uint32_t len,
                          int64_t since_ms);
/* How many connections may begin from an address in a second (KIP-612): of those named, and of
 * every other one by itself; 0: without limit. */
struct quota_address {
    uint8_t ip[16]; /* v4-mapped for IPv4 */
    double per_second;
};
/* Replaces what was set before. 0, or -1 when out of memory. */
int quotas_set_addresses(struct quotas *q, const struct quota_address *addresses, uint32_t count,
                         double others) ON_CONTROL_PLANE;
/* Clients and rates that are known. */
void quotas_count(struct quotas *q, uint32_t *clients, uint32_t *rates);

/* ---- reactors */
/* Changes with every quotas_void; 0: no quota is set. The one thing that a broker without quotas
 * looks at. */
atomic_uint *quotas_generation(struct quotas *q);
/* A connection begins: counts it and returns 0, or for how many ms it is to be kept
 * waiting before it is closed. Any thread. */
int32_t quotas_connection(struct quotas *q, const uint8_t ip[16], int64_t now_ms);
/* The client with one reference for the caller; NULL: it is to be asked for. */
struct quota_client *quotas_client(struct quotas *q, uint32_t principal, const uint8_t *client_id,
                                   uint32_t len);
/* True: `c` is still what quotas_client would find. */
bool quota_client_is(const struct quota_client *c, uint32_t generation, uint32_t principal,
                     const uint8_t *client_id, uint32_t len);
/* Its connection is muted for so long; for quotas_throttled. */
void quota_client_note(struct quota_client *c, int32_t throttle_ms, int64_t now_ms);
void quota_client_retain(struct quota_client *c);
void quota_client_release(struct quota_client *c);
/* Some kind has a limit. */
bool quota_client_limited(const struct quota_client *c);
bool quota_client_timed(const struct quota_client *c); /* QUOTA_REQUEST has one */

/* CLOCK_MONOTONIC, and time on a thread as QUOTA_REQUEST counts it. */
int64_t quotas_monotonic_ns(void);
double quotas_percent(int64_t busy_ns);

/* Counts `value` and returns for how many ms the client is to be muted; 0 within the limit. For
 * QUOTA_REQUEST at most one window. */
int32_t quota_client_charge(struct quota_client *c, enum quota_kind kind, double value,
                            int64_t now_ms);
/* The same for an answer to a fetch, which is not sent when it is over the limit: then nothing is
 * counted. What alone is more than the samples can hold passes when they are empty, for it would
 * never pass otherwise. */
int32_t quota_client_charge_fetch(struct quota_client *c, double bytes, int64_t now_ms);
/* Counts without asking; negative values take back. */
void quota_client_count(struct quota_client *c, enum quota_kind kind, double value, int64_t now_ms);
/* What the samples can hold without being over the limit, at most `most`. */
int32_t quota_client_fetch_max(struct quota_client *c, int32_t most);

#endif
