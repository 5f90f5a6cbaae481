/* A reactor whose turns, clock, connections and requests are controlled by a scene, for programs
 * that test single steps: nothing happens and no time passes unless the scene causes it.
 *
 * The reactor's thread and epoll are real; the thread is held in epoll_wait until the scene
 * permits a turn (`turn`), and the scene waits until it is back there. Connections are socket
 * pairs returned by accept4, so bytes that a scene sends arrive immediately. Link with
 * -Wl,--wrap of the functions named __wrap_* below. */
#ifndef PYLOG_REACTOR_SIMULATION_H
#define PYLOG_REACTOR_SIMULATION_H

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "format/bytes.h"
#include "net/reactor_internal.h"
#include "failing_memory.h"
#include "reactor_requests.h"
#include "scene_names.h"

enum {
    LISTENER = 7,
    METADATA = 3,
    REACTORS_MAX = 3,
    INCOMING_MAX = 64,
    FIRST_PORT = 5000, /* of the first client; each gets the next one */
    SENDS_MAX = 1024
};

/* ---- the clock: the only source of time */
static _Atomic int64_t clock_ns = 5000 * INT64_C(1000000);
static _Atomic int64_t clock_step_ns; /* advances at each reading */

int __wrap_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out) {
    (void)id;
    int64_t now = atomic_fetch_add(&clock_ns, clock_step_ns);
    *out = (struct timespec){now / 1000000000, now % 1000000000};
    return 0;
}

static inline int64_t now_ms(void) { return clock_ns / 1000000; }
static inline void pass_ms(int64_t ms) { clock_ns += ms * 1000000; }

/* ---- the reactors, and simulated results of the kernel */
static struct reactors *all;
static struct reactor *reactor; /* the first, usually the only one */
static struct {
    sem_t go, asleep;
    int timeout_ms;     /* requested timeout */
    int64_t alarm_ms;   /* time of its timer; 0: not set */
    int64_t sleep_ns;   /* passes in epoll_wait */
    struct epoll_event event; /* before the kernel's events, if events is not 0 */
} thread_of[REACTORS_MAX];
static int alarms_set, gave_way;
static atomic_bool runs_free;
static struct {
    int result, error;
    struct sockaddr_in from;
} incoming[INCOMING_MAX];
static int incoming_count, incoming_at;
static int client_ends[SENDS_MAX], client_end_count; /* not closed by the scene, or -1 */
static int epoll_ctl_error; /* of the next EPOLL_CTL_ADD */
static ssize_t (*played_recv)(int fd, void *to, size_t room); /* NULL: the kernel's */
static ssize_t (*played_send)(int fd, size_t bytes);           /* -2: the kernel's */
/* Likewise; -3: sends nothing, and reports that everything was sent. */
static ssize_t (*played_sendfile)(int fd, size_t bytes);
static int sent_to[SENDS_MAX], sent_count;
static int last_send_flags;

int __wrap_sched_yield(void);
int __wrap_sched_yield(void) {
    gave_way++;
    return 0;
}

int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *when,
                           struct itimerspec *before);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *when,
                           struct itimerspec *before) {
    int at = 0;
    while (all->reactors[at].alarm != fd) at++;
    CHECK(flags == TFD_TIMER_ABSTIME && before == NULL && when->it_interval.tv_nsec == 0);
    /* Timers are rounded up to the next millisecond. */
    thread_of[at].alarm_ms = when->it_value.tv_sec * 1000 + when->it_value.tv_nsec / 1000000 - 1;
    alarms_set++;
    return 0;
}

/* Return the sleep time without events; the thread always sets its timer. */
static inline int sleeps_ms(int at, int timeout_ms) {
    CHECK(timeout_ms == 0 || (timeout_ms == -1 && thread_of[at].alarm_ms != 0));
    return timeout_ms == 0 ? 0 : (int)(thread_of[at].alarm_ms - clock_ns / 1000000);
}

int __real_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout_ms);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout_ms);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout_ms) {
    int at = 0;
    while (all->reactors[at].epoll != epoll) at++;
    int wanted_ms = sleeps_ms(at, timeout_ms);
    if (!runs_free) {
        thread_of[at].timeout_ms = wanted_ms;
        sem_post(&thread_of[at].asleep);
        while (sem_wait(&thread_of[at].go) != 0) {}
    } else {
        clock_ns += wanted_ms * INT64_C(1000000);
    }
    clock_ns += thread_of[at].sleep_ns;
    int first = 0;
    if (thread_of[at].event.events != 0) events[first++] = thread_of[at].event;
    thread_of[at].event.events = 0;
    if (thread_of[at].alarm_ms != 0 && clock_ns / 1000000 >= thread_of[at].alarm_ms) {
        events[first++] = (struct epoll_event){.events = EPOLLIN, .data.u64 = EPOLL_ALARM};
        thread_of[at].alarm_ms = 0;
    }
    int count = __real_epoll_wait(epoll, events + first, max - first, 0);
    return first + (count < 0 ? 0 : count);
}

int __real_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event) {
    if (what == EPOLL_CTL_ADD && epoll_ctl_error != 0) {
        errno = epoll_ctl_error;
        epoll_ctl_error = 0;
        return -1;
    }
    return __real_epoll_ctl(epoll, what, fd, event);
}

int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *len, int flags) {
    (void)fd;
    CHECK(flags == (SOCK_NONBLOCK | SOCK_CLOEXEC) && *len >= sizeof incoming[0].from);
    if (incoming_at == incoming_count) {
        errno = EAGAIN;
        return -1;
    }
    int at = incoming_at++;
    memcpy(from, &incoming[at].from, sizeof incoming[at].from);
    *len = sizeof incoming[at].from;
    errno = incoming[at].error;
    return incoming[at].result;
}

int __real_getsockname(int fd, struct sockaddr *out, socklen_t *len);
int __wrap_getsockname(int fd, struct sockaddr *out, socklen_t *len);
int __wrap_getsockname(int fd, struct sockaddr *out, socklen_t *len) {
    int result = __real_getsockname(fd, out, len);
    struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = htons(9092)};
    if (result != 0 || out->sa_family != AF_UNIX) return result;
    local.sin_addr.s_addr = htonl(0x0a000001);
    memcpy(out, &local, sizeof local);
    return 0;
}

ssize_t __real_recv(int fd, void *to, size_t room, int flags);
ssize_t __wrap_recv(int fd, void *to, size_t room, int flags);
ssize_t __wrap_recv(int fd, void *to, size_t room, int flags) {
    return played_recv != NULL ? played_recv(fd, to, room) : __real_recv(fd, to, room, flags);
}

ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags) {
    size_t bytes = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) bytes += message->msg_iov[i].iov_len;
    CHECK(bytes > 0 && message->msg_iovlen <= 4 * REQUESTS_PER_CONNECTION_MAX);
    last_send_flags = flags;
    if (sent_count < SENDS_MAX) sent_to[sent_count++] = fd;
    ssize_t said = played_send == NULL ? -2 : played_send(fd, bytes);
    if (said < 0) return said == -2 ? __real_sendmsg(fd, message, flags) : -1;
    struct iovec pieces[4 * REQUESTS_PER_CONNECTION_MAX];
    size_t count = 0;
    for (size_t left = (size_t)said; left != 0; left -= pieces[count++].iov_len) {
        pieces[count] = message->msg_iov[count];
        if (pieces[count].iov_len > left) pieces[count].iov_len = left;
    }
    return __real_sendmsg(fd, &(struct msghdr){.msg_iov = pieces, .msg_iovlen = count}, flags);
}
ssize_t __wrap_send(int fd, const void *from, size_t bytes, int flags);
ssize_t __wrap_send(int fd, const void *from, size_t bytes, int flags) {
    struct iovec piece = {(void *)(uintptr_t)from, bytes};
    return __wrap_sendmsg(fd, &(struct msghdr){.msg_iov = &piece, .msg_iovlen = 1}, flags);
}

ssize_t __real_sendfile(int to, int from, off_t *position, size_t bytes);
ssize_t __wrap_sendfile(int to, int from, off_t *position, size_t bytes);
ssize_t __wrap_sendfile(int to, int from, off_t *position, size_t bytes) {
    if (sent_count < SENDS_MAX) sent_to[sent_count++] = to;
    ssize_t said = played_sendfile == NULL ? -2 : played_sendfile(to, bytes);
    return said == -3   ? (ssize_t)bytes
           : said == -2 ? __real_sendfile(to, from, position, bytes)
           : said < 0   ? -1
                        : __real_sendfile(to, from, position, (size_t)said);
}

/* ---- turns */

/* Give reactor i a turn until it sleeps again. Return its requested timeout in ms. */
static inline int turn_of(int i) {
    sem_post(&thread_of[i].go);
    while (sem_wait(&thread_of[i].asleep) != 0) {}
    return thread_of[i].timeout_ms;
}
static inline int turn(void) { return turn_of(0); }
/* Turns until nothing is left to do immediately. */
static inline void settle(void) {
    for (int i = 0; turn() == 0; i++) CHECK(i < 1000);
}
/* A turn after this time. */
static inline void after_ms(int64_t ms) {
    pass_ms(ms);
    turn();
}

static inline struct reactors_config usual_config(void) {
    struct reactors_config config = {.threads = 1,
                                     .queued_requests_max = 100,
                                     .idle_ms_max = 600000,
                                     .unauthenticated_bytes_max = 1000,
                                     .send_buffer_bytes = -1,
                                     .receive_buffer_bytes = -1};
    frames_rules_init(&config.rules, 8 << 20);
    config.rules.apis[API_PRODUCE] = (struct frames_versions){3, 13, 9};
    config.rules.apis[API_FETCH] = (struct frames_versions){4, 18, 12};
    config.rules.apis[METADATA] = (struct frames_versions){0, 13, 9};
    config.rules.apis[API_SASL_HANDSHAKE] = (struct frames_versions){0, 1, INT16_MAX};
    config.rules.apis[API_SASL_AUTHENTICATE] = (struct frames_versions){0, 9, INT16_MAX};
    config.rules.apis[API_VERSIONS] = (struct frames_versions){0, 4, 3};
    return config;
}

static inline int open_descriptors(void) {
    int count = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d) != NULL) count++;
    closedir(d);
    return count;
}
static int descriptors_before;

/* Start the reactors until they sleep, listening with these flags and this maker. */
static inline void begin_with(const struct reactors_config *config, unsigned flags,
                              struct transport_maker *maker) {
    runs_free = false;
    open_file();
    descriptors_before = open_descriptors();
    all = reactors_new(NULL, config);
    CHECK(all != NULL && config->threads <= REACTORS_MAX);
    reactor = &all->reactors[0];
    for (int i = 0; i < REACTORS_MAX; i++) {
        sem_init(&thread_of[i].go, 0, 0);
        sem_init(&thread_of[i].asleep, 0, 0);
    }
    struct reactors_listener l = {.listener = LISTENER,
                                  .host = "127.0.0.1",
                                  .backlog = 10,
                                  .flags = flags,
                                  .maker = maker};
    CHECK(reactors_start(all) == 0);
    for (int i = 0; i < config->threads; i++) {
        while (sem_wait(&thread_of[i].asleep) != 0) {}
    }
    CHECK(reactors_listen(all, &l) > 0);
    for (int i = 0; i < config->threads; i++) turn_of(i);
}
static inline void begin(void) {
    struct reactors_config config = usual_config();
    begin_with(&config, 0, NULL);
}

/* Stop them and check that everything was released. */
static inline void end(void) {
    memory_left = NO_MEMORY_LIMIT;
    int count = all->count;
    runs_free = true;
    for (int i = 0; i < count; i++) sem_post(&thread_of[i].go);
    reactors_stop(all, 0);
    for (int i = 0; i < count; i++)
        CHECK(all->reactors[i].load == 0 && all->reactors[i].stats.connections == 0 &&
              all->reactors[i].stats.requests_in_flight == 0);
    CHECK(all->connections == 0);
    reactors_free(all);
    for (int i = 0; i < client_end_count; i++)
        if (client_ends[i] >= 0) close(client_ends[i]);
    client_end_count = 0;
    CHECK(serve_seen.live == 0 && serve_seen.ranges == 0);
    CHECK(open_descriptors() == descriptors_before);
    close(file);
}

/* ---- clients */
struct client {
    int fd;
    uint32_t index, generation; /* of its connection */
};

static inline uint16_t next_port(void) { return (uint16_t)(FIRST_PORT + client_end_count); }
/* Let accept4 return a connection from this address; return the peer's end. */
static inline int arrive_from(uint32_t ip) {
    int pair[2];
    uint16_t port = next_port();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    CHECK(incoming_count < INCOMING_MAX);
    incoming[incoming_count].result = pair[0];
    incoming[incoming_count].error = 0;
    incoming[incoming_count++].from = (struct sockaddr_in){.sin_family = AF_INET,
                                                           .sin_port = htons(port),
                                                           .sin_addr.s_addr = htonl(ip)};
    return client_ends[client_end_count++] = pair[1];
}
/* Let accept4 fail. */
static inline void arrive_none(int error) {
    CHECK(incoming_count < INCOMING_MAX);
    incoming[incoming_count].result = -1;
    incoming[incoming_count++].error = error;
}
/* Signal that this listener of reactor i has a connection to accept. */
static inline void knock_at(int i, int listener) {
    const struct listener_socket *l = all->reactors[i].listeners;
    while (l->listener != listener) l = l->next;
    thread_of[i].event =
        (struct epoll_event){.events = EPOLLIN, .data.u64 = EPOLL_LISTENER | l->index};
    turn_of(i);
    if (incoming_at == incoming_count) incoming_at = incoming_count = 0;
}
static inline void knock(void) { knock_at(0, LISTENER); }

static inline struct connection *connection_of(const struct client *c) {
    return slab_find(&reactor->connections, c->index, c->generation);
}
/* Return the client whose peer has this port, among those of `reactor`. */
static inline struct client client_with(int fd, uint16_t port) {
    for (uint32_t i = 0; i < slab_room(&reactor->connections); i++) {
        struct connection *found = slab_at(&reactor->connections, i);
        if (found != NULL && found->peer.port == port)
            return (struct client){fd, i, found->item.generation};
    }
    CHECK(!"it was accepted");
    return (struct client){0};
}
/* Return a connection accepted by the first reactor. */
static inline struct client connect_to(int listener, uint32_t ip) {
    uint16_t port = next_port();
    int fd = arrive_from(ip);
    knock_at(0, listener);
    return client_with(fd, port);
}
static inline struct client connect_from(uint32_t ip) { return connect_to(LISTENER, ip); }
static inline struct client connect_one(void) { return connect_from(0x7f000001); }
static inline uint64_t name_of(const struct client *c) {
    return reactor_name(reactor, &connection_of(c)->item);
}

static inline size_t request_of(uint8_t *to, int16_t key, int32_t correlation_id, char letter,
                                uint32_t n, size_t rest) {
    static const char client_id[] = "me";
    size_t len = 8 + 2 + 2 + 5 + rest;
    put_i32(to, (int32_t)len);
    put_i16(to + 4, key);
    put_i16(to + 6, VERSION);
    put_i32(to + 8, correlation_id);
    put_i16(to + 12, 2);
    memcpy(to + 14, client_id, 2);
    to[16] = (uint8_t)letter;
    put_u32(to + 17, n);
    memset(to + 21, 'x', rest);
    return 4 + len;
}
static inline void send_bytes_of(const struct client *c, const void *bytes, size_t len) {
    CHECK(__real_sendmsg(c->fd,
                         &(struct msghdr){.msg_iov = &(struct iovec){(void *)(uintptr_t)bytes, len},
                                          .msg_iovlen = 1},
                         MSG_NOSIGNAL) == (ssize_t)len);
}
/* Send a request with `rest` more bytes, without a turn. */
static inline void post(const struct client *c, int16_t key, int32_t correlation_id, char letter,
                        uint32_t n, size_t rest) {
    uint8_t *bytes = __real_malloc(21 + rest);
    send_bytes_of(c, bytes, request_of(bytes, key, correlation_id, letter, n, rest));
    free(bytes);
}
/* Send a request, and give the reactor a turn. */
static inline void ask(const struct client *c, int16_t key, int32_t correlation_id, char letter,
                       uint32_t n) {
    post(c, key, correlation_id, letter, n, 0);
    settle();
}

/* Return the arrived bytes, at most `room`; 0: none, -1: the end. */
static inline ssize_t take_bytes(const struct client *c, void *to, size_t room) {
    size_t got = 0;
    while (got < room) {
        ssize_t n = __real_recv(c->fd, (uint8_t *)to + got, room - got, 0);
        if (n <= 0 && got == 0) return n == 0 || errno != EAGAIN ? -1 : 0;
        if (n <= 0) break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}
/* Return the next response's correlation id; 0: no response, -1: the connection has ended. */
static inline int32_t answered(const struct client *c) {
    uint8_t frame[8], rest[4096];
    ssize_t n = take_bytes(c, frame, sizeof frame);
    if (n <= 0) return (int32_t)n;
    CHECK(n == sizeof frame);
    for (size_t left = (size_t)get_i32(frame) - 4; left != 0; left -= (size_t)n) {
        n = take_bytes(c, rest, left < sizeof rest ? left : sizeof rest);
        if (n == 0) settle(); /* the socket holds no more at once */
        CHECK(n >= 0);
    }
    return get_i32(frame + 4);
}
/* Wake a waiting request. */
static inline void wake_up(const struct serve_request *r) {
    CHECK(mailbox_post(reactor->mailbox,
                       &(struct message){.kind = MESSAGE_WAKE, .token = r->token}));
}
/* Let epoll report these events, whatever the socket's state is. */
static inline void play_event(const struct client *c, uint32_t events) {
    thread_of[0].event = (struct epoll_event){.events = events, .data.u64 = name_of(c)};
    turn();
}
static inline bool is_open(const struct client *c) { return connection_of(c) != NULL; }
/* Close the client's end. */
static inline void leave(const struct client *c) {
    for (int i = 0; i < client_end_count; i++)
        if (client_ends[i] == c->fd) client_ends[i] = -1;
    close(c->fd);
    settle();
}

/* ---- the control plane */

/* Return the only event, or NULL; the caller frees it. */
static inline struct event *next_event(void) { return events_take(all->events, 1); }
static inline struct event *expect(uint32_t kind) {
    struct event *e = next_event();
    CHECK(e != NULL && e->kind == kind);
    return e;
}
static inline void expect_gone(uint32_t kind) { free(expect(kind)); }
static inline void answer_to(const struct event *e, bool closes, int32_t throttle_ms) {
    uint8_t frame[8];
    put_i32(frame, 4);
    put_i32(frame + 4, e->correlation_id);
    CHECK(reactors_reply(all, e->token, frame, sizeof frame, closes, throttle_ms));
}
#define STAT(name) atomic_load(&reactor->stats.name)

#endif
