/* The minimum work of a broker, as bare loops: the floor under the table of bench.vs.
 *
 * usage: floor recv REQUEST_BYTES TOTAL_BYTES FILE [WRITE_BYTES]
 *        floor sendfile RANGE_BYTES TOTAL_BYTES FILE [WRITE_BYTES]
 *        floor answer REQUEST_BYTES REQUESTS FILE
 *
 * recv: read frames from a loopback socket, checksum them (CRC-32C), pwrite them to a growing
 * file. sendfile: send ranges of a cached file into a loopback socket, one small request before
 * each. WRITE_BYTES: length of one pwrite, at most 1 MiB for sendfile; a request that carries
 * several batches is written in as many pieces, and the kernel stores small writes in small
 * folios. answer: read a request, checksum it, pwrite it, respond with 60 bytes, one in flight
 * at a time.
 *
 * The other end is a second process. Prints the loop's CPU seconds per 1e9 bytes, and per
 * million units, as JSON. */
#include <fcntl.h>
#include <sys/sendfile.h>

#include "pair.h"

enum { ANSWER_BYTES = 60 };

static void feed(int stream, size_t unit, int64_t total)
{
    uint8_t *frame = calloc(1, unit);
    if (!frame) {
        wire_die("no memory");
    }
    for (int64_t sent = 0; sent < total; sent += (int64_t)unit) {
        wire_send_all(stream, frame, unit);
    }
    recv(stream, frame, 1, 0); /* wait until the other end has received everything */
}

static void drain(int stream, size_t unit, int64_t total)
{
    uint8_t *buffer = malloc(unit);
    if (!buffer) {
        wire_die("no memory");
    }
    for (int64_t got = 0; got < total; got += (int64_t)unit) {
        wire_send_all(stream, (const uint8_t *)"next", 4);
        wire_recv_all(stream, buffer, unit);
    }
}

static void ping(int stream, size_t unit, int64_t total)
{
    uint8_t *frame = calloc(1, unit);
    uint8_t reply[ANSWER_BYTES];
    if (!frame) {
        wire_die("no memory");
    }
    for (int64_t done = 0; done < total; done += (int64_t)unit) {
        wire_send_all(stream, frame, unit);
        wire_recv_all(stream, reply, sizeof reply);
    }
}

static double answer(int file, size_t unit, int64_t total)
{
    pid_t child;
    uint8_t *frame = malloc(unit);
    uint8_t reply[ANSWER_BYTES] = {0};
    if (!frame) {
        wire_die("no memory");
    }
    int stream = pair_open(ping, unit, total, &child);
    volatile uint32_t sum = 0;
    double before = pair_cpu_s();
    for (int64_t at = 0; at < total; at += (int64_t)unit) {
        wire_recv_all(stream, frame, unit);
        sum ^= wire_crc32c(frame, unit);
        if (pwrite(file, frame, unit, at) != (ssize_t)unit) {
            wire_die("pwrite: %s", strerror(errno));
        }
        wire_send_all(stream, reply, sizeof reply);
    }
    double took = pair_cpu_s() - before;
    waitpid(child, NULL, 0);
    return took;
}

static double take(int file, size_t unit, int64_t total, size_t piece)
{
    pid_t child;
    uint8_t *frame = malloc(unit);
    if (!frame) {
        wire_die("no memory");
    }
    int stream = pair_open(feed, unit, total, &child);
    volatile uint32_t sum = 0;
    double before = pair_cpu_s();
    for (int64_t at = 0; at < total; at += (int64_t)unit) {
        wire_recv_all(stream, frame, unit);
        sum ^= pair_keep(file, frame, unit, at, piece);
    }
    double took = pair_cpu_s() - before;
    wire_send_all(stream, (const uint8_t *)"!", 1);
    waitpid(child, NULL, 0);
    return took;
}

static double give(int file, size_t unit, int64_t total, size_t piece)
{
    pid_t child;
    int64_t length = 256 << 20;
    pair_fill(file, length, piece);
    int stream = pair_open(drain, unit, total, &child);
    double before = pair_cpu_s();
    for (int64_t done = 0; done < total; done += (int64_t)unit) {
        uint8_t request[4];
        wire_recv_all(stream, request, 4);
        off_t at = done % (length - (int64_t)unit);
        for (size_t left = unit; left;) {
            ssize_t sent = sendfile(stream, file, &at, left);
            if (sent <= 0) {
                wire_die("sendfile: %s", strerror(errno));
            }
            left -= (size_t)sent;
        }
    }
    double took = pair_cpu_s() - before;
    waitpid(child, NULL, 0);
    return took;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        wire_die("usage: floor recv|sendfile|answer UNIT_BYTES TOTAL_BYTES FILE [WRITE_BYTES]");
    }
    size_t unit = (size_t)atoll(argv[2]);
    int64_t total = atoll(argv[3]);
    int file = open(argv[4], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || unit < 1 || unit > 128u << 20) {
        wire_die("%s: %s", argv[4], strerror(errno));
    }
    size_t piece = argc > 5 ? (size_t)atoll(argv[5]) : 0;
    double took;
    if (!strcmp(argv[1], "answer")) {
        total *= (int64_t)unit;
        took = answer(file, unit, total);
    } else if (!strcmp(argv[1], "sendfile")) {
        took = give(file, unit, total, piece);
    } else {
        took = take(file, unit, total, piece ? piece : unit);
    }
    close(file);
    unlink(argv[4]);
    printf("{\"unit_bytes\": %zu, \"cpu_s_per_gb\": %.4f, \"cpu_s_per_million\": %.4f}\n", unit,
           took / ((double)total / 1e9), took / ((double)total / (double)unit / 1e6));
    return 0;
}
