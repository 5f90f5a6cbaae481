/* Many consumers of one topic's tail, and their producer, in one thread.
 *
 * usage: tails PORT TOPIC PARTITIONS CONSUMERS BYTES_PER_S BATCH_RECORDS RECORD_BYTES SECONDS
 *
 * The producer sends a batch on schedule, to each partition in turn, and never waits for a
 * response; each consumer has a separate connection and one Fetch of all partitions in flight
 * (500 ms, at least one byte). Ends when every consumer has received everything. Latency is from
 * before a batch's send to its receipt by a consumer. Prints one line of JSON. TOPIC must be
 * new. */
#include <sys/epoll.h>
#include <sys/prctl.h>

#include "wire.h"

enum { CONSUMERS_MAX = 2000, PARTITIONS_MAX = 64, DRAIN_S = 60, SAMPLES_MAX = 20000000 };

typedef struct {
    int stream;
    int64_t offsets[PARTITIONS_MAX];
    int64_t batches; /* last offsets seen */
    uint8_t *answer;
    size_t room, held;
} consumer;

typedef struct {
    const char *topic;
    int partitions, count;
    consumer *consumers;
    int64_t fetches, bytes, ranges;
    int64_t done; /* consumers that have received everything */
    int64_t sent, wanted; /* batches */
    int64_t *samples_ns;
    size_t samples;
} party;

static void ask(party *p, consumer *c)
{
    static uint8_t frame[PARTITIONS_MAX * 32 + 1024];
    uint8_t *at = wire_header(frame, WIRE_FETCH, 11, (int32_t)p->fetches++);
    at = wire_put32(at, -1);
    at = wire_put32(at, 500);
    at = wire_put32(at, 1);
    at = wire_put32(at, 50 << 20);
    *at++ = 0;
    at = wire_put32(at, 0);
    at = wire_put32(at, -1);
    at = wire_put32(at, 1);
    at = wire_put_text(at, p->topic);
    at = wire_put32(at, p->partitions);
    for (int i = 0; i < p->partitions; i++) {
        at = wire_put32(at, i);
        at = wire_put32(at, -1);
        at = wire_put64(at, c->offsets[i]);
        at = wire_put64(at, -1);
        at = wire_put32(at, 1 << 20);
    }
    at = wire_put32(at, 0);
    at = wire_put_text(at, "");
    wire_send_all(c->stream, frame, wire_finish(frame, at));
}

/* Our batches carry their send time in the first value. */
static int64_t sent_at_ns(const uint8_t *batch)
{
    const uint8_t *at = batch + WIRE_BATCH_HEADER_BYTES;
    while (*at++ & 0x80) {
    }
    at += 4; /* attributes, timestamp delta, offset delta, null key */
    while (*at++ & 0x80) {
    }
    return wire_get64(at);
}

static void take(party *p, consumer *c, int partition, const uint8_t *batch, int64_t length)
{
    int64_t now_ns = wire_now_ns();
    p->bytes += length;
    p->ranges++;
    while (length >= WIRE_BATCH_HEADER_BYTES) {
        int64_t whole = 12 + (int64_t)wire_get32(batch + 8);
        if (whole > length) {
            /* Kafka truncates the last batch of a full range; the next fetch returns it. */
            return;
        }
        if (wire_get64(batch) != c->offsets[partition]) {
            wire_die("offset %lld is not %lld", (long long)wire_get64(batch),
                     (long long)c->offsets[partition]);
        }
        c->offsets[partition] += wire_get32(batch + 23) + 1;
        if (p->samples < SAMPLES_MAX) {
            p->samples_ns[p->samples++] = now_ns - sent_at_ns(batch);
        }
        p->done += ++c->batches == p->wanted;
        batch += whole;
        length -= whole;
    }
}

static void answered(party *p, consumer *c, const uint8_t *reply)
{
    if (wire_get32(reply + 14) == 1) {
        const uint8_t *at = reply + 18;
        at += 2 + wire_get16(at);
        int count = wire_get32(at);
        at += 4;
        for (int i = 0; i < count; i++) {
            int partition = wire_get32(at);
            if (wire_get16(at + 4) || partition < 0 || partition >= p->partitions) {
                wire_die("partition %d: error %d", partition, wire_get16(at + 4));
            }
            at += 4 + 2 + 8 + 8 + 8;
            int aborted = wire_get32(at);
            at += 4 + (aborted > 0 ? aborted * 16 : 0) + 4;
            int32_t bytes = wire_get32(at);
            at += 4;
            if (bytes > 0) {
                take(p, c, partition, at, bytes);
                at += bytes;
            }
        }
    }
    ask(p, c);
}

static void receive(party *p, consumer *c)
{
    for (;;) {
        size_t wanted = c->held < 4 ? 4 : 4 + (size_t)wire_get32(c->answer);
        if (c->room < wanted) {
            c->room = wanted < 65536 ? 65536 : wanted + wanted / 2;
            c->answer = realloc(c->answer, c->room);
        }
        ssize_t got = recv(c->stream, c->answer + c->held, wanted - c->held, MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) {
            return;
        }
        if (got <= 0) {
            wire_die("recv: %s", got ? strerror(errno) : "closed by the broker");
        }
        c->held += (size_t)got;
        if (c->held == wanted && wanted > 4) {
            c->held = 0;
            answered(p, c, c->answer + 4);
        }
    }
}

typedef struct {
    int stream;
    uint8_t *frame, *partition_at, *batch, *value;
    size_t batch_length, frame_length;
    int64_t begin_ns, interval_ns;
} source;

/* Sends due batches; returns ns until the next batch is due. */
static int64_t produce(party *p, source *s)
{
    uint8_t replies[4096];
    while (recv(s->stream, replies, sizeof replies, MSG_DONTWAIT) > 0) {
    }
    while (p->sent < p->wanted) {
        int64_t left_ns = s->begin_ns + p->sent * s->interval_ns - wire_now_ns();
        if (left_ns > 0) {
            return left_ns;
        }
        wire_put64(s->value, wire_now_ns());
        wire_batch_seal(s->batch, s->batch_length);
        wire_put32(s->partition_at, p->sent % p->partitions);
        wire_send_all(s->stream, s->frame, s->frame_length);
        p->sent++;
    }
    return 100000000;
}

static void run(party *p, source *s, int poller)
{
    struct epoll_event events[256];
    int64_t end_ns = s->begin_ns + p->wanted * s->interval_ns + DRAIN_S * (int64_t)1000000000;
    while (p->done < p->count || p->sent < p->wanted) {
        int64_t left_ns = produce(p, s);
        struct timespec wait = {0, left_ns < 100000000 ? left_ns : 100000000};
        int ready = epoll_pwait2(poller, events, 256, &wait, NULL);
        for (int i = 0; i < ready; i++) {
            receive(p, events[i].data.ptr);
            produce(p, s);
        }
        if (wire_now_ns() > end_ns) {
            wire_die("%lld of %d consumers have all", (long long)p->done, p->count);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 9) {
        wire_die("usage: tails PORT TOPIC PARTITIONS CONSUMERS BYTES_PER_S BATCH_RECORDS "
                 "RECORD_BYTES SECONDS");
    }
    party p = {.topic = argv[2], .partitions = atoi(argv[3]), .count = atoi(argv[4])};
    int records = atoi(argv[6]), record_bytes = atoi(argv[7]);
    if (p.count > CONSUMERS_MAX || p.partitions > PARTITIONS_MAX || record_bytes < 8) {
        wire_die("at most %d consumers, %d partitions", CONSUMERS_MAX, PARTITIONS_MAX);
    }
    prctl(PR_SET_TIMERSLACK, 1000);
    size_t room = (size_t)records * ((size_t)record_bytes + 32) + 4096;
    source s = {.frame = malloc(room + 4096)};
    uint8_t *first = malloc(room);
    size_t length = wire_batch(first, records, record_bytes, &s.value);
    s.batch = wire_produce(s.frame, 1, p.topic, 0, length, &s.partition_at);
    memcpy(s.batch, first, length);
    s.value = s.batch + (s.value - first);
    s.batch_length = length;
    s.frame_length = wire_finish(s.frame, s.batch + length);
    double batches_per_s = atof(argv[5]) / ((double)records * record_bytes);
    s.interval_ns = (int64_t)(1e9 / batches_per_s);
    p.wanted = (int64_t)(batches_per_s * atof(argv[8])) + 1;
    p.samples_ns = malloc(SAMPLES_MAX * sizeof *p.samples_ns);
    p.consumers = calloc((size_t)p.count + 1, sizeof *p.consumers);
    int poller = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < p.count; i++) {
        consumer *c = &p.consumers[i];
        c->stream = wire_connect(atoi(argv[1]));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, c->stream, &event);
        ask(&p, c);
    }
    s.stream = wire_connect(atoi(argv[1]));
    s.begin_ns = wire_now_ns() + 200000000;
    run(&p, &s, poller);
    double took_s = (double)(wire_now_ns() - s.begin_ns) / 1e9;
    printf("{\"seconds\": %.3f, \"produced_bytes\": %lld, \"consumed_bytes\": %lld, "
           "\"fetches\": %lld, \"answer_bytes\": %lld, \"range_bytes\": %lld, ", took_s,
           (long long)(p.sent * (int64_t)length), (long long)p.bytes, (long long)p.fetches,
           (long long)(p.bytes / (p.fetches ? p.fetches : 1)),
           (long long)(p.bytes / (p.ranges ? p.ranges : 1)));
    wire_print_percentiles(p.samples_ns, p.samples);
    printf("}\n");
    return 0;
}
