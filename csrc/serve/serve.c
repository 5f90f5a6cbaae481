/* Dispatches the two data-plane requests and holds their shared state. */
#include "serve/serve_context.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "format/assertion.h"

void serve_shared_set_wall_ahead(struct serve_shared *shared, int64_t ahead_ms) {
    atomic_store(&shared->wall_ahead_ms, ahead_ms);
}

struct serve_shared *serve_shared_new(struct grants *grants, struct iopool *pool,
                                      const struct serve_limits *limits) {
    struct serve_shared *shared = calloc(1, sizeof *shared);
    if (shared == NULL) return NULL;
    shared->grants = grants;
    shared->pool = pool;
    shared->limits = *limits;
    if (shared->limits.wide_partitions == 0) shared->limits.wide_partitions = WIDE_PARTITIONS;
    shared->sessions = sessions_new((uint32_t)limits->sessions_max);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    atomic_init(&shared->random, (uint64_t)t.tv_nsec * 0x9e3779b97f4a7c15u ^ (uint64_t)t.tv_sec);
    if (shared->sessions == NULL) {
        free(shared);
        return NULL;
    }
    shared->session_seed = sessions_seed(shared->sessions);
    return shared;
}

void serve_shared_free(struct serve_shared *shared) {
    assert(atomic_load(&shared->fetches_waiting) == 0);
    sessions_free(shared->sessions);
    free(shared);
}

void serve_shared_stats(struct serve_shared *shared, uint64_t *sessions) {
    *sessions = sessions_count(shared->sessions);
}

struct serve *serve_new(struct serve_shared *shared, struct mailbox *mailbox) {
    struct serve *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->shared = shared;
    s->mailbox = mailbox;
    gather_init(&s->gather, shared->limits.gather_ms_max);
    copies_init(&s->copies);
    s->inflater = inflater_new();
    if (s->inflater == NULL) {
        free(s);
        return NULL;
    }
    return s;
}

void serve_meter(struct serve *s, struct meter_api *apis) { s->meters = apis; }

void serve_tick(struct serve *s, int64_t now_ms) {
    sessions_expire(s->shared->sessions, now_ms);
    copies_tick(&s->copies);
}

void serve_free(struct serve *s) {
    copies_clear(&s->copies);
    produce_free_groups(s);
    produce_free_spares(s);
    inflater_free(s->inflater);
    free(s);
}

uint32_t serve_take_isr_candidates(struct serve *s, const struct isr_candidate **candidates) {
    uint32_t count = s->candidates.count;
    assert_slow(count <= ISR_CANDIDATES_MAX);
    *candidates = s->candidates.at;
    s->candidates.count = 0;
    return count;
}

bool serve_knows(int16_t api_key, int16_t api_version) {
    if (api_key == API_PRODUCE)
        return api_version >= PRODUCE_VERSION_MIN && api_version <= PRODUCE_VERSION_MAX;
    return api_key == API_FETCH && api_version >= FETCH_VERSION_MIN &&
           api_version <= FETCH_VERSION_MAX;
}

enum serve_status serve_start(struct serve *s, struct serve_request *r) {
    assert_slow(serve_knows(r->api_key, r->api_version));
    assert_slow(r->reply.len == 0 && r->reply.part_count == 0); /* it has no response yet */
    r->state = NULL;
    r->missing_count = 0;
    r->transaction.id = NULL;
    r->deadline_ms = INT64_MAX;
    r->body_needed = r->exclusive = true;
    return r->api_key == API_PRODUCE ? produce_start(s, r) : fetch_start(s, r);
}

enum serve_status serve_resume(struct serve *s, struct serve_request *r, enum serve_reason reason) {
    assert(r->state != NULL && r->reply.len == 0); /* a request is answered only once */
    assert(reason != SERVE_GRANTED || r->missing_count > 0);
    return r->api_key == API_PRODUCE ? produce_resume(s, r, reason) : fetch_resume(s, r, reason);
}

bool serve_abandon(struct serve *s, struct serve_request *r) {
    if (r->state == NULL) return true;
    return r->api_key == API_PRODUCE ? produce_abandon(r) : fetch_abandon(s, r);
}
