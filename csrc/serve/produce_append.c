/* Appends the parts of a Produce to their logs. */
#include "serve/produce_internal.h"

#include "format/assertion.h"

/* Time that one request may append before other connections of the reactor run. */
#define APPEND_TURN_NS ((int64_t)5 * NS_PER_MS)

void produce_appended(struct produce_part *p, int error, const struct log_appended *done) {
    if (error != 0) {
        p->error = log_error_code(error);
        p->cause = error;
        p->below_reserve = done->below_reserve;
        /* A marker arrived in between. When the client retries, the coordinator verifies the
         * transaction again. */
        if (error == LOG_E_TXN_STATE) p->error = ERROR_NOT_ENOUGH_REPLICAS;
        p->refused = error == LOG_E_SEQUENCE || error == LOG_E_EPOCH;
        return;
    }
    assert_slow(done->base_offset >= 0 && done->base_offset <= done->last_offset);
    p->base_offset = done->base_offset;
    p->last_offset = done->last_offset;
    p->append_time_ms = done->append_time_ms;
    p->leadership_losses = done->leadership_losses;
    p->log_start_offset = done->log_start_offset;
}

void produce_append_part(const struct produce *q, struct produce_part *p, int64_t now_ms) {
    assert(p->log != NULL && p->base_offset == -1); /* appended only once */
    assert(p->summary != NULL && p->len == batch_bytes(&p->summary->header));
    struct log_transaction_check check;
    struct log_append_part part; /* the append sets the other fields */
    part.batch = p->records;
    part.len = p->len;
    part.summary = p->summary;
    part.transaction = NULL;
    if (p->summary->header.attributes & BATCH_TRANSACTIONAL) {
        check = (struct log_transaction_check){.last_marker = p->last_marker,
                                               .holder = q->holder,
                                               .from_zero = q->version >= ADDING_VERSION_MIN};
        part.transaction = &check;
    }
    log_append_for_clients(p->log, &part, 1, now_ms);
    produce_appended(p, part.result, &part.out);
}

bool produce_keep_keys(struct produce *q) {
    for (uint32_t i = 0; i < q->part_count; i++) {
        struct produce_part *p = &q->parts[i];
        if (p->topic == NULL) return false;
        p->key.bytes = q->by_id ? p->topic->id : (const uint8_t *)p->topic->name;
    }
    return true;
}

bool produce_append(struct produce *q, int64_t now_ms) {
    int64_t began_ns = quotas_monotonic_ns();
    assert(q->checked_count == q->part_count);
    while (q->appended_count < q->part_count) {
        struct produce_part *p = &q->parts[q->appended_count++];
        assert(p->topic != NULL || (p->log == NULL && p->error != 0));
        if (p->error == 0)
            produce_append_part(q, p, now_ms);
        else if (p->log != NULL)
            log_count_refused(p->log);
        if (quotas_monotonic_ns() - began_ns >= APPEND_TURN_NS) break;
    }
    return q->appended_count == q->part_count;
}
