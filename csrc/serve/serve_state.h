/* What serve.c, produce.c and fetch.c share and nobody else sees. */
#ifndef PYLOG_SERVE_STATE_H
#define PYLOG_SERVE_STATE_H

#include "format/batch.h"
#include "serve/grants.h"
#include "format/scratch.h"
#include "serve/serve.h"
#include "serve/sessions.h"

enum { API_PRODUCE = 0, API_FETCH = 1, NS_PER_MS = 1000000 };

/* Kafka's error codes that the data plane itself answers. */
enum {
    ERROR_OFFSET_OUT_OF_RANGE = 1,
    ERROR_UNKNOWN_TOPIC_OR_PARTITION = 3,
    ERROR_NOT_LEADER = 6,
    ERROR_KAFKA_STORAGE = 56,
    ERROR_REQUEST_TIMED_OUT = 7,
    ERROR_INVALID_TOPIC = 17,
    ERROR_NOT_ENOUGH_REPLICAS = 19,
    ERROR_INVALID_REQUIRED_ACKS = 21,
    ERROR_TOPIC_AUTHORIZATION = 29,
    ERROR_INVALID_TXN_STATE = 48,
    ERROR_TRANSACTIONAL_ID_AUTHORIZATION = 53,
    ERROR_STORAGE = 56,
    ERROR_SESSION_NOT_FOUND = 70,
    ERROR_FENCED_LEADER_EPOCH = 74,
    ERROR_UNKNOWN_LEADER_EPOCH = 75,
    ERROR_UNSUPPORTED_COMPRESSION = 76,
    ERROR_INVALID_RECORD = 87
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

/* One topic looked up for a request: fills *out (one reference) and returns 0, an error code, or -1
 * for a miss. */
int serve_topic(struct serve *s, uint32_t principal, const uint8_t *name, int32_t name_len,
                const uint8_t *id, uint8_t right, struct topic **out);
bool serve_id_is_zero(const uint8_t id[16]);

enum serve_status produce_start(struct serve *s, struct serve_request *r);
enum serve_status produce_resume(struct serve *s, struct serve_request *r,
                                 enum serve_reason reason);
bool produce_abandon(struct serve_request *r);
enum serve_status fetch_start(struct serve *s, struct serve_request *r);
enum serve_status fetch_resume(struct serve *s, struct serve_request *r, enum serve_reason reason);
bool fetch_abandon(struct serve *s, struct serve_request *r);

#endif
