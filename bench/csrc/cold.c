/* Reads old records at the smallest possible cost to the machine, like a reader on another
 * machine.
 *
 * usage: cold PORT TOPIC PARTITIONS SECONDS [FILE...]
 *        cold bare 0 0 SECONDS FILE...
 *
 * Reads the partitions from their start with Fetch v10, repeatedly, and discards the records: it
 * parses the batch headers, and the kernel drops the rest without copying it (MSG_TRUNC). Before
 * each pass, FILEs (segments of the topic, already written to disk) are dropped from the page
 * cache. Runs at SCHED_IDLE, to simulate another machine with separate processors.
 *
 * bare: replaces the broker by a thread of normal priority that reads 4 MiB of a FILE, drops the
 * previous 4 MiB and sends them, 256 KiB per call: the floor for a broker. Prints one line of
 * JSON: bytes and seconds. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>

#include "wire.h"

enum { PARTITIONS_MAX = 64, RANGE_BYTES = 1 << 20, ANSWER_BYTES_MAX = 50 << 20 };
enum { BARE_ANSWER_BYTES = 4 << 20, BARE_CALL_BYTES = 256 << 10 };

typedef struct {
    int stream;
    const char *topic;
    int partitions;
    int64_t offsets[PARTITIONS_MAX];
    int64_t ends[PARTITIONS_MAX];
    int64_t bytes;
    int32_t asked;
    char **files;
    int file_count;
} reader;

static void drop_pages(const reader *run)
{
    for (int index = 0; index < run->file_count; index++) {
        int file = open(run->files[index], O_RDONLY);
        if (file < 0 || posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)) {
            wire_die("%s: %s", run->files[index], strerror(errno));
        }
        close(file);
    }
}

static void skip(int stream, int64_t length)
{
    while (length > 0) {
        ssize_t got = recv(stream, NULL, (size_t)length, MSG_TRUNC);
        if (got <= 0) {
            wire_die("closed by the broker");
        }
        length -= got;
    }
}

static int ask(reader *run)
{
    uint8_t frame[PARTITIONS_MAX * 32 + 1024];
    uint8_t *at = wire_header(frame, WIRE_FETCH, 10, run->asked++);
    at = wire_put32(at, -1);
    at = wire_put32(at, 0);
    at = wire_put32(at, 0);
    at = wire_put32(at, ANSWER_BYTES_MAX);
    *at++ = 0;
    at = wire_put32(at, 0);
    at = wire_put32(at, -1);
    at = wire_put32(at, 1);
    at = wire_put_text(at, run->topic);
    uint8_t *count_at = at;
    at += 4;
    int count = 0;
    for (int turn = 0; turn < run->partitions; turn++) {
        int partition = (turn + run->asked) % run->partitions;
        if (run->offsets[partition] >= run->ends[partition]) {
            continue;
        }
        at = wire_put32(at, partition);
        at = wire_put32(at, -1);
        at = wire_put64(at, run->offsets[partition]);
        at = wire_put64(at, -1);
        at = wire_put32(at, RANGE_BYTES);
        count++;
    }
    wire_put32(count_at, count);
    at = wire_put32(at, 0);
    if (count) {
        wire_send_all(run->stream, frame, wire_finish(frame, at));
    }
    return count;
}

/* One partition's records: parses the headers and drops the rest. */
static void take(reader *run, int partition, int64_t length)
{
    uint8_t header[WIRE_BATCH_HEADER_BYTES];
    run->bytes += length;
    while (length >= WIRE_BATCH_HEADER_BYTES) {
        wire_recv_all(run->stream, header, sizeof header);
        int64_t rest = 12 + (int64_t)wire_get32(header + 8) - WIRE_BATCH_HEADER_BYTES;
        length -= WIRE_BATCH_HEADER_BYTES;
        if (rest > length) {
            break;
        }
        run->offsets[partition] = wire_get64(header) + wire_get32(header + 23) + 1;
        skip(run->stream, rest);
        length -= rest;
    }
    skip(run->stream, length);
}

static void answer(reader *run)
{
    uint8_t head[64 + 256];
    wire_recv_all(run->stream, head, 4 + 20);
    int name_length = wire_get16(head + 22);
    if (wire_get16(head + 12) || wire_get32(head + 18) != 1 || name_length > 256) {
        wire_die("fetch error %d, %d topics", wire_get16(head + 12), wire_get32(head + 18));
    }
    wire_recv_all(run->stream, head, (size_t)name_length + 4);
    for (int count = wire_get32(head + name_length); count > 0; count--) {
        wire_recv_all(run->stream, head, 34);
        int partition = wire_get32(head);
        if (wire_get16(head + 4) || partition < 0 || partition >= run->partitions) {
            wire_die("partition %d: error %d", partition, wire_get16(head + 4));
        }
        run->ends[partition] = wire_get64(head + 6);
        int aborted = wire_get32(head + 30);
        skip(run->stream, aborted > 0 ? aborted * 16 : 0);
        wire_recv_all(run->stream, head, 4);
        take(run, partition, wire_get32(head) > 0 ? wire_get32(head) : 0);
    }
}

static void fetch_until(reader *run, int64_t until_ns)
{
    while (wire_now_ns() < until_ns) {
        drop_pages(run);
        for (int index = 0; index < run->partitions; index++) {
            run->offsets[index] = 0;
            run->ends[index] = 1;
        }
        while (wire_now_ns() < until_ns && ask(run)) {
            answer(run);
        }
    }
}

/* ---- the floor */

static void bare_send(int stream, int file, int null, off_t position, off_t end)
{
    off_t at = position;
    while (at < end && sendfile(null, file, &at, (size_t)(end - at)) > 0) {
    }
    posix_fadvise(file, 0, position, POSIX_FADV_DONTNEED);
    while (position < end) {
        size_t left = (size_t)(end - position);
        if (sendfile(stream, file, &position, left < BARE_CALL_BYTES ? left : BARE_CALL_BYTES) <=
            0) {
            wire_die("sendfile: %s", strerror(errno));
        }
    }
}

typedef struct {
    int listener;
    const reader *run;
} bare;

static void *bare_serve(void *argument)
{
    const bare *side = argument;
    int stream = accept(side->listener, NULL, NULL);
    int null = open("/dev/null", O_WRONLY);
    for (int index = 0;; index = (index + 1) % side->run->file_count) {
        int file = open(side->run->files[index], O_RDONLY);
        off_t end = lseek(file, 0, SEEK_END);
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        for (off_t at = 0; at + BARE_ANSWER_BYTES <= end; at += BARE_ANSWER_BYTES) {
            uint8_t request[4];
            if (recv(stream, request, 4, MSG_WAITALL) != 4) {
                return NULL;
            }
            bare_send(stream, file, null, at, at + BARE_ANSWER_BYTES);
        }
        close(file);
    }
}

static void read_bare(reader *run, int64_t until_ns)
{
    while (wire_now_ns() < until_ns) {
        wire_send_all(run->stream, (const uint8_t *)"next", 4);
        skip(run->stream, BARE_ANSWER_BYTES);
        run->bytes += BARE_ANSWER_BYTES;
    }
}

static int bare_listen(bare *side)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    side->listener = socket(AF_INET, SOCK_STREAM, 0);
    pthread_t server;
    if (bind(side->listener, (struct sockaddr *)&address, size) || listen(side->listener, 1) ||
        getsockname(side->listener, (struct sockaddr *)&address, &size) ||
        pthread_create(&server, NULL, bare_serve, side)) {
        wire_die("listen: %s", strerror(errno));
    }
    return ntohs(address.sin_port);
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        wire_die("usage: cold PORT|bare TOPIC PARTITIONS SECONDS [FILE...]");
    }
    static reader run;
    static bare side = {.run = &run};
    int is_bare = !strcmp(argv[1], "bare");
    run.topic = argv[2];
    run.partitions = atoi(argv[3]);
    run.files = argv + 5;
    run.file_count = argc - 5;
    if (run.partitions > PARTITIONS_MAX || (is_bare && run.file_count == 0)) {
        wire_die("more than %d partitions, or no file", PARTITIONS_MAX);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int port = is_bare ? bare_listen(&side) : atoi(argv[1]);
    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
    run.stream = wire_connect(port);
    int64_t begin_ns = wire_now_ns();
    int64_t until_ns = begin_ns + (int64_t)(atof(argv[4]) * 1e9);
    if (is_bare) {
        read_bare(&run, until_ns);
    } else {
        fetch_until(&run, until_ns);
    }
    printf("{\"record_bytes\": %lld, \"seconds\": %.3f}\n", (long long)run.bytes,
           (double)(wire_now_ns() - begin_ns) / 1e9);
    return 0;
}
