/* The size of reads and of their buffers, and which connections continue when buffers are short. */
#include "reactor_simulation.h"

enum { KIB = 1 << 10, READ = 64 * KIB - 64, TINY = 4 * KIB };

static size_t rooms[STARTS_MAX]; /* sizes given to reads */
static int read_count;

static ssize_t note_room(int fd, void *to, size_t room) {
    if (read_count < STARTS_MAX) rooms[read_count++] = room;
    return __real_recv(fd, to, room, 0);
}

/* Send [from, to) of a request whose frame has `len` bytes. */
static void send_part(const struct client *c, size_t len, size_t from, size_t to) {
    uint8_t *bytes = malloc(len);
    CHECK(request_of(bytes, API_PRODUCE, 1, 'A', 0, len - 21) == len);
    send_bytes_of(c, bytes + from, to - from);
    free(bytes);
    turn();
}

static size_t room_of(const struct client *c) { return connection_of(c)->in->room; }

SCENE(input_buffer_grows_fourfold_and_then_exactly) {
    begin();
    struct client c = connect_one();
    enum { LEN = 2000000 };
    played_recv = note_room;
    send_part(&c, LEN, 0, 1000);
    CHECK(rooms[0] == READ && room_of(&c) == input_room_for(READ));
    send_part(&c, LEN, 1000, 100000);
    CHECK(room_of(&c) == input_room_for(4 * (size_t)room_of(&c) / 4) && read_count > 1);
    size_t at = 100000;
    for (; at < LEN; at += 100000) {
        read_count = 0;
        send_part(&c, LEN, at, at + 100000);
        for (int i = 0; i < read_count; i++) CHECK(rooms[i] <= LEN - at);
        struct connection *of = connection_of(&c);
        if (of->in != NULL) CHECK(of->in->room <= input_room_for(4 * (of->in_end - of->in_start)));
    }
    settle();
    CHECK(answered(&c) == 1 && connection_of(&c)->in == NULL);
    /* The next read expects the size of the previous frame. */
    read_count = 0;
    send_part(&c, LEN, 0, 1000);
    CHECK(rooms[0] == LEN && connection_of(&c)->receive_budget == LEN);
    end();
}

/* Send [from, to) of a 7 MB frame from each client at the same time. */
static void send_of_each(const struct client *clients, int count, size_t from, size_t to) {
    for (size_t at = from; at < to; at += 100000)
        for (int i = 0; i < count; i++) send_part(&clients[i], 7000000, at, at + 100000);
}

SCENE(large_frames_reuse_large_buffers) {
    begin();
    enum { CLIENTS = 4, LEN = 7000000 };
    struct client clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) clients[i] = connect_one();
    send_of_each(clients, CLIENTS, 0, LEN);
    settle();
    for (int i = 0; i < CLIENTS; i++) CHECK(answered(&clients[i]) == 1);
    /* Four buffers of 8 MiB are kept, and each next frame gets one from its first byte on. */
    uint64_t kept = reactor->input.spare_bytes;
    CHECK(kept >= (uint64_t)CLIENTS << 23);
    played_recv = note_room;
    send_of_each(clients, CLIENTS, 0, 100000);
    for (int i = 0; i < CLIENTS; i++) CHECK(room_of(&clients[i]) == input_room_for(LEN));
    CHECK(rooms[0] == LEN && reactor->input.spare_bytes == kept - ((uint64_t)CLIENTS << 23));
    send_of_each(clients, CLIENTS, 100000, LEN);
    settle();
    CHECK(reactor->input.spare_bytes == kept);
    for (int i = 0; i < CLIENTS; i++) CHECK(answered(&clients[i]) == 1);
    end();
}

static size_t earned_with_limit(uint64_t bytes_max) {
    struct reactors_config config = usual_config();
    config.input_bytes_max = bytes_max;
    begin_with(&config, 0, NULL);
    struct client c = connect_one();
    for (size_t at = 0; at < 2000000; at += 100000) send_part(&c, 2000000, at, at + 100000);
    settle();
    CHECK(answered(&c) == 1);
    size_t earned = connection_of(&c)->receive_budget;
    end();
    return earned;
}

SCENE(spare_buffer_is_limited_to_a_sixteenth) {
    CHECK(earned_with_limit(64 << 20) == 2000000);
    size_t earned = earned_with_limit(16 << 20);
    CHECK(earned < 2000000 && input_room_for(earned) + sizeof(struct input_buffer) == 1 << 20);
}

SCENE(remainder_of_a_frame_above_16_kib_is_read_exactly) {
    begin();
    struct client c = connect_one();
    played_recv = note_room;
    send_part(&c, 20000, 0, 20000 - 16384);
    read_count = 0;
    send_part(&c, 20000, 20000 - 16384, 20000);
    CHECK(rooms[0] == 16384 && answered(&c) == 1);
    send_part(&c, 20000, 0, 20000 - 16383);
    read_count = 0;
    send_part(&c, 20000, 20000 - 16383, 20000);
    CHECK(rooms[0] > 16384 && answered(&c) == 1);
    end();
}

SCENE(short_read_ends_reading) {
    begin();
    struct client c = connect_one();
    played_recv = note_room;
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(read_count == 1 && !connection_of(&c)->readable);
    /* After a hang-up no event follows, so one more read meets the end. */
    read_count = 0;
    post(&c, API_PRODUCE, 1, 'S', 0, 0);
    shutdown(c.fd, SHUT_WR);
    settle();
    CHECK(read_count == 2 && !is_open(&c));
    end();
}

static int fails_with;
static ssize_t fail_once(int fd, void *to, size_t room) {
    if (fails_with == 0) return note_room(fd, to, room);
    errno = fails_with;
    fails_with = 0;
    return -1;
}

SCENE(interrupted_read_is_retried_and_a_failed_one_closes) {
    begin();
    struct client c = connect_one();
    played_recv = fail_once;
    fails_with = EINTR;
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&c) == 1);
    fails_with = EAGAIN;
    post(&c, API_PRODUCE, 2, 'A', 0, 0);
    CHECK(turn() > 0); /* it is not retried automatically */
    CHECK(is_open(&c) && answered(&c) == 0 && !connection_of(&c)->readable);
    ask(&c, API_PRODUCE, 3, 'A', 0);
    CHECK(answered(&c) == 2 && answered(&c) == 3);
    fails_with = ECONNRESET;
    ask(&c, API_PRODUCE, 4, 'A', 0);
    CHECK(!is_open(&c) && answered(&c) == -1);
    end();
}

static int endless_fd;
static size_t endless_bytes;
static ssize_t read_endlessly(int fd, void *to, size_t room) {
    if (fd != endless_fd) return __real_recv(fd, to, room, 0);
    uint8_t one[25];
    size_t n = 0;
    for (; n + sizeof one <= room; n += sizeof one) {
        request_of(one, API_PRODUCE, 1, 'S', 0, sizeof one - 21);
        memcpy((uint8_t *)to + n, one, sizeof one);
    }
    CHECK(n > 0);
    endless_bytes += n;
    return (ssize_t)n;
}

SCENE(iteration_reads_512_kib_per_connection) {
    begin();
    struct client c = connect_one(), other = connect_one();
    connection_of(&c)->hung_up = true; /* a read that is not full is not the last */
    endless_fd = connection_of(&c)->transport.fd;
    played_recv = read_endlessly;
    post(&c, API_PRODUCE, 1, 'S', 0, 0);
    clock_step_ns = 1000000; /* a turn of ready connections handles one connection */
    turn(); /* by its event, and once more as a ready connection */
    size_t first = endless_bytes;
    CHECK(first >= 2 * 512 * KIB && first < 2 * (512 + 64) * KIB);
    CHECK(connection_of(&c)->list == &reactor->ready);
    post(&other, API_PRODUCE, 9, 'A', 0, 0);
    turn();
    CHECK(answered(&other) == 9 && endless_bytes < 3 * (512 + 64) * KIB);
    played_recv = NULL;
    clock_step_ns = 0;
    settle();
    end();
}

SCENE(retained_body_keeps_its_buffer_and_later_bytes_move) {
    begin();
    struct client c = connect_one();
    uint8_t bytes[42];
    request_of(bytes, API_PRODUCE, 1, 'X', 50000, 0);
    size_t len = 21;
    request_of(bytes + len, API_PRODUCE, 2, 'A', 0, 0);
    ask(&c, API_PRODUCE, 7, 'J', 0);
    struct slot *s = connection_of(&c)->first;
    const uint8_t *body = s->r.body;
    CHECK(s->held != NULL && body[0] == 'J' && connection_of(&c)->in == NULL);
    CHECK(s->held->references == 1);
    leave(&c); /* the job still reads it */
    CHECK(!is_open(&c) && s->held != NULL && body[0] == 'J' && reactor->abandoned == 1);
    struct message done = {.kind = MESSAGE_IO_DONE, .token = s->r.token};
    CHECK(mailbox_post(reactor->mailbox, &done));
    settle();
    CHECK(reactor->abandoned == 0 && reactor->slots.live == 0 && reactor->input.held_bytes == 0);
    end();
}

/* Leave `part` bytes of the next frame after the body. */
static void stay_before(size_t part) {
    begin();
    struct client c = connect_one();
    uint8_t bytes[21 + 70021];
    request_of(bytes, API_PRODUCE, 1, 'J', 0, 0);
    request_of(bytes + 21, API_PRODUCE, 2, 'A', 3, 70000);
    send_bytes_of(&c, bytes, 21 + part);
    settle();
    struct slot *s = connection_of(&c)->first;
    CHECK(s->held == connection_of(&c)->in && s->held->references == 2);
    send_bytes_of(&c, bytes + 21 + part, 70021 - part);
    settle();
    CHECK(s->r.body[0] == 'J' && answered(&c) == 0);
    struct message done = {.kind = MESSAGE_IO_DONE, .token = s->r.token};
    CHECK(mailbox_post(reactor->mailbox, &done));
    settle();
    CHECK(answered(&c) == 1 && answered(&c) == 2 && serve_seen.io_done == 1);
    CHECK(connection_of(&c)->in == NULL && reactor->input.held_bytes == 0);
    end();
}

SCENE(partial_frame_after_a_retained_body_is_moved) { stay_before(100); }
SCENE(single_byte_after_a_retained_body_is_moved) { stay_before(1); }

SCENE(frame_at_the_buffer_end_is_moved_to_the_start) {
    begin();
    struct client c = connect_one();
    enum { COUNT = 150, LEN = 1021 };
    uint8_t *bytes = malloc(COUNT * LEN);
    for (int i = 0; i < COUNT; i++)
        request_of(bytes + i * LEN, API_PRODUCE, i + 1, 'A', (uint32_t)i, LEN - 21);
    send_bytes_of(&c, bytes, COUNT * LEN);
    settle();
    for (int32_t i = 1; i <= COUNT; i++) CHECK(answered(&c) == i);
    CHECK(STAT(bytes_in) == COUNT * LEN && reactor->input.held_bytes == 0);
    free(bytes);
    end();
}

SCENE(frame_with_space_after_others_is_not_moved) {
    begin();
    struct client c = connect_one();
    uint8_t bytes[42];
    request_of(bytes, API_PRODUCE, 1, 'S', 0, 0);
    request_of(bytes + 21, API_PRODUCE, 2, 'S', 0, 0);
    send_bytes_of(&c, bytes, 30);
    turn();
    const struct input_buffer *in = connection_of(&c)->in;
    CHECK(connection_of(&c)->in_start == 21 && connection_of(&c)->in_end == 30);
    send_bytes_of(&c, bytes + 30, 5);
    turn();
    CHECK(connection_of(&c)->in == in && connection_of(&c)->in_start == 21);
    end();
}

/* ---- bytes gathered by the kernel */

/* The same, in amounts that a socket accepts. */
static void send_much(const struct client *c, size_t len, size_t from, size_t to) {
    for (size_t at = from; at < to; at += 50000)
        send_part(c, len, at, at + 50000 < to ? at + 50000 : to);
}

/* Return the number of bytes before which the kernel does not wake the reactor. */
static int mark_of(const struct client *c) {
    int bytes = 0;
    socklen_t len = sizeof bytes;
    CHECK(getsockopt(connection_of(c)->transport.fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, &len) == 0);
    return bytes;
}

SCENE(large_frame_waits_in_the_kernel_by_low_watermark) {
    begin();
    struct client c = connect_one();
    enum { LEN = 400000 };
    CHECK(mark_of(&c) == 1);
    send_part(&c, LEN, 0, 2);
    CHECK(mark_of(&c) == 1); /* its length is unknown */
    send_part(&c, LEN, 2, 1000);
    CHECK(mark_of(&c) == 128 * KIB);
    send_much(&c, LEN, 1000, LEN - 100000);
    CHECK(mark_of(&c) == 100000);
    send_much(&c, LEN, LEN - 100000, LEN - 32 * KIB);
    CHECK(mark_of(&c) == 32 * KIB);
    send_part(&c, LEN, LEN - 32 * KIB, LEN - 32 * KIB + 1);
    CHECK(mark_of(&c) == 1);
    send_part(&c, LEN, LEN - 32 * KIB + 1, LEN);
    CHECK(answered(&c) == 1 && mark_of(&c) == 1);
    /* The last bytes of one frame arrive with the first of the next. */
    send_much(&c, LEN, 0, LEN - 50000);
    CHECK(mark_of(&c) == 50000);
    send_part(&c, LEN, LEN - 50000, LEN);
    CHECK(answered(&c) == 1 && mark_of(&c) == 1);
    end();
}

SCENE(buffered_tls_bytes_are_read_without_an_event) {
    begin();
    struct client c = connect_one();
    enum { LEN = 400000, INSIDE = 5000 };
    connection_of(&c)->transport.inside = INSIDE; /* plain calls: they do not change the mark */
    send_much(&c, LEN, 0, LEN - 100000);
    CHECK(mark_of(&c) == 100000 - INSIDE);
    send_much(&c, LEN, LEN - 100000, LEN - 32 * KIB - INSIDE);
    CHECK(mark_of(&c) == 32 * KIB);
    send_part(&c, LEN, LEN - 32 * KIB - INSIDE, LEN - 32 * KIB - INSIDE + 1);
    CHECK(mark_of(&c) == 1);
    end();
}

SCENE(slow_frame_is_read_byte_by_byte) {
    begin();
    struct client c = connect_one();
    enum { LEN = 400000 };
    send_part(&c, LEN, 0, 1000);
    pass_ms(999);
    send_part(&c, LEN, 1000, 2000);
    CHECK(mark_of(&c) == 128 * KIB);
    pass_ms(1);
    send_part(&c, LEN, 2000, 3000);
    CHECK(mark_of(&c) == 1);
    end();
}

SCENE(pending_bytes_are_read_before_a_frame_times_out) {
    begin();
    struct client c = connect_one();
    enum { LEN = 400000 };
    send_much(&c, LEN, 0, 300000);
    CHECK(mark_of(&c) == 100000);
    after_ms(FRAME_MS_MAX + 300000 / FRAME_BYTES_PER_MS + 1);
    CHECK(is_open(&c) && mark_of(&c) == 1);
    after_ms(RELIEF_MS + 1);
    CHECK(!is_open(&c) && STAT(frames_late) == 1);
    end();
}

/* ---- little space */

static void begin_small(uint64_t bytes_max) {
    struct reactors_config config = usual_config();
    config.input_bytes_max = bytes_max;
    begin_with(&config, 0, NULL);
}

/* This many connections send half a frame of this length each. */
static void fill(struct client *clients, int count, size_t len) {
    for (int i = 0; i < count; i++) {
        clients[i] = connect_one();
        send_part(&clients[i], len, 0, len / 2);
    }
}

SCENE(scarce_memory_starts_frames_in_tiny_buffers) {
    begin_small(4 * 64 * KIB);
    struct client held[3], small;
    fill(held, 2, 60000);
    CHECK(reactor->input.held_bytes == 2 * 64 * KIB && !input_is_tight(&reactor->input));
    fill(held + 2, 1, 60000);
    CHECK(input_is_tight(&reactor->input));
    played_recv = note_room;
    small = connect_one();
    send_part(&small, 3000, 0, 100);
    CHECK(rooms[0] == TINY - sizeof(struct input_buffer));
    CHECK(room_of(&small) == TINY - sizeof(struct input_buffer));
    send_part(&small, 3000, 100, 3000);
    CHECK(answered(&small) == 1);
    end();
}

SCENE(unanswered_control_requests_count_as_input_memory) {
    begin_small(8 * 64 * KIB);
    struct client control = connect_one(), other = connect_one();
    enum { REST = 150000 };
    post(&control, METADATA, 1, 'A', 0, REST);
    settle();
    CHECK(STAT(requests_control) == 1 && reactor->input.held_bytes == 0);
    CHECK(input_used(&reactor->input) >= REST && STAT(input_bytes) >= REST);
    send_part(&other, 200000, 0, 70000);
    CHECK(connection_of(&other)->list == &reactor->input_waiting);
    struct event *e = expect(EVENT_REQUEST);
    answer_to(e, false, 0);
    free(e);
    settle();
    CHECK(answered(&control) == 1 && reactor->input.copied_bytes == 0);
    CHECK(connection_of(&other)->list == NULL && connection_of(&other)->in_end == 70000);
    end();
}

SCENE(closed_connection_releases_control_request_bytes) {
    begin_small(4 * 64 * KIB);
    struct client control = connect_one();
    post(&control, METADATA, 1, 'A', 0, 100000);
    settle();
    CHECK(reactor->input.copied_bytes >= 100000);
    leave(&control);
    CHECK(reactor->input.copied_bytes == 0);
    free(expect(EVENT_REQUEST));
    end();
}

SCENE(control_requests_wait_while_the_queue_holds_too_many_bytes) {
    begin_small(256 * KIB);
    for (int32_t i = 1; i <= 3; i++) { /* of closed connections, which no longer count themselves */
        struct client control = connect_one();
        post(&control, METADATA, i, 'A', 0, 100000);
        settle();
        leave(&control);
    }
    CHECK(events_waiting(all->events) == 3 && events_held_bytes(all->events) >= 300000);
    struct client late = connect_one();
    ask(&late, METADATA, 4, 'A', 0);
    CHECK(events_waiting(all->events) == 3 && STAT(queue_waits) == 1);
    struct event *taken[3];
    for (int i = 0; i < 3; i++) taken[i] = expect(EVENT_REQUEST);
    reactors_events_consumed(all);
    settle();
    /* The control plane still has them. */
    CHECK(events_waiting(all->events) == 0 && STAT(queue_waits) == 2);
    for (int i = 0; i < 3; i++) {
        reactors_dropped(all, taken[i]->data_len);
        free(taken[i]);
    }
    settle();
    CHECK(events_waiting(all->events) == 1);
    struct event *last = expect(EVENT_REQUEST);
    CHECK(events_held_bytes(all->events) == last->data_len);
    reactors_dropped(all, last->data_len);
    CHECK(events_held_bytes(all->events) == 0);
    free(last);
    end();
}

SCENE(scarce_memory_disables_low_watermarks_and_reads_before_eviction) {
    begin_small(4 * 64 * KIB);
    struct client first = connect_one(), held[2], waits[2];
    send_part(&first, 60000, 0, 10000);
    CHECK(mark_of(&first) == 50000);
    fill(held, 2, 60000);
    CHECK(input_is_tight(&reactor->input) && mark_of(&held[1]) == 1);
    for (int i = 0; i < 2; i++) {
        waits[i] = connect_one();
        send_part(&waits[i], 200000, 0, 60000);
        CHECK(connection_of(&waits[i])->list == &reactor->input_waiting);
    }
    after_ms(EVICT_MS);
    CHECK(is_open(&first) && mark_of(&first) == 1 && STAT(frames_late) == 0);
    for (int i = 0; i < 20 && is_open(&first); i++) after_ms(RELIEF_MS);
    CHECK(!is_open(&first) && STAT(frames_late) >= 1);
    end();
}

SCENE(connection_waits_until_input_memory_is_released) {
    begin_small(2 * 64 * KIB + 8 * KIB);
    struct client held[1];
    fill(held, 1, 60000);
    struct client waits = connect_one(), second = connect_one();
    send_part(&waits, 90000, 0, 30000);
    send_part(&second, 90000, 0, 30000);
    CHECK(connection_of(&waits)->list == &reactor->input_waiting);
    CHECK(connection_of(&second)->list == &reactor->input_waiting);
    CHECK(STAT(input_waits) >= 2 && reactor->relief.heap_index != 0);
    CHECK(connection_of(&waits)->waiting_ms == now_ms());
    CHECK(reactor->relief.at_ms == now_ms() + RELIEF_MS);
    pass_ms(50);
    send_part(&held[0], 60000, 30000, 60000);
    settle();
    CHECK(answered(&held[0]) == 1);
    CHECK(connection_of(&waits)->frame_ms == now_ms());
    CHECK(connection_of(&waits)->list == NULL && connection_of(&waits)->in_end == 30000);
    end();
}

/* Step by step a connection is closed or continues. */
static int32_t answered_in_time(const struct client *c) {
    int32_t id = answered(c);
    for (int i = 0; i < 20 && id == 0; i++) {
        after_ms(RELIEF_MS);
        settle();
        id = answered(c);
    }
    return id;
}

SCENE(waiting_frame_with_the_fewest_missing_bytes_exceeds_the_limit) {
    begin_small(3 * 64 * KIB);
    struct client all_of[3];
    for (int i = 0; i < 3; i++) all_of[i] = connect_one();
    static const size_t lengths[3] = {150000, 110000, 130000};
    for (int i = 0; i < 3; i++) send_part(&all_of[i], lengths[i], 0, 70000);
    CHECK(connection_of(&all_of[1])->list == &reactor->input_waiting);
    CHECK(reactor->over_limit_allowed == NULL);
    after_ms(RELIEF_MS - 1);
    CHECK(reactor->over_limit_allowed == NULL);
    after_ms(1);
    settle();
    CHECK(reactor->over_limit_allowed == connection_of(&all_of[1]));
    CHECK(reactor->over_limit_since_ms == now_ms());
    CHECK(reactor->relief.heap_index != 0 && reactor->relief.at_ms == now_ms() + RELIEF_MS);
    struct client small = connect_one();
    ask(&small, API_PRODUCE, 5, 'A', 0);
    CHECK(answered_in_time(&small) == 5 &&
          reactor->over_limit_allowed == connection_of(&all_of[1]));
    send_part(&all_of[1], 110000, 70000, 110000);
    settle();
    CHECK(answered(&all_of[1]) == 1 && reactor->over_limit_allowed != connection_of(&all_of[1]));
    send_part(&all_of[2], 130000, 70000, 130000);
    CHECK(answered_in_time(&all_of[2]) == 1);
    send_part(&all_of[0], 150000, 70000, 150000);
    CHECK(answered_in_time(&all_of[0]) == 1 && STAT(frames_late) == 0);
    end();
}

/* With the four bytes of its size it needs a buffer twice as large as without them. */
SCENE(longest_frame_may_exceed_the_limit) {
    struct reactors_config config = usual_config();
    enum { LEN = 128 * KIB - sizeof(struct input_buffer) + 1 };
    config.input_bytes_max = 160 * KIB;
    config.rules.request_bytes_max = config.rules.control_bytes_max = LEN - FRAMES_SIZE_BYTES;
    begin_with(&config, 0, NULL);
    struct client c = connect_one();
    for (size_t at = 0; at < 2 * 50000; at += 50000) send_part(&c, LEN, at, at + 50000);
    CHECK(connection_of(&c)->list == &reactor->input_waiting);
    after_ms(RELIEF_MS);
    settle();
    CHECK(reactor->over_limit_allowed == connection_of(&c) &&
          reactor->input.held_bytes > 160 * KIB);
    send_part(&c, LEN, 100000, LEN);
    CHECK(answered_in_time(&c) == 1 && STAT(frames_late) == 0);
    end();
}

SCENE(frames_wait_when_tiny_buffers_are_exhausted) {
    begin_small(96 * KIB);
    struct client held[1], tiny[8];
    fill(held, 1, 60000);
    for (int i = 0; i < 8; i++) {
        tiny[i] = connect_one();
        send_part(&tiny[i], 3000, 0, 100);
    }
    CHECK(reactor->input.held_bytes == 96 * KIB);
    struct client late = connect_one();
    post(&late, API_PRODUCE, 4, 'A', 0, 0);
    settle();
    CHECK(connection_of(&late)->list == &reactor->input_waiting);
    CHECK(connection_of(&late)->in == NULL);
    after_ms(RELIEF_MS - 1);
    CHECK(answered(&late) == 0);
    after_ms(1);
    CHECK(answered(&late) == 4 && reactor->input_waiting.first == NULL);
    CHECK(reactor->relief.heap_index == 0 && !reactor->reclaiming_input && STAT(input_waits) == 1);
    end();
}

/* One connection holds most of the space for a frame that stopped; the first of the waiting ones
 * may exceed the limit and stops too. */
SCENE(stalled_frames_are_evicted_after_half_a_second) {
    begin_small(80 * KIB);
    struct client stalled = connect_one(), first = connect_one(), second = connect_one();
    send_part(&stalled, 60000, 0, 50000);
    send_part(&first, 60000, 0, 6000);
    send_part(&second, 60000, 0, 5000);
    CHECK(connection_of(&first)->list == &reactor->input_waiting);
    CHECK(connection_of(&second)->list == &reactor->input_waiting);
    for (int i = 0; i < 4; i++) after_ms(RELIEF_MS);
    CHECK(reactor->over_limit_allowed == connection_of(&first) && is_open(&stalled));
    after_ms(RELIEF_MS - 1);
    CHECK(is_open(&stalled) && STAT(frames_late) == 0);
    after_ms(1);
    settle();
    CHECK(!is_open(&stalled) && STAT(frames_late) == 1 && is_open(&first) && is_open(&second));
    after_ms(29000);
    CHECK(STAT(frames_late) == 1 && is_open(&first));
    end();
}

SCENE(stalled_frame_above_the_limit_is_evicted) {
    begin_small(80 * KIB);
    struct client held = connect_one(), first = connect_one(), second = connect_one();
    send_part(&held, 60000, 0, 50000);
    send_part(&first, 60000, 0, 6000);
    send_part(&second, 60000, 0, 5000);
    after_ms(RELIEF_MS);
    CHECK(reactor->over_limit_allowed == connection_of(&first));
    for (size_t at = 50000; is_open(&first); at++) { /* slow but continuous */
        CHECK(at < 50010);
        send_part(&held, 60000, at, at + 1);
        after_ms(RELIEF_MS);
    }
    CHECK(is_open(&held) && is_open(&second) && STAT(frames_late) == 1);
    CHECK(now_ms() - 5000 == 7 * RELIEF_MS); /* 500 ms, and 14 for its length, in checks of 100 */
    end();
}

SCENE(trickling_frame_is_evicted_after_five_seconds) {
    begin_small(80 * KIB);
    struct client held = connect_one();
    int64_t began_ms = now_ms();
    send_part(&held, 60000, 0, 50000);
    for (int i = 0; i < 12; i++) { /* at least one connection always waits */
        struct client waits = connect_one();
        send_part(&waits, 60000, 0, 6000);
    }
    for (size_t at = 50000; is_open(&held); at++) {
        CHECK(at < 50100);
        after_ms(RELIEF_MS);
        settle();
        if (is_open(&held)) send_part(&held, 60000, at, at + 1);
    }
    CHECK(now_ms() - began_ms == 5100); /* 5 s, and 48 ms for the arrived bytes */
    end();
}

SCENE(waiting_frame_that_holds_memory_is_evicted_after_five_seconds) {
    begin_small(80 * KIB);
    struct client busy = connect_one(), waits[3];
    uint8_t *bytes = malloc(50000);
    send_bytes_of(&busy, bytes, request_of(bytes, API_PRODUCE, 1, 'J', 0, 49000));
    free(bytes);
    settle();
    for (size_t i = 0; i < 3; i++) {
        waits[i] = connect_one();
        send_part(&waits[i], 8 << 20, 0, 6000 - i);
        CHECK(connection_of(&waits[i])->list == &reactor->input_waiting);
    }
    for (int i = 0; i < 49; i++) {
        after_ms(RELIEF_MS);
        settle();
    }
    CHECK(!is_open(&waits[0]) && reactor->over_limit_allowed == connection_of(&waits[1]));
    CHECK(is_open(&waits[2]) && STAT(frames_late) == 1);
    after_ms(RELIEF_MS);
    CHECK(!is_open(&waits[2]) && is_open(&waits[1]) && STAT(frames_late) == 2);
    CHECK(is_open(&busy)); /* it waits for the server */
    struct message done = {.kind = MESSAGE_IO_DONE, .token = serve_seen.starts[0]->token};
    CHECK(mailbox_post(reactor->mailbox, &done));
    settle();
    CHECK(answered(&busy) == 1);
    end();
}
