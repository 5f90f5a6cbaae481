/* Produce requests of one shape over many connections from one thread.
 *
 * usage: produce PORT TOPIC PARTITIONS CONNECTIONS IN_FLIGHT BATCH_RECORDS RECORD_BYTES ACKS \
 *                SECONDS REQUESTS [idempotent | TOPICS]
 *
 * Runs until SECONDS have passed or REQUESTS were answered (0: no such limit) and prints one
 * line of JSON. Every connection keeps IN_FLIGHT requests in flight; requests are sent to the
 * partitions in turn. The batch is built once, so that the client costs little compared with the
 * broker. idempotent: each connection is a separate idempotent producer of one partition.
 * TOPICS: number of topics; their names are TOPIC and four digits from 0000. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/epoll.h>

#include "secure.h"

enum { CONNECTIONS_MAX = 16384, IN_FLIGHT_MAX = 64, REPLY_BYTES_MAX = 4096, DIGITS = 4,
       TOPICS_MAX = 10000, NAME_ROOM = 256 };

typedef struct {
    int stream;
    int in_flight;
    int64_t producer;
    int32_t sequence; /* sequence number of the next batch */
    int head; /* index of the oldest send time */
    size_t sent; /* bytes of the current frame already sent; 0: between frames */
    size_t held; /* response bytes read so far */
    int64_t sent_at_ns[IN_FLIGHT_MAX];
    uint8_t reply[REPLY_BYTES_MAX];
} connection;

typedef struct {
    uint8_t *frame;
    uint8_t *partition_at;
    uint8_t *batch; /* idempotent: offset in the frame */
    size_t batch_length;
    size_t frame_length;
    uint8_t *digits_at; /* offset of the topic's name; NULL: there is only one topic */
    int partitions;
    int topics;
    int records; /* bytes of a batch */
    int in_flight_max;
    int64_t started;
    int64_t requests_max;
    int64_t answered;
    int64_t errors;
    int first_error;
    int64_t *samples_ns;
    size_t samples_max;
} load;

static void watch(int poller, connection *peer, int operation, int writable)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    if (writable) {
        event.events |= EPOLLOUT;
    }
    if (epoll_ctl(poller, operation, peer->stream, &event)) {
        wire_die("epoll_ctl: %s", strerror(errno));
    }
}

static void number_batch(load *run, const connection *peer)
{
    wire_put64(run->batch + 43, peer->producer);
    wire_put16(run->batch + 51, 0);
    wire_put32(run->batch + 53, peer->sequence);
    wire_batch_seal(run->batch, run->batch_length);
}

static void aim(load *run, int64_t number)
{
    wire_put32(run->partition_at, number % run->partitions);
    if (run->digits_at) {
        int64_t topic = number / run->partitions % run->topics;
        for (int digit = DIGITS - 1; digit >= 0; digit--, topic /= 10) {
            run->digits_at[digit] = (uint8_t)('0' + topic % 10);
        }
    }
}

/* A partly sent frame must continue with the same bytes. The template is shared, so the fields
 * that differ between frames are written again whenever a connection resumes sending. */
static void push(load *run, int poller, connection *peer, int64_t number[])
{
    for (;;) {
        if (!peer->sent) {
            int full = peer->in_flight >= run->in_flight_max;
            if (full || (run->requests_max && run->started >= run->requests_max)) {
                watch(poller, peer, EPOLL_CTL_MOD, 0);
                return;
            }
            *number = run->started++;
            int slot = (peer->head + peer->in_flight) % IN_FLIGHT_MAX;
            peer->sent_at_ns[slot] = wire_now_ns();
            peer->in_flight++;
        }
        aim(run, *number);
        if (run->batch) {
            number_batch(run, peer);
        }
        ssize_t got = send(peer->stream, run->frame + peer->sent, run->frame_length - peer->sent,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) {
            watch(poller, peer, EPOLL_CTL_MOD, 1);
            return;
        }
        if (got < 0) {
            wire_die("send: %s", strerror(errno));
        }
        peer->sent += (size_t)got;
        if (peer->sent == run->frame_length) {
            peer->sent = 0;
            peer->sequence += run->records;
        }
    }
}

static void answered(load *run, connection *peer, const uint8_t *reply)
{
    int error = wire_produce_error(reply + 4);
    if (error) {
        run->errors++;
        run->first_error = run->first_error ? run->first_error : error;
    }
    if ((size_t)run->answered < run->samples_max) {
        run->samples_ns[run->answered] = wire_now_ns() - peer->sent_at_ns[peer->head];
    }
    peer->head = (peer->head + 1) % IN_FLIGHT_MAX;
    peer->in_flight--;
    run->answered++;
}

static void pull(load *run, connection *peer)
{
    ssize_t got = recv(peer->stream, peer->reply + peer->held, REPLY_BYTES_MAX - peer->held,
                       MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
        wire_die("recv: %s", got ? strerror(errno) : "closed by the broker");
    }
    if (got < 0) {
        return;
    }
    peer->held += (size_t)got;
    size_t at = 0;
    while (peer->held - at >= 4) {
        size_t whole = 4 + (size_t)wire_get32(peer->reply + at);
        if (whole > REPLY_BYTES_MAX) {
            wire_die("a reply of %zu bytes", whole);
        }
        if (peer->held - at < whole) {
            break;
        }
        answered(run, peer, peer->reply + at);
        at += whole;
    }
    memmove(peer->reply, peer->reply + at, peer->held - at);
    peer->held -= at;
}

static void drive(load *run, connection *peers, int count, double seconds)
{
    static int64_t number[CONNECTIONS_MAX];
    struct epoll_event events[256];
    int poller = epoll_create1(EPOLL_CLOEXEC);
    int64_t end_ns = seconds > 0 ? wire_now_ns() + (int64_t)(seconds * 1e9) : INT64_MAX;
    for (int index = 0; index < count; index++) {
        watch(poller, &peers[index], EPOLL_CTL_ADD, 1);
    }
    for (;;) {
        int ready = epoll_wait(poller, events, 256, 1000);
        for (int index = 0; index < ready; index++) {
            connection *peer = events[index].data.ptr;
            if (events[index].events & ~(unsigned)EPOLLOUT) {
                pull(run, peer);
            }
            push(run, poller, peer, &number[peer - peers]);
        }
        if (wire_now_ns() >= end_ns || (run->requests_max && run->answered >= run->requests_max)) {
            break;
        }
    }
    close(poller);
}

/* The name of the first topic; `count`: number of topics, or NULL. */
static void name_topics(load *run, const char *name, const char *count, char topic[NAME_ROOM])
{
    run->topics = count ? atoi(count) : 1;
    if (run->topics < 1 || run->topics > TOPICS_MAX || strlen(name) + DIGITS >= NAME_ROOM) {
        wire_die("1 to %d topics, a name of at most %d characters", TOPICS_MAX,
                 NAME_ROOM - DIGITS - 1);
    }
    snprintf(topic, NAME_ROOM, "%s%s", name, count ? "0000" : "");
}

int main(int argc, char **argv)
{
    bool idempotent = argc == 12 && !strcmp(argv[11], "idempotent") && atoi(argv[3]) == 1;
    bool numbered = argc == 12 && !idempotent;
    if (argc != 11 && argc != 12) {
        wire_die("usage: produce PORT TOPIC PARTITIONS CONNECTIONS IN_FLIGHT BATCH_RECORDS "
                 "RECORD_BYTES ACKS SECONDS REQUESTS [idempotent | TOPICS]");
    }
    int count = atoi(argv[4]);
    int records = atoi(argv[6]);
    int record_bytes = atoi(argv[7]);
    double seconds = atof(argv[9]);
    load run = {.partitions = atoi(argv[3]), .in_flight_max = atoi(argv[5])};
    run.requests_max = atoll(argv[10]);
    run.records = records;
    if (count < 1 || count > CONNECTIONS_MAX || run.in_flight_max > IN_FLIGHT_MAX) {
        wire_die("at most %d connections and %d in flight", CONNECTIONS_MAX, IN_FLIGHT_MAX);
    }
    char topic[NAME_ROOM];
    name_topics(&run, argv[2], numbered ? argv[11] : NULL, topic);
    size_t room = (size_t)records * ((size_t)record_bytes + 32) + 4096;
    uint8_t *batch = malloc(room);
    run.frame = malloc(room + 4096);
    run.samples_max = 20000000;
    run.samples_ns = malloc(run.samples_max * sizeof *run.samples_ns);
    connection *peers = calloc((size_t)count, sizeof *peers);
    if (!batch || !run.frame || !run.samples_ns || !peers) {
        wire_die("no memory");
    }
    size_t length = wire_batch(batch, records, record_bytes, NULL);
    uint8_t *at = wire_produce(run.frame, atoi(argv[8]), topic, 0, length, &run.partition_at);
    if (numbered) {
        run.digits_at = run.partition_at - 4 - DIGITS; /* followed by the number of partitions */
    }
    memcpy(at, batch, length);
    run.batch = idempotent ? at : NULL;
    run.batch_length = length;
    run.frame_length = wire_finish(run.frame, at + length);
    for (int index = 0; index < count; index++) {
        peers[index].producer = (int64_t)getpid() * CONNECTIONS_MAX + index;
        peers[index].stream = secure_connect_plain(atoi(argv[1]));
    }
    int64_t begin_ns = wire_now_ns();
    double cpu_s = wire_broker_cpu_s();
    drive(&run, peers, count, seconds);
    cpu_s = wire_broker_cpu_s() - cpu_s;
    double took_s = (double)(wire_now_ns() - begin_ns) / 1e9;
    printf("{\"requests\": %lld, \"records\": %lld, \"record_bytes\": %lld, \"seconds\": %.3f, "
           "\"broker_cpu_s\": %.6f, \"request_bytes\": %zu, \"errors\": %lld, "
           "\"first_error\": %d, ",
           (long long)run.answered, (long long)(run.answered * records),
           (long long)(run.answered * records * record_bytes), took_s, cpu_s, run.frame_length,
           (long long)run.errors, run.first_error);
    size_t samples = (size_t)run.answered;
    wire_print_percentiles(run.samples_ns, samples < run.samples_max ? samples : run.samples_max);
    printf("}\n");
    return run.errors != 0;
}
