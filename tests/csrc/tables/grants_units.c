/* ACLs of many principals on one topic. Exits with 0, or with 1 and a line on stderr. */
#include "tables/grants.h"
#include "tables/broker_endpoints.h"
#include "scenes.h"

enum { MANY = 4096, FAR_TOO_MANY = 200000, FIRST = 7 };

/* Stubs: no topic here has a log, and no broker an address. */
void log_retain(struct log *log) { (void)log; }
void log_release(struct log *log) { (void)log; }
void nodes_retain(struct nodes *nodes) { (void)nodes; }
void nodes_release(struct nodes *nodes) { (void)nodes; }

static const uint8_t id[16] = "sixteen letters";

static struct grants *with_a_topic(void) {
    struct grants *g = grants_new(4);
    struct topic *t = topic_new("t", id, false, NULL, 0);
    CHECK(g != NULL && t != NULL);
    CHECK(grants_install(g, t) == 0);
    topic_release(t);
    return g;
}

static uint8_t rights_of(struct grants *g, uint32_t principal) {
    uint8_t by_name, by_id;
    struct topic *t = grants_by_name(g, principal, (const uint8_t *)"t", 1, &by_name);
    CHECK(t != NULL);
    topic_release(t);
    t = grants_by_id(g, principal, id, &by_id);
    CHECK(t != NULL && by_name == by_id);
    topic_release(t);
    return by_id;
}

/* Neighbours always differ. */
static uint8_t given(uint32_t principal) {
    return principal % 3 == 0 ? GRANT_FOLLOW
           : principal % 3 == 1 ? GRANT_READ
                                : GRANT_READ | GRANT_WRITE;
}

static uint32_t give(struct grants *g, uint32_t count) {
    uint32_t known = 0;
    for (uint32_t p = FIRST; p < FIRST + count; p++)
        CHECK(grants_allow(g, p, id, given(p)) == 0);
    for (uint32_t p = FIRST; p < FIRST + count; p++) {
        uint8_t rights = rights_of(g, p);
        CHECK(rights == 0 || rights == given(p));
        known += rights != 0;
    }
    return known;
}

static void each_of_many_has_its_own_rights_and_nearly_all_are_remembered(void) {
    struct grants *g = with_a_topic();
    CHECK(give(g, MANY) >= MANY - MANY / 50);
    CHECK(rights_of(g, FIRST + MANY) == 0);
    grants_free(g);
}

static void beyond_the_limit_some_are_forgotten_and_none_is_mistaken(void) {
    struct grants *g = with_a_topic();
    uint32_t known = give(g, FAR_TOO_MANY);
    CHECK(known > MANY && known < FAR_TOO_MANY);
    grants_free(g);
}

static void a_right_that_was_taken_is_gone_and_one_that_is_given_joins_the_others(void) {
    struct grants *g = with_a_topic();
    give(g, MANY);
    grants_void(g);
    for (uint32_t p = FIRST; p < FIRST + MANY; p++) CHECK(rights_of(g, p) == 0);
    CHECK(grants_allow(g, FIRST, id, GRANT_WRITE) == 0);
    CHECK(rights_of(g, FIRST) == GRANT_WRITE);
    CHECK(grants_allow(g, FIRST, id, GRANT_READ) == 0);
    CHECK(rights_of(g, FIRST) == (GRANT_READ | GRANT_WRITE));
    CHECK(rights_of(g, FIRST + 1) == 0);
    grants_free(g);
}

int main(void) {
    each_of_many_has_its_own_rights_and_nearly_all_are_remembered();
    beyond_the_limit_some_are_forgotten_and_none_is_mistaken();
    a_right_that_was_taken_is_gone_and_one_that_is_given_joins_the_others();
    puts("ok");
    return 0;
}
