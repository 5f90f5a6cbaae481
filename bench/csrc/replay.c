/* Prepared requests over many connections from one thread, closed loop or at a fixed rate.
 *
 * usage: replay PORT CONNECTIONS IN_FLIGHT REQUESTS SECONDS RATE_PER_S ERROR_AT FRAMES_FILE
 *
 * FRAMES_FILE contains complete frames with their size prefixes. Request i is frame i modulo
 * their count. Each connection has at most IN_FLIGHT requests in flight. Ends after REQUESTS or
 * SECONDS (0: no such limit), when all responses have arrived. RATE_PER_S: 0 for a closed loop;
 * otherwise request i is sent over connection i modulo CONNECTIONS when it is due, or later if
 * that connection is full, and its latency counts from the due time. ERROR_AT: offset of an
 * int16 in a response (without size prefix) that must be 0, from the end if negative, NONE for
 * no check. Prints one line of JSON. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "wire.h"

enum { CONNECTIONS_MAX = 16384, HEAD_BYTES = 64, TAIL_BYTES = 16, SAMPLES_MAX = 1 << 22,
       IN_FLIGHT_MAX = 64, SILENCE_MS_MAX = 30000, NO_CHECK = 1 << 20 };

typedef struct {
    int stream;
    int under_way;
    uint8_t size[4];
    size_t held;              /* bytes of its size field */
    size_t length, got;       /* bytes of the response received so far */
    uint8_t head[HEAD_BYTES], tail[TAIL_BYTES];
    int64_t sent_ns[IN_FLIGHT_MAX];
    int64_t sent, answered;
} connection;

typedef struct {
    connection *peers;
    int count, in_flight, error_at;
    const uint8_t **frames;
    size_t frame_count;
    int64_t requests, sent, answered, late, bytes;
    int64_t end_ns;
    int64_t *samples_ns;
} load;

static void check(const load *l, const connection *c)
{
    if (l->error_at == NO_CHECK) {
        return;
    }
    size_t at = l->error_at >= 0 ? (size_t)l->error_at : c->length - (size_t)-l->error_at;
    const uint8_t *code = NULL;
    if (at + 2 <= c->length && at + 2 <= HEAD_BYTES) {
        code = c->head + at;
    } else if (at + 2 <= c->length && at + TAIL_BYTES >= c->length) {
        code = c->tail + TAIL_BYTES - (c->length - at);
    } else {
        wire_die("no error code at %d of %zu bytes", l->error_at, c->length);
    }
    if (wire_get16(code)) {
        wire_die("answered with error %d after %lld answers", wire_get16(code),
                 (long long)l->answered);
    }
}

/* Handles part of a response; stores only its beginning and its end. */
static void keep(connection *c, const uint8_t *at, size_t part)
{
    if (c->got < HEAD_BYTES) {
        size_t room = HEAD_BYTES - c->got;
        memcpy(c->head + c->got, at, part < room ? part : room);
    }
    if (part >= TAIL_BYTES) {
        memcpy(c->tail, at + part - TAIL_BYTES, TAIL_BYTES);
    } else {
        memmove(c->tail, c->tail + part, TAIL_BYTES - part);
        memcpy(c->tail + TAIL_BYTES - part, at, part);
    }
    c->got += part;
}

static void answered(load *l, connection *c, int64_t now_ns)
{
    check(l, c);
    l->samples_ns[l->answered % SAMPLES_MAX] =
        now_ns - c->sent_ns[c->answered % IN_FLIGHT_MAX];
    c->answered++;
    c->under_way--;
    c->held = c->got = 0;
    l->answered++;
}

static void take(load *l, connection *c, const uint8_t *at, size_t length)
{
    int64_t now_ns = wire_now_ns();
    l->bytes += (int64_t)length;
    while (length > 0) {
        if (c->held < 4) {
            c->size[c->held++] = *at++;
            length--;
            if (c->held == 4) {
                c->length = (size_t)wire_get32(c->size);
                c->got = 0;
            }
            continue;
        }
        size_t part = length < c->length - c->got ? length : c->length - c->got;
        keep(c, at, part);
        at += part;
        length -= part;
        if (c->got == c->length) {
            answered(l, c, now_ns);
        }
    }
}

static bool is_over(const load *l)
{
    return (l->requests && l->sent >= l->requests) || (l->end_ns && wire_now_ns() >= l->end_ns);
}

static void send_next(load *l, connection *c, int64_t due_ns)
{
    const uint8_t *frame = l->frames[(size_t)l->sent % l->frame_count];
    c->sent_ns[c->sent++ % IN_FLIGHT_MAX] = due_ns ? due_ns : wire_now_ns();
    c->under_way++;
    l->sent++;
    wire_send_all(c->stream, frame, 4 + (size_t)wire_get32(frame));
}

static void receive(load *l, int poller, int64_t wait_ns)
{
    static uint8_t bytes[1 << 17];
    struct epoll_event events[256];
    struct timespec wait = {wait_ns / 1000000000, wait_ns % 1000000000};
    int ready = epoll_pwait2(poller, events, 256, &wait, NULL);
    for (int i = 0; i < ready; i++) {
        connection *c = events[i].data.ptr;
        ssize_t got = recv(c->stream, bytes, sizeof bytes, 0);
        if (got <= 0) {
            wire_die("recv: %s", got ? strerror(errno) : "closed by the broker");
        }
        take(l, c, bytes, (size_t)got);
        while (c->under_way < l->in_flight && !is_over(l)) {
            send_next(l, c, 0);
        }
    }
    static int64_t heard_ns;
    int64_t now_ns = wire_now_ns();
    if (ready > 0 || heard_ns == 0) {
        heard_ns = now_ns;
    } else if (now_ns - heard_ns > (int64_t)SILENCE_MS_MAX * 1000000 && l->answered < l->sent) {
        wire_die("no answer in %d s, %lld of %lld are missing", SILENCE_MS_MAX / 1000,
                 (long long)(l->sent - l->answered), (long long)l->sent);
    }
}

static void run_closed(load *l, int poller)
{
    for (int turn = 0; turn < l->in_flight; turn++) {
        for (int i = 0; i < l->count && !is_over(l); i++) {
            send_next(l, &l->peers[i], 0);
        }
    }
    while (l->answered < l->sent || !is_over(l)) {
        receive(l, poller, 1000000000);
    }
}

static void run_rate(load *l, int poller, double rate)
{
    int in_flight = l->in_flight;
    l->in_flight = 0; /* receive() does not send */
    int64_t begin_ns = wire_now_ns();
    while (!is_over(l)) {
        int64_t due_ns = begin_ns + (int64_t)((double)l->sent * 1e9 / rate);
        int64_t now_ns = wire_now_ns();
        connection *c = &l->peers[l->sent % l->count];
        if (now_ns < due_ns) {
            receive(l, poller, due_ns - now_ns);
        } else if (c->under_way < in_flight) {
            l->late += now_ns - due_ns > 10000000;
            send_next(l, c, due_ns);
        } else {
            receive(l, poller, 10000000);
        }
    }
    while (l->answered < l->sent) {
        receive(l, poller, 1000000000);
    }
}

static void read_frames(load *l, const char *path)
{
    struct stat file;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &file) || file.st_size < 4) {
        wire_die("%s: %s", path, strerror(errno));
    }
    size_t length = (size_t)file.st_size;
    const uint8_t *data = mmap(NULL, length, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (data == MAP_FAILED) {
        wire_die("%s: %s", path, strerror(errno));
    }
    for (size_t at = 0; at < length; at += 4 + (size_t)wire_get32(data + at)) {
        if (l->frame_count % 4096 == 0) {
            l->frames = realloc(l->frames, (l->frame_count + 4096) * sizeof *l->frames);
        }
        l->frames[l->frame_count++] = data + at;
    }
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc != 9) {
        wire_die("usage: replay PORT CONNECTIONS IN_FLIGHT REQUESTS SECONDS RATE ERROR_AT FILE");
    }
    load l = {.count = atoi(argv[2]), .in_flight = atoi(argv[3]), .requests = atoll(argv[4])};
    l.error_at = strcmp(argv[7], "NONE") ? atoi(argv[7]) : NO_CHECK;
    if (l.count < 1 || l.count > CONNECTIONS_MAX || l.in_flight < 1 ||
        l.in_flight > IN_FLIGHT_MAX) {
        wire_die("1 to %d connections, 1 to %d in flight", CONNECTIONS_MAX, IN_FLIGHT_MAX);
    }
    read_frames(&l, argv[8]);
    l.peers = calloc((size_t)l.count, sizeof *l.peers);
    l.samples_ns = calloc(SAMPLES_MAX, sizeof *l.samples_ns);
    int poller = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < l.count; i++) {
        l.peers[i].stream = wire_connect(atoi(argv[1]));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &l.peers[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, l.peers[i].stream, &event);
    }
    double rate = atof(argv[6]);
    int64_t begin_ns = wire_now_ns();
    double cpu_s = wire_broker_cpu_s();
    l.end_ns = atof(argv[5]) > 0 ? begin_ns + (int64_t)(atof(argv[5]) * 1e9) : 0;
    if (rate > 0) {
        run_rate(&l, poller, rate);
    } else {
        run_closed(&l, poller);
    }
    double took_s = (double)(wire_now_ns() - begin_ns) / 1e9;
    cpu_s = wire_broker_cpu_s() - cpu_s;
    printf("{\"seconds\": %.6f, \"broker_cpu_s\": %.6f, \"requests\": %lld, \"requests_s\": %.1f, "
           "\"late\": %lld, \"bytes\": %lld, ", took_s, cpu_s, (long long)l.answered,
           (double)l.answered / took_s, (long long)l.late, (long long)l.bytes);
    wire_print_percentiles(l.samples_ns, (size_t)(l.answered < SAMPLES_MAX ? l.answered
                                                                           : SAMPLES_MAX));
    printf("}\n");
    return 0;
}
