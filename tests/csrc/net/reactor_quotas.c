/* Clients with shared quotas: requested from the control plane once, then held by connections. */
#include "reactor_simulation.h"

static struct quotas *quotas;

static void begin_counting(unsigned flags) {
    struct reactors_config config = usual_config();
    config.quotas = quotas = quotas_new(2, 1000);
    begin_with(&config, flags, NULL);
}
static void end_counting(void) {
    end();
    quotas_free(quotas);
}

/* Install a client with a limit of this kind; QUOTA_KINDS: without limits. */
static void install(uint32_t principal, const char *client_id, enum quota_kind kind) {
    struct quota_limit limits[QUOTA_KINDS] = {0};
    uint32_t len = (uint32_t)strlen(client_id);
    static const uint8_t key[] = "its own";
    if (kind != QUOTA_KINDS) limits[kind] = (struct quota_limit){key, sizeof key, 1e6};
    CHECK(quotas_install(quotas, principal, (const uint8_t *)client_id, len, limits, now_ms()) ==
          0);
}

/* Answer the query about a client; the connection continues. */
static void tell(const struct client *c, uint32_t principal, const char *client_id,
                 enum quota_kind kind) {
    struct event *e = expect(EVENT_QUOTA);
    CHECK(e->connection == name_of(c) && e->principal == principal);
    CHECK(e->client_id_len == (int32_t)strlen(client_id));
    CHECK(memcmp(e->data, client_id, strlen(client_id)) == 0);
    free(e);
    install(principal, client_id, kind);
    reactors_retry(all, name_of(c));
    settle();
}

SCENE(client_is_looked_up_once_and_its_request_waits) {
    begin_counting(0);
    struct client c = connect_one();
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&c) == 1 && next_event() == NULL); /* no quota is set */
    quotas_void(quotas, true);
    post(&c, API_PRODUCE, 2, 'A', 0, 0);
    post(&c, API_PRODUCE, 3, 'A', 0, 0);
    settle();
    CHECK(serve_seen.started == 1 && (connection_of(&c)->waits & WAIT_CONTROL));
    after_ms(1 << 22); /* it waits for the server */
    CHECK(serve_seen.started == 1 && is_open(&c));
    tell(&c, 0, "me", QUOTA_KINDS);
    CHECK(answered(&c) == 2 && answered(&c) == 3 && next_event() == NULL);
    CHECK(serve_seen.starts[1]->quota == NULL); /* it has no limit */
    ask(&c, API_FETCH, 4, 'A', 0);
    CHECK(answered(&c) == 4 && next_event() == NULL);
    struct client other = connect_one();
    ask(&other, API_PRODUCE, 1, 'A', 0); /* with the same name */
    CHECK(answered(&other) == 1 && next_event() == NULL);
    quotas_void(quotas, true);
    ask(&c, API_PRODUCE, 5, 'A', 0);
    CHECK(answered(&c) == 0);
    tell(&c, 0, "me", QUOTA_KINDS);
    CHECK(answered(&c) == 5);
    quotas_void(quotas, false);
    ask(&c, API_PRODUCE, 6, 'A', 0);
    CHECK(answered(&c) == 6 && next_event() == NULL && connection_of(&c)->quota == NULL);
    end_counting();
}

SCENE(client_is_identified_by_principal_and_client_id) {
    begin_counting(0);
    quotas_void(quotas, true);
    struct client c = connect_one();
    ask(&c, API_PRODUCE, 1, 'A', 0);
    tell(&c, 0, "me", QUOTA_KINDS);
    reactors_set_principal(all, name_of(&c), 5, 0);
    ask(&c, API_PRODUCE, 2, 'A', 0);
    tell(&c, 5, "me", QUOTA_KINDS);
    uint8_t bytes[21];
    request_of(bytes, API_PRODUCE, 3, 'A', 0, 0);
    bytes[14] = 'h';
    send_bytes_of(&c, bytes, 21);
    settle();
    tell(&c, 5, "he", QUOTA_KINDS);
    static const uint8_t nameless[] = {0, 0,    0,    15,  0, 0, 0, VERSION, 0, 0,
                                       0, 4, 0xff, 0xff, 'A', 0, 0, 0,       0};
    send_bytes_of(&c, nameless, sizeof nameless);
    settle();
    tell(&c, 5, "", QUOTA_KINDS);
    for (int32_t i = 1; i <= 4; i++) CHECK(answered(&c) == i);
    end_counting();
}

SCENE(known_client_is_not_looked_up_again) {
    begin_counting(0);
    quotas_void(quotas, true);
    struct client c = connect_one();
    ask(&c, API_PRODUCE, 1, 'A', 0);
    tell(&c, 0, "me", QUOTA_PRODUCE);
    const struct quota_client *known = connection_of(&c)->quota;
    install(0, "me", QUOTA_PRODUCE); /* another connection had requested it too */
    ask(&c, API_PRODUCE, 2, 'A', 0);
    CHECK(answered(&c) == 1 && answered(&c) == 2 && connection_of(&c)->quota == known);
    end_counting();
}

SCENE(request_carries_its_quota_client) {
    begin_counting(0);
    quotas_void(quotas, true);
    struct client c = connect_one();
    post(&c, API_PRODUCE, 1, 'H', 0, 100);
    settle();
    tell(&c, 0, "me", QUOTA_PRODUCE);
    const struct serve_request *r = serve_seen.starts[0];
    CHECK(r->quota == connection_of(&c)->quota && r->quota != NULL && r->frame_bytes == 117);
    leave(&c);
    end_counting();
}

static int64_t busy_of(enum quota_kind kind) {
    begin_counting(0);
    quotas_void(quotas, true);
    struct client c = connect_one();
    ask(&c, API_FETCH, 1, 'H', 0);
    clock_step_ns = 1000;
    tell(&c, 0, "me", kind);
    clock_step_ns = 0;
    int64_t busy_ns = serve_seen.starts[0]->busy_ns;
    if (kind == QUOTA_REQUEST) CHECK(serve_seen.starts[0]->began_ns > 0);
    clock_step_ns = 1000;
    pass_ms(50);
    post(&c, API_FETCH, 2, 'A', 0, 0); /* after the first */
    serve_seen.starts[0]->body_needed = true;
    mailbox_post(reactor->mailbox,
                 &(struct message){.kind = MESSAGE_WAKE, .token = serve_seen.starts[0]->token});
    settle();
    clock_step_ns = 0;
    CHECK(answered(&c) == 1 && answered(&c) == 2);
    end_counting();
    return busy_ns;
}

SCENE(work_time_counts_towards_the_time_quota) {
    CHECK(busy_of(QUOTA_REQUEST) == 1000); /* from one clock reading to the next */
    memset(&serve_seen, 0, sizeof serve_seen);
    CHECK(busy_of(QUOTA_FETCH) == 0);
}

/* Return the delay in ms after a response that took some time to send. */
static int32_t excess_after_sending(enum quota_kind kind) {
    begin_counting(0);
    quotas_void(quotas, true);
    struct client c = connect_one();
    struct quota_limit limits[QUOTA_KINDS] = {0};
    static const uint8_t key[] = "its own";
    limits[kind] = (struct quota_limit){key, sizeof key, 0.01};
    ask(&c, API_FETCH, 1, 'H', 0);
    expect_gone(EVENT_QUOTA);
    CHECK(quotas_install(quotas, 0, (const uint8_t *)"me", 2, limits, now_ms()) == 0);
    reactors_retry(all, name_of(&c));
    settle();
    wake_up(serve_seen.starts[0]);
    clock_step_ns = 20000000;
    turn();
    clock_step_ns = 0;
    CHECK(answered(&c) == 1);
    int32_t ms = quota_client_charge(connection_of(&c)->quota, QUOTA_REQUEST, 0, now_ms());
    end_counting();
    memset(&serve_seen, 0, sizeof serve_seen);
    return ms;
}

SCENE(send_time_counts_towards_the_time_quota) {
    CHECK(excess_after_sending(QUOTA_REQUEST) > 0);
    CHECK(excess_after_sending(QUOTA_FETCH) == 0);
}

SCENE(mute_time_is_recorded) {
    begin_counting(0);
    quotas_void(quotas, true);
    struct client c = connect_one();
    ask(&c, API_PRODUCE, 1, 'T', 700);
    tell(&c, 0, "me", QUOTA_PRODUCE);
    CHECK(answered(&c) == 1);
    CHECK(quotas_throttled(quotas, (const uint8_t *)"me", 2, now_ms() - 100) == 700);
    CHECK(quotas_throttled(quotas, (const uint8_t *)"he", 2, 0) == 0);
    end_counting();
}

SCENE(memory_shortage_at_a_client_lookup_closes_the_connection) {
    begin_counting(0);
    quotas_void(quotas, true);
    struct client c = connect_one(), other = connect_one();
    post(&c, API_PRODUCE, 1, 'A', 0, 0);
    memory_left = 0;
    settle();
    memory_left = NO_MEMORY_LIMIT;
    CHECK(!is_open(&c) && next_event() == NULL && serve_seen.started == 0 && is_open(&other));
    end_counting();
}
