/* Fetch and Produce at their limits through the real serve: quotas, many partitions, no memory.
 * Usage: serve_limits DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "serve/produce_internal.h"
#include "serve_messages.h"
#include "watched.h"

enum { VERSION = 12, LIMIT = 1000, WINDOW_MS = 1000, NOT_LEADER = 6 };

static struct held_topic a;
static struct body m;
static struct serve_request r;
static uint8_t batch[256];

static void open_a(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    open_topic(&a, "a", &config, true);
}

/* ---- quotas: of 1000 bytes a second over three windows of a second ---- */

static struct quotas *quotas;

/* Set the request's client, with these limits. */
static struct quota_client *limited(const char *id, double produce, double fetch, double time) {
    struct quota_limit limits[QUOTA_KINDS] = {{0}};
    const double per_second[QUOTA_KINDS] = {produce, fetch, time};
    char keys[QUOTA_KINDS][8];
    for (int i = 0; i < QUOTA_KINDS; i++) {
        snprintf(keys[i], sizeof keys[i], "%s%d", id, i);
        if (per_second[i] > 0)
            limits[i] = (struct quota_limit){(uint8_t *)keys[i], (uint32_t)strlen(keys[i]),
                                             per_second[i]};
    }
    const uint8_t *name = (const uint8_t *)id;
    CHECK(quotas_install(quotas, 1, name, (uint32_t)strlen(id), limits, 0) == 0);
    struct quota_client *c = quotas_client(quotas, 1, name, (uint32_t)strlen(id));
    CHECK(c != NULL);
    return c;
}

static enum serve_status produce(struct quota_client *c, size_t frame_bytes, int64_t busy_ns,
                                 int16_t acks) {
    const struct written row = {"a", 0, batch, make_batch(batch, -1, -1, 0)};
    write_produce(&m, &PRODUCING(VERSION - 3, &row, 1, .acks = acks));
    request(&r, &m, PRODUCE, VERSION - 3);
    r.quota = c;
    r.frame_bytes = frame_bytes;
    r.busy_ns = busy_ns;
    r.began_ns = quotas_monotonic_ns();
    return serve_start(serve, &r);
}

static void check_produced(int64_t offset, int32_t throttle_ms) {
    CHECK(r.throttle_ms == throttle_ms);
    CHECK_WROTE(&r, VERSION - 3, &WROTE("a", 0, offset), 1, .throttle_ms = throttle_ms);
}

static void produce_quotas(void) {
    enum { A_MINUTE_NS = 60 };
    const int64_t minute_ns = (int64_t)A_MINUTE_NS * 1000000000;
    open_a();
    quotas = quotas_new(3, WINDOW_MS * 1000); /* no sample ends while this runs */
    struct quota_client *free_one = limited("free", 0, 0, 0), *by_bytes = limited("b", 1, 0, 0),
                        *by_time = limited("t", 0, 0, 0.001), *both = limited("x", 1, 0, 0.001);
    CHECK(produce(NULL, 1 << 20, minute_ns, 1) == SERVE_ANSWER);
    check_produced(0, 0);
    CHECK(produce(free_one, 1 << 20, minute_ns, 1) == SERVE_ANSWER);
    check_produced(1, 0);
    /* 2000 s hold 2000 bytes; a delay for request time is a window at most. */
    CHECK(produce(by_bytes, 2000, minute_ns, 1) == SERVE_ANSWER && r.busy_ns == minute_ns);
    check_produced(2, 0);
    r.throttle_ms = 0;
    CHECK(produce(by_bytes, 3000000, 0, 1) == SERVE_ANSWER && r.throttle_ms > 0);
    reply_clear(&r.reply);
    CHECK(produce(by_time, 1 << 20, minute_ns, 1) == SERVE_ANSWER);
    CHECK(r.busy_ns == 0 && r.began_ns > 0);
    check_produced(4, WINDOW_MS * 1000);
    CHECK(produce(both, 1, minute_ns, 1) == SERVE_ANSWER); /* the longer of the two */
    check_produced(5, WINDOW_MS * 1000);
    CHECK(produce(both, 1 << 20, 0, 1) == SERVE_ANSWER && r.throttle_ms > WINDOW_MS * 1000);
    reply_clear(&r.reply);
    /* acks=0: no delay for request time, but for bytes. */
    CHECK(produce(by_time, 1, minute_ns, 0) == SERVE_SILENT);
    CHECK(r.throttle_ms == 0 && r.busy_ns == minute_ns);
    CHECK(produce(by_bytes, 1, 0, 0) == SERVE_SILENT && r.throttle_ms > 0);
    struct quota_client *clients[] = {free_one, by_bytes, by_time, both};
    for (int i = 0; i < 4; i++) quota_client_release(clients[i]);
    quotas_free(quotas);
    delete_topic(&a);
}

static enum serve_status fetch(struct quota_client *c, const struct fetching *f,
                               int64_t busy_ns) {
    write_fetch(&m, f);
    request(&r, &m, FETCH, f->version);
    r.quota = c;
    r.busy_ns = busy_ns;
    r.began_ns = quotas_monotonic_ns();
    return serve_start(serve, &r);
}

/* Check a response that contains only the throttle time. */
static void check_throttled(int16_t version, int32_t session) {
    const int32_t throttle_ms = r.throttle_ms;
    CHECK(throttle_ms > 0);
    CHECK_FETCHED(&r, version, NULL, 0, .throttle_ms = throttle_ms, .session_id = session);
}

static size_t answer_len(void) {
    size_t len = r.reply.len + r.reply.file_bytes;
    reply_clear(&r.reply);
    return len;
}

static void fetch_quotas(void) {
    const struct asked asked[] = {ASKED("a", 0), ASKED("a", 1)};
    open_a();
    for (int i = 0; i < 40; i++) append(a.logs[0], -1, -1, 0);
    quotas = quotas_new(3, WINDOW_MS * 1000);
    /* The samples allow 2000 bytes, and each response uses its size. */
    struct quota_client *c = limited("f", 0, 1, 0), *timed = limited("t", 0, 1, 0.001);
    struct fetching f = FETCHING(VERSION, asked, 2, .session_epoch = 0);
    CHECK(fetch(c, &FETCHING(VERSION, asked, 2, .bytes_max = 1), 0) == SERVE_ANSWER);
    size_t one = answer_len();
    /* As if the client had requested no more than its quota allows. */
    CHECK(fetch(c, &f, 0) == SERVE_ANSWER && r.throttle_ms > 0);
    check_throttled(VERSION, 0);
    uint64_t sessions;
    serve_shared_stats(shared, &sessions);
    CHECK(sessions == 0); /* the new session is not created */
    f.bytes_max = 1;
    CHECK(fetch(c, &f, 0) == SERVE_ANSWER && r.throttle_ms == 0);
    int32_t session = get_i32(r.reply.bytes + 15);
    CHECK(answer_len() == one && session != 0);
    f = FETCHING(VERSION, NULL, 0, .session_id = session, .session_epoch = 1);
    CHECK(fetch(c, &f, 0) == SERVE_ANSWER);
    check_throttled(VERSION, session); /* it continues afterwards */
    f.session_epoch = 2;
    f.bytes_max = 1;
    CHECK(fetch(c, &f, 0) == SERVE_ANSWER && r.throttle_ms == 0);
    answer_len();
    for (int16_t version = 4; version <= 18; version += 3) {
        CHECK(fetch(c, &FETCHING(version, asked, 1), 0) == SERVE_ANSWER);
        check_throttled(version, 0);
    }
    /* Request time counts, too, and bytes that are not sent do not. */
    f = FETCHING(VERSION, asked, 1, .bytes_max = 1);
    for (int i = 0; i < 40; i++) {
        CHECK(fetch(timed, &f, 60000000000) == SERVE_ANSWER);
        CHECK(r.throttle_ms == WINDOW_MS * 1000);
        check_throttled(VERSION, 0);
    }
    quota_client_release(timed);
    timed = limited("t", 0, 1, 0); /* the same bytes */
    CHECK(fetch(timed, &f, 0) == SERVE_ANSWER && r.throttle_ms == 0);
    answer_len();
    /* A follower is no client. */
    CHECK(grants_allow(grants, 0, a.id, GRANT_FOLLOW | GRANT_READ) == 0);
    f = FETCHING(VERSION, asked, 1, .replica = 9);
    CHECK(fetch(c, &f, 0) == SERVE_ANSWER && r.throttle_ms == 0);
    answer_len();
    quota_client_release(c);
    quota_client_release(timed);
    quotas_free(quotas);
    delete_topic(&a);
}

/* A fetch for more than its quota gets the quota's amount, and does not wait for more. */
static void fetch_quota_bytes(void) {
    const struct asked asked = ASKED("a", 0);
    open_a();
    for (int i = 0; i < 5; i++) append(a.logs[0], -1, -1, 0);
    quotas = quotas_new(3, WINDOW_MS * 1000);
    struct fetching f = FETCHING(VERSION, &asked, 1, .bytes_min = 1 << 20);
    struct quota_client *c = limited("f", 0, 0.072, 0); /* two records' bytes in all */
    CHECK(fetch(c, &f, 0) == SERVE_ANSWER && r.throttle_ms == 0);
    const size_t two = answer_len();
    CHECK(fetch(NULL, &FETCHING(VERSION, &asked, 1, .bytes_max = 144), 0) == SERVE_ANSWER);
    CHECK(answer_len() == two);
    quota_client_release(c);
    c = limited("w", 0, 1, 0);
    CHECK(fetch(c, &f, 0) == SERVE_WAIT);
    CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_ANSWER && r.throttle_ms == 0);
    CHECK(answer_len() == two + (size_t)3 * 72);
    quota_client_release(c);
    quotas_free(quotas);
    delete_topic(&a);
}

/* Return the amount counted on a limit of a byte in 1000 s, which some seconds do not change. */
static int64_t charged(struct quota_client *c, enum quota_kind kind) {
    enum { MS_OF_A_BYTE = 1000000, SPAN_MS = 2 * WINDOW_MS * 1000 };
    int64_t wait_ms = quota_client_charge(c, kind, 0, quotas_monotonic_ns() / NS_PER_MS);
    return (wait_ms + SPAN_MS + MS_OF_A_BYTE - 1) / MS_OF_A_BYTE;
}

/* The response's records, and the protocol's overhead. */
static void charges(void) {
    enum { AROUND = 16, BY_ID = 18, BY_NAME = 4, PARTITION = 40, RECORD = 72 };
    struct held_topic bb;
    const struct log_config config = scene_config(1 << 20, 4096);
    const struct asked asked[] = {ASKED("a", 0), ASKED("a", 1), ASKED("bb", 0)};
    const size_t topics[] = {2 * BY_NAME + 3, 2 * BY_ID};
    open_a();
    open_topic(&bb, "bb", &config, true);
    for (int i = 0; i < 2; i++) append(a.logs[0], -1, -1, 0);
    quotas = quotas_new(3, WINDOW_MS * 1000);
    for (int by_id = 0; by_id < 2; by_id++) {
        struct quota_client *c = limited(by_id ? "f" : "g", 0.001, 0.001, 0);
        CHECK(fetch(c, &FETCHING(12 + by_id, asked, 3, .session_epoch = 0), 0) == SERVE_ANSWER);
        CHECK(r.throttle_ms == 0 && !r.reply.failed);
        const int32_t session = get_i32(r.reply.bytes + 15);
        reply_clear(&r.reply);
        const int64_t first = (int64_t)(AROUND + topics[by_id] + 3 * PARTITION + RECORD);
        CHECK(charged(c, QUOTA_FETCH) == first);
        /* For a session only changed partitions count; a partition that is not sent counts
         * nothing. */
        const struct asked end = ASKED("a", 0, .offset = 2);
        CHECK(fetch(c, &FETCHING(12 + by_id, &end, 1, .session_id = session, .wait_ms = 0,
                                 .session_epoch = 1), 0) == SERVE_ANSWER);
        CHECK(r.throttle_ms > 0);
        reply_clear(&r.reply);
        CHECK(charged(c, QUOTA_FETCH) == first);
        CHECK(produce(c, 500, 0, 1) == SERVE_ANSWER && charged(c, QUOTA_PRODUCE) == 500);
        reply_clear(&r.reply);
        quota_client_release(c);
    }
    quotas_free(quotas);
    delete_topic(&a);
    delete_topic(&bb);
}

/* ---- many partitions ---- */

enum { WIDE = 1001, WIDEST = FETCH_PARTITIONS_MAX };

/* Fetch this many partitions at their end; they are all the same log. */
static enum serve_status fetch_wide(struct serve_request *wide, int32_t count) {
    const struct asked asked = ASKED("a", 0);
    enum { PARTITION_BYTES = 4 + 4 + 8 + 4 + 8 + 4 + 1 };
    write_fetch(&m, &FETCHING(VERSION, &asked, 1, .bytes_max = INT32_MAX));
    uint8_t *body = malloc(m.len + (size_t)count * PARTITION_BYTES + 8), *to = body;
    const size_t head = 4 + 4 + 4 + 4 + 1 + 4 + 4 + 1 + 2;
    memcpy(to, m.bytes, head);
    to += head;
    to += put_uvarint(to, (uint64_t)count + 1);
    for (int32_t i = 0; i < count; i++, to += PARTITION_BYTES) {
        memcpy(to, m.bytes + head + 1, PARTITION_BYTES);
        put_i32(to, i);
    }
    const size_t rest = m.len - head - 1 - PARTITION_BYTES;
    memcpy(to, m.bytes + head + 1 + PARTITION_BYTES, rest);
    to += rest;
    request(wide, &m, FETCH, VERSION);
    wide->body = body;
    wide->body_len = (size_t)(to - body);
    enum serve_status status = driven(wide, serve_start(serve, wide));
    free(body);
    return status;
}

static void open_wide(void) {
    runs_apart = true;
    struct log **logs = malloc(WIDEST * sizeof *logs);
    open_a();
    for (int32_t i = 0; i < WIDEST; i++) logs[i] = a.logs[0];
    struct topic *made = topic_new("a", a.id, false, logs, WIDEST);
    CHECK(made != NULL && grants_install(grants, made) == 0);
    topic_release(made);
    free(logs);
    CHECK(grants_allow(grants, 0, a.id, GRANT_READ) == 0);
}

/* Waiting fetches use so much memory that they share a limit. */
static void wide(void) {
    static struct serve_request widest[2], narrow, another;
    open_wide();
    for (int i = 0; i < 2; i++) CHECK(fetch_wide(&widest[i], WIDEST) == SERVE_WAIT);
    CHECK(fetch_wide(&another, WIDE) == SERVE_ANSWER); /* with an empty response */
    reply_clear(&another.reply);
    CHECK(fetch_wide(&narrow, WIDE - 1) == SERVE_WAIT);
    CHECK(resumed(&widest[0], SERVE_WOKEN) == SERVE_WAIT);
    CHECK(abandoned(&widest[0]));
    CHECK(fetch_wide(&another, WIDE) == SERVE_WAIT);
    CHECK(atomic_load(&shared->fetches_waiting) == WIDEST + WIDE);
    CHECK(resumed(&another, SERVE_TIMEOUT) == SERVE_ANSWER);
    reply_clear(&another.reply);
    CHECK(abandoned(&widest[1]) && abandoned(&narrow));
    CHECK(atomic_load(&shared->fetches_waiting) == 0);
    CHECK(fetch_wide(&another, WIDEST + 1) == SERVE_CLOSE);
    delete_topic(&a);
}

/* With more partitions than a response has parts for, it contains as many as fit. */
static void wide_answers(void) {
    enum { RECORD = 72, COPIED = REPLY_COPIED_BYTES_MAX / RECORD };
    open_wide();
    append(a.logs[0], -1, -1, 0);
    shared->limits.fetch_bytes_max = INT32_MAX;
    CHECK(fetch_wide(&r, COPIED + REPLY_PARTS_MAX + 100) == SERVE_ANSWER);
    CHECK(r.reply.copied_bytes + r.reply.file_bytes == (uint64_t)REPLY_PARTS_MAX * RECORD);
    reply_clear(&r.reply);
    delete_topic(&a);
}

/* ---- no memory ---- */

/* Play with more and more allocations until they suffice: before that, the connection is closed
 * or the response contains an error, and no memory leaks. */
static void starve(enum serve_status (*play)(void)) {
    for (long room_left = 0;; room_left++) {
        blocks_left = room_left;
        enum serve_status status = play();
        const bool enough = blocks_left > 0;
        blocks_left = -1;
        reply_clear(&r.reply);
        CHECK(r.state == NULL && (status == SERVE_ANSWER || status == SERVE_CLOSE));
        produce_free_spares(serve); /* so that the next one allocates again */
        if (enough) {
            CHECK(status == SERVE_ANSWER && room_left >= 2);
            return;
        }
        CHECK(room_left < 100);
    }
}

static enum serve_status fetch_with_rack(void) {
    const struct asked asked[] = {ASKED("a", 0), ASKED("z", 0), ASKED("y", 1), ASKED("x", 2),
                                  ASKED("w", 3), ASKED("v", 3)};
    write_fetch(&m, &FETCHING(VERSION, asked, 6, .rack = "rack", .isolation = 1));
    request(&r, &m, FETCH, VERSION);
    enum serve_status status = serve_start(serve, &r);
    if (status != SERVE_MISS) return status;
    for (uint32_t i = 0; i < r.missing_count; i++) r.missing[i].error = 3;
    return serve_resume(serve, &r, SERVE_GRANTED);
}

/* Its response, if any, has a row for each partition: all responses have the same length. */
static enum serve_status produce_widely(void) {
    static uint32_t answer_bytes;
    struct written rows[9];
    static const char *const names[] = {"a", "z", "y", "x", "w", "v", "u", "t", "a"};
    const size_t len = make_batch(batch, -1, -1, 0);
    for (int i = 0; i < 9; i++) rows[i] = (struct written){names[i], 1, batch, len};
    write_produce(&m, &PRODUCING(VERSION - 3, rows, 9));
    request(&r, &m, PRODUCE, VERSION - 3);
    enum serve_status status = serve_start(serve, &r);
    if (status == SERVE_MISS) {
        for (uint32_t i = 0; i < r.missing_count; i++) r.missing[i].error = 3;
        status = serve_resume(serve, &r, SERVE_GRANTED);
    }
    /* On a slow disk the appends take more than one turn of the reactor. */
    while (status == SERVE_WAIT && r.deadline_ms <= r.now_ms)
        status = serve_resume(serve, &r, SERVE_TIMEOUT);
    if (status != SERVE_ANSWER) return status;
    if (answer_bytes == 0) answer_bytes = r.reply.len;
    CHECK(r.reply.len == answer_bytes && r.reply.len > 9 * (4 + 2 + 8 + 8 + 8));
    return status;
}

static void starved(void) {
    open_a();
    shared->limits.rack_aware = true;
    append(a.logs[0], 5, 0, BATCH_TRANSACTIONAL);
    append_marker(a.logs[0], 5, 0);
    starve(fetch_with_rack);
    starve(produce_widely);
    delete_topic(&a);
}

/* A limited number of finished Produce objects is reused. */
static void spares(void) {
    enum { MANY = PRODUCE_SPARES_MAX + 6 };
    static struct serve_request of[MANY];
    const struct log_config config = scene_config(1 << 20, 4096);
    open_topic(&a, "a", &config, false);
    const struct written row = {"a", 0, batch, make_batch(batch, -1, -1, 0)};
    for (int i = 0; i < MANY; i++)
        CHECK(start_produce(&of[i], &m, &PRODUCING(VERSION - 3, &row, 1)) == SERVE_WAIT);
    for (int i = 0; i < MANY; i++) CHECK(serve_abandon(serve, &of[i]));
    CHECK(serve->spare_count == PRODUCE_SPARES_MAX);
    for (int i = 0; i < MANY; i++) {
        CHECK(start_produce(&of[i], &m, &PRODUCING(VERSION - 3, &row, 1)) == SERVE_WAIT);
        CHECK(serve->spare_count == (uint32_t)(i < MANY - 6 ? MANY - 7 - i : 0));
    }
    for (int i = 0; i < MANY; i++) CHECK(serve_abandon(serve, &of[i]));
    delete_topic(&a);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"produce_quotas", produce_quotas},
                  {"fetch_quotas", fetch_quotas},
                  {"fetch_quota_bytes", fetch_quota_bytes},
                  {"charges", charges},
                  {"wide", wide},
                  {"wide_answers", wide_answers},
                  {"starved", starved},
                  {"spares", spares}};
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
