/* Plain-text transport: one system call per operation. */
#include "transport/transport.h"

#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "format/assertion.h"

static ssize_t plain_recv(struct transport *t, void *to, size_t room) {
    assert_slow(room > 0); /* with 0, the result would look like the end of the stream */
    return recv(t->fd, to, room, 0);
}

static ssize_t plain_send(struct transport *t, struct iovec *pieces, size_t count, bool more) {
    assert_slow(count > 0);
    int flags = MSG_NOSIGNAL | (more ? MSG_MORE : 0);
    if (count == 1) return send(t->fd, pieces[0].iov_base, pieces[0].iov_len, flags);
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
    return sendmsg(t->fd, &message, flags);
}

static ssize_t plain_sendfile(struct transport *t, int file, off_t position, size_t bytes) {
    assert_slow(bytes > 0);
    return sendfile(t->fd, file, &position, bytes);
}

const struct transport_calls transport_plain = {
    .recv = plain_recv, .send = plain_send, .sendfile = plain_sendfile};

void transport_close(struct transport *t) {
    assert(t->fd >= 0);
    if (t->session != NULL) t->calls->end(t);
    assert(t->session == NULL);
    close(t->fd);
    t->fd = -1;
}
