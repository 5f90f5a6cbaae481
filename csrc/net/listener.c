/* Opens listening sockets, one per address and reactor on the same port.
 *
 * The first socket is bound without SO_REUSEPORT, so that binding fails if another process uses
 * the port. The option is set afterwards, and the other reactors' sockets join. */
#include "net/reactor_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT_ATTEMPTS = 16 };

void listener_address(const struct sockaddr_storage *from, struct event_address *to) {
    memset(to, 0, sizeof *to);
    if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)from;
        memcpy(to->ip, &in6->sin6_addr, 16);
        to->port = ntohs(in6->sin6_port);
    } else if (from->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)from;
        to->ip[10] = to->ip[11] = 0xff;
        memcpy(to->ip + 12, &in->sin_addr, 4);
        to->port = ntohs(in->sin_port);
    }
}

/* ---- on the reactor's thread */

static bool watch(struct reactor *r, struct listener_socket *l) REQUIRES(r->role) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = EPOLL_LISTENER | l->index};
    return epoll_ctl(r->epoll, EPOLL_CTL_ADD, l->fd, &event) == 0;
}

static void free_socket(struct listener_socket *l) {
    if (l->maker != NULL) l->maker->release(l->maker);
    close(l->fd);
    free(l);
}

void listener_discard(const struct message *l) {
    if (l->kind == MESSAGE_LISTEN) {
        free_socket(l->data);
        return;
    }
    assert(l->kind == MESSAGE_ADOPT);
    struct listener_accepted *a = l->data;
    if (a->maker != NULL) a->maker->release(a->maker);
    close(a->fd);
    free(a);
}

void listener_add(struct reactor *r, struct listener_socket *l) {
    l->index = r->listener_count;
    l->timer.kind = TIMER_LISTENER;
    if (!r->accepting || !timers_reserve(&r->timers, 1) || !watch(r, l)) {
        free_socket(l);
        return;
    }
    r->listener_count++;
    l->next = r->listeners;
    r->listeners = l;
}

struct listener_socket *listener_at(struct reactor *r, uint32_t index) {
    struct listener_socket *l = r->listeners;
    while (l != NULL && l->index != index) l = l->next;
    return l;
}

static void close_socket(struct reactor *r, struct listener_socket **link) REQUIRES(r->role) {
    struct listener_socket *l = *link;
    assert(l != NULL);
    *link = l->next;
    timers_cancel(&r->timers, &l->timer);
    free_socket(l);
}

void listener_close_all(struct reactor *r) {
    r->accepting = false;
    while (r->listeners != NULL) close_socket(r, &r->listeners);
}

void listener_close(struct reactor *r, int listener) {
    for (struct listener_socket **link = &r->listeners; *link != NULL;)
        if ((*link)->listener == listener)
            close_socket(r, link);
        else
            link = &(*link)->next;
}

void listener_pause(struct reactor *r, struct listener_socket *l) {
    STAT_ADD(r, accept_pauses, 1);
    epoll_ctl(r->epoll, EPOLL_CTL_DEL, l->fd, NULL);
    timers_set(&r->timers, &l->timer, r->now_ms + ACCEPT_PAUSE_MS);
}

void listener_on_timer(struct reactor *r, struct listener_socket *l) {
    if (!watch(r, l)) timers_set(&r->timers, &l->timer, r->now_ms + ACCEPT_PAUSE_MS);
}

/* ---- on the caller's thread */

static int set(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value);
}

/* Sets options that accepted connections inherit. */
static int set_options(const struct reactors_config *config, int fd) {
    if (set(fd, SOL_SOCKET, SO_REUSEADDR, 1) != 0 || set(fd, SOL_SOCKET, SO_KEEPALIVE, 1) != 0 ||
        set(fd, IPPROTO_TCP, TCP_NODELAY, 1) != 0)
        return -errno;
    if (config->send_buffer_bytes > 0 &&
        set(fd, SOL_SOCKET, SO_SNDBUF, config->send_buffer_bytes) != 0)
        return -errno;
    if (config->receive_buffer_bytes > 0 &&
        set(fd, SOL_SOCKET, SO_RCVBUF, config->receive_buffer_bytes) != 0)
        return -errno;
    return 0;
}

static int open_socket(const struct reactors_config *config, const struct addrinfo *at, int port,
                       bool shared, bool both_families) {
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    struct sockaddr_storage address;
    memcpy(&address, at->ai_addr, at->ai_addrlen);
    if (at->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)&address)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)(void *)&address)->sin_port = htons((uint16_t)port);
    int error = set_options(config, fd);
    if (error == 0 && at->ai_family == AF_INET6 &&
        set(fd, IPPROTO_IPV6, IPV6_V6ONLY, !both_families) != 0)
        error = -errno;
    if (error == 0 && shared && set(fd, SOL_SOCKET, SO_REUSEPORT, 1) != 0) error = -errno;
    if (error == 0 && bind(fd, (struct sockaddr *)&address, at->ai_addrlen) != 0) error = -errno;
    if (error == 0 && set(fd, SOL_SOCKET, SO_REUSEPORT, 1) != 0) error = -errno;
    if (error == 0) return fd;
    close(fd);
    return error;
}

static int port_of(int fd) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    struct event_address address;
    if (getsockname(fd, (struct sockaddr *)&a, &len) != 0) return -errno;
    listener_address(&a, &address);
    return address.port;
}

struct sockets {
    int *fds;
    uint32_t count;
};

static void close_sockets(struct sockets *s) {
    while (s->count > 0) close(s->fds[--s->count]);
}

/* Returns true if this machine lacks the address or its family. This is an error only if no
 * other address is left. */
static bool is_absent(int error) { return error == -EAFNOSUPPORT || error == -EADDRNOTAVAIL; }

/* Returns true for a duplicate: a hosts file may list the same address twice. */
static bool is_repeated(const struct addrinfo *found, const struct addrinfo *at) {
    for (const struct addrinfo *before = found; before != at; before = before->ai_next)
        if (before->ai_addrlen == at->ai_addrlen &&
            memcmp(before->ai_addr, at->ai_addr, at->ai_addrlen) == 0)
            return true;
    return false;
}

/* Binds the sockets of all addresses to one port, for the reactors from `first` on. Returns the
 * port or a negative errno. */
static int bind_all(struct reactors *rs, const struct addrinfo *found, int port, int first,
                    bool both_families, struct sockets *s) {
    int absent = -EADDRNOTAVAIL, end = atomic_load(&rs->active);
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        for (int i = first; i < end && !is_repeated(found, at); i++) {
            int fd = open_socket(&rs->config, at, port, i > 0, both_families);
            if (i == first && is_absent(fd)) {
                absent = fd;
                break;
            }
            if (fd < 0) return fd;
            s->fds[s->count++] = fd;
            if (port == 0) port = port_of(fd);
            if (port < 0) return port;
        }
    }
    return s->count == 0 ? absent : port;
}

/* Allocates a linked list of `count` sockets, or returns NULL. */
static struct listener_socket *rooms(uint32_t count) {
    struct listener_socket *first = NULL;
    for (; count > 0; count--) {
        struct listener_socket *l = calloc(1, sizeof *l);
        if (l == NULL) {
            for (; first != NULL; first = l) {
                l = first->next;
                free(first);
            }
            return NULL;
        }
        l->next = first;
        first = l;
    }
    return first;
}

/* Finds or creates the entry of a listener, initially without a limit. Returns NULL if out of
 * memory. */
static struct listener_limit *limit_of(struct reactors *rs, int listener) ON_CONTROL_PLANE {
    struct listener_limit *limit = rs->listener_limits;
    while (limit != NULL && limit->listener != listener) limit = limit->next;
    if (limit != NULL) return limit;
    limit = calloc(1, sizeof *limit);
    if (limit == NULL) return NULL;
    limit->listener = listener;
    atomic_store(&limit->connections_max, UINT32_MAX);
    limit->next = rs->listener_limits;
    rs->listener_limits = limit;
    return limit;
}

bool reactors_set_listener_limit(struct reactors *rs, int listener, uint32_t connections_max) {
    struct listener_limit *limit = limit_of(rs, listener);
    if (limit == NULL) return false;
    atomic_store(&limit->connections_max, connections_max);
    return true;
}

/* Passes all sockets to reactors, or none: a reactor cannot return a socket. Returns 0 or a
 * negative errno. */
static int hand_out(struct reactors *rs, const struct reactors_listener *wanted, int first,
                    struct listener_limit *limit, struct sockets *s) ON_CONTROL_PLANE {
    uint32_t reactors = (uint32_t)(atomic_load(&rs->active) - first);
    for (uint32_t i = 0; i < s->count; i++)
        if (listen(s->fds[i], wanted->backlog) != 0) return -errno;
    assert(s->count > 0);
    struct listener_socket *l = rooms(s->count);
    if (l == NULL) return -ENOMEM;
    atomic_store(&limit->closed, false);
    for (uint32_t i = 0; i < s->count; i++) {
        struct listener_socket *next = l->next;
        l->next = NULL;
        l->fd = s->fds[i];
        l->listener = wanted->listener;
        l->flags = wanted->flags;
        l->limit = limit;
        l->maker = wanted->maker;
        if (l->maker != NULL) l->maker->retain(l->maker);
        control_post(&rs->reactors[(uint32_t)first + i % reactors],
                     &(struct message){.kind = MESSAGE_LISTEN, .data = l});
        l = next;
    }
    s->count = 0;
    return 0;
}

int reactors_listen(struct reactors *rs, const struct reactors_listener *l) {
    return reactors_join(rs, l, 0);
}

int reactors_join(struct reactors *rs, const struct reactors_listener *l, int first) {
    const char *host = l->host;
    int port = l->port;
    struct addrinfo wanted = {.ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int failed = getaddrinfo(host[0] == 0 ? NULL : host, "0", &wanted, &found);
    if (failed == EAI_SYSTEM) return -errno;
    if (failed != 0) return failed == EAI_MEMORY ? -ENOMEM : -EADDRNOTAVAIL;
    struct listener_limit *limit = limit_of(rs, l->listener);
    if (limit == NULL) {
        freeaddrinfo(found);
        return -ENOMEM;
    }
    uint32_t count = 0;
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) count++;
    struct sockets s = {.fds = malloc(count * (size_t)atomic_load(&rs->active) * sizeof(int))};
    int bound = s.fds == NULL ? -ENOMEM : -EADDRINUSE;
    /* With port 0, the kernel may choose a port that is in use on another address: try again
     * with another port. */
    for (int i = 0; s.fds != NULL && bound == -EADDRINUSE && i < (port == 0 ? PORT_ATTEMPTS : 1);
         i++) {
        bound = bind_all(rs, found, port, first, strcmp(host, "::") == 0, &s);
        int error = bound < 0 ? bound : hand_out(rs, l, first, limit, &s);
        if (error < 0) {
            bound = error;
            close_sockets(&s);
        }
    }
    free(s.fds);
    freeaddrinfo(found);
    return bound;
}
