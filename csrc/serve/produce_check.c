/* Checks the batches of a Produce, and re-encodes them for the topic's compression.type.
 *
 * The work of a request is limited by the decompressed size of its records, not by its own
 * length: a reactor checks records up to a budget, and io workers check the rest in time slices,
 * so that other connections and jobs run in between. */
#include <stdlib.h>

#include "format/assertion.h"
#include "log_manager/log_manager.h"
#include "serve/produce_internal.h"

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
/* Budget of a worker. */
#define UNLIMITED INT64_MAX

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

/* Checks the request's fields for the part. Sets p->error if it must not be appended. */
static void check_fields(const struct produce *q, struct produce_part *p) {
    if (q->acks < -1 || q->acks > 1)
        p->error = ERROR_INVALID_REQUIRED_ACKS;
    else if (p->len == 0)
        p->error = ERROR_INVALID_RECORD;
    else if (zstd_too_old(q, p))
        p->error = ERROR_UNSUPPORTED_COMPRESSION_TYPE;
}

/* Validates the part's batch. Returns the work spent, or OVER_BUDGET without changes if it would
 * exceed the budget. */
static int64_t validate(struct produce *q, struct produce_part *p, struct inflater *in,
                        struct batch_rules *rules, int stored_codec, int64_t budget) {
    int64_t work = 0, inflated_max = rules->inflated_bytes_max;
    if (budget != UNLIMITED) {
        work = least_work(q->serve, p, rules->walk_records, stored_codec, budget);
        if (work == OVER_BUDGET) return OVER_BUDGET;
        if (budget - PART_WORK_MIN < inflated_max)
            rules->inflated_bytes_max = budget - PART_WORK_MIN;
    }
    if (p->summary == NULL)
        p->summary = p == q->parts ? &q->summary_first : malloc(sizeof *p->summary);
    if (p->summary == NULL) {
        p->error = ERROR_KAFKA_STORAGE_ERROR;
        return work;
    }
    p->check = batch_check(p->records, p->len, rules, in, p->summary);
    if (p->check == BATCH_E_INFLATE_MAX && rules->inflated_bytes_max < inflated_max) {
        p->check = 0;
        return OVER_BUDGET;
    }
    if (p->check != 0) p->error = batch_error_code(p->check);
    int64_t inflation = p->summary->inflated_bytes + PART_WORK_MIN;
    return batch_codec(&p->summary->header) != CODEC_NONE && inflation > work ? inflation : work;
}

/* Checks a valid batch against the request and the log. Sets p->error if it must not be
 * appended. */
static void check_batch(const struct produce *q, struct produce_part *p,
                        const struct batch_rules *rules) {
    struct batch_header *h = &p->summary->header;
    /* The header's maximum timestamp must match the records, because the time index is built
     * from it. */
    if (!rules->log_append_time &&
        batch_stamp_max_timestamp(p->records, p->len, p->summary->max_timestamp)) {
        h->max_timestamp = p->summary->max_timestamp;
        h->attributes = (int16_t)(h->attributes & ~BATCH_LOG_APPEND_TIME);
    }
    if ((h->attributes & BATCH_TRANSACTIONAL) && !q->transactional)
        p->error = ERROR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    else if (q->acks == -1 && log_below_min_isr(p->log, false))
        p->error = ERROR_NOT_ENOUGH_REPLICAS;
}

/* Re-encodes the batch as the topic's compression.type requires. */
static void recompress(struct produce_part *p, struct inflater *in,
                       const struct log_config *config) {
    /* The limit applies to the stored batch. The received batch was checked before. */
    size_t bytes_max = config->max_message_bytes < 0 ? 0 : (size_t)config->max_message_bytes;
    int recoded =
        batch_recompress(p->records, p->len, config->compression_codec, config->compression_level,
                         config->inflated_bytes_max, bytes_max, in, &p->recoded, &p->len);
    if (recoded == 0) recoded = batch_parse(p->recoded, p->len, &p->summary->header);
    if (recoded != 0)
        p->error = batch_error_code(recoded);
    else
        p->records = p->recoded;
}

/* Checks one part, and re-encodes it if necessary. Returns the work spent. With a budget (on a
 * reactor), returns OVER_BUDGET and changes nothing if the work would exceed it. */
static int64_t check_part(struct produce *q, struct produce_part *p, struct inflater *in,
                          int64_t now_ms, int64_t budget) {
    struct log_config config;
    struct batch_rules rules;
    assert_slow(p->log != NULL && p->error == 0 && budget > 0);
    check_fields(q, p);
    if (p->error != 0) return 0;
    rules_from(log_config_get(p->log, &config), now_ms, &rules);
    int64_t work = validate(q, p, in, &rules, config.compression_codec, budget);
    if (work == OVER_BUDGET || p->error != 0) return work;
    check_batch(q, p, &rules);
    bool stored = config.compression_codec < 0 ||
                  config.compression_codec == batch_codec(&p->summary->header);
    if (p->error != 0 || stored) return work;
    assert(budget == UNLIMITED); /* only workers re-encode */
    recompress(p, in, &config);
    return work;
}

int produce_check_job(struct iojob *job, void *worker_scratch) {
    struct produce *q = (struct produce *)job;
    struct scratch *scratch = worker_scratch;
    struct inflater *in = scratch == NULL ? NULL : scratch->inflater;
    int64_t now_ms = serve_wall_ms(q->serve), began_ns = quotas_monotonic_ns();
    assert(q->checked_count < q->part_count);
    do {
        struct produce_part *p = &q->parts[q->checked_count++];
        if (p->error == 0) check_part(q, p, in, now_ms, UNLIMITED);
        q->job_ns = quotas_monotonic_ns() - began_ns;
    } while (q->checked_count < q->part_count && q->job_ns < CHECK_SLICE_NS);
    return 0;
}

bool produce_check(struct produce *q, int64_t now_ms) {
    const struct serve *s = q->serve;
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
