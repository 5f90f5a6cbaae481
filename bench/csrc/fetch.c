/* Reads partitions of a topic from their start with Fetch v10, and discards the records.
 *
 * usage: fetch PORT TOPIC PARTITIONS PARTITION_BYTES_MAX BYTES_MAX
 *
 * Stops at the high watermarks seen, or after BYTES_MAX bytes of records (0: no limit), and
 * prints one line of JSON. Parses only the batch headers, to find the next offset. Uses version
 * 10, because from version 11 on followers answer too, and only a leader's response must count
 * as success. */
#include "secure.h"

enum { PARTITIONS_MAX = 1024, FETCH_BYTES_MAX = 50 << 20 };

typedef struct {
    int64_t offset;
    int64_t high_watermark;
} place;

typedef struct {
    secure_stream stream;
    const char *topic;
    int partitions;
    int partition_bytes_max;
    place places[PARTITIONS_MAX];
    uint8_t *reply;
    size_t reply_room;
    int64_t bytes;
    int64_t ranges;
    int64_t requests;
} reader;

static int unfinished(const place *at)
{
    return at->high_watermark < 0 || at->offset < at->high_watermark;
}

static int ask(reader *run)
{
    static uint8_t frame[PARTITIONS_MAX * 32 + 1024];
    uint8_t *at = wire_header(frame, WIRE_FETCH, 10, (int32_t)run->requests);
    at = wire_put32(at, -1);
    at = wire_put32(at, 0); /* no waiting: the load ends at the high watermark */
    at = wire_put32(at, 0);
    at = wire_put32(at, FETCH_BYTES_MAX);
    *at++ = 0;
    at = wire_put32(at, 0);
    at = wire_put32(at, -1);
    at = wire_put32(at, 1);
    at = wire_put_text(at, run->topic);
    uint8_t *count_at = at;
    at += 4;
    int count = 0;
    for (int turn = 0; turn < run->partitions; turn++) {
        int partition = (int)((turn + run->requests) % run->partitions);
        if (!unfinished(&run->places[partition])) {
            continue;
        }
        at = wire_put32(at, partition);
        at = wire_put32(at, -1);
        at = wire_put64(at, run->places[partition].offset);
        at = wire_put64(at, -1);
        at = wire_put32(at, run->partition_bytes_max);
        count++;
    }
    wire_put32(count_at, count);
    at = wire_put32(at, 0);
    if (count) {
        secure_send_all(&run->stream, frame, wire_finish(frame, at));
        run->requests++;
    }
    return count;
}

/* Advances `at` past the complete batches among `length` bytes. */
static void walk(place *at, const uint8_t *batch, int64_t length)
{
    while (length >= WIRE_BATCH_HEADER_BYTES) {
        int64_t whole = 12 + (int64_t)wire_get32(batch + 8);
        if (whole > length) {
            return;
        }
        at->offset = wire_get64(batch) + wire_get32(batch + 23) + 1;
        batch += whole;
        length -= whole;
    }
}

static void answer(reader *run)
{
    uint8_t head[4];
    secure_recv_all(&run->stream, head, 4);
    size_t length = (size_t)wire_get32(head);
    if (length > run->reply_room) {
        wire_die("a reply of %zu bytes", length);
    }
    secure_recv_all(&run->stream, run->reply, length);
    const uint8_t *at = run->reply + 4 + 4;
    if (wire_get16(at)) {
        wire_die("fetch error %d", wire_get16(at));
    }
    at += 2 + 4;
    if (wire_get32(at) != 1) {
        wire_die("%d topics in the answer", wire_get32(at));
    }
    at += 4;
    at += 2 + wire_get16(at);
    int count = wire_get32(at);
    at += 4;
    for (int index = 0; index < count; index++) {
        int partition = wire_get32(at);
        if (wire_get16(at + 4) || partition < 0 || partition >= run->partitions) {
            wire_die("partition %d: error %d", partition, wire_get16(at + 4));
        }
        place *here = &run->places[partition];
        here->high_watermark = wire_get64(at + 6);
        at += 4 + 2 + 8 + 8 + 8;
        int aborted = wire_get32(at);
        at += 4 + (aborted > 0 ? aborted * 16 : 0);
        int32_t bytes = wire_get32(at);
        at += 4;
        if (bytes > 0) {
            walk(here, at, bytes);
            at += bytes;
            run->bytes += bytes;
            run->ranges++;
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        wire_die("usage: fetch PORT TOPIC PARTITIONS PARTITION_BYTES_MAX BYTES_MAX");
    }
    static reader run;
    run.topic = argv[2];
    run.partitions = atoi(argv[3]);
    run.partition_bytes_max = atoi(argv[4]);
    int64_t bytes_max = atoll(argv[5]);
    run.reply_room = (size_t)FETCH_BYTES_MAX + (4u << 20);
    run.reply = malloc(run.reply_room);
    if (!run.reply || run.partitions > PARTITIONS_MAX) {
        wire_die("no memory, or more than %d partitions", PARTITIONS_MAX);
    }
    for (int index = 0; index < run.partitions; index++) {
        run.places[index].high_watermark = -1;
    }
    run.stream = secure_connect(atoi(argv[1]));
    int64_t begin_ns = wire_now_ns();
    while (ask(&run) && !(bytes_max && run.bytes >= bytes_max)) {
        answer(&run);
    }
    double took_s = (double)(wire_now_ns() - begin_ns) / 1e9;
    printf("{\"record_bytes\": %lld, \"requests\": %lld, \"ranges\": %lld, \"seconds\": %.3f, "
           "\"range_bytes\": %lld}\n", (long long)run.bytes, (long long)run.requests,
           (long long)run.ranges, took_s, (long long)(run.ranges ? run.bytes / run.ranges : 0));
    return 0;
}
