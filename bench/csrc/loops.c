/* The minimum work of a broker with many connections, as a bare epoll loop that serves
 * csrc/produce.c: receive, CRC-32C, write, send.
 *
 * usage: loops each|group|short FILE
 *
 * each: one pwrite and one response per request. group: one write for all requests of a loop
 * iteration, then one send per connection. short: like group, with the short scheduler slices
 * that reactors request (csrc/os/time_slice.h): beside a client on its own processor it wakes
 * sooner, for fewer requests. Prints its port and serves until its input ends. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include "wire.h"

enum { ANSWER_BYTES = 60, DUE_MAX = 64, INPUT_BYTES = 1 << 16, EVENTS_MAX = 128,
       CONNECTIONS_MAX = 2048, SHORT_NS = 200 * 1000 };

typedef struct {
    int stream;
    int due; /* responses not sent yet */
    size_t held; /* bytes of the request received so far */
    uint8_t partial[INPUT_BYTES];
} connection;

static struct {
    int file;
    bool group;
    off_t end;
    int answering_count;
    connection *answering[CONNECTIONS_MAX];
    uint8_t input[2 * INPUT_BYTES];
    uint8_t written[1 << 20];
    size_t written_bytes;
    volatile uint32_t sum;
} loop;

static void answer(connection *c)
{
    static uint8_t answers[DUE_MAX * ANSWER_BYTES];
    for (int i = 0; i < c->due; i++) {
        wire_put32(answers + i * ANSWER_BYTES, ANSWER_BYTES - 4);
    }
    wire_send_all(c->stream, answers, (size_t)c->due * ANSWER_BYTES);
    c->due = 0;
}

static void write_all(void)
{
    if (loop.written_bytes &&
        pwrite(loop.file, loop.written, loop.written_bytes, loop.end) !=
            (ssize_t)loop.written_bytes) {
        wire_die("pwrite: %s", strerror(errno));
    }
    loop.end += (off_t)loop.written_bytes;
    loop.written_bytes = 0;
    for (int i = 0; i < loop.answering_count; i++) {
        answer(loop.answering[i]);
    }
    loop.answering_count = 0;
}

/* Appends the request to the iteration's batch: requests are short, and one write covers them
 * all. */
static void take(connection *c, const uint8_t *frame, size_t bytes)
{
    loop.sum ^= wire_crc32c(frame, bytes);
    if (loop.group) {
        if (loop.written_bytes + bytes > sizeof loop.written || c->due == DUE_MAX) {
            write_all();
        }
        memcpy(loop.written + loop.written_bytes, frame, bytes);
        loop.written_bytes += bytes;
        if (c->due == 0) {
            loop.answering[loop.answering_count++] = c;
        }
    } else {
        if (pwrite(loop.file, frame, bytes, loop.end) != (ssize_t)bytes) {
            wire_die("pwrite: %s", strerror(errno));
        }
        loop.end += (off_t)bytes;
    }
    c->due++;
}

/* Returns 0 if the client has disconnected. */
static bool receive(connection *c)
{
    memcpy(loop.input, c->partial, c->held);
    ssize_t got = recv(c->stream, loop.input + c->held, INPUT_BYTES, MSG_DONTWAIT);
    if (got <= 0) {
        return got < 0 && errno == EAGAIN;
    }
    size_t at = 0, held = c->held + (size_t)got;
    while (held - at >= 4) {
        size_t whole = 4 + (size_t)wire_get32(loop.input + at);
        if (whole > INPUT_BYTES) {
            wire_die("a request of %zu bytes", whole);
        }
        if (held - at < whole) {
            break;
        }
        take(c, loop.input + at, whole);
        at += whole;
    }
    c->held = held - at;
    memcpy(c->partial, loop.input + at, c->held);
    if (!loop.group && c->due) {
        answer(c);
    }
    return true;
}

static void adopt(int poller, int door)
{
    connection *c = calloc(1, sizeof *c);
    int one = 1;
    c->stream = accept(door, NULL, NULL);
    setsockopt(c->stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->stream, &event);
}

static void serve(int door)
{
    struct epoll_event events[EVENTS_MAX];
    int poller = epoll_create1(EPOLL_CLOEXEC), input = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &door};
    epoll_ctl(poller, EPOLL_CTL_ADD, door, &event);
    event.data.ptr = &input;
    epoll_ctl(poller, EPOLL_CTL_ADD, input, &event);
    for (;;) {
        int ready = epoll_wait(poller, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            void *who = events[i].data.ptr;
            if (who == &input) {
                return;
            }
            if (who == &door) {
                adopt(poller, door);
            } else if (!receive(who)) {
                close(((connection *)who)->stream);
                free(who);
            }
        }
        write_all();
    }
}

static void ask_for_short_turns(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } attributes;
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0)) {
        wire_die("sched_getattr: %s", strerror(errno));
    }
    attributes.runtime_ns = SHORT_NS;
    if (syscall(SYS_sched_setattr, 0, &attributes, 0)) {
        wire_die("sched_setattr: %s", strerror(errno));
    }
}

int main(int argc, char **argv)
{
    bool is_short = argc == 3 && !strcmp(argv[1], "short");
    if (argc != 3 || (!is_short && strcmp(argv[1], "each") && strcmp(argv[1], "group"))) {
        wire_die("usage: loops each|group|short FILE");
    }
    if (is_short) {
        ask_for_short_turns();
    }
    loop.group = is_short || !strcmp(argv[1], "group");
    loop.file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (loop.file < 0 || fallocate(loop.file, FALLOC_FL_KEEP_SIZE, 0, 256 << 20)) {
        wire_die("%s: %s", argv[2], strerror(errno));
    }
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    int door = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(door, (struct sockaddr *)&address, size) || listen(door, CONNECTIONS_MAX) ||
        getsockname(door, (struct sockaddr *)&address, &size)) {
        wire_die("listen: %s", strerror(errno));
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    serve(door);
    unlink(argv[2]);
    return 0;
}
