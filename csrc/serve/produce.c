/* Produce v3-13: parse, look up, check, append, wait, answer.
 *
 * All topics are looked up before the first append: a miss parks the request whole, and it is
 * parsed anew when the control plane has decided, so nothing is ever appended twice. The body stays
 * in place until the batches are appended (they are stamped there). */
#include "serve/serve_state.h"

#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"
#include "serve/leaders.h"
#include "serve/wire.h"

/* v12: what a transaction writes to becomes part of it (KIP-890). */
enum { PARTS_INLINE = 4, PRODUCE_PARTS_MAX = 200000, ADDING_VERSION_MIN = 12 };

struct produce_part {
    struct topic *topic; /* one reference; NULL when not granted. Changed by set_topic alone */
    struct topic_key key; /* as the request named it: in the body, or (keep_keys) the topic's own */
    struct log *log;     /* borrowed through topic: NULL when that is */
    uint8_t *records;    /* in the body, or recoded */
    uint8_t *recoded;    /* owned: after compression.type */
    size_t len;
    int64_t base_offset, last_offset, append_time_ms, log_start_offset;
    struct batch_summary *summary; /* owned while there is something to check or to answer */
    struct log_waiter waiter;
    uint32_t resignations; /* the log's when it was appended */
    int32_t partition;
    int64_t last_marker; /* of the batch's producer, when its coordinator was asked */
    int32_t check; /* batch_error of the check */
    int16_t error;
    bool first_of_topic, waiting;
    bool unverified; /* the coordinator is being asked about it */
    bool refused; /* by the producer state: answered with the log start, as in Kafka */
};

struct produce {
    struct iojob job;
    struct serve *serve;
    struct produce_part *parts;
    struct misses misses;
    uint32_t part_count, part_cap;
    int64_t job_ns; /* how long a worker took */
    struct serve_transaction transaction; /* of transactional batches; the id lies in the body */
    int32_t timeout_ms;
    int16_t acks, version;
    bool flexible, by_id, transactional, job_running, verifying;
    struct produce_part parts_inline[PARTS_INLINE];
};

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

static void produce_free(struct serve_request *r) {
    struct produce *q = r->state;
    if (q == NULL) return;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (p->waiting) log_unwait(p->log, &p->waiter);
        p->waiting = false;
        set_topic(p, NULL, 0);
        free(p->recoded);
        free(p->summary);
    }
    if (q->parts != q->parts_inline) free(q->parts);
    misses_clear(&q->misses, r);
    free(q);
    r->state = NULL;
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
    bool complete = true;
    struct topic *topic = NULL;
    int16_t error = 0;
    uint32_t verdict_at = 0;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (p->first_of_topic) {
            topic = NULL;
            int found = serve_topic(s, r->principal, p->key, GRANT_WRITE, &topic);
            error = (int16_t)found;
            if (found < 0 && granted) {
                error = misses_verdict(r, p->key, &verdict_at);
            } else if (found < 0) {
                complete = false;
                error = 0;
                if (!misses_add(&q->misses, r, p->key)) {
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
static void check_part(const struct produce *q, struct produce_part *p, struct inflater *in,
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
    p->summary = malloc(sizeof *p->summary);
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
        struct log_config config;
        int codec = get_i16(p->records + BATCH_ATTRIBUTES_AT) & BATCH_CODEC_MASK;
        log_config_get(p->log, &config);
        if (config.compression_codec >= 0 && config.compression_codec != codec) return true;
        if (codec != CODEC_NONE && config.walk_records &&
            p->len > (size_t)s->shared->limits.inline_inflate_bytes)
            return true;
    }
    return false;
}

static void append_part(const struct produce *q, struct produce_part *p, int64_t now_ms) {
    struct log_appended done;
    assert(p->log != NULL && p->base_offset == -1); /* it is appended once */
    if (!log_take_room(p->log, (int64_t)p->len)) {
        p->error = log_error_code(LOG_E_FULL);
        return;
    }
    assert(p->summary != NULL && p->len == batch_bytes(&p->summary->header));
    int error;
    if (p->summary->header.attributes & BATCH_TRANSACTIONAL)
        error = log_append_verified(p->log, p->records, p->len, p->summary, p->last_marker,
                                    q->version >= ADDING_VERSION_MIN, now_ms, &done);
    else
        error = log_append(p->log, p->records, p->len, p->summary, -1, now_ms, &done);
    log_give_room(p->log, (int64_t)p->len);
    if (error != 0) {
        p->error = log_error_code(error);
        /* A marker came meanwhile: a client that tries again has the coordinator asked anew. */
        if (error == LOG_E_TXN_STATE) p->error = ERROR_NOT_ENOUGH_REPLICAS;
        p->refused = error == LOG_E_SEQUENCE || error == LOG_E_EPOCH;
        return;
    }
    assert_slow(done.base_offset >= 0 && done.base_offset <= done.last_offset);
    p->base_offset = done.base_offset;
    p->last_offset = done.last_offset;
    p->append_time_ms = done.append_time_ms;
    p->resignations = done.resignations;
    p->log_start_offset = done.log_start_offset;
}

/* The high watermark has passed its records: whether they are still there, and on enough replicas.
 */
static int16_t check_replicas(const struct produce_part *p) {
    if (log_resignations(p->log) != p->resignations) return ERROR_NOT_LEADER_OR_FOLLOWER;
    return log_lacks_replicas(p->log, true) ? ERROR_NOT_ENOUGH_REPLICAS_AFTER_APPEND : 0;
}

/* True: the ends that the acknowledgement promises are reached, or the part has its error. False:
 * the waiter is linked. */
static bool acknowledged(struct produce_part *p) {
    assert_slow(p->waiter.mailbox != NULL);
    p->waiting = false;
    if (p->error != 0) return true;
    assert_slow(p->last_offset >= 0); /* what it waits for was appended */
    for (int step = 0; step < 2; step++) {
        if (step == 1 && (p->error = check_replicas(p)) != 0) return true;
        if (step == 1 && !log_flush_before_ack(p->log)) return true;
        p->waiter.wait_for = step == 0 ? LOG_WAIT_HIGH_WATERMARK : LOG_WAIT_FLUSHED;
        p->waiter.offset = p->last_offset;
        if (log_wait(p->log, &p->waiter)) continue;
        p->waiting = true;
        return false;
    }
    return true;
}

/* v10: who leads instead (KIP-951). */
static void answer_tags(struct reply *a, const struct produce_part *p, int16_t version,
                        bool flexible, struct leaders *leaders) {
    struct topic_leader leader;
    if (version < 10 || p->error != ERROR_NOT_LEADER_OR_FOLLOWER ||
        !leaders_of(p->topic, p->partition, &leader)) {
        reply_no_tags(a, flexible);
        return;
    }
    reply_i8(a, 1);
    leaders_answer(leaders, a, 0, leader);
}

static void answer_part(struct reply *a, const struct produce_part *p, int16_t version,
                        bool flexible, struct leaders *leaders) {
    reply_i32(a, p->partition);
    reply_i16(a, p->error);
    reply_i64(a, p->error == 0 ? p->base_offset : -1);
    reply_i64(a, p->error == 0 ? p->append_time_ms : -1);
    bool named = p->check != 0 && p->summary != NULL && p->summary->bad_record_count > 0;
    if (version >= 5) { /* v5: log start offset (KIP-107) */
        bool known = named || p->check == BATCH_E_SEQUENCE || p->refused;
        reply_i64(a, known ? log_start_offset(p->log) : p->error == 0 ? p->log_start_offset : -1);
    }
    if (version >= 8) { /* v8: which records are bad, and a message (KIP-467) */
        /* As in Kafka, these have nothing to add to their error codes. */
        bool explained = p->check != 0 && p->check != BATCH_E_CRC && p->check != BATCH_E_SEQUENCE &&
                         p->check != BATCH_E_TOO_LARGE;
        const char *text = explained ? batch_error_text(p->check) : NULL;
        uint32_t bad = named ? (uint32_t)p->summary->bad_record_count : 0;
        reply_count(a, flexible, bad);
        for (uint32_t i = 0; i < bad; i++) {
            reply_i32(a, p->summary->bad_records[i]);
            reply_string(a, flexible, text, text == NULL ? 0 : strlen(text));
            reply_no_tags(a, flexible);
        }
        reply_string(a, flexible, text, text == NULL ? 0 : strlen(text));
    }
    answer_tags(a, p, version, flexible, leaders);
}

static uint32_t count_topics(const struct produce *q) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->part_count; i++) n += q->parts[i].first_of_topic;
    return n;
}

static enum serve_status answer(struct serve_request *r, struct produce *q) {
    struct reply *a = &r->reply;
    assert_slow(!q->job_running && a->len == 0);
    for (uint32_t i = 0; i < q->part_count; i++)
        if (q->parts[i].error != 0) serve_count_error(q->serve, API_PRODUCE, q->parts[i].error);
    if (q->acks == 0) {
        /* Nobody would read an error code: a closed connection makes the client look again. */
        enum serve_status status = SERVE_SILENT;
        for (uint32_t i = 0; i < q->part_count; i++)
            if (q->parts[i].error != 0) status = SERVE_CLOSE;
        serve_charge_produce(r, false);
        produce_free(r);
        return status;
    }
    struct leaders leaders;
    leaders.count = 0;
    reply_header(a, r->correlation_id, q->flexible);
    reply_count(a, q->flexible, count_topics(q));
    for (uint32_t i = 0; i < q->part_count; i++) {
        const struct produce_part *p = &q->parts[i];
        if (p->first_of_topic) {
            uint32_t n = 1;
            while (i + n < q->part_count && !q->parts[i + n].first_of_topic) n++;
            reply_topic_key(a, q->flexible, p->key);
            reply_count(a, q->flexible, n);
        }
        answer_part(a, p, q->version, q->flexible, &leaders);
        if (i + 1 == q->part_count || q->parts[i + 1].first_of_topic) reply_no_tags(a, q->flexible);
    }
    reply_i32(a, serve_charge_produce(r, true));
    if (q->flexible) leaders_answer_endpoints(&leaders, q->serve, r, a);
    reply_finish(a);
    produce_free(r);
    return a->failed ? SERVE_CLOSE : SERVE_ANSWER;
}

/* The request's names lie in the body; once it may be reused they are needed from elsewhere. Only
 * then. */
static bool keep_keys(struct produce *q) {
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (p->topic == NULL) return false;
        p->key.bytes = q->by_id ? p->topic->id : (const uint8_t *)p->topic->name;
    }
    return true;
}

static enum serve_status append_all(struct serve_request *r, struct produce *q) {
    int64_t now_ms = serve_wall_ms(q->serve);
    bool pending = false;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        assert(p->topic != NULL || (p->log == NULL && p->error != 0));
        if (p->error == 0)
            append_part(q, p, now_ms);
        else if (p->log != NULL)
            log_count_refused(p->log);
    }
    for (uint32_t i = 0; q->acks == -1 && i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        p->waiter.mailbox = q->serve->mailbox;
        p->waiter.token = r->token;
        if (!acknowledged(p)) pending = true;
    }
    if (!pending) return answer(r, q);
    r->exclusive = false;
    r->body_needed = !keep_keys(q);
    r->deadline_ms = r->received_ms + (q->timeout_ms < 0 ? 0 : q->timeout_ms);
    return SERVE_WAIT;
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
    return append_all(r, q);
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
    if (known.transaction_first_offset >= 0 && h.producer_epoch == known.epoch) return true;
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
    if (!misses_add(&q->misses, r, name)) return false;
    r->missing[r->missing_count - 1].partition = p->partition;
    return p->unverified = true;
}

/* SERVE_ANSWER: nothing is to be asked. */
static enum serve_status verify(struct serve_request *r, struct produce *q) {
    r->missing_count = 0;
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

static enum serve_status looked_up(struct serve *s, struct serve_request *r, struct produce *q) {
    return q->transactional ? verified(s, r, q) : check_all(s, r, q);
}

enum serve_status produce_start(struct serve *s, struct serve_request *r) {
    assert_slow(r->api_key == API_PRODUCE);
    struct produce *q = calloc(1, sizeof *q);
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
    if (look_up(s, r, q, false)) return looked_up(s, r, q);
    if (r->missing_count != 0) return SERVE_MISS;
    produce_free(r);
    return SERVE_CLOSE;
}

/* After a wake or at the deadline: what is still waiting, and what will never come. */
static enum serve_status look_again(struct serve_request *r, struct produce *q, bool timed_out) {
    bool pending = false;
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (!p->waiting) continue;
        assert(p->log != NULL && p->error == 0 && q->acks == -1);
        log_unwait(p->log, &p->waiter);
        int failed = log_failed(p->log);
        if (failed == 0 && !acknowledged(p)) {
            if (!timed_out) {
                pending = true;
                continue;
            }
            log_unwait(p->log, &p->waiter);
            p->error = ERROR_REQUEST_TIMED_OUT;
        } else if (failed != 0) {
            p->error = log_error_code(failed);
        }
        p->waiting = false;
    }
    return pending ? SERVE_WAIT : answer(r, q);
}

enum serve_status produce_resume(struct serve *s, struct serve_request *r,
                                 enum serve_reason reason) {
    struct produce *q = r->state;
    if (reason == SERVE_GRANTED && q->verifying) {
        take_verdicts(r, q);
        return check_all(s, r, q);
    }
    if (reason == SERVE_GRANTED) {
        look_up(s, r, q, true);
        return looked_up(s, r, q);
    }
    if (reason == SERVE_IO_DONE) {
        assert(q->job_running && q->job_ns >= 0);
        q->job_running = false;
        r->busy_ns += q->job_ns;
        return append_all(r, q);
    }
    if (q->job_running) return SERVE_WAIT;
    return look_again(r, q, reason == SERVE_TIMEOUT);
}

bool produce_abandon(struct serve_request *r) {
    struct produce *q = r->state;
    if (q->job_running) {
        /* Called again at the job's message: what it checked is dropped, nothing was appended. */
        q->job_running = false;
        return false;
    }
    produce_free(r);
    return true;
}
