/* The end of connections: by the peer, by invalid input, by the control plane. */
#include "reactor_simulation.h"

SCENE(produce_is_answered_after_the_end_of_input) {
    begin();
    struct client c = connect_one();
    ask(&c, API_PRODUCE, 1, 'W', 1000);
    shutdown(c.fd, SHUT_WR);
    settle();
    CHECK(is_open(&c));
    after_ms(1000);
    settle();
    CHECK(answered(&c) == 1 && answered(&c) == -1 && !is_open(&c));
    CHECK(STAT(requests_abandoned) == 0);
    end();
}

SCENE(fetch_does_not_wait_after_the_end_of_input) {
    begin();
    struct client c = connect_one();
    ask(&c, API_FETCH, 1, 'W', 1000);
    shutdown(c.fd, SHUT_WR);
    settle();
    CHECK(!is_open(&c) && answered(&c) == -1 && STAT(requests_abandoned) == 1);
    CHECK(serve_seen.abandoned == 1);
    end();
}

SCENE(other_requests_are_answered_after_the_end_of_input) {
    begin();
    struct client c = connect_one(), missing = connect_one();
    ask(&c, METADATA, 1, 'A', 0);
    ask(&missing, API_FETCH, 1, 'M', 1);
    shutdown(c.fd, SHUT_WR);
    shutdown(missing.fd, SHUT_WR);
    settle();
    CHECK(is_open(&c) && is_open(&missing));
    struct event *e = expect(EVENT_REQUEST);
    answer_to(e, false, 0);
    free(e);
    e = expect(EVENT_MISS);
    CHECK(reactors_resume(all, e->token, &(int16_t){0}, 1));
    free(e);
    settle();
    CHECK(answered(&c) == 1 && answered(&c) == -1);
    CHECK(answered(&missing) == 1 && answered(&missing) == -1);
    end();
}

SCENE(reset_connection_cancels_all_waits) {
    begin();
    struct client c = connect_one(), idle = connect_one(), control = connect_one();
    ask(&c, API_PRODUCE, 1, 'H', 0);
    ask(&control, METADATA, 1, 'A', 0);
    leave(&c);
    leave(&idle);
    leave(&control);
    CHECK(!is_open(&c) && !is_open(&idle) && !is_open(&control));
    CHECK(STAT(requests_abandoned) == 2 && serve_seen.abandoned == 1);
    struct event *e = expect(EVENT_REQUEST);
    answer_to(e, false, 0); /* of an unknown request */
    free(e);
    settle();
    end();
}

SCENE(requests_before_the_end_of_input_are_served) {
    begin();
    struct client c = connect_one();
    post(&c, API_PRODUCE, 1, 'S', 0, 0);
    post(&c, API_PRODUCE, 2, 'S', 0, 0);
    post(&c, API_PRODUCE, 3, 'S', 0, 0);
    leave(&c);
    CHECK(!is_open(&c) && serve_seen.started == 3 && STAT(requests_produce) == 3);
    CHECK(STAT(frames_illegal) == 0);
    end();
}

SCENE(half_closed_connection_is_closed_after_muting) {
    begin();
    struct client c = connect_one(), gone = connect_one();
    ask(&c, API_PRODUCE, 1, 'T', 500);
    ask(&gone, API_PRODUCE, 1, 'T', 500);
    post(&c, API_PRODUCE, 2, 'S', 0, 0);
    post(&gone, API_PRODUCE, 2, 'S', 0, 0);
    shutdown(c.fd, SHUT_WR);
    settle();
    leave(&gone);
    CHECK(is_open(&c) && !is_open(&gone) && serve_seen.started == 2);
    after_ms(500);
    settle();
    CHECK(!is_open(&c) && serve_seen.started == 3);
    end();
}

SCENE(end_of_input_within_a_frame_is_not_a_timeout) {
    begin();
    struct client c = connect_one();
    send_bytes_of(&c, "\0\0\1\0abc", 7);
    turn();
    leave(&c);
    CHECK(!is_open(&c) && STAT(frames_late) == 0 && STAT(frames_illegal) == 0);
    end();
}

SCENE(watched_connection_is_reported_once) {
    begin();
    struct client c = connect_one(), other = connect_one();
    uint64_t name = name_of(&c);
    reactors_watch(all, name);
    turn();
    CHECK(next_event() == NULL && is_open(&c));
    leave(&other);
    CHECK(next_event() == NULL);
    leave(&c);
    struct event *e = expect(EVENT_CLOSED);
    CHECK(e->connection == name && next_event() == NULL);
    free(e);
    reactors_watch(all, name);
    turn();
    e = expect(EVENT_CLOSED);
    CHECK(e->connection == name && next_event() == NULL);
    free(e);
    /* No further event follows for a closed connection. */
    reactors_close(all, name);
    reactors_retry(all, name);
    reactors_set_principal(all, name, 4, 0);
    settle();
    CHECK(next_event() == NULL);
    end();
}

SCENE(control_plane_closes_a_connection_immediately) {
    begin();
    struct client c = connect_one(), other = connect_one();
    ask(&c, API_PRODUCE, 1, 'H', 0);
    reactors_close(all, name_of(&c));
    turn();
    CHECK(!is_open(&c) && answered(&c) == -1 && is_open(&other));
    end();
}

SCENE(response_can_close_the_connection) {
    begin();
    struct client c = connect_one();
    post(&c, METADATA, 1, 'A', 0, 0);
    post(&c, METADATA, 2, 'A', 0, 0);
    settle();
    struct event *e = expect(EVENT_REQUEST);
    answer_to(e, true, 0);
    free(e);
    settle();
    CHECK(answered(&c) == 1 && answered(&c) == -1 && next_event() == NULL);
    CHECK(STAT(requests_control) == 1 && STAT(frames_illegal) == 0);
    end();
}

/* The previous response is sent, and nothing after it. */
static void refuse(const void *frame, size_t len) {
    struct client c = connect_one();
    uint64_t illegal = STAT(frames_illegal);
    ask(&c, API_PRODUCE, 5, 'W', 100);
    send_bytes_of(&c, frame, len);
    post(&c, API_PRODUCE, 6, 'A', 0, 0);
    settle();
    CHECK(STAT(frames_illegal) == illegal + 1 && is_open(&c));
    after_ms(100);
    settle();
    CHECK(answered(&c) == 5 && answered(&c) == -1 && !is_open(&c));
    CHECK(STAT(frames_illegal) == illegal + 1);
}

SCENE(illegal_frame_closes_after_earlier_responses) {
    begin();
    uint8_t frame[64];
    refuse("\0\0\0\0", 4);
    refuse("\xff\xff\xff\xff", 4);
    put_i32(frame, (8 << 20) + 1);
    refuse(frame, 4);
    request_of(frame, 99, 1, 'A', 0, 0);
    refuse(frame, 21);
    request_of(frame, API_PRODUCE, 1, 'C', 0, 0);
    refuse(frame, 21);
    end();
}

SCENE(longest_legal_frame_is_received) {
    begin();
    struct client c = connect_one();
    uint8_t frame[4];
    put_i32(frame, 8 << 20);
    send_bytes_of(&c, frame, 4);
    turn();
    CHECK(is_open(&c) && STAT(frames_illegal) == 0);
    CHECK(connection_of(&c)->frame_bytes == (8 << 20) + 4);
    end();
}

SCENE(illegal_request_closes_and_drops_later_ones) {
    begin();
    struct client c = connect_one(), last = connect_one(), alone = connect_one();
    for (int32_t i = 1; i <= 2; i++) {
        ask(&c, API_PRODUCE, i, 'W', 9000);
        ask(&last, API_PRODUCE, i, 'W', 9000);
    }
    ask(&alone, API_PRODUCE, 1, 'W', 9000);
    resume_refuses = true;
    wake_up(serve_seen.starts[0]); /* c's first: later responses could not be assigned */
    wake_up(serve_seen.starts[3]); /* the other connection's last */
    wake_up(serve_seen.starts[4]);
    settle();
    CHECK(!is_open(&c) && is_open(&last) && !is_open(&alone));
    CHECK(answered(&c) == -1 && answered(&last) == 0 && answered(&alone) == -1);
    resume_refuses = false;
    wake_up(serve_seen.starts[1]);
    settle();
    CHECK(answered(&last) == 1 && answered(&last) == -1 && STAT(frames_illegal) == 3);
    end();
}

static void say_hello(const struct client *c, uint8_t first, uint8_t second) {
    uint8_t hello[] = {first, second, 1, 2, 0};
    send_bytes_of(c, hello, sizeof hello);
    settle();
    CHECK(!is_open(c));
}

SCENE(tls_is_detected_only_in_the_first_bytes) {
    begin();
    struct client c = connect_one(), late = connect_one(), no = connect_one(), not = connect_one();
    uint64_t name = name_of(&c);
    ask(&late, API_PRODUCE, 1, 'A', 0);
    say_hello(&late, 22, 3);
    say_hello(&no, 21, 3);
    say_hello(&not, 22, 4);
    CHECK(next_event() == NULL);
    say_hello(&c, 22, 3);
    struct event *e = expect(EVENT_UNSAFE);
    static const char why[] = "TLS on a plain-text port";
    CHECK(e->body_len == sizeof why - 1 && memcmp(e->data, why, sizeof why - 1) == 0);
    CHECK(e->connection == name && e->listener == LISTENER && e->missing_count == 0);
    CHECK(e->peer.port == FIRST_PORT && e->peer.ip[12] == 127 && e->peer.ip[15] == 1);
    CHECK(e->local.port == 9092 && e->local.ip[12] == 10 && e->local.ip[11] == 0xff);
    CHECK(STAT(frames_illegal) == 4);
    free(e);
    end();
}

SCENE(five_failures_per_second_are_reported_and_others_counted) {
    begin();
    for (int i = 0; i < 8; i++) {
        struct client c = connect_one();
        say_hello(&c, 22, 3);
    }
    for (int i = 0; i < 5; i++) {
        struct event *e = expect(EVENT_UNSAFE);
        CHECK(e->missing_count == 0);
        free(e);
    }
    CHECK(next_event() == NULL);
    after_ms(1000);
    for (int i = 0; i < 2; i++) {
        struct client c = connect_one();
        say_hello(&c, 22, 3);
        struct event *e = expect(EVENT_UNSAFE);
        CHECK(e->missing_count == (i == 0 ? 3 : 0));
        free(e);
    }
    end();
}

SCENE(closed_listener_closes_connections_after_their_responses) {
    begin();
    struct reactors_listener second = {.listener = 8, .host = "127.0.0.1", .backlog = 10};
    CHECK(reactors_listen(all, &second) > 0);
    turn();
    struct client idle = connect_one(), fetch = connect_one(), produce = connect_one();
    struct client other = connect_to(8, 0x7f000001);
    CHECK(connection_of(&other)->listener == 8 && connection_of(&idle)->listener == LISTENER);
    ask(&fetch, API_FETCH, 1, 'H', 0);
    ask(&produce, API_PRODUCE, 1, 'W', 500);
    reactors_unlisten(all, LISTENER);
    settle();
    CHECK(!is_open(&idle) && !is_open(&fetch) && is_open(&produce) && is_open(&other));
    CHECK(answered(&fetch) == 1 && answered(&fetch) == -1 && serve_seen.timed_out == 1);
    CHECK(reactor->listeners->listener == 8 && reactor->listeners->next == NULL);
    after_ms(500);
    settle();
    CHECK(answered(&produce) == 1 && answered(&produce) == -1);
    ask(&other, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&other) == 1);
    reactors_unlisten(all, 8);
    settle();
    CHECK(!is_open(&other) && reactor->listeners == NULL);
    end();
}

/* As a connection accepted by another reactor. */
static int hand_on(struct reactor *to) {
    int fd = arrive_from(1);
    struct listener_accepted *late = calloc(1, sizeof *late);
    *late = (struct listener_accepted){.fd = incoming[--incoming_count].result,
                                       .listener = LISTENER,
                                       .limit = all->listener_limits};
    CHECK(late->limit != NULL && late->limit->listener == LISTENER);
    late->limit->connections++;
    CHECK(peers_enter(all->peers, late->peer.ip, 1));
    all->connections++;
    to->load++;
    control_post(to, &(struct message){.kind = MESSAGE_ADOPT, .data = late});
    return fd;
}

SCENE(connection_in_handover_closes_with_its_listener) {
    struct reactors_config config = usual_config();
    config.threads = 2;
    begin_with(&config, 0, NULL);
    struct reactor *other = &all->reactors[1];
    hand_on(other); /* before the end: open until the other reactor learns of it */
    turn_of(1);
    CHECK(all->connections == 1 && other->load == 1);
    reactors_unlisten(all, LISTENER);
    turn_of(1);
    CHECK(other->listeners == NULL && all->connections == 0);
    hand_on(other); /* by the first reactor, which has not learned of it */
    turn_of(1);
    CHECK(all->connections == 0 && other->load == 0);
    while (turn_of(0) == 0) {}
    CHECK(reactor->listeners == NULL);
    end();
}

SCENE(late_connection_of_a_closed_listener_is_closed) {
    begin();
    struct client c = connect_one();
    reactors_stop_accepting(all);
    int fd = hand_on(reactor);
    turn();
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0 && reactor->load == 1 && all->connections == 1);
    CHECK(reactor->listeners == NULL && STAT(connections_accepted) == 1);
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&c) == 1);
    /* A later listener does not listen any more. */
    struct reactors_listener second = {.listener = 8, .host = "127.0.0.1", .backlog = 10};
    CHECK(reactors_listen(all, &second) > 0);
    turn();
    CHECK(reactor->listeners == NULL);
    end();
}
