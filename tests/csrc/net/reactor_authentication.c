/* Connections before authentication: guarded ones, authenticating ones, and handshakes. */
#include "reactor_simulation.h"

static void begin_guarded(unsigned flags) {
    struct reactors_config config = usual_config();
    begin_with(&config, flags, NULL);
}

/* Send a request of any API with an n-byte body. */
static void send_api(const struct client *c, int16_t key, int16_t version, size_t n) {
    uint8_t bytes[2048] = {0};
    put_i32(bytes, (int32_t)(10 + n));
    put_i16(bytes + 4, key);
    put_i16(bytes + 6, version);
    put_i32(bytes + 8, 1);
    send_bytes_of(c, bytes, 14 + n);
    settle();
}

/* Return true if it was passed on and answered. */
static bool passes(const struct client *c, int16_t key, int16_t version, size_t n) {
    send_api(c, key, version, n);
    struct event *e = next_event();
    if (e == NULL) return false;
    CHECK(e->kind == EVENT_REQUEST && e->api_key == key && e->api_version == version);
    answer_to(e, false, 0);
    free(e);
    settle();
    CHECK(answered(c) == 1);
    return true;
}

SCENE(unauthenticated_connection_may_only_authenticate) {
    static const int16_t keys[] = {API_PRODUCE, API_FETCH, METADATA};
    begin_guarded(LISTENER_NEEDS_AUTH);
    for (int i = 0; i < 3; i++) {
        struct client c = connect_one();
        CHECK(!passes(&c, keys[i], VERSION, 5) && !is_open(&c));
    }
    CHECK(STAT(frames_illegal) == 3 && serve_seen.started == 0);
    struct client c = connect_one();
    CHECK(passes(&c, API_VERSIONS, 0, 0) && passes(&c, API_SASL_HANDSHAKE, 1, 3));
    for (int i = 0; i < 3; i++) CHECK(passes(&c, API_SASL_AUTHENTICATE, 0, 9));
    reactors_set_principal(all, name_of(&c), 8, 0);
    turn();
    ask(&c, API_PRODUCE, 4, 'A', 0);
    CHECK(answered(&c) == 4 && serve_seen.starts[0]->principal == 8);
    CHECK(passes(&c, METADATA, 0, 0) && passes(&c, API_VERSIONS, 0, 0));
    CHECK(passes(&c, API_VERSIONS, 0, 0) && STAT(frames_illegal) == 3);
    end();
}

SCENE(unauthenticated_api_versions_is_limited_to_two) {
    begin_guarded(LISTENER_NEEDS_AUTH);
    struct client twice = connect_one(), newer = connect_one(), stubborn = connect_one();
    CHECK(passes(&twice, API_VERSIONS, 0, 0));
    CHECK(!passes(&twice, API_VERSIONS, 0, 0) && !is_open(&twice));
    CHECK(passes(&newer, API_VERSIONS, 5, 1) && passes(&newer, API_VERSIONS, 4, 1));
    CHECK(!passes(&newer, API_VERSIONS, 4, 1) && !is_open(&newer));
    CHECK(passes(&stubborn, API_VERSIONS, 5, 1) && passes(&stubborn, API_VERSIONS, 5, 1));
    CHECK(!passes(&stubborn, API_VERSIONS, 5, 1) && !is_open(&stubborn));
    end();
}

SCENE(unauthenticated_frames_have_a_smaller_limit) {
    begin_guarded(LISTENER_NEEDS_AUTH);
    struct client c = connect_one();
    CHECK(passes(&c, API_SASL_AUTHENTICATE, 0, 990)); /* 1000 with its header */
    send_api(&c, API_SASL_AUTHENTICATE, 0, 991);
    CHECK(!is_open(&c) && STAT(frames_illegal) == 1);
    struct client known = connect_one();
    reactors_set_principal(all, name_of(&known), 8, 0);
    turn();
    CHECK(passes(&known, METADATA, 0, 1500));
    end();
}

SCENE(tokens_after_an_old_handshake_have_no_header) {
    begin_guarded(LISTENER_NEEDS_AUTH);
    struct client c = connect_one();
    CHECK(passes(&c, API_SASL_HANDSHAKE, 0, 3));
    for (int i = 0; i < 2; i++) {
        send_bytes_of(&c, "\0\0\0\5token", 9);
        settle();
        struct event *e = expect(EVENT_REQUEST);
        CHECK(e->api_key == API_SASL_AUTHENTICATE && e->api_version == GUARD_RAW_VERSION);
        CHECK(e->body_len == 5 && memcmp(e->data + e->body_at, "token", 5) == 0);
        CHECK(e->client_id_len == -1 && e->body_at == 0);
        if (i == 1) reactors_set_principal(all, e->connection, 2, 0);
        answer_to(e, false, 0);
        free(e);
        settle();
    }
    ask(&c, API_PRODUCE, 4, 'A', 0);
    CHECK(serve_seen.started == 1 && serve_seen.starts[0]->principal == 2);
    end();
}

SCENE(expired_session_may_only_reauthenticate) {
    begin_guarded(LISTENER_NEEDS_AUTH);
    struct client c = connect_one(), late = connect_one(), no = connect_one();
    const struct client *clients[] = {&c, &late, &no};
    for (int i = 0; i < 3; i++) reactors_set_principal(all, name_of(clients[i]), 8, 5000);
    turn();
    after_ms(4999);
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&c) == 1);
    CHECK(passes(&c, METADATA, 0, 1500) && passes(&c, API_SASL_HANDSHAKE, 0, 3));
    after_ms(1);
    ask(&no, API_PRODUCE, 1, 'A', 0);
    CHECK(!is_open(&no) && answered(&no) == -1 && serve_seen.started == 1);
    CHECK(!passes(&late, API_VERSIONS, 0, 0) && !is_open(&late));
    /* Requests still have a header: only tokens before authentication have none. */
    CHECK(passes(&c, API_SASL_HANDSHAKE, 1, 3) && passes(&c, API_SASL_AUTHENTICATE, 0, 3));
    reactors_set_principal(all, name_of(&c), 8, 0);
    turn();
    after_ms(100000);
    ask(&c, API_PRODUCE, 2, 'A', 0);
    CHECK(answered(&c) == 2 && STAT(frames_illegal) == 2);
    end();
}

SCENE(session_expires_regardless_of_its_principal_number) {
    begin_guarded(LISTENER_NEEDS_AUTH);
    struct client c = connect_one(), other = connect_one();
    reactors_set_principal(all, name_of(&c), 8, 5000);
    reactors_set_principal(all, name_of(&other), 8, 0);
    turn();
    reactors_set_principal(all, name_of(&c), 9, REACTOR_SAME_SESSION);
    reactors_set_principal(all, name_of(&other), 9, REACTOR_SAME_SESSION);
    turn();
    after_ms(4999);
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&c) == 1 && serve_seen.starts[0]->principal == 9);
    after_ms(1);
    ask(&other, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&other) == 1 && serve_seen.starts[1]->principal == 9);
    ask(&c, API_PRODUCE, 2, 'A', 0);
    CHECK(!is_open(&c) && answered(&c) == -1 && serve_seen.started == 2);
    end();
}

SCENE(requests_wait_for_the_principal_number) {
    begin_guarded(LISTENER_NEEDS_APPROVAL);
    struct client c = connect_one();
    uint64_t name = name_of(&c);
    struct event *e = expect(EVENT_CONNECTED);
    CHECK(e->connection == name && e->listener == LISTENER && e->body_len == 0);
    CHECK(e->peer.port == FIRST_PORT && e->local.port == 9092);
    free(e);
    ask(&c, API_PRODUCE, 1, 'A', 0);
    after_ms(1 << 22); /* it waits for the server */
    CHECK(serve_seen.started == 0 && is_open(&c) && next_event() == NULL);
    reactors_set_principal(all, name, 5, 0);
    reactors_retry(all, name);
    settle();
    CHECK(answered(&c) == 1 && serve_seen.starts[0]->principal == 5);
    /* The frame timeout starts when reading resumes. */
    send_bytes_of(&c, "\0\0", 2);
    turn();
    after_ms(29999);
    CHECK(is_open(&c));
    after_ms(1);
    CHECK(!is_open(&c));
    end();
}

SCENE(memory_shortage_at_a_principal_lookup_closes_the_connection) {
    begin_guarded(LISTENER_NEEDS_APPROVAL);
    connect_one();
    expect_gone(EVENT_CONNECTED);
    int fd = arrive_from(0x7f000001);
    memory_left = 0; /* its address and its slab already have space */
    knock();
    memory_left = NO_MEMORY_LIMIT;
    char byte;
    CHECK(__real_recv(fd, &byte, 1, 0) == 0 && STAT(connections) == 1 && next_event() == NULL);
    end();
}

SCENE(control_listener_forwards_all_requests) {
    struct reactors_config config = usual_config();
    config.rules.control_bytes_max = 2000;
    begin_with(&config, LISTENER_CONTROL, NULL);
    struct client c = connect_one();
    CHECK(passes(&c, API_PRODUCE, VERSION, 1990) && passes(&c, API_FETCH, VERSION, 5));
    CHECK(serve_seen.started == 0);
    send_api(&c, API_PRODUCE, VERSION, 1991);
    CHECK(!is_open(&c) && STAT(frames_illegal) == 1);
    end();
}

SCENE(only_natively_served_requests_may_exceed_the_control_limit) {
    struct reactors_config config = usual_config();
    config.rules.control_bytes_max = 1000;
    begin_with(&config, 0, NULL);
    struct client c = connect_one();
    CHECK(passes(&c, METADATA, 0, 990));
    post(&c, API_PRODUCE, 3, 'A', 0, 1500);
    settle();
    CHECK(answered(&c) == 3);
    send_bytes_of(&c, "\0\0\3\xe9\0", 5); /* half of its API key */
    turn();
    CHECK(is_open(&c));
    send_bytes_of(&c, "\3", 1);
    turn();
    CHECK(!is_open(&c) && STAT(frames_illegal) == 1);
    end();
}

/* ---- handshakes */

static struct {
    int opened, retained, released, ended, shakes;
    bool refuses;
    enum transport_shake shake;
    const char *text, *failure;
    bool resumed;
    int64_t takes_ns;
} maker_seen;

static int session_reads;
static ssize_t session_recv(struct transport *t, void *to, size_t room) {
    session_reads++;
    return recv(t->fd, to, room, 0);
}
static ssize_t session_send(struct transport *t, struct iovec *pieces, size_t count, bool more) {
    return transport_plain.send(t, pieces, count, more);
}
static enum transport_shake session_shake(struct transport *t, struct transport_report *out) {
    maker_seen.shakes++;
    clock_ns += maker_seen.takes_ns;
    out->resumed = maker_seen.resumed;
    snprintf(out->text, sizeof out->text, "%s", maker_seen.text);
    if (maker_seen.shake == TRANSPORT_SAFE) t->handshaking = false;
    return maker_seen.shake;
}
static const char *session_failure(const struct transport *t) {
    (void)t;
    return maker_seen.failure;
}
static void session_end(struct transport *t) {
    maker_seen.ended++;
    t->session = NULL;
}
static const struct transport_calls session_calls = {.recv = session_recv,
                                                     .send = session_send,
                                                     .handshake = session_shake,
                                                     .failure = session_failure,
                                                     .end = session_end};
static bool maker_open(struct transport_maker *m, struct transport *t) {
    (void)m;
    maker_seen.opened++;
    t->calls = &session_calls;
    t->session = &maker_seen;
    t->handshaking = true;
    return !maker_seen.refuses;
}
static void maker_retain(struct transport_maker *m) { (void)m, maker_seen.retained++; }
static void maker_release(struct transport_maker *m) { (void)m, maker_seen.released++; }
static struct transport_maker maker = {maker_open, maker_retain, maker_release};

static void begin_shaking(unsigned flags) {
    struct reactors_config config = usual_config();
    memset(&maker_seen, 0, sizeof maker_seen);
    maker_seen.text = "";
    begin_with(&config, flags, &maker);
    CHECK(maker_seen.retained == 1);
}
static void end_shaking(void) {
    end();
    CHECK(maker_seen.retained == maker_seen.released);
}

SCENE(handshake_has_10_s_and_then_the_idle_limit_applies) {
    begin_shaking(0);
    struct client c = connect_one(), good = connect_one();
    CHECK(maker_seen.opened == 2 && maker_seen.retained == 3 && maker_seen.released == 2);
    after_ms(5000);
    maker_seen.shake = TRANSPORT_SAFE;
    ask(&good, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&good) == 1 && STAT(handshakes) == 1 && STAT(handshakes_resumed) == 0);
    maker_seen.shake = TRANSPORT_WAITS;
    after_ms(4999);
    CHECK(is_open(&c));
    after_ms(1);
    CHECK(!is_open(&c) && is_open(&good) && STAT(handshakes_failed) == 1);
    struct event *e = expect(EVENT_UNSAFE);
    CHECK(memcmp(e->data, "the handshake took too long", e->body_len) == 0 && e->body_len == 27);
    free(e);
    after_ms(595000 - 1);
    CHECK(is_open(&good));
    CHECK(STAT(connections_idle) == 0 && maker_seen.ended == 1);
    after_ms(1);
    CHECK(!is_open(&good) && STAT(connections_idle) == 1 && maker_seen.ended == 2);
    end_shaking();
}

SCENE(failed_handshake_is_reported_with_a_reason) {
    begin_shaking(0);
    struct client mute = connect_one();
    maker_seen.shake = TRANSPORT_FAILED;
    send_bytes_of(&mute, "x", 1);
    settle();
    CHECK(!is_open(&mute) && next_event() == NULL && STAT(handshakes_failed) == 1);
    maker_seen.text = "no trust";
    struct client c = connect_one();
    send_bytes_of(&c, "x", 1);
    settle();
    struct event *e = expect(EVENT_UNSAFE);
    CHECK(e->body_len == 8 && memcmp(e->data, "no trust", 8) == 0 && e->listener == LISTENER);
    free(e);
    CHECK(!is_open(&c) && STAT(handshakes_failed) == 2 && STAT(handshakes) == 0);
    CHECK(maker_seen.ended == 2);
    end_shaking();
}

SCENE(certificate_sets_the_principal_before_the_first_request) {
    static const struct {
        unsigned flags;
        const char *name;
        bool asks;
    } cases[] = {{0, "CN=me", true},
                 {0, "", false},
                 {LISTENER_NEEDS_AUTH, "CN=me", false},
                 {LISTENER_NEEDS_APPROVAL, "", true},
                 {LISTENER_NEEDS_AUTH | LISTENER_NEEDS_APPROVAL, "CN=me", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin_shaking(cases[i].flags);
        struct client c = connect_one();
        CHECK(next_event() == NULL);
        maker_seen.shake = TRANSPORT_SAFE;
        maker_seen.text = cases[i].name;
        maker_seen.resumed = true;
        send_api(&c, API_VERSIONS, 0, 0);
        struct event *e = next_event();
        CHECK(e->kind == (cases[i].asks ? EVENT_CONNECTED : EVENT_REQUEST));
        if (cases[i].asks)
            CHECK(e->body_len == strlen(cases[i].name) &&
                  memcmp(e->data, cases[i].name, e->body_len) == 0);
        free(e);
        CHECK(STAT(handshakes) == 1 && STAT(handshakes_resumed) == 1);
        maker_seen.shake = TRANSPORT_WAITS;
        end_shaking();
    }
}

SCENE(iteration_spends_half_a_millisecond_on_handshakes) {
    begin_shaking(0);
    struct client c[4];
    for (int i = 0; i < 4; i++) c[i] = connect_one();
    settle();
    for (int i = 0; i < 4; i++) send_bytes_of(&c[i], "x", 1);
    maker_seen.takes_ns = 250000;
    maker_seen.shakes = 0;
    CHECK(turn() == 0);
    CHECK(maker_seen.shakes == 2);
    CHECK(turn() == 0 && maker_seen.shakes == 3); /* as a ready connection */
    CHECK(turn() > 0 && maker_seen.shakes == 4);
    end_shaking();
}

SCENE(only_failures_before_use_are_reported) {
    begin_shaking(0);
    struct client c = connect_one(), used = connect_one(), silent = connect_one();
    maker_seen.shake = TRANSPORT_SAFE;
    ask(&used, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&used) == 1);
    const struct client *clients[] = {&used, &c, &silent};
    static const char *const failures[] = {"we are not trusted", "we are not trusted", NULL};
    for (int i = 0; i < 3; i++) {
        maker_seen.failure = failures[i];
        send_bytes_of(clients[i], "x", 1); /* completes the handshake */
        settle();
        connection_of(clients[i])->state = CONNECTION_FAILED;
        send_bytes_of(clients[i], "x", 1);
        settle();
        CHECK(!is_open(clients[i]));
        struct event *e = next_event();
        CHECK((e != NULL) == (i == 1));
        if (e != NULL) CHECK(e->kind == EVENT_UNSAFE && e->body_len == 18);
        free(e);
    }
    end_shaking();
}

SCENE(failed_transport_creation_closes_the_connection) {
    begin_shaking(0);
    maker_seen.refuses = true;
    int fd = arrive_from(1);
    knock();
    char byte;
    CHECK(__real_recv(fd, &byte, 1, 0) == 0 && reactor->load == 0 && all->connections == 0);
    CHECK(maker_seen.ended == 1 && reactor->connections.live == 0);
    end_shaking();
}

static ssize_t would_block(int fd, size_t bytes) {
    (void)fd, (void)bytes;
    errno = EAGAIN;
    return -1;
}

SCENE(tls_reads_may_need_writes_and_vice_versa) {
    begin_shaking(0);
    struct client c = connect_one();
    maker_seen.shake = TRANSPORT_SAFE;
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&c) == 1);
    int reads = session_reads;
    play_event(&c, EPOLLOUT);
    CHECK(session_reads > reads);
    played_send = would_block;
    ask(&c, API_PRODUCE, 2, 'A', 0);
    CHECK((connection_of(&c)->waits & WAIT_OUTPUT) && answered(&c) == 0);
    played_send = NULL;
    play_event(&c, EPOLLIN);
    CHECK(answered(&c) == 2 && !(connection_of(&c)->waits & WAIT_OUTPUT));
    end_shaking();
}

SCENE(plain_connection_is_read_when_readable) {
    struct reactors_config config = usual_config();
    begin_with(&config, 0, NULL);
    struct client c = connect_one();
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&c) == 1);
    post(&c, API_PRODUCE, 2, 'A', 0, 0);
    int64_t began_ms = connection_of(&c)->active_ms;
    CHECK(!connection_of(&c)->readable);
    played_send = would_block;
    turn();
    CHECK((connection_of(&c)->waits & WAIT_OUTPUT) && began_ms == connection_of(&c)->active_ms);
    played_send = NULL;
    play_event(&c, EPOLLIN);
    CHECK((connection_of(&c)->waits & WAIT_OUTPUT) && answered(&c) == 0); /* reported as blocked */
    play_event(&c, EPOLLOUT);
    settle();
    CHECK(answered(&c) == 2);
    end();
}
