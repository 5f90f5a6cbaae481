/* The timeouts of connections: exact to the millisecond, and the clock readings that count. */
#include "reactor_simulation.h"

static void begin_idle(int64_t idle_ms_max) {
    struct reactors_config config = usual_config();
    config.idle_ms_max = idle_ms_max;
    begin_with(&config, 0, NULL);
}

SCENE(idle_connection_is_closed_to_the_millisecond) {
    begin_idle(5000);
    struct client c = connect_one(), other = connect_one();
    after_ms(3000);
    ask(&other, API_PRODUCE, 1, 'A', 0);
    after_ms(1999);
    CHECK(is_open(&c) && STAT(connections) == 2);
    after_ms(1);
    CHECK(!is_open(&c) && answered(&c) == -1 && is_open(&other));
    CHECK(STAT(connections_idle) == 1 && STAT(connections_closed) == 1 && STAT(connections) == 1);
    after_ms(2999);
    CHECK(is_open(&other));
    after_ms(1);
    CHECK(!is_open(&other) && STAT(connections_idle) == 2);
    CHECK(STAT(connections_stalled) == 0 && STAT(frames_late) == 0);
    CHECK(STAT(connections_accepted) == 2 && reactor->load == 0 && all->connections == 0);
    end();
}

SCENE(no_idle_limit_keeps_connections) {
    begin_idle(-1);
    struct client c = connect_one();
    after_ms(1 << 30);
    ask(&c, API_PRODUCE, 3, 'A', 0);
    CHECK(answered(&c) == 3 && STAT(connections_idle) == 0);
    end();
}

SCENE(idle_limit_of_zero_closes_immediately) {
    begin_idle(0);
    arrive_from(1);
    knock();
    CHECK(STAT(connections_idle) == 1 && STAT(connections) == 0);
    end();
}

SCENE(usual_request_moves_no_timer) {
    begin();
    struct client c = connect_one();
    int64_t at_ms = connection_of(&c)->timer.at_ms;
    CHECK(at_ms == now_ms() + 600000);
    pass_ms(100);
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(connection_of(&c)->timer.at_ms == at_ms && reactor->timers.count == 2);
    end();
}

SCENE(frame_timeout_is_30_s_plus_time_per_byte) {
    begin();
    struct client c = connect_one();
    uint8_t bytes[2000];
    request_of(bytes, API_PRODUCE, 1, 'A', 0, 1900);
    send_bytes_of(&c, bytes, 640);
    turn();
    after_ms(29000);
    send_bytes_of(&c, bytes + 640, 640);
    turn();
    after_ms(1019);
    CHECK(is_open(&c));
    after_ms(1);
    CHECK(!is_open(&c) && answered(&c) == -1 && STAT(frames_late) == 1);
    CHECK(STAT(connections_idle) == 0 && STAT(connections_stalled) == 0);
    end();
}

SCENE(each_frame_has_its_own_timeout) {
    begin();
    struct client c = connect_one();
    uint8_t bytes[100];
    size_t len = request_of(bytes, API_PRODUCE, 1, 'A', 0, 0);
    for (int i = 0; i < 3; i++) {
        send_bytes_of(&c, bytes, 10);
        turn();
        after_ms(29999);
        CHECK(answered(&c) == 0);
        send_bytes_of(&c, bytes + 10, len - 10);
        turn();
        CHECK(answered(&c) == 1);
    }
    end();
}

SCENE(mostly_empty_buffer_is_shrunk_after_a_second) {
    begin();
    struct client c = connect_one();
    uint8_t bytes[3000];
    request_of(bytes, API_PRODUCE, 1, 'A', 0, 2900);
    send_bytes_of(&c, bytes, 700);
    turn();
    size_t room = connection_of(&c)->in->room;
    CHECK(room > 60000);
    after_ms(999);
    CHECK(connection_of(&c)->in->room == room);
    after_ms(1);
    CHECK(connection_of(&c)->in->room == input_room_for(1400));
    CHECK(STAT(frames_late) == 0 && STAT(connections_idle) == 0);
    send_bytes_of(&c, bytes + 700, 2921 - 700);
    turn();
    CHECK(answered(&c) == 1);
    end();
}

SCENE(failed_shrink_is_retried_after_a_second) {
    begin();
    struct client c = connect_one();
    uint8_t bytes[1000];
    request_of(bytes, API_PRODUCE, 1, 'A', 0, 900);
    send_bytes_of(&c, bytes, 50);
    turn();
    size_t room = connection_of(&c)->in->room;
    memory_left = 0;
    after_ms(1000);
    CHECK(connection_of(&c)->in->room == room);
    memory_left = NO_MEMORY_LIMIT;
    after_ms(999);
    CHECK(connection_of(&c)->in->room == room);
    after_ms(1);
    CHECK(connection_of(&c)->in->room == input_room_for(100));
    end();
}

SCENE(client_that_never_reads_is_closed_after_60_s) {
    begin();
    struct client c = connect_one();
    ask(&c, API_FETCH, 1, 'R', 3000000);
    CHECK(connection_of(&c)->waits & WAIT_OUTPUT);
    after_ms(30000);
    uint8_t *taken = malloc(3000000);
    CHECK(take_bytes(&c, taken, 300000) > 100000);
    settle();
    CHECK(connection_of(&c)->waits & WAIT_OUTPUT);
    after_ms(59999);
    CHECK(is_open(&c));
    after_ms(1);
    CHECK(!is_open(&c) && STAT(connections_stalled) == 1);
    CHECK(STAT(frames_late) == 0 && STAT(connections_idle) == 0);
    free(taken);
    end();
}

static ssize_t refuse_all(int fd, size_t bytes) {
    (void)fd, (void)bytes;
    errno = EAGAIN;
    return -1;
}

SCENE(write_timeout_starts_with_the_response) {
    begin();
    struct client c = connect_one();
    after_ms(100000);
    played_send = refuse_all;
    ask(&c, API_FETCH, 1, 'A', 0);
    after_ms(59999);
    CHECK(is_open(&c));
    after_ms(1);
    CHECK(!is_open(&c) && STAT(connections_stalled) == 1);
    played_send = NULL;
    end();
}

SCENE(waiting_request_has_no_idle_timeout) {
    begin_idle(1000);
    struct client served = connect_one(), controlled = connect_one();
    ask(&served, API_FETCH, 1, 'H', 0);
    ask(&controlled, METADATA, 1, 'A', 0);
    after_ms(40 << 20);
    CHECK(is_open(&served) && is_open(&controlled));
    struct event *e = expect(EVENT_REQUEST);
    answer_to(e, false, 0);
    free(e);
    settle();
    CHECK(answered(&controlled) == 1 && answered(&served) == 0);
    after_ms(999);
    CHECK(is_open(&controlled));
    after_ms(1);
    CHECK(!is_open(&controlled) && is_open(&served) && STAT(connections_idle) == 1);
    end();
}

SCENE(muted_connection_resumes_to_the_millisecond) {
    begin();
    struct client c = connect_one();
    post(&c, API_PRODUCE, 1, 'T', 500, 0);
    post(&c, API_PRODUCE, 2, 'A', 0, 0);
    settle();
    CHECK(answered(&c) == 1 && answered(&c) == 0 && STAT(requests_throttled) == 1);
    after_ms(499);
    CHECK(answered(&c) == 0 && serve_seen.started == 1);
    after_ms(1);
    CHECK(answered(&c) == 2 && serve_seen.started == 2);
    end();
}

SCENE(acks_0_and_control_requests_can_mute) {
    begin();
    struct client c = connect_one();
    post(&c, API_PRODUCE, 1, 'U', 500, 0);
    post(&c, METADATA, 2, 'A', 0, 0);
    settle();
    after_ms(499);
    CHECK(next_event() == NULL);
    after_ms(1);
    struct event *e = expect(EVENT_REQUEST);
    answer_to(e, false, 700);
    free(e);
    post(&c, API_PRODUCE, 3, 'A', 0, 0);
    settle();
    CHECK(answered(&c) == 2 && STAT(requests_throttled) == 2);
    after_ms(699);
    CHECK(answered(&c) == 0);
    after_ms(1);
    CHECK(answered(&c) == 3);
    end();
}

/* The first of two Produces is appended when the second has already muted the connection. */
static void mute_twice(int32_t second_ms, int64_t until_ms) {
    begin();
    struct client c = connect_one();
    post(&c, API_PRODUCE, 1, 'W', 100, 0);
    post(&c, API_PRODUCE, 2, 'T', 1000, 0);
    post(&c, API_PRODUCE, 3, 'A', 0, 0);
    settle();
    CHECK(answered(&c) == 0 && serve_seen.started == 2);
    serve_seen.starts[0]->throttle_ms = second_ms;
    pass_ms(100);
    settle();
    CHECK(answered(&c) == 1 && answered(&c) == 2 && answered(&c) == 0);
    after_ms(until_ms - 101);
    CHECK(answered(&c) == 0);
    after_ms(1);
    CHECK(answered(&c) == 3 && STAT(requests_throttled) == 2);
    end();
}

SCENE(shorter_mute_does_not_end_a_longer_one) { mute_twice(500, 1000); }
SCENE(longer_mute_extends_a_shorter_one) { mute_twice(2000, 2100); }

SCENE(frame_timeout_starts_when_muting_ends) {
    begin_idle(5000);
    struct client c = connect_one();
    post(&c, API_PRODUCE, 1, 'T', 40000, 0);
    uint8_t bytes[100];
    size_t len = request_of(bytes, API_PRODUCE, 2, 'A', 0, 0);
    send_bytes_of(&c, bytes, len - 1);
    settle();
    CHECK(answered(&c) == 1);
    after_ms(40000);
    CHECK(is_open(&c));
    after_ms(29999);
    CHECK(is_open(&c));
    after_ms(1);
    CHECK(!is_open(&c) && STAT(frames_late) == 1);
    end();
}

SCENE(idle_time_starts_after_muting) {
    begin_idle(5000);
    struct client c = connect_one();
    ask(&c, API_PRODUCE, 1, 'T', 10000);
    after_ms(10000);
    CHECK(is_open(&c));
    after_ms(4999);
    CHECK(is_open(&c));
    after_ms(1);
    CHECK(!is_open(&c) && STAT(connections_idle) == 1);
    end();
}

SCENE(muted_half_closed_connection_becomes_idle) {
    begin_idle(5000);
    struct client c = connect_one(), waits = connect_one(), live = connect_one();
    ask(&waits, API_PRODUCE, 1, 'W', 5500);
    post(&waits, API_PRODUCE, 2, 'T', 10000, 0);
    ask(&c, API_PRODUCE, 1, 'T', 10000);
    ask(&live, API_PRODUCE, 1, 'T', 10000);
    post(&c, API_PRODUCE, 2, 'S', 0, 0); /* no longer read */
    after_ms(1000);
    shutdown(c.fd, SHUT_WR);
    shutdown(waits.fd, SHUT_WR);
    settle();
    after_ms(3999);
    CHECK(is_open(&c) && is_open(&waits));
    after_ms(1);
    CHECK(!is_open(&c) && is_open(&waits) && STAT(connections_idle) == 1);
    after_ms(500); /* it was waiting, not idle */
    settle();
    CHECK(answered(&waits) == 1 && answered(&waits) == 2 && is_open(&waits));
    after_ms(4499);
    CHECK(is_open(&waits));
    after_ms(1);
    CHECK(!is_open(&waits) && is_open(&live));
    end();
}

SCENE(unauthenticated_connection_has_10_s) {
    struct reactors_config config = usual_config();
    begin_with(&config, LISTENER_NEEDS_AUTH, NULL);
    struct client c = connect_one();
    after_ms(9999);
    CHECK(is_open(&c));
    after_ms(1);
    CHECK(!is_open(&c) && STAT(connections_idle) == 1);
    end();
}

SCENE(unauthenticated_connection_has_10_s_without_an_idle_limit) {
    struct reactors_config config = usual_config();
    config.idle_ms_max = -1;
    begin_with(&config, LISTENER_NEEDS_AUTH, NULL);
    struct client c = connect_one(), known = connect_one();
    reactors_set_principal(all, name_of(&known), 4, 0);
    turn();
    after_ms(9999);
    CHECK(is_open(&c));
    after_ms(1);
    CHECK(!is_open(&c));
    after_ms(1 << 20);
    CHECK(is_open(&known));
    end();
}

SCENE(unauthenticated_connection_has_at_most_the_idle_limit) {
    struct reactors_config config = usual_config();
    config.idle_ms_max = 3000;
    begin_with(&config, LISTENER_NEEDS_AUTH, NULL);
    struct client c = connect_one();
    after_ms(2999);
    CHECK(is_open(&c));
    after_ms(1);
    CHECK(!is_open(&c));
    end();
}

SCENE(request_ends_at_its_deadline) {
    begin();
    struct client c = connect_one();
    ask(&c, API_FETCH, 1, 'X', 700);
    after_ms(699);
    CHECK(answered(&c) == 0 && serve_seen.resumed == 0);
    after_ms(1);
    settle();
    CHECK(answered(&c) == 1 && serve_seen.timed_out == 1 && serve_seen.resumed == 1);
    /* An expired deadline gets its own turn. */
    ask(&c, API_FETCH, 2, 'X', 0);
    CHECK(answered(&c) == 0);
    after_ms(1);
    settle();
    CHECK(answered(&c) == 2);
    end();
}
