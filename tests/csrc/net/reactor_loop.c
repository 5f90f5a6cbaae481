/* A reactor's rounds: when and for how long it sleeps, its work per second, the effects of
 * messages; and its counters. */
#include "reactor_simulation.h"

#include "os/meter.h"

SCENE(reactor_sleeps_until_the_next_timer_up_to_a_second) {
    begin();
    CHECK(turn() == 1000);
    after_ms(400);
    CHECK(thread_of[0].timeout_ms == 600);
    struct client c = connect_one();
    ask(&c, API_FETCH, 1, 'W', 250);
    CHECK(turn() == 250);
    pass_ms(100);
    CHECK(turn() == 150);
    clock_ns += 999999; /* less than a millisecond */
    CHECK(turn() == 150);
    pass_ms(5000);
    settle();
    CHECK(answered(&c) == 1 && thread_of[0].timeout_ms == 1000);
    end();
}

SCENE(extended_deadline_does_not_set_a_timer) {
    begin();
    struct client c = connect_one();
    turn();
    int before = alarms_set;
    for (int i = 0; i < 50; i++) {
        ask(&c, API_FETCH, i, 'W', 700); /* earlier than the tick: once */
        wake_up(serve_seen.starts[serve_seen.started - 1]);
        settle();
        CHECK(answered(&c) == i);
        pass_ms(1);
    }
    CHECK(alarms_set == before + 1);
    /* The timer fires once in vain for a request that was already answered. */
    after_ms(700 - 50);
    CHECK(thread_of[0].timeout_ms > 0 && alarms_set == before + 2);
    end();
}

SCENE(busy_reactor_yields_after_its_configured_time) {
    begin();
    turn();
    int before = gave_way;
    clock_step_ns = SLICES_SHORT_NS / 20; /* a turn reads the clock a few times */
    for (int i = 0; i < 50; i++) turn();
    int often = gave_way - before;
    CHECK(often > 0 && often < 50);
    /* A thread that sleeps between its turns has no work to hand over. */
    thread_of[0].sleep_ns = 50000;
    turn();
    before = gave_way;
    for (int i = 0; i < 50; i++) turn();
    CHECK(gave_way == before);
    thread_of[0].sleep_ns = clock_step_ns = 0;
    end();
}

SCENE(tick_runs_every_second) {
    begin();
    int64_t began_ms = now_ms();
    after_ms(999);
    CHECK(serve_seen.ticks == 0);
    after_ms(1);
    CHECK(serve_seen.ticks == 1 && serve_seen.ticked_ms == began_ms + 1000);
    after_ms(2500); /* kept: the next tick is a second later */
    CHECK(serve_seen.ticks == 2);
    after_ms(999);
    CHECK(serve_seen.ticks == 2);
    after_ms(1);
    CHECK(serve_seen.ticks == 3);
    end();
}

SCENE(tick_frees_spare_buffers_and_retries_waiting_connections) {
    begin();
    struct client c = connect_one();
    ask(&c, API_PRODUCE, 1, 'A', 0);
    CHECK(reactor->input.spare_bytes > 0 && STAT(input_bytes) == 0);
    after_ms(1000);
    after_ms(1000);
    CHECK(reactor->input.spare_bytes == 0);
    end();
}

SCENE(repeated_wake_ups_resume_a_request_once) {
    begin();
    struct client c = connect_one(), other = connect_one();
    ask(&c, API_FETCH, 1, 'H', 0);
    ask(&other, API_FETCH, 1, 'H', 0);
    for (int i = 0; i < 5; i++) wake_up(serve_seen.starts[0]);
    settle();
    CHECK(serve_seen.resumed == 1 && serve_seen.woken == 1);
    CHECK(answered(&c) == 1 && answered(&other) == 0);
    wake_up(serve_seen.starts[1]);
    settle();
    CHECK(answered(&other) == 1 && serve_seen.woken == 2);
    /* A request that is not waiting is not woken. */
    ask(&c, API_PRODUCE, 2, 'M', 1);
    free(expect(EVENT_MISS));
    wake_up(serve_seen.starts[2]);
    settle();
    CHECK(serve_seen.resumed == 2);
    end();
}

SCENE(wake_up_overflow_resumes_all_waiters) {
    begin();
    struct client c[3];
    for (int i = 0; i < 3; i++) {
        c[i] = connect_one();
        ask(&c[i], API_FETCH, 1, 'J', 0);
    }
    struct client missing = connect_one();
    ask(&missing, API_PRODUCE, 1, 'M', 1);
    free(expect(EVENT_MISS));
    for (int i = 0; i < REACTOR_MESSAGES_MAX / 2 + 1; i++) wake_up(serve_seen.starts[0]);
    settle();
    CHECK(serve_seen.granted == 0 && is_open(&missing));
    CHECK(serve_seen.woken > REACTOR_MESSAGES_MAX / 2 / 512); /* once for each turn's messages */
    int first = serve_seen.woken;
    settle();
    CHECK(serve_seen.woken == first);
    for (int i = 0; i < 3; i++) {
        struct message done = {.kind = MESSAGE_IO_DONE, .token = serve_seen.starts[i]->token};
        CHECK(mailbox_post(reactor->mailbox, &done));
    }
    settle();
    for (int i = 0; i < 3; i++) CHECK(answered(&c[i]) == 1);
    end();
}

SCENE(iteration_handles_256_messages_before_and_after_sockets) {
    begin();
    struct client c = connect_one();
    for (int i = 0; i < 600; i++) reactors_retry(all, 1);
    reactors_close(all, name_of(&c));
    CHECK(turn() == 0 && is_open(&c));
    turn();
    CHECK(!is_open(&c));
    end();
}

SCENE(pipelined_requests_alternate_with_other_connections) {
    enum { MANY = 100 };
    begin();
    struct client c = connect_one(), other = connect_one();
    for (int i = 0; i < MANY; i++) post(&c, API_FETCH, i, 'A', 0, 0);
    post(&other, API_FETCH, 1, 'A', 0, 0);
    CHECK(turn() == 0 && answered(&other) == 1);
    CHECK(serve_seen.started >= ROUNDS_TURN && serve_seen.started < MANY / 2);
    settle();
    for (int i = 0; i < MANY; i++) CHECK(answered(&c) == i);
    end();
}

SCENE(message_for_a_closed_connection_is_released) {
    begin();
    struct client c = connect_one();
    uint64_t name = name_of(&c);
    ask(&c, METADATA, 1, 'A', 0);
    struct event *e = expect(EVENT_REQUEST);
    static const uint8_t frame[8] = {0, 0, 0, 4};
    for (int i = 0; i < 2; i++) {
        uint64_t token = i == 0 ? e->token + (1 << 20) : e->token ^ (UINT64_C(1) << 32);
        CHECK(reactors_reply(all, token, frame, sizeof frame, false, 0));
        CHECK(reactors_resume(all, token, (int16_t[]){1}, 1));
        CHECK(reactors_resume(all, UINT64_MAX - (uint64_t)i, (int16_t[]){1}, 1));
        reactors_close(all, name ^ 1);
        reactors_close(all, name ^ UINT64_C(1) << 56);
    }
    settle();
    CHECK(is_open(&c) && answered(&c) == 0);
    answer_to(e, false, 0);
    free(e);
    settle();
    CHECK(answered(&c) == 1);
    end();
}

SCENE(retiring_reactor_answers_closes_and_can_restart) {
    struct reactors_config config = usual_config();
    config.threads = 2;
    begin_with(&config, 0, NULL);
    reactor = &all->reactors[1];
    struct client c[3];
    for (int i = 0; i < 3; i++) {
        uint16_t port = next_port();
        int fd = arrive_from(0x7f000001);
        arrive_from(0x7f000001); /* the next goes to the other reactor */
        knock_at(1, LISTENER);
        c[i] = client_with(fd, port);
    }
    post(&c[0], API_FETCH, 1, 'H', 0, 0);
    post(&c[1], API_PRODUCE, 1, 'W', 700, 0);
    post(&c[2], API_PRODUCE, 1, 'S', 0, 0);
    turn_of(1);
    CHECK(reactors_resize(all, 1) == 0 && reactors_threads(all) == 1);
    post(&c[1], API_PRODUCE, 2, 'A', 0, 0); /* no request starts any more */
    while (turn_of(1) == 0) {}
    CHECK(answered(&c[0]) == 1 && answered(&c[0]) == -1 && serve_seen.timed_out == 1);
    CHECK(answered(&c[2]) == -1 && is_open(&c[1]) && answered(&c[1]) == 0);
    pass_ms(700);
    while (turn_of(1) == 0) {}
    CHECK(answered(&c[1]) == 1 && answered(&c[1]) == -1 && serve_seen.started == 3);
    CHECK(reactor->load == 0 && reactor->listeners == NULL);
    CHECK(reactors_resize(all, 2) == 0 && reactors_threads(all) == 2 && all->count == 2);
    turn_of(1);
    CHECK(reactor->accepting && !reactor->draining);
    reactor = &all->reactors[0];
    end();
}

SCENE(stopping_reactor_abandons_unanswered_requests) {
    begin();
    struct client c = connect_one(), fetch = connect_one(), idle = connect_one();
    ask(&c, API_PRODUCE, 1, 'H', 0);
    ask(&fetch, API_FETCH, 1, 'H', 0);
    control_post(reactor, &(struct message){.kind = MESSAGE_STOP, .size = 700});
    settle();
    CHECK(!is_open(&fetch) && !is_open(&idle) && answered(&fetch) == 1 && is_open(&c));
    CHECK(reactor->listeners == NULL && thread_of[0].timeout_ms == 700);
    after_ms(699);
    CHECK(is_open(&c) && thread_of[0].timeout_ms == 1);
    pass_ms(1);
    sem_post(&thread_of[0].go);
    pthread_join(reactor->thread, NULL);
    CHECK(!is_open(&c) && answered(&c) == -1 && STAT(requests_abandoned) == 1);
    all->stopped = true;
    /* Late calls are dropped. */
    reactors_stop_accepting(all);
    CHECK(reactors_resume(all, 1, (int16_t[]){1}, 1));
    CHECK(reactors_queue_reply(all, 1, (uint8_t[8]){0, 0, 0, 4}, 8, 1, 0));
    end();
}

/* ---- measurements */

static struct meter_api_stats figures_of(int key) {
    struct meter_api_stats figures;
    reactors_meter(all, key, &figures);
    return figures;
}

SCENE(request_time_is_split_into_work_wait_and_send) {
    begin();
    struct client c = connect_one();
    ask(&c, API_FETCH, 1, 'H', 0);
    pass_ms(30);
    wake_up(serve_seen.starts[0]);
    settle();
    struct meter_api_stats f = figures_of(API_FETCH);
    CHECK(f.histograms[METER_TOTAL].sum == 30000000);
    CHECK(f.histograms[METER_REMOTE].sum == 30000000 && f.histograms[METER_LOCAL].sum == 0);
    CHECK(f.histograms[METER_SEND].sum == 0 && f.histograms[METER_QUEUE].sum == 0);
    CHECK(f.histograms[METER_REQUEST_BYTES].sum == 21);
    CHECK(f.histograms[METER_RESPONSE_BYTES].sum == 13);
    clock_step_ns = 1000;
    ask(&c, API_FETCH, 2, 'A', 0);
    clock_step_ns = 0;
    f = figures_of(API_FETCH);
    uint64_t total = f.histograms[METER_TOTAL].sum - 30000000;
    CHECK(f.histograms[METER_LOCAL].sum > 0 && f.histograms[METER_SEND].sum > 0);
    CHECK(f.histograms[METER_LOCAL].sum + f.histograms[METER_SEND].sum == total);
    CHECK(f.histograms[METER_REMOTE].sum == 30000000);
    /* The control plane measures its own requests. */
    ask(&c, METADATA, 3, 'A', 0);
    pass_ms(7);
    struct event *e = expect(EVENT_REQUEST);
    answer_to(e, false, 0);
    free(e);
    settle();
    reactors_meter_control(all, METADATA, 2000000, 4000000, 0, 29);
    reactors_meter_control(all, METADATA, 1, 1, 3, 0);
    f = figures_of(METADATA);
    CHECK(f.histograms[METER_TOTAL].sum == 7000000);
    CHECK(f.histograms[METER_LOCAL].sum == 4000001 && f.histograms[METER_REMOTE].sum == 3);
    CHECK(f.histograms[METER_QUEUE].sum == 2000001 && f.errors[30] == 1 && f.errors[1] == 0);
    struct meter_stats rounds;
    reactors_rounds(all, &rounds);
    uint64_t count = 0;
    for (int i = 0; i < METER_BUCKETS; i++) count += rounds.counts[i];
    CHECK(count + 1 >= STAT(wakeups) && count > 3);
    end();
}

/* Return true if a request with this duration is reported as slow. */
static bool is_slow(const struct client *c, int16_t key, char letter, int64_t ms) {
    post(c, key, 6, letter, 1 << 20, 0);
    settle();
    pass_ms(ms);
    struct event *e = next_event();
    if (e != NULL)
        answer_to(e, false, 0);
    else
        wake_up(serve_seen.starts[serve_seen.started - 1]);
    free(e);
    settle();
    CHECK(answered(c) == 6);
    e = next_event();
    bool slow = e != NULL && e->kind == EVENT_SLOW;
    free(e);
    return slow;
}

SCENE(only_unrequested_waiting_makes_a_request_slow) {
    struct reactors_config config = usual_config();
    config.rules.apis[API_JOIN_GROUP] = config.rules.apis[API_SYNC_GROUP] =
        (struct frames_versions){0, 9, INT16_MAX};
    begin_with(&config, 0, NULL);
    struct client c = connect_one();
    CHECK(!is_slow(&c, API_PRODUCE, 'W', 100000)); /* none until it is enabled */
    reactors_set_slow(all, 100);
    CHECK(!is_slow(&c, API_PRODUCE, 'W', 100) && is_slow(&c, API_PRODUCE, 'W', 101));
    CHECK(!is_slow(&c, API_FETCH, 'W', 5000) && is_slow(&c, API_FETCH, 'H', 5000));
    CHECK(is_slow(&c, METADATA, 'A', 101) && !is_slow(&c, METADATA, 'A', 100));
    CHECK(!is_slow(&c, API_JOIN_GROUP, 'A', 9000) && !is_slow(&c, API_SYNC_GROUP, 'A', 9000));
    CHECK(STAT(requests_slow) == 3);
    reactors_set_slow(all, -1);
    CHECK(!is_slow(&c, METADATA, 'A', 1 << 30));
    reactors_set_slow(all, INT64_MAX / 1000000 + 1);
    CHECK(!is_slow(&c, METADATA, 'A', 1 << 30));
    reactors_set_slow(all, 0);
    CHECK(is_slow(&c, METADATA, 'A', 1) && !is_slow(&c, METADATA, 'A', 0));
    end();
}

SCENE(ten_slow_requests_per_second_are_reported) {
    begin();
    struct client c = connect_one();
    uint64_t name = name_of(&c);
    reactors_set_slow(all, 0);
    for (int i = 0; i < 12; i++) CHECK(is_slow(&c, API_PRODUCE, 'W', 50) == (i < 10));
    CHECK(STAT(requests_slow) == 12);
    after_ms(1000);
    for (uint32_t left_out = 2;; left_out = 0) {
        int64_t began_ns = clock_ns;
        ask(&c, API_PRODUCE, 9, 'H', 0);
        pass_ms(40);
        wake_up(serve_seen.starts[serve_seen.started - 1]);
        settle();
        CHECK(answered(&c) == 9);
        struct event *e = expect(EVENT_SLOW);
        const struct event_slow *slow = (const void *)e->data;
        CHECK(slow->total_ns == 40000000 && slow->remote_ns == 40000000);
        CHECK(slow->local_ns == 0 && slow->send_ns == 0 && slow->left_out == left_out);
        CHECK(slow->request_bytes == 21 && slow->response_bytes == 13);
        CHECK(e->client_id_len == 2 && memcmp(slow + 1, "me", 2) == 0);
        CHECK(e->correlation_id == 9 && e->api_key == API_PRODUCE && e->api_version == VERSION);
        CHECK(e->connection == name && e->began_ns == began_ns && e->peer.port == FIRST_PORT);
        CHECK(e->local.port == 9092 && e->principal == 0);
        free(e);
        if (left_out == 0) break;
    }
    end();
}

SCENE(statistics_are_named_and_summed) {
    struct reactors_config config = usual_config();
    config.threads = 2;
    begin_with(&config, 0, NULL);
    arrive_from(1);
    arrive_from(1);
    knock();
    turn_of(1);
    int count = 0, connections = -1;
    for (; reactors_stat_name(count) != NULL; count++)
        if (strcmp(reactors_stat_name(count), "connections") == 0) connections = count;
    CHECK(reactors_stat_name(-1) == NULL && reactors_stat_name(count + 1) == NULL);
    CHECK(connections == 0 && reactors_stat(all, connections) == 2);
    CHECK(strcmp(reactors_stat_name(count - 1), "handshakes_failed") == 0);
    end();
}
