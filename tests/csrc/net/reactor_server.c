/* A reactor with stubs of serve and of the control plane, for tests over real sockets.
 *
 * Produce (0) and Fetch (1): the first byte of the body selects the action of serve, a
 * big-endian u32 after it the amount: A answer with the body, S silent, C close, W wait <n> ms
 * for a wake, X the same exclusively, D wait for the deadline of <n> ms, H wait forever, J a job
 * of <n> ms that reads the body, R answer with a range of <n> bytes of the file, B two ranges
 * with bytes between, M a miss of <n> names answered with the verdicts, T like A and muted for
 * <n> ms, U like S and muted, Q queued until the reactor requests queued work.
 *
 * Any other key goes to the control thread: e echo, q echo and close, n nothing, h never
 * answered, p set principal <n>, s statistics, w watch and echo, c count of closed connections,
 * k close, l local and peer address, listener, principal, t echo and mute for <n> ms, v clear
 * known clients and echo, a number of queries about a client.
 *
 * Usage: reactor_server PORT OPTION=VALUE... Prints the port, exits at the end of its input, then
 * prints "clean" if nothing leaked, and the statistics. */
#include <assert.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <poll.h>
#include <unistd.h>

#include "format/bytes.h"
#include "net/reactor.h"

enum { FILE_BYTES = 64 << 20, LATER_MAX = 100000, QUEUED_MAX = 4096 };

struct serve_shared {
    struct iopool *pool;
    int file;
};
struct serve {
    struct serve_shared *shared;
    struct mailbox *mailbox;
    uint32_t queued_count;
    struct serve_request *queued[QUEUED_MAX];
};
struct work {
    struct iojob job;
    struct serve_request *r;
    uint32_t delay_ms, sum;
    bool job_running;
    struct serve_missing missing[];
};

static atomic_int works, ranges;

/* ---- delayed wake-ups */
struct later {
    struct mailbox *mailbox;
    uint64_t token;
    int64_t at_ms;
};
static struct {
    pthread_mutex_t lock;
    struct later list[LATER_MAX];
    int count;
    bool stop;
} clockwork = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void *tick(void *unused) {
    (void)unused;
    for (;;) {
        usleep(300);
        pthread_mutex_lock(&clockwork.lock);
        int64_t now = now_ms();
        for (int i = 0; i < clockwork.count;) {
            struct later *l = &clockwork.list[i];
            if (l->at_ms > now) {
                i++;
                continue;
            }
            struct message message = {.kind = MESSAGE_WAKE, .token = l->token};
            mailbox_post(l->mailbox, &message);
            mailbox_post(l->mailbox, &message); /* one for each waiter */
            *l = clockwork.list[--clockwork.count];
        }
        bool stop = clockwork.stop;
        pthread_mutex_unlock(&clockwork.lock);
        if (stop) return NULL;
    }
}

static void wake_later(struct serve *s, uint64_t token, uint32_t ms) {
    pthread_mutex_lock(&clockwork.lock);
    assert(clockwork.count < LATER_MAX);
    clockwork.list[clockwork.count++] = (struct later){s->mailbox, token, now_ms() + ms};
    pthread_mutex_unlock(&clockwork.lock);
}

/* ---- serve */
ssize_t log_range_read(const struct log_range *range, void *to, size_t len, int64_t position) {
    return pread(range->fd, to, len, position);
}

void log_range_failed(const struct log_range *range, int error) {
    (void)range;
    (void)error;
}

void log_range_release(struct log_range *range) {
    if (range->segment != NULL) atomic_fetch_sub(&ranges, 1);
    range->segment = NULL;
}

struct serve *serve_new(struct serve_shared *shared, struct mailbox *mailbox) {
    struct serve *s = malloc(sizeof *s);
    *s = (struct serve){.shared = shared, .mailbox = mailbox};
    return s;
}
void serve_meter(struct serve *s, struct meter_api *apis) { (void)s, (void)apis; }

uint32_t serve_take_isr_candidates(struct serve *s, const struct isr_candidate **candidates) {
    (void)s;
    *candidates = NULL;
    return 0;
}

void serve_tick(struct serve *s, int64_t now_ms) { (void)s, (void)now_ms; }
void serve_free(struct serve *s) { free(s); }
bool serve_knows(int16_t api_key, int16_t api_version) { return api_key <= 1 && api_version <= 18; }

static enum serve_status echo(struct serve_request *r, const void *bytes, size_t len) {
    reply_i32(&r->reply, 0);
    reply_i32(&r->reply, r->correlation_id);
    reply_bytes(&r->reply, bytes, len);
    reply_finish(&r->reply);
    return SERVE_ANSWER;
}

static void add_range(struct serve *s, struct serve_request *r, int64_t position, uint32_t n) {
    struct log_range range = {
        .segment = (void *)s, .fd = s->shared->file, .position = position, .length = (int32_t)n};
    atomic_fetch_add(&ranges, 1);
    reply_range(&r->reply, &range);
}

static enum serve_status send_file(struct serve *s, struct serve_request *r, uint32_t n, bool two) {
    reply_i32(&r->reply, 0);
    reply_i32(&r->reply, r->correlation_id);
    add_range(s, r, 8, n);
    reply_bytes(&r->reply, "between", 7);
    if (two) add_range(s, r, 4096 + 8, n);
    reply_bytes(&r->reply, "!", 1);
    reply_finish(&r->reply);
    return SERVE_ANSWER;
}

static int job_run(struct iojob *job, void *scratch) {
    (void)scratch;
    struct work *w = (struct work *)job;
    usleep(w->delay_ms * 1000);
    for (size_t i = 0; i < w->r->body_len; i++) w->sum += w->r->body[i];
    return 0;
}

static struct work *work_new(struct serve_request *r, uint32_t missing) {
    struct work *w = calloc(1, sizeof *w + missing * sizeof *w->missing);
    atomic_fetch_add(&works, 1);
    w->r = r;
    r->state = w;
    return w;
}
static void work_free(struct serve_request *r) {
    if (r->state == NULL) return;
    atomic_fetch_sub(&works, 1);
    free(r->state);
    r->state = NULL;
}

static enum serve_status miss(struct serve_request *r, uint32_t n) {
    struct work *w = work_new(r, n);
    for (uint32_t i = 0; i < n; i++) {
        w->missing[i].name = i % 2 ? NULL : r->body;
        w->missing[i].name_len = i % 2 ? -1 : 1;
        w->missing[i].id[15] = (uint8_t)i;
    }
    r->missing = w->missing;
    r->missing_count = n;
    return SERVE_MISS;
}

static enum serve_status job(struct serve *s, struct serve_request *r, uint32_t n) {
    struct work *w = work_new(r, 0);
    w->delay_ms = n;
    w->job = (struct iojob){.run = job_run, .mailbox = s->mailbox, .token = r->token};
    w->job_running = iopool_submit(s->shared->pool, &w->job);
    if (w->job_running) return SERVE_WAIT;
    work_free(r);
    return SERVE_CLOSE;
}

enum serve_status serve_start(struct serve *s, struct serve_request *r) {
    uint32_t n = r->body_len >= 5 ? get_u32(r->body + 1) : 0;
    r->deadline_ms = INT64_MAX;
    r->body_needed = r->exclusive = true;
    switch (r->body_len == 0 ? 0 : r->body[0]) {
    case 'A': return echo(r, r->body, r->body_len);
    case 'S': return SERVE_SILENT;
    case 'G': return echo(r, &s->mailbox, sizeof s->mailbox); /* the thread that received it */
    case 'T': r->throttle_ms = (int32_t)n; return echo(r, r->body, r->body_len);
    case 'U': r->throttle_ms = (int32_t)n; return SERVE_SILENT;
    case 'R':
    case 'B': return send_file(s, r, n, r->body[0] == 'B');
    case 'M': return miss(r, n);
    case 'K': r->deadline_ms = r->received_ms; /* fallthrough */
    case 'J': return job(s, r, n);
    case 'Q':
        r->exclusive = r->body_needed = false;
        assert(s->queued_count < QUEUED_MAX);
        s->queued[s->queued_count++] = r;
        work_new(r, 0);
        return SERVE_QUEUED;
    case 'W':
        r->exclusive = r->body_needed = false;
        work_new(r, 0);
        wake_later(s, r->token, n);
        return SERVE_WAIT;
    case 'X':
        work_new(r, 0);
        wake_later(s, r->token, n);
        return SERVE_WAIT;
    case 'D': r->deadline_ms = r->received_ms + n; /* fallthrough */
    case 'H': work_new(r, 0); return SERVE_WAIT;
    default: return SERVE_CLOSE;
    }
}

enum serve_status serve_resume(struct serve *s, struct serve_request *r, enum serve_reason reason) {
    (void)s;
    struct work *w = r->state;
    assert(w != NULL);
    if (reason == SERVE_IO_DONE) {
        w->job_running = false;
        uint32_t sum = w->sum;
        work_free(r);
        return echo(r, &sum, sizeof sum);
    }
    if (reason == SERVE_GRANTED) {
        uint8_t said[256];
        for (uint32_t i = 0; i < r->missing_count && i < sizeof said; i++)
            said[i] = (uint8_t)r->missing[i].error;
        uint32_t n = r->missing_count;
        work_free(r);
        return echo(r, said, n < sizeof said ? n : sizeof said);
    }
    if (w->job_running) return SERVE_WAIT;
    work_free(r);
    return echo(r, reason == SERVE_WOKEN ? "woken" : "timeout", reason == SERVE_WOKEN ? 5 : 7);
}

bool serve_is_queued(const struct serve *s) { return s->queued_count > 0; }

static void unqueue(struct serve *s, uint32_t i) {
    s->queued_count--;
    memmove(s->queued + i, s->queued + i + 1, (s->queued_count - i) * sizeof *s->queued);
}

struct serve_request *serve_next_appended(struct serve *s, enum serve_status *status) {
    if (s->queued_count == 0) return NULL;
    struct serve_request *r = s->queued[0];
    unqueue(s, 0);
    work_free(r);
    *status = echo(r, "appended", 8);
    return r;
}

bool serve_abandon(struct serve *s, struct serve_request *r) {
    for (uint32_t i = 0; i < s->queued_count; i++)
        if (s->queued[i] == r) unqueue(s, i--);
    struct work *w = r->state;
    if (w != NULL && w->job_running) {
        w->job_running = false;
        return false;
    }
    work_free(r);
    return true;
}

/* ---- the control plane */
static size_t statistics(struct reactors *rs, char *out, size_t room) {
    size_t n = 0;
    for (int i = 0; reactors_stat_name(i) != NULL; i++)
        n += (size_t)snprintf(out + n, room - n, "%s=%llu\n", reactors_stat_name(i),
                              (unsigned long long)reactors_stat(rs, i));
    return n;
}

static size_t addresses(const struct event *e, char *out, size_t room) {
    char local[64], peer[64];
    inet_ntop(AF_INET6, e->local.ip, local, sizeof local);
    inet_ntop(AF_INET6, e->peer.ip, peer, sizeof peer);
    return (size_t)snprintf(out, room, "%s %u %s %u %d %u", local, e->local.port, peer,
                            e->peer.port, e->listener, e->principal);
}

static uint64_t closed_seen, asked;
static struct quotas *quotas;

/* Give every client its own rates, with limits that it never reaches. */
static void tell_client(struct reactors *rs, const struct event *e) {
    uint8_t keys[QUOTA_KINDS][64];
    struct quota_limit limits[QUOTA_KINDS];
    uint32_t len = (uint32_t)e->client_id_len < 63 ? (uint32_t)e->client_id_len : 63;
    for (int kind = 0; kind < QUOTA_KINDS; kind++) {
        keys[kind][0] = (uint8_t)kind;
        memcpy(keys[kind] + 1, e->data, len);
        limits[kind] = (struct quota_limit){keys[kind], len + 1, 1e15};
    }
    asked++;
    assert(quotas_install(quotas, e->principal, e->data, (uint32_t)e->client_id_len, limits,
                          now_ms()) == 0);
    reactors_retry(rs, e->connection);
}

static void request(struct reactors *rs, const struct event *e) {
    const uint8_t *body = e->data + e->body_at;
    char text[4096];
    size_t len = e->body_len;
    const void *answer = body;
    uint8_t what = len == 0 ? 'e' : body[0];
    if (what == 'h') return;
    if (what == 's') len = statistics(rs, text, sizeof text), answer = text;
    if (what == 'l') len = addresses(e, text, sizeof text), answer = text;
    if (what == 'c') {
        len = (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)closed_seen);
        answer = text;
    }
    if (what == 'a') {
        len = (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)asked);
        answer = text;
    }
    if (what == 'v' && quotas != NULL) quotas_void(quotas, true);
    if (what == 'p') reactors_set_principal(rs, e->connection, get_u32(body + 1), 0);
    if (what == 'w') reactors_watch(rs, e->connection);
    if (what == 'k') reactors_close(rs, e->connection);
    if (what == 'n') {
        reactors_reply(rs, e->token, NULL, 0, false, 0);
        return;
    }
    uint8_t *frame = malloc(8 + len);
    put_i32(frame, (int32_t)(4 + len));
    put_i32(frame + 4, e->correlation_id);
    memcpy(frame + 8, answer, len);
    reactors_reply(rs, e->token, frame, 8 + len, what == 'q',
                   what == 't' ? (int32_t)get_u32(body + 1) : 0);
    free(frame);
}

static void answer_miss(struct reactors *rs, const struct event *e) {
    int16_t *errors = malloc((e->missing_count + 1) * sizeof *errors);
    const struct event_missing *m = (const void *)e->data;
    for (uint32_t i = 0; i < e->missing_count; i++)
        errors[i] = m[i].name_len < 0 ? m[i].id[15] : e->data[m[i].name_at];
    reactors_resume(rs, e->token, errors, e->missing_count);
    reactors_resume(rs, e->token, errors, e->missing_count); /* the second one is stale */
    free(errors);
}

static atomic_bool control_stop;
static atomic_int control_pause_ms;

static void *control(void *argument) {
    struct reactors *rs = argument;
    struct events *events = reactors_events(rs);
    while (!atomic_load(&control_stop)) {
        struct pollfd p = {.fd = events_fd(events), .events = POLLIN};
        poll(&p, 1, 50);
        if (control_pause_ms) usleep((unsigned)control_pause_ms * 1000);
        struct event *e = events_take(events, 1024), *next;
        reactors_events_consumed(rs);
        for (; e != NULL; e = next) {
            next = e->next;
            if (e->kind == EVENT_REQUEST) request(rs, e);
            if (e->kind == EVENT_MISS) answer_miss(rs, e);
            if (e->kind == EVENT_QUOTA) tell_client(rs, e);
            if (e->kind == EVENT_CLOSED) closed_seen++;
            reactors_dropped(rs, e->data_len);
            free(e);
        }
    }
    return NULL;
}

static long option(int argc, char **argv, const char *name, long otherwise) {
    size_t len = strlen(name);
    for (int i = 2; i < argc; i++)
        if (strncmp(argv[i], name, len) == 0 && argv[i][len] == '=') return atol(argv[i] + len + 1);
    return otherwise;
}

static int make_file(void) {
    int fd = memfd_create("log", 0);
    assert(ftruncate(fd, FILE_BYTES) == 0);
    uint32_t *map = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (uint32_t i = 0; i < FILE_BYTES / 4; i++) put_u32((uint8_t *)(map + i), i);
    munmap(map, FILE_BYTES);
    return fd;
}

/* A digit: this many threads; "u": close the listener; "l": at most one connection; "o": except
 * 127.0.0.1, which may have two. The reply is a line with the number of threads. */
static void command(struct reactors *rs, char c, int port) {
    static const uint8_t local[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
    int before = reactors_threads(rs);
    if (c == 'u') reactors_unlisten(rs, 7);
    if (c == 'l')
        reactors_set_limits(rs, &(struct reactors_limits){.connections_max = UINT32_MAX,
                                                          .connections_per_ip_max = 1,
                                                          .descriptors_max = UINT32_MAX,
                                                          .descriptor_end = UINT32_MAX});
    if (c == 'o') assert(reactors_set_overrides(rs, local, &(uint32_t){2}, 1));
    if (c >= '1' && c <= '9') assert(reactors_resize(rs, c - '0') == 0);
    struct reactors_listener l = {
        .listener = 7, .host = "127.0.0.1", .port = port, .backlog = 1024};
    if (reactors_threads(rs) > before) assert(reactors_join(rs, &l, before) == port);
    printf("%d\n", reactors_threads(rs));
    fflush(stdout);
}

static int listen_on(struct reactors *rs, const char *port, unsigned flags) {
    bool v6 = port[0] == ':';
    struct reactors_listener l = {.listener = 7,
                                  .host = v6 ? "::" : "127.0.0.1",
                                  .port = atoi(port + v6),
                                  .backlog = 1024,
                                  .flags = flags};
    return reactors_listen(rs, &l);
}

int main(int argc, char **argv) {
    struct reactors_config config = {
        .threads = (int)option(argc, argv, "threads", 2),
        .queued_requests_max = (uint32_t)option(argc, argv, "queued", 500),
        .idle_ms_max = option(argc, argv, "idle_ms", 600000),
        .input_bytes_max = (uint64_t)option(argc, argv, "input_bytes", 0),
        .send_buffer_bytes = (int)option(argc, argv, "send_buffer", -1),
        .receive_buffer_bytes = (int)option(argc, argv, "receive_buffer", -1)};
    control_pause_ms = (int)option(argc, argv, "control_pause_ms", 0);
    frames_rules_init(&config.rules, (int32_t)option(argc, argv, "request_bytes", 100 << 20));
    config.rules.apis[0] = (struct frames_versions){3, 13, 9};
    config.rules.apis[1] = (struct frames_versions){4, 18, 12};
    config.rules.apis[3] = (struct frames_versions){0, 13, 9};
    config.rules.apis[18] = (struct frames_versions){0, 4, 3};
    struct serve_shared shared = {.pool = iopool_new(2, 4096, NULL, NULL), .file = make_file()};
    if (option(argc, argv, "quotas", 0) != 0) {
        config.quotas = quotas = quotas_new(11, 1000);
        quotas_void(quotas, true);
    }
    struct reactors *rs = reactors_new(&shared, &config);
    assert(rs != NULL);
    reactors_set_limits(
        rs, &(struct reactors_limits){
                .connections_max = (uint32_t)option(argc, argv, "connections", 100000),
                .connections_per_ip_max = (uint32_t)option(argc, argv, "per_ip", 100000),
                .descriptors_max = (uint32_t)option(argc, argv, "descriptors", UINT32_MAX),
                .descriptor_end = (uint32_t)option(argc, argv, "descriptor_end", UINT32_MAX)});
    int port = listen_on(rs, argv[1], (unsigned)option(argc, argv, "flags", 0));
    printf("%d\n", port);
    fflush(stdout);
    if (port < 0) return 1;
    pthread_t clock, plane;
    pthread_create(&clock, NULL, tick, NULL);
    assert(reactors_start(rs) == 0);
    pthread_create(&plane, NULL, control, rs);
    char c;
    while (read(0, &c, 1) > 0) command(rs, c, port);
    reactors_stop_accepting(rs);
    reactors_stop(rs, option(argc, argv, "drain_ms", 200));
    atomic_store(&control_stop, true);
    pthread_join(plane, NULL);
    pthread_mutex_lock(&clockwork.lock);
    clockwork.stop = true;
    pthread_mutex_unlock(&clockwork.lock);
    pthread_join(clock, NULL);
    char text[4096];
    statistics(rs, text, sizeof text);
    iopool_free(shared.pool);
    reactors_free(rs);
    if (quotas != NULL) quotas_free(quotas);
    close(shared.file);
    if (works == 0 && ranges == 0)
        printf("clean\n");
    else
        printf("left %d works, %d ranges\n", works, ranges);
    printf("%s", text);
    return 0;
}
