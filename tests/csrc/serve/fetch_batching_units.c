/* The delay of short responses that wait for more, with a simulated clock. Exits with 0, or with
 * 1 and a line on stderr. */
#include "serve/fetch_batching.h"
#include "scenes.h"

enum { BYTES = 10000, MS_MAX = 5 };

/* Answer this many readers in this millisecond. */
static void answer_all(struct gather *g, uint32_t readers, int64_t now_ms) {
    for (uint32_t reader = 0; reader < readers; reader++)
        gather_answered(g, reader, BYTES, now_ms);
}

static void few_readers_never_wait(void) {
    struct gather g;
    gather_init(&g, MS_MAX);
    for (int64_t now_ms = 1000; now_ms < 3000; now_ms++) {
        for (int i = 0; i < 100; i++) answer_all(&g, GATHER_READERS_MIN - 1, now_ms);
        CHECK(gather_until(&g, now_ms + 1) == 0);
    }
}

static void many_readers_at_a_low_rate_never_wait(void) {
    struct gather g;
    gather_init(&g, MS_MAX);
    for (int64_t now_ms = 1000; now_ms < 3000; now_ms += 32) {
        CHECK(gather_until(&g, now_ms) == 0);
        answer_all(&g, 64, now_ms);
    }
}

static void who_is_woken_together_is_answered_together(void) {
    struct gather g;
    gather_init(&g, MS_MAX);
    for (uint32_t reader = 0; reader < 500; reader++) {
        CHECK(gather_until(&g, 1000) == 0);
        gather_answered(&g, reader, BYTES, 1000);
    }
    CHECK(gather_until(&g, 1001) == 1001 + MS_MAX);
}

static void all_who_wait_wait_for_the_same_moment_and_no_longer_than_the_limit(void) {
    struct gather g;
    gather_init(&g, MS_MAX);
    int64_t now_ms = 1000;
    for (int turn = 0; turn < 100; turn++) {
        answer_all(&g, 500, now_ms);
        int64_t until_ms = gather_until(&g, ++now_ms);
        CHECK(until_ms > now_ms && until_ms <= now_ms + MS_MAX);
        for (; now_ms < until_ms; now_ms++) CHECK(gather_until(&g, now_ms) == until_ms);
    }
    /* Some time after the flood, no response is delayed. */
    CHECK(gather_until(&g, now_ms + 4 * MS_MAX) == 0);
}

static void more_readers_wait_for_longer(void) {
    int64_t before_ms = 0;
    for (uint32_t readers = 20; readers <= 60; readers += 20) {
        struct gather g;
        gather_init(&g, 1000);
        answer_all(&g, readers, 1000);
        int64_t until_ms = gather_until(&g, 1001);
        CHECK(until_ms > before_ms);
        before_ms = until_ms;
    }
}

static void nobody_waits_where_that_is_the_setting(void) {
    struct gather g;
    gather_init(&g, 0);
    for (int64_t now_ms = 1; now_ms < 100; now_ms++) {
        answer_all(&g, 500, now_ms);
        CHECK(gather_until(&g, now_ms) == 0);
    }
    CHECK(gather_readers(&g) == 64);
}

static void readers_that_have_left_do_not_count(void) {
    struct gather g;
    gather_init(&g, MS_MAX);
    answer_all(&g, 64, 1000);
    CHECK(gather_readers(&g) == 64);
    gather_answered(&g, 1, BYTES, 1000 + 3 * GATHER_WINDOW_MS);
    CHECK(gather_readers(&g) == 1);
}

/* For about 900 KB: 16 times 200 us, by the model of gather.h. */
enum { LONG_BYTES = 920000, LONG_NS = 3200000 };

static void answer_long(struct gather *g, uint32_t readers, int64_t now_ms) {
    CHECK((int64_t)GATHER_SHARE * (GATHER_ANSWER_NS + LONG_BYTES / GATHER_BYTES_PER_NS) == LONG_NS);
    for (uint32_t reader = 0; reader < readers; reader++)
        gather_answered(g, reader, LONG_BYTES, now_ms);
}

static void the_wait_is_what_is_owed_in_whole_milliseconds(void) {
    struct gather g;
    gather_init(&g, 1000);
    answer_long(&g, GATHER_READERS_MIN, 1000); /* 12.8 ms */
    CHECK(gather_until(&g, 1001) == 1001 + 11 && gather_until(&g, 1011) == 1012);
    /* The rest of a millisecond is carried over and added to new costs: 0.8 and 5 times 0.288. */
    CHECK(gather_until(&g, 1012) == 0);
    answer_all(&g, 5, 1012);
    CHECK(gather_until(&g, 1013) == 1014);
    /* Elapsed time pays off the whole debt, but builds no credit. */
    CHECK(gather_until(&g, 1100) == 0);
    answer_long(&g, GATHER_READERS_MIN, 1100);
    CHECK(gather_until(&g, 1101) == 1112);
}

static void what_is_owed_has_a_limit(void) {
    struct gather g;
    gather_init(&g, MS_MAX);
    for (int i = 0; i < 100; i++) answer_long(&g, 64, 1000);
    CHECK(gather_until(&g, 1001) == 1001 + MS_MAX);
    CHECK(gather_until(&g, 1006) == 1010); /* six of 10 ms are over */
    CHECK(gather_until(&g, 1010) == 0);
    gather_init(&g, 1);
    answer_long(&g, 64, 1000);
    CHECK(gather_until(&g, 1001) == 1002);
}

static void a_reader_counts_for_its_window_and_the_next(void) {
    struct gather g;
    gather_init(&g, MS_MAX);
    for (uint32_t reader = 0; reader < 4; reader++)
        gather_answered(&g, reader, BYTES, 1000 + reader);
    CHECK(gather_readers(&g) == 4);
    gather_answered(&g, 9, BYTES, 1000 + GATHER_WINDOW_MS);
    CHECK(gather_readers(&g) == 5);
    gather_answered(&g, 10, BYTES, 1000 + 2 * GATHER_WINDOW_MS);
    CHECK(gather_readers(&g) == 2);
    gather_answered(&g, 11, BYTES, 1000 + 4 * GATHER_WINDOW_MS);
    CHECK(gather_readers(&g) == 1);
}

int main(void) {
    the_wait_is_what_is_owed_in_whole_milliseconds();
    what_is_owed_has_a_limit();
    a_reader_counts_for_its_window_and_the_next();
    few_readers_never_wait();
    many_readers_at_a_low_rate_never_wait();
    who_is_woken_together_is_answered_together();
    all_who_wait_wait_for_the_same_moment_and_no_longer_than_the_limit();
    more_readers_wait_for_longer();
    nobody_waits_where_that_is_the_setting();
    readers_that_have_left_do_not_count();
    puts("ok");
    return 0;
}
