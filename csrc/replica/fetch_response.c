/* One state for each section that is read in one step. A section that has not arrived completely
 * is read again from its start when more bytes have arrived. */
#include "replica/fetch_response.h"

#include "format/assertion.h"
#include "serve/wire.h"

enum response_section {
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

void fetch_response_begin(struct fetch_response *r, uint64_t frame_bytes) {
    *r = (struct fetch_response){.left = frame_bytes, .at = AT_HEAD};
}

static void read_head(struct fetch_response *r, struct cursor *c) {
    r->correlation_id = cursor_i32(c);
    wire_skip_tags(c, true);
    (void)cursor_i32(c); /* throttle_time_ms: for clients only */
    r->error_code = cursor_i16(c);
    r->session_id = cursor_i32(c);
    int64_t topics = wire_count(c, true);
    r->topics_left = topics > 0 ? (uint64_t)topics : 0;
}

static void read_topic(struct fetch_response *r, struct cursor *c) {
    const uint8_t *id;
    if (!cursor_take(c, TOPIC_ID_BYTES, &id)) return;
    memcpy(r->topic_id, id, TOPIC_ID_BYTES);
    int64_t partitions = wire_count(c, true);
    r->partitions_left = partitions > 0 ? (uint64_t)partitions : 0;
}

static void read_partition(struct fetch_response *r, struct cursor *c) {
    struct fetch_response_partition *p = &r->partition;
    *p = (struct fetch_response_partition){
        .diverging_epoch = -1, .leader_id = -1, .leader_epoch = -1};
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

static void read_partition_tags(struct fetch_response *r, struct cursor *c) {
    struct fetch_response_partition *p = &r->partition;
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
static uint8_t next_topic(const struct fetch_response *r) {
    return r->topics_left > 0 ? AT_TOPIC : AT_REST;
}

static int open_records(struct fetch_response *r) {
    struct fetch_response_partition *p = &r->partition;
    if (p->records_bytes > r->left || p->high_watermark < -1 || p->log_start_offset < -1)
        return RESPONSE_BAD;
    r->records_left = p->records_bytes;
    r->at = AT_RECORDS;
    return RESPONSE_PARTITION;
}

static int end_partition(struct fetch_response *r) {
    assert(r->partitions_left > 0);
    r->partitions_left--;
    r->at = r->partitions_left > 0 ? AT_PARTITION : AT_TOPIC_TAGS;
    return RESPONSE_PARTITION_END;
}

static int end_topic(struct fetch_response *r) {
    assert(r->topics_left > 0);
    r->topics_left--;
    r->at = next_topic(r);
    return RESPONSE_MORE;
}

/* Reads the section that starts at c. c becomes invalid if the section has not arrived
 * completely. */
static void read_section(struct fetch_response *r, struct cursor *c) {
    switch (r->at) {
    case AT_HEAD: read_head(r, c); break;
    case AT_TOPIC: read_topic(r, c); break;
    case AT_PARTITION: read_partition(r, c); break;
    case AT_PARTITION_TAGS: read_partition_tags(r, c); break;
    default: assert(r->at == AT_TOPIC_TAGS); wire_skip_tags(c, true);
    }
}

/* Advances the state after a section. Returns RESPONSE_MORE if there is nothing to report. */
static int end_section(struct fetch_response *r) {
    switch (r->at) {
    case AT_HEAD: r->at = next_topic(r); return RESPONSE_OPENED;
    case AT_TOPIC:
        r->at = r->partitions_left > 0 ? AT_PARTITION : AT_TOPIC_TAGS;
        return RESPONSE_MORE;
    case AT_PARTITION: return open_records(r);
    case AT_PARTITION_TAGS: return end_partition(r);
    default: return end_topic(r);
    }
}

static int skip_rest(struct fetch_response *r, size_t len, size_t *used) {
    uint64_t count = r->left < len ? r->left : len;
    *used += count;
    r->left -= count;
    if (r->left > 0) return RESPONSE_MORE;
    r->at = AT_END;
    return RESPONSE_END;
}

int fetch_response_step(struct fetch_response *r, const uint8_t *p, size_t len, size_t *used) {
    *used = 0;
    for (;;) {
        assert(r->at < AT_END);
        assert(r->records_left <= r->left);
        size_t shown = len - *used;
        if (r->at == AT_REST) return skip_rest(r, shown, used);
        if (r->at == AT_RECORDS) {
            if (r->records_left > 0) return shown > 0 ? RESPONSE_RECORDS : RESPONSE_MORE;
            r->at = AT_PARTITION_TAGS;
        }
        if (shown > r->left) shown = r->left;
        if (shown > RESPONSE_SECTION_BYTES_MAX) shown = RESPONSE_SECTION_BYTES_MAX;
        struct cursor c = {p + *used, p + *used + shown};
        read_section(r, &c);
        if (c.p == NULL)
            return shown == r->left || shown == RESPONSE_SECTION_BYTES_MAX ? RESPONSE_BAD
                                                                           : RESPONSE_MORE;
        size_t section_bytes = (size_t)(c.p - (p + *used));
        assert(section_bytes > 0);
        assert(section_bytes <= r->left);
        *used += section_bytes;
        r->left -= section_bytes;
        int step = end_section(r);
        if (step != RESPONSE_MORE) return step;
    }
}

void fetch_response_consume(struct fetch_response *r, uint64_t count) {
    assert(r->at == AT_RECORDS);
    assert(count <= r->records_left);
    r->records_left -= count;
    r->left -= count;
}
