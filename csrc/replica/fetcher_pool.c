/* The API for the control plane: each call becomes a message to a thread. The message has
 * preallocated space, so that posting cannot fail. */
#include "replica/fetcher_pool.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "format/hash.h"
#include "os/stack.h"
#include "replica/fetcher_internal.h"

enum { NOTICES_MAX = 2 }; /* messages are preallocated, so the mailbox needs no room */

/* ---- making ---- */

static bool make_fetcher(struct fetchers *fs, struct fetcher *f, int index) {
    lock_role_init(&f->role);
    lock_role_assert(&f->role); /* owned by this thread until the fetcher thread starts */
    f->all = fs;
    f->index = index;
    timers_init(&f->timers);
    slab_init(&f->flushes, sizeof(struct flush_wait));
    snprintf(f->client_id, sizeof f->client_id, "broker-%d-fetcher-%d", fs->config.replica_id,
             index);
    f->epoll = epoll_create1(EPOLL_CLOEXEC);
    f->alarm = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    f->alarm_ms = INT64_MAX;
    f->mailbox = mailbox_new(FETCHER_MESSAGES_MAX);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = FETCHER_EPOLL_MAILBOX};
    bool made = f->epoll >= 0 && f->alarm >= 0 && f->mailbox != NULL &&
                epoll_ctl(f->epoll, EPOLL_CTL_ADD, mailbox_fd(f->mailbox), &event) == 0;
    event.data.u64 = FETCHER_EPOLL_ALARM; /* edge-triggered: the timerfd is set again, never read */
    made = made && epoll_ctl(f->epoll, EPOLL_CTL_ADD, f->alarm, &event) == 0;
    lock_role_end(&f->role);
    return made;
}

/* Releases a message that its thread never processed. */
static void discard(const struct message *m) {
    struct connecting *c = m->data;
    switch (m->kind) {
    case MESSAGE_ATTACH:
        transport_close(&c->transport);
        free(c);
        break;
    case MESSAGE_DETACH: free(c); break;
    case MESSAGE_FOLLOW:
    case MESSAGE_UNFOLLOW:
    case MESSAGE_RESUME: fetch_partition_release(m->data); break;
    default: break;
    }
}

static void free_fetcher(struct fetcher *f) {
    lock_role_assert(&f->role);
    struct message m;
    while (f->mailbox != NULL && mailbox_take(f->mailbox, &m, 1) != 0) discard(&m);
    mailbox_free(f->mailbox);
    if (f->epoll >= 0) close(f->epoll);
    if (f->alarm >= 0) close(f->alarm);
    timers_clear(&f->timers);
    slab_clear(&f->flushes);
    free(f->buckets);
}

struct fetchers *fetchers_new(const struct fetchers_config *config) {
    assert(config->threads > 0);
    assert(config->threads <= FETCHERS_THREADS_MAX);
    struct fetchers *fs =
        calloc(1, sizeof *fs + (size_t)config->threads * sizeof(struct fetcher));
    if (fs == NULL) return NULL;
    fs->config = *config;
    atomic_store(&fs->broker_epoch, -1);
    fs->notices = mailbox_new(NOTICES_MAX);
    bool made = fs->notices != NULL;
    if (made) mailbox_arm(fs->notices);
    for (int i = 0; i < config->threads && made; i++) {
        made = make_fetcher(fs, &fs->fetchers[i], i);
        fs->count = i + 1;
    }
    if (made) return fs;
    int error = errno;
    fetchers_free(fs);
    errno = error;
    return NULL;
}

/* Blocks all signals in the thread: the main thread handles them. Returns 0 or an errno. */
static int start_thread(struct fetcher *f) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = stack_begin(&f->thread, fetcher_main, f);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void stop_threads(struct fetchers *fs, int count) {
    struct message_link stops[FETCHERS_THREADS_MAX];
    for (int i = 0; i < count; i++) {
        stops[i].message = (struct message){.kind = MESSAGE_STOP};
        mailbox_post_link(fs->fetchers[i].mailbox, &stops[i]);
    }
    for (int i = 0; i < count; i++) pthread_join(fs->fetchers[i].thread, NULL);
}

int fetchers_start(struct fetchers *fs) {
    assert(!fs->started);
    int error = 0, begun = 0;
    while (error == 0 && begun < fs->count) {
        error = start_thread(&fs->fetchers[begun]);
        if (error == 0) begun++;
    }
    if (error != 0)
        stop_threads(fs, begun);
    else
        fs->started = true;
    return -error;
}

void fetchers_stop(struct fetchers *fs) {
    if (fs->started && !fs->stopped) stop_threads(fs, fs->count);
    fs->stopped = true;
}

void fetchers_free(struct fetchers *fs) {
    assert(!fs->started || fs->stopped);
    struct fetchers_notice notice;
    for (int i = 0; i < fs->count; i++) free_fetcher(&fs->fetchers[i]);
    while (fs->notices != NULL && fetchers_take(fs, &notice, 1) != 0) {}
    mailbox_free(fs->notices);
    free(fs);
}

/* ---- commands ---- */

void fetchers_set_broker_epoch(struct fetchers *fs, int64_t broker_epoch) {
    assert(broker_epoch >= -1);
    atomic_store(&fs->broker_epoch, broker_epoch);
}

int fetchers_thread_of(const struct fetchers *fs, const uint8_t topic_id[16], int32_t index) {
    return (int)(hash_bytes(HASH_SEED ^ (uint32_t)index, topic_id, 16) >> 8) % fs->count;
}

static void post(struct fetchers *fs, struct fetch_partition *p, struct message_link *link,
                 uint32_t kind) {
    struct fetcher *f = &fs->fetchers[fetchers_thread_of(fs, p->topic_id, p->index)];
    fetch_partition_retain(p);
    link->message = (struct message){.kind = kind, .data = p};
    mailbox_post_link(f->mailbox, link);
}

struct fetch_partition *fetchers_follow(struct fetchers *fs, struct log *log,
                                        const uint8_t topic_id[16], int32_t index,
                                        int32_t leader_id, int32_t leader_epoch, uint64_t token) {
    struct fetch_partition *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    log_retain(log);
    p->log = log;
    memcpy(p->topic_id, topic_id, sizeof p->topic_id);
    p->index = index;
    p->leader_id = leader_id;
    p->leader_epoch = leader_epoch;
    p->token = token;
    p->partition_bytes = fs->config.partition_bytes_max;
    p->timer.kind = TIMER_FOLLOWED;
    atomic_store(&p->references, 1);
    atomic_store(&p->lag, -1);
    atomic_store(&p->state, FETCH_PARTITION_LEFT); /* until the thread takes it over */
    post(fs, p, &p->follow, MESSAGE_FOLLOW);
    return p;
}

void fetchers_unfollow(struct fetchers *fs, struct fetch_partition *p) {
    post(fs, p, &p->unfollow, MESSAGE_UNFOLLOW);
}

void fetchers_resume(struct fetchers *fs, struct fetch_partition *p) {
    post(fs, p, &p->resume, MESSAGE_RESUME);
}

static bool post_connecting(struct fetchers *fs, int thread, const struct connecting *what,
                            uint32_t kind) {
    assert(thread >= 0 && thread < fs->count);
    struct connecting *c = malloc(sizeof *c);
    if (c == NULL) return false;
    *c = *what;
    c->link.message = (struct message){.kind = kind, .data = c};
    mailbox_post_link(fs->fetchers[thread].mailbox, &c->link);
    return true;
}

bool fetchers_attach(struct fetchers *fs, int thread, int32_t leader_id,
                     const struct transport *to, int16_t version, uint64_t serial) {
    assert(!to->handshaking);
    assert(version >= RESPONSE_VERSION_MIN && version <= RESPONSE_VERSION_MAX);
    struct connecting what = {
        .leader_id = leader_id, .transport = *to, .version = version, .serial = serial};
    if (post_connecting(fs, thread, &what, MESSAGE_ATTACH)) return true;
    transport_close(&what.transport);
    return false;
}

bool fetchers_detach(struct fetchers *fs, int thread, int32_t leader_id) {
    struct connecting what = {.leader_id = leader_id, .transport = {.fd = -1}};
    return post_connecting(fs, thread, &what, MESSAGE_DETACH);
}

/* ---- notices and figures ---- */

int fetchers_fd(const struct fetchers *fs) { return mailbox_fd(fs->notices); }

static void take_of(struct fetch_partition *p, struct notice *n, struct fetchers_notice *out) {
    assert(atomic_load(&n->under_way));
    *out = n->what;
    atomic_store(&n->under_way, false);
    fetch_partition_release(p);
}

static void take_notice(const struct message *m, struct fetchers_notice *out) {
    struct fetch_partition *p = m->data;
    if (m->kind == NOTICE_REFUSED) {
        take_of(p, &p->refused, out);
    } else if (m->kind == NOTICE_STOPPED) {
        take_of(p, &p->stopped, out);
    } else {
        struct connecting *c = m->data;
        assert(m->kind == NOTICE_LOST);
        *out = c->lost.what;
        free(c);
    }
}

uint32_t fetchers_take(struct fetchers *fs, struct fetchers_notice *out, uint32_t max) {
    struct message message;
    uint32_t count = 0;
    mailbox_disarm(fs->notices);
    while (count < max) {
        if (mailbox_take(fs->notices, &message, 1) == 1)
            take_notice(&message, &out[count++]);
        else if (count > 0 || mailbox_arm(fs->notices))
            break;
    }
    return count;
}

void fetchers_read_stats(const struct fetchers *fs, struct fetchers_stats *out) {
    *out = (struct fetchers_stats){0};
    for (int i = 0; i < fs->count; i++) {
        const struct fetcher *f = &fs->fetchers[i];
        out->requests += meter_read(&f->requests);
        out->answers += meter_read(&f->answers);
        out->bytes_in += meter_read(&f->bytes_in);
        out->batches_bytes += meter_read(&f->batches_bytes);
        out->refusals += meter_read(&f->refusals);
        out->connections_lost += meter_read(&f->connections_lost);
    }
}
