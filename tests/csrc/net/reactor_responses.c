/* From frames to responses: when requests start, which events the control plane gets, how
 * responses are sent. */
#include "reactor_simulation.h"

/* ---- start of requests */

SCENE(sixteen_produces_wait_in_parallel) {
    begin();
    struct client c = connect_one();
    for (int32_t i = 1; i <= 18; i++) post(&c, API_PRODUCE, i, 'W', 1000, 0);
    settle();
    CHECK(serve_seen.started == 16 && connection_of(&c)->slot_count == 16);
    CHECK(STAT(requests_in_flight) == 16 && STAT(requests_produce) == 16);
    for (int i = 0; i < 16; i++) CHECK(serve_seen.more[i]);
    wake_up(serve_seen.starts[1]); /* the second: nothing is sent before the first */
    settle();
    CHECK(answered(&c) == 0 && serve_seen.started == 16);
    wake_up(serve_seen.starts[0]);
    settle();
    CHECK(answered(&c) == 1 && answered(&c) == 2 && answered(&c) == 0);
    CHECK(serve_seen.started == 18 && !serve_seen.more[17] && serve_seen.more[16]);
    end();
}

SCENE(requests_other_than_produce_block_the_next) {
    static const struct {
        int16_t key;
        char letter;
    } first[] = {{API_FETCH, 'W'}, {API_PRODUCE, 'X'}, {API_PRODUCE, 'M'}, {METADATA, 'A'}};
    begin();
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        struct client c = connect_one();
        int started = serve_seen.started;
        post(&c, first[i].key, 1, first[i].letter, 1, 0);
        post(&c, API_PRODUCE, 2, 'S', 0, 0);
        turn();
        CHECK(serve_seen.started == started + (first[i].key != METADATA));
        CHECK(connection_of(&c)->slot_count == 1);
        leave(&c);
    }
    end();
}

SCENE(only_a_produce_starts_after_a_waiting_produce) {
    static const int16_t keys[] = {API_FETCH, METADATA};
    begin();
    for (int i = 0; i < 2; i++) {
        struct client c = connect_one();
        post(&c, API_PRODUCE, 1, 'W', 500, 0);
        post(&c, keys[i], 2, 'A', 0, 0);
        settle();
        CHECK(connection_of(&c)->slot_count == 1 && next_event() == NULL);
        after_ms(500);
        settle();
        CHECK(answered(&c) == 1);
        if (keys[i] == API_FETCH)
            CHECK(answered(&c) == 2 && STAT(requests_fetch) == 1);
        else
            expect_gone(EVENT_REQUEST);
    }
    CHECK(STAT(requests_produce) == 2 && STAT(requests_control) == 1);
    end();
}

SCENE(queued_appends_finish_within_the_iteration) {
    begin();
    struct client c = connect_one();
    post(&c, API_PRODUCE, 1, 'Q', 0, 0);
    post(&c, API_PRODUCE, 2, 'Q', 0, 0);
    post(&c, API_PRODUCE, 3, 'A', 0, 0);
    CHECK(turn() > 0);
    CHECK(answered(&c) == 1 && answered(&c) == 2 && answered(&c) == 3);
    CHECK(serve_seen.more[0] && serve_seen.more[1] && !serve_seen.more[2]);
    end();
}

SCENE(iteration_with_more_sockets_expects_more_appends) {
    begin();
    struct client c = connect_one(), other = connect_one();
    post(&c, API_PRODUCE, 1, 'A', 0, 0);
    post(&other, API_PRODUCE, 1, 'A', 0, 0);
    turn();
    CHECK(serve_seen.started == 2 && serve_seen.more[0] && !serve_seen.more[1]);
    end();
}

SCENE(request_carries_its_origin) {
    begin();
    struct client c = connect_one();
    reactors_set_principal(all, name_of(&c), 42, 0);
    turn();
    pass_ms(70);
    ask(&c, API_FETCH, 77, 'H', 0);
    const struct serve_request *r = serve_seen.starts[0];
    CHECK(r->principal == 42 && r->listener == LISTENER && r->correlation_id == 77);
    CHECK(r->received_ms == now_ms() && r->now_ms == now_ms() && r->api_key == API_FETCH);
    CHECK(r->api_version == VERSION && r->client_id_len == 2 && r->body_len == 5);
    CHECK(r->connection == c.index && r->quota == NULL && !r->more);
    pass_ms(30);
    wake_up(r);
    settle();
    CHECK(serve_seen.resumed_ms == now_ms() && serve_seen.woken == 1 && answered(&c) == 77);
    end();
}

/* ---- events of the control plane */

SCENE(control_plane_receives_the_complete_request) {
    begin();
    struct client c = connect_one();
    reactors_set_principal(all, name_of(&c), 6, 0);
    turn();
    post(&c, METADATA, 9, 'A', 5, 3);
    settle();
    struct event *e = expect(EVENT_REQUEST);
    CHECK(e->principal == 6 && e->listener == LISTENER && e->correlation_id == 9);
    CHECK(e->api_key == METADATA && e->api_version == VERSION && e->connection == name_of(&c));
    CHECK(e->client_id_len == 2 && memcmp(e->data, "me", 2) == 0);
    CHECK(e->body_at == 2 && e->body_len == 8 && memcmp(e->data + 2, "A\0\0\0\5xxx", 8) == 0);
    CHECK(e->peer.port == FIRST_PORT && e->local.port == 9092 && e->began_ns == clock_ns);
    CHECK(STAT(requests_control) == 1);
    answer_to(e, false, 0);
    answer_to(e, false, 0); /* already answered */
    settle();
    CHECK(answered(&c) == 9 && answered(&c) == 0);
    CHECK(reactors_reply(all, e->token, NULL, 0, false, 0)); /* of a request that has ended */
    settle();
    free(e);
    ask(&c, METADATA, 10, 'A', 0);
    e = expect(EVENT_REQUEST);
    CHECK(reactors_reply(all, e->token, NULL, 0, false, 0));
    free(e);
    settle();
    CHECK(answered(&c) == 0 && STAT(requests_in_flight) == 0);
    end();
}

SCENE(request_without_a_client_id_is_accepted) {
    begin();
    struct client c = connect_one();
    uint8_t bytes[] = {0, 0, 0, 11, 0, METADATA, 0, VERSION, 0, 0, 0, 3, 0xff, 0xff, 'b'};
    send_bytes_of(&c, bytes, sizeof bytes);
    settle();
    struct event *e = expect(EVENT_REQUEST);
    CHECK(e->client_id_len == -1 && e->body_at == 0 && e->body_len == 1 && e->data[0] == 'b');
    free(e);
    end();
}

SCENE(miss_lists_missing_names_and_continues_with_verdicts) {
    begin();
    struct client c = connect_one();
    uint8_t bytes[64];
    size_t len = request_of(bytes, API_PRODUCE, 5, 'M', 3, 4);
    memcpy(bytes + 21, "topi", 4);
    send_bytes_of(&c, bytes, len);
    settle();
    struct event *e = expect(EVENT_MISS);
    const struct event_missing *m = (const void *)e->data;
    CHECK(e->missing_count == 3 && STAT(requests_missed) == 1 && e->correlation_id == 5);
    CHECK(m[0].name_len == 1 && m[1].name_len == -1 && m[2].name_len == 3);
    CHECK(memcmp(e->data + m[0].name_at, "t", 1) == 0);
    CHECK(memcmp(e->data + m[2].name_at, "top", 3) == 0 && m[2].name_at == m[0].name_at + 1);
    CHECK(m[1].id[15] == 2 && m[1].partition == 11 && m[2].partition == 12);
    CHECK(reactors_resume(all, e->token, (int16_t[]){1, 2}, 2)); /* wrong number of names */
    settle();
    CHECK(serve_seen.granted == 0 && answered(&c) == 0);
    CHECK(reactors_resume(all, e->token, (int16_t[]){29, 0, 3}, 3));
    CHECK(reactors_resume(all, e->token, (int16_t[]){1, 1, 1}, 3)); /* the second is stale */
    settle();
    CHECK(serve_seen.granted == 1 && answered(&c) == 5);
    CHECK(serve_seen.verdicts[0] == 29 && serve_seen.verdicts[2] == 3);
    free(e);
    end();
}

SCENE(transaction_verification_includes_the_producer) {
    begin();
    struct client c = connect_one();
    ask(&c, API_PRODUCE, 5, 'V', 2);
    struct event *e = expect(EVENT_VERIFY);
    struct event_verify asked;
    memcpy(&asked, e->data + e->body_at, sizeof asked);
    CHECK(asked.producer_id == 77 && asked.id_len == 3 && asked.epoch == 5);
    CHECK(memcmp(e->data + e->body_at + sizeof asked, "V\0\0", 3) == 0);
    CHECK(e->body_at == 2 * sizeof(struct event_missing) + 1 && e->missing_count == 2);
    free(e);
    end();
}

SCENE(control_plane_can_answer_a_miss) {
    begin();
    struct client c = connect_one();
    ask(&c, API_PRODUCE, 5, 'M', 1);
    struct event *e = expect(EVENT_MISS);
    answer_to(e, false, 0);
    free(e);
    settle();
    CHECK(answered(&c) == 5 && serve_seen.granted == 0 && serve_seen.abandoned == 1);
    ask(&c, API_PRODUCE, 6, 'A', 0);
    CHECK(answered(&c) == 6 && reactor->input.held_bytes == 0);
    end();
}

SCENE(followers_ready_for_the_isr_are_reported_after_a_fetch) {
    begin();
    struct client c = connect_one();
    candidates_left = 1;
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(next_event() == NULL);
    ask(&c, API_FETCH, 2, 'A', 0);
    struct event *e = expect(EVENT_ISR_CANDIDATE);
    const struct isr_candidate *join = (const void *)e->data;
    CHECK(e->missing_count == 1 && join->partition == 4 && join->broker == 9);
    free(e);
    ask(&c, API_FETCH, 3, 'H', 0);
    CHECK(next_event() == NULL);
    candidates_left = 1;
    wake_up(serve_seen.starts[2]);
    settle();
    expect_gone(EVENT_ISR_CANDIDATE);
    candidates_left = 1;
    memory_left = 1; /* the response's: retried later */
    ask(&c, API_FETCH, 4, 'A', 0);
    memory_left = NO_MEMORY_LIMIT;
    CHECK(next_event() == NULL && is_open(&c));
    end();
}

SCENE(requests_wait_in_order_for_space_in_the_control_queue) {
    struct reactors_config config = usual_config();
    config.queued_requests_max = 2;
    begin_with(&config, 0, NULL);
    struct client c[5];
    for (int i = 0; i < 5; i++) {
        c[i] = connect_one();
        ask(&c[i], METADATA, i + 1, 'A', 0);
        CHECK(reactor->room_wanted == (i >= 2)); /* each released buffer signals the waiters */
    }
    CHECK(STAT(queue_waits) == 3 && events_waiting(all->events) == 2 && reactor->room_wanted);
    reactors_close(all, name_of(&c[3])); /* from the middle of the waiters */
    settle();
    after_ms(100000); /* they wait for the server: no frame is late */
    free(expect(EVENT_REQUEST));
    reactors_events_consumed(all);
    CHECK(!reactor->room_wanted);
    settle();
    CHECK(events_waiting(all->events) == 2 && STAT(queue_waits) == 4);
    for (int32_t wanted = 2; wanted <= 5; wanted++) {
        if (wanted == 4) continue;
        struct event *e = expect(EVENT_REQUEST);
        CHECK(e->correlation_id == wanted);
        free(e);
        reactors_events_consumed(all);
        settle();
    }
    CHECK(next_event() == NULL && STAT(frames_late) == 0);
    /* Requests that serve answers itself need no space. */
    struct client served = connect_one();
    for (int i = 0; i < 2; i++) events_post(all->events, events_make(EVENT_CLOSED, 0));
    ask(&served, API_PRODUCE, 1, 'A', 0);
    CHECK(answered(&served) == 1);
    end();
}

SCENE(queued_responses_keep_their_correlation_ids) {
    begin();
    struct client c = connect_one(), other = connect_one();
    ask(&c, METADATA, 1, 'A', 0);
    ask(&other, METADATA, 1, 'A', 0);
    static const uint8_t frame[] = {0, 0, 0, 5, 9, 9, 9, 9, 'x'};
    uint64_t rung; /* by the previous event */
    CHECK(read(mailbox_fd(reactor->mailbox), &rung, sizeof rung) != 0);
    for (int32_t i = 0; i < 2; i++) {
        struct event *e = expect(EVENT_REQUEST);
        CHECK(reactors_queue_reply(all, e->token, frame, sizeof frame, 70 + i, i * 500));
        free(e);
    }
    struct pollfd wakes = {.fd = mailbox_fd(reactor->mailbox), .events = POLLIN};
    CHECK(poll(&wakes, 1, 0) == 0 && reactor->unflushed);
    reactors_flush_replies(all);
    CHECK(poll(&wakes, 1, 0) == 1 && !reactor->unflushed);
    settle();
    CHECK(answered(&c) == 70 && answered(&other) == 71 && STAT(requests_throttled) == 1);
    CHECK(reactors_queue_reply(all, UINT64_MAX / 2, frame, sizeof frame, 1, 0)); /* unknown */
    CHECK(!reactor->unflushed);
    end();
}

/* ---- without memory */

SCENE(memory_shortage_closes_only_the_requests_connection) {
    static const int enough = 4; /* for the slab's two, for timers, for its event */
    for (int left = 0; left <= enough; left++) {
        begin();
        struct client c = connect_one(), bystander = connect_one();
        post(&c, METADATA, 2, 'A', 1, 0);
        memory_left = left;
        settle();
        memory_left = NO_MEMORY_LIMIT;
        CHECK(is_open(&c) == (left == enough) && STAT(frames_illegal) == 0);
        CHECK(reactor->slots.live == is_open(&c) && STAT(requests_in_flight) == is_open(&c));
        if (is_open(&c)) expect_gone(EVENT_REQUEST);
        CHECK(next_event() == NULL);
        ask(&bystander, API_PRODUCE, 1, 'A', 0);
        CHECK(answered(&bystander) == 1);
        end();
    }
}

SCENE(memory_shortage_at_a_miss_closes_the_connection) {
    begin();
    struct client c = connect_one(), other = connect_one();
    ask(&other, API_PRODUCE, 1, 'A', 0);
    post(&c, API_PRODUCE, 1, 'M', 1, 0);
    memory_left = 1; /* memory of serve itself */
    settle();
    memory_left = NO_MEMORY_LIMIT;
    CHECK(!is_open(&c) && serve_seen.abandoned == 1 && next_event() == NULL);
    CHECK(STAT(requests_missed) == 0 && is_open(&other));
    end();
}

SCENE(parallel_requests_work_after_a_slot_shortage) {
    begin();
    struct client c[4];
    for (int i = 0; i < 4; i++) c[i] = connect_one();
    post(&c[0], API_PRODUCE, 1, 'W', 1000, 0);
    memory_left = 2; /* the slab's two */
    settle();
    memory_left = NO_MEMORY_LIMIT;
    CHECK(!is_open(&c[0]) && serve_seen.started == 0 && reactor->slots.live == 0);
    for (int i = 1; i < 4; i++) {
        for (int32_t n = 0; n < 16; n++) post(&c[i], API_PRODUCE, n + 1, 'W', 1000, 0);
        settle();
    }
    CHECK(STAT(requests_in_flight) == 48);
    after_ms(1000);
    settle();
    CHECK(STAT(requests_in_flight) == 0 && answered(&c[3]) == 1);
    end();
}
