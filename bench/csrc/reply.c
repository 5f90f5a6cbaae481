/* Compares ways to send short ranges of a cached file: copied into the response, one sendfile
 * per range, or from memory that was read once for many consumers: copied to the socket (share),
 * by reference with each head written to the pipe (splice), or as one sendfile of a complete
 * response shared by many consumers (memfd).
 *
 * usage: reply copy|sendfile|share|splice|memfd RANGE_BYTES RANGES ANSWERS FILE
 *
 * A response is RANGES times 40 bytes of head and one range. The other end, a second process,
 * requests each response with one byte and reads it completely. Prints the sender's CPU per
 * response, as JSON. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "wire.h"

enum { HEAD_BYTES = 40, FILE_BYTES = 1 << 26, PIECES_MAX = 32, PIPE_BYTES = 1 << 20 };

static double cpu_s(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static void whole(ssize_t done, size_t wanted, const char *call)
{
    if (done != (ssize_t)wanted) {
        wire_die("%s: %zd of %zu", call, done, wanted);
    }
}

static void read_answers(int stream, size_t answer_bytes, long answers)
{
    uint8_t *held = malloc(answer_bytes);
    for (long i = 0; i < answers; i++) {
        whole(send(stream, "?", 1, 0), 1, "send");
        whole(recv(stream, held, answer_bytes, MSG_WAITALL), answer_bytes, "recv");
    }
    free(held);
}

static void send_file(int stream, int file, off_t at, size_t bytes)
{
    while (bytes > 0) {
        ssize_t sent = sendfile(stream, file, &at, bytes);
        if (sent <= 0) {
            wire_die("sendfile: %s", strerror(errno));
        }
        bytes -= (size_t)sent;
    }
}

static void answer_copied(int stream, int file, off_t at, size_t range_bytes, int ranges)
{
    size_t room = 256, length = 0;
    uint8_t *bytes = malloc(room);
    for (int i = 0; i < ranges; i++) {
        while (room < length + HEAD_BYTES + range_bytes) {
            room *= 2;
        }
        bytes = realloc(bytes, room);
        memset(bytes + length, i, HEAD_BYTES);
        length += HEAD_BYTES;
        whole(pread(file, bytes + length, range_bytes, at + i * (off_t)range_bytes), range_bytes,
              "pread");
        length += range_bytes;
    }
    whole(send(stream, bytes, length, 0), length, "send");
    free(bytes);
}

static void answer_by_sendfile(int stream, int file, off_t at, size_t range_bytes, int ranges)
{
    uint8_t *head = malloc(HEAD_BYTES);
    for (int i = 0; i < ranges; i++) {
        memset(head, i, HEAD_BYTES);
        whole(send(stream, head, HEAD_BYTES, MSG_MORE), HEAD_BYTES, "send");
        send_file(stream, file, at + i * (off_t)range_bytes, range_bytes);
    }
    free(head);
}

/* The ranges are in the page cache, like recently appended records. */
static void answer_shared(int stream, size_t range_bytes, int ranges)
{
    static uint8_t *shared;
    struct iovec pieces[2 * PIECES_MAX];
    uint8_t *head = malloc(HEAD_BYTES * PIECES_MAX);
    if (!shared) {
        shared = malloc(range_bytes * (size_t)ranges);
        memset(shared, 7, range_bytes * (size_t)ranges);
    }
    size_t left = 0;
    for (int i = 0; i < ranges; i++) {
        memset(head + i * HEAD_BYTES, i, HEAD_BYTES);
        pieces[2 * i] = (struct iovec){head + i * HEAD_BYTES, HEAD_BYTES};
        pieces[2 * i + 1] = (struct iovec){shared + (size_t)i * range_bytes, range_bytes};
        left += HEAD_BYTES + range_bytes;
    }
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2 * (size_t)ranges};
    whole(sendmsg(stream, &message, 0), left, "sendmsg");
    free(head);
}

static uint8_t *mapped(size_t bytes)
{
    uint8_t *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) {
        wire_die("mmap: %s", strerror(errno));
    }
    memset(made, 7, bytes);
    return made;
}

static void answer_spliced(int stream, size_t range_bytes, int ranges)
{
    static uint8_t *shared;
    static int ends[2];
    if (!shared) {
        shared = mapped(range_bytes * (size_t)ranges);
        if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES) < 0) {
            wire_die("pipe: %s", strerror(errno));
        }
    }
    uint8_t head[HEAD_BYTES];
    for (int i = 0; i < ranges; i++) {
        memset(head, i, HEAD_BYTES);
        whole(write(ends[1], head, HEAD_BYTES), HEAD_BYTES, "write");
        struct iovec range = {shared + (size_t)i * range_bytes, range_bytes};
        whole(vmsplice(ends[1], &range, 1, 0), range_bytes, "vmsplice");
    }
    size_t left = (size_t)ranges * (HEAD_BYTES + range_bytes);
    while (left > 0) {
        ssize_t sent = splice(ends[0], NULL, stream, NULL, left, 0);
        if (sent <= 0) {
            wire_die("splice: %s", strerror(errno));
        }
        left -= (size_t)sent;
    }
}

static void answer_from_memory_file(int stream, size_t range_bytes, int ranges)
{
    static int file = -1;
    size_t bytes = (size_t)ranges * (HEAD_BYTES + range_bytes);
    if (file < 0) {
        file = memfd_create("reply", 0);
        uint8_t *answer = mapped(bytes);
        whole(pwrite(file, answer, bytes, 0), bytes, "pwrite");
    }
    send_file(stream, file, 0, bytes);
}

static int cached_file(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    uint8_t *piece = malloc(1 << 20);
    memset(piece, 7, 1 << 20);
    for (int i = 0; i < FILE_BYTES >> 20; i++) {
        whole(write(file, piece, 1 << 20), 1 << 20, "write");
    }
    free(piece);
    return file;
}

/* Two ends of a TCP connection over loopback. */
static void connected(int ends[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int on = 1, door = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(door, (struct sockaddr *)&address, length) || listen(door, 1) ||
        getsockname(door, (struct sockaddr *)&address, &length)) {
        wire_die("listen: %s", strerror(errno));
    }
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (struct sockaddr *)&address, length)) {
        wire_die("connect: %s", strerror(errno));
    }
    ends[1] = accept(door, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    close(door);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        wire_die("usage: reply copy|sendfile|share|splice|memfd RANGE_BYTES RANGES ANSWERS FILE");
    }
    size_t range_bytes = (size_t)atol(argv[2]);
    int ranges = atoi(argv[3]);
    if (ranges > PIECES_MAX) {
        wire_die("at most %d ranges", PIECES_MAX);
    }
    long answers = atol(argv[4]);
    int file = cached_file(argv[5]), ends[2];
    connected(ends);
    pid_t peer = fork();
    if (peer == 0) {
        read_answers(ends[0], (size_t)ranges * (HEAD_BYTES + range_bytes), answers);
        _exit(0);
    }
    double begin = cpu_s();
    off_t at = 0;
    for (long i = 0; i < answers; i++) {
        char question;
        whole(recv(ends[1], &question, 1, 0), 1, "recv");
        if (!strcmp(argv[1], "share")) {
            answer_shared(ends[1], range_bytes, ranges);
        } else if (!strcmp(argv[1], "splice")) {
            answer_spliced(ends[1], range_bytes, ranges);
        } else if (!strcmp(argv[1], "memfd")) {
            answer_from_memory_file(ends[1], range_bytes, ranges);
        } else if (!strcmp(argv[1], "copy")) {
            answer_copied(ends[1], file, at, range_bytes, ranges);
        } else {
            answer_by_sendfile(ends[1], file, at, range_bytes, ranges);
        }
        at = (at + ranges * (off_t)range_bytes) % (FILE_BYTES / 2);
    }
    printf("{\"us\": %.3f}\n", (cpu_s() - begin) / (double)answers * 1e6);
    kill(peer, SIGTERM);
    waitpid(peer, NULL, 0);
    return 0;
}
