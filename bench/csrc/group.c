/* One consumer group of many members that join at once, until all of them share one generation.
 *
 * usage: group PORT MEMBERS HEARTBEAT_MS SECONDS_MAX GROUP [HOLD_SECONDS]
 *
 * Each member has a separate connection and behaves like a consumer: JoinGroup v5 (twice, as
 * KIP-394 requires), SyncGroup v3, the leader with an assignment for all members, then
 * heartbeats every HEARTBEAT_MS until one of them reports a rebalance. Then it sends only
 * heartbeats for HOLD_SECONDS and measures their latency. Prints one line of JSON. */
#include <stdbool.h>
#include <sys/epoll.h>

#include "wire.h"

enum { MEMBERS_MAX = 4096, ID_BYTES = 96, FRAME_ROOM = 1 << 20, METADATA_BYTES = 60,
       ASSIGNMENT_BYTES = 40, SAMPLES_MAX = 1 << 20, SESSION_MS = 60000, RETRY_MS = 5 };
enum { JOIN = 11, HEARTBEAT = 12, SYNC = 14 };
enum { LOADING = 14, NOT_AVAILABLE = 15, NOT_COORDINATOR = 16, ILLEGAL_GENERATION = 22,
       UNKNOWN_MEMBER = 25, REBALANCING = 27, ID_REQUIRED = 79 };

typedef struct {
    int stream;
    int asked;              /* API key of the request in flight, -1 for none */
    int next;               /* next request, sent at due_ns */
    int64_t due_ns;
    int64_t asked_ns;       /* send time of the heartbeat in flight */
    int32_t generation;     /* generation of the member's assignment, -1 for none */
    int32_t joined;         /* generation of the last JoinGroup response */
    char id[ID_BYTES];
    uint8_t *answer;
    size_t room, held;
} member;

typedef struct {
    member *members;
    int count;
    const char *group;
    int64_t heartbeat_ns;
    uint8_t *frame;
    long joins, syncs, heartbeats;
    int32_t generation_max;
    int64_t *samples_ns;    /* heartbeats while the group is held; NULL before that */
    size_t samples;
} party;

static uint8_t *put_header(uint8_t *at, int api_key, int version)
{
    return wire_header(at, api_key, version, 1);
}

static uint8_t *put_blob(uint8_t *at, size_t length)
{
    at = wire_put32(at, (int64_t)length);
    memset(at, 0, length);
    return at + length;
}

static void ask_join(party *p, member *m)
{
    uint8_t *at = put_header(p->frame, JOIN, 5);
    at = wire_put_text(at, p->group);
    at = wire_put32(at, SESSION_MS);
    at = wire_put32(at, SESSION_MS);
    at = wire_put_text(at, m->id);
    at = wire_put16(at, -1);
    at = wire_put_text(at, "consumer");
    at = wire_put32(at, 1);
    at = wire_put_text(at, "range");
    at = put_blob(at, METADATA_BYTES);
    wire_send_all(m->stream, p->frame, wire_finish(p->frame, at));
    m->generation = -1;
    p->joins++;
}

/* Reads a string, or a null string as "". */
static const uint8_t *take_text(const uint8_t *at, char *text)
{
    int length = wire_get16(at);
    if (length >= ID_BYTES) {
        wire_die("a text of %d bytes", length);
    }
    if (text) {
        memcpy(text, at + 2, (size_t)(length > 0 ? length : 0));
        text[length > 0 ? length : 0] = 0;
    }
    return at + 2 + (length > 0 ? length : 0);
}

/* members: the rows of a leader's JoinGroup response, NULL for a follower. */
static void ask_sync(party *p, member *m, const uint8_t *rows)
{
    uint8_t *at = put_header(p->frame, SYNC, 3);
    at = wire_put_text(at, p->group);
    at = wire_put32(at, m->joined);
    at = wire_put_text(at, m->id);
    at = wire_put16(at, -1);
    int count = rows ? wire_get32(rows) : 0;
    at = wire_put32(at, count);
    rows += rows ? 4 : 0;
    for (int i = 0; i < count; i++) {
        char id[ID_BYTES];
        rows = take_text(rows, id);
        rows = take_text(rows, NULL);
        rows += 4 + wire_get32(rows);
        at = wire_put_text(at, id);
        at = put_blob(at, ASSIGNMENT_BYTES);
        if (at - p->frame > FRAME_ROOM - 1024) {
            wire_die("the assignment is too long");
        }
    }
    wire_send_all(m->stream, p->frame, wire_finish(p->frame, at));
    m->asked = SYNC;
    p->syncs++;
}

static void ask_heartbeat(party *p, member *m)
{
    uint8_t *at = put_header(p->frame, HEARTBEAT, 3);
    at = wire_put_text(at, p->group);
    at = wire_put32(at, m->generation);
    at = wire_put_text(at, m->id);
    at = wire_put16(at, -1);
    wire_send_all(m->stream, p->frame, wire_finish(p->frame, at));
    p->heartbeats++;
}

static void plan(member *m, int next, int64_t after_ns)
{
    m->asked = -1;
    m->next = next;
    m->due_ns = wire_now_ns() + after_ns;
}

/* Handles an error: the member rejoins, with its id or as a new member. */
static void refused(member *m, int error)
{
    if (error == UNKNOWN_MEMBER) {
        m->id[0] = 0;
    } else if (error != ILLEGAL_GENERATION && error != REBALANCING && error != ID_REQUIRED &&
               error != LOADING && error != NOT_AVAILABLE && error != NOT_COORDINATOR) {
        wire_die("answered with error %d", error);
    }
    bool later = error == LOADING || error == NOT_AVAILABLE || error == NOT_COORDINATOR;
    m->generation = -1;
    plan(m, JOIN, later ? (int64_t)RETRY_MS * 1000000 : 0);
}

static void joined(party *p, member *m, const uint8_t *at)
{
    int error = wire_get16(at + 4);
    m->joined = wire_get32(at + 6);
    char leader[ID_BYTES];
    at = take_text(at + 10, NULL);
    at = take_text(at, leader);
    if (error == ID_REQUIRED || error == 0) {
        at = take_text(at, m->id);
    }
    if (error) {
        refused(m, error);
        return;
    }
    if (m->joined > p->generation_max) {
        p->generation_max = m->joined;
    }
    ask_sync(p, m, strcmp(leader, m->id) ? NULL : at);
}

static void answered(party *p, member *m, const uint8_t *body)
{
    const uint8_t *at = body + 4; /* correlation id */
    if (m->asked == JOIN) {
        joined(p, m, at);
        return;
    }
    int error = wire_get16(at + 4);
    if (error) {
        refused(m, error);
        return;
    }
    if (m->asked == HEARTBEAT && p->samples_ns && p->samples < SAMPLES_MAX) {
        p->samples_ns[p->samples++] = wire_now_ns() - m->asked_ns;
    }
    m->generation = m->joined;
    plan(m, HEARTBEAT, p->heartbeat_ns);
}

static void receive(party *p, member *m)
{
    if (m->room - m->held < 4096) {
        m->room = m->room ? 2 * m->room : 8192;
        m->answer = realloc(m->answer, m->room);
    }
    ssize_t got = recv(m->stream, m->answer + m->held, m->room - m->held, 0);
    if (got <= 0) {
        wire_die("recv: %s", got ? strerror(errno) : "closed by the broker");
    }
    m->held += (size_t)got;
    if (m->held >= 4 && m->held == 4 + (size_t)wire_get32(m->answer)) {
        m->held = 0;
        answered(p, m, m->answer + 4);
    }
}

/* Sends due requests; returns 1 if all members share one generation. */
static bool go_on(party *p)
{
    int64_t now_ns = wire_now_ns();
    int stable = 0;
    for (int i = 0; i < p->count; i++) {
        member *m = &p->members[i];
        stable += m->generation == p->generation_max && m->asked != JOIN;
        if (m->asked >= 0 || m->due_ns > now_ns) {
            continue;
        }
        m->asked = m->next;
        m->asked_ns = wire_now_ns();
        if (m->next == JOIN) {
            ask_join(p, m);
        } else {
            ask_heartbeat(p, m);
        }
    }
    return stable == p->count;
}

static void work(party *p, int poller)
{
    struct epoll_event events[256];
    int ready = epoll_wait(poller, events, 256, 1);
    for (int i = 0; i < ready; i++) {
        receive(p, events[i].data.ptr);
    }
}

/* Measures heartbeats of a stable group, which must stay stable. */
static void hold(party *p, int poller, double seconds)
{
    int32_t generation = p->generation_max;
    int64_t end_ns = wire_now_ns() + (int64_t)(seconds * 1e9);
    p->samples_ns = calloc(SAMPLES_MAX, sizeof *p->samples_ns);
    for (int i = 0; i < p->count; i++) { /* spread evenly over time from here */
        p->members[i].due_ns = wire_now_ns() + p->heartbeat_ns * i / p->count;
    }
    while (wire_now_ns() < end_ns) {
        if (!go_on(p) || p->generation_max != generation) {
            wire_die("the group was rebalanced");
        }
        work(p, poller);
    }
}

int main(int argc, char **argv)
{
    if (argc != 6 && argc != 7) {
        wire_die("usage: group PORT MEMBERS HEARTBEAT_MS SECONDS_MAX GROUP [HOLD_SECONDS]");
    }
    party p = {.count = atoi(argv[2]), .group = argv[5],
               .heartbeat_ns = atoll(argv[3]) * 1000000, .generation_max = 0};
    if (p.count < 1 || p.count > MEMBERS_MAX) {
        wire_die("1 to %d members", MEMBERS_MAX);
    }
    p.members = calloc((size_t)p.count, sizeof *p.members);
    p.frame = malloc(FRAME_ROOM);
    int poller = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < p.count; i++) {
        member *m = &p.members[i];
        m->stream = wire_connect(atoi(argv[1]));
        m->generation = -1;
        plan(m, JOIN, 0);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = m};
        epoll_ctl(poller, EPOLL_CTL_ADD, m->stream, &event);
    }
    int64_t begin_ns = wire_now_ns();
    while (!go_on(&p)) {
        work(&p, poller);
        if (wire_now_ns() - begin_ns > (int64_t)(atof(argv[4]) * 1e9)) {
            wire_die("not stable after %s s and %d generations", argv[4], p.generation_max);
        }
    }
    double took_s = (double)(wire_now_ns() - begin_ns) / 1e9;
    if (argc == 7) {
        fprintf(stderr, "stable\n");
        hold(&p, poller, atof(argv[6]));
    }
    printf("{\"seconds\": %.6f, \"generations\": %d, \"joins\": %ld, \"syncs\": %ld, "
           "\"heartbeats\": %ld, ", took_s, p.generation_max, p.joins, p.syncs, p.heartbeats);
    wire_print_percentiles(p.samples_ns, p.samples);
    printf("}\n");
    return 0;
}
