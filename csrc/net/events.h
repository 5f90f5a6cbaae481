/* Events from the reactors to the control plane: requests, misses, closed connections and
 * others, in one queue with an eventfd. Reactors write it; one thread that sleeps on the eventfd
 * reads it. Its length is bounded: each connection has at most one request in it, and each
 * replica may join the ISR once until the metadata names it again. */
#ifndef PYLOG_EVENTS_H
#define PYLOG_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum event_kind {
    EVENT_REQUEST = 1,
    EVENT_MISS = 2,
    EVENT_CLOSED = 3,
    EVENT_QUOTA = 4,
    EVENT_SLOW = 5,
    EVENT_CONNECTED = 6, /* from a listener with LISTENER_NEEDS_APPROVAL, or with a client
                            certificate, whose name is the data; call reactors_retry afterwards */
    EVENT_UNSAFE = 7,    /* a connection failed because of TLS or trust: data is the reason */
    EVENT_VERIFY = 8,
    EVENT_ISR_CANDIDATE = 9
};

struct event_address {
    uint8_t ip[16]; /* IPv4 addresses are IPv4-mapped */
    uint16_t port;
};
struct event_missing { /* entry of a miss */
    uint32_t name_at;  /* offset in data */
    int32_t name_len;  /* -1: identified by topic id */
    uint8_t id[16];
    int32_t partition; /* for EVENT_VERIFY */
};
struct event_verify { /* after the names, before the transactional id */
    int64_t producer_id;
    int32_t id_len;
    int16_t epoch;
};
struct event_slow { /* for EVENT_SLOW: in data, before the client id */
    int64_t total_ns, local_ns, remote_ns, send_ns;
    uint64_t request_bytes, response_bytes;
    uint32_t left_out; /* slow requests since the last event that were not reported */
};
struct event {
    struct event *next;
    uint64_t token, connection;
    int64_t began_ns; /* CLOCK_MONOTONIC: arrival of its last byte */
    uint32_t kind, principal;
    int32_t listener, correlation_id, client_id_len; /* -1: null */
    int16_t api_key, api_version;
    uint8_t right; /* EVENT_MISS: enum grant_right */
    struct event_address local, peer;
    uint32_t missing_count; /* EVENT_UNSAFE: number of unreported failures before it */
    size_t body_at, body_len;   /* offset in data */
    size_t data_len;
    _Alignas(8) uint8_t data[]; /* one of: client id, then body; missing_count event_missing, their
                                   names and, at body_at, an event_verify; client id; a text of
                                   body_len bytes; missing_count isr_candidate */
};

struct events;
struct events *events_new(void);
void events_free(struct events *e);
int events_fd(const struct events *e);
/* Allocates an event with data_len bytes of data. Returns NULL if out of memory. */
struct event *events_make(uint32_t kind, size_t data_len);
/* Allocates an event with a text as data. Returns NULL if out of memory. */
struct event *events_text(uint32_t kind, const char *text);
/* Takes ownership of the event. */
void events_post(struct events *e, struct event *event);
/* Returns a list of the oldest events, at most count_max. The caller frees each, and calls
 * events_drop for its data_len. Clears the eventfd if none are left. */
struct event *events_take(struct events *e, uint32_t count_max);
/* Returns the number of queued events. */
uint32_t events_waiting(struct events *e);
/* Ends the count of a taken event's data bytes, once no copy of them is in memory. */
void events_drop(struct events *e, size_t bytes);
/* Returns the data bytes of all queued and taken events, including those of closed connections,
 * until events_drop. */
uint64_t events_held_bytes(struct events *e);

#endif
