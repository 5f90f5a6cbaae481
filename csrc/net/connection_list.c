/* The lists in which connections wait for their turn, and the time for which one is muted. */
#include "format/assertion.h"
#include "net/reactor_internal.h"

void connection_delist(struct connection *c) {
    struct connection_list *list = c->list;
    if (list == NULL) return;
    *(c->list_prev == NULL ? &list->first : &c->list_prev->list_next) = c->list_next;
    *(c->list_next == NULL ? &list->last : &c->list_next->list_prev) = c->list_prev;
    c->list = NULL;
    c->list_next = c->list_prev = NULL;
}

void connection_enlist(struct connection *c, struct connection_list *list) {
    if (c->list == list) return;
    connection_delist(c);
    assert_slow((list->first == NULL) == (list->last == NULL));
    c->list = list;
    c->list_prev = list->last;
    *(list->last == NULL ? &list->first : &list->last->list_next) = c;
    list->last = c;
}

void connection_mute(struct reactor *r, struct connection *c, int32_t throttle_ms) {
    assert(throttle_ms > 0);
    int64_t until_ms = r->now_ms + throttle_ms;
    if (!(c->waits & WAIT_MUTE) || c->muted_until_ms < until_ms) c->muted_until_ms = until_ms;
    c->waits |= WAIT_MUTE;
    if (r->over_limit_allowed == c)
        r->over_limit_allowed = NULL; /* otherwise it would block the others */
    STAT_ADD(r, requests_throttled, 1);
    if (c->quota != NULL) quota_client_note(c->quota, throttle_ms, r->now_ms);
}
