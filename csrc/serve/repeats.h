/* Requests whose answer is known, because they change nothing: the heartbeat of a member of a group
 * at rest is, byte for byte, the one before it, and so is its answer.
 *
 * As in grants.h the control plane decides: it has answered such a request once, and puts the
 * answer here until the state that it follows from is another one. Reactors answer whoever sends
 * the same bytes under the same name from the same address, and note when they did: that is the
 * member's sign of life. Times are CLOCK_MONOTONIC in ms.
 *
 * Invariants: (1) what was ended or voided is not answered again, by no thread, once the call has
 * returned; (2) all of them together take at most REPEATS_BYTES_MAX. */
#ifndef PYLOG_REPEATS_H
#define PYLOG_REPEATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "thread/roles.h"

enum {
    REPEAT_BYTES_MAX = 4096,     /* of one: client id, body and answer */
    REPEATS_BYTES_MAX = 64 << 20 /* some 200,000 members */
};

/* All that an answer depends on besides the state of the control plane. */
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
/* seed: chosen by chance, so that nobody can make long chains. NULL: out of memory. */
struct repeats *repeats_new(uint32_t seed);
/* None is left, and no reactor looks any more. */
void repeats_free(struct repeats *rs);

/* ---- control plane */
/* `frame`: a whole answer, with its size and a correlation id, in whose place the request's own is
 * sent. until_ms: from then on the control plane is asked again. NULL: it is too long, or there is
 * no room; then it is not repeated. */
struct repeat *repeats_add(struct repeats *rs, const struct repeat_key *key, const uint8_t *frame,
                           size_t len, int64_t until_ms) ON_CONTROL_PLANE;
/* It is not answered again, and gone. When it last was; -1: never. */
int64_t repeats_end(struct repeats *rs, struct repeat *e) ON_CONTROL_PLANE;
/* When it was last answered, -1 for never. Unless that is after `after_ms` it is not answered
 * again: whoever sends it is taken for gone. */
int64_t repeats_last_ms(struct repeats *rs, struct repeat *e, int64_t after_ms) ON_CONTROL_PLANE;
/* None of those that there are is answered again. */
void repeats_void(struct repeats *rs) ON_CONTROL_PLANE;
/* How many there are, voided ones too. */
uint32_t repeats_count(struct repeats *rs);

/* ---- reactors */
/* The answer to a request, in memory of its own; NULL: it is not known, or memory ran out. */
uint8_t *repeats_answer(struct repeats *rs, const struct repeat_key *key, int32_t correlation_id,
                        int64_t now_ms, size_t *len);

#endif
