/* Fetch sessions through the real serve: changed partitions, their order, and the end of
 * sessions. Usage: serve_sessions DIRECTORY SCENE [apart]. Exits with 0, or with 1 and a line on
 * stderr. */
#include "log_manager/log_manager.h"
#include "serve_fetch_scenes.h"
#include "watched.h"

static int32_t session_of(const struct serve_request *r) { return get_i32(r->reply.bytes + 15); }

static uint64_t sessions_open(void) {
    uint64_t count;
    serve_shared_stats(shared, &count);
    return count;
}

static int32_t session, epoch;

/* Send the next request of the session, and check the rows of its response. */
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
    /* Partitions with data are always included, all others only if they changed. */
    NEXT(1, row_of(&a, 0, 0, 1));
    next_of(&ASKED("a", 0, .offset = 1), 1, NULL, 0, 1 << 20, NULL, 0);
    NEXT_NONE();
    append(b.logs[0], -1, -1, 0);
    NEXT(1, row_of(&b, 0, 0, 1));
    CHECK(log_move_start(a.logs[0], 1, NOW) == 0); /* a new log start is a change */
    NEXT(2, row_of(&a, 0, 1, 1), row_of(&b, 0, 0, 1));
    next_of(&ASKED("b", 0, .offset = 1), 1, NULL, 0, 1 << 20, NULL, 0);
    /* An error is included every time, and its end is a change. */
    log_become_follower(b.logs[0], 1);
    NEXT(1, FETCH_REFUSED("b", 0, NOT_LEADER));
    NEXT(1, FETCH_REFUSED("b", 0, NOT_LEADER));
    CHECK(log_become_leader(b.logs[0], 2, 1) == 0);
    NEXT(1, row_of(&b, 0, 1, 1));
    NEXT_NONE();
    /* Fields of a partition in a request replace the session's. */
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
    /* A partition that got data moves to the end; the others report their offsets once. */
    const struct fetched first[] = {a0, a1, b0};
    next_of(NULL, 0, NULL, 0, 1, first, 3);
    const struct fetched second = row_of(&a, 1, 0, 1), third = row_of(&b, 0, 0, 1);
    next_of(NULL, 0, NULL, 0, 1, &second, 1);
    next_of(NULL, 0, NULL, 0, 1, &third, 1);
    next_of(NULL, 0, NULL, 0, 1, &a0, 1);
    /* Separated partitions of one topic get an entry each; here they are adjacent. */
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
    /* A partition that is listed again starts over. */
    const struct fetched turned[] = {all[1], all[0]};
    next_of(&asked[0], 1, NULL, 0, 1 << 20, turned, 2);
    /* A session without partitions ends. */
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
    /* A new session ends the previous one, and so does a request without a session. */
    int32_t before = session;
    answered(&r, &OF_SESSION(VERSION, .session_id = session, .session_epoch = 0));
    session = session_of(&r);
    CHECK(session != before && session != 0 && sessions_open() == 1);
    CHECK_FETCHED(&r, VERSION, rows, 2, .session_id = session);
    refuse(&OF_SESSION(VERSION, .session_id = before, .session_epoch = 2), NOT_FOUND);
    answered(&r, &OF_SESSION(VERSION, .session_id = session));
    CHECK_FETCHED(&r, VERSION, rows, 2);
    CHECK(sessions_open() == 0);
    /* As many sessions as slots; the next request is answered without one. */
    for (int i = 0; i < 4; i++) begin_session(asked, 2, rows);
    answered(&r, &OF_SESSION(VERSION, .session_epoch = 0));
    CHECK_FETCHED(&r, VERSION, rows, 2);
    CHECK(sessions_open() == 4);
    serve_tick(serve, INT64_MAX / 2);
    CHECK(sessions_open() == 0);
    /* A session that ends during a wait still gets its response. */
    begin_session(asked, 2, rows);
    CHECK(start_fetch(&r, &m, &FETCHING(VERSION, NULL, 0, .session_id = session,
                                        .session_epoch = 1)) == SERVE_WAIT);
    struct serve_request other;
    answered(&other, &OF_SESSION(VERSION, .session_id = session));
    CHECK_FETCHED(&other, VERSION, rows, 2);
    CHECK(resumed(&r, SERVE_TIMEOUT) == SERVE_ANSWER);
    CHECK_FETCHED(&r, VERSION, NULL, 0, .session_id = session);
    CHECK(sessions_open() == 0);
    delete_both();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"news", news},
                  {"turns", turns},
                  {"forgotten", forgotten},
                  {"ended", ended}};
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
