/* New connections: when and by which reactor they are accepted, and which old ones are closed
 * for them. */
#include "reactor_simulation.h"

static bool is_watched(const struct listener_socket *l) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = EPOLL_LISTENER | l->index};
    return __real_epoll_ctl(reactor->epoll, EPOLL_CTL_MOD, l->fd, &event) == 0;
}

static void limit(uint32_t connections_max, uint32_t per_ip_max, uint32_t descriptors_max,
                  uint32_t descriptor_end) {
    struct reactors_limits limits = {connections_max, per_ip_max, descriptors_max, descriptor_end};
    reactors_set_limits(all, &limits);
}

static bool is_closed(int fd) {
    char byte;
    return __real_recv(fd, &byte, 1, 0) == 0;
}

SCENE(iteration_accepts_thirty_two_connections) {
    begin();
    for (int i = 0; i < 40; i++) arrive_from(1);
    knock();
    CHECK(STAT(connections_accepted) == 32 && STAT(accept_pauses) == 0 && reactor->load == 32);
    knock();
    CHECK(STAT(connections_accepted) == 40);
    end();
}

SCENE(accepting_pauses_50_ms_at_the_connection_limit) {
    begin();
    limit(2, UINT32_MAX, UINT32_MAX, UINT32_MAX);
    struct client c = connect_one();
    arrive_from(1);
    arrive_from(1);
    knock();
    CHECK(STAT(connections) == 2 && STAT(accept_pauses) == 1 && incoming_at < incoming_count);
    struct listener_socket *l = reactor->listeners;
    CHECK(!is_watched(l) && l->timer.at_ms == now_ms() + 50);
    after_ms(49);
    CHECK(!is_watched(l));
    leave(&c);
    after_ms(1);
    CHECK(is_watched(l) && l->timer.heap_index == 0);
    knock();
    CHECK(STAT(connections) == 2 && STAT(accept_pauses) == 2);
    end();
}

SCENE(failed_listener_registration_is_retried) {
    begin();
    limit(0, UINT32_MAX, UINT32_MAX, UINT32_MAX);
    knock();
    struct listener_socket *l = reactor->listeners;
    epoll_ctl_error = ENOMEM;
    after_ms(50);
    CHECK(!is_watched(l) && l->timer.at_ms == now_ms() + 50);
    after_ms(50);
    CHECK(is_watched(l));
    end();
}

SCENE(only_shortages_pause_accepting) {
    static const struct {
        int error;
        bool goes_on, pauses;
    } cases[] = {{EMFILE, false, true},  {ENFILE, false, true},  {ENOMEM, false, true},
                 {ENOBUFS, false, true}, {EPERM, false, false},  {ECONNABORTED, true, false},
                 {EINTR, true, false}};
    begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t pauses = STAT(accept_pauses), accepted = STAT(connections_accepted);
        arrive_none(cases[i].error);
        arrive_from(1);
        knock();
        CHECK(STAT(accept_pauses) == pauses + cases[i].pauses);
        CHECK(STAT(connections_accepted) == accepted + cases[i].goes_on);
        CHECK(is_watched(reactor->listeners) == !cases[i].pauses);
        after_ms(50);
        CHECK(is_watched(reactor->listeners));
        if (!cases[i].goes_on) knock();
        CHECK(STAT(connections_accepted) == accepted + 1);
    }
    end();
}

SCENE(connections_per_address_are_limited) {
    begin();
    limit(UINT32_MAX, 2, UINT32_MAX, UINT32_MAX);
    struct client c = connect_from(1);
    connect_from(1);
    connect_from(2);
    int refused = arrive_from(1);
    knock();
    CHECK(is_closed(refused) && STAT(connections_refused) == 1 && all->connections == 3);
    CHECK(STAT(connections_accepted) == 3 && reactor->load == 3);
    leave(&c);
    connect_from(1);
    static const uint8_t address[16] = {[10] = 0xff, [11] = 0xff, [15] = 2};
    CHECK(reactors_set_overrides(all, address, &(uint32_t){3}, 1));
    connect_from(2);
    connect_from(2);
    refused = arrive_from(2);
    knock();
    CHECK(is_closed(refused) && STAT(connections_refused) == 2);
    end();
}

/* Ages of connections in ms; return the one closed for a new connection, or -1. */
static int gives_way(int count, const int64_t ages_ms[], const bool has_asked[]) {
    struct client clients[4];
    int64_t before_ms = ages_ms[0];
    for (int i = 0; i < count; i++) {
        pass_ms(before_ms - ages_ms[i]); /* the oldest comes first */
        before_ms = ages_ms[i];
        clients[i] = connect_one();
        if (has_asked[i]) ask(&clients[i], API_PRODUCE, 1, 'A', 0);
    }
    uint64_t evicted = STAT(connections_evicted);
    pass_ms(before_ms);
    arrive_none(EMFILE);
    knock();
    int found = -1;
    for (int i = 0; i < count; i++) {
        if (!is_open(&clients[i])) {
            CHECK(found == -1);
            found = i;
        } else {
            leave(&clients[i]);
        }
    }
    CHECK(STAT(connections_evicted) == evicted + (found >= 0));
    after_ms(50);
    return found;
}

SCENE(idlest_connection_is_closed_and_unused_ones_first) {
    begin();
    static const bool asked[4] = {true, true, true, true}, silent[4] = {0};
    CHECK(gives_way(1, (int64_t[]){999}, silent) == -1);
    CHECK(gives_way(1, (int64_t[]){1000}, silent) == 0);
    CHECK(gives_way(1, (int64_t[]){9999}, asked) == -1);
    CHECK(gives_way(1, (int64_t[]){10000}, asked) == 0);
    CHECK(gives_way(3, (int64_t[]){12000, 11000, 10000}, asked) == 0);
    CHECK(gives_way(3, (int64_t[]){3000, 2000, 1000}, silent) == 0);
    CHECK(gives_way(2, (int64_t[]){90000, 1000}, (bool[]){true, false}) == 1);
    /* It may still send its first request: it would be next. */
    CHECK(gives_way(2, (int64_t[]){90000, 999}, (bool[]){true, false}) == -1);
    CHECK(gives_way(2, (int64_t[]){5000, 999}, (bool[]){false, false}) == 0);
    CHECK(STAT(accept_pauses) == 3);
    end();
}

SCENE(authenticated_or_busy_connections_are_not_evicted) {
    struct reactors_config config = usual_config();
    config.queued_requests_max = 1;
    begin_with(&config, 0, NULL);
    struct client known = connect_one(), waits = connect_one(), muted = connect_one();
    struct client asked = connect_one(), listed = connect_one();
    reactors_set_principal(all, name_of(&known), 3, 0);
    ask(&waits, API_PRODUCE, 1, 'H', 0);
    ask(&muted, API_PRODUCE, 1, 'T', 1 << 20);
    ask(&asked, METADATA, 1, 'A', 0);
    ask(&listed, METADATA, 1, 'A', 0);
    CHECK(connection_of(&listed)->list == &reactor->room_waiting && STAT(queue_waits) == 1);
    pass_ms(100000);
    arrive_none(EMFILE);
    knock();
    CHECK(STAT(connections) == 5 && STAT(connections_evicted) == 0 && STAT(accept_pauses) == 1);
    end();
}

SCENE(muted_connection_without_requests_can_be_evicted) {
    begin();
    struct client muted = connect_one(), idle = connect_one();
    connection_of(&muted)->waits |= WAIT_MUTE; /* as if the control plane had throttled it */
    connection_of(&muted)->muted_until_ms = INT64_MAX;
    ask(&idle, API_PRODUCE, 1, 'A', 0);
    pass_ms(10000);
    arrive_none(EMFILE);
    knock();
    CHECK(!is_open(&idle) && is_open(&muted) && STAT(connections_evicted) == 1);
    end();
}

SCENE(descriptor_reserve_evicts_a_connection_or_rejects_the_new_one) {
    begin();
    limit(UINT32_MAX, UINT32_MAX, 1, UINT32_MAX);
    struct client c = connect_one();
    int crowded = arrive_from(1);
    knock();
    CHECK(is_closed(crowded) && is_open(&c) && STAT(connections_crowded) == 1);
    pass_ms(1000);
    struct client next = connect_one();
    CHECK(!is_open(&c) && STAT(connections_evicted) == 1 && STAT(connections) == 1);
    limit(UINT32_MAX, UINT32_MAX, UINT32_MAX, 3);
    crowded = arrive_from(1);
    knock();
    CHECK(is_closed(crowded) && is_open(&next) && STAT(connections_crowded) == 2);
    int end_fd = arrive_from(1) - 1; /* the other end of the pair */
    limit(UINT32_MAX, UINT32_MAX, UINT32_MAX, (uint32_t)end_fd + 1);
    knock();
    CHECK(STAT(connections) == 2 && STAT(connections_crowded) == 2);
    end();
}

SCENE(connection_rate_limit_delays_reading) {
    struct reactors_config config = usual_config();
    config.quotas = quotas_new(2, 1000);
    CHECK(quotas_set_addresses(config.quotas, NULL, 0, 1) == 0);
    begin_with(&config, 0, NULL);
    int64_t began_ms = now_ms();
    struct client one = connect_from(1), next = connect_from(1), refused = connect_from(1);
    CHECK(connection_of(&one)->state == CONNECTION_OPEN);
    CHECK(connection_of(&refused)->state == CONNECTION_REFUSED);
    int64_t until_ms = connection_of(&refused)->muted_until_ms;
    CHECK(until_ms > began_ms && STAT(connections_refused) >= 1);
    (void)next;
    post(&refused, API_PRODUCE, 1, 'A', 0, 0);
    settle();
    after_ms(until_ms - began_ms - 1);
    CHECK(is_open(&refused) && serve_seen.started == 0 && STAT(bytes_in) == 0);
    after_ms(1);
    CHECK(!is_open(&refused) && serve_seen.started == 0 && STAT(bytes_in) == 0);
    CHECK(STAT(connections_idle) == 0 && STAT(frames_late) == 0);
    end();
    quotas_free(config.quotas);
}

SCENE(rate_limited_connection_is_evicted_first) {
    struct reactors_config config = usual_config();
    config.quotas = quotas_new(2, 1000);
    begin_with(&config, 0, NULL);
    struct client silent = connect_from(1);
    pass_ms(5000);
    CHECK(quotas_set_addresses(config.quotas, NULL, 0, 0.001) == 0);
    connect_from(2);
    struct client refused = connect_from(2);
    CHECK(connection_of(&refused)->state == CONNECTION_REFUSED);
    arrive_none(EMFILE);
    knock();
    CHECK(is_open(&silent) && STAT(connections_evicted) == 1 && STAT(connections) == 2);
    end();
    quotas_free(config.quotas);
}

SCENE(memory_shortage_closes_one_connection_and_later_ones_work) {
    for (int left = 0; left < 4; left++) { /* for its address, for the slab's two, for timers */
        begin();
        int fd = arrive_from(1);
        memory_left = left;
        knock();
        memory_left = NO_MEMORY_LIMIT;
        CHECK(is_closed(fd) && reactor->load == 0 && all->connections == 0);
        CHECK(STAT(connections_accepted) == 0 && STAT(connections) == 0);
        struct client clients[SLAB_CHUNK_ITEMS + 6];
        for (int i = 0; i < SLAB_CHUNK_ITEMS + 6; i++) clients[i] = connect_from(1);
        for (int i = 0; i < SLAB_CHUNK_ITEMS + 6; i++) {
            ask(&clients[i], API_PRODUCE, 3, 'A', 0);
            CHECK(answered(&clients[i]) == 3);
        }
        end();
    }
}

SCENE(unregistrable_connection_is_closed) {
    begin();
    int fd = arrive_from(1);
    epoll_ctl_error = ENOSPC;
    knock();
    CHECK(is_closed(fd) && reactor->load == 0 && all->connections == 0);
    CHECK(reactor->connections.live == 0 && STAT(connections_accepted) == 0);
    end();
}

SCENE(connection_goes_to_the_least_loaded_reactor) {
    struct reactors_config config = usual_config();
    config.threads = 3;
    begin_with(&config, 0, NULL);
    for (int i = 0; i < 9; i++) {
        arrive_from(1);
        knock();
        turn_of(1);
        turn_of(2);
    }
    for (int i = 0; i < 3; i++)
        CHECK(all->reactors[i].load == 3 && all->reactors[i].stats.connections == 3);
    /* Reactors that accept connections. */
    CHECK(reactors_resize(all, 2) == 0 && reactors_threads(all) == 2);
    turn_of(2);
    CHECK(turn_of(2) > 0 && all->reactors[2].load == 0 && all->connections == 6);
    CHECK(all->reactors[2].listeners == NULL && all->reactors[1].listeners != NULL);
    for (int i = 0; i < 2; i++) arrive_from(1);
    knock();
    turn_of(1);
    CHECK(all->reactors[0].load == 4 && all->reactors[1].load == 4);
    CHECK(all->reactors[2].load == 0);
    end();
}

SCENE(connection_stays_if_its_handover_message_fails) {
    struct reactors_config config = usual_config();
    config.threads = 2;
    begin_with(&config, 0, NULL);
    connect_from(1);
    arrive_from(1);
    memory_left = 0;
    knock();
    memory_left = NO_MEMORY_LIMIT;
    CHECK(all->reactors[0].load == 2 && all->reactors[1].load == 0);
    CHECK(STAT(connections) == 2);
    end();
}
