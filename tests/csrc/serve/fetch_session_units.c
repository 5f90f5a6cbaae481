/* Fetch sessions with simulated time: age, slots, limits, and their sets compared with a plain
 * list. Exits with 0, or with 1 and a line on stderr. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/hash.h"
#include "serve/fetch_sessions.h"
#include "scenes.h"

enum { OK = 0, NOT_FOUND = 70, BAD_EPOCH = 71, OTHER_KIND = 106, PRINCIPAL = 7, SLOTS = 3 };

static uint32_t state;
static uint32_t draw(uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

static const uint8_t letters[16] = "sixteen letters";
static uint64_t seed[2];

static void fill(struct fetch_set *set, bool by_id, int32_t partitions) {
    fetch_set_init(set, by_id, seed);
    for (int32_t i = 0; i < partitions; i++)
        CHECK(fetch_set_part(set, letters, sizeof letters, i, true) != NULL);
}

/* Begin an idle session with this many partitions; return its id, or 0 if it was rejected. */
static int32_t begin(struct sessions *s, int32_t partitions, int64_t now_ms) {
    struct fetch_set set;
    fill(&set, false, partitions);
    struct session *e = sessions_create(s, &set, PRINCIPAL, draw(1 << 24), now_ms);
    fetch_set_clear(&set);
    if (e == NULL) return 0;
    sessions_return(s, e, now_ms);
    return e->id;
}

static int16_t use(struct sessions *s, int32_t id, int32_t epoch, int64_t now_ms) {
    struct session *e = NULL;
    int16_t error = sessions_acquire(s, id, epoch, false, PRINCIPAL, &e);
    if (error == OK) sessions_return(s, e, now_ms);
    return error;
}

static void the_session_that_was_idle_for_longest_makes_room_and_no_other(void) {
    struct sessions *s = sessions_new(SLOTS);
    int32_t id[SLOTS];
    for (int i = 0; i < SLOTS; i++) CHECK((id[i] = begin(s, 1, i)) != 0);
    CHECK(begin(s, 1, SESSION_IDLE_MS) == 0); /* not yet: the first is idle for exactly the limit */
    CHECK(sessions_count(s) == SLOTS);
    CHECK(use(s, id[0], 1, 10) == OK); /* now the second is the oldest */
    CHECK(begin(s, 1, SESSION_IDLE_MS + 1) == 0);
    CHECK(begin(s, 1, SESSION_IDLE_MS + 2) != 0);
    CHECK(sessions_count(s) == SLOTS);
    CHECK(use(s, id[1], 1, 20) == NOT_FOUND);
    CHECK(use(s, id[2], 1, 20) == OK && use(s, id[0], 2, 20) == OK);
    sessions_free(s);
}

static void the_newest_of_the_idle_ones_stays_when_all_others_go(void) {
    struct sessions *s = sessions_new(SLOTS);
    int32_t first = begin(s, 1, 0), second = begin(s, 1, 0), third = begin(s, 1, 1);
    sessions_expire(s, SESSION_IDLE_MS);
    CHECK(sessions_count(s) == 3);
    sessions_expire(s, SESSION_IDLE_MS + 1);
    CHECK(sessions_count(s) == 1);
    CHECK(use(s, first, 1, 2) == NOT_FOUND && use(s, second, 1, 2) == NOT_FOUND);
    CHECK(use(s, third, 1, 2) == OK);
    sessions_expire(s, SESSION_IDLE_MS * 2);
    CHECK(sessions_count(s) == 0);
    sessions_free(s);
}

static void a_session_that_a_request_holds_grows_no_older(void) {
    struct sessions *s = sessions_new(SLOTS);
    int32_t id = begin(s, 1, 0);
    struct session *held = NULL;
    CHECK(sessions_acquire(s, id, 1, false, PRINCIPAL, &held) == OK);
    sessions_expire(s, SESSION_IDLE_MS * 10);
    CHECK(sessions_count(s) == 1 && !held->dead);
    sessions_return(s, held, SESSION_IDLE_MS * 10);
    sessions_expire(s, SESSION_IDLE_MS * 11);
    CHECK(sessions_count(s) == 1);
    /* A clock that is behind counts as equal to the other. */
    CHECK(sessions_acquire(s, id, 2, false, PRINCIPAL, &held) == OK);
    CHECK(begin(s, 1, SESSION_IDLE_MS * 11) != 0);
    sessions_return(s, held, SESSION_IDLE_MS * 11 - 5);
    sessions_expire(s, SESSION_IDLE_MS * 12);
    CHECK(sessions_count(s) == 2);
    sessions_free(s);
}

static void all_sessions_together_stay_below_their_limit(void) {
    struct sessions *s = sessions_new(1000);
    int32_t partitions = 0, count = 0, last = 0, id;
    while ((id = begin(s, 100000, 0)) != 0) {
        last = id;
        partitions += 100000;
        CHECK(++count < 100);
    }
    CHECK(partitions >= 400000);
    CHECK((size_t)partitions * sizeof(struct fetch_part) <= SESSIONS_BYTES_MAX);
    CHECK(begin(s, 100, 0) != 0); /* a small session still fits */
    struct session *grown = NULL;
    CHECK(sessions_acquire(s, last, 1, false, PRINCIPAL, &grown) == OK);
    static const uint8_t other[4] = "next";
    for (int32_t i = 0; i < 100000; i++)
        CHECK(fetch_set_part(&grown->set, other, sizeof other, i, true) != NULL);
    CHECK(fetch_set_part(&grown->set, other, sizeof other, 100000, true) == NULL);
    CHECK(!sessions_resize(s, grown, 0));
    sessions_close(s, last, PRINCIPAL);
    sessions_return(s, grown, 0);
    CHECK((id = begin(s, 100000, 0)) != 0); /* its space is free again */
    CHECK(begin(s, 100000, 0) == 0);
    CHECK(sessions_acquire(s, id, 1, false, PRINCIPAL, &grown) == OK);
    while (grown->set.count > 10) fetch_set_remove(&grown->set, grown->set.first);
    CHECK(sessions_resize(s, grown, 0));
    sessions_return(s, grown, 0);
    CHECK(begin(s, 50000, 0) != 0); /* so is the space of forgotten partitions */
    CHECK(begin(s, 100000, SESSION_IDLE_MS + 1) != 0 && sessions_count(s) == 1);
    sessions_free(s);
}

static void the_room_can_be_used_to_its_last_byte(void) {
    struct sessions *s = sessions_new(SLOTS);
    struct fetch_set set;
    fill(&set, false, 1);
    size_t own_bytes = set.bytes;
    set.bytes = SESSIONS_BYTES_MAX - sizeof(struct session) + 1;
    CHECK(sessions_create(s, &set, PRINCIPAL, 1, 0) == NULL);
    set.bytes--;
    struct session *e = sessions_create(s, &set, PRINCIPAL, 1, 0);
    CHECK(e != NULL);
    e->set.bytes = own_bytes;
    CHECK(sessions_resize(s, e, 0));
    sessions_return(s, e, 0);
    sessions_free(s);
}

static void who_may_use_a_session_and_when(void) {
    struct sessions *s = sessions_new(SLOTS);
    struct session *e = NULL, *again = NULL;
    struct fetch_set set;
    fill(&set, true, 1);
    e = sessions_create(s, &set, PRINCIPAL, 0, 0);
    CHECK(e != NULL && e->id > 0 && set.count == 0 && e->set.count == 1);
    CHECK(sessions_acquire(s, e->id, 1, true, PRINCIPAL, &again) == BAD_EPOCH); /* busy */
    sessions_return(s, e, 0);
    CHECK(sessions_acquire(s, e->id, 1, true, PRINCIPAL + 1, &again) == NOT_FOUND);
    CHECK(sessions_acquire(s, e->id, 2, true, PRINCIPAL, &again) == BAD_EPOCH);
    CHECK(sessions_acquire(s, e->id, 1, false, PRINCIPAL, &again) == OTHER_KIND);
    e->epoch = INT32_MAX;
    CHECK(sessions_acquire(s, e->id, INT32_MAX, true, PRINCIPAL, &again) == OK && again == e);
    sessions_close(s, e->id, PRINCIPAL + 1);
    CHECK(!e->dead);
    sessions_return(s, e, 0);
    CHECK(e->epoch == 1); /* 0 would start a new session */
    CHECK(sessions_acquire(s, e->id, 1, true, PRINCIPAL, &again) == OK);
    int32_t id = e->id;
    sessions_close(s, id, PRINCIPAL);
    CHECK(e->dead && sessions_count(s) == 0 && e->set.count == 1);
    sessions_return(s, e, 0); /* frees it, which the sanitizer checks */
    CHECK(use(s, id, 2, 0) == NOT_FOUND);
    sessions_free(s);
}

enum { KEYS = 6, PARTITIONS = 20 };

/* The model of a set: (key, partition) in order. */
struct model {
    uint32_t keys[KEYS * PARTITIONS], count;
    int32_t partitions[KEYS * PARTITIONS];
};

static int model_find(const struct model *m, uint32_t key, int32_t partition) {
    for (uint32_t i = 0; i < m->count; i++)
        if (m->keys[i] == key && m->partitions[i] == partition) return (int)i;
    return -1;
}

static void model_remove(struct model *m, int at) {
    for (uint32_t i = (uint32_t)at + 1; i < m->count; i++) {
        m->keys[i - 1] = m->keys[i];
        m->partitions[i - 1] = m->partitions[i];
    }
    m->count--;
}

static void model_append(struct model *m, uint32_t key, int32_t partition) {
    m->keys[m->count] = key;
    m->partitions[m->count++] = partition;
}

static void a_set_agrees_with_a_list(void) {
    static const char *names[KEYS] = {"a", "b", "ab", "aa", "", "abc"};
    struct fetch_set set;
    struct model model = {.count = 0};
    fetch_set_init(&set, false, seed);
    for (int step = 0; step < 50000; step++) {
        uint32_t key = draw(KEYS), len = (uint32_t)strlen(names[key]);
        int32_t partition = (int32_t)draw(PARTITIONS);
        int at = model_find(&model, key, partition);
        uint32_t what = draw(4);
        struct fetch_part *p =
            fetch_set_part(&set, (const uint8_t *)names[key], len, partition, what == 0);
        if (what == 0 && at < 0) model_append(&model, key, partition);
        CHECK((p != NULL) == (at >= 0 || what == 0));
        if (at >= 0 && what == 1) {
            fetch_set_remove(&set, p);
            model_remove(&model, at);
        } else if (at >= 0 && what == 2) {
            fetch_set_move_to_end(&set, p);
            model_remove(&model, at);
            model_append(&model, key, partition);
        }
        uint32_t i = 0;
        for (p = set.first; p != NULL; p = p->next, i++) {
            CHECK(i < model.count && p->partition == model.partitions[i]);
            CHECK(p->key->len == strlen(names[model.keys[i]]));
            CHECK(memcmp(p->key->bytes, names[model.keys[i]], p->key->len) == 0);
            CHECK(p->next != NULL ? p->next->prev == p : set.last == p);
        }
        CHECK(i == model.count && i == set.count);
    }
    fetch_set_clear(&set); /* asserts that its bytes were counted correctly */
    CHECK(set.bytes == 0 && set.count == 0);
}

/* Clients choose the partitions, and may know any hash but that of a secret seed. */
static void partitions_that_meet_under_a_known_hash_do_not_meet(void) {
    enum { MANY = 1024, CHAIN_MAX = 16 };
    struct fetch_set set;
    fetch_set_init(&set, true, seed);
    for (uint32_t i = 0; set.count < MANY; i++)
        if (hash_bytes(HASH_SEED ^ i * 2654435761u, letters, sizeof letters) % MANY == 0)
            CHECK(fetch_set_part(&set, letters, sizeof letters, (int32_t)i, true) != NULL);
    for (uint32_t i = 0; i < set.bucket_count; i++) {
        int chain = 0;
        for (struct fetch_part *p = set.buckets[i]; p != NULL; p = p->chain) chain++;
        CHECK(chain <= CHAIN_MAX);
    }
    fetch_set_clear(&set);
}

static void each_table_has_a_seed_of_its_own(void) {
    struct sessions *s = sessions_new(SLOTS), *other = sessions_new(SLOTS);
    CHECK(memcmp(sessions_seed(s), sessions_seed(other), sizeof seed) != 0);
    sessions_free(s);
    sessions_free(other);
}

enum { THREADS = 4, ROUNDS = 4000, IDS = 16 };

struct crowd {
    struct sessions *sessions;
    atomic_int ids[IDS]; /* of any thread's sessions, used by all of them */
    atomic_int numbers;
};

static uint32_t own_draw(uint32_t *own, uint32_t below) {
    *own = *own * 1664525u + 1013904223u;
    return (*own >> 8) % below;
}

/* One reactor: begins sessions, uses and closes those of others, expires old ones. */
static void *reactor(void *given) {
    struct crowd *crowd = given;
    struct sessions *s = crowd->sessions;
    uint32_t own = (uint32_t)atomic_fetch_add(&crowd->numbers, 1) * 7919u + state;
    for (int64_t now_ms = 0; now_ms < ROUNDS; now_ms++) {
        uint32_t place = own_draw(&own, IDS);
        int32_t id = atomic_load(&crowd->ids[place]);
        struct fetch_set set;
        struct session *e = NULL;
        switch (own_draw(&own, 5)) {
        case 0:
            fill(&set, false, 3);
            e = sessions_create(s, &set, PRINCIPAL, own_draw(&own, 1 << 24), now_ms);
            fetch_set_clear(&set);
            if (e != NULL) atomic_store(&crowd->ids[place], e->id);
            break;
        case 1: sessions_close(s, id, PRINCIPAL); break;
        case 2: sessions_expire(s, now_ms * 100); break;
        default:
            for (int32_t epoch = 1; epoch < 20 && e == NULL; epoch++)
                (void)sessions_acquire(s, id, epoch, false, PRINCIPAL, &e);
        }
        if (e == NULL) continue;
        if (e->set.count > 1) fetch_set_remove(&e->set, e->set.first);
        CHECK(sessions_resize(s, e, now_ms));
        sessions_return(s, e, now_ms);
    }
    return NULL;
}

static void many_reactors_share_the_table(void) {
    struct crowd crowd = {.sessions = sessions_new(IDS / 2)};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, reactor, &crowd) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(sessions_count(crowd.sessions) <= IDS / 2);
    sessions_expire(crowd.sessions, INT64_MAX / 2);
    CHECK(sessions_count(crowd.sessions) == 0); /* none is left in use */
    sessions_free(crowd.sessions);
}

int main(int argc, char **argv) {
    state = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    for (int i = 0; i < 8; i++) seed[i / 4] = seed[i / 4] << 16 | draw(1 << 16);
    the_session_that_was_idle_for_longest_makes_room_and_no_other();
    the_newest_of_the_idle_ones_stays_when_all_others_go();
    a_session_that_a_request_holds_grows_no_older();
    all_sessions_together_stay_below_their_limit();
    the_room_can_be_used_to_its_last_byte();
    who_may_use_a_session_and_when();
    a_set_agrees_with_a_list();
    partitions_that_meet_under_a_known_hash_do_not_meet();
    each_table_has_a_seed_of_its_own();
    many_reactors_share_the_table();
    puts("ok");
    return 0;
}
