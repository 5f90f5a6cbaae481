/* What the reactors want the control plane to see: requests, misses and closed connections, in one
 * queue with an eventfd. Written by reactors, read by one thread that sleeps on the eventfd. Its
 * length is bounded by the connections, each of which has at most one request here, and by the
 * replicas, each of which may join once until the metadata names it anew. */
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
    EVENT_CONNECTED = 6, /* of a listener that asks who it is, or with a certificate, whose name is
                            the data; answered by reactors_retry */
    EVENT_UNSAFE = 7, /* a connection ended for want of TLS, or of trust: why is the data */
    EVENT_VERIFY = 8,
    EVENT_MAY_JOIN = 9
};

struct event_address {
    uint8_t ip[16]; /* v4-mapped for IPv4 */
    uint16_t port;
};
struct event_missing { /* of a miss */
    uint32_t name_at;  /* in data */
    int32_t name_len;  /* -1: named by id */
    uint8_t id[16];
    int32_t partition; /* of an EVENT_VERIFY */
};
struct event_verify { /* behind the names, and before the transactional id */
    int64_t producer_id;
    int32_t id_len;
    int16_t epoch;
};
struct event_slow { /* of a slow request, in data, before the client id */
    int64_t total_ns, local_ns, remote_ns, send_ns;
    uint64_t request_bytes, response_bytes;
    uint32_t left_out; /* slow ones before it that were not reported */
};
struct event {
    struct event *next;
    uint64_t token, connection;
    int64_t began_ns; /* CLOCK_MONOTONIC: its last byte was here */
    uint32_t kind, principal;
    int32_t listener, correlation_id, client_id_len; /* -1: null */
    int16_t api_key, api_version;
    uint8_t right; /* EVENT_MISS: of enum grant_right */
    struct event_address local, peer;
    uint32_t missing_count; /* EVENT_UNSAFE: those before it that were not reported */
    size_t body_at, body_len;   /* in data */
    size_t data_len;
    _Alignas(8) uint8_t data[]; /* client id, then the body; or missing_count event_missing, then
                                   their names, and at body_at an event_verify; or client id;
                                   or a text of body_len bytes; or missing_count serve_join */
};

struct events;
struct events *events_new(void);
void events_free(struct events *e);
int events_fd(const struct events *e);
/* An event with room for data_len bytes of data; NULL when memory ran out. */
struct event *events_make(uint32_t kind, size_t data_len);
/* An event whose data is a text. */
struct event *events_text(uint32_t kind, const char *text);
/* Takes the event over. */
void events_post(struct events *e, struct event *event);
/* The oldest events, at most count_max, as a list; the caller frees each. Clears the eventfd unless
 * some are left. */
struct event *events_take(struct events *e, uint32_t count_max);
/* Requests and misses that wait to be taken. */
uint32_t events_waiting(struct events *e);
/* Bytes of the data of events that wait to be taken, of closed connections too. */
uint64_t events_waiting_bytes(struct events *e);

#endif
