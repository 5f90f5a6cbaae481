/* Heartbeats with a cached response: which ones a reactor answers itself. */
#include "reactor_simulation.h"

enum { REST = 30 };
static struct repeats *repeats;
static struct quotas *quotas;

static void begin_repeating(unsigned flags) {
    struct reactors_config config = usual_config();
    config.rules.apis[API_CONSUMER_GROUP_HEARTBEAT] = (struct frames_versions){0, VERSION, 1000};
    config.queued_requests_max = 2;
    config.repeats = repeats = repeats_new(77);
    config.quotas = quotas = quotas_new(2, 1000);
    CHECK(repeats != NULL && quotas != NULL);
    begin_with(&config, flags, NULL);
}
static void end_repeating(void) {
    end();
    CHECK(repeats_count(repeats) == 0);
    repeats_free(repeats);
    quotas_free(quotas);
}

/* Cache the response to heartbeat(c, .., letter) of this principal until then. */
static struct repeat *know(const struct client *c, uint32_t principal, char letter,
                           int64_t until_ms) {
    uint8_t bytes[21 + REST], frame[8];
    size_t len = request_of(bytes, API_CONSUMER_GROUP_HEARTBEAT, 0, letter, 1, REST);
    put_i32(frame, 4);
    put_i32(frame + 4, -1);
    struct repeat_key key = {.client_id = (const uint8_t *)"me",
                             .client_id_len = 2,
                             .body = bytes + 16,
                             .body_len = len - 16,
                             .principal = principal,
                             .api_key = API_CONSUMER_GROUP_HEARTBEAT,
                             .api_version = VERSION,
                             .address = connection_of(c)->peer.ip};
    return repeats_add(repeats, &key, frame, sizeof frame, until_ms);
}
static void heartbeat(const struct client *c, int32_t correlation_id, char letter) {
    post(c, API_CONSUMER_GROUP_HEARTBEAT, correlation_id, letter, 1, REST);
    settle();
}
/* Return true if the control plane receives the heartbeat, and answer it. */
static bool is_heard_of(const struct client *c, int32_t correlation_id, char letter) {
    heartbeat(c, correlation_id, letter);
    struct event *e = next_event();
    if (e == NULL) return false;
    CHECK(e->kind == EVENT_REQUEST && e->correlation_id == correlation_id);
    CHECK(answered(c) == 0);
    answer_to(e, false, 0);
    free(e);
    reactors_events_consumed(all);
    settle();
    CHECK(answered(c) == correlation_id);
    return true;
}

SCENE(repeated_heartbeat_is_answered_from_the_cache) {
    begin_repeating(0);
    struct client c = connect_one(), other = connect_one();
    CHECK(is_heard_of(&c, 1, 'a'));
    struct repeat *e = know(&c, 0, 'a', INT64_MAX);
    CHECK(repeats_last_ms(repeats, e, -2) == -1);
    pass_ms(50);
    heartbeat(&c, 2, 'a');
    CHECK(answered(&c) == 2 && next_event() == NULL);
    CHECK(repeats_last_ms(repeats, e, 0) == now_ms());
    heartbeat(&other, 3, 'a'); /* of the same client, over another connection */
    CHECK(answered(&other) == 3 && next_event() == NULL && STAT(requests_repeated) == 2);
    CHECK(STAT(requests_control) == 1 && is_heard_of(&c, 4, 'b'));
    CHECK(repeats_end(repeats, e) == now_ms() && is_heard_of(&c, 5, 'a'));
    end_repeating();
}

SCENE(heartbeat_of_another_client_or_connection_is_not_cached) {
    begin_repeating(0);
    struct client c = connect_one(), far = connect_from(0x7f000002);
    struct repeat *e = know(&c, 5, 'a', INT64_MAX);
    CHECK(is_heard_of(&c, 1, 'a')); /* of another principal */
    reactors_set_principal(all, name_of(&c), 5, 0);
    reactors_set_principal(all, name_of(&far), 5, 0);
    turn();
    CHECK(!is_heard_of(&c, 2, 'a') && answered(&c) == 2);
    CHECK(is_heard_of(&far, 3, 'a'));
    repeats_end(repeats, e);
    end_repeating();
}

SCENE(voided_expired_or_withdrawn_response_is_not_repeated) {
    begin_repeating(0);
    struct client c = connect_one();
    struct repeat *e = know(&c, 0, 'a', now_ms() + 100), *silent = know(&c, 0, 'b', INT64_MAX);
    struct repeat *voided = know(&c, 0, 'c', INT64_MAX);
    pass_ms(99);
    CHECK(!is_heard_of(&c, 1, 'a') && answered(&c) == 1);
    pass_ms(1);
    CHECK(is_heard_of(&c, 2, 'a'));
    CHECK(!is_heard_of(&c, 3, 'b') && answered(&c) == 3);
    CHECK(repeats_last_ms(repeats, silent, now_ms()) == now_ms());
    CHECK(is_heard_of(&c, 4, 'b'));
    repeats_void(repeats);
    CHECK(is_heard_of(&c, 5, 'c') && repeats_count(repeats) == 3);
    struct repeat *again = know(&c, 0, 'c', INT64_MAX);
    CHECK(!is_heard_of(&c, 6, 'c') && answered(&c) == 6);
    repeats_end(repeats, e);
    repeats_end(repeats, silent);
    CHECK(repeats_end(repeats, voided) == -1 && repeats_end(repeats, again) == now_ms());
    end_repeating();
}

SCENE(cached_heartbeat_needs_no_control_queue_space) {
    begin_repeating(0);
    struct client c = connect_one(), full[3] = {connect_one(), connect_one(), connect_one()};
    struct repeat *e = know(&c, 0, 'a', INT64_MAX);
    for (int i = 0; i < 3; i++) heartbeat(&full[i], 1, 'b');
    CHECK(events_waiting(all->events) == 2 && STAT(queue_waits) == 1);
    heartbeat(&c, 2, 'a');
    CHECK(answered(&c) == 2 && STAT(queue_waits) == 1);
    for (int i = 0; i < 3; i++) {
        free(expect(EVENT_REQUEST));
        reactors_events_consumed(all);
        settle();
    }
    CHECK(next_event() == NULL);
    repeats_end(repeats, e);
    end_repeating();
}

SCENE(unauthenticated_and_controller_connections_bypass_the_cache) {
    begin_repeating(LISTENER_CONTROL);
    struct client c = connect_one();
    struct repeat *e = know(&c, 0, 'a', INT64_MAX);
    CHECK(is_heard_of(&c, 1, 'a') && STAT(requests_repeated) == 0);
    repeats_end(repeats, e);
    end_repeating();
    begin_repeating(LISTENER_NEEDS_AUTH);
    c = connect_one();
    e = know(&c, 0, 'a', INT64_MAX);
    heartbeat(&c, 1, 'a');
    CHECK(!is_open(&c) && STAT(requests_repeated) == 0);
    repeats_end(repeats, e);
    end_repeating();
}

SCENE(time_quota_bypasses_the_cache) {
    begin_repeating(0);
    struct client c = connect_one();
    struct repeat *e = know(&c, 0, 'a', INT64_MAX);
    struct quota_limit limits[QUOTA_KINDS] = {0};
    limits[QUOTA_REQUEST] = (struct quota_limit){(const uint8_t *)"it", 2, 1e6};
    quotas_void(quotas, true);
    CHECK(quotas_install(quotas, 0, (const uint8_t *)"me", 2, limits, now_ms()) == 0);
    CHECK(is_heard_of(&c, 1, 'a'));
    quotas_void(quotas, false);
    CHECK(!is_heard_of(&c, 2, 'a') && answered(&c) == 2);
    repeats_end(repeats, e);
    end_repeating();
}

SCENE(cache_shortage_falls_back_to_the_control_plane) {
    begin_repeating(0);
    struct client c = connect_one();
    struct repeat *e = know(&c, 0, 'a', INT64_MAX);
    heartbeat(&c, 1, 'a'); /* it has its buffer and its slot */
    CHECK(answered(&c) == 1);
    memory_left = 0; /* for the response; then for the event */
    heartbeat(&c, 2, 'a');
    memory_left = NO_MEMORY_LIMIT;
    CHECK(next_event() == NULL && !is_open(&c));
    repeats_end(repeats, e);
    end_repeating();
}
