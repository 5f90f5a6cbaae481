/* Transports of a connection's bytes: receive, send from memory, send from a file.
 *
 * Connections use only these calls and no socket system calls. TLS is therefore just another
 * table in a separate file, which need not be linked. Threads: the reactor that owns the
 * connection. */
#ifndef PYLOG_TRANSPORT_H
#define PYLOG_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

enum {
    TRANSPORT_TEXT_BYTES = 1024,
    TRANSPORT_WORKSPACE_BYTES = 100 << 10 /* for sendfile */
};

enum transport_shake {
    TRANSPORT_FAILED = -1, /* close the connection */
    TRANSPORT_WAITS = 0,   /* for the socket: epoll reports when to continue */
    TRANSPORT_SAFE = 1
};
struct transport_report { /* result of a handshake */
    bool resumed;
    /* SAFE: name in the peer's certificate, "" without one. FAILED: the reason, "" if the peer
     * just closed the connection. */
    char text[TRANSPORT_TEXT_BYTES];
};

struct transport;
/* Results and errno are those of recv, sendmsg and sendfile: EAGAIN if the socket would block,
 * after which epoll reports it; 0 from recv is the end of the stream, 0 from sendfile the end of
 * the file. Each call may process fewer bytes than requested. After EAGAIN, a send must be
 * retried first, with at least the same bytes. */
struct transport_calls {
    ssize_t (*recv)(struct transport *t, void *to, size_t room);
    /* `more`: a file range follows immediately. */
    ssize_t (*send)(struct transport *t, struct iovec *pieces, size_t count, bool more);
    ssize_t (*sendfile)(struct transport *t, int file, off_t position, size_t bytes);
    /* Call only this function while t->handshaking. */
    enum transport_shake (*handshake)(struct transport *t, struct transport_report *out);
    /* Returns why a call failed, if not because of the socket; else NULL. */
    const char *(*failure)(const struct transport *t);
    /* Sends close_notify if possible without blocking, and frees the session. NULL: no session. */
    void (*end)(struct transport *t);
};
struct transport {
    const struct transport_calls *calls;
    int fd; /* owned by the connection */
    bool handshaking;
    bool left;     /* set by recv: more bytes, or the end, are available without another event */
    /* Set by recv: upper limit for the pending bytes that the transport has already read from
     * the socket. */
    size_t inside;
    void *session; /* owned by the transport; NULL: plain text */
    /* TRANSPORT_WORKSPACE_BYTES of the thread, borrowed, for sendfile: too large for a thread's
     * stack, which may be 128 KiB by default. */
    void *workspace;
};

/* Plain text. */
extern const struct transport_calls transport_plain;

/* Ends the session, if any, and closes the descriptor. */
void transport_close(struct transport *t);

/* Creates transports for a listener. Reference-counted; any thread. */
struct transport_maker {
    /* `t` has only the descriptor. Returns false if out of memory. */
    bool (*open)(struct transport_maker *m, struct transport *t);
    void (*retain)(struct transport_maker *m);
    void (*release)(struct transport_maker *m);
};

#endif
