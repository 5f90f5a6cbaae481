/* Fetch through the real serve: sessions, how many bytes an answer has, what it waits for, what is
 * read from the disk first. Usage: serve_fetches DIRECTORY SCENE. Exit 0, or 1 with a line on
 * stderr. */
#include "serve_messages.h"
#include "watched.h"

enum { VERSION = 12, UNKNOWN_TOPIC = 3, NOT_LEADER = 6, REFUSED = 29, STORAGE = 56, FENCED = 74 };

static struct meter_api apis[2];
static struct held_topic a, b;
static struct body m;
static uint8_t stored[LOG_WAIT_FLUSHED + 1][1 << 16];

/* ---- a worker pool that is full, and reads that come from the disk, when a scene says so ---- */

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

static struct log *moves_meanwhile; /* between a look at its end and the wait for it */
bool __real_log_wait(struct log *log, struct log_waiter *waiter);
bool __wrap_log_wait(struct log *log, struct log_waiter *waiter);
bool __wrap_log_wait(struct log *log, struct log_waiter *waiter) {
    if (log == moves_meanwhile) {
        moves_meanwhile = NULL;
        append(log, -1, -1, 0);
    }
    return __real_log_wait(log, waiter);
}

/* ---- */

static void open_both(bool alone) {
    const struct log_config config = scene_config(1 << 22, 4096);
    open_topic(&a, "a", &config, alone);
    open_topic(&b, "b", &config, alone);
}

static void delete_both(void) {
    delete_topic(&a);
    delete_topic(&b);
}

/* A row of what lies in the log from `offset` up to `next`, both of batches. */
static struct fetched row_of(struct held_topic *t, int32_t partition, int64_t offset,
                             int64_t next) {
    static int used;
    uint8_t *to = stored[used++ % 4];
    struct log *log = t->logs[partition];
    struct fetched row = FETCHED(t->name, partition, .high = log_high_watermark(log),
                                 .stable = log_last_stable_offset(log),
                                 .start = log_start_offset(log), .records = to);
    while (offset < next) {
        struct log_range range;
        CHECK(log_read(log, offset, LOG_BOUND_END, 1, true, &range) == 0 && range.length > 0);
        CHECK(log_range_read(&range, to + row.len, (size_t)range.length, range.position) ==
              range.length);
        row.len += (size_t)range.length;
        offset = range.next_offset;
        log_range_release(&range);
    }
    return row;
}

static int32_t session_of(const struct serve_request *r) { return get_i32(r->reply.bytes + 15); }

static uint64_t sessions_open(void) {
    uint64_t count;
    serve_shared_stats(shared, &count);
    return count;
}

static void answered(struct serve_request *r, const struct fetching *f) {
    CHECK(start_fetch(r, &m, f) == SERVE_ANSWER && r->missing_count == 0);
}

/* ---- sessions ---- */

static int32_t session, epoch;

/* The next request of the session, and the rows of its answer. */
static void next_of(const struct asked *asked, int count, const struct asked *forgotten,
                    int forgotten_count, int32_t bytes_max, const struct fetched *rows,
                    int row_count) {
    struct serve_request r;
    answered(&r, &FETCHING(VERSION, asked, count, .wait_ms = 0, .session_id = session,
                           .session_epoch = epoch++, .forgotten = forgotten,
                           .forgotten_count = forgotten_count, .bytes_max = bytes_max));
    CHECK_FETCHED(&r, VERSION, rows, row_count, .session_id = session);
}
#define NEXT(count, ...)                                                                           \
    next_of(NULL, 0, NULL, 0, 1 << 20, (const struct fetched[]){__VA_ARGS__}, count)
#define NEXT_NONE() next_of(NULL, 0, NULL, 0, 1 << 20, NULL, 0)
#define CHANGE(asked, count, ...)                                                                  \
    next_of(&asked, 1, NULL, 0, 1 << 20, (const struct fetched[]){__VA_ARGS__}, count)

static void begin_session(const struct asked *asked, int count, const struct fetched *rows) {
    struct serve_request r;
    answered(&r, &FETCHING(VERSION, asked, count, .wait_ms = 0, .session_epoch = 0));
    session = session_of(&r);
    epoch = 1;
    CHECK(session > 0);
    CHECK_FETCHED(&r, VERSION, rows, count, .session_id = session);
}

static void news(void) {
    open_both(true);
    append(a.logs[0], -1, -1, 0);
    const struct asked asked[] = {ASKED("a", 0), ASKED("a", 1), ASKED("b", 0)};
    const struct fetched all[] = {row_of(&a, 0, 0, 1), row_of(&a, 1, 0, 0), row_of(&b, 0, 0, 0)};
    begin_session(asked, 3, all);
    CHECK(sessions_open() == 1);
    /* Data is news each time, and nothing else is. */
    NEXT(1, row_of(&a, 0, 0, 1));
    next_of(&ASKED("a", 0, .offset = 1), 1, NULL, 0, 1 << 20, NULL, 0);
    NEXT_NONE();
    append(b.logs[0], -1, -1, 0);
    NEXT(1, row_of(&b, 0, 0, 1));
    CHECK(log_move_start(a.logs[0], 1, NOW) == 0); /* so is a new start */
    NEXT(2, row_of(&a, 0, 1, 1), row_of(&b, 0, 0, 1));
    next_of(&ASKED("b", 0, .offset = 1), 1, NULL, 0, 1 << 20, NULL, 0);
    /* An error is said each time, and what is right again is news. */
    log_become_follower(b.logs[0], 1);
    NEXT(1, FETCH_REFUSED("b", 0, NOT_LEADER));
    NEXT(1, FETCH_REFUSED("b", 0, NOT_LEADER));
    CHECK(log_become_leader(b.logs[0], 2, 1) == 0);
    NEXT(1, row_of(&b, 0, 1, 1));
    NEXT_NONE();
    /* What a request says of a partition counts from then on. */
    CHANGE(ASKED("b", 0, .offset = 1, .leader_epoch = 1), 1, FETCH_REFUSED("b", 0, FENCED));
    NEXT(1, FETCH_REFUSED("b", 0, FENCED));
    struct fetched diverging = row_of(&b, 0, 1, 1);
    diverging.diverging_epoch = 0;
    diverging.diverging_end = 1;
    CHANGE(ASKED("b", 0, .offset = 5, .last_fetched_epoch = 1), 1, diverging);
    CHANGE(ASKED("b", 0), 1, row_of(&b, 0, 0, 1));
    delete_both();
}

static void turns(void) {
    open_both(true);
    const struct asked asked[] = {ASKED("a", 0), ASKED("a", 1), ASKED("b", 0)};
    const struct fetched none[] = {row_of(&a, 0, 0, 0), row_of(&a, 1, 0, 0), row_of(&b, 0, 0, 0)};
    begin_session(asked, 3, none);
    for (int i = 0; i < PARTITIONS; i++) append(a.logs[i], -1, -1, 0);
    append(b.logs[0], -1, -1, 0);
    struct fetched a0 = row_of(&a, 0, 0, 1), a1 = row_of(&a, 1, 0, 0), b0 = row_of(&b, 0, 0, 0);
    /* Who got data goes last; the others only say how far they are, once. */
    const struct fetched first[] = {a0, a1, b0};
    next_of(NULL, 0, NULL, 0, 1, first, 3);
    const struct fetched second = row_of(&a, 1, 0, 1), third = row_of(&b, 0, 0, 1);
    next_of(NULL, 0, NULL, 0, 1, &second, 1);
    next_of(NULL, 0, NULL, 0, 1, &third, 1);
    next_of(NULL, 0, NULL, 0, 1, &a0, 1);
    /* Partitions of one topic that are not neighbours have an entry each; here they are. */
    const struct fetched whole[] = {second, third, a0};
    next_of(NULL, 0, NULL, 0, 1 << 20, whole, 3);
    delete_both();
}

static void forgotten(void) {
    open_both(true);
    append(a.logs[0], -1, -1, 0);
    append(b.logs[1], -1, -1, 0);
    const struct asked asked[] = {ASKED("a", 0), ASKED("b", 1)};
    const struct fetched all[] = {row_of(&a, 0, 0, 1), row_of(&b, 1, 0, 1)};
    begin_session(asked, 2, all);
    const struct asked gone[] = {ASKED("a", 0), ASKED("a", 1), ASKED("x", 0)};
    next_of(NULL, 0, gone, 3, 1 << 20, &all[1], 1);
    NEXT(1, all[1]);
    /* What is named again begins anew. */
    const struct fetched turned[] = {all[1], all[0]};
    next_of(&asked[0], 1, NULL, 0, 1 << 20, turned, 2);
    /* A session of nothing is at its end. */
    struct serve_request r;
    answered(&r, &FETCHING(VERSION, NULL, 0, .session_id = session, .session_epoch = epoch,
                           .forgotten = asked, .forgotten_count = 2));
    CHECK_FETCHED(&r, VERSION, NULL, 0, .session_id = 0);
    CHECK(sessions_open() == 0);
    delete_both();
}

static void refuse(const struct fetching *f, int16_t error) {
    struct serve_request r;
    uint64_t before = meter_read(&apis[FETCH].errors[error + 1]);
    answered(&r, f);
    CHECK_FETCHED(&r, f->version, NULL, 0, .error = error);
    CHECK(meter_read(&apis[FETCH].errors[error + 1]) == before + 1);
}

static void ended(void) {
    enum { NOT_FOUND = 70, BAD_EPOCH = 71, OTHER_KIND = 106 };
    struct serve_request r;
    open_both(true);
    const struct asked asked[] = {ASKED("a", 0), ASKED("b", 0)};
    const struct fetched rows[] = {row_of(&a, 0, 0, 0), row_of(&b, 0, 0, 0)};
#define OF_SESSION(version, ...) FETCHING(version, asked, 2, .wait_ms = 0, __VA_ARGS__)
    begin_session(asked, 2, rows);
    refuse(&OF_SESSION(VERSION, .session_id = session + 1, .session_epoch = 1), NOT_FOUND);
    refuse(&OF_SESSION(VERSION, .session_id = session, .session_epoch = 2), BAD_EPOCH);
    refuse(&OF_SESSION(13, .session_id = session, .session_epoch = 1), OTHER_KIND);
    NEXT_NONE();
    /* To begin anew ends the one before, to ask without one does, too. */
    int32_t before = session;
    answered(&r, &OF_SESSION(VERSION, .session_id = session, .session_epoch = 0));
    session = session_of(&r);
    CHECK(session != before && session != 0 && sessions_open() == 1);
    CHECK_FETCHED(&r, VERSION, rows, 2, .session_id = session);
    refuse(&OF_SESSION(VERSION, .session_id = before, .session_epoch = 2), NOT_FOUND);
    answered(&r, &OF_SESSION(VERSION, .session_id = session));
    CHECK_FETCHED(&r, VERSION, rows, 2);
    CHECK(sessions_open() == 0);
    /* As many as there are slots; the next one is answered without. */
    for (int i = 0; i < 4; i++) begin_session(asked, 2, rows);
    answered(&r, &OF_SESSION(VERSION, .session_epoch = 0));
    CHECK_FETCHED(&r, VERSION, rows, 2);
    CHECK(sessions_open() == 4);
    serve_tick(serve, INT64_MAX / 2);
    CHECK(sessions_open() == 0);
    /* One that ends while it waits is answered all the same, and gone. */
    begin_session(asked, 2, rows);
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, NULL, 0, .session_id = session,
                                        .session_epoch = 1)) == SERVE_WAIT);
    struct serve_request other;
    answered(&other, &OF_SESSION(VERSION, .session_id = session));
    CHECK_FETCHED(&other, VERSION, rows, 2);
    CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_ANSWER);
    CHECK_FETCHED(&r, VERSION, NULL, 0, .session_id = session);
    CHECK(sessions_open() == 0);
    delete_both();
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
    /* A first batch is answered whole, of the first partition that has one. */
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
    CHECK(serve_start(serve, &r) == SERVE_WAIT);
    CHECK(r.deadline_ms == 1500 && r.exclusive && !r.body_needed && !message_waits());
    /* Woken for nothing, it waits for the same; for too little, for what is still missing. */
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_WAIT && r.deadline_ms == 1500);
    append(a.logs[0], -1, -1, 0);
    check_woken(&r);
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_WAIT && r.deadline_ms == 1500);
    CHECK(!message_waits());
    append(b.logs[1], -1, -1, 0);
    check_woken(&r);
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
    struct fetched rows[] = {row_of(&a, 0, 1, 2), row_of(&b, 1, 0, 1)};
    CHECK_FETCHED(&r, VERSION, rows, 2);
    append(a.logs[0], -1, -1, 0);
    CHECK(!message_waits());
    /* At the deadline there is what there is. */
    const struct asked end[] = {ASKED("a", 0, .offset = 3), ASKED("b", 1)};
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, end, 2, .bytes_min = one + 1)) == SERVE_WAIT);
    CHECK(serve_resume(serve, &r, SERVE_TIMEOUT) == SERVE_ANSWER);
    rows[0] = row_of(&a, 0, 3, 3);
    CHECK_FETCHED(&r, VERSION, rows, 2);
    /* Who does not wait is answered at once; an error is worth an answer, too. */
    check_rows(&FETCHING(VERSION, end, 2, .bytes_min = one + 1, .wait_ms = 0), rows, 2);
    check_rows(&FETCHING(VERSION, end, 2, .bytes_min = one + 1, .wait_ms = -1), rows, 2);
    log_become_follower(b.logs[1], 1);
    rows[1] = FETCH_REFUSED("b", 1, NOT_LEADER);
    check_rows(&FETCHING(VERSION, end, 2), rows, 2);
    /* Nobody is there any more. */
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, end, 1)) == SERVE_WAIT);
    CHECK(serve_abandon(serve, &r) && r.state == NULL);
    append(a.logs[0], -1, -1, 0);
    CHECK(!message_waits());
    delete_both();
}

/* An end that moves just before it is waited for is seen. */
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
    CHECK(serve_abandon(serve, &r));
    delete_both();
}

/* Where replicas lack what a reader asks for it waits for the high watermark to pass that. */
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
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
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
    /* What is unknown is asked for once, and hastens nothing. */
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, asked, 4)) == SERVE_MISS);
    CHECK(r.missing_count == 1 && r.missing[0].name_len == 1);
    r.missing[0].error = UNKNOWN_TOPIC;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    CHECK_FETCHED(&r, VERSION, rows, 4);
    const struct asked waits_for[] = {ASKED("z", 0), ASKED("a", 0, .offset = 1)};
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, waits_for, 2)) == SERVE_MISS);
    r.missing[0].error = UNKNOWN_TOPIC;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_WAIT);
    append(a.logs[0], -1, -1, 0);
    check_woken(&r);
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_ANSWER);
    rows[1] = row_of(&a, 0, 1, 2);
    CHECK_FETCHED(&r, VERSION, rows, 2);
    /* Alone it is answered at once, as there is nothing to wait for. */
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, asked, 2)) == SERVE_MISS && r.missing_count == 1);
    r.missing[0].error = STORAGE;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    const struct fetched failed[] = {FETCH_REFUSED("z", 0, STORAGE),
                                     FETCH_REFUSED("z", 1, STORAGE)};
    CHECK_FETCHED(&r, VERSION, failed, 2);
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, asked, 1)) == SERVE_MISS);
    r.missing[0].error = UNKNOWN_TOPIC;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    CHECK_FETCHED(&r, VERSION, rows, 1);
    /* Who may only write is told so. */
    CHECK(grants_allow(grants, 0, a.id, GRANT_WRITE) == 0);
    const struct fetched refused = FETCH_REFUSED("a", 0, REFUSED, .aborted = 0);
    check_rows(&FETCHING(VERSION, &asked[2], 1), &refused, 1);
    /* Without a verdict it is asked for anew, and at last the client is to come again. */
    grants_void(grants);
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, &asked[2], 1)) == SERVE_MISS);
    for (int i = 0; i < MISSES_ROUNDS_MAX; i++) {
        CHECK(r.missing_count == 1);
        CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_MISS);
    }
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
    const struct fetched again = FETCH_REFUSED("a", 0, NOT_LEADER);
    CHECK_FETCHED(&r, VERSION, &again, 1);
    delete_both();
}

/* Rights that end while a request waits are asked for before it goes on. */
static void voided(void) {
    struct serve_request r;
    open_both(true);
    const struct asked asked[] = {ASKED("a", 0), ASKED("b", 0)};
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, asked, 2)) == SERVE_WAIT);
    CHECK(grants_allow(grants, 9, b.id, GRANT_READ) == 0); /* a change that takes nothing away */
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_WAIT);
    grants_void(grants);
    CHECK(grants_allow(grants, 0, b.id, GRANT_READ) == 0);
    append(a.logs[0], -1, -1, 0);
    check_woken(&r);
    CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_MISS && r.missing_count == 1);
    append(b.logs[0], -1, -1, 0);
    CHECK(!message_waits()); /* nothing wakes it meanwhile */
    r.missing[0].error = REFUSED;
    CHECK(serve_resume(serve, &r, SERVE_GRANTED) == SERVE_ANSWER);
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
    struct log_figures figures;
    log_figures_take(log, &figures);
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
    /* Pages that are not cached; and those that tell where a range is. */
    for (int i = 0; i < 2; i++) {
        disk_played.cold = i == 0;
        disk_played.blocked = i == 1;
        CHECK(start_fetch(&r, &m, &f) == SERVE_WAIT && r.exclusive);
        CHECK(serve_resume(serve, &r, SERVE_WOKEN) == SERVE_WAIT);
        await_io(&r);
        CHECK(serve_resume(serve, &r, SERVE_IO_DONE) == SERVE_ANSWER);
        CHECK_FETCHED(&r, VERSION, rows, 2);
        CHECK(cold_reads(a.logs[0]) == 1 + i && cold_reads(b.logs[0]) == 0);
        /* Without a worker the reactor waits itself. */
        pool_is_full = true;
        CHECK(start_fetch(&r, &m, &f) == SERVE_ANSWER);
        CHECK_FETCHED(&r, VERSION, rows, 2);
        pool_is_full = false;
        /* Its client is gone meanwhile. */
        CHECK(start_fetch(&r, &m, &f) == SERVE_WAIT);
        CHECK(!serve_abandon(serve, &r) && r.state != NULL);
        struct message done;
        await_message(&done);
        CHECK(serve_abandon(serve, &r) && r.state == NULL);
        CHECK(cold_reads(a.logs[0]) == 2);
    }
    disk_played.cold = disk_played.blocked = false;
    delete_both();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"news", news},
                  {"turns", turns},
                  {"forgotten", forgotten},
                  {"ended", ended},
                  {"bytes", bytes},
                  {"waits", waits},
                  {"moved_meanwhile", moved_meanwhile},
                  {"waits_for_replicas", waits_for_replicas},
                  {"rights", rights},
                  {"voided", voided},
                  {"cold", cold}};
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
