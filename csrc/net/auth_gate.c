/* Unauthenticated connections: limits requests before authentication (KIP-43, KIP-152) and after
 * the session has expired (KIP-368).
 *
 * Only ApiVersions (once, plus once before with an unsupported version) and the two SASL
 * requests are allowed: Produce and Fetch cannot be reached, whatever the control plane does.
 * After a SaslHandshake of version 0, the client's frames are SASL tokens without a header until
 * it is authenticated. They are passed on as SaslAuthenticate of version GUARD_RAW_VERSION. */
#include "net/reactor_internal.h"

#include "format/assertion.h"

enum { API_VERSIONS_MAX_BEFORE_AUTH = 2 };

static bool ask(struct reactor *r, struct connection *c, const char *certificate)
    REQUIRES(r->role) {
    struct event *e = events_text(EVENT_CONNECTED, certificate);
    if (e == NULL) return false;
    assert(!(c->waits & WAIT_CONTROL) && c->first == NULL);
    e->connection = reactor_name(r, &c->item);
    e->listener = c->listener;
    e->local = c->local;
    e->peer = c->peer;
    c->waits |= WAIT_CONTROL;
    events_post(r->all->events, e);
    return true;
}

bool auth_gate_open(struct reactor *r, struct connection *c, unsigned flags) {
    c->needs_auth = (flags & LISTENER_NEEDS_AUTH) != 0;
    c->needs_approval = (flags & LISTENER_NEEDS_APPROVAL) != 0;
    c->controls = (flags & LISTENER_CONTROL) != 0;
    assert(c->principal == 0 && c->session_until_ms == 0 && !c->raw_tokens);
    return !c->needs_approval || c->transport.handshaking || ask(r, c, "");
}

bool auth_gate_after_handshake(struct reactor *r, struct connection *c, const char *certificate) {
    if (!c->needs_approval && (c->needs_auth || certificate[0] == 0)) return true;
    return ask(r, c, certificate);
}

void auth_gate_identify(struct reactor *r, struct connection *c, uint32_t principal,
                        int32_t session_ms) {
    c->principal = principal;
    if (session_ms != REACTOR_SAME_SESSION) {
        c->raw_tokens = false;
        c->needs_auth = session_ms > 0;
        c->session_until_ms = session_ms > 0 ? r->now_ms + session_ms : 0;
    }
    assert(!connection_is_unauthenticated(c));
}

static bool is_admitted(const struct reactor *r, const struct connection *c, int16_t api_key)
    REQUIRES(r->role) {
    if (api_key == API_SASL_HANDSHAKE || api_key == API_SASL_AUTHENTICATE) return true;
    if (connection_is_unauthenticated(c))
        return api_key == API_VERSIONS && c->api_versions_count < API_VERSIONS_MAX_BEFORE_AUTH;
    return r->now_ms < c->session_until_ms;
}

bool auth_gate_admits(struct reactor *r, struct connection *c, struct frames_header *h) {
    assert(c->needs_auth);
    if (!c->raw_tokens) return is_admitted(r, c, h->api_key);
    h->api_key = API_SASL_AUTHENTICATE;
    h->api_version = GUARD_RAW_VERSION;
    return true;
}

void auth_gate_request_posted(const struct frames_rules *rules, struct connection *c,
                              int16_t api_key, int16_t api_version) {
    if (!connection_is_unauthenticated(c)) return;
    if (api_key == API_SASL_HANDSHAKE && api_version == 0) c->raw_tokens = true;
    if (api_key != API_VERSIONS) return;
    bool served = api_version <= rules->apis[API_VERSIONS].max;
    c->api_versions_count =
        served ? API_VERSIONS_MAX_BEFORE_AUTH : (uint8_t)(c->api_versions_count + 1);
    assert(c->api_versions_count <= API_VERSIONS_MAX_BEFORE_AUTH);
}
