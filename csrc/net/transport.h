/* How a connection's bytes cross its socket: received, sent from memory, sent from a file.
 *
 * A connection calls these and no system call of its own, so that another way across (TLS) is
 * another table in a file of its own, which need not be linked. Threads: the reactor that the
 * connection belongs to. */
#ifndef PYLOG_TRANSPORT_H
#define PYLOG_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

enum {
    TRANSPORT_TEXT_BYTES = 1024,
    TRANSPORT_WORKSPACE_BYTES = 100 << 10 /* that sending a range may use */
};

enum transport_shake {
    TRANSPORT_FAILED = -1, /* the connection is of no use */
    TRANSPORT_WAITS = 0,   /* for the socket: epoll reports it */
    TRANSPORT_SAFE = 1
};
struct transport_report { /* of a handshake that is over */
    bool resumed;
    /* SAFE: the name in the peer's certificate, "" when it showed none. FAILED: why, "" when there
     * is nothing to say: the peer left without a word. */
    char text[TRANSPORT_TEXT_BYTES];
};

struct transport;
/* Results and errno are those of recv, sendmsg and sendfile: EAGAIN when the socket would block,
 * which epoll then reports; 0 from recv is the end of the stream, 0 from sendfile is the end of
 * the file. Each may do less than it was asked for. What a send refused with EAGAIN is offered
 * again first, and not less of it. */
struct transport_calls {
    ssize_t (*recv)(struct transport *t, void *to, size_t room);
    /* `more`: a range of a file follows at once. */
    ssize_t (*send)(struct transport *t, struct iovec *pieces, size_t count, bool more);
    ssize_t (*sendfile)(struct transport *t, int file, off_t position, size_t bytes);
    /* While t->handshaking, before anything else. */
    enum transport_shake (*handshake)(struct transport *t, struct transport_report *out);
    /* Why a call failed for another reason than the socket; NULL: for none. */
    const char *(*failure)(const struct transport *t);
    /* Says good-bye if it can be done at once, and frees the session. NULL: there is none. */
    void (*end)(struct transport *t);
};
struct transport {
    const struct transport_calls *calls;
    int fd; /* the connection's own */
    bool handshaking;
    bool left;     /* by recv: more, or the end, is to be had without another event */
    /* By recv: no more than so many of the bytes that are still due have left the socket. */
    size_t inside;
    void *session; /* the table's own; NULL: the bytes are as they are */
    /* TRANSPORT_WORKSPACE_BYTES of its thread's, borrowed, for sendfile: too much for the stack of
     * a thread where the C library gives it 128 KiB. */
    void *workspace;
};

/* The bytes as they are. */
extern const struct transport_calls transport_plain;

/* Ends its session, if it has one, and closes the descriptor. */
void transport_close(struct transport *t);

/* What a listener's connections get. Counted; any thread. */
struct transport_maker {
    /* `t` has the descriptor only. False: out of memory. */
    bool (*open)(struct transport_maker *m, struct transport *t);
    void (*retain)(struct transport_maker *m);
    void (*release)(struct transport_maker *m);
};

#endif
