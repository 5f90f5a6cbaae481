/* Measures request times for the reactor's metrics, and reports slow requests.
 *
 * A request answered immediately needs three clock readings: its last byte, its response, and
 * the response's last byte sent. For pipelined requests, the first reading is the second one of
 * the request before. Responses sent together share the third. */
#include "net/reactor_internal.h"

#include <string.h>

#include "format/assertion.h"

static void post_slow(struct reactor *r, const struct connection *c, const struct slot *s,
                      int64_t now_ns, uint64_t response_bytes) REQUIRES(r->role) {
    STAT_ADD(r, requests_slow, 1);
    struct event *e = NULL;
    if (r->slow_posted < SLOW_PER_TICK_MAX)
        e = events_make(EVENT_SLOW, sizeof(struct event_slow) + c->client_id_len);
    if (e == NULL) {
        r->slow_left_out++;
        return;
    }
    r->slow_posted++;
    e->connection = reactor_name(r, &c->item);
    e->correlation_id = s->r.correlation_id;
    e->api_key = s->r.api_key;
    e->api_version = s->r.api_version;
    e->principal = s->r.principal;
    e->local = c->local;
    e->peer = c->peer;
    e->client_id_len = c->client_id_len;
    e->began_ns = s->began_ns;
    *(struct event_slow *)(void *)e->data = (struct event_slow){
        .total_ns = now_ns - s->began_ns,
        .local_ns = s->local_ns,
        .remote_ns = s->remote_ns,
        .send_ns = now_ns - s->mark_ns,
        .request_bytes = s->request_bytes,
        .response_bytes = response_bytes,
        .left_out = r->slow_left_out,
    };
    memcpy(e->data + sizeof(struct event_slow), c->client_id, c->client_id_len);
    r->slow_left_out = 0;
    events_post(r->all->events, e);
}

void timing_end(struct reactor *r, struct connection *c, struct slot *s, int64_t now_ns) {
    int16_t api_key = s->r.api_key;
    assert_slow(api_key >= 0 && api_key < FRAMES_API_KEYS_MAX); /* checked by frames_header */
    struct meter_api *api = &r->meters[api_key];
    int64_t total_ns = now_ns - s->began_ns;
    uint64_t response_bytes = s->r.reply.len + s->r.reply.file_bytes;
    meter_note(api, METER_REQUEST_BYTES, s->request_bytes);
    meter_note(api, METER_RESPONSE_BYTES, (int64_t)response_bytes);
    meter_note(api, METER_TOTAL, total_ns);
    meter_note(api, METER_SEND, now_ns - s->mark_ns);
    if (s->local) {
        meter_note(api, METER_LOCAL, s->local_ns);
        if (s->remote_ns > 0) meter_note(api, METER_REMOTE, s->remote_ns);
    }
    bool slow = total_ns - s->asked_ns > atomic_load_explicit(&r->all->slow_ns,
                                                              memory_order_relaxed);
    if (slow && api_key != API_JOIN_GROUP && api_key != API_SYNC_GROUP)
        post_slow(r, c, s, now_ns, response_bytes);
}
