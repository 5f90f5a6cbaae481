/* End-to-end latency at a fixed rate: from before a record's send to after its receipt.
 *
 * usage: latency PORT TOPIC RATE_PER_S SECONDS RECORD_BYTES ACKS [TIMES]
 *
 * One thread sends single-record requests on schedule and never waits for a response, so a stall
 * of the broker shows as latency of every later record; another thread long-polls partition 0.
 * The first second is excluded. Prints one line of JSON. TOPIC must be new. The file TIMES gets
 * two int64 per record, ns of CLOCK_MONOTONIC: before its send, after its receipt. secure.h
 * describes TLS and login. */
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "secure.h"

enum { REPLY_ROOM = 8 << 20 };

typedef struct {
    int port;
    const char *topic;
    int64_t wanted;
    int64_t skipped;
    int64_t seen;
    pid_t thread;
    int64_t *samples_ns;
    int64_t *times_ns; /* two per sample */
} poll_side;

/* Our batches carry their send time in the first value: after the header and a record head of
 * known length, found by parsing the varints. */
static int64_t sent_at_ns(const uint8_t *batch)
{
    const uint8_t *at = batch + WIRE_BATCH_HEADER_BYTES;
    while (*at++ & 0x80) {
    }
    at += 3; /* attributes, timestamp delta, offset delta: one byte each for a first record */
    at += 1; /* null key */
    while (*at++ & 0x80) {
    }
    return wire_get64(at);
}

static size_t ask(uint8_t *frame, const char *topic, int64_t offset, int32_t number)
{
    uint8_t *at = wire_header(frame, WIRE_FETCH, 11, number);
    at = wire_put32(at, -1);
    at = wire_put32(at, 500);
    at = wire_put32(at, 1);
    at = wire_put32(at, 4 << 20);
    *at++ = 0;
    at = wire_put32(at, 0);
    at = wire_put32(at, -1);
    at = wire_put32(at, 1);
    at = wire_put_text(at, topic);
    at = wire_put32(at, 1);
    at = wire_put32(at, 0);
    at = wire_put32(at, -1);
    at = wire_put64(at, offset);
    at = wire_put64(at, -1);
    at = wire_put32(at, 1 << 20);
    at = wire_put32(at, 0);
    at = wire_put_text(at, "");
    return wire_finish(frame, at);
}

static void take(poll_side *side, const uint8_t *batch, int64_t length, int64_t *offset)
{
    int64_t now_ns = wire_now_ns();
    while (length >= WIRE_BATCH_HEADER_BYTES) {
        int64_t whole = 12 + (int64_t)wire_get32(batch + 8);
        if (whole > length) {
            return;
        }
        *offset = wire_get64(batch) + wire_get32(batch + 23) + 1;
        if (side->seen >= side->skipped && side->seen < side->wanted) {
            int64_t at = side->seen - side->skipped;
            side->times_ns[2 * at] = sent_at_ns(batch);
            side->times_ns[2 * at + 1] = now_ns;
            side->samples_ns[at] = now_ns - side->times_ns[2 * at];
        }
        side->seen++;
        batch += whole;
        length -= whole;
    }
}

static void *receive(void *argument)
{
    poll_side *side = argument;
    side->thread = gettid();
    uint8_t frame[1024];
    uint8_t *reply = malloc(REPLY_ROOM);
    secure_stream stream = secure_connect(side->port);
    int64_t offset = 0;
    for (int32_t number = 0; side->seen < side->wanted; number++) {
        secure_send_all(&stream, frame, ask(frame, side->topic, offset, number));
        uint8_t head[4];
        secure_recv_all(&stream, head, 4);
        size_t length = (size_t)wire_get32(head);
        if (!reply || length > REPLY_ROOM) {
            wire_die("a reply of %zu bytes", length);
        }
        secure_recv_all(&stream, reply, length);
        if (wire_get32(reply + 14) != 1) {
            continue; /* an empty response to a long poll that timed out */
        }
        const uint8_t *at = reply + 18;
        at += 2 + wire_get16(at) + 4;
        if (wire_get16(at + 4)) {
            wire_die("fetch error %d", wire_get16(at + 4));
        }
        at += 4 + 2 + 8 + 8 + 8;
        int aborted = wire_get32(at);
        at += 4 + (aborted > 0 ? aborted * 16 : 0) + 4;
        if (wire_get32(at) > 0) {
            take(side, at + 4, wire_get32(at), &offset);
        }
    }
    secure_close(&stream);
    free(reply);
    return NULL;
}

static void write_times(const poll_side *side, const char *path)
{
    FILE *out = fopen(path, "wb");
    size_t count = 2 * (size_t)(side->wanted - side->skipped);
    if (!out || fwrite(side->times_ns, sizeof(int64_t), count, out) != count || fclose(out)) {
        wire_die("cannot write %s", path);
    }
}

int main(int argc, char **argv)
{
    if (argc != 7 && argc != 8) {
        wire_die("usage: latency PORT TOPIC RATE_PER_S SECONDS RECORD_BYTES ACKS [TIMES]");
    }
    int rate = atoi(argv[3]);
    int record_bytes = atoi(argv[5]);
    poll_side side = {.port = atoi(argv[1]), .topic = argv[2], .skipped = rate};
    side.wanted = (int64_t)(rate * atof(argv[4])) + rate;
    side.samples_ns = calloc((size_t)side.wanted, sizeof *side.samples_ns);
    side.times_ns = calloc(2 * (size_t)side.wanted, sizeof *side.times_ns);
    uint8_t *batch = malloc((size_t)record_bytes + 4096);
    uint8_t *frame = malloc((size_t)record_bytes + 8192);
    if (!batch || !frame || !side.samples_ns || !side.times_ns || record_bytes < 8) {
        wire_die("no memory, or records below 8 bytes");
    }
    prctl(PR_SET_TIMERSLACK, 1000);
    uint8_t *value;
    size_t length = wire_batch(batch, 1, record_bytes, &value);
    uint8_t *at = wire_produce(frame, atoi(argv[6]), side.topic, 0, length, NULL);
    size_t frame_length = wire_finish(frame, at + length);
    secure_stream stream = secure_connect(side.port);
    pthread_t receiver;
    if (pthread_create(&receiver, NULL, receive, &side)) {
        wire_die("no thread");
    }
    int64_t begin_ns = wire_now_ns() + 200000000;
    for (int64_t number = 0; number < side.wanted; number++) {
        int64_t due_ns = begin_ns + number * 1000000000 / rate;
        struct timespec due = {due_ns / 1000000000, due_ns % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        wire_put64(value, wire_now_ns());
        wire_batch_seal(batch, length);
        memcpy(at, batch, length);
        secure_send_all(&stream, frame, frame_length);
        secure_drain(&stream);
    }
    pthread_join(receiver, NULL);
    if (argc == 8) {
        write_times(&side, argv[7]);
    }
    printf("{\"requests\": %lld, \"sender\": %d, \"receiver\": %d, ", (long long)side.wanted,
           gettid(), side.thread);
    wire_print_percentiles(side.samples_ns, (size_t)(side.wanted - side.skipped));
    printf("}\n");
    return 0;
}
