/* Produce v3-13: parse, look up, check, append, wait, answer.
 *
 * All topics are looked up before the first append: a miss parks the request whole, and it is
 * parsed anew when the control plane has decided, so nothing is ever appended twice. The body stays
 * in place until the batches are appended (they are stamped there). */
#include "serve/produce_state.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"
#include "serve/wire.h"

/* Takes the reference on `topic` over, and lets go of what stood there: log and topic go together.
 * `error`: why the part is refused all the same. */
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
        /* The leader stamps the batch where it lies: the frame is this request's own memory. */
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

/* Finds every part's log. False when something is missing (then r->missing names it) or memory ran
 * out (r->missing_count 0). */
static bool look_up(struct serve *s, struct serve_request *r, struct produce *q, bool granted) {
    bool complete = true, is_void = false;
    struct topic *topic = NULL;
    int16_t error = 0;
    uint32_t verdict_at = 0;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (p->first_of_topic) {
            topic = NULL;
            bool found = serve_topic(s, r->principal, p->key, GRANT_WRITE, &topic);
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

/* Checks one part, and re-encodes it when the topic has a codec of its own. Runs on a reactor or on
 * an io worker. */
static void check_part(struct produce *q, struct produce_part *p, struct inflater *in,
                       int64_t now_ms) {
    struct log_config config;
    struct batch_rules rules;
    assert_slow(p->log != NULL && p->error == 0 && p->summary == NULL);
    if (q->acks < -1 || q->acks > 1) {
        p->error = ERROR_INVALID_REQUIRED_ACKS;
        return;
    }
    if (p->len == 0) {
        p->error = ERROR_INVALID_RECORD;
        return;
    }
    if (zstd_too_old(q, p)) {
        p->error = ERROR_UNSUPPORTED_COMPRESSION_TYPE;
        return;
    }
    p->summary = p == q->parts ? &q->summary_first : malloc(sizeof *p->summary);
    if (p->summary == NULL) {
        p->error = ERROR_KAFKA_STORAGE_ERROR;
        return;
    }
    rules_from(log_config_get(p->log, &config), now_ms, &rules);
    p->check = batch_check(p->records, p->len, &rules, in, p->summary);
    if (p->check != 0) {
        p->error = batch_error_code(p->check);
        return;
    }
    struct batch_header *h = &p->summary->header;
    /* What the header claims must be what the records say: the time index is built from it. */
    if (!rules.log_append_time &&
        batch_stamp_max_timestamp(p->records, p->len, p->summary->max_timestamp)) {
        h->max_timestamp = p->summary->max_timestamp;
        h->attributes = (int16_t)(h->attributes & ~BATCH_LOG_APPEND_TIME);
    }
    if ((h->attributes & BATCH_TRANSACTIONAL) && !q->transactional)
        p->error = ERROR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    else if (q->acks == -1 && log_lacks_replicas(p->log, false))
        p->error = ERROR_NOT_ENOUGH_REPLICAS;
    if (p->error != 0 || config.compression_codec < 0 || config.compression_codec == batch_codec(h))
        return;
    /* The limit is on what is stored; what arrived was held against it before. */
    size_t bytes_max = config.max_message_bytes < 0 ? 0 : (size_t)config.max_message_bytes;
    int recoded =
        batch_recompress(p->records, p->len, config.compression_codec, config.compression_level,
                         config.inflated_bytes_max, bytes_max, in, &p->recoded, &p->len);
    if (recoded == 0) recoded = batch_parse(p->recoded, p->len, &p->summary->header);
    if (recoded != 0) {
        p->error = batch_error_code(recoded);
        return;
    }
    p->records = p->recoded;
}

/* Large inflations and every re-encoding leave the reactor. */
static bool needs_worker(const struct serve *s, const struct produce *q) {
    for (uint32_t i = 0; i < q->part_count; i++) {
        const struct produce_part *p = &q->parts[i];
        if (p->error != 0 || p->len < BATCH_HEADER_BYTES) continue;
        int codec = get_i16(p->records + BATCH_ATTRIBUTES_AT) & BATCH_CODEC_MASK;
        int stored = log_compression_codec(p->log);
        if (stored >= 0 && stored != codec) return true;
        bool large = p->len > (size_t)s->shared->limits.inline_inflate_bytes;
        if (codec == CODEC_NONE || !large) continue;
        struct log_config config;
        if (log_config_get(p->log, &config)->walk_records) return true;
    }
    return false;
}

static int check_job(struct iojob *job, void *worker_scratch) {
    struct produce *q = (struct produce *)job;
    struct scratch *scratch = worker_scratch;
    int64_t now_ms = serve_wall_ms(q->serve), began_ns = quotas_monotonic_ns();
    for (uint32_t i = 0; i < q->part_count; i++)
        if (q->parts[i].error == 0)
            check_part(q, &q->parts[i], scratch == NULL ? NULL : scratch->inflater, now_ms);
    q->job_ns = quotas_monotonic_ns() - began_ns;
    return 0;
}

static enum serve_status check_all(struct serve *s, struct serve_request *r, struct produce *q) {
    if (needs_worker(s, q)) {
        q->job = (struct iojob){.run = check_job, .mailbox = s->mailbox, .token = r->token};
        assert(!q->job_running);
        q->job_running = true;
        if (iopool_submit(s->shared->pool, &q->job)) return SERVE_WAIT;
        q->job_running =
            false; /* the pool is full: a slower reactor is better than a lost request */
    }
    int64_t now_ms = serve_wall_ms(s);
    for (uint32_t i = 0; i < q->part_count; i++)
        if (q->parts[i].error == 0) check_part(q, &q->parts[i], s->inflater, now_ms);
    return produce_append(r, q, now_ms);
}

/* ---- transactions: what a partition asks before the first batch of one (KIP-890) ---- */

/* False: the coordinator is to be asked, or the request is refused as a whole. */
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
        p->error = ERROR_INVALID_PRODUCER_ID_MAPPING; /* a request has one producer */
        return true;
    }
    struct topic_key name = {(const uint8_t *)p->topic->name, p->topic->name_len, false};
    if (!misses_add(&q->misses, r, name, GRANT_WRITE)) return false;
    r->missing[r->missing_count - 1].partition = p->partition;
    return p->unverified = true;
}

/* SERVE_ANSWER: nothing is to be asked. */
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
        return produce_append(r, q, serve_wall_ms(s));
    }
    if (q->job_running) return SERVE_WAIT;
    if (q->lacks_files) return produce_append(r, q, serve_wall_ms(s));
    return produce_look_again(r, q, reason == SERVE_TIMEOUT);
}

bool produce_abandon(struct serve_request *r) {
    struct produce *q = r->state;
    produce_group_leave(q->serve, q);
    if (q->job_running) {
        /* Called again at the job's message: what it checked is dropped, nothing was appended. */
        q->job_running = false;
        return false;
    }
    produce_free(r);
    return true;
}
