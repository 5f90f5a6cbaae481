/* Client quotas in isolation, with simulated time. Usage: quotas_units SCENE. Exits with 0, or
 * with 1 and a line on stderr. */
#include <time.h>

#include "tables/quotas.h"
#include "watched.h"

enum { SAMPLES = 3, WINDOW_MS = 1000, LIMIT = 1000, SWEEP_AT = 1024, BUCKETS = 64 };

static const uint8_t *bytes_of(const char *text) { return (const uint8_t *)text; }

static struct quota_limit limit_of(const char *key, double per_second) {
    return (struct quota_limit){bytes_of(key), (uint32_t)strlen(key), per_second};
}

/* Install a client with one limit, and look it up. */
static struct quota_client *with_limit(struct quotas *q, const char *id, enum quota_kind kind,
                                       const char *key, double per_second) {
    struct quota_limit limits[QUOTA_KINDS] = {{0}};
    uint32_t len = (uint32_t)strlen(id);
    limits[kind] = limit_of(key, per_second);
    CHECK(quotas_install(q, 1, bytes_of(id), len, limits, 0) == 0);
    struct quota_client *c = quotas_client(q, 1, bytes_of(id), len);
    CHECK(c != NULL);
    return c;
}

static uint32_t clients_of(struct quotas *q) {
    uint32_t clients, rates;
    quotas_count(q, &clients, &rates);
    return clients;
}

static uint32_t rates_of(struct quotas *q) {
    uint32_t clients, rates;
    quotas_count(q, &clients, &rates);
    return rates;
}

/* With a limit of 1000 per second: the counted amount minus the milliseconds it is spread over. */
static void the_rate_is_spread_over_the_windows_that_passed(void) {
    static const struct {
        int64_t now_ms, over;
    } at[] = {{0, 98000},    {999, 97001},  {1000, 98000}, {1999, 97001},
              {2000, 98000}, {2500, 97500}, {3998, 96002}};
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    struct quota_client *c = with_limit(q, "c", QUOTA_PRODUCE, "k", LIMIT);
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 100000, 0) == at[0].over);
    for (size_t i = 1; i < sizeof at / sizeof *at; i++)
        CHECK(quota_client_charge(c, QUOTA_PRODUCE, 0, at[i].now_ms) == at[i].over);
    /* Three windows after the last one that a sample covers, the sample is dropped. */
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 0, 3999) == 0);
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 2000, 4000) == 0);
    quota_client_release(c);
    quotas_free(q);
}

/* A stream at 1.5 times the limit, for longer than the samples cover. */
static void a_steady_stream_is_over_by_the_same_time_and_again(uint32_t samples) {
    struct quotas *q = quotas_new(samples, WINDOW_MS);
    struct quota_client *c = with_limit(q, "c", QUOTA_PRODUCE, "k", LIMIT);
    for (uint32_t i = 0; i < 5 * samples; i++) {
        int32_t wait_ms = quota_client_charge(c, QUOTA_PRODUCE, LIMIT, (int64_t)i * WINDOW_MS);
        CHECK(wait_ms == (i + 1 < samples ? 0 : WINDOW_MS));
    }
    quota_client_release(c);
    quotas_free(q);
}

/* A sample that began early and continued for long is as old as its last value. */
static void a_window_goes_on_to_its_last_value(void) {
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    struct quota_client *c = with_limit(q, "c", QUOTA_PRODUCE, "k", LIMIT);
    for (int i = 0; i < 4; i++) {
        quota_client_count(c, QUOTA_PRODUCE, 0, i * WINDOW_MS);
        quota_client_count(c, QUOTA_PRODUCE, 2 * LIMIT, i * WINDOW_MS + 900);
    }
    /* Three windows' worth in the three seconds since the second sample began. */
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 0, 4 * WINDOW_MS) == 3 * WINDOW_MS);
    quota_client_release(c);
    quotas_free(q);
    /* With a single sample, a sudden amount is spread over a millisecond. */
    q = quotas_new(1, WINDOW_MS);
    c = with_limit(q, "c", QUOTA_PRODUCE, "k", LIMIT);
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 5, 0) == 4);
    quota_client_release(c);
    quotas_free(q);
}

static void streams(void) {
    a_window_goes_on_to_its_last_value();
    a_steady_stream_is_over_by_the_same_time_and_again(SAMPLES);
    a_steady_stream_is_over_by_the_same_time_and_again(11);
}

static void the_wait_is_rounded_and_has_an_end(void) {
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    struct quota_client *c = with_limit(q, "c", QUOTA_PRODUCE, "k", 100);
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 200, 0) == 0); /* exactly the limit */
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 1, 0) == 10);
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 0.06, 0) == 11);
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 1e15, 0) == INT32_MAX);
    quota_client_release(c);
    c = with_limit(q, "threads", QUOTA_REQUEST, "t", 100);
    CHECK(quota_client_charge(c, QUOTA_REQUEST, 299, 0) == 990);
    CHECK(quota_client_charge(c, QUOTA_REQUEST, 100, 0) == WINDOW_MS);
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 1e15, 0) == 0); /* without a limit */
    quota_client_count(c, QUOTA_PRODUCE, 1e15, 0);
    quota_client_count(c, QUOTA_REQUEST, -199, 0);
    CHECK(quota_client_charge(c, QUOTA_REQUEST, 0, 0) == 0);
    quota_client_release(c);
    quotas_free(q);
}

/* Without memory for a new window its values are added to the previous one; a first window
 * counts nothing. */
static void memory_that_runs_out_makes_samples_coarse(void) {
    struct quotas *q = quotas_new(11, WINDOW_MS);
    struct quota_client *c = with_limit(q, "c", QUOTA_PRODUCE, "k", LIMIT);
    blocks_left = 0;
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 1e9, 0) == 0);
    blocks_left = -1;
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 0, 0) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(quota_client_charge(c, QUOTA_PRODUCE, 10000, i * WINDOW_MS) == i * 10000);
    blocks_left = 0;
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 10000, 4 * WINDOW_MS) == 40000);
    blocks_left = -1;
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 10000, 5 * WINDOW_MS) == 50000);
    /* Five samples remain when the first is too old, and one of them has two windows' bytes. */
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 0, 11 * WINDOW_MS) == 40000);
    quota_client_release(c);
    quotas_free(q);
}

static void a_fetch_that_is_over_is_not_counted(void) {
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    struct quota_client *c = with_limit(q, "c", QUOTA_FETCH, "k", LIMIT);
    CHECK(quota_client_charge_fetch(c, 1999, 0) == 0);
    for (int i = 0; i < 3; i++) CHECK(quota_client_charge_fetch(c, 2001, 0) == 2000);
    CHECK(quota_client_charge_fetch(c, 1, 0) == 0);
    CHECK(quota_client_charge_fetch(c, 1, 0) == 1);
    /* A request that can never pass is admitted when nothing else counts, and counts then. */
    CHECK(quota_client_charge_fetch(c, 2001, 10000) == 0);
    CHECK(quota_client_charge_fetch(c, 1, 10000) == 2);
    CHECK(quota_client_charge_fetch(c, 2001, 10000) == 2002);
    CHECK(quota_client_fetch_max(c, 5000) == 2000);
    CHECK(quota_client_fetch_max(c, 2000) == 2000 && quota_client_fetch_max(c, 1500) == 1500);
    quota_client_release(c);
    c = with_limit(q, "free", QUOTA_PRODUCE, "p", LIMIT);
    CHECK(quota_client_charge_fetch(c, 1e15, 0) == 0 && quota_client_fetch_max(c, 7) == 7);
    quota_client_release(c);
    quotas_free(q);
}

static void clients_of_one_entity_share_its_rate(void) {
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    struct quota_client *a = with_limit(q, "a", QUOTA_PRODUCE, "shared", LIMIT);
    struct quota_client *b = with_limit(q, "b", QUOTA_PRODUCE, "shared", LIMIT);
    struct quota_client *c = with_limit(q, "c", QUOTA_PRODUCE, "sharee", LIMIT);
    struct quota_client *d = with_limit(q, "d", QUOTA_PRODUCE, "share", LIMIT);
    CHECK(clients_of(q) == 4 && rates_of(q) == 3);
    CHECK(quota_client_charge(a, QUOTA_PRODUCE, 2000, 0) == 0);
    CHECK(quota_client_charge(b, QUOTA_PRODUCE, 500, 0) == 500);
    CHECK(quota_client_charge(c, QUOTA_PRODUCE, 2000, 0) == 0);
    CHECK(quota_client_charge(d, QUOTA_PRODUCE, 2000, 0) == 0);
    quota_client_release(b);
    /* A new limit applies to all clients, and counted amounts stay. */
    b = with_limit(q, "b", QUOTA_PRODUCE, "shared", 2 * LIMIT);
    CHECK(clients_of(q) == 4 && rates_of(q) == 3);
    CHECK(quota_client_charge(a, QUOTA_PRODUCE, 2500, 0) == 500);
    quota_client_release(a);
    quota_client_release(b);
    quota_client_release(c);
    quota_client_release(d);
    quotas_free(q);
}

static void a_client_is_what_was_installed_last(void) {
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    CHECK(*quotas_generation(q) == 0);
    struct quota_limit limits[QUOTA_KINDS] = {{0}};
    quotas_void(q, true);
    uint32_t generation = *quotas_generation(q);
    CHECK(generation != 0);
    struct quota_client *c = with_limit(q, "ab", QUOTA_FETCH, "k", LIMIT);
    CHECK(quota_client_is(c, generation, 1, bytes_of("ab"), 2));
    CHECK(!quota_client_is(c, generation + 1, 1, bytes_of("ab"), 2));
    CHECK(!quota_client_is(c, generation, 2, bytes_of("ab"), 2));
    CHECK(!quota_client_is(c, generation, 1, bytes_of("ac"), 2));
    CHECK(!quota_client_is(c, generation, 1, bytes_of("ab"), 1));
    CHECK(quota_client_limited(c) && !quota_client_timed(c));
    CHECK(quotas_client(q, 2, bytes_of("ab"), 2) == NULL);
    CHECK(quotas_client(q, 1, bytes_of("a"), 1) == NULL);
    /* Installed again: holders of the previous object keep it. */
    CHECK(quotas_install(q, 1, bytes_of("ab"), 2, limits, 0) == 0 && clients_of(q) == 1);
    struct quota_client *next = quotas_client(q, 1, bytes_of("ab"), 2);
    CHECK(next != NULL && next != c && !quota_client_limited(next) && quota_client_limited(c));
    quota_client_release(c);
    quota_client_release(next);
    quotas_void(q, true);
    CHECK(*quotas_generation(q) != generation && *quotas_generation(q) != 0);
    CHECK(quotas_client(q, 1, bytes_of("ab"), 2) == NULL);
    quotas_void(q, false);
    CHECK(*quotas_generation(q) == 0);
    /* Without a client id, and with only a request quota. */
    limits[QUOTA_REQUEST] = limit_of("t", 1);
    CHECK(quotas_install(q, 9, NULL, 0, limits, 0) == 0);
    c = quotas_client(q, 9, NULL, 0);
    CHECK(c != NULL && quota_client_timed(c) && quota_client_limited(c));
    quota_client_release(c);
    c = with_limit(q, "p", QUOTA_PRODUCE, "p", 1);
    CHECK(!quota_client_timed(c) && quota_client_limited(c));
    quota_client_release(c);
    quotas_free(q);
}

static void throttle_times_are_summed_by_client_id(void) {
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    struct quota_limit limits[QUOTA_KINDS] = {{0}};
    struct quota_client *c[3];
    CHECK(quotas_install(q, 1, bytes_of("ab"), 2, limits, 0) == 0);
    CHECK(quotas_install(q, 2, bytes_of("ab"), 2, limits, 0) == 0);
    CHECK(quotas_install(q, 1, NULL, 0, limits, 0) == 0);
    c[0] = quotas_client(q, 1, bytes_of("ab"), 2);
    c[1] = quotas_client(q, 2, bytes_of("ab"), 2);
    c[2] = quotas_client(q, 1, NULL, 0);
    quota_client_note(c[0], 50, 10);
    quota_client_note(c[0], 7, 20);
    quota_client_note(c[1], 100, 30);
    quota_client_note(c[2], 1000, 40);
    CHECK(quotas_throttled(q, bytes_of("ab"), 2, 20) == 157);
    CHECK(quotas_throttled(q, bytes_of("ab"), 2, 21) == 100);
    CHECK(quotas_throttled(q, bytes_of("ab"), 2, 31) == 0);
    CHECK(quotas_throttled(q, bytes_of("ac"), 2, 0) == 0);
    CHECK(quotas_throttled(q, bytes_of("a"), 1, 0) == 0);
    CHECK(quotas_throttled(q, NULL, 0, 0) == 1000);
    for (int i = 0; i < 3; i++) quota_client_release(c[i]);
    quotas_free(q);
}

/* Install a client with this number and its own rate, on which it has counted `value`. */
static void install(struct quotas *q, uint32_t number, double value, int64_t now_ms) {
    struct quota_limit limits[QUOTA_KINDS] = {{0}};
    limits[QUOTA_PRODUCE] = (struct quota_limit){(const uint8_t *)&number, sizeof number, LIMIT};
    CHECK(quotas_install(q, number, NULL, 0, limits, now_ms) == 0);
    struct quota_client *c = quotas_client(q, number, NULL, 0);
    CHECK(c != NULL);
    quota_client_charge(c, QUOTA_PRODUCE, value, now_ms);
    quota_client_release(c);
}

static void unused_clients_are_removed_above_a_limit(void) {
    enum { HELD = 10 };
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    struct quota_client *held[HELD];
    for (uint32_t i = 0; i < SWEEP_AT; i++) {
        install(q, i, i == 20 ? 1 : 0, 0);
        if (i < HELD) held[i] = quotas_client(q, i, NULL, 0);
        CHECK(clients_of(q) == i + 1 && rates_of(q) == i + 1);
    }
    install(q, SWEEP_AT, 0, 0);
    /* So do rates, except those of existing clients and those with counted amounts. */
    CHECK(clients_of(q) == HELD + 1 && rates_of(q) == HELD + 2);
    for (uint32_t i = 0; i < HELD; i++) {
        struct quota_client *found = quotas_client(q, i, NULL, 0);
        CHECK(found == held[i]);
        quota_client_release(found);
    }
    CHECK(quotas_client(q, HELD, NULL, 0) == NULL);
    struct quota_client *c = quotas_client(q, SWEEP_AT, NULL, 0);
    CHECK(c != NULL);
    quota_client_release(c);
    /* The next sweep follows when as many again were added, at twice the remaining number. */
    for (uint32_t i = SWEEP_AT + 1; clients_of(q) < SWEEP_AT + 2 * HELD; i++) install(q, i, 0, 0);
    install(q, 0xffffff, 0, 0);
    CHECK(clients_of(q) == HELD + 1);
    for (uint32_t i = 0; i < HELD; i++) quota_client_release(held[i]);
    quotas_free(q);
}

/* A returning client finds its counted amount, until it expires, and as long as there is space. */
static void rates_are_kept_while_they_are_relevant(void) {
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    for (uint32_t i = 0; i < QUOTA_IDLE_MAX + 1000; i++) install(q, i, 1, 0);
    CHECK(rates_of(q) == QUOTA_IDLE_MAX + 1000); /* the next sweep of them comes later */
    uint32_t most = 0, now = 0;
    for (uint32_t i = 0; i < QUOTA_IDLE_MAX; i++) {
        install(q, QUOTA_IDLE_MAX + 1000 + i, 1, 0);
        now = rates_of(q);
        if (now < most) break;
        most = now;
    }
    CHECK(most > QUOTA_IDLE_MAX + 1000 && now == QUOTA_IDLE_MAX + 1);
    quotas_free(q);
    q = quotas_new(SAMPLES, WINDOW_MS);
    for (uint32_t i = 0; i < SWEEP_AT; i++) install(q, i, 1, 0);
    install(q, SWEEP_AT, 1, SAMPLES * WINDOW_MS - 1);
    CHECK(rates_of(q) == SWEEP_AT + 1);
    for (uint32_t i = SWEEP_AT + 1; i < 3 * SWEEP_AT; i++) install(q, i, 1, SAMPLES * WINDOW_MS);
    CHECK(rates_of(q) == 3 * SWEEP_AT);
    install(q, 3 * SWEEP_AT, 1, SAMPLES * WINDOW_MS);
    CHECK(rates_of(q) == 2 * SWEEP_AT + 1);
    quotas_free(q);
}

static void memory_that_runs_out_installs_nothing_and_leaves_nothing(void) {
    for (long n = 0; n < 4; n++) {
        blocks_left = n; /* the last one is for a lock */
        refusals_left = 1;
        CHECK(quotas_new(SAMPLES, WINDOW_MS) == NULL);
        blocks_left = -1;
    }
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    struct quota_limit limits[QUOTA_KINDS];
    limits[0] = limit_of("a", 1);
    limits[1] = limit_of("b", 1);
    limits[2] = limit_of("c", 1);
    for (long n = 0; n < 3; n++) {
        blocks_left = n;
        CHECK(quotas_install(q, 1, bytes_of("x"), 1, limits, 0) == -1);
        blocks_left = -1;
        CHECK(clients_of(q) == 0 && quotas_client(q, 1, bytes_of("x"), 1) == NULL);
        CHECK(rates_of(q) == (n == 2)); /* the first rate remains for the next client */
    }
    for (uint32_t i = 0; rates_of(q) < BUCKETS; i++) install(q, i, 0, 0);
    CHECK(clients_of(q) == BUCKETS - 1);
    /* Without memory for larger tables the chains grow. */
    limits[1].key = limits[2].key = NULL;
    limits[0] = limit_of("new", 1);
    for (uint32_t len = 0; len < 2; len++) {
        blocks_left = 2 - (long)len;
        refusals_left = 1;
        CHECK(quotas_install(q, 1000, bytes_of("x"), len, limits, 0) == 0 && refusals_left == -1);
        limits[0].key = NULL;
    }
    CHECK(clients_of(q) == BUCKETS + 1 && rates_of(q) == BUCKETS + 1);
    struct quota_address address = {.per_second = 1};
    blocks_left = 0;
    CHECK(quotas_set_addresses(q, &address, 1, 0) == -1);
    CHECK(quotas_connection(q, address.ip, 0) == 0);
    blocks_left = -1;
    CHECK(quotas_set_addresses(q, &address, 1, 0) == 0);
    blocks_left = 0;
    CHECK(quotas_connection(q, address.ip, 0) == 0); /* rather one too many than none */
    blocks_left = -1;
    for (uint32_t i = 0; i < BUCKETS - 1; i++) {
        struct quota_client *c = quotas_client(q, i, NULL, 0);
        CHECK(c != NULL);
        quota_client_release(c);
    }
    quotas_free(q);
}

static void connections_are_limited_by_address(void) {
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    struct quota_address named[] = {
        {.ip = {[15] = 1}, .per_second = 10}, {.ip = {[15] = 2}}, {.ip = {1}, .per_second = 0.1}};
    const uint8_t other[16] = {[15] = 9}, another[16] = {9};
    CHECK(quotas_connection(q, other, 0) == 0 && rates_of(q) == 0);
    CHECK(quotas_set_addresses(q, NULL, 0, 2) == 0);
    for (int i = 0; i < 4; i++) CHECK(quotas_connection(q, other, 0) == 0);
    for (int i = 0; i < 3; i++) CHECK(quotas_connection(q, other, 0) == 500);
    CHECK(quotas_connection(q, another, 0) == 0 && rates_of(q) == 2);
    CHECK(quotas_set_addresses(q, named, 3, 0) == 0);
    CHECK(quotas_connection(q, other, 0) == 0);
    for (int i = 0; i < 20; i++) CHECK(quotas_connection(q, named[0].ip, 0) == 0);
    CHECK(quotas_connection(q, named[0].ip, 0) == 100);
    for (int i = 0; i < 20; i++) CHECK(quotas_connection(q, named[1].ip, 0) == 0);
    CHECK(quotas_connection(q, named[2].ip, 0) == WINDOW_MS); /* no delay is longer */
    CHECK(rates_of(q) == 4);
    CHECK(quotas_set_addresses(q, named, 1, 2) == 0);
    CHECK(quotas_connection(q, other, 0) == 500);
    CHECK(quotas_connection(q, named[2].ip, 0) == 0);
    CHECK(quotas_set_addresses(q, NULL, 0, 0) == 0);
    CHECK(quotas_connection(q, other, 0) == 0);
    quotas_free(q);
}

static void inactive_addresses_are_removed(void) {
    struct quotas *q = quotas_new(SAMPLES, WINDOW_MS);
    CHECK(quotas_set_addresses(q, NULL, 0, 2) == 0);
    uint8_t ip[16] = {0};
    for (uint32_t i = 0; i < SWEEP_AT; i++) {
        memcpy(ip, &i, sizeof i);
        CHECK(quotas_connection(q, ip, 0) == 0);
    }
    CHECK(rates_of(q) == SWEEP_AT);
    CHECK(quotas_connection(q, ip, SAMPLES * WINDOW_MS) == 0);
    CHECK(rates_of(q) == 1);
    quotas_free(q);
}

static int64_t system_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void time_is_the_systems_and_a_percent_is_of_a_second(void) {
    int64_t before_ns = system_ns(), now_ns = quotas_monotonic_ns();
    CHECK(before_ns <= now_ns && now_ns <= system_ns());
    CHECK(quotas_percent(10000000) == 1.0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"spread", the_rate_is_spread_over_the_windows_that_passed},
                  {"streams", streams},
                  {"rounded", the_wait_is_rounded_and_has_an_end},
                  {"coarse", memory_that_runs_out_makes_samples_coarse},
                  {"fetches", a_fetch_that_is_over_is_not_counted},
                  {"shared", clients_of_one_entity_share_its_rate},
                  {"installed", a_client_is_what_was_installed_last},
                  {"summed", throttle_times_are_summed_by_client_id},
                  {"swept", unused_clients_are_removed_above_a_limit},
                  {"kept", rates_are_kept_while_they_are_relevant},
                  {"starved", memory_that_runs_out_installs_nothing_and_leaves_nothing},
                  {"addresses", connections_are_limited_by_address},
                  {"forgotten", inactive_addresses_are_removed},
                  {"clock", time_is_the_systems_and_a_percent_is_of_a_second}};
    CHECK(argc == 2);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[1]) == 0) {
            scenes[i].play();
            check_given_back();
            puts("ok");
        }
    return 0;
}
