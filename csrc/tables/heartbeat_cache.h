/* Cached responses to requests that change nothing: a heartbeat of a stable group's member is
 * byte for byte equal to the previous one, and so is its response.
 *
 * As in grants.h, the control plane decides: after it has answered such a request once, it
 * installs the response here until the underlying state changes. Reactors use it for requests
 * with the same bytes, the same principal and the same address, and record the time: this counts
 * as the member's heartbeat. Times are CLOCK_MONOTONIC in ms.
 *
 * Invariants: ended is final: after a call that ends or invalidates a response has returned, no
 * thread sends that response; memory is bounded: all entries take at most REPEATS_BYTES_MAX. */
#ifndef PYLOG_HEARTBEAT_CACHE_H
#define PYLOG_HEARTBEAT_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/roles.h"

enum {
    REPEAT_BYTES_MAX = 4096,     /* per entry: client id, body and response */
    REPEATS_BYTES_MAX = 64 << 20 /* about 200,000 members */
};

/* All inputs of a response except the control plane's state. */
struct repeat_key {
    const uint8_t *client_id, *body; /* borrowed; client_id NULL when null */
    size_t body_len;
    int32_t client_id_len;
    uint32_t principal;
    int16_t api_key, api_version;
    const uint8_t *address; /* of the peer: 16 bytes, v4-mapped for IPv4 */
};

struct repeats;
struct repeat;
/* seed: must be random, so that clients cannot create long chains. Returns NULL if out of
 * memory. */
struct repeats *repeats_new(uint32_t seed);
/* Call only after every entry has ended and no reactor uses the table. */
void repeats_free(struct repeats *rs);

/* ---- control plane */
/* `frame`: a complete response with its size; the correlation id is replaced with the request's.
 * until_ms: when requests go to the control plane again. Returns NULL if the response is too
 * long or there is no room; it is then not cached. */
struct repeat *repeats_add(struct repeats *rs, const struct repeat_key *key, const uint8_t *frame,
                           size_t len, int64_t until_ms) ON_CONTROL_PLANE;
/* Ends and frees the entry. Returns when it was last used; -1: never. */
int64_t repeats_end(struct repeats *rs, struct repeat *e) ON_CONTROL_PLANE;
/* Returns when the entry was last used; -1: never. Ends it unless that is later than `after_ms`:
 * its member counts as failed. */
int64_t repeats_last_ms(struct repeats *rs, struct repeat *e, int64_t after_ms) ON_CONTROL_PLANE;
/* Invalidates all entries. */
void repeats_void(struct repeats *rs) ON_CONTROL_PLANE;
/* Returns the number of entries, including invalidated ones. */
uint32_t repeats_count(struct repeats *rs);

/* ---- reactors */
/* Returns the response in newly allocated memory, or NULL if none is cached or memory ran out. */
uint8_t *repeats_answer(struct repeats *rs, const struct repeat_key *key, int32_t correlation_id,
                        int64_t now_ms, size_t *len);

#endif
