/* Unauthenticated connections: limits requests before authentication (KIP-43, KIP-152) and after
 * the session has expired (KIP-368).
 *
 * Only ApiVersions (once, plus once before with an unsupported version) and the two SASL
 * requests are allowed: Produce and Fetch cannot be reached, whatever the control plane does.
 * After a SaslHandshake of version 0, the client's frames are SASL tokens without a header until
 * it is authenticated. They are passed on as SaslAuthenticate of version GUARD_RAW_VERSION. */
#include "net/reactor_internal.h"

#include "format/assertion.h"

enum { VERSIONS_ASKED_MAX = 2 };

static bool ask(struct reactor *r, struct connection *c, const char *certificate)
    REQUIRES(r->role) {
    struct event *e = events_text(EVENT_CONNECTED, certificate);
    if (e == NULL) return false;
    assert(!c->asking && c->first == NULL);
    e->connection = reactor_name(r, &c->item);
    e->listener = c->listener;
    e->local = c->local;
    e->peer = c->peer;
    c->asking = true;
    events_post(r->all->events, e);
    return true;
}

bool guard_open(struct reactor *r, struct connection *c, unsigned flags) {
    c->guarded = (flags & LISTENER_GUARDED) != 0;
    c->asks = (flags & LISTENER_ASKS) != 0;
    c->controls = (flags & LISTENER_CONTROL) != 0;
    assert(c->principal == 0 && c->session_until_ms == 0 && !c->raw_tokens);
    return !c->asks || c->transport.handshaking || ask(r, c, "");
}

bool guard_shaken(struct reactor *r, struct connection *c, const char *certificate) {
    if (!c->asks && (c->guarded || certificate[0] == 0)) return true;
    return ask(r, c, certificate);
}

void guard_identify(struct reactor *r, struct connection *c, uint32_t principal,
                    int32_t session_ms) {
    c->principal = principal;
    if (session_ms != REACTOR_SAME_SESSION) {
        c->raw_tokens = false;
        c->guarded = session_ms > 0;
        c->session_until_ms = session_ms > 0 ? r->now_ms + session_ms : 0;
    }
    assert(!guard_is_stranger(c));
}

static bool is_admitted(const struct reactor *r, const struct connection *c, int16_t api_key)
    REQUIRES(r->role) {
    if (api_key == API_SASL_HANDSHAKE || api_key == API_SASL_AUTHENTICATE) return true;
    if (guard_is_stranger(c))
        return api_key == API_VERSIONS && c->versions_asked < VERSIONS_ASKED_MAX;
    return r->now_ms < c->session_until_ms;
}

bool guard_admits(struct reactor *r, struct connection *c, struct frames_header *h) {
    assert(c->guarded);
    if (!c->raw_tokens) return is_admitted(r, c, h->api_key);
    h->api_key = API_SASL_AUTHENTICATE;
    h->api_version = GUARD_RAW_VERSION;
    return true;
}

void guard_posted(const struct frames_rules *rules, struct connection *c, int16_t api_key,
                  int16_t api_version) {
    if (!guard_is_stranger(c)) return;
    if (api_key == API_SASL_HANDSHAKE && api_version == 0) c->raw_tokens = true;
    if (api_key != API_VERSIONS) return;
    bool served = api_version <= rules->apis[API_VERSIONS].max;
    c->versions_asked = served ? VERSIONS_ASKED_MAX : (uint8_t)(c->versions_asked + 1);
    assert(c->versions_asked <= VERSIONS_ASKED_MAX);
}
