/* The topics of a Produce or Fetch that have no grant yet, and the control plane's verdict on
 * each. The list goes to the control plane with SERVE_MISS and returns with SERVE_GRANTED. */
#ifndef PYLOG_GRANT_REQUESTS_H
#define PYLOG_GRANT_REQUESTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "format/assertion.h"
#include "serve/serve.h"
#include "serve/wire.h"

struct grant_requests {
    struct serve_missing *topics; /* r->missing_count of them are in use */
    uint32_t room;
    uint32_t rounds; /* number of repeated requests to the control plane */
};

/* A grant may be revoked before its request continues. The request then asks the control plane
 * again, so that changing one principal's rights causes no errors for others. After this many
 * rounds the client must retry. */
enum { GRANT_REQUEST_ROUNDS_MAX = 16 };

/* right: enum grant_right, the same for all topics of a request. Returns false if
 * SERVE_MISSING_MAX are missing already or memory ran out. */
bool grant_requests_add(struct grant_requests *m, struct serve_request *r, struct topic_key key,
                        uint8_t right);
/* Returns the error for a topic without a grant after the control plane has decided. 0: it was
 * granted or not listed, and must be requested again (grant_requests_retry). `*at`: where to start
 * the search, initially 0. Topics arrive in the order of the list, so that each of tens of
 * thousands is found at once. */
int16_t grant_requests_result(const struct serve_request *r, struct topic_key key, uint32_t *at);
/* Clears the list after grants were revoked. Returns true if the request may ask the control
 * plane again. */
bool grant_requests_retry(struct grant_requests *m, struct serve_request *r);
/* Most requests have none. */
static inline void grant_requests_clear(struct grant_requests *m, struct serve_request *r) {
    assert_slow(r->missing == m->topics);
    if (m->topics == NULL) return;
    free(m->topics);
    *m = (struct grant_requests){0};
    r->missing = NULL;
    r->missing_count = 0;
}

#endif
