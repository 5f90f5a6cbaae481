/* Declarations shared only by serve.c and the files of Produce and Fetch. */
#ifndef PYLOG_SERVE_CONTEXT_H
#define PYLOG_SERVE_CONTEXT_H

#include "format/batch.h"
#include "format/scratch.h"
#include "serve/api_keys.h"
#include "serve/fetch_batching.h"
#include "serve/fetch_sessions.h"
#include "serve/grant_requests.h"
#include "serve/serve.h"
#include "serve/shared_reads.h"
#include "tables/error_codes.h"
#include "tables/grants.h"

enum {
    NS_PER_MS = 1000000,
    ISR_CANDIDATES_MAX = 128,
    WIDE_PARTITIONS = 4000 /* about 2 ms of work */
};

/* Followers that may join the ISR. If the list is full, the next fetch finds the follower again. */
struct isr_candidates {
    struct isr_candidate at[ISR_CANDIDATES_MAX];
    uint32_t count;
};

struct serve_shared {
    struct grants *grants;
    struct iopool *pool;
    struct sessions *sessions;
    const uint64_t *session_seed;
    struct serve_limits limits;
    atomic_uint_fast64_t random; /* for session ids */
    _Atomic int64_t fetches_waiting; /* partitions of large waiting fetches */
    _Atomic int64_t wall_ahead_ms;
};

struct serve {
    struct serve_shared *shared;
    struct mailbox *mailbox;
    struct inflater *inflater;
    struct meter_api *meters; /* by API key; NULL: errors are not counted */
    struct isr_candidates candidates; /* of the current request */
    struct gather gather; /* of short responses to consumers */
    struct copies copies;
    struct produce *spares; /* finished Produce states for reuse */
    uint32_t spare_count;
    struct produce_groups *groups; /* NULL: nothing has been queued yet */
    uint32_t group_count; /* groups with queued requests */
};

/* Counts an error returned for a partition or a whole Fetch. */
static inline void serve_count_error(const struct serve *s, int api_key, int16_t error) {
    if (s->meters != NULL) meter_error(&s->meters[api_key], error);
}

/* Returns the broker's wall clock. */
int64_t serve_wall_ms(const struct serve *s);

/* For requests with a quota: charges the request against it; sets and returns r->throttle_ms.
 * `timed`: also charges thread time. */
int32_t serve_charge_produce(struct serve_request *r, bool timed);
/* Same for a fetch whose response takes `bytes`. If the result is positive, the records must not
 * be sent. */
int32_t serve_charge_fetch(struct serve_request *r, size_t bytes);

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
