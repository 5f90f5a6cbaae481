/* Fetch and Produce of each version through the real serve, and their responses byte by byte.
 * Usage: serve_responses DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log_manager/log_manager.h"
#include "serve_messages.h"
#include "watched.h"

enum { UNKNOWN_TOPIC = 3, NOT_LEADER = 6, FENCED = 74, UNKNOWN_EPOCH = 75, OUT_OF_RANGE = 1 };

static struct meter_api apis[2];

static uint64_t errors_of(int api_key, int error) {
    return meter_read(&apis[api_key].errors[error + 1]);
}

/* Copy the log's bytes from this offset on. */
static size_t stored(struct log *log, int64_t offset, uint8_t *to) {
    struct log_range range;
    CHECK(log_read(log,
                   &(struct log_read_request){
                       .offset = offset, .bytes_max = 1 << 20, .at_least_one = true},
                   &range) == 0);
    CHECK(log_range_read(&range, to, (size_t)range.length, range.position) == range.length);
    size_t len = (size_t)range.length;
    log_range_release(&range);
    return len;
}

/* Replace the topic by one with these leaders of its partitions. */
static void name_leaders(struct held_topic *t, const struct topic_leader *leaders) {
    struct topic *made = topic_new(t->name, t->id, false, t->logs, PARTITIONS);
    CHECK(made != NULL && topic_set_leaders(made, leaders));
    CHECK(grants_install(grants, made) == 0);
    topic_release(made);
    CHECK(grants_allow(grants, 0, t->id, GRANT_READ | GRANT_WRITE) == 0);
}

static const struct row_node three = {3, "three", "rack"}, four = {4, "host-of-four", NULL};

static void name_nodes(void) {
    const struct node of[] = {{1, 3, 1, "elsewhere", "z"},
                              {0, 3, NODE_PORT + 3, three.host, three.rack},
                              {0, 4, NODE_PORT + 4, four.host, NULL},
                              {1, 5, 2, "only there", NULL}};
    grants_set_nodes(grants, nodes_new(of, 4));
}

static void check_missing(const struct serve_request *r, const char *name, bool by_id) {
    const struct serve_missing *missing = &r->missing[0];
    uint8_t id[16] = {0};
    CHECK(r->missing_count == 1 && missing->partition == -1 && missing->error == 0);
    CHECK(r->transaction.id == NULL);
    if (by_id) memset(id, name[0], 16);
    CHECK(memcmp(missing->id, id, 16) == 0);
    CHECK(missing->name_len == (by_id ? -1 : (int32_t)strlen(name)));
    CHECK((missing->name == NULL) == by_id);
    if (!by_id) CHECK(memcmp(missing->name, name, strlen(name)) == 0);
}

/* Records with an aborted transaction, a partition that another broker leads, an unknown topic. */
static void fetch_versions(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    const struct topic_leader leaders[] = {{3, 1}, {4, 7}};
    struct held_topic a;
    struct serve_request r;
    struct body m;
    struct log_stats figures;
    uint8_t records[1024];
    uint64_t answers = 0;
    open_topic(&a, "a", &config, true);
    name_leaders(&a, leaders);
    name_nodes();
    append(a.logs[0], 5, 0, BATCH_TRANSACTIONAL);
    append_marker(a.logs[0], 5, 0);
    append(a.logs[0], -1, -1, 0);
    log_become_follower(a.logs[1], 7);
    const size_t len = stored(a.logs[0], 0, records);
    const struct asked asked[] = {ASKED("a", 0), ASKED("a", 1), ASKED("z", 5)};
    for (int16_t version = 4; version <= 18; version++)
        for (int8_t committed = 0; committed < 2; committed++, answers++) {
            const struct fetching f =
                FETCHING(version, asked, 3, .isolation = committed, .odd = version % 2 == 1);
            CHECK(start_fetch(&r, &m, &f) == SERVE_MISS && r.body_needed == false);
            check_missing(&r, "z", version >= 13);
            r.missing[0].error = UNKNOWN_TOPIC;
            CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
            const struct fetched rows[] = {
                FETCHED("a", 0, .high = 3, .stable = 3, .aborted = committed ? 1 : -1,
                        .of = {{5, 0}}, .records = records, .len = len),
                FETCH_REFUSED("a", 1, NOT_LEADER, .leader = 4, .leader_epoch = 7),
                FETCH_REFUSED("z", 5, UNKNOWN_TOPIC, .aborted = 0)};
            CHECK_FETCHED(&r, version, rows, 3, .nodes = &four, .node_count = 1);
        }
    CHECK(errors_of(FETCH, NOT_LEADER) == answers && errors_of(FETCH, UNKNOWN_TOPIC) == answers);
    log_read_stats(a.logs[0], &figures);
    CHECK(figures.fetch_requests == (int64_t)answers && figures.fetch_failures == 0);
    CHECK(figures.bytes_out == (int64_t)(answers * len));
    log_read_stats(a.logs[1], &figures);
    CHECK(figures.fetch_requests == (int64_t)answers &&
          figures.fetch_failures == (int64_t)answers && figures.bytes_out == 0);
    delete_topic(&a);
}

/* Check one partition's response in a version with epochs. */
static void check_one(const struct asked *asked, int8_t isolation, const struct fetched *row,
                      const struct row_node *node) {
    struct serve_request r;
    struct body m;
    const struct fetching f = FETCHING(18, asked, 1, .isolation = isolation, .wait_ms = 0);
    CHECK(start_fetch(&r, &m, &f) == SERVE_ANSWER);
    CHECK_FETCHED(&r, 18, row, 1, .nodes = node, .node_count = node != NULL);
}

static void epochs(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    const struct topic_leader leaders[] = {{3, 4}, {5, 4}};
    struct held_topic a;
    uint8_t records[1024];
    open_topic(&a, "a", &config, true);
    name_leaders(&a, leaders);
    name_nodes();
    CHECK(log_become_leader(a.logs[0], 1, 1) == 0);
    append(a.logs[0], -1, -1, 0);
    append(a.logs[0], -1, -1, 0);
    CHECK(log_become_leader(a.logs[0], 4, 1) == 0);
    append(a.logs[0], -1, -1, 0);
#define CHECK_ONE(isolation, node, row, ...)                                                       \
    check_one(&ASKED("a", 0, __VA_ARGS__), isolation, &row, node)
#define ALL(...) FETCHED("a", 0, .high = 3, .stable = 3, __VA_ARGS__)
    /* A fetch with an older epoch gets the leader; with a newer one no leader is known. */
    CHECK_ONE(0, &three,
              FETCH_REFUSED("a", 0, FENCED, .leader = 3, .leader_epoch = 4), .leader_epoch = 3);
    CHECK_ONE(0, NULL, FETCH_REFUSED("a", 0, UNKNOWN_EPOCH), .leader_epoch = 5);
    size_t len = stored(a.logs[0], 2, records);
    CHECK_ONE(0, NULL, ALL(.records = records, .len = len), .leader_epoch = 4, .offset = 2);
    /* The diverging epoch and offset; the current epoch ends at the log end. */
    CHECK_ONE(0, NULL, ALL(.records = records, .len = len), .last_fetched_epoch = 4, .offset = 2);
    CHECK_ONE(0, NULL, ALL(.records = records, .len = len), .last_fetched_epoch = 1, .offset = 2);
    CHECK_ONE(1, NULL, ALL(.aborted = 0), .last_fetched_epoch = 4, .offset = 3);
    CHECK_ONE(0, NULL, ALL(.diverging_epoch = 4, .diverging_end = 3), .last_fetched_epoch = 4,
              .offset = 4);
    CHECK_ONE(1, NULL, ALL(.diverging_epoch = 1, .diverging_end = 2, .aborted = 0),
              .last_fetched_epoch = 1, .offset = 3);
    CHECK_ONE(0, NULL, ALL(.diverging_epoch = 1, .diverging_end = 2), .last_fetched_epoch = 3,
              .offset = 1);
    CHECK_ONE(0, NULL, FETCH_REFUSED("a", 0, OUT_OF_RANGE), .last_fetched_epoch = 9);
    CHECK_ONE(1, NULL, ALL(.diverging_epoch = 0, .diverging_end = 0, .aborted = 0),
              .last_fetched_epoch = 0, .offset = 1);
    /* Outside the log, and with a new leader whose address is unknown. */
    CHECK_ONE(1, NULL, FETCH_REFUSED("a", 0, OUT_OF_RANGE), .offset = 4);
    log_become_follower(a.logs[1], 4);
    check_one(&ASKED("a", 1), 0, &FETCH_REFUSED("a", 1, NOT_LEADER, .leader = 5, .leader_epoch = 4),
              NULL);
    check_one(&ASKED("a", -1), 0, &FETCH_REFUSED("a", -1, UNKNOWN_TOPIC, .aborted = 0), NULL);
    check_one(&ASKED("a", 2), 0, &FETCH_REFUSED("a", 2, UNKNOWN_TOPIC, .aborted = 0), NULL);
    delete_topic(&a);
}

/* Each leader is listed once, ordered by its first partition, with its address on this listener. */
static void endpoints(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    const struct topic_leader of_a[] = {{4, 1}, {3, 1}}, of_b[] = {{4, 2}, {-1, 5}};
    const struct row_node both[] = {four, three};
    struct held_topic a, b;
    struct serve_request r;
    struct body m;
    open_topic(&a, "a", &config, true);
    open_topic(&b, "b", &config, true);
    name_leaders(&a, of_a);
    name_leaders(&b, of_b);
    name_nodes();
    for (int i = 0; i < PARTITIONS; i++) {
        log_become_follower(a.logs[i], 5);
        log_become_follower(b.logs[i], 5);
    }
    const struct asked asked[] = {ASKED("a", 0), ASKED("a", 1), ASKED("b", 0), ASKED("b", 1)};
    struct fetched rows[] = {
        FETCH_REFUSED("a", 0, NOT_LEADER, .leader = 4, .leader_epoch = 1),
        FETCH_REFUSED("a", 1, NOT_LEADER, .leader = 3, .leader_epoch = 1),
        FETCH_REFUSED("b", 0, NOT_LEADER, .leader = 4, .leader_epoch = 2),
        FETCH_REFUSED("b", 1, NOT_LEADER)};
    CHECK(start_fetch(&r, &m, &FETCHING(17, asked, 3)) == SERVE_ANSWER);
    CHECK_FETCHED(&r, 17, rows, 3, .nodes = both, .node_count = 2);
    /* A partition without a leader is reported, but without an endpoint. */
    struct body expected = {.len = 0};
    CHECK(start_fetch(&r, &m, &FETCHING(17, asked + 3, 1)) == SERVE_ANSWER);
    begin_answer(&expected, true);
    add_i32(&expected, 0);
    add_i16(&expected, 0);
    add_i32(&expected, 0);
    add_count(&expected, true, 1);
    add_topic(&expected, true, true, "b");
    add_count(&expected, true, 1);
    add_fetched(&expected, 15, &rows[3]);
    expected.bytes[expected.len - 1] = 1;
    add_leader(&expected, 1, -1, 5);
    add_no_tags(&expected, true);
    add_endpoints(&expected, NULL, 0);
    check_sent(&r, &expected);
    grants_set_nodes(grants, NULL);
    CHECK(start_fetch(&r, &m, &FETCHING(17, asked, 1)) == SERVE_ANSWER);
    CHECK_FETCHED(&r, 17, rows, 1);
    delete_topic(&a);
    delete_topic(&b);
}

/* Make a batch of three records; the first and the last have no key. */
static size_t make_keyless(uint8_t *p) {
    static const uint8_t records[] = {18, 0, 0, 0, 1, 6, 'a', 'b', 'c', 0, 20, 0, 0, 2, 2, 'k',
                                      6,  'a', 'b', 'c', 0, 18, 0, 0, 4, 1, 6, 'a', 'b', 'c', 0};
    size_t len = scene_batch(p, records, sizeof records, NOW, -1, -1);
    put_i32(p + BATCH_LAST_OFFSET_DELTA_AT, 2);
    put_i32(p + BATCH_RECORD_COUNT_AT, 3);
    scene_seal(p, len);
    return len;
}

/* Valid and damaged batches, and batches without keys, for partitions led here and elsewhere,
 * and for an unknown topic. */
static void produce_versions(void) {
    enum { CORRUPT = 2, INVALID_RECORD = 87 };
    struct log_config config = scene_config(1 << 20, 4096);
    const struct topic_leader leaders[] = {{3, 1}, {4, 7}};
    struct held_topic a, b;
    struct serve_request r;
    struct body m;
    struct log_stats figures;
    uint8_t good[128], damaged[128], keyless[128];
    int64_t answers = 0;
    open_topic(&a, "a", &config, true);
    config.cleanup_compact = true;
    open_topic(&b, "b", &config, true);
    name_leaders(&a, leaders);
    name_leaders(&b, leaders);
    name_nodes();
    append(a.logs[0], -1, -1, 0);
    append(b.logs[1], -1, -1, 0);
    CHECK(log_move_start(a.logs[0], 1, NOW) == 0 && log_move_start(b.logs[1], 1, NOW) == 0);
    log_become_follower(a.logs[1], 7);
    const size_t len = make_batch(good, -1, -1, 0), keyless_len = make_keyless(keyless);
    memcpy(damaged, good, len);
    damaged[len - 1] ^= 2;
    const struct written rows[] = {{"a", 0, good, len},    {"a", 1, good, len},
                                   {"b", 0, damaged, len}, {"b", 1, keyless, keyless_len},
                                   {"z", 5, good, len},    {"a", 1, NULL, 0}};
    for (int16_t version = 3; version <= 13; version++, answers++) {
        const struct producing q =
            PRODUCING(version, rows, 6, .acks = 1, .odd = version % 2 == 1);
        CHECK(start_produce(&r, &m, &q) == SERVE_MISS && r.body_needed);
        check_missing(&r, "z", version >= 13);
        r.missing[0].error = UNKNOWN_TOPIC;
        CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
        const struct wrote wrote[] = {
            WROTE("a", 0, 1 + answers, .log_start = 1),
            NOT_WROTE("a", 1, NOT_LEADER, .leader = 4, .leader_epoch = 7),
            NOT_WROTE("b", 0, CORRUPT),
            NOT_WROTE("b", 1, INVALID_RECORD, .text = batch_error_text(BATCH_E_KEY),
                      .log_start = 1, .bad_count = 2, .bad = {0, 2}),
            NOT_WROTE("z", 5, UNKNOWN_TOPIC),
            NOT_WROTE("a", 1, INVALID_RECORD)};
        CHECK_WROTE(&r, version, wrote, 6, .nodes = &four, .node_count = 1);
    }
    CHECK(log_end_offset(a.logs[0]) == 1 + answers && log_end_offset(b.logs[1]) == 1);
    CHECK(errors_of(PRODUCE, NOT_LEADER) == (uint64_t)answers);
    CHECK(errors_of(PRODUCE, CORRUPT) == (uint64_t)answers);
    CHECK(errors_of(PRODUCE, INVALID_RECORD) == 2 * (uint64_t)answers);
    log_read_stats(b.logs[1], &figures);
    CHECK(figures.produce_requests == 1 + answers && figures.produce_failures == answers);
    delete_topic(&a);
    delete_topic(&b);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"fetch_versions", fetch_versions}, {"epochs", epochs}, {"endpoints", endpoints},
                  {"produce_versions", produce_versions}};
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
