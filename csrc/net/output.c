/* Answers out: bytes gathered over all answers that are due, ranges of files by sendfile, at most a
 * turn's worth at once. */
#include "net/reactor_state.h"

#include <errno.h>

#include "format/assertion.h"

enum { OUTPUT_PIECES_MAX = 2 * REQUESTS_PER_CONNECTION_MAX };

/* The bytes of the reply that go before its next range, or to its end. */
static uint32_t bytes_due(const struct slot *s) {
    const struct reply *a = &s->r.reply;
    assert_slow(s->part <= a->part_count && s->bytes_sent <= a->len);
    return (s->part < a->part_count ? a->parts[s->part].bytes_end : a->len) - s->bytes_sent;
}

static bool is_sent(const struct slot *s) {
    return s->part == s->r.reply.part_count && s->bytes_sent == s->r.reply.len;
}

/* One send of all bytes up to the next range; how many went out, or -1 and errno. */
static ssize_t send_bytes(struct connection *c) {
    struct iovec pieces[OUTPUT_PIECES_MAX];
    size_t count = 0;
    bool more = false;
    for (struct slot *s = c->first; s != NULL && s->state == SLOT_ANSWERED; s = s->next) {
        uint32_t due = bytes_due(s);
        if (due != 0)
            pieces[count++] = (struct iovec){s->r.reply.bytes + s->bytes_sent, due};
        more = s->part < s->r.reply.part_count;
        if (more || s->close_after || count == OUTPUT_PIECES_MAX) break;
    }
    return c->transport.calls->send(&c->transport, pieces, count, more);
}

static void bytes_went(struct reactor *r, struct connection *c, size_t n) REQUIRES(r->role) {
    for (struct slot *s = c->first; n != 0;) {
        assert_slow(s != NULL && s->state == SLOT_ANSWERED); /* no more went than was given */
        uint32_t due = bytes_due(s);
        uint32_t went = n < due ? (uint32_t)n : due;
        s->bytes_sent += went;
        n -= went;
        if (!is_sent(s)) break;
        requests_pop(r, c);
        s = c->first;
    }
}

/* Part of the next range; as send_bytes, 0 when the file ended before the range. */
static ssize_t send_range(struct reactor *r, struct connection *c, size_t bytes_max)
    REQUIRES(r->role) {
    struct slot *s = c->first;
    assert_slow(s->part < s->r.reply.part_count && bytes_max > 0);
    const struct log_range *range = &s->r.reply.parts[s->part].range;
    assert_slow(s->range_sent >= 0 && s->range_sent < range->length);
    off_t position = range->position + s->range_sent;
    size_t left = (size_t)(range->length - s->range_sent);
    /* Who takes so much at once waits for none of it: those who wait go first. */
    if (left >= OUTPUT_TURN_BYTES) slices_ask(&r->slice_ns, SLICES_LONG_NS);
    ssize_t n = c->transport.calls->sendfile(&c->transport, range->fd, position,
                                             left < bytes_max ? left : bytes_max);
    if (n < 0 && errno == EIO) log_range_failed(range, errno);
    if (n <= 0) return n;
    assert_slow((size_t)n <= left);
    STAT_ADD(r, bytes_sendfile, n);
    s->range_sent += (int32_t)n;
    if (s->range_sent == range->length) {
        s->range_sent = 0;
        s->part++;
        if (is_sent(s)) requests_pop(r, c);
    }
    return n;
}

enum output_result output_run(struct reactor *r, struct connection *c) {
    if (c->blocked) return OUTPUT_BLOCKED;
    size_t turn = 0;
    while (c->first != NULL && c->first->state == SLOT_ANSWERED) {
        if (is_sent(c->first)) { /* an answer of no bytes */
            requests_pop(r, c);
            continue;
        }
        if (turn >= OUTPUT_TURN_BYTES) return OUTPUT_TURN;
        bool bytes = bytes_due(c->first) != 0;
        ssize_t n = bytes ? send_bytes(c) : send_range(r, c, OUTPUT_TURN_BYTES - turn);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            c->blocked = true;
            return OUTPUT_BLOCKED;
        }
        if (n <= 0) return OUTPUT_FAILED;
        if (bytes) bytes_went(r, c, (size_t)n);
        turn += (size_t)n;
        c->active_ms = c->progress_ms = r->now_ms;
        STAT_ADD(r, bytes_out, n);
    }
    return OUTPUT_DONE;
}
