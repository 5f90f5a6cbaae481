/* Reactors start, grow and listen; a failure halfway leaves nothing behind. */
#include <netdb.h>
#include <netinet/tcp.h>

#include "reactor_simulation.h"

/* The next call to fail: after this many calls, with this error. */
static struct failing {
    int after, error, calls;
} sockets, options, binds, listens, threads, queues, epolls, alarms, look_ups;

static bool fails(struct failing *f) {
    f->calls++;
    if (f->error == 0 || f->after-- > 0) return false;
    errno = f->error;
    return true;
}

#define PLAYED(type, name, which, arguments, passed, ...)                                          \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__) { return fails(&which) ? arguments : __real_##name passed; }

PLAYED(int, socket, sockets, -1, (domain, type, protocol), int domain, int type, int protocol)
PLAYED(int, bind, binds, -1, (fd, at, len), int fd, const struct sockaddr *at, socklen_t len)
PLAYED(int, listen, listens, -1, (fd, backlog), int fd, int backlog)
PLAYED(int, eventfd, queues, -1, (count, flags), unsigned count, int flags)
PLAYED(int, epoll_create1, epolls, -1, (flags), int flags)
PLAYED(int, timerfd_create, alarms, -1, (clock, flags), int clock, int flags)
PLAYED(int, pthread_create, threads, errno, (to, how, run, of), pthread_t *to,
       const pthread_attr_t *how, void *(*run)(void *), void *of)

static struct {
    int level, name, value;
} set[256];

int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len) {
    if (fails(&options)) return -1;
    set[options.calls - 1].level = level;
    set[options.calls - 1].name = name;
    memcpy(&set[options.calls - 1].value, value, sizeof(int));
    return __real_setsockopt(fd, level, name, value, len);
}

static int look_up_result;
int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *wanted,
                       struct addrinfo **out);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *wanted,
                       struct addrinfo **out);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *wanted,
                       struct addrinfo **out) {
    return fails(&look_ups) ? look_up_result : __real_getaddrinfo(host, port, wanted, out);
}

static int value_of(int level, int name) {
    for (int i = 0; i < options.calls; i++)
        if (set[i].level == level && set[i].name == name) return set[i].value;
    return -1;
}

/* ---- start */

SCENE(failed_reactor_creation_releases_everything) {
    struct reactors_config config = usual_config();
    config.threads = 2;
    int before = open_descriptors(), left = 0;
    for (;; left++) {
        memory_left = left;
        all = reactors_new(NULL, &config);
        memory_left = NO_MEMORY_LIMIT;
        if (all != NULL) break;
        CHECK(errno == ENOMEM && open_descriptors() == before && left < 40);
    }
    CHECK(left >= 4 + 2 * 4 && reactors_threads(all) == 2);
    reactors_free(all);
    struct failing *const kinds[] = {&queues, &epolls, &alarms};
    for (int kind = 0; kind < 3; kind++)
        for (int after = 0; after < (kind == 0 ? 3 : 2); after++) {
            *kinds[kind] = (struct failing){.after = after, .error = EMFILE};
            CHECK(reactors_new(NULL, &config) == NULL && errno == EMFILE);
            kinds[kind]->error = 0;
            CHECK(open_descriptors() == before);
        }
}

SCENE(failed_thread_start_stops_earlier_threads) {
    struct reactors_config config = usual_config();
    config.threads = 3;
    runs_free = true;
    all = reactors_new(NULL, &config);
    threads = (struct failing){.after = 2, .error = EAGAIN};
    CHECK(reactors_start(all) == -EAGAIN && !all->started);
    threads.error = 0;
    reactors_stop(all, 0); /* nothing to stop */
    reactors_stop_accepting(all);
    reactors_free(all);
}

SCENE(reactor_pool_grows_as_far_as_possible) {
    begin();
    runs_free = true;
    sem_post(&thread_of[0].go);
    threads = (struct failing){.after = 1, .error = EAGAIN};
    CHECK(reactors_resize(all, 3) == -EAGAIN && reactors_threads(all) == 2 && all->count == 2);
    threads.error = 0;
    epolls = (struct failing){.error = EMFILE};
    CHECK(reactors_resize(all, 3) == -EMFILE && reactors_threads(all) == 2);
    epolls.error = 0;
    CHECK(reactors_resize(all, 2) == 0 && reactors_resize(all, 1) == 0);
    CHECK(reactors_threads(all) == 1 && all->count == 2);
    CHECK(reactors_resize(all, 3) == 0 && reactors_threads(all) == 3 && all->count == 3);
    CHECK(all->reactors[2].index == 2 && all->reactors[0].epoll != all->reactors[2].epoll);
    end();
}

/* ---- listening */

static int listen_on(const char *host, int port) {
    struct reactors_listener l = {.listener = 9, .host = host, .port = port, .backlog = 5};
    return reactors_listen(all, &l);
}

SCENE(listener_options_are_set_before_bind) {
    struct reactors_config config = usual_config();
    config.send_buffer_bytes = 50000;
    config.receive_buffer_bytes = 60000;
    begin_with(&config, 0, NULL);
    CHECK(value_of(SOL_SOCKET, SO_REUSEADDR) == 1 && value_of(SOL_SOCKET, SO_KEEPALIVE) == 1);
    CHECK(value_of(IPPROTO_TCP, TCP_NODELAY) == 1 && value_of(SOL_SOCKET, SO_REUSEPORT) == 1);
    CHECK(value_of(SOL_SOCKET, SO_SNDBUF) == 50000 && value_of(SOL_SOCKET, SO_RCVBUF) == 60000);
    CHECK(set[options.calls - 1].name == SO_REUSEPORT); /* of the first, after it was bound */
    end();
}

SCENE(socket_buffers_use_system_defaults_unless_set) {
    begin();
    CHECK(value_of(SOL_SOCKET, SO_SNDBUF) == -1 && value_of(SOL_SOCKET, SO_RCVBUF) == -1);
    end();
}

SCENE(failed_listener_leaves_no_socket) {
    struct reactors_config config = usual_config();
    config.threads = 2;
    begin_with(&config, 0, NULL);
    int before = open_descriptors();
    struct failing *const kinds[] = {&sockets, &options, &binds, &listens};
    for (int kind = 0; kind < 4; kind++) {
        int failed = 0;
        for (int after = 0;; after++, failed++) {
            *kinds[kind] = (struct failing){.after = after, .error = ENOMEM};
            options.calls = 0;
            int port = listen_on("127.0.0.1", 0);
            kinds[kind]->error = 0;
            if (port > 0) break;
            CHECK(port == -ENOMEM && open_descriptors() == before);
        }
        static const int each[] = {2, 9, 2, 2}; /* of two reactors */
        CHECK(failed == each[kind]);
        reactors_unlisten(all, 9);
        for (int i = 0; i < 2; i++) turn_of(i);
        CHECK(open_descriptors() == before);
    }
    int starvations = 0;
    for (;; starvations++) {
        memory_left = starvations;
        int port = listen_on("127.0.0.1", 0);
        memory_left = NO_MEMORY_LIMIT;
        if (port > 0) break;
        CHECK(port == -ENOMEM && open_descriptors() == before);
    }
    CHECK(starvations == 3); /* the list of the sockets, and the share of each reactor */
    end();
}

SCENE(port_is_retried_only_for_port_zero) {
    begin();
    for (int port = 0; port < 2; port++) {
        binds = (struct failing){.error = EADDRINUSE};
        CHECK(listen_on("127.0.0.1", port) == -EADDRINUSE);
        CHECK(binds.calls == (port == 0 ? 16 : 1));
    }
    binds.error = 0;
    end();
}

SCENE(unresolvable_host_reports_the_reason) {
    begin();
    static const struct {
        int result, error;
    } cases[] = {{EAI_NONAME, -EADDRNOTAVAIL}, {EAI_MEMORY, -ENOMEM}, {EAI_SYSTEM, -ENFILE}};
    for (int i = 0; i < 3; i++) {
        look_up_result = cases[i].result;
        look_ups = (struct failing){.error = ENFILE};
        CHECK(listen_on("broker", 0) == cases[i].error);
    }
    look_ups.error = 0;
    /* A missing address family matters only if no other address is left. */
    sockets = (struct failing){.error = EAFNOSUPPORT};
    CHECK(listen_on("127.0.0.1", 0) == -EAFNOSUPPORT);
    sockets.error = 0;
    binds = (struct failing){.error = EADDRNOTAVAIL};
    CHECK(listen_on("127.0.0.1", 0) == -EADDRNOTAVAIL);
    binds.error = 0;
    end();
}

SCENE(all_reactors_listen_on_the_port) {
    struct reactors_config config = usual_config();
    config.threads = 2;
    begin_with(&config, 0, NULL);
    int port = listen_on("127.0.0.1", 0);
    CHECK(port > 0 && listen_on("127.0.0.1", port) == -EADDRINUSE);
    for (int i = 0; i < 2; i++) {
        turn_of(i);
        const struct listener_socket *l = all->reactors[i].listeners;
        struct sockaddr_in at;
        socklen_t len = sizeof at;
        CHECK(l->listener == 9 && l->maker == NULL && l->flags == 0 && l->index == 1);
        CHECK(getsockname(l->fd, (struct sockaddr *)&at, &len) == 0 && ntohs(at.sin_port) == port);
        CHECK(l->next->listener == LISTENER && l->next->index == 0 && l->next->next == NULL);
    }
    struct reactors_listener l = {.listener = 9, .host = "127.0.0.1", .port = port, .backlog = 5};
    CHECK(reactors_join(all, &l, 1) == port);
    turn_of(1);
    CHECK(turn_of(0) > 0 && all->reactors[0].listeners->next->next == NULL);
    CHECK(all->reactors[1].listeners->next->listener == 9);
    end();
}
