/* Sends one kind of request over many connections from one thread.
 *
 * usage: requests PORT CONNECTIONS IN_FLIGHT REQUESTS FRAME_HEX
 *
 * FRAME_HEX is a complete request without its size prefix. Every connection keeps IN_FLIGHT
 * requests in flight until REQUESTS were answered in total. Prints one line of JSON. */
#include <sys/epoll.h>

#include "wire.h"

enum { CONNECTIONS_MAX = 4096, FRAME_BYTES_MAX = 4096 };

typedef struct {
    int stream;
    size_t due;      /* bytes of the response received so far */
    size_t held;     /* bytes of its size field */
    uint8_t size[4];
} connection;

static size_t frame_from(const char *hex, uint8_t *frame)
{
    size_t length = strlen(hex) / 2;
    if (length > FRAME_BYTES_MAX - 4) {
        wire_die("a frame of %zu bytes", length);
    }
    wire_put32(frame, (int64_t)length);
    for (size_t at = 0; at < length; at++) {
        unsigned byte;
        if (sscanf(hex + 2 * at, "%2x", &byte) != 1) {
            wire_die("not hexadecimal: %s", hex);
        }
        frame[4 + at] = (uint8_t)byte;
    }
    return 4 + length;
}

/* Returns the number of responses that end in these bytes. */
static int count_answers(connection *peer, const uint8_t *at, size_t length)
{
    int ended = 0;
    while (length > 0) {
        if (peer->due == 0) {
            peer->size[peer->held++] = *at++;
            length--;
            if (peer->held == 4) {
                peer->due = (size_t)wire_get32(peer->size);
                peer->held = 0;
            }
            continue;
        }
        size_t part = length < peer->due ? length : peer->due;
        at += part;
        length -= part;
        peer->due -= part;
        ended += peer->due == 0;
    }
    return ended;
}

static void drive(connection *peers, int count, int in_flight, long requests,
                  const uint8_t *frame, size_t frame_length)
{
    static uint8_t answers[1 << 16];
    struct epoll_event events[256];
    int poller = epoll_create1(EPOLL_CLOEXEC);
    long answered = 0, sent = 0;
    for (int i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &peers[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, peers[i].stream, &event);
        for (int n = 0; n < in_flight && sent < requests; n++, sent++) {
            wire_send_all(peers[i].stream, frame, frame_length);
        }
    }
    while (answered < sent) {
        int ready = epoll_wait(poller, events, 256, 10000);
        if (ready <= 0) {
            wire_die("no answer in 10 s");
        }
        for (int i = 0; i < ready; i++) {
            connection *peer = events[i].data.ptr;
            ssize_t got = recv(peer->stream, answers, sizeof answers, 0);
            if (got <= 0) {
                wire_die("recv: %s", got ? strerror(errno) : "closed by the broker");
            }
            int ended = count_answers(peer, answers, (size_t)got);
            answered += ended;
            for (; ended > 0 && sent < requests; ended--, sent++) {
                wire_send_all(peer->stream, frame, frame_length);
            }
        }
    }
    close(poller);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        wire_die("usage: requests PORT CONNECTIONS IN_FLIGHT REQUESTS FRAME_HEX");
    }
    int count = atoi(argv[2]);
    if (count < 1 || count > CONNECTIONS_MAX) {
        wire_die("1 to %d connections", CONNECTIONS_MAX);
    }
    connection *peers = calloc((size_t)count, sizeof *peers);
    uint8_t frame[FRAME_BYTES_MAX];
    size_t frame_length = frame_from(argv[5], frame);
    for (int i = 0; i < count; i++) {
        peers[i].stream = wire_connect(atoi(argv[1]));
    }
    int64_t begin_ns = wire_now_ns();
    drive(peers, count, atoi(argv[3]), atol(argv[4]), frame, frame_length);
    double took_s = (double)(wire_now_ns() - begin_ns) / 1e9;
    printf("{\"seconds\": %.6f, \"requests_s\": %.0f}\n", took_s, (double)atol(argv[4]) / took_s);
    return 0;
}
