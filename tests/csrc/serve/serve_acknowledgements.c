/* Conditions for a Produce response: transaction coordinator, replicas, disk. Usage:
 * serve_acknowledgements DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include <unistd.h>

#include "log/log_struct.h"
#include "log_manager/log_manager.h"
#include "segment/log_dir.h"
#include "segment/segment.h"
#include "serve_produce_scenes.h"
#include "watched.h"

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
    /* The coordinator verifies the first batch, and none after it. */
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
    /* A marker arrives during the verification: the client must retry. */
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
    /* A batch outside a transaction needs no verification. */
    len = make_batch(batch, 9, 0, 0);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 5, .log_start = 1));
    make_batch(batch, 30, 0, BATCH_TRANSACTIONAL);
    CHECK(send_batch(len, VERSION, 1, "") == SERVE_MISS); /* an empty id is an id */
    check_asked(30, "");
    CHECK(serve_abandon(serve, &r));
    CHECK(send_batch(0, VERSION, 1, "tx") == SERVE_ANSWER);
    check_answer(VERSION, &NOT_WROTE("a", 0, INVALID_RECORD));
    delete_topic(&a);
}

/* A request has one producer and one epoch; producer id 0 is valid, too. */
static void one_producer(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    uint8_t second[128], third[128];
    open_a(&config, true);
    size_t len = make_batch(batch, 0, 0, BATCH_TRANSACTIONAL);
    CHECK(send_batch(len, VERSION, 1, "zero") == SERVE_MISS);
    check_asked(0, "zero");
    CHECK(serve_abandon(serve, &r));
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

/* A verification in advance is valid for one producer, epoch and principal, until the marker. */
static void verified_before(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    const int64_t producer = 5;
    open_a(&config, true);
    size_t len = make_batch(batch, producer, 0, BATCH_TRANSACTIONAL);
    log_verify_producer(a.logs[0], producer, 0, 0); /* unknown so far */
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_MISS);
    check_asked(producer, "tx");
    r.missing[0].error = 0;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 1, .log_start = 1));
    append(a.logs[0], producer, -1, BATCH_TRANSACTIONAL | BATCH_CONTROL);
    len = make_batch(batch, producer, 1, BATCH_TRANSACTIONAL);
    const struct {
        int16_t epoch;
        uint32_t principal;
    } others[] = {{1, 0}, {0, 3}};
    for (int i = 0; i < 2; i++) {
        log_verify_producer(a.logs[0], producer, others[i].epoch, others[i].principal);
        CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_MISS);
        check_asked(producer, "tx");
        CHECK(serve_abandon(serve, &r));
    }
    log_verify_producer(a.logs[0], producer, 0, 0);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 3, .log_start = 1));
    append(a.logs[0], producer, -1, BATCH_TRANSACTIONAL | BATCH_CONTROL);
    make_batch(batch, producer, 2, BATCH_TRANSACTIONAL);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_MISS);
    check_asked(producer, "tx");
    CHECK(serve_abandon(serve, &r));
    /* Also if nothing was written before the marker. */
    log_verify_producer(a.logs[0], producer, 0, 0);
    append(a.logs[0], producer, -1, BATCH_TRANSACTIONAL | BATCH_CONTROL);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_MISS);
    CHECK(serve_abandon(serve, &r));
    delete_topic(&a);
}

/* An open transaction belongs to the verified principal: any other needs its own verification. */
static void verified_for_another(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    const int64_t producer = 5;
    open_a(&config, true);
    size_t len = make_batch(batch, producer, 0, BATCH_TRANSACTIONAL);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_MISS);
    r.missing[0].error = 0;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 1, .log_start = 1));
    len = make_batch(batch, producer, 1, BATCH_TRANSACTIONAL);
    log_verify_producer(a.logs[0], producer, 0, 3);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_MISS);
    check_asked(producer, "tx");
    r.missing[0].error = 0;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 2, .log_start = 1));
    len = make_batch(batch, producer, 2, BATCH_TRANSACTIONAL);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 3, .log_start = 1));
    delete_topic(&a);
}

/* Changed ACLs invalidate all verifications, also those requested before the change and used
 * after it. */
static void verified_under_other_rights(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    const int64_t producer = 5;
    open_a(&config, true);
    uint64_t holder = grants_holder(grants, 0);
    CHECK(holder == grants_holder(grants, 0) && holder != grants_holder(grants, 1));
    for (int sequence = 0; sequence < 3; sequence++) {
        size_t len = make_batch(batch, producer, sequence, BATCH_TRANSACTIONAL);
        CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_MISS);
        check_asked(producer, "tx");
        grants_void(grants);
        CHECK(grants_allow(grants, 0, a.id, GRANT_WRITE) == 0);
        r.missing[0].error = 0;
        CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
        check_answer(VERSION, &WROTE("a", 0, sequence + 1, .log_start = 1));
    }
    size_t len = make_batch(batch, producer, 3, BATCH_TRANSACTIONAL);
    log_verify_producer(a.logs[0], producer, 0, holder);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_MISS);
    CHECK(serve_abandon(serve, &r));
    log_verify_producer(a.logs[0], producer, 0, grants_holder(grants, 0));
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 4, .log_start = 1));
    delete_topic(&a);
}

/* A producer id may be known without an epoch, and a client may send none. */
static void verified_without_epoch(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    open_a(&config, true);
    size_t len = make_batch(batch, 5, 0, BATCH_TRANSACTIONAL | BATCH_CONTROL);
    put_i16(batch + BATCH_PRODUCER_EPOCH_AT, -1);
    scene_seal(batch, len);
    struct batch_summary summary = {0};
    struct log_appended out;
    CHECK(batch_parse(batch, len, &summary.header) == 0);
    CHECK(log_append(a.logs[0], batch, len, &summary, -1, NOW, &out) == 0);
    len = make_batch(batch, 5, 0, BATCH_TRANSACTIONAL);
    put_i16(batch + BATCH_PRODUCER_EPOCH_AT, -1);
    scene_seal(batch, len);
    CHECK(send_batch(len, VERSION, 1, "tx") == SERVE_MISS);
    CHECK(serve_abandon(serve, &r));
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
    /* A new epoch is verified, even while a transaction of an older one is open. */
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

/* A fetch of the other replica from this offset. */
static void follow(int64_t offset) {
    struct log_follower_fetch at = {.epoch = 7, .offset = offset, .now_ns = 1, .broker = 1};
    CHECK(log_follower_at(a.logs[0], &at) == 0);
}

/* Replicas are lost before the append and after it. */
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

/* Another leader in between may have truncated the records. */
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
    /* With a short timeout the response is sent at the first check. */
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

/* With only itself in the ISR, a leader acknowledges flushed records if the topic requires that. */
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

/* Wait until the flusher is idle. */
static void wait_for_relief(void) {
    for (bool busy = true; busy;) {
        lock_acquire(&directory->flush_lock);
        busy = directory->flusher.relief_busy || atomic_load(&directory->flusher.relief_wanted);
        lock_release(&directory->flush_lock);
        if (busy) usleep(500);
    }
}

/* Close a's first partition because too many files are open. */
static void crowd(void) {
    log_dir_set_open_files(directory, 100);
    wait_for_relief();
    CHECK(log_flush(a.logs[0]) == 0);
    log_dir_set_open_files(directory, 1);
    CHECK(atomic_load(&directory->over_hard_limit));
    CHECK(atomic_load(&a.logs[0]->view.segments[0]->pins) == -1);
}

/* A batch that would open a file while too many are open waits before its append, up to the
 * timeout. */
static void files(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    struct held_topic b;
    open_a(&config, true);
    open_topic(&b, "b", &config, true);
    append(a.logs[1], -1, -1, 0);
    append(b.logs[0], -1, -1, 0);
    struct segment *busy[] = {a.logs[1]->view.segments[0], b.logs[0]->view.segments[0]};
    for (int i = 0; i < 2; i++) CHECK(segment_pin(busy[i], false) == 0);
    crowd();
    size_t len = make_batch(batch, -1, -1, 0);
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_WAIT && r.exclusive && r.body_needed);
    CHECK(r.deadline_ms > r.now_ms && r.deadline_ms < r.now_ms + 1000);
    CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_WAIT && log_end_offset(a.logs[0]) == 1);
    /* A batch for an open file is written. */
    struct serve_request other;
    struct body its;
    const struct written row = {"a", 1, batch, len};
    CHECK(start_produce(&other, &its, &PRODUCING(VERSION, &row, 1, .acks = 1)) == SERVE_ANSWER);
    CHECK_WROTE(&other, VERSION, &WROTE("a", 1, 1), 1);
    log_dir_set_open_files(directory, 100);
    CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 1, .log_start = 1));
    crowd();
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_WAIT);
    r.now_ms = r.received_ms + 10000;
    CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_ANSWER);
    check_answer(VERSION, &WROTE("a", 0, 2, .log_start = 1));
    /* Its client disconnects in the meantime. */
    crowd();
    CHECK(send_batch(len, VERSION, 1, NULL) == SERVE_WAIT);
    CHECK(serve_abandon(serve, &r) && log_end_offset(a.logs[0]) == 3);
    for (int i = 0; i < 2; i++) segment_unpin(busy[i]);
    log_dir_set_open_files(directory, 100);
    wait_for_relief();
    delete_topic(&a);
    delete_topic(&b);
}

/* The topic is deleted, or its disk fails, while the request waits for replicas. */
static void failed(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    size_t len = make_batch(batch, -1, -1, 0);
    for (int i = 0; i < 2; i++) {
        open_a(&config, false);
        wait_for_all(len);
        if (i == 0) delete_topic(&a);
        else
            CHECK(log_dir_report_error(directory, 5));
        check_woken();
        CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
        char cause[LOG_CAUSE_BYTES];
        log_storage_cause(a.logs[0], LOG_E_OFFLINE, false, cause);
        check_answer(VERSION, &NOT_WROTE("a", 0, i == 0 ? UNKNOWN_TOPIC : STORAGE,
                                         .text = i == 0 ? NULL : cause));
    }
    delete_topic(&a);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"transactions", transactions},
                  {"one_producer", one_producer},
                  {"verified_before", verified_before},
                  {"verified_for_another", verified_for_another},
                  {"verified_under_other_rights", verified_under_other_rights},
                  {"verified_without_epoch", verified_without_epoch},
                  {"transactions_refused", transactions_refused},
                  {"replicas", replicas},
                  {"resigned", resigned},
                  {"flushed", flushed},
                  {"files", files},
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
