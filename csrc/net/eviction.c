/* Frees receive buffers and descriptors for other connections when they run out. */
#include "format/assertion.h"
#include "net/reactor_internal.h"

/* Returns true if the connection holds a buffer for a frame without enough progress. */
static bool is_stalled(const struct reactor *r, const struct connection *c) REQUIRES(r->role) {
    if (c->in == NULL || c->in_end == c->in_start || c->first != NULL ||
        (c->waits & (WAIT_CONTROL | WAIT_MUTE)))
        return false;
    if (c == r->over_limit_allowed) {
        int64_t frame_ms = (int64_t)(c->frame_bytes / OVER_LIMIT_BYTES_PER_MS);
        return r->now_ms - r->over_limit_since_ms >= EVICT_MS + frame_ms;
    }
    if (c->list == &r->input_waiting)
        return c->waiting_ms != 0 && r->now_ms - c->waiting_ms >= WAIT_MS_MAX;
    int64_t late_ms = WAIT_MS_MAX + (int64_t)(c->in_end - c->in_start) / CROWDED_BYTES_PER_MS;
    return c->list == NULL && !c->readable &&
           (r->now_ms - c->active_ms >= EVICT_MS || r->now_ms - c->frame_ms >= late_ms);
}

/* Wakes stalled connections that may have received more than was read (SO_RCVLOWAT). Returns
 * false if there are none. */
static bool unmark_stalled(struct reactor *r) REQUIRES(r->role) {
    bool heard = false;
    for (uint32_t at = 0; at < slab_room(&r->connections); at++) {
        struct connection *c = slab_at(&r->connections, at);
        if (c != NULL && is_stalled(r, c) && receive_unmark(c)) heard = true;
    }
    return heard;
}

/* Closes connections that hold buffers for stalled frames, the slowest first, until memory is no
 * longer tight. */
static void evict_stalled(struct reactor *r) REQUIRES(r->role) {
    if (input_is_tight(&r->input) && unmark_stalled(r)) return; /* checked again after RELIEF_MS */
    for (int i = 0; i < EVICTIONS_MAX && input_is_tight(&r->input); i++) {
        struct connection *slowest = NULL;
        for (uint32_t at = 0; at < slab_room(&r->connections); at++) {
            struct connection *c = slab_at(&r->connections, at);
            if (c != NULL && is_stalled(r, c) &&
                (slowest == NULL || c->active_ms < slowest->active_ms))
                slowest = c;
        }
        if (slowest == NULL) return;
        STAT_ADD(r, frames_late, 1);
        connection_close(r, slowest);
    }
}

/* Returns the time since which the connection is idle; INT64_MAX if it must not be closed for
 * another one. */
static int64_t idle_since_ms(const struct reactor *r, const struct connection *c)
    REQUIRES(r->role) {
    if (c->principal != 0 || c->first != NULL || c->list != NULL || (c->waits & WAIT_CONTROL))
        return INT64_MAX;
    /* Only kept open until the end of its mute. */
    if (c->state == CONNECTION_REFUSED) return INT64_MIN;
    if (c->waits & WAIT_MUTE) return INT64_MAX;
    bool silent = c->receive_budget == 0;
    int64_t least_ms = silent ? CROWDED_SILENT_MS : CROWDED_IDLE_MS;
    if (r->now_ms - c->active_ms < least_ms) return INT64_MAX;
    return silent ? c->active_ms - INT32_MAX : c->active_ms;
}

bool eviction_close_idle(struct reactor *r) {
    struct connection *oldest = NULL;
    int64_t since_ms = INT64_MAX;
    /* Silent connections still below their limit must be closed before any other. */
    bool young = false;
    uint32_t room = slab_room(&r->connections);
    for (uint32_t i = 0; i < room && i < CROWDED_LOOKS_MAX; i++) {
        r->crowded_at = r->crowded_at + 1 < room ? r->crowded_at + 1 : 0;
        struct connection *c = slab_at(&r->connections, r->crowded_at);
        if (c == NULL) continue;
        int64_t idle_ms = idle_since_ms(r, c);
        bool muted = (c->waits & WAIT_MUTE) != 0;
        young = young || (c->receive_budget == 0 && idle_ms == INT64_MAX && !muted);
        if (idle_ms >= since_ms) continue;
        oldest = c;
        since_ms = idle_ms;
    }
    if (oldest == NULL || (young && oldest->receive_budget != 0)) return false;
    STAT_ADD(r, connections_evicted, 1);
    connection_close(r, oldest);
    return true;
}

/* Lets unread frames start, beyond the limit if necessary: they may be small. */
static void start_waiting_frames(struct reactor *r) REQUIRES(r->role) {
    r->reclaiming_input = true;
    struct connection *next;
    for (struct connection *c = r->input_waiting.first; c != NULL; c = next) {
        next = c->list_next;
        if (c->in == NULL) connection_enlist(c, &r->ready);
    }
    connection_run_list(r, &r->ready);
    r->reclaiming_input = false;
}

void eviction_relieve(struct reactor *r) {
    evict_stalled(r);
    start_waiting_frames(r);
    struct connection *next = NULL;
    for (struct connection *c = r->input_waiting.first; c != NULL; c = c->list_next)
        if (c->in != NULL &&
            (next == NULL || receive_missing(c) < receive_missing(next)))
            next = c;
    if (next != NULL && (r->over_limit_allowed == NULL ||
                         receive_missing(next) < receive_missing(r->over_limit_allowed))) {
        r->over_limit_allowed = next;
        r->over_limit_since_ms = r->now_ms;
        next->frame_ms = r->now_ms; /* the broker, not the client, caused the wait */
        connection_enlist(next, &r->ready);
    }
    if (r->input_waiting.first != NULL)
        timers_set(&r->timers, &r->relief, r->now_ms + RELIEF_MS);
}
