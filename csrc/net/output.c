/* Sends responses: memory of all due responses in one call, file ranges with sendfile, limited
 * to OUTPUT_TURN_BYTES per turn. */
#include "net/reactor_internal.h"

#include <errno.h>

#include "format/assertion.h"

enum { OUTPUT_PIECES_MAX = 4 * REQUESTS_PER_CONNECTION_MAX };

/* How much of a response has been sent. */
struct output_position {
    uint32_t bytes_sent, part;
    int32_t range_sent;
};

static struct output_position output_position_of(const struct slot *s) {
    return (struct output_position){s->bytes_sent, s->part, s->range_sent};
}

/* Returns the memory to send from this position; empty before a file range and at the end. */
static struct iovec memory_at(const struct slot *s, struct output_position at) {
    const struct reply *a = &s->r.reply;
    assert_slow(at.part <= a->part_count && at.bytes_sent <= a->len);
    const struct reply_part *part = at.part < a->part_count ? &a->parts[at.part] : NULL;
    uint32_t due = (part != NULL ? part->bytes_end : a->len) - at.bytes_sent;
    if (due != 0) return (struct iovec){a->bytes + at.bytes_sent, due};
    if (part == NULL || part->copy == NULL) return (struct iovec){0};
    assert_slow(at.range_sent < part->range.length);
    return (struct iovec){part->copy->bytes + at.range_sent,
                          (size_t)(part->range.length - at.range_sent)};
}

/* Returns the position after `n` more bytes of the current piece. */
static struct output_position advanced(const struct slot *s, struct output_position at, size_t n) {
    const struct reply *a = &s->r.reply;
    uint32_t end = at.part < a->part_count ? a->parts[at.part].bytes_end : a->len;
    if (at.bytes_sent < end) {
        assert_slow(n <= end - at.bytes_sent);
        at.bytes_sent += (uint32_t)n;
        return at;
    }
    at.range_sent += (int32_t)n;
    assert_slow(at.range_sent <= a->parts[at.part].range.length);
    if (at.range_sent == a->parts[at.part].range.length) {
        at.range_sent = 0;
        at.part++;
    }
    return at;
}

/* Sends all memory up to the next file range in one call. Returns the number of bytes sent, or
 * -1 with errno. */
static ssize_t send_bytes(struct connection *c, const struct slot *first) {
    struct iovec pieces[OUTPUT_PIECES_MAX];
    size_t count = 0;
    bool more = false;
    for (const struct slot *s = first; s != NULL && s->state == SLOT_ANSWERED; s = s->next) {
        struct output_position at = output_position_of(s);
        struct iovec chunk;
        while ((chunk = memory_at(s, at)).iov_len != 0 && count < OUTPUT_PIECES_MAX) {
            pieces[count++] = chunk;
            at = advanced(s, at, chunk.iov_len);
        }
        more = chunk.iov_len == 0 && at.part < s->r.reply.part_count;
        if (more || s->close_after || count == OUTPUT_PIECES_MAX) break;
    }
    return c->transport.calls->send(&c->transport, pieces, count, more);
}

/* Records that `n` bytes of memory have been sent, from slot `s` on. Returns the slot that is due
 * next. */
static struct slot *advance_slots(struct slot *s, size_t n) {
    while (n != 0) {
        assert_slow(s != NULL && s->state == SLOT_ANSWERED); /* cannot send more than was due */
        struct output_position at = output_position_of(s);
        size_t due = memory_at(s, at).iov_len, went = n < due ? n : due;
        assert(due != 0); /* otherwise this loop would not end */
        at = advanced(s, at, went);
        s->bytes_sent = at.bytes_sent;
        s->part = at.part;
        s->range_sent = at.range_sent;
        n -= went;
        while (s != NULL && slot_is_sent(s)) s = s->next;
    }
    return s;
}

/* Sends a part of the next file range. Returns the number of bytes sent, 0 if the file ends
 * before the range, or -1 with errno. */
static ssize_t send_range(struct reactor *r, struct connection *c, struct slot *s,
                          size_t bytes_max) REQUIRES(r->role) {
    assert_slow(s->part < s->r.reply.part_count && bytes_max > 0);
    assert_slow(s->r.reply.parts[s->part].copy == NULL);
    const struct log_range *range = &s->r.reply.parts[s->part].range;
    assert_slow(s->range_sent >= 0 && s->range_sent < range->length);
    off_t position = range->position + s->range_sent;
    size_t left = (size_t)(range->length - s->range_sent);
    /* Bulk transfers tolerate latency: use a long slice, so that waiting threads run first. */
    if (left >= OUTPUT_TURN_BYTES) time_slice_request(&r->slice_ns, SLICES_LONG_NS);
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
    }
    return n;
}

enum output_result output_run(struct reactor *r, struct connection *c) {
    if (c->waits & WAIT_OUTPUT) return OUTPUT_BLOCKED;
    size_t turn = 0;
    struct slot *s = c->first;
    for (;;) {
        while (s != NULL && slot_is_sent(s)) s = s->next; /* also an empty response */
        if (s == NULL || s->state != SLOT_ANSWERED) return OUTPUT_DONE;
        if (turn >= OUTPUT_TURN_BYTES) return OUTPUT_TURN;
        bool bytes = memory_at(s, output_position_of(s)).iov_len != 0;
        ssize_t n = bytes ? send_bytes(c, s) : send_range(r, c, s, OUTPUT_TURN_BYTES - turn);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            c->waits |= WAIT_OUTPUT;
            return OUTPUT_BLOCKED;
        }
        if (n <= 0) return OUTPUT_FAILED;
        if (bytes) s = advance_slots(s, (size_t)n);
        turn += (size_t)n;
        c->active_ms = c->progress_ms = r->now_ms;
        STAT_ADD(r, bytes_out, n);
    }
}
