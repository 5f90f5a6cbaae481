/* The Fetch response: which partitions it contains (all, or those of a session with changes),
 * and their records as file ranges. */
#include "serve/fetch_internal.h"

#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"
#include "serve/wire.h"

/* Limit of aborted transactions per response. Ranges are cut to stay below it, except for
 * transactions that overlap the first batch. */
enum { ABORTED_MAX = 65536 };
/* Response bytes besides the records (flexible versions; others differ by few bytes). */
enum { ANSWER_BYTES = 16, TOPIC_BY_ID_BYTES = 18, TOPIC_BYTES = 4, PARTITION_BYTES = 40 };

/* A session's response contains a partition only if something changed. Errors are always
 * returned. */
static bool has_news(const struct fetch *f, struct fetch_part *p) {
    const struct fetch_read *read = p->read;
    if (f->full || read->range.length > 0 || read->error != 0 || read->diverging_epoch >= 0 ||
        read->preferred >= 0)
        return true;
    return p->answered_high_watermark != read->range.high_watermark ||
           p->answered_log_start != read->range.log_start_offset;
}

static struct fetch_part *next_included(struct fetch_part *p) {
    while (p != NULL && !p->read->answer) p = p->next;
    return p;
}

/* Collects the aborted transactions of this partition's range; `*left`: how many more the
 * response may have. A range with more is cut, and the client fetches the rest next. If the list
 * cannot be read, the range is dropped: without the list, aborted records would appear as
 * committed. */
static void take_aborted(const struct fetch *f, struct fetch_part *p, uint32_t *left) {
    struct fetch_read *read = p->read;
    struct log_range *range = &read->range;
    if (!f->read_committed || fetch_is_follower(f) || read->error != 0 || range->length == 0)
        return;
    int64_t end = range->next_offset, second = range->first_offset + 1;
    int result = log_aborted_between(read->log, p->offset, end, second, *left, &read->aborted);
    if (result == 0 && read->aborted.upper < end)
        result = log_range_cut(range, read->aborted.upper);
    /* Check this last: deleting a file also deletes its aborted transactions. The client fetches
     * again. */
    if (result != 0 || !log_range_is_current(read->log, range)) fetch_release(read);
    if (result != 0) read->error = log_error_code(result);
    *left -= read->aborted.count < *left ? read->aborted.count : *left;
}

static void encode_aborted(struct reply *a, const struct fetch *f, struct fetch_part *p) {
    const struct fetch_read *read = p->read;
    /* As in Kafka: an empty list if the partition was rejected before reading, null if
     * transactions do not apply. */
    if (fetch_is_unknown(p)) {
        reply_count(a, f->flexible, 0);
        return;
    }
    if (!f->read_committed || fetch_is_follower(f) || read->error != 0) {
        if (f->flexible)
            reply_uvarint(a, 0);
        else
            reply_i32(a, -1);
        return;
    }
    reply_count(a, f->flexible, read->aborted.count);
    for (uint32_t i = 0; i < read->aborted.count; i++) {
        reply_i64(a, read->aborted.at[i].producer_id);
        reply_i64(a, read->aborted.at[i].first_offset);
        reply_no_tags(a, f->flexible);
    }
}

/* v16: the current leader (KIP-951). */
static bool names_leader(const struct fetch *f, const struct fetch_part *p,
                         struct topic_leader *leader) {
    int16_t error = p->read->error;
    if (f->version < 16) return false;
    if (error != ERROR_NOT_LEADER_OR_FOLLOWER && error != ERROR_FENCED_LEADER_EPOCH) return false;
    return leaders_of(p->read->topic, p->partition, leader);
}

/* Tagged fields: 0 DivergingEpoch, 13 bytes including its empty tags; 1 CurrentLeader. */
static void encode_fetch_tags(struct reply *a, struct fetch *f, const struct fetch_part *p) {
    struct topic_leader leader;
    bool diverges = p->read->diverging_epoch >= 0, named = names_leader(f, p, &leader);
    reply_i8(a, (int8_t)(diverges + named));
    if (diverges) {
        reply_i8(a, 0);
        reply_uvarint(a, 13);
        reply_i32(a, p->read->diverging_epoch);
        reply_i64(a, p->read->diverging_end);
        reply_i8(a, 0);
    }
    if (named) leaders_answer(&f->leaders, a, 1, leader);
}

/* Takes ownership of the range and its copy. */
static void encode_records(struct reply *a, struct fetch_read *read) {
    if (read->copy != NULL)
        reply_copy(a, &read->range, read->copy);
    else
        reply_range(a, &read->range);
    read->copy = NULL;
}

static void encode_fetch_partition(struct reply *a, struct fetch *f, struct fetch_part *p) {
    struct fetch_read *read = p->read;
    bool known = read->error == 0;
    assert_slow(known || read->range.length == 0);
    read->had_data = read->range.length > 0;
    reply_i32(a, p->partition);
    reply_i16(a, read->error);
    reply_i64(a, known ? read->range.high_watermark : -1);
    reply_i64(a, known ? read->range.last_stable_offset : -1);
    /* v5: log start offset (KIP-107) */
    if (f->version >= 5) reply_i64(a, known ? read->range.log_start_offset : -1);
    encode_aborted(a, f, p);
    /* v11: the replica to read from (KIP-392) */
    if (f->version >= 11) reply_i32(a, known ? read->preferred : -1);
    if (f->flexible)
        reply_uvarint(a, (uint64_t)read->range.length + 1);
    else
        reply_i32(a, read->range.length);
    if (read->range.length > 0) encode_records(a, read);
    if (f->flexible) encode_fetch_tags(a, f, p);
}

static void encode_topic(struct reply *a, struct fetch *f, struct fetch_part *first,
                         uint32_t count) {
    struct topic_key key = {first->key->bytes, first->key->len, f->by_id};
    reply_topic_key(a, f->flexible, key);
    assert_slow(count > 0);
    reply_count(a, f->flexible, count);
    struct fetch_part *p = first;
    for (uint32_t i = 0; i < count; i++, p = next_included(p->next)) {
        p->answered_high_watermark = p->read->error != 0 ? -1 : p->read->range.high_watermark;
        p->answered_log_start = p->read->error != 0 ? -1 : p->read->range.log_start_offset;
        encode_fetch_partition(a, f, p);
    }
    reply_no_tags(a, f->flexible);
}

/* Returns how many consecutive partitions belong to the same topic: they share its entry. */
static uint32_t count_same_topic(struct fetch_part *first) {
    uint32_t n = 1;
    for (struct fetch_part *p = next_included(first->next); p != NULL && fetch_same_topic(first, p);
         p = next_included(p->next))
        n++;
    return n;
}

static struct fetch_part *skip(struct fetch_part *p, uint32_t n) {
    while (n-- != 0) p = next_included(p->next);
    return p;
}

/* Call before the response takes ownership of the ranges. */
static void count(const struct serve *s, const struct fetch_part *p) {
    if (p->read->error != 0) serve_count_error(s, API_FETCH, p->read->error);
    if (p->read->topic != NULL && p->read->log != NULL)
        log_count_read(p->read->log, p->read->range.length, p->read->error != 0);
    if (p->read->throttled) fetch_count_throttled(s, p);
}

static void encode_topics(struct serve *s, struct reply *a, struct fetch *f) {
    uint32_t topics = 0, aborted_left = ABORTED_MAX;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        p->read->answer = has_news(f, p);
        if (!p->read->answer) continue;
        take_aborted(f, p, &aborted_left);
        count(s, p);
    }
    for (struct fetch_part *p = next_included(f->set->first); p != NULL;
         p = skip(p, count_same_topic(p)))
        topics++;
    reply_count(a, f->flexible, topics);
    for (struct fetch_part *p = next_included(f->set->first); p != NULL;) {
        uint32_t n = count_same_topic(p);
        encode_topic(a, f, p, n);
        p = skip(p, n);
        assert_slow(topics > 0);
        topics--;
    }
    assert(topics == 0); /* matches the announced count */
}

/* Move partitions that returned records to the end, so that one full partition cannot use up
 * every response. */
static void rotate(struct fetch *f) {
    if (f->session == NULL) return;
    struct fetch_part *end = f->set->last;
    for (struct fetch_part *p = f->set->first, *next; p != NULL; p = next) {
        next = p == end ? NULL : p->next;
        if (p->read->answer && p->read->had_data) fetch_set_move_to_end(f->set, p);
    }
}

size_t fetch_response_bytes(struct fetch *f) {
    size_t bytes = ANSWER_BYTES, topic_bytes = 0;
    struct fetch_part *before = NULL;
    for (struct fetch_part *p = f->set->first; p != NULL; p = p->next) {
        if (!has_news(f, p)) continue;
        if (before == NULL || !fetch_same_topic(before, p))
            topic_bytes += f->by_id ? TOPIC_BY_ID_BYTES : TOPIC_BYTES + p->key->len;
        bytes += PARTITION_BYTES + (size_t)p->read->range.length;
        before = p;
    }
    return bytes + topic_bytes;
}

void fetch_encode_throttled(const struct serve_request *r, const struct fetch *f,
                            struct reply *a) {
    assert(r->throttle_ms > 0);
    reply_header(a, r->correlation_id, f->flexible);
    reply_i32(a, r->throttle_ms);
    if (f->version >= 7) { /* v7: fetch sessions (KIP-227) */
        reply_i16(a, f->error);
        reply_i32(a, f->error == 0 ? f->session_id : 0);
    }
    reply_count(a, f->flexible, 0);
    reply_no_tags(a, f->flexible);
    reply_finish(a);
}

void fetch_encode(struct serve *s, const struct serve_request *r, struct fetch *f,
                  struct reply *a) {
    assert(f->session == NULL || (f->session->busy && f->set == &f->session->set));
    assert_slow(a->len == 0); /* a request is answered only once */
    reply_header(a, r->correlation_id, f->flexible);
    reply_i32(a, 0);
    if (f->version >= 7) { /* v7: fetch sessions (KIP-227) */
        reply_i16(a, f->error);
        reply_i32(a, f->session != NULL ? f->session->id : 0);
    }
    if (f->error != 0) serve_count_error(s, API_FETCH, f->error);
    encode_topics(s, a, f);
    if (f->flexible) leaders_answer_endpoints(&f->leaders, s, r, a);
    reply_finish(a);
    if (f->error == 0 && !f->full) rotate(f);
}
