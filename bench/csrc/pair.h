/* Two ends of a loopback connection in two processes, for the bare loops: the parent's CPU is
 * measured, the child is the other end. */
#ifndef BENCH_PAIR_H
#define BENCH_PAIR_H

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "wire.h"

static inline double pair_cpu_s(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

/* Forks, returns the parent's end, runs `peer` on the child's. */
static inline int pair_open(void (*peer)(int, size_t, int64_t), size_t unit, int64_t total,
                            pid_t *child)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &size)) {
        wire_die("listen: %s", strerror(errno));
    }
    *child = fork();
    if (*child == 0) {
        close(listener);
        peer(wire_connect(ntohs(address.sin_port)), unit, total);
        _exit(0);
    }
    int stream = accept(listener, NULL, NULL);
    int one = 1;
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listener);
    return stream;
}

/* Writes `length` bytes to `file` in pieces of at most `piece` (and 1 MiB). */
static inline void pair_fill(int file, int64_t length, size_t piece)
{
    static uint8_t block[1 << 20];
    if (piece == 0 || piece > sizeof block) {
        piece = sizeof block;
    }
    for (int64_t at = 0; at < length; at += (int64_t)piece) {
        if (pwrite(file, block, piece, at) != (ssize_t)piece) {
            wire_die("pwrite: %s", strerror(errno));
        }
    }
}

/* The minimum work of a broker for a frame: its checksum, and writing its pieces to `file` at
 * `at`. */
static inline uint32_t pair_keep(int file, const uint8_t *frame, size_t unit, int64_t at,
                                 size_t piece)
{
    for (size_t done = 0; done < unit;) {
        size_t part = unit - done < piece ? unit - done : piece;
        if (pwrite(file, frame + done, part, at + (int64_t)done) != (ssize_t)part) {
            wire_die("pwrite: %s", strerror(errno));
        }
        done += part;
    }
    return wire_crc32c(frame, unit);
}

#endif
