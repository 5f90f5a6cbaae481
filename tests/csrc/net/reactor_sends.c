/* Sending responses: in which pieces, in whose turn, and the effects of a full socket. */
#include "reactor_simulation.h"

enum { TURN = 256 << 10 };

/* Check the complete response to a range of n bytes. */
static void take_range(const struct client *c, int32_t correlation_id, uint32_t n) {
    uint8_t *bytes = malloc(n + 9);
    size_t got = 0;
    for (int i = 0; got < n + 9; i++) {
        ssize_t took = take_bytes(c, bytes + got, n + 9 - got);
        CHECK(took >= 0 && i < 10000);
        got += (size_t)took;
        settle();
    }
    CHECK(get_i32(bytes) == (int32_t)n + 5 && get_i32(bytes + 4) == correlation_id);
    for (uint32_t i = 0; i < n; i++) CHECK(bytes[8 + i] == (8 + i) % 251);
    CHECK(bytes[8 + n] == '!');
    free(bytes);
}

SCENE(file_ranges_and_copies_are_sent_in_order) {
    begin();
    struct client c = connect_one();
    static const uint32_t lengths[] = {1, 32768, 32769, 65536, 300000, 3000000};
    uint64_t from_files = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint64_t out = STAT(bytes_out);
        ask(&c, API_FETCH, 5, 'R', lengths[i]);
        take_range(&c, 5, lengths[i]);
        if (lengths[i] > 32768) from_files += lengths[i];
        CHECK(STAT(bytes_sendfile) == from_files && STAT(bytes_out) == out + lengths[i] + 9);
        if (lengths[i] > 65536) continue;
        ask(&c, API_FETCH, 6, 'P', lengths[i]);
        take_range(&c, 6, lengths[i]);
        CHECK(STAT(bytes_sendfile) == from_files);
    }
    CHECK(STAT(requests_in_flight) == 0 && serve_seen.ranges == 0);
    end();
}

static int send_calls, sendfile_calls, more_flags;
static size_t sendfile_bytes[SENDS_MAX];
static ssize_t count_sends(int fd, size_t bytes) {
    (void)fd, (void)bytes;
    more_flags += (last_send_flags & MSG_MORE) != 0;
    CHECK(last_send_flags & MSG_NOSIGNAL);
    send_calls++;
    return -2;
}
static ssize_t count_sendfiles(int fd, size_t bytes) {
    (void)fd;
    sendfile_bytes[sendfile_calls++] = bytes;
    return -2;
}

SCENE(pending_responses_are_sent_in_one_call) {
    begin();
    struct client c = connect_one();
    played_send = count_sends;
    for (int32_t i = 1; i <= 5; i++) post(&c, API_PRODUCE, i, 'W', 1000, 0);
    settle();
    for (int i = 4; i >= 0; i--) wake_up(serve_seen.starts[i]);
    settle();
    for (int32_t i = 1; i <= 5; i++) CHECK(answered(&c) == i);
    CHECK(send_calls == 1 && more_flags == 0);
    /* Responses after a closing one are not sent. */
    struct client last = connect_one();
    ask(&last, METADATA, 1, 'A', 0);
    struct event *e = expect(EVENT_REQUEST);
    answer_to(e, true, 0);
    free(e);
    settle();
    CHECK(answered(&last) == 1 && answered(&last) == -1 && send_calls == 2);
    end();
}

SCENE(header_before_a_file_range_is_sent_with_msg_more) {
    begin();
    struct client c = connect_one();
    played_send = count_sends;
    played_sendfile = count_sendfiles;
    ask(&c, API_FETCH, 1, 'R', 50000);
    take_range(&c, 1, 50000);
    CHECK(send_calls == 2 && more_flags == 1 && sendfile_calls == 1);
    CHECK(sendfile_bytes[0] == 50000);
    ask(&c, API_FETCH, 2, 'P', 50000);
    take_range(&c, 2, 50000);
    CHECK(send_calls == 3 && more_flags == 1 && sendfile_calls == 1);
    end();
}

static size_t most; /* of each call; 0: it would block */
static ssize_t send_little(int fd, size_t bytes) {
    (void)fd;
    send_calls++;
    errno = EAGAIN;
    return most == 0 ? -1 : bytes < most ? (ssize_t)bytes : (ssize_t)most;
}

SCENE(response_over_single_byte_sends_is_complete) {
    begin();
    struct client c = connect_one();
    played_send = played_sendfile = send_little;
    most = 1;
    post(&c, API_PRODUCE, 1, 'A', 0, 0);
    post(&c, API_PRODUCE, 2, 'A', 0, 0);
    settle();
    CHECK(answered(&c) == 1 && answered(&c) == 2 && send_calls == 2 * 13);
    most = 3;
    ask(&c, API_FETCH, 3, 'P', 2000);
    take_range(&c, 3, 2000);
    most = 7000;
    ask(&c, API_FETCH, 4, 'R', 40000);
    take_range(&c, 4, 40000);
    CHECK(STAT(bytes_sendfile) == 40000);
    end();
}

SCENE(blocked_response_stops_reading_and_new_requests) {
    begin();
    struct client c = connect_one();
    played_send = send_little;
    most = 0;
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK((connection_of(&c)->waits & WAIT_OUTPUT) && send_calls == 1 && answered(&c) == 0);
    uint64_t in = STAT(bytes_in);
    post(&c, API_PRODUCE, 2, 'A', 0, 0);
    played_send = NULL;
    connection_of(&c)->readable = false;
    turn(); /* the socket has space again, its event reports */
    settle();
    CHECK(answered(&c) == 1 && answered(&c) == 2 && STAT(bytes_in) > in);
    CHECK(!(connection_of(&c)->waits & WAIT_OUTPUT));
    end();
}

static int send_error;
static ssize_t send_fails(int fd, size_t bytes) {
    (void)fd, (void)bytes;
    if (send_error == 0) return -2;
    errno = send_error;
    if (send_error == EINTR) send_error = 0;
    return -1;
}

SCENE(interrupted_send_is_retried_and_a_failed_one_closes) {
    begin();
    struct client c = connect_one(), other = connect_one();
    played_send = played_sendfile = send_fails;
    send_error = EINTR;
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&c) == 1);
    send_error = ECONNRESET;
    ask(&c, API_PRODUCE, 2, 'A', 0);
    CHECK(!is_open(&c) && answered(&c) == -1 && is_open(&other));
    CHECK(serve_seen.ranges_failed == 0 && STAT(frames_illegal) == 0);
    end();
}

SCENE(disk_error_during_sendfile_is_reported) {
    begin();
    struct client c = connect_one(), gone = connect_one();
    played_sendfile = send_fails;
    send_error = EIO;
    ask(&c, API_FETCH, 1, 'R', 50000);
    CHECK(!is_open(&c) && serve_seen.ranges_failed == 1 && serve_seen.ranges == 0);
    send_error = EPIPE;
    ask(&gone, API_FETCH, 1, 'R', 50000);
    CHECK(!is_open(&gone) && serve_seen.ranges_failed == 1);
    end();
}

static ssize_t no_file_left(int fd, size_t bytes) {
    (void)fd, (void)bytes;
    return 0;
}

SCENE(truncated_file_range_closes_the_connection) {
    begin();
    struct client c = connect_one();
    played_sendfile = no_file_left;
    ask(&c, API_FETCH, 1, 'R', 50000);
    CHECK(!is_open(&c) && STAT(bytes_sendfile) == 0 && serve_seen.ranges == 0);
    end();
}

static ssize_t swallow(int fd, size_t bytes) {
    (void)fd;
    sendfile_bytes[sendfile_calls++] = bytes;
    return sendfile_calls % 2 == 0 ? -2 : 1000;
}

SCENE(iteration_sends_256_kib_per_response) {
    begin();
    struct client c = connect_one();
    played_sendfile = count_sendfiles;
    ask(&c, API_FETCH, 1, 'R', 2000000);
    CHECK(sendfile_bytes[0] == TURN - 8); /* the response's header counts */
    take_range(&c, 1, 2000000);
    sendfile_calls = 0;
    played_sendfile = swallow;
    ask(&c, API_FETCH, 2, 'R', 200000);
    take_range(&c, 2, 200000);
    CHECK(sendfile_bytes[0] == 200000 && sendfile_bytes[1] == 199000);
    end();
}

static ssize_t say_all(int fd, size_t bytes) {
    (void)fd;
    sendfile_bytes[sendfile_calls++] = bytes;
    return -3;
}

SCENE(fast_socket_is_served_once_per_iteration) {
    begin();
    struct client c = connect_one();
    played_sendfile = say_all;
    post(&c, API_FETCH, 1, 'R', 1200000, 0);
    turn(); /* by its event, and once more as a ready connection */
    CHECK(STAT(bytes_sendfile) == 2 * TURN - 8 && sendfile_calls == 2);
    CHECK(connection_of(&c)->list == &reactor->ready && !(connection_of(&c)->waits & WAIT_OUTPUT));
    CHECK(turn() == 0);
    CHECK(STAT(bytes_sendfile) == 3 * TURN - 8);
    settle();
    CHECK(STAT(bytes_sendfile) == 1200000 && connection_of(&c)->first == NULL);
    end();
}

SCENE(long_response_yields_to_other_requests) {
    begin();
    struct client big = connect_one(), small = connect_one();
    ask(&big, API_FETCH, 1, 'R', 2000000);
    CHECK(connection_of(&big)->waits & WAIT_OUTPUT);
    uint8_t *taken = malloc(2000000);
    CHECK(take_bytes(&big, taken, 400000) > 0);
    post(&small, API_PRODUCE, 9, 'A', 0, 0);
    sent_count = 0;
    turn();
    CHECK(sent_count >= 2 && sent_to[0] == connection_of(&small)->transport.fd);
    CHECK(sent_to[1] == connection_of(&big)->transport.fd && answered(&small) == 9);
    free(taken);
    end();
}

SCENE(ready_connections_get_100_us_per_iteration) {
    begin();
    struct client c[5];
    for (int i = 0; i < 5; i++) {
        c[i] = connect_one();
        ask(&c[i], API_PRODUCE, 1, 'W', 1000000);
    }
    for (int i = 0; i < 4; i++) wake_up(serve_seen.starts[i]);
    sent_count = 0;
    clock_step_ns = 60000; /* more than one clock reading each */
    CHECK(turn() == 0);
    int first = sent_count;
    CHECK(first >= 1 && first < 4);
    wake_up(serve_seen.starts[4]);
    for (int i = 0; sent_count < 5; i++) {
        CHECK(i < 10);
        turn();
    }
    for (int i = 0; i < 5; i++) CHECK(sent_to[i] == connection_of(&c[i])->transport.fd);
    clock_step_ns = 0;
    settle();
    for (int i = 0; i < 5; i++) CHECK(answered(&c[i]) == 1);
    end();
}

SCENE(last_ready_connection_may_close_before_it_is_served) {
    begin();
    struct client c[5];
    for (int i = 0; i < 5; i++) {
        c[i] = connect_one();
        ask(&c[i], API_PRODUCE, 1, 'W', 1000000);
    }
    for (int i = 0; i < 4; i++) wake_up(serve_seen.starts[i]);
    clock_step_ns = 1000000; /* one at a time */
    CHECK(turn() == 0 && connection_of(&c[3])->list == &reactor->ready);
    CHECK(reactor->ready.last == connection_of(&c[3]));
    reactors_close(all, name_of(&c[3]));
    wake_up(serve_seen.starts[4]);
    turn();
    CHECK(!is_open(&c[3]) && reactor->ready.last == connection_of(&c[4]));
    clock_step_ns = 0;
    settle();
    for (int i = 0; i < 5; i++) CHECK(answered(&c[i]) == (i == 3 ? -1 : 1));
    end();
}
