/* Functions for the control plane: each sends a message to the reactor that owns the connection
 * or request. */
#include "net/reactor_internal.h"
#include "os/stack.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

/* Frees the data of an unprocessed message. */
static void control_discard(const struct message *l) {
    switch (l->kind) {
    case MESSAGE_LISTEN:
    case MESSAGE_ADOPT: listener_discard(l); return;
    case MESSAGE_REPLY:
    case MESSAGE_GRANT_RESULT: break;
    default: return;
    }
    free(l->data);
}

static bool make_reactor(struct reactors *rs, struct reactor *r) REQUIRES(r->role) {
    const struct reactors_config *config = &rs->config;
    r->all = rs;
    r->index = (uint32_t)(r - rs->reactors);
    r->accepting = true;
    r->drain_until_ms = INT64_MAX;
    r->tick.kind = TIMER_TICK;
    r->relief.kind = TIMER_RELIEF;
    timers_init(&r->timers);
    slab_init(&r->slots, sizeof(struct slot));
    slab_init(&r->connections, sizeof(struct connection));
    input_pool_init(&r->input,
                    config->input_bytes_max != 0 ? config->input_bytes_max : INPUT_BYTES_MAX,
                    (size_t)config->rules.request_bytes_max + FRAMES_SIZE_BYTES);
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->alarm = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    r->alarm_ms = INT64_MAX;
    r->mailbox = mailbox_new(REACTOR_MESSAGES_MAX);
    if (r->epoll < 0 || r->alarm < 0 || r->mailbox == NULL || !timers_reserve(&r->timers, 2))
        return false;
    r->serve = serve_new(rs->shared, r->mailbox);
    r->meters = calloc(FRAMES_API_KEYS_MAX, sizeof *r->meters);
    r->workspace = malloc(TRANSPORT_WORKSPACE_BYTES);
    if (r->serve == NULL || r->meters == NULL || r->workspace == NULL) return false;
    serve_meter(r->serve, r->meters);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = EPOLL_MAILBOX};
    if (epoll_ctl(r->epoll, EPOLL_CTL_ADD, mailbox_fd(r->mailbox), &event) != 0) return false;
    event.data.u64 = EPOLL_ALARM; /* edge-triggered: the timerfd is set again, never read */
    return epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->alarm, &event) == 0;
}

/* Call after the thread has ended, or if it never started. */
static void free_reactor(struct reactor *r) {
    lock_role_assert(&r->role);
    struct message l;
    while (r->mailbox != NULL && mailbox_take(r->mailbox, &l, 1) != 0) control_discard(&l);
    if (r->serve != NULL) serve_free(r->serve);
    if (r->mailbox != NULL) mailbox_free(r->mailbox);
    if (r->epoll >= 0) close(r->epoll);
    if (r->alarm >= 0) close(r->alarm);
    input_pool_clear(&r->input);
    slab_clear(&r->slots);
    slab_clear(&r->connections);
    timers_clear(&r->timers);
    free(r->meters);
    free(r->workspace);
}

static void forget_reactor(struct reactor *r) {
    free_reactor(r);
    memset(r, 0, sizeof *r);
}

/* Creates the next reactor without counting it. Returns 0 or a negative errno. */
static int open_reactor(struct reactors *rs) {
    struct reactor *r = &rs->reactors[rs->count];
    errno = ENOMEM;
    lock_role_assert(&r->role); /* owned by this thread until its own starts */
    if (make_reactor(rs, r)) {
        lock_role_end(&r->role);
        return 0;
    }
    int error = errno;
    forget_reactor(r);
    return -error;
}

struct reactors *reactors_new(struct serve_shared *shared, const struct reactors_config *config) {
    assert(config->threads > 0 && config->threads <= REACTOR_THREADS_MAX);
    struct reactors *rs = calloc(1, sizeof *rs);
    if (rs == NULL) return NULL;
    rs->config = *config;
    rs->shared = shared;
    rs->quota_generation =
        config->quotas == NULL ? &rs->no_quotas : quotas_generation(config->quotas);
    rs->events = events_new();
    rs->peers = peers_new();
    rs->control = calloc(FRAMES_API_KEYS_MAX, sizeof *rs->control);
    rs->slow_ns = INT64_MAX;
    rs->connections_max = rs->connections_per_ip_max = UINT32_MAX;
    rs->descriptors_max = rs->descriptor_end = UINT32_MAX;
    bool complete = rs->events != NULL && rs->peers != NULL && rs->control != NULL;
    while (complete && rs->count < config->threads) {
        int error = open_reactor(rs);
        complete = error == 0;
        if (complete)
            rs->count++;
        else
            errno = -error;
    }
    rs->active = rs->count;
    if (complete) return rs;
    int error = errno;
    reactors_free(rs);
    errno = error;
    return NULL;
}

void reactors_free(struct reactors *rs) {
    assert(!rs->started || rs->stopped);
    for (int i = 0; i < rs->count; i++) free_reactor(&rs->reactors[i]);
    if (rs->events != NULL) events_free(rs->events);
    if (rs->peers != NULL) peers_free(rs->peers);
    while (rs->listener_limits != NULL) {
        struct listener_limit *next = rs->listener_limits->next;
        free(rs->listener_limits);
        rs->listener_limits = next;
    }
    free(rs->control);
    free(rs);
}

/* Blocks all signals in the thread: the main thread handles them. Returns 0 or an errno. */
static int start_thread(struct reactor *r) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = stack_begin(&r->thread, reactor_main, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

int reactors_start(struct reactors *rs) {
    int error = 0, begun = 0;
    while (error == 0 && begun < rs->count) {
        error = start_thread(&rs->reactors[begun]);
        if (error == 0) begun++;
    }
    if (error == 0) {
        rs->started = true;
        return 0;
    }
    for (int i = 0; i < begun; i++) {
        control_post(&rs->reactors[i], &(struct message){.kind = MESSAGE_STOP});
        pthread_join(rs->reactors[i].thread, NULL);
    }
    return -error;
}

/* Adds one thread. Returns 0 or a negative errno. */
static int add_thread(struct reactors *rs) {
    if (rs->count == REACTOR_THREADS_MAX) return -ENOBUFS;
    int error = open_reactor(rs);
    if (error < 0) return error;
    error = start_thread(&rs->reactors[rs->count]);
    if (error == 0)
        rs->count++;
    else
        forget_reactor(&rs->reactors[rs->count]);
    return -error;
}

int reactors_resize(struct reactors *rs, int threads) {
    assert(rs->started && !rs->stopped);
    assert(threads > 0 && threads <= REACTOR_THREADS_MAX);
    int error = 0;
    while (rs->active > threads) {
        int last = --rs->active;
        control_post(&rs->reactors[last], &(struct message){.kind = MESSAGE_RETIRE});
    }
    while (error == 0 && rs->active < threads) {
        if (rs->active < rs->count)
            control_post(&rs->reactors[rs->active], &(struct message){.kind = MESSAGE_RETURN});
        else
            error = add_thread(rs);
        if (error == 0) rs->active++;
    }
    return error;
}

int reactors_threads(const struct reactors *rs) { return rs->active; }

void reactors_unlisten(struct reactors *rs, int listener) {
    struct listener_limit *limit = rs->listener_limits;
    while (limit != NULL && limit->listener != listener) limit = limit->next;
    if (limit == NULL) return; /* never opened */
    atomic_store(&limit->closed, true);
    for (int i = 0; i < rs->count; i++)
        control_post(&rs->reactors[i],
                     &(struct message){.kind = MESSAGE_UNLISTEN, .size = (uint64_t)listener});
}

void reactors_set_limits(struct reactors *rs, const struct reactors_limits *limits) {
    atomic_store(&rs->connections_max, limits->connections_max);
    atomic_store(&rs->connections_per_ip_max, limits->connections_per_ip_max);
    atomic_store(&rs->descriptors_max, limits->descriptors_max);
    atomic_store(&rs->descriptor_end, limits->descriptor_end);
}

bool reactors_set_overrides(struct reactors *rs, const uint8_t *addresses,
                            const uint32_t *counts_max, uint32_t count) {
    return peers_set_overrides(rs->peers, addresses, counts_max, count);
}

struct events *reactors_events(struct reactors *rs) {
    return rs->events;
}

void reactors_events_consumed(struct reactors *rs) {
    for (int i = 0; i < rs->count; i++)
        if (atomic_load(&rs->reactors[i].room_wanted) &&
            atomic_exchange(&rs->reactors[i].room_wanted, false))
            control_post(&rs->reactors[i], &(struct message){.kind = MESSAGE_ROOM});
}

void reactors_dropped(struct reactors *rs, size_t bytes) {
    events_drop(rs->events, bytes);
    reactors_events_consumed(rs);
}

/* Returns NULL if the thread is not running: messages would only fill its mailbox. */
static struct reactor *reactor_of(struct reactors *rs, uint64_t name) {
    uint32_t index = name_reactor(name);
    return rs->started && !rs->stopped && index < (uint32_t)rs->count ? &rs->reactors[index] : NULL;
}

static void post(struct reactors *rs, uint64_t name, struct message l) ON_CONTROL_PLANE {
    struct reactor *r = reactor_of(rs, name);
    l.token = name;
    if (r != NULL)
        control_post(r, &l);
    else
        control_discard(&l);
}

static void *copy_of(const void *from, size_t bytes) {
    void *copy = malloc(bytes == 0 ? 1 : bytes);
    if (copy != NULL && bytes != 0) memcpy(copy, from, bytes);
    return copy;
}

static struct message reply_message(uint64_t token, const uint8_t *frame, size_t len) {
    return (struct message){.kind = MESSAGE_REPLY,
                           .token = token,
                           .data = copy_of(frame, frame == NULL ? 0 : len),
                           .size = frame == NULL ? 0 : len};
}

bool reactors_reply(struct reactors *rs, uint64_t token, const uint8_t *frame, size_t len,
                    bool close_after, int32_t throttle_ms) {
    struct message l = reply_message(token, frame, len);
    if (l.data == NULL) return false;
    l.status = close_after ? REPLY_CLOSES : throttle_ms;
    post(rs, token, l);
    return true;
}

bool reactors_queue_reply(struct reactors *rs, uint64_t token, const uint8_t *frame, size_t len,
                          int32_t correlation_id, int32_t throttle_ms) {
    assert(len >= FRAMES_SIZE_BYTES + sizeof correlation_id);
    struct message l = reply_message(token, frame, len);
    if (l.data == NULL) return false;
    put_i32((uint8_t *)l.data + FRAMES_SIZE_BYTES, correlation_id);
    l.status = throttle_ms;
    struct reactor *r = reactor_of(rs, token);
    if (r == NULL) {
        control_discard(&l);
        return true;
    }
    while (!mailbox_queue(r->mailbox, &l)) {
        mailbox_flush(r->mailbox);
        sched_yield();
    }
    r->unflushed = true;
    return true;
}

void reactors_flush_replies(struct reactors *rs) {
    for (int i = 0; i < rs->count; i++) {
        struct reactor *r = &rs->reactors[i];
        if (r->unflushed) mailbox_flush(r->mailbox);
        r->unflushed = false;
    }
}

bool reactors_resume(struct reactors *rs, uint64_t token, const int16_t *errors, uint32_t count) {
    void *data = copy_of(errors, count * sizeof *errors);
    if (data == NULL) return false;
    post(rs, token, (struct message){.kind = MESSAGE_GRANT_RESULT, .data = data, .size = count});
    return true;
}

void reactors_set_principal(struct reactors *rs, uint64_t connection, uint32_t principal,
                            int32_t session_ms) {
    post(rs, connection, (struct message){
                             .kind = MESSAGE_PRINCIPAL, .size = principal, .status = session_ms});
}

void reactors_retry(struct reactors *rs, uint64_t connection) {
    post(rs, connection, (struct message){.kind = MESSAGE_RETRY});
}

void reactors_watch(struct reactors *rs, uint64_t connection) {
    post(rs, connection, (struct message){.kind = MESSAGE_WATCH});
}

void reactors_close(struct reactors *rs, uint64_t connection) {
    post(rs, connection, (struct message){.kind = MESSAGE_CLOSE});
}

void reactors_stop_accepting(struct reactors *rs) {
    if (!rs->started || rs->stopped) return;
    for (int i = 0; i < rs->count; i++)
        control_post(&rs->reactors[i], &(struct message){.kind = MESSAGE_STOP_ACCEPTING});
}

void reactors_stop(struct reactors *rs, int64_t drain_ms) {
    if (!rs->started || rs->stopped) return;
    struct message stop = {.kind = MESSAGE_STOP, .size = (uint64_t)(drain_ms < 0 ? 0 : drain_ms)};
    for (int i = 0; i < rs->count; i++) control_post(&rs->reactors[i], &stop);
    for (int i = 0; i < rs->count; i++) pthread_join(rs->reactors[i].thread, NULL);
    rs->stopped = true;
}

const char *reactors_stat_name(int i) {
    static const char *const names[] = {
#define X(name) #name,
        REACTOR_STATS(X)
#undef X
    };
    return i < 0 || (size_t)i >= sizeof names / sizeof *names ? NULL : names[i];
}

uint64_t reactors_stat(struct reactors *rs, int i) {
    uint64_t sum = 0;
    for (int r = 0; r < rs->count; r++) {
        const _Atomic uint64_t *all[] = {
#define X(name) &rs->reactors[r].stats.name,
            REACTOR_STATS(X)
#undef X
        };
        sum += atomic_load_explicit(all[i], memory_order_relaxed);
    }
    return sum;
}

void reactors_meter(struct reactors *rs, int api_key, struct meter_api_stats *out) {
    *out = (struct meter_api_stats){0};
    for (int r = 0; r < rs->count; r++)
        meter_collect_api(&rs->reactors[r].meters[api_key], out);
    meter_collect_api(&rs->control[api_key], out);
}

void reactors_rounds(struct reactors *rs, struct meter_stats *out) {
    *out = (struct meter_stats){0};
    for (int r = 0; r < rs->count; r++) meter_collect(&rs->reactors[r].rounds, out);
}

void reactors_meter_control(struct reactors *rs, int api_key, int64_t queue_ns, int64_t local_ns,
                            int64_t remote_ns, int error_code) {
    struct meter_api *api = &rs->control[api_key];
    meter_note(api, METER_QUEUE, queue_ns);
    meter_note(api, METER_LOCAL, local_ns);
    if (remote_ns > 0) meter_note(api, METER_REMOTE, remote_ns);
    if (error_code != 0) meter_error(api, error_code);
}

void reactors_set_slow(struct reactors *rs, int64_t slow_ms) {
    bool none = slow_ms < 0 || slow_ms > INT64_MAX / 1000000;
    atomic_store_explicit(&rs->slow_ns, none ? INT64_MAX : slow_ms * 1000000,
                          memory_order_relaxed);
}
