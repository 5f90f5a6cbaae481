/* Truncated and invalid requests, versions, long responses from disk, and failed allocations,
 * through the real serve. Usage: serve_bounds DIRECTORY SCENE. Exits with 0, or with 1 and a
 * line on stderr. */
#include "serve_messages.h"
#include "watched.h"

static struct held_topic a;
static struct body m;
static struct serve_request r;
static uint8_t batch[256];

/* Every truncated body closes the connection; the complete body does not. */
static void check_cuts(int16_t key, int16_t version) {
    for (size_t len = 0; len <= m.len; len++) {
        uint8_t *body = malloc(len + 1);
        memcpy(body, m.bytes, len);
        request(&r, &m, key, version);
        r.body = body;
        r.body_len = len;
        enum serve_status status = serve_start(serve, &r);
        CHECK((status == SERVE_CLOSE) == (len < m.len));
        if (status != SERVE_CLOSE) CHECK(serve_abandon(serve, &r));
        CHECK(r.state == NULL && r.reply.len == 0 && serve_abandon(serve, &r));
        free(body);
    }
}

static void cut(void) {
    const struct asked asked[] = {ASKED("x", 0), ASKED("x", 1), ASKED("y", 0)};
    for (int16_t version = 4; version <= 18; version++) {
        write_fetch(&m, &FETCHING(version, asked, 3, .rack = "rack", .forgotten = asked,
                                  .forgotten_count = 3, .replica = version % 2 - 1,
                                  .odd = version % 3 == 0));
        check_cuts(FETCH, version);
    }
    const struct written rows[] = {{"x", 0, batch, make_batch(batch, -1, -1, 0)},
                                   {"x", 1, NULL, 0}, {"y", 0, batch, 72}};
    for (int16_t version = 3; version <= 13; version++) {
        write_produce(&m, &PRODUCING(version, rows, 3, .transaction = version % 2 ? "t" : NULL,
                                     .odd = version % 3 == 0));
        check_cuts(PRODUCE, version);
    }
}

static void check_closed(int16_t key, int16_t version) {
    CHECK(start(&r, &m, key, version) == SERVE_CLOSE && r.state == NULL && r.reply.len == 0);
}

/* Null arrays and names, and invalid lengths. */
static void illegal(void) {
    const struct asked asked = ASKED("x", 0);
    const struct written row = {"x", 0, batch, make_batch(batch, -1, -1, 0)};
    enum { TOPICS_AT = 4 * 4 + 1, FETCH_NAME_AT = TOPICS_AT + 4, COUNT_AT = FETCH_NAME_AT + 3 };
    write_fetch(&m, &FETCHING(4, &asked, 1));
    put_i32(m.bytes + TOPICS_AT, -1);
    check_closed(FETCH, 4);
    put_i32(m.bytes + TOPICS_AT, -2);
    check_closed(FETCH, 4);
    write_fetch(&m, &FETCHING(4, &asked, 1));
    put_i16(m.bytes + FETCH_NAME_AT, -1);
    check_closed(FETCH, 4);
    write_fetch(&m, &FETCHING(4, &asked, 1));
    put_i32(m.bytes + COUNT_AT, -1);
    check_closed(FETCH, 4);
    /* Forgotten topics: null array, null name, null partitions. Only an empty rack follows. */
    for (int at = 0; at < 3; at++) {
        write_fetch(&m, &FETCHING(11, &asked, 1, .forgotten = &asked, .forgotten_count = 1));
        const size_t forgotten_at = m.len - 2 - 4 - 4 - 3 - 4;
        CHECK(get_i32(m.bytes + forgotten_at) == 1);
        if (at == 0) put_i32(m.bytes + forgotten_at, -1);
        if (at == 1) put_i16(m.bytes + forgotten_at + 4, -1);
        if (at == 2) put_i32(m.bytes + forgotten_at + 7, -1);
        check_closed(FETCH, 11);
    }
    enum { PRODUCE_TOPICS_AT = 2 + 2 + 4, NAME_AT = PRODUCE_TOPICS_AT + 4 };
    const struct {
        size_t at;
        int bytes;
    } nulls[] = {{PRODUCE_TOPICS_AT, 4}, {NAME_AT, 2}, {NAME_AT + 3, 4}};
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++) {
        write_produce(&m, &PRODUCING(8, &row, 1));
        memset(m.bytes + nulls[i].at, 0xff, (size_t)nulls[i].bytes);
        check_closed(PRODUCE, 8);
    }
    write_produce(&m, &PRODUCING(8, &row, 1));
    put_i32(m.bytes + NAME_AT + 3 + 4 + 4, -2); /* records: null is -1 */
    check_closed(PRODUCE, 8);
    write_produce(&m, &PRODUCING(8, &row, 1));
    put_i16(m.bytes, -2);
    check_closed(PRODUCE, 8);
    /* A follower's fetch that lacks required fields. */
    write_fetch(&m, &FETCHING(15, &asked, 1, .replica = 1));
    m.bytes[m.len - 14] = 11;
    m.len -= 2;
    check_closed(FETCH, 15);
}

/* Requests without topics and topics without partitions are valid and answered as such. */
static void empty(void) {
    enum { COUNT_AT = 4 * 4 + 1 + 4 + 3 };
    const struct asked asked = ASKED("x", 0);
    write_fetch(&m, &FETCHING(4, &asked, 1));
    put_i32(m.bytes + COUNT_AT, 0);
    m.len = COUNT_AT + 4;
    CHECK(start(&r, &m, FETCH, 4) == SERVE_ANSWER);
    CHECK_FETCHED(&r, 4, NULL, 0);
    write_fetch(&m, &FETCHING(7, NULL, 0, .forgotten = &asked, .forgotten_count = 1));
    m.len -= 4;
    put_i32(m.bytes + m.len - 4, 0);
    CHECK(start(&r, &m, FETCH, 7) == SERVE_ANSWER);
    CHECK_FETCHED(&r, 7, NULL, 0);
    CHECK(start_fetch(&r, &m, &FETCHING(4, NULL, 0)) == SERVE_ANSWER);
    CHECK_FETCHED(&r, 4, NULL, 0);
    CHECK(start_produce(&r, &m, &PRODUCING(3, NULL, 0)) == SERVE_ANSWER);
    CHECK_WROTE(&r, 3, NULL, 0);
}

static void versions(void) {
    for (int16_t version = -1; version < 25; version++) {
        CHECK(serve_knows(PRODUCE, version) == (version >= 3 && version <= 13));
        CHECK(serve_knows(FETCH, version) == (version >= 4 && version <= 18));
        CHECK(!serve_knows(2, version) && !serve_knows(-1, version));
    }
}

/* Responses that are read from disk first are sent in smaller pieces, for fairness. */
static void narrow(void) {
    enum { BATCHES = 10, RECORD = 600000, BATCH = BATCH_HEADER_BYTES + RECORD, ALL = 1 << 23 };
    const struct log_config config = scene_config(1 << 24, 4096);
    const struct asked asked = ASKED("a", 0, .bytes_max = ALL);
    uint8_t *made = calloc(1, BATCH), *record = calloc(1, RECORD);
    open_topic(&a, "a", &config, true);
    shared->limits.fetch_bytes_max = ALL;
    size_t len = scene_batch(made, record, RECORD, NOW, -1, -1);
    for (int i = 0; i < BATCHES; i++) {
        struct batch_summary summary = {0};
        struct log_appended out;
        CHECK(batch_parse(made, len, &summary.header) == 0);
        CHECK(log_append(a.logs[0], made, len, &summary, -1, NOW, &out) == 0);
    }
    for (int i = 0; i < 2; i++) {
        const int32_t bytes_max = i == 0 ? ALL : 2 * BATCH;
        disk_played.cold = true;
        CHECK(start_fetch(&r, &m, &FETCHING(12, &asked, 1, .bytes_max = bytes_max)) ==
              SERVE_WAIT);
        struct message done;
        await_message(&done);
        CHECK(done.kind == MESSAGE_IO_DONE);
        CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_ANSWER);
        CHECK(r.reply.file_bytes == (uint64_t)(i == 0 ? (4 << 20) / BATCH : 2) * BATCH);
        reply_clear(&r.reply);
        disk_played.cold = false;
    }
    CHECK(start_fetch(&r, &m, &FETCHING(12, &asked, 1, .bytes_max = ALL)) == SERVE_ANSWER);
    CHECK(r.reply.file_bytes == (uint64_t)BATCHES * BATCH);
    reply_clear(&r.reply);
    free(made);
    free(record);
    delete_topic(&a);
}

/* Neither a serve nor a request that changes a session is left half done. */
static void starved(void) {
    const struct serve_limits limits = {.sessions_max = 1};
    const struct log_config config = scene_config(1 << 20, 4096);
    for (long n = 0; n < 2; n++) {
        blocks_left = n;
        CHECK(serve_shared_new(grants, pool, &limits) == NULL);
        CHECK(serve_new(shared, mailbox) == NULL);
        blocks_left = -1;
    }
    struct asked asked[20];
    open_topic(&a, "a", &config, true);
    for (int i = 0; i < 20; i++) asked[i] = ASKED("a", i % 2);
    for (int i = 0; i < 20; i += 2) asked[i] = ASKED("a", 100 + i);
    bool whole = false;
    for (long n = 0; !whole; n++) {
        CHECK(n < 100);
        CHECK(start_fetch(&r, &m, &FETCHING(12, &asked[1], 1, .session_epoch = 0,
                                            .wait_ms = 0)) == SERVE_ANSWER);
        const int32_t session = get_i32(r.reply.bytes + 15);
        reply_clear(&r.reply);
        CHECK(session != 0);
        write_fetch(&m, &FETCHING(12, asked, 20, .session_id = session, .session_epoch = 1,
                                  .wait_ms = 0));
        blocks_left = n;
        enum serve_status status = start(&r, &m, FETCH, 12);
        whole = blocks_left > 0;
        blocks_left = -1;
        CHECK(status == SERVE_ANSWER || status == SERVE_CLOSE);
        CHECK(!whole || (status == SERVE_ANSWER && get_i16(r.reply.bytes + 13) == 0));
        reply_clear(&r.reply);
        /* The session is as usable as before, or it has ended. */
        CHECK(start_fetch(&r, &m, &FETCHING(12, NULL, 0, .session_id = session,
                                            .session_epoch = 2, .wait_ms = 0)) == SERVE_ANSWER);
        const int16_t error = get_i16(r.reply.bytes + 13);
        CHECK(error == 0 || error == 70 || error == 71);
        reply_clear(&r.reply);
        serve_tick(serve, INT64_MAX / 2);
    }
    delete_topic(&a);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"cut", cut},
                  {"illegal", illegal},
                  {"empty", empty},
                  {"versions", versions},
                  {"narrow", narrow},
                  {"starved", starved}};
    CHECK(argc == 3);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[2]) == 0) {
            scene_open(argv[1], disk_of(DISK_SYSTEM), 0);
            scenes[i].play();
            scene_close();
            check_given_back();
            puts("ok");
        }
    return 0;
}
