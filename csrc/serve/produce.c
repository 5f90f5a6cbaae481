/* Produce v3-13: parse, look up, check, append, wait, answer.
 *
 * The work of a request is limited by the decompressed size of its records, not by its own
 * length: a reactor checks records up to a budget, and io workers check the rest in time slices,
 * so that other connections and jobs run in between.
 *
 * All topics are looked up before the first append. A miss parks the whole request. It is looked
 * up again when the control plane has decided, so nothing is ever appended twice. The body stays
 * in place until the batches are appended, because they are stamped there. */
#include "serve/produce_internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"
#include "log_manager/log_manager.h"
#include "serve/wire.h"

/* Takes ownership of the reference on `topic` and releases the old one: log and topic change
 * together. `error`: set if the part is rejected although the topic exists. */
static void set_topic(struct produce_part *p, struct topic *topic, int16_t error) {
    assert(!p->waiting && (p->log == NULL || p->topic != NULL));
    if (p->topic != NULL) topic_release(p->topic);
    p->topic = topic;
    p->log = NULL;
    p->error = error;
    if (topic != NULL && error == 0) p->log = topic_log(topic, p->partition, &p->error);
}

void produce_free(struct serve_request *r) {
    struct produce *q = r->state;
    if (q == NULL) return;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (p->waiting) log_unwait(p->log, &p->waiter);
        p->waiting = false;
        set_topic(p, NULL, 0);
        free(p->recoded);
        if (p->summary != &q->summary_first) free(p->summary);
    }
    if (q->parts != q->parts_inline) free(q->parts);
    misses_clear(&q->misses, r);
    r->state = NULL;
    struct serve *s = q->serve;
    if (s->spare_count == PRODUCE_SPARES_MAX) {
        free(q);
        return;
    }
    assert(!q->queued && !q->appended);
    q->next = s->spares;
    s->spares = q;
    s->spare_count++;
}

static struct produce *produce_new(struct serve *s) {
    struct produce *q = s->spares;
    if (q == NULL) {
        q = malloc(sizeof *q);
    } else {
        assert_slow(s->spare_count > 0);
        s->spares = q->next;
        s->spare_count--;
    }
    if (q != NULL) memset(q, 0, offsetof(struct produce, summary_first));
    return q;
}

void produce_free_spares(struct serve *s) {
    while (s->spares != NULL) {
        struct produce *q = s->spares;
        s->spares = q->next;
        free(q);
    }
    s->spare_count = 0;
}

static struct produce_part *add_part(struct produce *q) {
    if (q->part_count == q->part_cap) {
        uint32_t cap = q->part_cap * 2;
        struct produce_part *grown = cap > PRODUCE_PARTS_MAX ? NULL : malloc(cap * sizeof *grown);
        if (grown == NULL) return NULL;
        memcpy(grown, q->parts, q->part_count * sizeof *grown);
        if (q->parts != q->parts_inline) free(q->parts);
        q->parts = grown;
        q->part_cap = cap;
    }
    assert_slow(q->part_count < q->part_cap);
    struct produce_part *p = &q->parts[q->part_count++];
    memset(p, 0, sizeof *p);
    p->base_offset = p->append_time_ms = p->log_start_offset = -1;
    return p;
}

static bool parse_partitions(struct produce *q, struct cursor *c, struct topic_key key) {
    int64_t count = wire_count(c, q->flexible);
    for (int64_t i = 0; i < count && c->p != NULL; i++) {
        int32_t partition = cursor_i32(c);
        int64_t len;
        const uint8_t *records = wire_bytes(c, q->flexible, &len);
        wire_skip_tags(c, q->flexible);
        struct produce_part *p = c->p == NULL ? NULL : add_part(q);
        if (p == NULL) return false;
        p->key = key;
        p->partition = partition;
        p->first_of_topic = i == 0;
        /* The leader stamps the batch in place: the frame belongs to this request. */
        p->records = len < 0 ? NULL : (uint8_t *)(uintptr_t)records;
        p->len = len < 0 ? 0 : (size_t)len;
    }
    return c->p != NULL && count >= 0;
}

static bool parse(struct produce *q, const struct serve_request *r) {
    struct cursor c = {r->body, r->body + r->body_len};
    struct wire_string id = wire_string(&c, q->flexible);
    q->transactional = id.len >= 0;
    q->transaction = (struct serve_transaction){.id = id.p, .id_len = id.len};
    q->acks = cursor_i16(&c);
    q->timeout_ms = cursor_i32(&c);
    int64_t count = wire_count(&c, q->flexible);
    for (int64_t i = 0; i < count && c.p != NULL; i++) {
        struct topic_key key;
        if (!wire_topic_key(&c, q->flexible, q->by_id, &key)) return false;
        if (!parse_partitions(q, &c, key)) return false;
        wire_skip_tags(&c, q->flexible);
    }
    wire_skip_tags(&c, q->flexible);
    return c.p != NULL && count >= 0;
}

/* Finds every part's log. Returns false if grants are missing (r->missing lists the topics) or
 * memory ran out (r->missing_count is 0). */
static bool look_up(struct serve *s, struct serve_request *r, struct produce *q, bool granted) {
    bool complete = true, is_void = false;
    struct topic *topic = NULL;
    int16_t error = 0;
    uint32_t verdict_at = 0;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (p->first_of_topic) {
            topic = grants_find(s->shared->grants, r->principal, p->key, GRANT_WRITE);
            bool found = topic != NULL;
            error = 0;
            if (!found && granted) {
                error = misses_verdict(r, p->key, &verdict_at);
                is_void |= error == 0;
                if (error == 0) error = ERROR_NOT_LEADER_OR_FOLLOWER;
            } else if (!found) {
                complete = false;
                if (!misses_add(&q->misses, r, p->key, GRANT_WRITE)) {
                    r->missing_count = 0;
                    return false;
                }
            }
            if (topic != NULL && topic->internal) error = ERROR_INVALID_TOPIC_EXCEPTION;
        } else if (topic != NULL) {
            topic_retain(topic);
        }
        set_topic(p, topic, error);
    }
    if (is_void && misses_again(&q->misses, r)) return look_up(s, r, q, false);
    return complete;
}

static void rules_from(const struct log_config *config, int64_t now_ms, struct batch_rules *rules) {
    rules->now_ms = now_ms;
    rules->timestamp_before_max_ms = config->timestamp_before_max_ms;
    rules->timestamp_after_max_ms = config->timestamp_after_max_ms;
    rules->inflated_bytes_max = config->inflated_bytes_max;
    rules->batch_bytes_max = config->max_message_bytes;
    rules->key_required = config->cleanup_compact;
    rules->log_append_time = config->log_append_time;
    rules->walk_records = config->walk_records;
}

/* v7: zstd (KIP-110). */
static bool zstd_too_old(const struct produce *q, const struct produce_part *p) {
    return q->version < 7 && p->len >= BATCH_HEADER_BYTES &&
           (get_i16(p->records + BATCH_ATTRIBUTES_AT) & BATCH_CODEC_MASK) == CODEC_ZSTD;
}

/* Work of a reactor's check, in decompressed bytes. */
enum {
    INFLATION_USUAL = 8,      /* budget: inline_inflate_bytes times this factor */
    PLAIN_BYTES_PER_WORK = 8, /* uncompressed bytes cost 1/8 of a decompressed byte */
    /* Minimum cost of a compressed byte: a stream of empty blocks decompresses to nothing, yet
     * takes longer than a stream that decompresses to this size. */
    STREAM_WORK_PER_BYTE = 4,
    PART_WORK_MIN = 512,
    OVER_BUDGET = -1
};
/* Time slice of one request on a worker, before other jobs run. */
#define CHECK_SLICE_NS ((int64_t)20 * NS_PER_MS)
enum { WORKER_PAUSE_MS = 10 /* pause before resubmitting a job if the pool is full */ };

static int64_t reactor_budget(const struct serve *s) {
    return (int64_t)s->shared->limits.inline_inflate_bytes * INFLATION_USUAL;
}

/* Returns the minimum work for the part, or OVER_BUDGET if a worker must check it. */
static int64_t least_work(const struct serve *s, const struct produce_part *p, bool walked,
                          int stored_codec, int64_t budget) {
    if (p->len < BATCH_HEADER_BYTES) return PART_WORK_MIN;
    int codec = get_i16(p->records + BATCH_ATTRIBUTES_AT) & BATCH_CODEC_MASK;
    bool inflates = codec != CODEC_NONE && walked;
    int64_t len = (int64_t)p->len;
    int64_t work =
        PART_WORK_MIN + (inflates ? len * STREAM_WORK_PER_BYTE : len / PLAIN_BYTES_PER_WORK);
    bool long_stream = p->len > (size_t)s->shared->limits.inline_inflate_bytes;
    bool recodes = stored_codec >= 0 && stored_codec != codec;
    return recodes || (inflates && long_stream) || work >= budget ? OVER_BUDGET : work;
}

/* Checks one part, and re-encodes it if the topic's compression.type requires it. Returns the
 * work spent. With a budget (on a reactor), returns OVER_BUDGET and changes nothing if the work
 * would exceed it. On a worker `budget` is INT64_MAX. */
static int64_t check_part(struct produce *q, struct produce_part *p, struct inflater *in,
                          int64_t now_ms, int64_t budget) {
    struct log_config config;
    struct batch_rules rules;
    bool bounded = budget != INT64_MAX;
    assert_slow(p->log != NULL && p->error == 0 && budget > 0);
    if (q->acks < -1 || q->acks > 1) {
        p->error = ERROR_INVALID_REQUIRED_ACKS;
        return 0;
    }
    if (p->len == 0) {
        p->error = ERROR_INVALID_RECORD;
        return 0;
    }
    if (zstd_too_old(q, p)) {
        p->error = ERROR_UNSUPPORTED_COMPRESSION_TYPE;
        return 0;
    }
    rules_from(log_config_get(p->log, &config), now_ms, &rules);
    int64_t work = 0, inflated_max = rules.inflated_bytes_max;
    if (bounded) {
        work = least_work(q->serve, p, rules.walk_records, config.compression_codec, budget);
        if (work == OVER_BUDGET) return OVER_BUDGET;
        if (budget - PART_WORK_MIN < inflated_max)
            rules.inflated_bytes_max = budget - PART_WORK_MIN;
    }
    if (p->summary == NULL)
        p->summary = p == q->parts ? &q->summary_first : malloc(sizeof *p->summary);
    if (p->summary == NULL) {
        p->error = ERROR_KAFKA_STORAGE_ERROR;
        return work;
    }
    p->check = batch_check(p->records, p->len, &rules, in, p->summary);
    if (p->check == BATCH_E_INFLATE_MAX && rules.inflated_bytes_max < inflated_max) {
        p->check = 0;
        return OVER_BUDGET;
    }
    int64_t inflation = p->summary->inflated_bytes + PART_WORK_MIN;
    if (batch_codec(&p->summary->header) != CODEC_NONE && inflation > work) work = inflation;
    if (p->check != 0) {
        p->error = batch_error_code(p->check);
        return work;
    }
    struct batch_header *h = &p->summary->header;
    /* The header's maximum timestamp must match the records, because the time index is built
     * from it. */
    if (!rules.log_append_time &&
        batch_stamp_max_timestamp(p->records, p->len, p->summary->max_timestamp)) {
        h->max_timestamp = p->summary->max_timestamp;
        h->attributes = (int16_t)(h->attributes & ~BATCH_LOG_APPEND_TIME);
    }
    if ((h->attributes & BATCH_TRANSACTIONAL) && !q->transactional)
        p->error = ERROR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    else if (q->acks == -1 && log_below_min_isr(p->log, false))
        p->error = ERROR_NOT_ENOUGH_REPLICAS;
    if (p->error != 0 || config.compression_codec < 0 || config.compression_codec == batch_codec(h))
        return work;
    assert(!bounded); /* only workers re-encode */
    /* The limit applies to the stored batch. The received batch was checked before. */
    size_t bytes_max = config.max_message_bytes < 0 ? 0 : (size_t)config.max_message_bytes;
    int recoded =
        batch_recompress(p->records, p->len, config.compression_codec, config.compression_level,
                         config.inflated_bytes_max, bytes_max, in, &p->recoded, &p->len);
    if (recoded == 0) recoded = batch_parse(p->recoded, p->len, &p->summary->header);
    if (recoded != 0) {
        p->error = batch_error_code(recoded);
        return work;
    }
    p->records = p->recoded;
    return work;
}

/* On an io worker: checks parts until the time slice ends, at least one. */
static int check_job(struct iojob *job, void *worker_scratch) {
    struct produce *q = (struct produce *)job;
    struct scratch *scratch = worker_scratch;
    struct inflater *in = scratch == NULL ? NULL : scratch->inflater;
    int64_t now_ms = serve_wall_ms(q->serve), began_ns = quotas_monotonic_ns();
    assert(q->checked_count < q->part_count);
    do {
        struct produce_part *p = &q->parts[q->checked_count++];
        if (p->error == 0) check_part(q, p, in, now_ms, INT64_MAX);
        q->job_ns = quotas_monotonic_ns() - began_ns;
    } while (q->checked_count < q->part_count && q->job_ns < CHECK_SLICE_NS);
    return 0;
}

/* On a reactor: checks parts within its budget. Returns false if a worker must check the rest. */
static bool check_inline(struct serve *s, struct produce *q, int64_t now_ms) {
    int64_t budget = reactor_budget(s);
    for (; q->checked_count < q->part_count; q->checked_count++) {
        struct produce_part *p = &q->parts[q->checked_count];
        if (p->error != 0) continue;
        int64_t work =
            budget <= 0 ? OVER_BUDGET : check_part(q, p, s->inflater, now_ms, budget);
        if (work == OVER_BUDGET) return false;
        budget -= work;
    }
    return true;
}

/* Checks the next slice of the request on a worker. After its first slice, a request leaves half
 * of the workers to other jobs. */
static enum serve_status check_on_worker(struct serve *s, struct serve_request *r,
                                         struct produce *q, bool patient) {
    assert(!q->job_running && r->exclusive && r->body_needed);
    q->job = (struct iojob){
        .run = check_job, .mailbox = s->mailbox, .token = r->token, .patient = patient};
    q->job_running = iopool_submit(s->shared->pool, &q->job);
    q->lacks_worker = !q->job_running;
    r->deadline_ms = q->lacks_worker ? r->now_ms + WORKER_PAUSE_MS : INT64_MAX;
    return SERVE_WAIT;
}

static enum serve_status check_all(struct serve *s, struct serve_request *r, struct produce *q) {
    int64_t now_ms = serve_wall_ms(s);
    return check_inline(s, q, now_ms) ? produce_append(r, q, now_ms)
                                      : check_on_worker(s, r, q, false);
}

/* ---- transactions: partitions verify with the coordinator before a transaction's first batch
 * (KIP-890) ---- */

/* Returns false if the request must be rejected as a whole. Adds the partition to r->missing if
 * the coordinator must verify it. */
static bool verify_part(struct serve_request *r, struct produce *q, struct produce_part *p) {
    struct batch_header h;
    struct log_producer known;
    if (p->error != 0 || p->len == 0 || batch_parse(p->records, p->len, &h) != 0) return true;
    if (!(h.attributes & BATCH_TRANSACTIONAL) || h.producer_id < 0) return true;
    if (!log_is_leader(p->log)) {
        p->error = ERROR_NOT_LEADER_OR_FOLLOWER;
        return true;
    }
    if (!log_producer_of(p->log, h.producer_id, serve_wall_ms(q->serve), &known)) {
        p->error = ERROR_KAFKA_STORAGE_ERROR;
        return true;
    }
    p->last_marker = known.last_marker;
    if (h.producer_epoch < known.epoch) {
        p->error = ERROR_INVALID_PRODUCER_EPOCH;
        return true;
    }
    bool verified = known.verified_epoch >= 0 && known.verified_epoch == h.producer_epoch;
    if (verified && known.verified_for == q->holder) return true;
    struct serve_transaction *t = &r->transaction;
    if (t->id == NULL) {
        *t = q->transaction;
        t->producer_id = h.producer_id;
        t->epoch = h.producer_epoch;
    } else if (t->producer_id != h.producer_id || t->epoch != h.producer_epoch) {
        p->error = ERROR_INVALID_PRODUCER_ID_MAPPING; /* a request has only one producer */
        return true;
    }
    struct topic_key name = {(const uint8_t *)p->topic->name, p->topic->name_len, false};
    if (!misses_add(&q->misses, r, name, GRANT_WRITE)) return false;
    r->missing[r->missing_count - 1].partition = p->partition;
    return p->unverified = true;
}

/* Returns SERVE_ANSWER if no partition needs verification. */
static enum serve_status verify(struct serve_request *r, struct produce *q) {
    r->missing_count = 0;
    q->holder = grants_holder(q->serve->shared->grants, r->principal);
    for (uint32_t i = 0; i < q->part_count; i++)
        if (!verify_part(r, q, &q->parts[i])) return SERVE_CLOSE;
    q->verifying = r->missing_count > 0;
    return q->verifying ? SERVE_MISS : SERVE_ANSWER;
}

static void take_verdicts(struct serve_request *r, struct produce *q) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (!p->unverified) continue;
        assert(n < r->missing_count);
        p->unverified = false;
        p->error = r->missing[n++].error;
    }
    assert(n == r->missing_count);
    q->verifying = false;
    r->transaction.id = NULL;
}

static enum serve_status verified(struct serve *s, struct serve_request *r, struct produce *q) {
    enum serve_status asked = verify(r, q);
    if (asked == SERVE_CLOSE) produce_free(r);
    return asked == SERVE_ANSWER ? check_all(s, r, q) : asked;
}

static enum serve_status look(struct serve *s, struct serve_request *r, struct produce *q,
                              bool granted) {
    if (look_up(s, r, q, granted)) return q->transactional ? verified(s, r, q) : check_all(s, r, q);
    if (r->missing_count != 0) return SERVE_MISS;
    produce_free(r);
    return SERVE_CLOSE;
}

enum serve_status produce_start(struct serve *s, struct serve_request *r) {
    assert_slow(r->api_key == API_PRODUCE);
    struct produce *q = produce_new(s);
    if (q == NULL) return SERVE_CLOSE;
    r->state = q;
    q->serve = s;
    q->parts = q->parts_inline;
    q->part_cap = PARTS_INLINE;
    q->version = r->api_version;
    q->flexible = r->api_version >= 9; /* v9: tagged fields (KIP-482) */
    q->by_id = r->api_version >= 13;   /* v13: topic ids in place of names (KIP-516) */
    if (!parse(q, r)) {
        produce_free(r);
        return SERVE_CLOSE;
    }
    return look(s, r, q, false);
}

enum serve_status produce_resume(struct serve *s, struct serve_request *r,
                                 enum serve_reason reason) {
    struct produce *q = r->state;
    if (reason == SERVE_GRANTED && q->verifying) {
        take_verdicts(r, q);
        return check_all(s, r, q);
    }
    if (reason == SERVE_GRANTED) return look(s, r, q, true);
    if (reason == SERVE_IO_DONE) {
        assert(q->job_running && q->job_ns >= 0);
        q->job_running = false;
        r->busy_ns += q->job_ns;
        if (q->checked_count < q->part_count) return check_on_worker(s, r, q, true);
        return produce_append(r, q, serve_wall_ms(s));
    }
    if (q->job_running) return SERVE_WAIT;
    if (q->lacks_worker) return check_on_worker(s, r, q, q->job_ns > 0);
    if (q->pauses) return produce_append(r, q, serve_wall_ms(s));
    return produce_look_again(r, q, reason == SERVE_TIMEOUT);
}

bool produce_abandon(struct serve_request *r) {
    struct produce *q = r->state;
    produce_group_leave(q->serve, q);
    if (q->job_running) {
        /* Called again when the job's message arrives. The checks are discarded; nothing was
         * appended. */
        q->job_running = false;
        return false;
    }
    produce_free(r);
    return true;
}
