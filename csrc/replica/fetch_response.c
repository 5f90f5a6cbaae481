/* One state for each section that is read in one step. A section that has not arrived completely
 * is read again from its start when more bytes have arrived. */
#include "replica/fetch_response.h"

#include "format/assertion.h"
#include "serve/wire.h"

enum answer_at {
    AT_HEAD,
    AT_TOPIC,
    AT_PARTITION,
    AT_RECORDS,
    AT_PARTITION_TAGS,
    AT_TOPIC_TAGS,
    AT_REST, /* tagged fields of the response (node endpoints): a follower ignores them */
    AT_END
};

enum { TAG_DIVERGING_EPOCH = 0, TAG_CURRENT_LEADER = 1 };

void answer_begin(struct answer *a, uint64_t frame_bytes) {
    *a = (struct answer){.left = frame_bytes, .at = AT_HEAD};
}

static void read_head(struct answer *a, struct cursor *c) {
    a->correlation_id = cursor_i32(c);
    wire_skip_tags(c, true);
    (void)cursor_i32(c); /* throttle_time_ms: for clients only */
    a->error_code = cursor_i16(c);
    a->session_id = cursor_i32(c);
    int64_t topics = wire_count(c, true);
    a->topics_left = topics > 0 ? (uint64_t)topics : 0;
}

static void read_topic(struct answer *a, struct cursor *c) {
    const uint8_t *id;
    if (!cursor_take(c, TOPIC_ID_BYTES, &id)) return;
    memcpy(a->topic_id, id, TOPIC_ID_BYTES);
    int64_t partitions = wire_count(c, true);
    a->partitions_left = partitions > 0 ? (uint64_t)partitions : 0;
}

static void read_partition(struct answer *a, struct cursor *c) {
    struct answer_partition *p = &a->partition;
    *p = (struct answer_partition){.diverging_epoch = -1, .leader_id = -1, .leader_epoch = -1};
    p->index = cursor_i32(c);
    p->error_code = cursor_i16(c);
    p->high_watermark = cursor_i64(c);
    (void)cursor_i64(c); /* last_stable_offset: the follower computes its own */
    p->log_start_offset = cursor_i64(c);
    /* Only consumers with read_committed get aborted transactions. */
    if (wire_count(c, true) > 0) c->p = NULL;
    (void)cursor_i32(c); /* preferred_read_replica: for consumers */
    uint64_t records = cursor_uvarint(c); /* 0: null */
    p->records_bytes = records == 0 ? 0 : records - 1;
}

static void read_partition_tags(struct answer *a, struct cursor *c) {
    struct answer_partition *p = &a->partition;
    uint64_t left = wire_tags(c, true), tag;
    struct cursor value;
    while (wire_tag(c, &left, &tag, &value)) {
        if (tag == TAG_DIVERGING_EPOCH) {
            p->diverging_epoch = cursor_i32(&value);
            p->diverging_end = cursor_i64(&value);
        } else if (tag == TAG_CURRENT_LEADER) {
            p->leader_id = cursor_i32(&value);
            p->leader_epoch = cursor_i32(&value);
        }
        if (value.p == NULL) c->p = NULL;
    }
}

/* Returns the state after a topic. */
static uint8_t next_topic(const struct answer *a) {
    return a->topics_left > 0 ? AT_TOPIC : AT_REST;
}

static int open_records(struct answer *a) {
    struct answer_partition *p = &a->partition;
    if (p->records_bytes > a->left || p->high_watermark < -1 || p->log_start_offset < -1)
        return ANSWER_BAD;
    a->records_left = p->records_bytes;
    a->at = AT_RECORDS;
    return ANSWER_PARTITION;
}

static int end_partition(struct answer *a) {
    assert(a->partitions_left > 0);
    a->partitions_left--;
    a->at = a->partitions_left > 0 ? AT_PARTITION : AT_TOPIC_TAGS;
    return ANSWER_PARTITION_END;
}

static int end_topic(struct answer *a) {
    assert(a->topics_left > 0);
    a->topics_left--;
    a->at = next_topic(a);
    return ANSWER_MORE;
}

/* Reads the section that starts at c. c becomes invalid if the section has not arrived
 * completely. */
static void read_section(struct answer *a, struct cursor *c) {
    switch (a->at) {
    case AT_HEAD: read_head(a, c); break;
    case AT_TOPIC: read_topic(a, c); break;
    case AT_PARTITION: read_partition(a, c); break;
    case AT_PARTITION_TAGS: read_partition_tags(a, c); break;
    default: assert(a->at == AT_TOPIC_TAGS); wire_skip_tags(c, true);
    }
}

/* Advances the state after a section. Returns ANSWER_MORE if there is nothing to report. */
static int end_section(struct answer *a) {
    switch (a->at) {
    case AT_HEAD: a->at = next_topic(a); return ANSWER_OPENED;
    case AT_TOPIC:
        a->at = a->partitions_left > 0 ? AT_PARTITION : AT_TOPIC_TAGS;
        return ANSWER_MORE;
    case AT_PARTITION: return open_records(a);
    case AT_PARTITION_TAGS: return end_partition(a);
    default: return end_topic(a);
    }
}

static int skip_rest(struct answer *a, size_t len, size_t *used) {
    uint64_t count = a->left < len ? a->left : len;
    *used += count;
    a->left -= count;
    if (a->left > 0) return ANSWER_MORE;
    a->at = AT_END;
    return ANSWER_END;
}

int answer_step(struct answer *a, const uint8_t *p, size_t len, size_t *used) {
    *used = 0;
    for (;;) {
        assert(a->at < AT_END);
        assert(a->records_left <= a->left);
        size_t shown = len - *used;
        if (a->at == AT_REST) return skip_rest(a, shown, used);
        if (a->at == AT_RECORDS) {
            if (a->records_left > 0) return shown > 0 ? ANSWER_RECORDS : ANSWER_MORE;
            a->at = AT_PARTITION_TAGS;
        }
        if (shown > a->left) shown = a->left;
        if (shown > ANSWER_SECTION_BYTES_MAX) shown = ANSWER_SECTION_BYTES_MAX;
        struct cursor c = {p + *used, p + *used + shown};
        read_section(a, &c);
        if (c.p == NULL)
            return shown == a->left || shown == ANSWER_SECTION_BYTES_MAX ? ANSWER_BAD : ANSWER_MORE;
        size_t section_bytes = (size_t)(c.p - (p + *used));
        assert(section_bytes > 0);
        assert(section_bytes <= a->left);
        *used += section_bytes;
        a->left -= section_bytes;
        int step = end_section(a);
        if (step != ANSWER_MORE) return step;
    }
}

void answer_took(struct answer *a, uint64_t count) {
    assert(a->at == AT_RECORDS);
    assert(count <= a->records_left);
    a->records_left -= count;
    a->left -= count;
}
