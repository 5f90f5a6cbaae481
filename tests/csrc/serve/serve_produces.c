/* Produce through the real serve: rejected requests, and the work of a worker. Usage:
 * serve_produces DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include <time.h>

#include "log_manager/log_manager.h"
#include "serve_produce_scenes.h"
#include "watched.h"

static uint8_t stored[1 << 16];
static bool pool_is_full;
bool __real_iopool_submit(struct iopool *p, struct iojob *job);
bool __wrap_iopool_submit(struct iopool *p, struct iojob *job);
bool __wrap_iopool_submit(struct iopool *p, struct iojob *job) {
    return !pool_is_full && __real_iopool_submit(p, job);
}

/* Each clock reading adds this. */
static int64_t reading_ns, passed_ns;
int64_t __real_quotas_monotonic_ns(void);
int64_t __wrap_quotas_monotonic_ns(void);
int64_t __wrap_quotas_monotonic_ns(void) {
    passed_ns += reading_ns;
    return __real_quotas_monotonic_ns() + passed_ns;
}

static size_t read_stored(int64_t offset) {
    struct log_range range;
    CHECK(log_read(a.logs[0],
                   &(struct log_read_request){
                       .offset = offset, .bytes_max = 1 << 16, .at_least_one = true},
                   &range) == 0);
    CHECK(log_range_read(&range, stored, (size_t)range.length, range.position) == range.length);
    size_t len = (size_t)range.length;
    log_range_release(&range);
    return len;
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
    /* Codecs newer than the version, or invalid ones. */
    len = make_batch(batch, -1, -1, CODEC_ZSTD);
    refuse(len, 6, 1, &NOT_WROTE("a", 0, CODEC_UNKNOWN));
    refuse(len, 7, 1, &NOT_WROTE("a", 0, CORRUPT));
    refuse(BATCH_HEADER_BYTES, 6, 1, &NOT_WROTE("a", 0, CODEC_UNKNOWN));
    refuse(BATCH_HEADER_BYTES - 1, 6, 1, &NOT_WROTE("a", 0, INVALID_RECORD));
    len = make_batch(batch, -1, -1, 5);
    REFUSE(len, CODEC_UNKNOWN, .text = batch_error_text(BATCH_E_CODEC));
    len = make_batch(batch, -1, -1, CODEC_LZ4);
    refuse(len, 6, 1, &NOT_WROTE("a", 0, CORRUPT));
    /* The producer's state: a gap, and a fenced epoch. */
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
    /* A principal that may only read needs a verdict for writing. */
    grants_void(grants);
    CHECK(grants_allow(grants, 0, a.id, GRANT_READ) == 0);
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_MISS && r.missing_right == GRANT_WRITE);
    r.missing[0].error = NO_RIGHT;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, NO_RIGHT));
    delete_topic(&a);
}

/* An internal topic, and partitions on other brokers. */
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
    /* acks=0: an error in any part closes the connection. */
    const struct written rows[] = {{"a", 0, batch, len}, {"a", 7, batch, len},
                                   {"a", 0, batch, len}};
    CHECK(start_produce(&r, &m, &PRODUCING(VERSION, rows, 3, .acks = 0)) == SERVE_CLOSE);
    CHECK(r.reply.len == 0 && r.state == NULL && log_end_offset(a.logs[0]) == 4);
    CHECK(meter_read(&apis[PRODUCE].errors[UNKNOWN_TOPIC + 1]) == 1);
    delete_topic(&a);
}

/* More parts than a request has space for at first, each with its own result. */
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

/* Timestamps are the broker's if the topic requires that; otherwise the header has the records'
 * times. */
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
    /* Timestamps too far from the clock are rejected and listed. */
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

static void finish_on_worker(void) {
    await_io();
    CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_ANSWER);
}

/* While the pool is full the request waits; then a worker processes it. */
static void wait_for_worker(void) {
    for (int n = 0; n < 3; n++) {
        CHECK(r.body_needed && r.exclusive && r.deadline_ms > r.now_ms);
        CHECK(r.deadline_ms < r.now_ms + 100);
        r.now_ms = r.deadline_ms;
        pool_is_full = n < 2;
        CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_WAIT);
    }
    finish_on_worker();
}

/* A topic with its own codec: only workers compress. */
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
    /* A batch with that codec is stored unchanged, any other waits for a worker. */
    CHECK(send_batch(gzip_len, VERSION, 1, NULL) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 2, .log_start = 1));
    len = make_batch(batch, -1, -1, 0);
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_WAIT);
    wait_for_worker();
    check_answer(VERSION, &WROTE("a", 0, 3, .log_start = 1));
    read_stored(3);
    CHECK(get_i16(stored + BATCH_ATTRIBUTES_AT) == CODEC_GZIP);
    /* Its client disconnects before a worker is free. */
    pool_is_full = true;
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_WAIT);
    CHECK(serve_abandon(serve, &r) && r.state == NULL && !message_waits());
    pool_is_full = false;
    /* Its client has disconnected: nothing is appended. */
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_WAIT);
    CHECK(!serve_abandon(serve, &r) && r.state != NULL);
    struct message done;
    await_message(&done);
    CHECK(serve_abandon(serve, &r) && r.state == NULL && log_end_offset(a.logs[0]) == 4);
    /* The limit applies to the stored size. */
    config.max_message_bytes = (int32_t)len;
    log_set_config(a.logs[0], &config);
    CHECK(gzip_len > len && send_batch(len, VERSION, 1, NULL) == SERVE_WAIT);
    await_io();
    CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, TOO_LARGE));
    /* A batch that is rejected for another reason is not compressed. */
    CHECK(send_batch(len, VERSION, 3, NULL) == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, BAD_ACKS));
    delete_topic(&a);
}

/* Only long compressed batches that need a walk are handed to a worker. */
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
        if (!compressed) shared->limits.inline_inflate_bytes = 1000;
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

/* Make a batch with one record whose value is this many zeros. */
static size_t make_zeros(uint8_t *to, uint64_t value_bytes, int codec) {
    uint8_t *record = calloc(1, value_bytes + 32), *made;
    uint8_t value_len[10];
    size_t digits = put_uvarint(value_len, 2 * value_bytes), len, made_len;
    size_t at = put_uvarint(record, 2 * (5 + digits + value_bytes));
    record[at + 3] = 1; /* no key */
    memcpy(record + at + 4, value_len, digits);
    len = at + 5 + digits + value_bytes;
    uint8_t *plain = malloc(len + BATCH_HEADER_BYTES);
    made = plain;
    made_len = scene_batch(plain, record, len, NOW, -1, -1);
    if (codec != CODEC_NONE)
        CHECK(batch_assemble(plain, codec, INT32_MIN, record, len, &made, &made_len) == 0);
    memcpy(to, made, made_len);
    if (made != plain) free(made);
    free(plain);
    free(record);
    return made_len;
}

static size_t make_swollen(uint8_t *to, uint64_t value_bytes) {
    return make_zeros(to, value_bytes, CODEC_ZSTD);
}

enum { ROWS_MAX = 200 };
static struct written written_rows[ROWS_MAX];
static struct wrote wrote_rows[ROWS_MAX];

/* Start a Produce that contains the batch this many times, for one partition. */
static enum serve_status send_often(size_t len, int count) {
    int64_t end = log_end_offset(a.logs[0]);
    for (int i = 0; i < count; i++) {
        written_rows[i] = (struct written){"a", 0, batch, len};
        wrote_rows[i] = WROTE("a", 0, end + i, .log_start = 1);
    }
    return start_produce(&r, &m, &PRODUCING(VERSION, written_rows, count, .acks = 1));
}

static void check_often(int count) { CHECK_WROTE(&r, VERSION, wrote_rows, count); }

/* The work of a reactor is limited by the inflated size of the records, over all parts. */
static void swollen(void) {
    enum { TIMES = 8 }; /* times inline_inflate_bytes */
    struct log_config config = scene_config(1 << 20, 4096);
    open_a(&config, true);
    const int32_t budget = shared->limits.inline_inflate_bytes * TIMES;
    size_t len = make_swollen(batch, (uint64_t)budget);
    CHECK(len < 200);
    CHECK(send_often(len, 1) == SERVE_WAIT);
    finish_on_worker();
    check_often(1);
    len = make_swollen(batch, (uint64_t)budget / 4);
    CHECK(send_often(len, 3) == SERVE_ANSWER);
    check_often(3);
    CHECK(send_often(len, 4) == SERVE_WAIT);
    finish_on_worker();
    check_often(4);
    len = make_batch(batch, -1, -1, 0);
    CHECK(send_often(len, 20) == SERVE_ANSWER);
    check_often(20);
    CHECK(send_often(len, ROWS_MAX) == SERVE_WAIT);
    finish_on_worker();
    check_often(ROWS_MAX);
    pool_is_full = true;
    CHECK(send_often(len, ROWS_MAX) == SERVE_WAIT);
    wait_for_worker();
    check_often(ROWS_MAX);
    /* The topic's own limit is an error, below the budget and above it. */
    for (int i = 0; i < 2; i++) {
        config.inflated_bytes_max = i == 0 ? budget / 2 : 2 * budget;
        log_set_config(a.logs[0], &config);
        len = make_swollen(batch, (uint64_t)config.inflated_bytes_max);
        CHECK(send_often(len, 1) == (i == 0 ? SERVE_ANSWER : SERVE_WAIT));
        if (i == 1) finish_on_worker();
        check_answer(VERSION, &NOT_WROTE("a", 0, TOO_LARGE,
                                         .text = batch_error_text(BATCH_E_INFLATE_MAX)));
    }
    delete_topic(&a);
}

/* Make a gzip stream of empty blocks, after the header of a batch that claims one record. */
static size_t make_hollow(uint8_t *to, size_t len) {
    static const uint8_t begin[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff};
    static const uint8_t block[] = {0, 0, 0, 0xff, 0xff}, end[] = {3, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    size_t at = BATCH_HEADER_BYTES;
    make_batch(to, -1, -1, CODEC_GZIP);
    memcpy(to + at, begin, sizeof begin);
    for (at += sizeof begin; at + sizeof block + sizeof end <= len; at += sizeof block)
        memcpy(to + at, block, sizeof block);
    memcpy(to + at, end, sizeof end);
    at += sizeof end;
    put_i32(to + BATCH_LENGTH_AT, (int32_t)at - BATCH_LOG_OVERHEAD);
    scene_seal(to, at);
    return at;
}

/* Streams that inflate to nothing count as work, too; uncompressed bytes count little. */
static void hollow(void) {
    struct log_config config = scene_config(1 << 20, 1 << 16);
    open_a(&config, true);
    const size_t stream_max = (size_t)shared->limits.inline_inflate_bytes;
    for (int count = 1; count <= 3; count++) {
        size_t len = make_hollow(batch, stream_max);
        enum serve_status status = send_often(len, count);
        CHECK(status == (count == 1 ? SERVE_ANSWER : SERVE_WAIT));
        if (status == SERVE_WAIT) finish_on_worker();
        for (int i = 0; i < count; i++)
            wrote_rows[i] = NOT_WROTE("a", 0, INVALID_RECORD,
                                      .text = batch_error_text(BATCH_E_COUNT));
        check_often(count);
    }
    size_t len = make_zeros(batch, 3000, CODEC_NONE);
    CHECK(send_often(len, 12) == SERVE_ANSWER);
    check_often(12);
    delete_topic(&a);
}

/* Long work is done in slices, so that other jobs and other connections get their turn. */
static void slices(void) {
    enum { PARTS = 12, READING_NS = 25000000 }; /* longer than a slice: each has one part */
    struct log_config config = scene_config(1 << 20, 4096);
    open_a(&config, true);
    size_t len = make_swollen(batch, 1 << 19);
    reading_ns = READING_NS;
    CHECK(send_often(len, PARTS) == SERVE_WAIT);
    for (int i = 0; i < PARTS; i++) {
        await_io();
        pool_is_full = i == 1;
        CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_WAIT);
        if (!pool_is_full) continue;
        CHECK(log_end_offset(a.logs[0]) == 1 && r.deadline_ms != INT64_MAX);
        pool_is_full = false;
        CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_WAIT);
    }
    for (int i = 1; i < PARTS; i++) {
        CHECK(log_end_offset(a.logs[0]) == 1 + i && r.body_needed && r.exclusive);
        CHECK(r.deadline_ms == r.now_ms && !message_waits());
        enum serve_status status = serve_resume(serve, &r, SERVE_TIMEOUT);
        CHECK(status == (i == PARTS - 1 ? SERVE_ANSWER : SERVE_WAIT));
    }
    check_often(PARTS);
    /* Its client disconnects between two appends. */
    len = make_batch(batch, -1, -1, 0);
    CHECK(send_often(len, 2) == SERVE_WAIT && log_end_offset(a.logs[0]) == 2 + PARTS);
    CHECK(serve_abandon(serve, &r) && log_end_offset(a.logs[0]) == 2 + PARTS);
    reading_ns = 0;
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
                  {"swollen", swollen},
                  {"hollow", hollow},
                  {"slices", slices}};
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
