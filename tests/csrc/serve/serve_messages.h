/* Fetch and Produce requests of every version as clients encode them, and the expected
 * responses; and a simulated page cache (programs.CACHE). */
#ifndef PYLOG_SERVE_MESSAGES_H
#define PYLOG_SERVE_MESSAGES_H

#include "serve/fetch_internal.h"
#include "serve/leader_hints.h"
#include "tables/broker_endpoints.h"
#include "serve_scenes.h"

static inline void add_bytes(struct body *m, const void *bytes, size_t n) {
    if (n != 0) memcpy(room(m, n), bytes, n);
}
static inline void add_uvarint(struct body *m, uint64_t v) {
    uint8_t bytes[10];
    add_bytes(m, bytes, put_uvarint(bytes, v));
}
static inline void add_count(struct body *m, bool flexible, int32_t n) {
    if (flexible)
        add_uvarint(m, (uint64_t)(n + 1));
    else
        add_i32(m, n);
}
/* NULL: null. */
static inline void add_text(struct body *m, bool flexible, const char *s) {
    if (flexible)
        add_uvarint(m, s == NULL ? 0 : strlen(s) + 1);
    else
        add_i16(m, s == NULL ? -1 : (int16_t)strlen(s));
    if (s != NULL) add_bytes(m, s, strlen(s));
}
static inline void add_no_tags(struct body *m, bool flexible) {
    if (flexible) add_i8(m, 0);
}
/* Add an unknown tagged field. */
static inline void add_odd_tag(struct body *m, bool flexible) {
    static const uint8_t odd[] = {1, 99, 3, 'o', 'd', 'd'};
    if (flexible) add_bytes(m, odd, sizeof odd);
}
/* open_topic makes ids of a name's first letter. */
static inline void add_topic(struct body *m, bool flexible, bool by_id, const char *name) {
    if (by_id)
        memset(room(m, 16), name[0], 16);
    else
        add_text(m, flexible, name);
}

enum { NODE_PORT = 9000 };

/* A broker listed in a response. */
struct row_node {
    int32_t id;
    const char *host, *rack;
};

/* Add the response's tagged fields: the addresses of the listed leaders. */
static inline void add_endpoints(struct body *m, const struct row_node *nodes, int count) {
    struct body b = {.len = 0};
    if (count == 0) {
        add_i8(m, 0);
        return;
    }
    add_count(&b, true, count);
    for (int i = 0; i < count; i++) {
        add_i32(&b, nodes[i].id);
        add_text(&b, true, nodes[i].host);
        add_i32(&b, NODE_PORT + nodes[i].id);
        add_text(&b, true, nodes[i].rack);
        add_i8(&b, 0);
    }
    add_i8(m, 1);
    add_i8(m, 0);
    add_uvarint(m, b.len);
    add_bytes(m, b.bytes, b.len);
}

static inline void add_leader(struct body *m, int8_t tag, int32_t id, int32_t epoch) {
    add_i8(m, tag);
    add_i8(m, 9);
    add_i32(m, id);
    add_i32(m, epoch);
    add_i8(m, 0);
}

static bool runs_apart; /* every fetch has many partitions and runs on a worker */

static inline void run_apart(void) {
    runs_apart = true;
    shared->limits.wide_partitions = 0;
}

/* The page cache of a log's readers: everything is cached, unless a scene changes it. */
static struct {
    bool cold, blocked; /* no page of a range; no page of the index */
} disk_played;

bool __wrap_log_range_is_cold(const struct log_range *range);
bool __wrap_log_range_is_cold(const struct log_range *range) {
    (void)range;
    return disk_played.cold;
}
bool __real_log_range_read_cached(const struct log_range *range, uint8_t *to);
bool __wrap_log_range_read_cached(const struct log_range *range, uint8_t *to);
bool __wrap_log_range_read_cached(const struct log_range *range, uint8_t *to) {
    return !disk_played.cold && __real_log_range_read_cached(range, to);
}
int __real_log_read(struct log *log, const struct log_read_request *request, struct log_range *out);
int __wrap_log_read(struct log *log, const struct log_read_request *request, struct log_range *out);
int __wrap_log_read(struct log *log, const struct log_read_request *request,
                    struct log_range *out) {
    if (disk_played.blocked && request->nowait) return LOG_E_WOULD_BLOCK;
    return __real_log_read(log, request, out);
}

/* Return how many rows from this one on belong to one topic. */
#define SAME_TOPIC(rows, at, count)                                                                \
    ({                                                                                             \
        int n_ = 1;                                                                                \
        while ((at) + n_ < (count) && strcmp((rows)[(at) + n_].topic, (rows)[at].topic) == 0)      \
            n_++;                                                                                  \
        n_;                                                                                        \
    })
#define TOPICS_OF(rows, count)                                                                     \
    ({                                                                                             \
        int topics_ = 0;                                                                           \
        for (int at_ = 0; at_ < (count); at_ += SAME_TOPIC(rows, at_, count)) topics_++;           \
        topics_;                                                                                   \
    })

/* ---- Fetch ---- */

struct asked {
    const char *topic;
    int32_t partition, leader_epoch, last_fetched_epoch, bytes_max;
    int64_t offset, start_offset;
};
/* Without an epoch, from offset 0, without a limit. */
#define ASKED(name, index, ...)                                                                    \
    ((struct asked){.topic = name,                                                                 \
                    .partition = index,                                                            \
                    .leader_epoch = -1,                                                            \
                    .last_fetched_epoch = -1,                                                      \
                    .start_offset = -1,                                                            \
                    .bytes_max = 1 << 20,                                                          \
                    __VA_ARGS__})
struct fetching {
    int16_t version;
    int8_t isolation;
    int32_t replica, wait_ms, bytes_min, bytes_max, session_id, session_epoch;
    int64_t replica_epoch;
    const struct asked *asked;
    int count;
    const struct asked *forgotten;
    int forgotten_count;
    const char *rack;
    bool odd; /* with unknown tagged fields */
};
#define FETCHING(of_version, rows, row_count, ...)                                                 \
    ((struct fetching){.version = of_version,                                                      \
                       .replica = -1,                                                              \
                       .wait_ms = WAIT_MS,                                                         \
                       .bytes_min = 1,                                                             \
                       .bytes_max = 1 << 20,                                                       \
                       .session_epoch = -1,                                                        \
                       .replica_epoch = -1,                                                        \
                       .asked = rows,                                                              \
                       .count = row_count,                                                         \
                       .rack = "",                                                                 \
                       __VA_ARGS__})

static inline void add_asked(struct body *m, const struct fetching *f, const struct asked *a,
                             int count) {
    bool flexible = f->version >= 12, by_id = f->version >= 13;
    add_count(m, flexible, TOPICS_OF(a, count));
    for (int i = 0; i < count;) {
        int n = SAME_TOPIC(a, i, count);
        add_topic(m, flexible, by_id, a[i].topic);
        add_count(m, flexible, n);
        for (int end = i + n; i < end; i++) {
            add_i32(m, a[i].partition);
            if (f->version >= 9) add_i32(m, a[i].leader_epoch);
            add_i64(m, a[i].offset);
            if (f->version >= 12) add_i32(m, a[i].last_fetched_epoch);
            if (f->version >= 5) add_i64(m, a[i].start_offset);
            add_i32(m, a[i].bytes_max);
            if (f->odd) add_odd_tag(m, flexible);
            else add_no_tags(m, flexible);
        }
        if (f->odd) add_odd_tag(m, flexible);
        else add_no_tags(m, flexible);
    }
}

static inline void add_forgotten(struct body *m, const struct fetching *f) {
    bool flexible = f->version >= 12, by_id = f->version >= 13;
    const struct asked *a = f->forgotten;
    add_count(m, flexible, TOPICS_OF(a, f->forgotten_count));
    for (int i = 0; i < f->forgotten_count;) {
        int n = SAME_TOPIC(a, i, f->forgotten_count);
        add_topic(m, flexible, by_id, a[i].topic);
        add_count(m, flexible, n);
        for (int end = i + n; i < end; i++) add_i32(m, a[i].partition);
        if (f->odd) add_odd_tag(m, flexible);
        else add_no_tags(m, flexible);
    }
}

static inline void write_fetch(struct body *m, const struct fetching *f) {
    bool flexible = f->version >= 12, says_who = f->version >= 15 && f->replica >= 0;
    m->len = 0;
    if (f->version <= 14) add_i32(m, f->replica);
    add_i32(m, f->wait_ms);
    add_i32(m, f->bytes_min);
    add_i32(m, f->bytes_max);
    add_i8(m, f->isolation);
    if (f->version >= 7) {
        add_i32(m, f->session_id);
        add_i32(m, f->session_epoch);
    }
    add_asked(m, f, f->asked, f->count);
    if (f->version >= 7) add_forgotten(m, f);
    if (f->version >= 11) add_text(m, flexible, f->rack);
    if (!flexible) return;
    add_i8(m, (int8_t)(says_who + f->odd));
    if (says_who) {
        add_i8(m, 1);
        add_i8(m, 4 + 8 + 1);
        add_i32(m, f->replica);
        add_i64(m, f->replica_epoch);
        add_i8(m, 0);
    }
    if (f->odd) add_bytes(m, "\x63\x03odd", 5);
}

/* Return the status of a request once no worker processes it. */
static inline enum serve_status driven(struct serve_request *r, enum serve_status status) {
    struct message l;
    while (runs_apart && status == SERVE_WAIT && ((struct fetch *)r->state)->job_running) {
        await_message(&l);
        bool done = l.kind == MESSAGE_IO_DONE;
        status = serve_resume(serve, r, done ? SERVE_IO_DONE : SERVE_WOKEN);
    }
    return status;
}
static inline enum serve_status resumed(struct serve_request *r, enum serve_reason reason) {
    return driven(r, serve_resume(serve, r, reason));
}

/* Disconnect the client. A worker may have to release its objects. */
static inline bool abandoned(struct serve_request *r) {
    struct message l;
    if (serve_abandon(serve, r)) return true;
    CHECK(runs_apart);
    await_message(&l);
    return l.kind == MESSAGE_IO_DONE && serve_abandon(serve, r);
}

/* Start a Fetch. The body is overwritten when it is no longer needed. */
static inline enum serve_status start_fetch(struct serve_request *r, struct body *m,
                                            const struct fetching *f) {
    write_fetch(m, f);
    enum serve_status status = driven(r, start(r, m, FETCH, f->version));
    if (!r->body_needed) memset(m->bytes, 0xee, sizeof m->bytes);
    return status;
}

struct fetched {
    const char *topic;
    int32_t partition, preferred, diverging_epoch, leader, leader_epoch;
    int16_t error;
    int64_t high, stable, start, diverging_end;
    int aborted; /* -1: null */
    struct log_aborted of[2];
    const uint8_t *records;
    size_t len;
};
#define FETCHED(name, index, ...)                                                                  \
    ((struct fetched){.topic = name,                                                               \
                      .partition = index,                                                          \
                      .preferred = -1,                                                             \
                      .diverging_epoch = -1,                                                       \
                      .leader = -1,                                                                \
                      .aborted = -1,                                                               \
                      __VA_ARGS__})
/* A row with only an error. */
#define FETCH_REFUSED(name, index, code, ...)                                                      \
    FETCHED(name, index, .error = code, .high = -1, .stable = -1, .start = -1, __VA_ARGS__)
struct fetch_answer {
    int16_t version, error;
    int32_t throttle_ms, session_id;
    const struct fetched *rows;
    int count;
    const struct row_node *nodes;
    int node_count;
};

static inline void add_fetched(struct body *m, int16_t version, const struct fetched *p) {
    bool flexible = version >= 12;
    add_i32(m, p->partition);
    add_i16(m, p->error);
    add_i64(m, p->high);
    add_i64(m, p->stable);
    if (version >= 5) add_i64(m, p->start);
    add_count(m, flexible, p->aborted);
    for (int i = 0; i < p->aborted; i++) {
        add_i64(m, p->of[i].producer_id);
        add_i64(m, p->of[i].first_offset);
        add_no_tags(m, flexible);
    }
    if (version >= 11) add_i32(m, p->preferred);
    add_count(m, flexible, (int32_t)p->len);
    add_bytes(m, p->records, p->len);
    if (!flexible) return;
    bool diverges = p->diverging_epoch >= 0, named = p->leader >= 0 && version >= 16;
    add_i8(m, (int8_t)(diverges + named));
    if (diverges) {
        add_i8(m, 0);
        add_i8(m, 13);
        add_i32(m, p->diverging_epoch);
        add_i64(m, p->diverging_end);
        add_i8(m, 0);
    }
    if (named) add_leader(m, 1, p->leader, p->leader_epoch);
}

static inline void begin_answer(struct body *m, bool flexible) {
    m->len = 0;
    add_i32(m, 0);
    add_i32(m, CORRELATION);
    add_no_tags(m, flexible);
}

/* Encode a response as it would be sent, including bytes in files and copies. */
static inline size_t sent_bytes(const struct reply *a, uint8_t *to, size_t room_bytes) {
    size_t len = 0, at = 0;
    CHECK(!a->failed && a->len + a->file_bytes <= room_bytes);
    for (uint32_t i = 0; i <= a->part_count; i++) {
        size_t end = i < a->part_count ? a->parts[i].bytes_end : a->len;
        memcpy(to + len, a->bytes + at, end - at);
        len += end - at;
        at = end;
        if (i == a->part_count) break;
        const struct log_range *range = &a->parts[i].range;
        size_t n = (size_t)range->length;
        if (a->parts[i].copy != NULL)
            memcpy(to + len, a->parts[i].copy->bytes, n);
        else
            CHECK(log_range_read(range, to + len, n, range->position) == (ssize_t)n);
        len += n;
    }
    return len;
}

/* Check that the request's response is these bytes, and clear it. */
static inline void check_sent(struct serve_request *r, struct body *expected) {
    static uint8_t sent[1 << 21];
    size_t len = sent_bytes(&r->reply, sent, sizeof sent);
    put_i32(expected->bytes, (int32_t)expected->len - 4);
    CHECK(r->state == NULL && r->missing == NULL);
    for (size_t i = 0; i < len && i < expected->len; i++)
        if (sent[i] != expected->bytes[i]) {
            fprintf(stderr, "byte %zu is %d and not %d\n", i, sent[i], expected->bytes[i]);
            CHECK(sent[i] == expected->bytes[i]);
        }
    CHECK(len == expected->len);
    reply_clear(&r->reply);
}

static inline void check_fetched(struct serve_request *r, const struct fetch_answer *a) {
    struct body m;
    bool flexible = a->version >= 12, by_id = a->version >= 13;
    begin_answer(&m, flexible);
    add_i32(&m, a->throttle_ms);
    if (a->version >= 7) {
        add_i16(&m, a->error);
        add_i32(&m, a->session_id);
    }
    add_count(&m, flexible, TOPICS_OF(a->rows, a->count));
    for (int i = 0; i < a->count;) {
        int n = SAME_TOPIC(a->rows, i, a->count);
        add_topic(&m, flexible, by_id, a->rows[i].topic);
        add_count(&m, flexible, n);
        for (int end = i + n; i < end; i++) add_fetched(&m, a->version, &a->rows[i]);
        add_no_tags(&m, flexible);
    }
    if (flexible) add_endpoints(&m, a->nodes, a->version >= 16 ? a->node_count : 0);
    check_sent(r, &m);
}
#define CHECK_FETCHED(request, of_version, row_list, row_count, ...)                               \
    check_fetched(request, &(struct fetch_answer){.version = of_version,                           \
                                                  .rows = row_list,                                \
                                                  .count = row_count,                              \
                                                  __VA_ARGS__})

/* Append the end of a producer's transaction: 0 abort, 1 commit. */
static inline void append_marker(struct log *log, int64_t producer, uint8_t type) {
    const uint8_t marker[] = {22, 0, 0, 0, 8, 0, 0, 0, type, 2, 0, 0};
    uint8_t batch[128];
    struct batch_summary summary = {0};
    struct log_appended out;
    size_t len = scene_batch(batch, marker, sizeof marker, NOW, producer, -1);
    put_i16(batch + 21, BATCH_TRANSACTIONAL | BATCH_CONTROL);
    scene_seal(batch, len);
    CHECK(batch_parse(batch, len, &summary.header) == 0);
    CHECK(log_append(log, batch, len, &summary, -1, NOW, &out) == 0);
}

/* ---- Produce ---- */

struct written {
    const char *topic;
    int32_t partition;
    const uint8_t *records; /* NULL: null */
    size_t len;
};
struct producing {
    int16_t version, acks;
    int32_t timeout_ms;
    const char *transaction;
    const struct written *rows;
    int count;
    bool odd;
};
#define PRODUCING(of_version, row_list, row_count, ...)                                            \
    ((struct producing){.version = of_version,                                                     \
                        .acks = -1,                                                                \
                        .timeout_ms = WAIT_MS,                                                     \
                        .rows = row_list,                                                          \
                        .count = row_count,                                                        \
                        __VA_ARGS__})

static inline void write_produce(struct body *m, const struct producing *q) {
    bool flexible = q->version >= 9, by_id = q->version >= 13;
    m->len = 0;
    add_text(m, flexible, q->transaction);
    add_i16(m, q->acks);
    add_i32(m, q->timeout_ms);
    add_count(m, flexible, TOPICS_OF(q->rows, q->count));
    for (int i = 0; i < q->count;) {
        int n = SAME_TOPIC(q->rows, i, q->count);
        add_topic(m, flexible, by_id, q->rows[i].topic);
        add_count(m, flexible, n);
        for (int end = i + n; i < end; i++) {
            const struct written *w = &q->rows[i];
            add_i32(m, w->partition);
            add_count(m, flexible, w->records == NULL ? -1 : (int32_t)w->len);
            add_bytes(m, w->records, w->len);
            if (q->odd) add_odd_tag(m, flexible);
            else add_no_tags(m, flexible);
        }
        if (q->odd) add_odd_tag(m, flexible);
        else add_no_tags(m, flexible);
    }
    if (q->odd) add_odd_tag(m, flexible);
    else add_no_tags(m, flexible);
}

static inline enum serve_status start_produce(struct serve_request *r, struct body *m,
                                              const struct producing *q) {
    write_produce(m, q);
    enum serve_status status = start(r, m, PRODUCE, q->version);
    if (!r->body_needed) memset(m->bytes, 0xee, sizeof m->bytes);
    return status;
}

struct wrote {
    const char *topic;
    int32_t partition, leader, leader_epoch;
    int16_t error;
    int64_t base_offset, append_time_ms, log_start;
    const char *text; /* the message, NULL: null */
    int bad_count;
    int32_t bad[3];
};
#define WROTE(name, index, offset, ...)                                                            \
    ((struct wrote){.topic = name,                                                                 \
                    .partition = index,                                                            \
                    .leader = -1,                                                                  \
                    .base_offset = offset,                                                         \
                    .append_time_ms = -1,                                                          \
                    __VA_ARGS__})
#define NOT_WROTE(name, index, code, ...)                                                          \
    WROTE(name, index, -1, .error = code, .log_start = -1, __VA_ARGS__)

static inline void add_wrote(struct body *m, int16_t version, const struct wrote *p) {
    bool flexible = version >= 9;
    add_i32(m, p->partition);
    add_i16(m, p->error);
    add_i64(m, p->base_offset);
    add_i64(m, p->append_time_ms);
    if (version >= 5) add_i64(m, p->log_start);
    if (version >= 8) {
        add_count(m, flexible, p->bad_count);
        for (int i = 0; i < p->bad_count; i++) {
            add_i32(m, p->bad[i]);
            add_text(m, flexible, p->text);
            add_no_tags(m, flexible);
        }
        add_text(m, flexible, p->text);
    }
    if (!flexible) return;
    bool named = p->leader >= 0 && version >= 10;
    add_i8(m, named);
    if (named) add_leader(m, 0, p->leader, p->leader_epoch);
}

struct produce_answered {
    int16_t version;
    int32_t throttle_ms;
    const struct wrote *rows;
    int count;
    const struct row_node *nodes;
    int node_count;
};

static inline void check_wrote(struct serve_request *r, const struct produce_answered *a) {
    struct body m;
    bool flexible = a->version >= 9, by_id = a->version >= 13;
    begin_answer(&m, flexible);
    add_count(&m, flexible, TOPICS_OF(a->rows, a->count));
    for (int i = 0; i < a->count;) {
        int n = SAME_TOPIC(a->rows, i, a->count);
        add_topic(&m, flexible, by_id, a->rows[i].topic);
        add_count(&m, flexible, n);
        for (int end = i + n; i < end; i++) add_wrote(&m, a->version, &a->rows[i]);
        add_no_tags(&m, flexible);
    }
    add_i32(&m, a->throttle_ms);
    if (flexible) add_endpoints(&m, a->nodes, a->version >= 10 ? a->node_count : 0);
    check_sent(r, &m);
}
#define CHECK_WROTE(request, of_version, row_list, row_count, ...)                                 \
    check_wrote(request, &(struct produce_answered){.version = of_version,                         \
                                                    .rows = row_list,                              \
                                                    .count = row_count,                            \
                                                    __VA_ARGS__})

#endif
