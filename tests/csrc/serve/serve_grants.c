/* Topics in the table of grants: lookups by name and by id, replacement, removal, and grants
 * that do not fit. Usage: serve_grants SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "tables/grants.h"
#include "tables/broker_endpoints.h"
#include "watched.h"

enum { MANY = 300, BUCKETS = 64, PARTITIONS = 3 };

/* Logs are fake addresses; this counts all topics' references to them. */
static int log_references;
void log_retain(struct log *log) { log_references += log != NULL; }
void log_release(struct log *log) { log_references -= log != NULL; }

static struct log *log_at(uintptr_t i) { return (struct log *)(0x1000 * i); }

static void id_of(int number, uint8_t *id) {
    memset(id, 0x5a, 16);
    memcpy(id, &number, sizeof number);
}

/* Install topic `number` with the id of `id_number`. Return 0 or -1. */
static int install(struct grants *g, int number, int id_number) {
    struct log *const logs[PARTITIONS] = {log_at(1), NULL, log_at(3)};
    uint8_t id[16];
    char name[16];
    id_of(id_number, id);
    snprintf(name, sizeof name, "topic-%d", number);
    struct topic *t = topic_new(name, id, number % 2 == 1, logs, PARTITIONS);
    CHECK(t != NULL);
    int result = grants_install(g, t);
    topic_release(t);
    return result;
}

static struct topic *by_name(struct grants *g, int number, uint8_t *rights) {
    char name[16];
    snprintf(name, sizeof name, "topic-%d", number);
    return grants_by_name(g, 7, (const uint8_t *)name, (uint32_t)strlen(name), rights);
}

static struct topic *by_id(struct grants *g, int number, uint8_t *rights) {
    uint8_t id[16];
    id_of(number, id);
    return grants_by_id(g, 7, id, rights);
}

/* Return true if both lookups find the topic, false if neither does. */
static bool knows(struct grants *g, int number, int id_number) {
    uint8_t rights;
    struct topic *t = by_name(g, number, &rights), *same = by_id(g, id_number, &rights);
    CHECK(t == same);
    if (t == NULL) return false;
    CHECK(t->partition_count == PARTITIONS && t->internal == (number % 2 == 1));
    topic_release(t);
    topic_release(same);
    return true;
}

static int allow(struct grants *g, uint32_t principal, int number, uint8_t rights) {
    uint8_t id[16];
    id_of(number, id);
    return grants_allow(g, principal, id, rights);
}

static void a_topic_has_what_it_was_made_of(void) {
    struct log *const logs[PARTITIONS] = {log_at(1), NULL, log_at(3)};
    const struct topic_leader leaders[PARTITIONS] = {{1, 2}, {3, 4}, {-1, 5}};
    uint8_t id[16];
    char name[251];
    int16_t error = 0;
    id_of(5, id);
    memset(name, 'n', 250);
    name[250] = 0;
    CHECK(topic_new(name, id, false, logs, PARTITIONS) == NULL);
    name[249] = 0;
    struct topic *t = topic_new(name, id, true, logs, PARTITIONS);
    CHECK(t != NULL && t->name_len == 249 && strcmp(t->name, name) == 0 && t->internal);
    CHECK(memcmp(t->id, id, 16) == 0 && t->partition_count == PARTITIONS && log_references == 2);
    CHECK(topic_log(t, 0, &error) == log_at(1) && topic_log(t, 2, &error) == log_at(3));
    CHECK(error == 0 && topic_log(t, 1, &error) == NULL);
    CHECK(error == ERROR_NOT_LEADER_OR_FOLLOWER && t->leaders == NULL);
    CHECK(topic_set_leaders(t, leaders) && memcmp(t->leaders, leaders, sizeof leaders) == 0);
    topic_retain(t);
    topic_release(t);
    CHECK(log_references == 2);
    topic_release(t);
    CHECK(log_references == 0);
    for (long n = 0; n < 2; n++) {
        blocks_left = n;
        refusals_left = 1;
        CHECK(topic_new("t", id, false, logs, PARTITIONS) == NULL && log_references == 0);
    }
    blocks_left = 2;
    t = topic_new("t", id, false, NULL, 0);
    CHECK(t != NULL && !topic_set_leaders(t, NULL));
    blocks_left = -1;
    CHECK(topic_set_leaders(t, NULL) && t->leaders != NULL);
    topic_release(t);
}

static void each_of_many_topics_is_found_until_it_is_removed(void) {
    struct grants *g = grants_new(MANY);
    uint8_t rights;
    for (int i = 0; i < MANY; i++) CHECK(install(g, i, 1000 + i) == 0);
    for (int i = 0; i < MANY; i++) CHECK(knows(g, i, 1000 + i));
    CHECK(by_name(g, MANY, &rights) == NULL && by_id(g, 0, &rights) == NULL && rights == 0);
    CHECK(grants_by_name(g, 7, (const uint8_t *)"topic-11", 7, &rights) != NULL); /* topic-1 */
    struct topic *t = by_name(g, 1, &rights);
    topic_release(t);
    topic_release(t);
    /* Every third topic is removed; the others in its chains stay. */
    for (int i = 0; i < MANY; i += 3) {
        char name[16];
        snprintf(name, sizeof name, "topic-%d", i);
        grants_remove(g, name, (uint16_t)strlen(name));
        grants_remove(g, name, (uint16_t)strlen(name));
    }
    for (int i = 0; i < MANY; i++) CHECK(knows(g, i, 1000 + i) == (i % 3 != 0));
    CHECK(log_references == 2 * (MANY - MANY / 3));
    grants_free(g);
    CHECK(log_references == 0);
}

static void a_full_table_takes_only_what_replaces(void) {
    struct grants *g = grants_new(3);
    uint8_t rights;
    for (int i = 0; i < 3; i++) CHECK(install(g, i, 10 + i) == 0);
    CHECK(install(g, 3, 13) == -1 && log_references == 6);
    struct topic *held = by_name(g, 1, &rights);
    CHECK(install(g, 1, 21) == 0 && knows(g, 1, 21));
    CHECK(by_id(g, 11, &rights) == NULL);
    CHECK(held->id[0] == 11 && log_references == 8); /* holders keep using it */
    topic_release(held);
    CHECK(log_references == 6);
    grants_remove(g, "topic-0", 7);
    CHECK(install(g, 3, 13) == 0 && install(g, 4, 14) == -1);
    for (int i = 1; i < 4; i++) CHECK(knows(g, i, i == 1 ? 21 : 10 + i));
    grants_free(g);
}

/* A cached lookup is invalid after each change, a waiting request after some changes. */
static void changes_are_counted(void) {
    struct grants *g = grants_new(MANY);
    uint32_t changes = grants_changes(g), voids = grants_voids(g);
    uint8_t rights;
    CHECK(install(g, 1, 1) == 0 && grants_changes(g) != changes);
    changes = grants_changes(g);
    CHECK(allow(g, 7, 1, GRANT_READ) == 0 && grants_changes(g) != changes);
    CHECK(allow(g, 7, 2, GRANT_READ) == -1);
    changes = grants_changes(g);
    grants_remove(g, "nothing", 7);
    CHECK(grants_voids(g) == voids);
    struct topic *t = by_id(g, 1, &rights);
    CHECK(rights == GRANT_READ);
    topic_release(t);
    changes = grants_changes(g);
    grants_void(g);
    CHECK(grants_changes(g) != changes && grants_voids(g) != voids);
    t = by_id(g, 1, &rights);
    CHECK(rights == 0);
    topic_release(t);
    changes = grants_changes(g);
    grants_remove(g, "topic-1", 7);
    CHECK(grants_changes(g) != changes && by_id(g, 1, &rights) == NULL);
    grants_free(g);
}

static void nodes_are_replaced_whole(void) {
    const struct node of[] = {{0, 1, 9092, "host", NULL}};
    struct grants *g = grants_new(1);
    CHECK(grants_nodes(g) == NULL);
    grants_set_nodes(g, nodes_new(of, 1));
    struct nodes *held = grants_nodes(g);
    grants_set_nodes(g, nodes_new(of, 1));
    CHECK(held != NULL && nodes_find(held, 0, 1) != NULL);
    struct nodes *now = grants_nodes(g);
    CHECK(now != held);
    nodes_release(now);
    nodes_release(held);
    grants_free(g); /* with the last one, which the end of the scene checks */
}

/* Without memory a new grant replaces another one, and chains grow. */
static void memory_that_runs_out(void) {
    uint8_t rights;
    for (long n = 0; n < 4; n++) {
        blocks_left = n; /* the last one is for a lock */
        refusals_left = 1;
        CHECK(grants_new(1) == NULL);
        blocks_left = -1;
    }
    struct grants *g = grants_new(MANY);
    for (int i = 0; i < BUCKETS; i++) CHECK(install(g, i, i) == 0);
    uint8_t id[16];
    id_of(1000, id);
    struct topic *t = topic_new("more", id, false, NULL, 0);
    for (long n = 0; n < 3; n++) {
        blocks_left = n;
        refusals_left = 1;
        CHECK(grants_install(g, t) == (n == 0 ? -1 : 0) && refusals_left == -1);
        blocks_left = -1;
        struct topic *found = grants_by_id(g, 7, id, &rights);
        CHECK((found != NULL) == (n > 0));
        if (found != NULL) topic_release(found);
        grants_remove(g, "more", 4);
    }
    topic_release(t);
    for (int i = 0; i < BUCKETS; i++) CHECK(knows(g, i, i));
    blocks_left = 0;
    CHECK(allow(g, 7, 1, GRANT_READ) == -1);
    blocks_left = -1;
    t = by_id(g, 1, &rights);
    CHECK(rights == 0);
    topic_release(t);
    for (uint32_t principal = 8; principal < 10; principal++)
        CHECK(allow(g, principal, 1, GRANT_READ) == 0);
    blocks_left = 0;
    for (int i = 0; i < 5; i++) CHECK(allow(g, 7, 1, GRANT_WRITE) == 0);
    t = by_id(g, 1, &rights);
    CHECK(rights == GRANT_WRITE);
    topic_release(t);
    CHECK(allow(g, 11, 1, GRANT_READ) == 0); /* one of the two existing grants is replaced */
    blocks_left = -1;
    grants_free(g);
    CHECK(log_references == 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"made", a_topic_has_what_it_was_made_of},
                  {"found", each_of_many_topics_is_found_until_it_is_removed},
                  {"full", a_full_table_takes_only_what_replaces},
                  {"changes", changes_are_counted},
                  {"nodes", nodes_are_replaced_whole},
                  {"starved", memory_that_runs_out}};
    CHECK(argc == 2);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[1]) == 0) {
            scenes[i].play();
            check_given_back();
            puts("ok");
        }
    return 0;
}
