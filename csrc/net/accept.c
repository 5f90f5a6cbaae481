/* Accepts connections and assigns each to the reactor with the fewest connections: the kernel's
 * choice by hash leaves some reactors idle while there are few connections. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "format/assertion.h"
#include "net/reactor_internal.h"

enum { ACCEPT_TURN = 32 };

static struct reactor *least_loaded(struct reactor *r) REQUIRES(r->role) {
    struct reactor *best = r;
    unsigned least = atomic_load_explicit(&r->load, memory_order_relaxed);
    int active = atomic_load(&r->all->active);
    for (int i = 0; i < active; i++) {
        struct reactor *other = &r->all->reactors[i];
        unsigned load = atomic_load_explicit(&other->load, memory_order_relaxed);
        if (load < least) {
            best = other;
            least = load;
        }
    }
    return best;
}

static void assign_reactor(struct reactor *r, const struct listener_accepted *a) REQUIRES(r->role) {
    struct reactor *to = least_loaded(r);
    struct listener_accepted *copy = to == r ? NULL : malloc(sizeof *copy);
    if (copy != NULL) {
        *copy = *a;
        atomic_fetch_add(&to->load, 1);
        struct message adopt = {.kind = MESSAGE_ADOPT, .data = copy};
        if (mailbox_post(to->mailbox, &adopt)) return;
        atomic_fetch_sub(&to->load, 1);
        free(copy);
    }
    atomic_fetch_add(&r->load, 1);
    connection_open(r, a);
}

/* Keeps the remaining descriptors for log files: without them, writes fail. */
static bool is_crowded(struct reactor *r, int fd) REQUIRES(r->role) {
    return atomic_load(&r->all->connections) >= atomic_load(&r->all->descriptors_max) ||
           (uint32_t)fd >= atomic_load(&r->all->descriptor_end);
}

/* Returns false if there is nothing more to accept now. */
static bool accept_one(struct reactor *r, struct listener_socket *l) REQUIRES(r->role) {
    struct sockaddr_storage from;
    socklen_t len = sizeof from;
    int fd = accept4(l->fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        int error = errno;
        if (error == EMFILE && eviction_close_idle(r)) return true;
        if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS)
            listener_pause(r, l);
        return error == ECONNABORTED || error == EINTR;
    }
    if (is_crowded(r, fd) && !eviction_close_idle(r)) {
        STAT_ADD(r, connections_crowded, 1);
        close(fd);
        return true;
    }
    struct listener_accepted a = {
        .fd = fd, .listener = l->listener, .flags = l->flags, .maker = l->maker,
        .limit = l->limit};
    listener_address(&from, &a.peer);
    if (r->all->config.quotas != NULL)
        a.refused_ms = quotas_connection(r->all->config.quotas, a.peer.ip, r->now_ms);
    if (!peers_enter(r->all->peers, a.peer.ip, atomic_load(&r->all->connections_per_ip_max))) {
        STAT_ADD(r, connections_refused, 1);
        close(fd);
        return true;
    }
    atomic_fetch_add(&r->all->connections, 1);
    atomic_fetch_add(&l->limit->connections, 1);
    if (a.maker != NULL) a.maker->retain(a.maker);
    assign_reactor(r, &a);
    return true;
}

static bool is_full(struct reactor *r, const struct listener_socket *l) REQUIRES(r->role) {
    return atomic_load(&r->all->connections) >= atomic_load(&r->all->connections_max) ||
           atomic_load(&l->limit->connections) >= atomic_load(&l->limit->connections_max);
}

void accept_connections(struct reactor *r, struct listener_socket *l) {
    for (int i = 0; i < ACCEPT_TURN; i++) {
        if (is_full(r, l)) {
            listener_pause(r, l);
            return;
        }
        if (!accept_one(r, l)) return;
    }
}
