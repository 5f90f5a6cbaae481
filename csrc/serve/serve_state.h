/* What serve.c, produce.c and fetch.c share and nobody else sees. */
#ifndef PYLOG_SERVE_STATE_H
#define PYLOG_SERVE_STATE_H

#include "format/batch.h"
#include "format/scratch.h"
#include "serve/api_keys.h"
#include "serve/copies.h"
#include "serve/error_codes.h"
#include "serve/gather.h"
#include "serve/grants.h"
#include "serve/misses.h"
#include "serve/serve.h"
#include "serve/sessions.h"

enum {
    NS_PER_MS = 1000000,
    SERVE_JOINS_MAX = 128,
    WIDE_PARTITIONS = 4000 /* some 2 ms of work */
};

/* Followers that may join the ISR; one without room is found again by the next fetch. */
struct serve_joins {
    struct serve_join at[SERVE_JOINS_MAX];
    uint32_t count;
};

struct serve_shared {
    struct grants *grants;
    struct iopool *pool;
    struct sessions *sessions;
    struct serve_limits limits;
    atomic_uint_fast64_t random; /* session ids */
    _Atomic int64_t fetches_waiting; /* partitions of wide fetches that wait */
    _Atomic int64_t wall_ahead_ms;
};

struct serve {
    struct serve_shared *shared;
    struct mailbox *mailbox;
    struct inflater *inflater;
    struct meter_api *meters; /* by api key; NULL: nobody counts */
    struct serve_joins joins; /* of the request under way */
    struct gather gather; /* of short answers to consumers */
    struct copies copies;
    struct produce *spares; /* of Produces that are over, for the next ones */
    uint32_t spare_count;
    struct produce_groups *groups; /* NULL: none has been queued yet */
};

/* An error that a partition, or a whole Fetch, is answered with. */
static inline void serve_count_error(const struct serve *s, int api_key, int16_t error) {
    if (s->meters != NULL) meter_error(&s->meters[api_key], error);
}

/* The wall clock of this broker. */
int64_t serve_wall_ms(const struct serve *s);

/* What the answer costs the client: sets and returns r->throttle_ms, with what the client has used
 * of its threads. `timed`: that counts too. */
int32_t serve_charge_produce(struct serve_request *r, bool timed);
/* The same for a fetch whose answer takes `bytes`; when it is over a limit nothing of it is to be
 * sent. */
int32_t serve_charge_fetch(struct serve_request *r, size_t bytes);

/* One topic looked up for a request: *out has one reference; false: a miss. */
bool serve_topic(struct serve *s, uint32_t principal, struct topic_key key, uint8_t right,
                struct topic **out);

enum serve_status produce_start(struct serve *s, struct serve_request *r);
enum serve_status produce_resume(struct serve *s, struct serve_request *r,
                                 enum serve_reason reason);
bool produce_abandon(struct serve_request *r);
void produce_free_spares(struct serve *s);
void produce_free_groups(struct serve *s);
enum serve_status fetch_start(struct serve *s, struct serve_request *r);
enum serve_status fetch_resume(struct serve *s, struct serve_request *r, enum serve_reason reason);
bool fetch_abandon(struct serve *s, struct serve_request *r);

#endif
