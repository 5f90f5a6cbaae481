/* Cached responses: many of them, their limit, and concurrent lookups. Exits with 0, or with 1
 * and a line on stderr. */
#include "tables/heartbeat_cache.h"

#include <pthread.h>

#include "format/bytes.h"
#include "scenes.h"

enum { MANY = 5000, LONG = 4000, TURNS = 300 };

static const uint8_t address[16] = "sixteen letters";
static uint8_t body[LONG];

static struct repeat_key key_of(uint32_t number, size_t len) {
    put_u32(body, number);
    return (struct repeat_key){.body = body, .body_len = len, .address = address, .api_key = 68};
}

static void each_of_many_has_its_own_answer_until_it_ends(void) {
    struct repeats *rs = repeats_new(1);
    static struct repeat *made[MANY];
    uint8_t frame[12] = {0};
    for (uint32_t i = 0; i < MANY; i++) {
        struct repeat_key key = key_of(i, 40);
        put_u32(frame + 8, i);
        made[i] = repeats_add(rs, &key, frame, sizeof frame, INT64_MAX);
        CHECK(made[i] != NULL);
    }
    CHECK(repeats_count(rs) == MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        struct repeat_key key = key_of(i, 40);
        size_t len;
        uint8_t *answer = repeats_answer(rs, &key, (int32_t)i + 7, 100 + i, &len);
        CHECK(answer != NULL && len == sizeof frame);
        CHECK(get_u32(answer + 4) == i + 7 && get_u32(answer + 8) == i);
        free(answer);
        CHECK(repeats_end(rs, made[i]) == 100 + (int64_t)i);
        CHECK(repeats_answer(rs, &key, 1, 1, &len) == NULL);
    }
    CHECK(repeats_count(rs) == 0);
    repeats_free(rs);
}

static void all_that_tells_requests_apart_does(void) {
    struct repeats *rs = repeats_new(2);
    static const uint8_t elsewhere[16] = "fifteen letters";
    uint8_t frame[8] = {0}, *answer;
    size_t len;
    struct repeat_key key = key_of(1, 40);
    key.client_id = (const uint8_t *)"client", key.client_id_len = 6;
    struct repeat *e = repeats_add(rs, &key, frame, sizeof frame, INT64_MAX);
    struct repeat_key others[7];
    for (int i = 0; i < 7; i++) others[i] = key;
    others[0].principal++;
    others[1].api_version++;
    others[2].address = elsewhere;
    others[3].client_id_len--;
    others[4].client_id = NULL;
    others[5].body_len--;
    others[6].api_key++;
    for (int i = 0; i < 7; i++) CHECK(repeats_answer(rs, &others[i], 1, 1, &len) == NULL);
    answer = repeats_answer(rs, &key, 1, 1, &len);
    CHECK(answer != NULL);
    free(answer);
    repeats_end(rs, e);
    repeats_free(rs);
}

static void all_of_them_take_no_more_than_their_limit(void) {
    struct repeats *rs = repeats_new(3);
    enum { ROOM = REPEATS_BYTES_MAX / LONG };
    static struct repeat *made[ROOM + 1];
    uint8_t frame[8] = {0};
    uint32_t count = 0;
    struct repeat_key key = key_of(0, LONG);
    struct repeat_key longer = key_of(0, REPEAT_BYTES_MAX - sizeof frame + 1);
    CHECK(repeats_add(rs, &longer, frame, sizeof frame, INT64_MAX) == NULL);
    while (count < ROOM && (made[count] = repeats_add(rs, &key, frame, 8, INT64_MAX)) != NULL)
        key = key_of(++count, LONG);
    CHECK(count > ROOM * 9 / 10 && count < ROOM && repeats_count(rs) == count);
    repeats_end(rs, made[0]);
    made[0] = repeats_add(rs, &key, frame, sizeof frame, INT64_MAX);
    CHECK(made[0] != NULL);
    for (uint32_t i = 0; i < count; i++) repeats_end(rs, made[i]);
    repeats_free(rs);
}

static struct repeats *shared;

static void *ask(void *unused) {
    uint8_t bytes[40] = {0};
    struct repeat_key key = {.body = bytes, .body_len = sizeof bytes, .address = address};
    for (int turn = 0; turn < TURNS; turn++) {
        size_t len;
        free(repeats_answer(shared, &key, 1, 5, &len));
    }
    return unused;
}

static void one_that_ended_is_answered_by_no_thread(void) {
    shared = repeats_new(4);
    uint8_t bytes[40] = {0}, frame[8] = {0};
    struct repeat_key key = {.body = bytes, .body_len = sizeof bytes, .address = address};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, ask, NULL) == 0);
    for (int turn = 0; turn < TURNS; turn++) {
        struct repeat *e = repeats_add(shared, &key, frame, sizeof frame, INT64_MAX);
        if (turn % 3 == 0) repeats_void(shared);
        if (turn % 3 == 1) repeats_last_ms(shared, e, 5);
        repeats_end(shared, e);
        size_t len;
        CHECK(repeats_answer(shared, &key, 1, 5, &len) == NULL);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    repeats_free(shared);
}

int main(void) {
    each_of_many_has_its_own_answer_until_it_ends();
    all_that_tells_requests_apart_does();
    all_of_them_take_no_more_than_their_limit();
    one_that_ended_is_answered_by_no_thread();
    puts("ok");
    return 0;
}
