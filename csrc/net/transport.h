/* How a connection's bytes cross its socket: received, sent from memory, sent from a file.
 *
 * A connection calls these three and no system call of its own, so that another way across (TLS)
 * is another table in a file of its own. Threads: the reactor that the connection belongs to. */
#ifndef PYLOG_TRANSPORT_H
#define PYLOG_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

struct transport;
/* Results and errno are those of recv, sendmsg and sendfile: EAGAIN when the socket would block,
 * which epoll then reports; 0 from recv is the end of the stream, 0 from sendfile is the end of
 * the file. Each may do less than it was asked for. */
struct transport_calls {
    ssize_t (*recv)(struct transport *t, void *to, size_t room);
    /* `more`: a range of a file follows at once. */
    ssize_t (*send)(struct transport *t, struct iovec *pieces, size_t count, bool more);
    ssize_t (*sendfile)(struct transport *t, int file, off_t position, size_t bytes);
};
struct transport {
    const struct transport_calls *calls;
    int fd; /* the connection's own */
};

/* The bytes as they are. */
extern const struct transport_calls transport_plain;

#endif
