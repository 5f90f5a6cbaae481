/* The transport handshake before a connection's first request.
 *
 * A step may take a millisecond of CPU time. Each round therefore has a time limit for
 * handshakes. The rest wait for the next round, after other connections have run. */
#include "format/assertion.h"
#include "net/reactor_internal.h"

void handshake_report(struct reactor *r, const struct connection *c, const char *why) {
    struct event *e = NULL;
    if (r->unsafe_posted < UNSAFE_PER_TICK_MAX) e = events_text(EVENT_UNSAFE, why);
    if (e == NULL) {
        r->unsafe_left_out++;
        return;
    }
    r->unsafe_posted++;
    e->connection = reactor_name(r, &c->item);
    e->listener = c->listener;
    e->local = c->local;
    e->peer = c->peer;
    e->missing_count = r->unsafe_left_out;
    r->unsafe_left_out = 0;
    events_post(r->all->events, e);
}

static void count_failure(struct reactor *r, struct connection *c, const char *why)
    REQUIRES(r->role) {
    STAT_ADD(r, handshakes_failed, 1);
    if (why[0] != 0) handshake_report(r, c, why);
}

enum handshake_result handshake_run(struct reactor *r, struct connection *c) {
    assert(c->transport.handshaking && c->first == NULL && c->in == NULL);
    if (c->state >= CONNECTION_CLOSING || r->draining) return HANDSHAKE_FAILED;
    if (r->handshakes_ns >= HANDSHAKE_TURN_NS) {
        connection_enlist(c, &r->ready);
        return HANDSHAKE_WAITS;
    }
    struct transport_report report;
    int64_t began_ns = reactors_now_ns();
    enum transport_shake shake = c->transport.calls->handshake(&c->transport, &report);
    r->handshakes_ns += reactors_now_ns() - began_ns;
    if (shake == TRANSPORT_WAITS) return HANDSHAKE_WAITS;
    if (shake == TRANSPORT_FAILED) {
        count_failure(r, c, report.text);
        return HANDSHAKE_FAILED;
    }
    assert(!c->transport.handshaking);
    STAT_ADD(r, handshakes, 1);
    if (report.resumed) STAT_ADD(r, handshakes_resumed, 1);
    c->active_ms = c->frame_ms = r->now_ms;
    c->readable = true; /* bytes after the handshake cause no further event */
    if (!auth_gate_after_handshake(r, c, report.text)) connection_set_closing(c);
    return HANDSHAKE_DONE;
}

void handshake_expire(struct reactor *r, struct connection *c) {
    count_failure(r, c, "the handshake took too long");
}
