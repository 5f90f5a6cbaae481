/* Fetch through the real serve: the size of a response, its waits, and reads from disk before
 * it. Usage: serve_fetches DIRECTORY SCENE [apart]. Exits with 0, or with 1 and a line on
 * stderr. */
#include "log_manager/log_manager.h"
#include "serve_fetch_scenes.h"
#include "watched.h"

/* ---- a full worker pool, and reads that come from disk, if a scene requires it ---- */

static bool pool_is_full;

bool __real_log_range_warm(const struct log_range *range);
bool __wrap_log_range_warm(const struct log_range *range);
bool __wrap_log_range_warm(const struct log_range *range) {
    __real_log_range_warm(range);
    return disk_played.cold;
}
bool __real_iopool_submit(struct iopool *p, struct iojob *job);
bool __wrap_iopool_submit(struct iopool *p, struct iojob *job);
bool __wrap_iopool_submit(struct iopool *p, struct iojob *job) {
    return !pool_is_full && __real_iopool_submit(p, job);
}

static struct log *moves_meanwhile; /* between the check of its end and the wait for it */
bool __real_log_wait(struct log *log, struct log_waiter *waiter);
bool __wrap_log_wait(struct log *log, struct log_waiter *waiter);
bool __wrap_log_wait(struct log *log, struct log_waiter *waiter) {
    if (log == moves_meanwhile) {
        moves_meanwhile = NULL;
        append(log, -1, -1, 0);
    }
    return __real_log_wait(log, waiter);
}

/* ---- bytes ---- */

static void check_rows(const struct fetching *f, const struct fetched *rows, int count) {
    struct serve_request r;
    answered(&r, f);
    CHECK_FETCHED(&r, f->version, rows, count);
}

static void bytes(void) {
    open_both(true);
    for (int i = 0; i < 3; i++) append(a.logs[0], -1, -1, 0);
    for (int i = 0; i < 2; i++) append(a.logs[1], -1, -1, 0);
    const int32_t one = (int32_t)row_of(&a, 0, 0, 1).len;
    struct asked asked[] = {ASKED("b", 0), ASKED("a", 0), ASKED("a", 1)};
    struct fetched rows[] = {row_of(&b, 0, 0, 0), row_of(&a, 0, 0, 3), row_of(&a, 1, 0, 2)};
#define OF(max, ...) FETCHING(VERSION, asked, 3, .bytes_max = max, __VA_ARGS__)
    check_rows(&OF(5 * one, .bytes_min = 5 * one), rows, 3);
    rows[2] = row_of(&a, 1, 0, 1);
    check_rows(&OF(5 * one - 1), rows, 3);
    check_rows(&OF(4 * one), rows, 3);
    rows[1] = row_of(&a, 0, 0, 2);
    rows[2] = row_of(&a, 1, 0, 0);
    check_rows(&OF(2 * one + 1), rows, 3);
    /* The first batch of the first partition with data is always complete. */
    rows[1] = row_of(&a, 0, 0, 1);
    check_rows(&OF(1), rows, 3);
    check_rows(&OF(0), rows, 3);
    asked[1].bytes_max = -5;
    rows[2] = row_of(&a, 1, 0, 2);
    check_rows(&OF(1 << 20), rows, 3);
    asked[1].bytes_max = 2 * one;
    asked[2].bytes_max = one - 1;
    rows[1] = row_of(&a, 0, 0, 2);
    rows[2] = row_of(&a, 1, 0, 0);
    check_rows(&OF(1 << 20), rows, 3);
    /* The broker's own limit. */
    asked[1].bytes_max = asked[2].bytes_max = 1 << 20;
    shared->limits.fetch_bytes_max = 4 * one;
    rows[1] = row_of(&a, 0, 0, 3);
    rows[2] = row_of(&a, 1, 0, 1);
    check_rows(&OF(1 << 20), rows, 3);
    delete_both();
}

/* ---- waiting ---- */

static void check_woken(const struct serve_request *r) {
    struct message woken;
    await_message(&woken);
    CHECK(woken.kind == MESSAGE_WAKE && woken.token == r->token && !message_waits());
}

static void waits(void) {
    struct serve_request r;
    open_both(true);
    append(a.logs[0], -1, -1, 0);
    const int32_t one = (int32_t)row_of(&a, 0, 0, 1).len;
    const struct asked asked[] = {ASKED("a", 0, .offset = 1), ASKED("b", 1)};
    const struct fetching f = FETCHING(VERSION, asked, 2, .wait_ms = 500, .bytes_min = 2 * one);
    write_fetch(&m, &f);
    request(&r, &m, FETCH, VERSION);
    r.received_ms = 1000;
    CHECK(driven(&r, serve_start(serve, &r)) == SERVE_WAIT);
    CHECK(r.deadline_ms == 1500 && r.exclusive && !r.body_needed && !message_waits());
    /* After a spurious wake-up it waits for the same; after too few bytes, for the rest. */
    CHECK(resumed(&r, SERVE_WOKEN) == SERVE_WAIT && r.deadline_ms == 1500);
    append(a.logs[0], -1, -1, 0);
    check_woken(&r);
    CHECK(resumed(&r, SERVE_WOKEN) == SERVE_WAIT && r.deadline_ms == 1500);
    CHECK(!message_waits());
    append(b.logs[1], -1, -1, 0);
    check_woken(&r);
    CHECK(resumed(&r, SERVE_WOKEN) == SERVE_ANSWER);
    struct fetched rows[] = {row_of(&a, 0, 1, 2), row_of(&b, 1, 0, 1)};
    CHECK_FETCHED(&r, VERSION, rows, 2);
    append(a.logs[0], -1, -1, 0);
    CHECK(!message_waits());
    /* At the deadline the response contains the available bytes. */
    const struct asked end[] = {ASKED("a", 0, .offset = 3), ASKED("b", 1)};
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, end, 2, .bytes_min = one + 1)) == SERVE_WAIT);
    CHECK(resumed(&r, SERVE_TIMEOUT) == SERVE_ANSWER);
    rows[0] = row_of(&a, 0, 3, 3);
    CHECK_FETCHED(&r, VERSION, rows, 2);
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, end, 2, .bytes_min = one + 1, .wait_ms = 1)) ==
          SERVE_WAIT);
    CHECK(abandoned(&r));
    /* A fetch without a wait is answered immediately, and so is one with an error. */
    check_rows(&FETCHING(VERSION, end, 2, .bytes_min = one + 1, .wait_ms = 0), rows, 2);
    check_rows(&FETCHING(VERSION, end, 2, .bytes_min = one + 1, .wait_ms = -1), rows, 2);
    /* So is one whose limit leaves no room for more: waiting cannot reach min.bytes. */
    const struct asked full[] = {ASKED("a", 0), ASKED("b", 1)};
    const struct fetched most[] = {row_of(&a, 0, 0, 2), row_of(&b, 1, 0, 0)};
    check_rows(&FETCHING(VERSION, full, 1, .bytes_min = 3 * one, .bytes_max = 2 * one + 1), most,
               1);
    check_rows(&FETCHING(VERSION, full, 2, .bytes_min = 3 * one, .bytes_max = 2 * one), most, 2);
    /* The limit of a partition does not count: others can grow. */
    const struct asked part[] = {ASKED("a", 0, .bytes_max = one)};
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, part, 1, .bytes_min = 2 * one)) == SERVE_WAIT);
    CHECK(abandoned(&r));
    log_become_follower(b.logs[1], 1);
    rows[1] = FETCH_REFUSED("b", 1, NOT_LEADER);
    check_rows(&FETCHING(VERSION, end, 2), rows, 2);
    /* The client has disconnected. */
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, end, 1)) == SERVE_WAIT);
    CHECK(abandoned(&r) && r.state == NULL);
    append(a.logs[0], -1, -1, 0);
    CHECK(!message_waits());
    delete_both();
}

/* An end that advances just before the wait is noticed. */
static void moved_meanwhile(void) {
    struct serve_request r;
    open_both(true);
    const struct asked asked[] = {ASKED("a", 0), ASKED("b", 1)};
    moves_meanwhile = b.logs[1];
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, asked, 2)) == SERVE_ANSWER);
    const struct fetched rows[] = {row_of(&a, 0, 0, 0), row_of(&b, 1, 0, 1)};
    CHECK_FETCHED(&r, VERSION, rows, 2);
    moves_meanwhile = b.logs[1];
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, asked, 2, .bytes_min = 1 << 20)) == SERVE_WAIT);
    CHECK(!message_waits());
    append(a.logs[0], -1, -1, 0);
    check_woken(&r);
    CHECK(abandoned(&r));
    delete_both();
}

/* If replicas lag behind, a reader waits for the high watermark to pass its offset. */
static void waits_for_replicas(void) {
    struct serve_request r;
    open_both(false);
    for (int i = 0; i < 3; i++) append(a.logs[0], -1, -1, 0);
    const struct asked asked = ASKED("a", 0, .offset = 2);
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, &asked, 1)) == SERVE_WAIT);
    log_advance_high_watermark(a.logs[0], 1);
    log_advance_high_watermark(a.logs[0], 2);
    CHECK(!message_waits());
    log_advance_high_watermark(a.logs[0], 3);
    check_woken(&r);
    CHECK(resumed(&r, SERVE_WOKEN) == SERVE_ANSWER);
    const struct fetched row = row_of(&a, 0, 2, 3);
    CHECK_FETCHED(&r, VERSION, &row, 1);
    delete_both();
}

static void rights(void) {
    struct serve_request r;
    open_both(true);
    append(a.logs[0], -1, -1, 0);
    const struct asked asked[] = {ASKED("z", 0), ASKED("z", 1), ASKED("a", 0), ASKED("z", 2)};
    struct fetched rows[] = {FETCH_REFUSED("z", 0, UNKNOWN_TOPIC, .aborted = 0),
                             FETCH_REFUSED("z", 1, UNKNOWN_TOPIC, .aborted = 0),
                             row_of(&a, 0, 0, 1),
                             FETCH_REFUSED("z", 2, UNKNOWN_TOPIC, .aborted = 0)};
    /* An unknown topic is requested once, and does not shorten the wait. */
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, asked, 4)) == SERVE_MISS);
    CHECK(r.missing_count == 1 && r.missing[0].name_len == 1);
    r.missing[0].error = UNKNOWN_TOPIC;
    CHECK(resumed(&r, SERVE_GRANTED) == SERVE_ANSWER);
    CHECK_FETCHED(&r, VERSION, rows, 4);
    const struct asked waits_for[] = {ASKED("z", 0), ASKED("a", 0, .offset = 1)};
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, waits_for, 2)) == SERVE_MISS);
    r.missing[0].error = UNKNOWN_TOPIC;
    CHECK(resumed(&r, SERVE_GRANTED) == SERVE_WAIT);
    append(a.logs[0], -1, -1, 0);
    check_woken(&r);
    CHECK(resumed(&r, SERVE_WOKEN) == SERVE_ANSWER);
    rows[1] = row_of(&a, 0, 1, 2);
    CHECK_FETCHED(&r, VERSION, rows, 2);
    /* By itself it is answered immediately, because there is nothing to wait for. */
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, asked, 2)) == SERVE_MISS && r.missing_count == 1);
    r.missing[0].error = STORAGE;
    CHECK(resumed(&r, SERVE_GRANTED) == SERVE_ANSWER);
    const struct fetched failed[] = {FETCH_REFUSED("z", 0, STORAGE),
                                     FETCH_REFUSED("z", 1, STORAGE)};
    CHECK_FETCHED(&r, VERSION, failed, 2);
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, asked, 1)) == SERVE_MISS);
    r.missing[0].error = UNKNOWN_TOPIC;
    CHECK(resumed(&r, SERVE_GRANTED) == SERVE_ANSWER);
    CHECK_FETCHED(&r, VERSION, rows, 1);
    /* A principal that may only write needs a verdict. */
    grants_void(grants);
    CHECK(grants_allow(grants, 0, a.id, GRANT_WRITE) == 0);
    const struct fetched refused = FETCH_REFUSED("a", 0, REFUSED, .aborted = 0);
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, &asked[2], 1)) == SERVE_MISS);
    CHECK(r.missing_count == 1 && r.missing_right == GRANT_READ);
    r.missing[0].error = REFUSED;
    CHECK(resumed(&r, SERVE_GRANTED) == SERVE_ANSWER);
    CHECK_FETCHED(&r, VERSION, &refused, 1);
    /* Without a verdict it is requested again, and finally the client must retry. */
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, &asked[2], 1)) == SERVE_MISS);
    for (int i = 0; i < GRANT_REQUEST_ROUNDS_MAX; i++) {
        CHECK(r.missing_count == 1);
        CHECK(resumed(&r, SERVE_GRANTED) == SERVE_MISS);
    }
    CHECK(resumed(&r, SERVE_GRANTED) == SERVE_ANSWER);
    const struct fetched again = FETCH_REFUSED("a", 0, NOT_LEADER);
    CHECK_FETCHED(&r, VERSION, &again, 1);
    delete_both();
}

/* If ACLs are revoked while a request waits, new verdicts are requested before it continues. */
static void voided(void) {
    struct serve_request r;
    open_both(true);
    const struct asked asked[] = {ASKED("a", 0), ASKED("b", 0)};
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, asked, 2)) == SERVE_WAIT);
    CHECK(grants_allow(grants, 9, b.id, GRANT_READ) == 0); /* a change that revokes nothing */
    CHECK(resumed(&r, SERVE_WOKEN) == SERVE_WAIT);
    grants_void(grants);
    CHECK(grants_allow(grants, 0, b.id, GRANT_READ) == 0);
    append(a.logs[0], -1, -1, 0);
    check_woken(&r);
    CHECK(resumed(&r, SERVE_WOKEN) == SERVE_MISS && r.missing_count == 1);
    append(b.logs[0], -1, -1, 0);
    CHECK(!message_waits()); /* nothing wakes it before */
    r.missing[0].error = REFUSED;
    CHECK(resumed(&r, SERVE_GRANTED) == SERVE_ANSWER);
    struct fetched rows[] = {FETCH_REFUSED("a", 0, REFUSED, .aborted = 0), row_of(&b, 0, 0, 1)};
    CHECK_FETCHED(&r, VERSION, rows, 2);
    delete_both();
}

/* ---- the disk ---- */

static void await_io(struct serve_request *r) {
    struct message done;
    CHECK(r->deadline_ms == INT64_MAX);
    await_message(&done);
    CHECK(done.kind == MESSAGE_IO_DONE && done.token == r->token);
}

static int64_t cold_reads(struct log *log) {
    struct log_stats figures;
    log_read_stats(log, &figures);
    return figures.cold_reads;
}

static void cold(void) {
    struct serve_request r;
    open_both(true);
    append(a.logs[0], -1, -1, 0);
    append(b.logs[0], -1, -1, 0);
    const struct asked asked[] = {ASKED("a", 0), ASKED("b", 0, .offset = 1)};
    const struct fetched rows[] = {row_of(&a, 0, 0, 1), row_of(&b, 0, 1, 1)};
    const struct fetching f = FETCHING(VERSION, asked, 2);
    /* Pages that are not cached; and uncached index pages. */
    for (int i = 0; i < 2; i++) {
        disk_played.cold = i == 0;
        disk_played.blocked = i == 1;
        CHECK(start_fetch(&r, &m, &f) == SERVE_WAIT && r.exclusive);
        CHECK(resumed(&r, SERVE_WOKEN) == SERVE_WAIT);
        await_io(&r);
        CHECK(resumed(&r, SERVE_IO_DONE) == SERVE_ANSWER);
        CHECK_FETCHED(&r, VERSION, rows, 2);
        CHECK(cold_reads(a.logs[0]) == 1 + 2 * i && cold_reads(b.logs[0]) == 0);
        /* While no worker is free the request waits, and the reactor does not. */
        pool_is_full = true;
        CHECK(start_fetch(&r, &m, &f) == SERVE_WAIT);
        for (int n = 0; n < 3; n++) {
            CHECK(r.exclusive && r.deadline_ms > r.now_ms && r.deadline_ms < r.now_ms + 100);
            r.now_ms = r.deadline_ms;
            pool_is_full = n < 2;
            CHECK(resumed(&r, SERVE_TIMEOUT) == SERVE_WAIT);
        }
        await_io(&r);
        CHECK(resumed(&r, SERVE_IO_DONE) == SERVE_ANSWER);
        CHECK_FETCHED(&r, VERSION, rows, 2);
        /* Its client disconnects during the pause. */
        pool_is_full = true;
        CHECK(start_fetch(&r, &m, &f) == SERVE_WAIT);
        CHECK(serve_abandon(serve, &r) && r.state == NULL && !message_waits());
        pool_is_full = false;
        /* Its client disconnects in the meantime. */
        CHECK(start_fetch(&r, &m, &f) == SERVE_WAIT);
        CHECK(!serve_abandon(serve, &r) && r.state != NULL);
        struct message done;
        await_message(&done);
        CHECK(serve_abandon(serve, &r) && r.state == NULL);
        CHECK(cold_reads(a.logs[0]) == 3);
    }
    disk_played.cold = disk_played.blocked = false;
    delete_both();
}

/* The range's start had to be read from disk, and then it is too small: the request waits up to
 * its deadline. */
static void cold_and_little(void) {
    struct serve_request r;
    open_both(true);
    append(a.logs[0], -1, -1, 0);
    const int32_t one = (int32_t)row_of(&a, 0, 0, 1).len;
    for (int i = 0; i < 3; i++) {
        const struct asked asked[] = {ASKED("a", 0, .offset = i)};
        bool alone = i == 1, late = i == 2; /* no worker is free; the worker takes too long */
        disk_played.blocked = true;
        pool_is_full = alone;
        write_fetch(&m, &FETCHING(VERSION, asked, 1, .wait_ms = 500, .bytes_min = 2 * one));
        request(&r, &m, FETCH, VERSION);
        r.received_ms = r.now_ms = 1000;
        CHECK(serve_start(serve, &r) == SERVE_WAIT);
        if (alone) {
            pool_is_full = false;
            r.now_ms = r.deadline_ms;
            CHECK(r.now_ms < 1500 && resumed(&r, SERVE_TIMEOUT) == SERVE_WAIT);
        }
        await_io(&r);
        if (late) r.now_ms = 1500;
        CHECK(resumed(&r, SERVE_IO_DONE) == (late ? SERVE_ANSWER : SERVE_WAIT));
        disk_played.blocked = pool_is_full = false;
        if (!late) {
            CHECK(r.deadline_ms == 1500 && !message_waits());
            append(a.logs[0], -1, -1, 0);
            check_woken(&r);
            CHECK(resumed(&r, SERVE_WOKEN) == SERVE_ANSWER);
        }
        const struct fetched rows[] = {row_of(&a, 0, i, late ? i + 1 : i + 2)};
        CHECK_FETCHED(&r, VERSION, rows, 1);
    }
    delete_both();
}

/* Its file is removed while a worker reads it, together with the log's list of aborted
 * transactions. */
static void gone_meanwhile(void) {
    struct serve_request r;
    open_both(true);
    append(a.logs[0], 5, 0, BATCH_TRANSACTIONAL);
    append_marker(a.logs[0], 5, 0);
    CHECK(log_seal(a.logs[0], NOW) == 0);
    append(a.logs[0], -1, -1, 0);
    const struct asked asked[] = {ASKED("a", 0)};
    struct fetched rows[] = {row_of(&a, 0, 0, 2)};
    disk_played.cold = true;
    for (int gone = 0; gone < 2; gone++) {
        const struct fetching f = FETCHING(VERSION, asked, 1, .isolation = 1);
        CHECK(start_fetch(&r, &m, &f) == SERVE_WAIT);
        await_io(&r);
        if (gone == 1) CHECK(log_move_start(a.logs[0], 2, NOW) == 0);
        rows[0].aborted = gone == 1 ? 0 : 1;
        rows[0].of[0] = (struct log_aborted){5, 0};
        if (gone == 1) rows[0].len = 0;
        CHECK(resumed(&r, SERVE_IO_DONE) == SERVE_ANSWER);
        CHECK_FETCHED(&r, VERSION, rows, 1);
    }
    disk_played.cold = false;
    delete_both();
}

enum { SOME = 66000 /* aborted transactions: more than one response may contain */ };
static uint8_t sent[64 << 20];
static bool listed[2 * SOME];

/* Read one partition to its end with version 4. Each response lists the transactions aborted in
 * its range. Return the number of responses. */
static int read_aborted(int64_t end, bool (*is_aborted)(int64_t)) {
    struct serve_request r;
    int answers = 0;
    for (int64_t offset = 0; offset < end; answers++) {
        const struct asked asked[] = {ASKED("a", 0, .offset = offset, .bytes_max = 32 << 20)};
        answered(&r, &FETCHING(4, asked, 1, .bytes_max = 32 << 20, .isolation = 1));
        size_t len = sent_bytes(&r.reply, sent, sizeof sent);
        const uint8_t *at = sent + 4 + 4 + 4 + 4 + 3 + 4;
        CHECK(get_i32(at) == 0 && get_i16(at + 4) == 0 && get_i64(at + 14) == end);
        int32_t count = get_i32(at + 22);
        at += 26;
        memset(listed, 0, sizeof listed);
        for (int32_t i = 0; i < count; i++, at += 16) {
            int64_t first = get_i64(at + 8);
            CHECK(first >= 0 && first < 2 * SOME && !listed[first]);
            listed[first] = true;
        }
        CHECK(at + 4 + get_i32(at) == sent + len && get_i32(at) > 0);
        for (at += 4; at < sent + len;) {
            struct batch_header h;
            CHECK(batch_parse(at, (size_t)(sent + len - at), &h) == 0 && h.base_offset == offset);
            CHECK(listed[offset] == is_aborted(offset));
            offset = batch_last_offset(&h) + 1;
            at += batch_bytes(&h);
        }
        reply_clear(&r.reply);
    }
    return answers;
}

static bool is_even(int64_t offset) { return offset % 2 == 0; }
static bool is_early(int64_t offset) { return offset < SOME; }

/* A range with too many aborted transactions is split, and readers still reach the end. */
static void many_aborted(void) {
    shared->limits.fetch_bytes_max = 64 << 20;
    const struct log_config config = scene_config(64 << 20, 4096);
    open_topic(&a, "a", &config, true);
    open_topic(&b, "b", &config, true);
    for (int i = 0; i < SOME; i++) {
        append(a.logs[0], i, 0, BATCH_TRANSACTIONAL);
        append_marker(a.logs[0], i, 0);
    }
    CHECK(read_aborted(2 * SOME, is_even) == 2);
    CHECK(log_seal(a.logs[0], NOW) == 0 && log_flush(a.logs[0]) == 0);
    CHECK(read_aborted(2 * SOME, is_even) == 2);
    delete_both();
}

/* The same with transactions that were all open at the same time. */
static void many_open(void) {
    shared->limits.fetch_bytes_max = 64 << 20;
    const struct log_config config = scene_config(64 << 20, 4096);
    open_topic(&a, "a", &config, true);
    open_topic(&b, "b", &config, true);
    for (int i = 0; i < SOME; i++) append(a.logs[0], i, 0, BATCH_TRANSACTIONAL);
    CHECK(log_last_stable_offset(a.logs[0]) == 0);
    for (int i = 0; i < SOME; i++) append_marker(a.logs[0], (i * 7) % SOME, 0);
    CHECK(read_aborted(2 * SOME, is_early) == 2);
    delete_both();
}

/* A worker processes the partitions of a fetch with many partitions. */
static void wide(void) {
    struct serve_request r, other;
    open_both(true);
    append(a.logs[0], -1, -1, 0);
    append(b.logs[1], -1, -1, 0);
    const struct asked asked[] = {ASKED("a", 0), ASKED("a", 1), ASKED("b", 1)};
    const struct fetched rows[] = {row_of(&a, 0, 0, 1), row_of(&a, 1, 0, 0), row_of(&b, 1, 0, 1)};
    const struct fetching all = FETCHING(VERSION, asked, 3), one = FETCHING(VERSION, asked, 1);
    check_rows(&all, rows, 3);
    shared->limits.wide_partitions = 2;
    CHECK(start_fetch(&r, &m, &all) == SERVE_WAIT && r.exclusive && !r.body_needed);
    check_rows(&one, rows, 1); /* another connection gets its response immediately */
    await_io(&r);
    CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_WAIT);
    check_rows(&one, rows, 1);
    await_io(&r);
    CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_ANSWER);
    CHECK_FETCHED(&r, VERSION, rows, 3);
    /* Each of its jobs waits while no worker is free. */
    for (int step = 0; step < 2; step++) {
        pool_is_full = true;
        if (step == 0)
            CHECK(start_fetch(&r, &m, &all) == SERVE_WAIT);
        else
            CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_WAIT);
        CHECK(r.deadline_ms > r.now_ms && r.deadline_ms < r.now_ms + 100);
        CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_WAIT && !message_waits());
        pool_is_full = false;
        CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_WAIT);
        await_io(&r);
    }
    CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_ANSWER);
    CHECK_FETCHED(&r, VERSION, rows, 3);
    /* Its client disconnects while a job runs, and while it waits. */
    CHECK(start_fetch(&r, &m, &all) == SERVE_WAIT && !serve_abandon(serve, &r));
    await_io(&r);
    CHECK(!serve_abandon(serve, &r));
    await_io(&r);
    CHECK(serve_abandon(serve, &r) && r.state == NULL);
    pool_is_full = true;
    CHECK(start_fetch(&r, &m, &all) == SERVE_WAIT && serve_abandon(serve, &r) && r.state == NULL);
    pool_is_full = false;
    /* An end that advances while the job runs causes another check. */
    CHECK(start_fetch(&other, &m, &FETCHING(VERSION, asked, 3, .bytes_min = 1 << 20)) ==
          SERVE_WAIT);
    CHECK(serve_resume(serve, &other, SERVE_WOKEN) == SERVE_WAIT);
    await_io(&other);
    CHECK(serve_resume(serve, &other, SERVE_IO_DONE) == SERVE_WAIT);
    await_io(&other);
    CHECK(serve_resume(serve, &other, SERVE_IO_DONE) == SERVE_WAIT && !message_waits());
    CHECK(other.deadline_ms == other.received_ms + WAIT_MS);
    CHECK(serve_resume(serve, &other, SERVE_TIMEOUT) == SERVE_WAIT);
    runs_apart = true;
    await_io(&other);
    CHECK(resumed(&other, SERVE_IO_DONE) == SERVE_ANSWER);
    CHECK_FETCHED(&other, VERSION, rows, 3);
    delete_both();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"bytes", bytes},
                  {"waits", waits},
                  {"moved_meanwhile", moved_meanwhile},
                  {"waits_for_replicas", waits_for_replicas},
                  {"rights", rights},
                  {"voided", voided},
                  {"cold", cold},
                  {"cold_and_little", cold_and_little},
                  {"gone_meanwhile", gone_meanwhile},
                  {"many_aborted", many_aborted},
                  {"many_open", many_open},
                  {"wide", wide}};
    CHECK(argc == 3 || argc == 4);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[2]) == 0) {
            scene_open(argv[1], disk_of(DISK_SYSTEM), 0);
            serve_meter(serve, apis);
            if (argc == 4) run_apart();
            scenes[i].play();
            scene_close();
            check_given_back();
            puts("ok");
        }
    return 0;
}
