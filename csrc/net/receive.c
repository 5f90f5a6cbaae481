/* Reads from a socket into the connection's buffer.
 *
 * A large frame is read exactly to its end, so that the next one starts in a new buffer and no
 * partial frame is moved. Small frames are read many at a time. One read is limited to
 * RECEIVE_BYTES, four times what has arrived of the frame, or the size of the previous frame.
 * While a large frame arrives fast, SO_RCVLOWAT lets the kernel collect bytes, so that not every
 * segment or TLS record causes a turn. It never exceeds the missing bytes, or the end of the
 * frame would never be reported.
 *
 * While buffers are short, frames start in tiny buffers, so that small requests succeed beside
 * stalled large ones. Of the frames that wait for more room, the one with the fewest bytes
 * missing may exceed the limit. Stalled ones are closed, the slowest first. */
#include "net/reactor_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "format/assertion.h"

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static void run_first_waiting(struct reactor *r) REQUIRES(r->role) {
    struct connection *waiting = r->input_waiting.first;
    if (waiting == NULL) return;
    waiting->frame_ms = r->now_ms; /* the broker, not the client, caused the wait */
    connection_enlist(waiting, &r->ready);
}

void receive_release(struct reactor *r, struct input_buffer *b) {
    input_release(&r->input, b);
    run_first_waiting(r);
}

void receive_uncount(struct reactor *r, size_t bytes) {
    input_uncount(&r->input, bytes);
    run_first_waiting(r);
}

static void release_buffer(struct reactor *r, struct connection *c) REQUIRES(r->role) {
    struct input_buffer *b = c->in;
    assert_slow(c->in_start == c->in_end);
    c->in = NULL;
    c->in_start = c->in_end = c->frame_bytes = 0;
    c->waiting_ms = 0;
    if (r->over_limit_allowed == c) r->over_limit_allowed = NULL;
    if (b != NULL) receive_release(r, b);
}

static struct input_buffer *take(struct reactor *r, struct connection *c, size_t room)
    REQUIRES(r->role) {
    bool begins = r->reclaiming_input && c->in == NULL; /* tiny, before the frame size is known */
    return input_take(&r->input, room, r->over_limit_allowed == c || begins);
}

void receive_wait(struct reactor *r, struct connection *c) {
    STAT_ADD(r, input_waits, 1);
    if (c->waiting_ms == 0) c->waiting_ms = r->now_ms;
    connection_enlist(c, &r->input_waiting);
    if (r->relief.heap_index == 0) timers_set(&r->timers, &r->relief, r->now_ms + RELIEF_MS);
}

/* Moves pending bytes to the start of another buffer. */
static bool move(struct reactor *r, struct connection *c, struct input_buffer *to)
    REQUIRES(r->role) {
    if (to == NULL) return false;
    size_t pending = c->in_end - c->in_start;
    assert_slow(to != c->in && pending <= to->room && to->references == 1);
    if (pending != 0) memcpy(to->bytes, c->in->bytes + c->in_start, pending);
    struct input_buffer *from = c->in;
    c->in = to;
    c->in_start = 0;
    c->in_end = pending;
    if (from != NULL) receive_release(r, from);
    return true;
}

size_t receive_budget_after(const struct reactor *r, size_t frame_bytes) {
    /* The largest buffer that fits RECEIVE_BUDGET_PART times into the limit. */
    size_t part = larger(r->input.held_bytes_max / RECEIVE_BUDGET_PART, RECEIVE_BYTES);
    return smaller(frame_bytes, part - sizeof(struct input_buffer));
}

/* Makes room after in_end for at least one byte, and for the whole frame once enough of it has
 * arrived. */
static bool make_room(struct reactor *r, struct connection *c) REQUIRES(r->role) {
    size_t first = input_is_tight(&r->input) ? INPUT_TINY_BYTES - sizeof(struct input_buffer)
                                             : larger(RECEIVE_BYTES, c->receive_budget);
    if (c->in == NULL) return move(r, c, take(r, c, first));
    struct input_buffer *b = c->in;
    size_t pending = c->in_end - c->in_start;
    if (pending == 0 && b->references == 1) c->in_start = c->in_end = 0;
    size_t frame = c->frame_bytes != 0 ? c->frame_bytes : first;
    if (c->in_start + frame <= b->room && c->in_end < b->room) return true;
    size_t wanted = smaller(frame, larger(first, 4 * pending));
    if (b->references == 1 && wanted <= b->room) {
        memmove(b->bytes, b->bytes + c->in_start, pending);
        c->in_start = 0;
        c->in_end = pending;
        if (pending < b->room) return true;
    }
    return move(r, c, take(r, c, larger(wanted, larger(first, pending + 1))));
}

enum receive_result receive_some(struct reactor *r, struct connection *c, size_t *bytes) {
    if (!make_room(r, c)) return RECEIVE_NO_ROOM;
    size_t pending = c->in_end - c->in_start;
    size_t room = c->in->room - c->in_end;
    size_t missing = receive_missing(c);
    if (pending == 0) room = smaller(room, larger(RECEIVE_BYTES, c->receive_budget));
    if (missing >= RECEIVE_EXACT_BYTES_MIN) room = smaller(room, missing);
    assert_slow(room > 0 && c->in_end + room <= c->in->room);
    ssize_t n;
    do n = c->transport.calls->recv(&c->transport, c->in->bytes + c->in_end, room);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        int error = n == 0 ? 0 : errno;
        c->readable = c->transport.left;
        if (c->transport.left && error == EAGAIN) connection_enlist(c, &r->ready);
        if (n == 0) return RECEIVE_ENDED;
        return error == EAGAIN ? RECEIVE_NOTHING : RECEIVE_FAILED;
    }
    /* A short read means that the socket is empty. After a hang-up, read once more to find the
     * end, because no further event follows. */
    assert_slow((size_t)n <= room);
    if ((size_t)n < room && !c->hung_up && !c->transport.left) c->readable = false;
    if (pending == 0) c->frame_ms = r->now_ms;
    c->in_end += (size_t)n;
    c->active_ms = r->now_ms;
    *bytes = (size_t)n;
    STAT_ADD(r, bytes_in, n);
    return RECEIVE_SOME;
}

static void mark(struct connection *c, int bytes) {
    if (bytes == c->mark_bytes) return;
    if (setsockopt(c->transport.fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0)
        c->mark_bytes = bytes;
}

void receive_mark(struct reactor *r, struct connection *c) {
    size_t wanted = receive_missing(c), inside = c->transport.inside;
    bool gathers = c->in != NULL && wanted >= RECEIVE_MARK_BYTES_MIN + inside &&
                   r->now_ms - c->frame_ms < RECEIVE_MARK_MS_MAX && !input_is_tight(&r->input);
    mark(c, gathers ? (int)smaller(wanted - inside, RECEIVE_MARK_BYTES_MAX) : 1);
}

bool receive_unmark(struct connection *c) {
    bool marked = c->mark_bytes > 1;
    mark(c, 1);
    return marked && c->mark_bytes == 1;
}

bool receive_wants_shrink(const struct connection *c) {
    return c->in != NULL && c->in->room > input_room_for(4 * (c->in_end - c->in_start));
}

void receive_trim(struct reactor *r, struct connection *c, bool shrink) {
    if (c->in == NULL) {
        if (r->over_limit_allowed == c) r->over_limit_allowed = NULL;
        return;
    }
    size_t pending = c->in_end - c->in_start;
    if (pending == 0) {
        release_buffer(r, c);
        return;
    }
    size_t keep =
        shrink ? 4 * pending : larger(4 * pending, larger(c->receive_budget, RECEIVE_BYTES));
    if (c->in->room <= input_room_for(keep)) return;
    /* If there is no smaller buffer, keep the large one: that only costs memory. */
    move(r, c, input_take(&r->input, larger(2 * pending, shrink ? 0 : RECEIVE_BYTES), false));
}
