/* Produce through the real serve: what is refused, what a worker does, transactions, and what an
 * acknowledgement waits for. Usage: serve_produces DIRECTORY SCENE. Exit 0, or 1 with a line on
 * stderr. */
#include <time.h>

#include "serve_messages.h"
#include "watched.h"

enum {
    VERSION = 9,
    CORRUPT = 2,
    UNKNOWN_TOPIC = 3,
    NOT_LEADER = 6,
    TIMED_OUT = 7,
    TOO_LARGE = 10,
    INTERNAL_TOPIC = 17,
    FEW_REPLICAS = 19,
    FEW_REPLICAS_AFTER = 20,
    BAD_ACKS = 21,
    NO_RIGHT = 29,
    OUT_OF_ORDER = 45,
    OLD_EPOCH = 47,
    OTHER_PRODUCER = 49,
    NO_TRANSACTION = 53,
    STORAGE = 56,
    CODEC_UNKNOWN = 76,
    INVALID_RECORD = 87
};

static struct meter_api apis[2];
static struct held_topic a;
static struct body m;
static struct serve_request r;
static uint8_t batch[1 << 12], stored[1 << 16];

static bool pool_is_full;
bool __real_iopool_submit(struct iopool *p, struct iojob *job);
bool __wrap_iopool_submit(struct iopool *p, struct iojob *job);
bool __wrap_iopool_submit(struct iopool *p, struct iojob *job) {
    return !pool_is_full && __real_iopool_submit(p, job);
}

static void open_a(const struct log_config *config, bool alone) {
    open_topic(&a, "a", config, alone);
    /* So that a log's start is not 0. */
    append(a.logs[0], -1, -1, 0);
    if (!alone) log_advance_high_watermark(a.logs[0], 1);
    CHECK(log_move_start(a.logs[0], 1, NOW) == 0);
}

static size_t read_stored(int64_t offset) {
    struct log_range range;
    CHECK(log_read(a.logs[0], offset, LOG_BOUND_END, 1 << 16, true, &range) == 0);
    CHECK(log_range_read(&range, stored, (size_t)range.length, range.position) == range.length);
    size_t len = (size_t)range.length;
    log_range_release(&range);
    return len;
}

/* Starts a Produce of `batch` to a's first partition. */
static enum serve_status send_batch(size_t len, int16_t version, int16_t acks,
                                    const char *transaction) {
    const struct written row = {"a", 0, batch, len};
    return start_produce(&r, &m, &PRODUCING(version, &row, 1, .acks = acks,
                                            .transaction = transaction));
}

static void check_answer(int16_t version, const struct wrote *row) {
    CHECK_WROTE(&r, version, row, 1);
}

/* The batch is refused, and nothing is appended. */
static void refuse(size_t len, int16_t version, int16_t acks, const struct wrote *row) {
    struct log_figures before, after;
    log_figures_take(a.logs[0], &before);
    uint64_t errors = meter_read(&apis[PRODUCE].errors[row->error + 1]);
    CHECK(send_batch(len, version, acks, NULL) == SERVE_ANSWER);
    check_answer(version, row);
    log_figures_take(a.logs[0], &after);
    CHECK(after.end_offset == before.end_offset);
    CHECK(after.produce_requests == before.produce_requests + 1);
    CHECK(after.produce_failures == before.produce_failures + 1);
    CHECK(meter_read(&apis[PRODUCE].errors[row->error + 1]) == errors + 1);
}
#define REFUSE(len, error, ...) refuse(len, VERSION, 1, &NOT_WROTE("a", 0, error, __VA_ARGS__))

static void refusals(void) {
    struct log_config config = scene_config(1 << 20, 4096);
    config.max_message_bytes = 1000;
    open_a(&config, true);
    size_t len = make_batch(batch, -1, -1, 0);
    refuse(len, VERSION, 2, &NOT_WROTE("a", 0, BAD_ACKS));
    refuse(len, VERSION, -2, &NOT_WROTE("a", 0, BAD_ACKS));
    REFUSE(0, INVALID_RECORD);
    REFUSE(len - 1, INVALID_RECORD, .text = batch_error_text(BATCH_E_SHORT));
    memcpy(batch + len, batch, len);
    REFUSE(2 * len, INVALID_RECORD, .text = batch_error_text(BATCH_E_MANY));
    batch[len - 1] ^= 1;
    REFUSE(len, CORRUPT);
    put_i32(batch + BATCH_LENGTH_AT, 1001 - BATCH_LOG_OVERHEAD);
    REFUSE(1001, TOO_LARGE);
    len = make_batch(batch, 5, -1, 0);
    REFUSE(len, INVALID_RECORD, .log_start = 1);
    len = make_batch(batch, 5, 0, BATCH_TRANSACTIONAL);
    REFUSE(len, NO_TRANSACTION);
    /* Codecs that are as old as the version, or none. */
    len = make_batch(batch, -1, -1, CODEC_ZSTD);
    refuse(len, 6, 1, &NOT_WROTE("a", 0, CODEC_UNKNOWN));
    refuse(len, 7, 1, &NOT_WROTE("a", 0, CORRUPT));
    refuse(BATCH_HEADER_BYTES, 6, 1, &NOT_WROTE("a", 0, CODEC_UNKNOWN));
    refuse(BATCH_HEADER_BYTES - 1, 6, 1, &NOT_WROTE("a", 0, INVALID_RECORD));
    len = make_batch(batch, -1, -1, 5);
    REFUSE(len, CODEC_UNKNOWN, .text = batch_error_text(BATCH_E_CODEC));
    len = make_batch(batch, -1, -1, CODEC_LZ4);
    refuse(len, 6, 1, &NOT_WROTE("a", 0, CORRUPT));
    /* The producer's state: a gap, and an epoch that is over. */
    len = make_batch(batch, 5, 0, 0);
    put_i16(batch + BATCH_PRODUCER_EPOCH_AT, 1);
    scene_seal(batch, len);
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 1, .log_start = 1));
    put_i32(batch + BATCH_BASE_SEQUENCE_AT, 7);
    scene_seal(batch, len);
    REFUSE(len, OUT_OF_ORDER, .log_start = 1);
    len = make_batch(batch, 5, 1, 0);
    REFUSE(len, OLD_EPOCH, .log_start = 1);
    /* Who may not write is told so without a question. */
    CHECK(grants_allow(grants, 0, a.id, GRANT_READ) == 0);
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, NO_RIGHT));
    delete_topic(&a);
}

/* A topic of the broker's own, and partitions that are not here. */
static void absent(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    open_a(&config, true);
    struct log *logs[] = {a.logs[0], NULL};
    const struct written rows[] = {{"a", 0, batch, make_batch(batch, -1, -1, 0)},
                                   {"a", 1, batch, 72}, {"a", 2, batch, 72}, {"a", -1, batch, 72}};
    for (int internal = 0; internal < 2; internal++) {
        struct topic *made = topic_new("a", a.id, internal, logs, PARTITIONS);
        made->absent_error = STORAGE;
        CHECK(grants_install(grants, made) == 0);
        topic_release(made);
        CHECK(grants_allow(grants, 0, a.id, GRANT_WRITE) == 0);
        const int16_t errors[] = {0, STORAGE, UNKNOWN_TOPIC, UNKNOWN_TOPIC};
        struct wrote wrote[4];
        for (int i = 0; i < 4; i++)
            wrote[i] = NOT_WROTE("a", rows[i].partition, internal ? INTERNAL_TOPIC : errors[i]);
        if (!internal) wrote[0] = WROTE("a", 0, 1, .log_start = 1);
        CHECK(start_produce(&r, &m, &PRODUCING(VERSION, rows, 4)) == SERVE_ANSWER);
        CHECK_WROTE(&r, VERSION, wrote, 4);
    }
    CHECK(log_end_offset(a.logs[0]) == 2);
    delete_topic(&a);
}

static void silent(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    open_a(&config, true);
    size_t len = make_batch(batch, -1, -1, 0);
    CHECK(send_batch(len, VERSION, 0, NULL) == SERVE_SILENT);
    CHECK(r.reply.len == 0 && r.state == NULL && log_end_offset(a.logs[0]) == 2);
    /* Nobody reads an error: the connection's end says it, whichever part has it. */
    const struct written rows[] = {{"a", 0, batch, len}, {"a", 7, batch, len},
                                   {"a", 0, batch, len}};
    CHECK(start_produce(&r, &m, &PRODUCING(VERSION, rows, 3, .acks = 0)) == SERVE_CLOSE);
    CHECK(r.reply.len == 0 && r.state == NULL && log_end_offset(a.logs[0]) == 4);
    CHECK(meter_read(&apis[PRODUCE].errors[UNKNOWN_TOPIC + 1]) == 1);
    delete_topic(&a);
}

/* More parts than a request has room for at first, each with what is its own. */
static void parts(void) {
    enum { COUNT = 21 };
    const struct log_config config = scene_config(1 << 20, 4096);
    struct written rows[COUNT];
    struct wrote wrote[COUNT];
    open_a(&config, true);
    size_t len = make_batch(batch, -1, -1, 0);
    for (int i = 0; i < COUNT; i++) {
        rows[i] = (struct written){"a", i % 3, batch, len};
        wrote[i] = WROTE("a", i % 3, i / 3 + (i % 3 == 0), .log_start = i % 3 == 0);
        if (i % 3 == 2) wrote[i] = NOT_WROTE("a", 2, UNKNOWN_TOPIC);
    }
    CHECK(start_produce(&r, &m, &PRODUCING(VERSION, rows, COUNT)) == SERVE_ANSWER);
    CHECK_WROTE(&r, VERSION, wrote, COUNT);
    delete_topic(&a);
}

static int64_t system_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Times are the broker's where the topic says so; else the header's is what the records say. */
static void times(void) {
    enum { AHEAD_MS = 1000000000 };
    struct log_config config = scene_config(1 << 20, 4096);
    config.log_append_time = true;
    open_a(&config, true);
    serve_shared_set_wall_ahead(shared, AHEAD_MS);
    size_t len = make_batch(batch, -1, -1, 0);
    int64_t before_ms = system_ms();
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_ANSWER);
    read_stored(1);
    int64_t append_ms = get_i64(stored + BATCH_MAX_TIMESTAMP_AT);
    CHECK(before_ms + AHEAD_MS <= append_ms && append_ms <= system_ms() + AHEAD_MS);
    CHECK(get_i16(stored + BATCH_ATTRIBUTES_AT) == BATCH_LOG_APPEND_TIME);
    check_answer(VERSION, &WROTE("a", 0, 1, .log_start = 1, .append_time_ms = append_ms));
    config.log_append_time = false;
    log_set_config(a.logs[0], &config);
    for (int i = 0; i < 2; i++) {
        put_i64(batch + BATCH_MAX_TIMESTAMP_AT, NOW + (i == 0 ? 5 : 0));
        put_i16(batch + BATCH_ATTRIBUTES_AT, i == 0 ? 0 : BATCH_LOG_APPEND_TIME);
        scene_seal(batch, len);
        CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_ANSWER);
        check_answer(VERSION, &WROTE("a", 0, 2 + i, .log_start = 1));
        read_stored(2 + i);
        CHECK(get_i64(stored + BATCH_MAX_TIMESTAMP_AT) == NOW);
        CHECK(get_i16(stored + BATCH_ATTRIBUTES_AT) == 0);
    }
    /* What lies too far from the clock is refused, and named. */
    config.timestamp_after_max_ms = 1000;
    config.timestamp_before_max_ms = INT64_MAX;
    log_set_config(a.logs[0], &config);
    put_i16(batch + BATCH_ATTRIBUTES_AT, 0);
    put_i64(batch + BATCH_BASE_TIMESTAMP_AT, system_ms() + AHEAD_MS + 600000);
    scene_seal(batch, len);
    refuse(len, VERSION, 1, &NOT_WROTE("a", 0, 32, .log_start = 1, .bad_count = 1, .bad = {0},
                                       .text = batch_error_text(BATCH_E_TIMESTAMP)));
    delete_topic(&a);
}

static void await_io(void) {
    struct message done;
    CHECK(r.body_needed && r.exclusive && r.deadline_ms == INT64_MAX);
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_WAIT);
    await_message(&done);
    CHECK(done.kind == MESSAGE_IO_DONE && done.token == r.token);
}

/* A topic with a codec of its own: a worker encodes anew, or the reactor where none is free. */
static void recoded(void) {
    struct log_config config = scene_config(1 << 20, 4096);
    config.compression_codec = CODEC_GZIP;
    open_a(&config, true);
    size_t len = make_batch(batch, -1, -1, 0);
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_WAIT);
    await_io();
    CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_ANSWER && r.busy_ns > 0);
    check_answer(VERSION, &WROTE("a", 0, 1, .log_start = 1));
    size_t gzip_len = read_stored(1);
    CHECK(get_i16(stored + BATCH_ATTRIBUTES_AT) == CODEC_GZIP);
    memcpy(batch, stored, gzip_len);
    put_i64(batch, 0);
    pool_is_full = true;
    /* What has the codec goes as it is, what has not waits for the reactor. */
    CHECK(send_batch(gzip_len, VERSION, 1, NULL) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 2, .log_start = 1));
    len = make_batch(batch, -1, -1, 0);
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 3, .log_start = 1));
    read_stored(3);
    CHECK(get_i16(stored + BATCH_ATTRIBUTES_AT) == CODEC_GZIP);
    pool_is_full = false;
    /* Its client is gone meanwhile: nothing is appended. */
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_WAIT);
    CHECK(!serve_abandon(serve, &r) && r.state != NULL);
    struct message done;
    await_message(&done);
    CHECK(serve_abandon(serve, &r) && r.state == NULL && log_end_offset(a.logs[0]) == 4);
    /* The limit is on what is stored. */
    config.max_message_bytes = (int32_t)len;
    log_set_config(a.logs[0], &config);
    CHECK(gzip_len > len && send_batch(len, VERSION, 1, NULL) == SERVE_WAIT);
    await_io();
    CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, TOO_LARGE));
    /* What is refused for something else is not encoded. */
    CHECK(send_batch(len, VERSION, 3, NULL) == SERVE_WAIT);
    await_io();
    CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, BAD_ACKS));
    delete_topic(&a);
}

/* Only what is compressed, long and walked leaves the reactor. */
static void inflated(void) {
    enum { VALUE_BYTES = 3000 };
    struct log_config config = scene_config(1 << 20, 4096);
    uint8_t record[VALUE_BYTES + 16] = {0xfe, 0x2e, 0, 0, 0, 1, 0xf0, 0x2e}, *gzip;
    size_t gzip_len, len;
    for (int i = 0; i < VALUE_BYTES; i++) record[8 + i] = (uint8_t)(i * i * 7919 >> 8);
    len = scene_batch(batch, record, 8 + VALUE_BYTES + 1, NOW, -1, -1);
    open_a(&config, true);
    CHECK(batch_assemble(batch, CODEC_GZIP, INT32_MIN, batch + BATCH_HEADER_BYTES,
                         len - BATCH_HEADER_BYTES, &gzip, &gzip_len) == 0);
    for (int i = 0; i < 4; i++) {
        const bool walked = i != 2, compressed = i != 3;
        config.walk_records = walked;
        log_set_config(a.logs[0], &config);
        shared->limits.inline_inflate_bytes = (int32_t)gzip_len - (i != 1);
        if (!compressed) shared->limits.inline_inflate_bytes = 10;
        if (compressed) memcpy(batch, gzip, gzip_len);
        else len = scene_batch(batch, record, 8 + VALUE_BYTES + 1, NOW, -1, -1);
        enum serve_status status = send_batch(compressed ? gzip_len : len, VERSION, 1, NULL);
        CHECK(status == (i == 0 ? SERVE_WAIT : SERVE_ANSWER));
        if (i == 0) {
            await_io();
            CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_ANSWER);
        }
        check_answer(VERSION, &WROTE("a", 0, 1 + i, .log_start = 1));
    }
    free(gzip);
    delete_topic(&a);
}

/* ---- transactions ---- */

static void check_asked(int64_t producer, const char *id) {
    CHECK(r.missing_count == 1 && r.missing[0].partition == 0 && r.missing[0].name_len == 1);
    CHECK(r.missing[0].name[0] == 'a' && r.body_needed);
    CHECK(r.transaction.producer_id == producer && r.transaction.epoch == 0);
    CHECK(r.transaction.id_len == (int32_t)strlen(id));
    CHECK(memcmp(r.transaction.id, id, strlen(id)) == 0);
}

static void transactions(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    open_a(&config, true);
    size_t len = make_batch(batch, 5, 0, BATCH_TRANSACTIONAL);
    /* Its coordinator has the last word before the first batch, and none after it. */
    CHECK(send_batch(len, 13, 1, "tx") == SERVE_MISS);
    check_asked(5, "tx");
    r.missing[0].error = 51;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER && r.transaction.id == NULL);
    check_answer(13, &NOT_WROTE("a", 0, 51));
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_MISS);
    check_asked(5, "tx");
    r.missing[0].error = 0;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 1, .log_start = 1));
    len = make_batch(batch, 5, 1, BATCH_TRANSACTIONAL);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 2, .log_start = 1));
    CHECK(log_last_stable_offset(a.logs[0]) == 1);
    /* A marker that comes while it is asked: the client tries again. */
    len = make_batch(batch, 6, 0, BATCH_TRANSACTIONAL);
    CHECK(send_batch(len, VERSION, 1, "other") == SERVE_MISS);
    check_asked(6, "other");
    append(a.logs[0], 6, -1, BATCH_TRANSACTIONAL | BATCH_CONTROL);
    r.missing[0].error = 0;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, FEW_REPLICAS));
    CHECK(send_batch(len, VERSION, 1, "other") == SERVE_MISS);
    r.missing[0].error = 0;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 4, .log_start = 1));
    /* What is no part of one is not asked for. */
    len = make_batch(batch, 9, 0, 0);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 5, .log_start = 1));
    CHECK(send_batch(0, VERSION, 1, "tx") == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, INVALID_RECORD));
    /* A request has one producer, with one epoch. */
    uint8_t second[128], third[128];
    len = make_batch(batch, 20, 0, BATCH_TRANSACTIONAL);
    make_batch(second, 21, 0, BATCH_TRANSACTIONAL);
    make_batch(third, 20, 0, BATCH_TRANSACTIONAL);
    put_i16(third + BATCH_PRODUCER_EPOCH_AT, 1);
    scene_seal(third, len);
    const struct written rows[] = {{"a", 0, batch, len}, {"a", 0, second, len},
                                   {"a", 1, batch, len}, {"a", 1, third, len}};
    CHECK(start_produce(&r, &m, &PRODUCING(VERSION, rows, 4, .transaction = "t")) == SERVE_MISS);
    CHECK(r.missing_count == 2 && r.transaction.producer_id == 20 && r.transaction.epoch == 0);
    CHECK(r.missing[0].partition == 0 && r.missing[1].partition == 1);
    r.missing[0].error = 51;
    r.missing[1].error = 0;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    const struct wrote wrote[] = {NOT_WROTE("a", 0, 51), NOT_WROTE("a", 0, OTHER_PRODUCER),
                                  WROTE("a", 1, 0), NOT_WROTE("a", 1, OTHER_PRODUCER)};
    CHECK_WROTE(&r, VERSION, wrote, 4);
    delete_topic(&a);
}

static void transactions_refused(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    open_a(&config, true);
    size_t len = make_batch(batch, 5, 0, 0);
    put_i16(batch + BATCH_PRODUCER_EPOCH_AT, 3);
    scene_seal(batch, len);
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 1, .log_start = 1));
    len = make_batch(batch, 5, 1, BATCH_TRANSACTIONAL);
    put_i16(batch + BATCH_PRODUCER_EPOCH_AT, 2);
    scene_seal(batch, len);
    CHECK(send_batch(len, VERSION, 1, "t") == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, OLD_EPOCH));
    /* An epoch that begins is asked about, also while one before it is open. */
    put_i16(batch + BATCH_PRODUCER_EPOCH_AT, 3);
    scene_seal(batch, len);
    CHECK(send_batch(len, VERSION, 1, "t") == SERVE_MISS);
    CHECK(r.transaction.epoch == 3);
    r.missing[0].error = 0;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 2, .log_start = 1));
    put_i16(batch + BATCH_PRODUCER_EPOCH_AT, 4);
    scene_seal(batch, len);
    CHECK(send_batch(len, VERSION, 1, "t") == SERVE_MISS && r.transaction.epoch == 4);
    CHECK(serve_abandon(serve, &r) && r.state == NULL && r.missing == NULL);
    log_become_follower(a.logs[0], 1);
    CHECK(send_batch(len, VERSION, 1, "t") == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, NOT_LEADER));
    delete_topic(&a);
}

/* ---- acknowledgements ---- */

static void check_woken(void) {
    struct message woken;
    await_message(&woken);
    CHECK(woken.kind == MESSAGE_WAKE && woken.token == r.token);
}

static void wait_for_all(size_t len) {
    CHECK(send_batch(len, VERSION, -1, NULL) == SERVE_WAIT);
    CHECK(!r.body_needed && !r.exclusive && r.deadline_ms == r.received_ms + WAIT_MS);
    CHECK(!message_waits());
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_WAIT);
}

/* The other replica fetches from here. */
static void follow(int64_t offset) {
    struct log_follower_fetch at = {.epoch = 7, .offset = offset, .now_ns = 1, .broker = 1};
    CHECK(log_follower_at(a.logs[0], &at) == 0);
}

/* Replicas that are lost, before the append and after it. */
static void replicas(void) {
    const struct log_replica in = {7, 1, true, true, true}, out = {7, 1, false, false, true};
    struct log_config config = scene_config(1 << 20, 4096);
    config.min_insync_replicas = 2;
    open_a(&config, false);
    CHECK(log_set_replicas(a.logs[0], 1, &in, 1, 2) == 0);
    size_t len = make_batch(batch, -1, -1, 0);
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 1, .log_start = 1));
    wait_for_all(len);
    follow(2);
    CHECK(!message_waits());
    follow(3);
    check_woken();
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 2, .log_start = 1));
    wait_for_all(len);
    follow(4);
    CHECK(log_set_replicas(a.logs[0], 2, &out, 1, 1) == 0);
    check_woken();
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, FEW_REPLICAS_AFTER));
    CHECK(log_end_offset(a.logs[0]) == 4);
    refuse(len, VERSION, -1, &NOT_WROTE("a", 0, FEW_REPLICAS));
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 4, .log_start = 1));
    delete_topic(&a);
}

/* Who led meanwhile may have cut the records off. */
static void resigned(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    open_a(&config, false);
    size_t len = make_batch(batch, -1, -1, 0);
    wait_for_all(len);
    log_become_follower(a.logs[0], 1);
    check_woken();
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, NOT_LEADER));
    CHECK(log_become_leader(a.logs[0], 2, 2) == 0);
    wait_for_all(len);
    log_become_follower(a.logs[0], 3);
    CHECK(log_become_leader(a.logs[0], 4, 1) == 0);
    check_woken();
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, NOT_LEADER));
    /* A client in a hurry is answered at once, as soon as it is looked at. */
    CHECK(log_become_leader(a.logs[0], 4, 2) == 0);
    const struct written row = {"a", 0, batch, len};
    write_produce(&m, &PRODUCING(VERSION, &row, 1, .timeout_ms = -1));
    request(&r, &m, PRODUCE, VERSION);
    r.received_ms = 5000;
    CHECK(serve_start(serve, &r) == SERVE_WAIT && r.deadline_ms == 5000);
    CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, TIMED_OUT));
    delete_topic(&a);
}

/* Alone in the ISR a leader acknowledges what is on its disk, where the topic says so. */
static void flushed(void) {
    struct log_config config = scene_config(1 << 20, 4096);
    config.acks_all_flush = true;
    open_a(&config, true);
    size_t len = make_batch(batch, -1, -1, 0);
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 1, .log_start = 1));
    CHECK(send_batch(len, VERSION, -1, NULL) == SERVE_WAIT && !r.exclusive);
    check_woken();
    CHECK(log_flushed_offset(a.logs[0]) == 3);
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 2, .log_start = 1));
    delete_topic(&a);
}

/* Its topic is deleted, or its disk fails, while it waits for replicas. */
static void failed(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    size_t len = make_batch(batch, -1, -1, 0);
    for (int i = 0; i < 2; i++) {
        open_a(&config, false);
        wait_for_all(len);
        if (i == 0) delete_topic(&a);
        else CHECK(log_dir_give_up(directory, 5));
        check_woken();
        CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
        check_answer(VERSION, &NOT_WROTE("a", 0, i == 0 ? UNKNOWN_TOPIC : STORAGE));
    }
    delete_topic(&a);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"refusals", refusals},
                  {"absent", absent},
                  {"silent", silent},
                  {"parts", parts},
                  {"times", times},
                  {"recoded", recoded},
                  {"inflated", inflated},
                  {"transactions", transactions},
                  {"transactions_refused", transactions_refused},
                  {"replicas", replicas},
                  {"resigned", resigned},
                  {"flushed", flushed},
                  {"failed", failed}};
    CHECK(argc == 3);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[2]) == 0) {
            scene_open(argv[1], disk_of(DISK_SYSTEM), 0);
            serve_meter(serve, apis);
            scenes[i].play();
            scene_close();
            check_given_back();
            puts("ok");
        }
    return 0;
}
