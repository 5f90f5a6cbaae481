/* Fetches of followers, and consumers redirected to a replica in their rack, through the real
 * serve. Usage: serve_replicas DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log_manager/log_manager.h"
#include "serve_messages.h"
#include "os/rate_limit.h"
#include "watched.h"

enum {
    VERSION = 17,
    OUT_OF_RANGE = 1,
    NOT_LEADER = 6,
    REFUSED = 29,
    FENCED = 74,
    UNKNOWN_EPOCH = 75,
    INSIDE = 1,  /* a broker in the ISR */
    OUTSIDE = 2, /* a broker outside the ISR */
    BROKER_EPOCH = 7,
    FOLLOWER = 5 /* a principal that may only follow */
};

static struct held_topic a;
static struct body m;
static struct serve_request r;
static uint8_t records[1 << 12];

static void set_replicas(int32_t partition_epoch) {
    const struct log_replica of[] = {{BROKER_EPOCH, INSIDE, true, true, true},
                                     {BROKER_EPOCH, OUTSIDE, false, false, true}};
    CHECK(log_set_replicas(a.logs[0], partition_epoch, of, 2, 2) == 0);
}

static void open_a(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    open_topic(&a, "a", &config, false);
    set_replicas(1);
    CHECK(grants_allow(grants, FOLLOWER, a.id, GRANT_FOLLOW) == 0);
    for (int i = 0; i < 2; i++) append(a.logs[0], -1, -1, 0);
}

static struct fetched row_up_to(enum log_bound bound, int64_t offset) {
    struct log_range range;
    CHECK(
        log_read(a.logs[0],
                 &(struct log_read_request){
                     .offset = offset, .bound = bound, .bytes_max = 1 << 12, .at_least_one = true},
                 &range) == 0);
    const ssize_t len = range.length;
    if (len > 0)
        CHECK(log_range_read(&range, records, (size_t)len, range.position) == len);
    struct fetched row = FETCHED("a", 0, .high = range.high_watermark,
                                 .stable = range.last_stable_offset, .records = records,
                                 .len = (size_t)range.length);
    log_range_release(&range);
    return row;
}

static struct fetched row_from(int64_t offset) { return row_up_to(LOG_BOUND_END, offset); }

static enum serve_status follow(int32_t broker, int16_t version, const struct asked *asked) {
    write_fetch(&m, &FETCHING(version, asked, 1, .replica = broker, .isolation = 1,
                              .replica_epoch = BROKER_EPOCH));
    request(&r, &m, FETCH, version);
    r.principal = FOLLOWER;
    return serve_start(serve, &r);
}
#define FOLLOW(broker, ...) follow(broker, VERSION, &ASKED("a", 0, __VA_ARGS__))

static void check_row(const struct fetched *row) { CHECK_FETCHED(&r, VERSION, row, 1); }
static void check_all_from(int64_t offset) {
    const struct fetched row = row_from(offset);
    check_row(&row);
}

static void give_up_waiting(void) {
    CHECK(serve_abandon(serve, &r));
    reply_clear(&r.reply);
}

static void positions(void) {
    struct message woken;
    open_a();
    /* A follower gets uncommitted records, and its fetch commits the previous ones. */
    CHECK(FOLLOW(INSIDE) == SERVE_ANSWER && log_high_watermark(a.logs[0]) == 0);
    check_all_from(0);
    CHECK(FOLLOW(INSIDE, .offset = 2) == SERVE_WAIT && log_high_watermark(a.logs[0]) == 2);
    CHECK(!message_waits());
    append(a.logs[0], -1, -1, 0);
    await_message(&woken);
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
    check_all_from(2);
    /* The same in versions without the broker epoch, and in versions with another field for it. */
    for (int16_t version = 14; version <= 15; version++) {
        CHECK(follow(INSIDE, version, &ASKED("a", 0, .offset = version - 11)) == SERVE_WAIT);
        CHECK(log_high_watermark(a.logs[0]) == version - 11);
        give_up_waiting();
        append(a.logs[0], -1, -1, 0);
    }
    delete_topic(&a);
}

/* ---- another leadership between two checks of the log ---- */

static bool leads_anew;

int __real_log_follower_at(struct log *log, struct log_follower_fetch *at);
int __wrap_log_follower_at(struct log *log, struct log_follower_fetch *at);
int __wrap_log_follower_at(struct log *log, struct log_follower_fetch *at) {
    if (leads_anew) {
        leads_anew = false;
        log_become_follower(log, 1);
        CHECK(log_truncate(log, 1, 1) == 0 && log_end_offset(log) == 1);
        CHECK(log_become_leader(log, 2, 2) == 0);
        set_replicas(2);
        append(log, -1, -1, 0);
    }
    return __real_log_follower_at(log, at);
}

static void check_refused(enum serve_status status, int16_t error) {
    const struct fetched row = FETCH_REFUSED("a", 0, error);
    CHECK(status == SERVE_ANSWER && log_high_watermark(a.logs[0]) == 0);
    CHECK_FETCHED(&r, r.api_version, &row, 1);
}

static void check_asked(enum serve_status status, uint8_t right) {
    const struct fetched refused = FETCH_REFUSED("a", 0, REFUSED, .aborted = 0);
    CHECK(status == SERVE_MISS && r.missing_count == 1 && r.missing_right == right);
    r.missing[0].error = REFUSED;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    check_row(&refused);
}

/* The records before its offset were compared with a log that has changed. */
static void leadership(void) {
    open_a();
    leads_anew = true;
    check_refused(FOLLOW(INSIDE, .offset = 2), NOT_LEADER);
    CHECK(!leads_anew && log_end_offset(a.logs[0]) == 2);
    delete_topic(&a);
}

static void refusals(void) {
    open_a();
    check_refused(FOLLOW(9, .offset = 2), NOT_LEADER);
    check_refused(FOLLOW(9, .offset = 2, .leader_epoch = 0), UNKNOWN_EPOCH);
    check_refused(FOLLOW(INSIDE, .offset = 3), OUT_OF_RANGE);
    CHECK(log_become_leader(a.logs[0], 1, 2) == 0);
    set_replicas(2);
    check_refused(FOLLOW(INSIDE, .offset = 2, .leader_epoch = 0), FENCED);
    /* A restarted broker; and a diverging log, which does not prove its position. */
    write_fetch(&m, &FETCHING(VERSION, &ASKED("a", 0, .offset = 2), 1, .replica = INSIDE,
                              .replica_epoch = BROKER_EPOCH - 1));
    request(&r, &m, FETCH, VERSION);
    r.principal = FOLLOWER;
    check_refused(serve_start(serve, &r), NOT_LEADER);
    append(a.logs[0], -1, -1, 0);
    CHECK(FOLLOW(INSIDE, .offset = 3, .last_fetched_epoch = 0) == SERVE_ANSWER);
    struct fetched row = row_from(3);
    row.diverging_epoch = 0;
    row.diverging_end = 2;
    check_row(&row);
    CHECK(log_high_watermark(a.logs[0]) == 0);
    /* A consumer needs another ACL than a follower, and vice versa. */
    check_asked(follow(-1, VERSION, &ASKED("a", 0)), GRANT_READ);
    check_asked(start_fetch(&r, &m, &FETCHING(VERSION, &ASKED("a", 0), 1, .replica = INSIDE)),
                GRANT_FOLLOW);
    delete_topic(&a);
}

/* A caught-up follower outside the ISR is reported, once, as long as there is space. */
static void joins(void) {
    const struct isr_candidate *found;
    open_a();
    CHECK(serve_take_isr_candidates(serve, &found) == 0);
    CHECK(FOLLOW(OUTSIDE, .offset = 1) == SERVE_ANSWER);
    check_all_from(1);
    CHECK(serve_take_isr_candidates(serve, &found) == 1);
    CHECK(found->partition == 0 && found->broker == OUTSIDE);
    CHECK(memcmp(found->topic_id, a.id, sizeof a.id) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK(FOLLOW(i == 0 ? OUTSIDE : INSIDE, .offset = 2) == SERVE_WAIT);
        give_up_waiting();
        CHECK(serve_take_isr_candidates(serve, &found) == 0);
    }
    set_replicas(2);
    serve->candidates.count = ISR_CANDIDATES_MAX;
    CHECK(FOLLOW(OUTSIDE, .offset = 2) == SERVE_WAIT);
    give_up_waiting();
    CHECK(serve_take_isr_candidates(serve, &found) == ISR_CANDIDATES_MAX);
    CHECK(FOLLOW(OUTSIDE, .offset = 2) == SERVE_WAIT);
    give_up_waiting();
    CHECK(serve_take_isr_candidates(serve, &found) == 1);
    delete_topic(&a);
}

/* A follower learns the new high watermark immediately, for its own consumers. */
static void high_is_news(void) {
    open_a();
    for (int aware = 0; aware < 2; aware++) {
        shared->limits.rack_aware = aware == 1;
        append(a.logs[0], -1, -1, 0);
        CHECK(FOLLOW(INSIDE, .offset = 3 + aware) == (aware ? SERVE_ANSWER : SERVE_WAIT));
        if (aware) check_all_from(4);
        else give_up_waiting();
        CHECK(FOLLOW(INSIDE, .offset = 3 + aware) == SERVE_WAIT);
        give_up_waiting();
    }
    delete_topic(&a);
}

static int64_t throttled_bytes(struct throttle *t) {
    return (int64_t)(throttle_rate(t, quotas_monotonic_ns() / NS_PER_MS) * 1e6 + 0.5);
}

/* Throttled partitions count all replica fetches, and stop those of followers outside the ISR. */
static void throttled(void) {
    struct throttle *t = throttle_new(2, 1000000000);
    shared->limits.throttle = t;
    open_a();
    throttle_set(t, 0);
    CHECK(FOLLOW(OUTSIDE) == SERVE_ANSWER);
    const int64_t len = (int64_t)row_from(0).len;
    check_all_from(0);
    CHECK(throttled_bytes(t) == 0);
    log_set_throttled(a.logs[0], true, false);
    CHECK(FOLLOW(OUTSIDE) == SERVE_ANSWER);
    check_all_from(0);
    CHECK(throttled_bytes(t) == len);
    CHECK(FOLLOW(OUTSIDE) == SERVE_WAIT);
    CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_ANSWER);
    struct fetched nothing = row_from(0);
    nothing.len = 0;
    check_row(&nothing);
    CHECK(FOLLOW(INSIDE) == SERVE_ANSWER);
    check_all_from(0);
    CHECK(throttled_bytes(t) == 2 * len);
    throttle_set(t, len);
    CHECK(FOLLOW(OUTSIDE) == SERVE_ANSWER);
    check_all_from(0);
    CHECK(throttled_bytes(t) == 3 * len);
    /* Consumers do not count. */
    log_advance_high_watermark(a.logs[0], 2);
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, &ASKED("a", 0), 1)) == SERVE_ANSWER);
    reply_clear(&r.reply);
    CHECK(throttled_bytes(t) == 3 * len);
    delete_topic(&a);
    throttle_free(t);
}

/* ---- racks ---- */

enum { LEADER = 10, FIRST = 20, COUNT = 18, END = 4 };

/* A follower's fetch, this much later than any before the scene. */
static void at(int32_t broker, int64_t offset, int64_t start_offset, int64_t later_ns) {
    struct log_follower_fetch fetch = {.epoch = BROKER_EPOCH, .offset = offset,
                                       .start_offset = start_offset,
                                       .now_ns = INT64_MAX / 2 + later_ns,
                                       .broker = broker};
    CHECK(log_follower_at(a.logs[0], &fetch) == 0);
}

/* Open a topic with a leader and followers, and set the racks of the first followers. */
static void open_racks(const char *leader_rack, const char *const *racks, int rack_count) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct log_replica replicas[COUNT];
    struct node nodes[COUNT + 2] = {{0, LEADER, 1, "leader", leader_rack},
                                    {1, LEADER, 1, "leader", "elsewhere"}};
    const struct topic_leader leaders[] = {{LEADER, 0}, {LEADER, 0}};
    for (int i = 0; i < COUNT; i++) {
        replicas[i] = (struct log_replica){BROKER_EPOCH, FIRST + i, true, true, true};
        nodes[2 + i] = (struct node){0, FIRST + i, 1, "host", i < rack_count ? racks[i] : NULL};
    }
    open_topic(&a, "a", &config, false);
    struct topic *made = topic_new("a", a.id, false, a.logs, PARTITIONS);
    CHECK(topic_set_leaders(made, leaders) && grants_install(grants, made) == 0);
    topic_release(made);
    CHECK(grants_allow(grants, 0, a.id, GRANT_READ) == 0);
    grants_set_nodes(grants, nodes_new(nodes, COUNT + 2));
    replicas[2].in_sync = false;
    CHECK(log_set_replicas(a.logs[0], 1, replicas, COUNT, COUNT) == 0);
    for (int i = 0; i < END; i++) append(a.logs[0], -1, -1, 0);
    for (int i = 0; i < COUNT; i++) at(FIRST + i, END, 0, 100 + i);
    shared->limits.rack_aware = true;
}

static void check_sent_to(int32_t broker, int64_t offset, const char *rack) {
    const struct asked asked = ASKED("a", 0, .offset = offset);
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, &asked, 1, .rack = rack)) == SERVE_ANSWER);
    struct fetched row = row_up_to(LOG_BOUND_HIGH_WATERMARK, offset);
    row.preferred = broker;
    if (broker >= 0) row.len = 0;
    check_row(&row);
}

static void racks(void) {
    static const char *const of[] = {"r", "q", "r", "r", "r",  NULL, NULL, NULL, NULL,
                                     NULL, NULL, NULL, NULL, NULL, NULL, "s", "t", "t"};
    open_racks("l", of, COUNT);
    CHECK(log_high_watermark(a.logs[0]) == END);
    check_sent_to(FIRST + 4, 0, "r"); /* of three caught-up ones, the most recent */
    check_sent_to(FIRST + 1, 0, "q");
    struct fetched first = FETCHED("a", 0, .high = END, .stable = END, .preferred = FIRST + 1);
    CHECK(start_fetch(&r, &m, &FETCHING(11, &ASKED("a", 0), 1, .rack = "q")) == SERVE_ANSWER);
    CHECK_FETCHED(&r, 11, &first, 1);
    check_sent_to(-1, 0, "l"); /* the leader's own */
    check_sent_to(-1, 0, "rr");
    check_sent_to(-1, 0, "");
    check_sent_to(FIRST + 15, 0, "s"); /* as many as are checked */
    check_sent_to(-1, 0, "t");
    at(FIRST + 3, END, 0, 1000);
    check_sent_to(FIRST + 3, 0, "r");
    /* It must have the requested offset, and more records than the others. */
    append(a.logs[0], -1, -1, 0);
    at(FIRST, END + 1, 0, 1001);
    check_sent_to(FIRST, 0, "r");
    at(FIRST, END + 1, 2, 1002);
    check_sent_to(FIRST, 2, "r");
    check_sent_to(FIRST + 3, 1, "r");
    at(FIRST + 1, END + 1, 3, 1003);
    check_sent_to(-1, 2, "q");
    check_sent_to(FIRST + 1, 3, "q");
    /* Followers, and consumers of a broker without racks, are not redirected. */
    CHECK(grants_allow(grants, FOLLOWER, a.id, GRANT_FOLLOW) == 0);
    write_fetch(&m, &FETCHING(VERSION, &ASKED("a", 0), 1, .replica = FIRST, .rack = "r",
                              .replica_epoch = BROKER_EPOCH));
    request(&r, &m, FETCH, VERSION);
    r.principal = FOLLOWER;
    CHECK(serve_start(serve, &r) == SERVE_ANSWER);
    check_all_from(0);
    shared->limits.rack_aware = false;
    check_sent_to(-1, 3, "q");
    shared->limits.rack_aware = true;
    grants_set_nodes(grants, NULL);
    check_sent_to(-1, 3, "q");
    delete_topic(&a);
}

/* A follower that serves consumers redirects none; any other follower rejects them. */
static void read_from_a_follower(void) {
    static const char *const of[] = {"r"};
    const struct asked asked = ASKED("a", 0);
    open_racks("l", of, 1);
    log_become_follower(a.logs[0], 0);
    struct fetched row = FETCH_REFUSED("a", 0, NOT_LEADER, .leader = LEADER, .leader_epoch = 0);
    const struct row_node node = {LEADER, "leader", "l"};
    CHECK(start_fetch(&r, &m, &FETCHING(15, &asked, 1, .rack = "r")) == SERVE_ANSWER);
    CHECK_FETCHED(&r, 15, &row, 1, .nodes = &node, .node_count = 1);
    log_set_readable(a.logs[0], true);
    row = row_from(0);
    CHECK(start_fetch(&r, &m, &FETCHING(11, &asked, 1, .rack = "r")) == SERVE_ANSWER);
    CHECK_FETCHED(&r, 11, &row, 1);
    row = FETCH_REFUSED("a", 0, NOT_LEADER);
    CHECK(start_fetch(&r, &m, &FETCHING(10, &asked, 1)) == SERVE_ANSWER);
    CHECK_FETCHED(&r, 10, &row, 1);
    /* Its readers wait as a leader's do. */
    const struct asked end = ASKED("a", 0, .offset = END);
    CHECK(start_fetch(&r, &m, &FETCHING(11, &end, 1)) == SERVE_WAIT && !message_waits());
    give_up_waiting();
    delete_topic(&a);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"positions", positions},
                  {"refusals", refusals},
                  {"leadership", leadership},
                  {"joins", joins},
                  {"high_is_news", high_is_news},
                  {"throttled", throttled},
                  {"racks", racks},
                  {"read_from_a_follower", read_from_a_follower}};
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
