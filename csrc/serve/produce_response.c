/* The Produce response, in the format of each version. */
#include "serve/produce_internal.h"

#include <string.h>

#include "format/assertion.h"
#include "serve/leader_hints.h"
#include "serve/wire.h"

/* v10: the current leader (KIP-951). */
static void encode_produce_tags(struct reply *a, const struct produce_part *p, int16_t version,
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

static void encode_produce_partition(struct reply *a, const struct produce_part *p, int16_t version,
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
    if (version >= 8) { /* v8: indexes of invalid records, and a message (KIP-467) */
        /* As in Kafka, these error codes have no additional message. */
        bool explained = p->check != 0 && p->check != BATCH_E_CRC && p->check != BATCH_E_SEQUENCE &&
                         p->check != BATCH_E_TOO_LARGE;
        const char *text = explained ? batch_error_text(p->check) : NULL;
        char cause[LOG_CAUSE_BYTES];
        if (p->error == ERROR_KAFKA_STORAGE_ERROR && p->cause != 0 && p->log != NULL) {
            log_storage_cause(p->log, p->cause, p->below_reserve, cause);
            text = cause;
        }
        uint32_t bad = named ? (uint32_t)p->summary->bad_record_count : 0;
        reply_count(a, flexible, bad);
        for (uint32_t i = 0; i < bad; i++) {
            reply_i32(a, p->summary->bad_records[i]);
            reply_string(a, flexible, text, text == NULL ? 0 : strlen(text));
            reply_no_tags(a, flexible);
        }
        reply_string(a, flexible, text, text == NULL ? 0 : strlen(text));
    }
    encode_produce_tags(a, p, version, flexible, leaders);
}

static uint32_t count_topics(const struct produce *q) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->part_count; i++) n += q->parts[i].first_of_topic;
    return n;
}

void produce_encode(const struct serve_request *r, const struct produce *q, int32_t throttle_ms,
                    struct reply *a) {
    struct leaders leaders;
    assert_slow(!q->job_running && a->len == 0);
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
        encode_produce_partition(a, p, q->version, q->flexible, &leaders);
        if (i + 1 == q->part_count || q->parts[i + 1].first_of_topic) reply_no_tags(a, q->flexible);
    }
    reply_i32(a, throttle_ms);
    if (q->flexible) leaders_answer_endpoints(&leaders, q->serve, r, a);
    reply_finish(a);
}
