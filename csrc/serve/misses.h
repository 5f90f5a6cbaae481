/* The topics of a Produce or Fetch that have no grant yet, and what the control plane decided of
 * each: the list that goes up with SERVE_MISS and comes back with SERVE_GRANTED. */
#ifndef PYLOG_MISSES_H
#define PYLOG_MISSES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "format/assertion.h"
#include "serve/serve.h"
#include "serve/wire.h"

struct misses {
    struct serve_missing *topics; /* r->missing_count of them are in use */
    uint32_t room;
    uint32_t rounds; /* how often it was asked again */
};

/* A grant may be void again before its request goes on: then it is asked for anew, so that a change
 * of somebody's rights is no error of others. After so many rounds the client is to try again. */
enum { MISSES_ROUNDS_MAX = 16 };

/* right: of enum grant_right, the same for all of a request. False: SERVE_MISSING_MAX are missing
 * already, or out of memory. */
bool misses_add(struct misses *m, struct serve_request *r, struct topic_key key, uint8_t right);
/* The error that a topic without a grant is answered with once the control plane has decided; 0:
 * it was granted, or not asked for, and is to be asked for again (misses_again). `*at`: where to
 * look first, 0 before the first call; topics come in the order in which they were asked for, so
 * that of tens of thousands each is found at once. */
int16_t misses_verdict(const struct serve_request *r, struct topic_key key, uint32_t *at);
/* What was asked for is void: true when the request may ask once more, from an empty list. */
bool misses_again(struct misses *m, struct serve_request *r);
/* With the request: most have none. */
static inline void misses_clear(struct misses *m, struct serve_request *r) {
    assert_slow(r->missing == m->topics);
    if (m->topics == NULL) return;
    free(m->topics);
    *m = (struct misses){0};
    r->missing = NULL;
    r->missing_count = 0;
}

#endif
