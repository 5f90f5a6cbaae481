/* The part of Kafka's protocol that the load clients need: Produce v8, Fetch, batches.
 *
 * Owns: nothing; the callers own buffers and sockets.
 * Invariants: integers on the wire are big-endian; a failed call ends the program with one line
 *   on stderr, because a load that lost a request measures nothing.
 * Source: the protocol guide of Apache Kafka; KIP-98 for the batch header. */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <nmmintrin.h>

enum { WIRE_PRODUCE = 0, WIRE_FETCH = 1, WIRE_BATCH_HEADER_BYTES = 61 };

static inline void wire_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static inline int64_t wire_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns CPU seconds of the process BROKER_PID, 0 if it is not set. Clients use it to exclude
 * the cost of connecting. */
static inline double wire_broker_cpu_s(void)
{
    const char *pid = getenv("BROKER_PID");
    struct timespec used;
    if (!pid || clock_gettime((clockid_t)((~(unsigned)atoi(pid) << 3) | 2), &used)) {
        return 0;
    }
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

static inline uint8_t *wire_put16(uint8_t *at, int value)
{
    at[0] = (uint8_t)((unsigned)value >> 8);
    at[1] = (uint8_t)value;
    return at + 2;
}

static inline uint8_t *wire_put32(uint8_t *at, int64_t value)
{
    uint32_t swapped = __builtin_bswap32((uint32_t)value);
    memcpy(at, &swapped, 4);
    return at + 4;
}

static inline uint8_t *wire_put64(uint8_t *at, int64_t value)
{
    uint64_t swapped = __builtin_bswap64((uint64_t)value);
    memcpy(at, &swapped, 8);
    return at + 8;
}

static inline uint8_t *wire_put_text(uint8_t *at, const char *text)
{
    size_t length = strlen(text);
    at = wire_put16(at, (int)length);
    memcpy(at, text, length);
    return at + length;
}

static inline int wire_get16(const uint8_t *at)
{
    return (int16_t)((at[0] << 8) | at[1]);
}

static inline int32_t wire_get32(const uint8_t *at)
{
    uint32_t raw;
    memcpy(&raw, at, 4);
    return (int32_t)__builtin_bswap32(raw);
}

static inline int64_t wire_get64(const uint8_t *at)
{
    uint64_t raw;
    memcpy(&raw, at, 8);
    return (int64_t)__builtin_bswap64(raw);
}

static inline uint32_t wire_crc32c(const uint8_t *at, size_t length)
{
    uint64_t crc = 0xffffffffu;
    for (; length >= 8; at += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; length; at++, length--) {
        crc = _mm_crc32_u8((uint32_t)crc, *at);
    }
    return ~(uint32_t)crc;
}

static inline int wire_connect(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int stream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (stream < 0 || connect(stream, (struct sockaddr *)&address, sizeof address)) {
        wire_die("connect to port %d: %s", port, strerror(errno));
    }
    int one = 1;
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return stream;
}

static inline void wire_send_all(int stream, const uint8_t *at, size_t length)
{
    while (length) {
        ssize_t sent = send(stream, at, length, MSG_NOSIGNAL);
        if (sent <= 0) {
            wire_die("send: %s", strerror(errno));
        }
        at += sent;
        length -= (size_t)sent;
    }
}

static inline void wire_recv_all(int stream, uint8_t *at, size_t length)
{
    while (length) {
        ssize_t got = recv(stream, at, length, MSG_WAITALL);
        if (got <= 0) {
            wire_die("recv: %s", got ? strerror(errno) : "closed by the broker");
        }
        at += got;
        length -= (size_t)got;
    }
}

/* Zigzag varint, as record fields are written. */
static inline uint8_t *wire_put_varint(uint8_t *at, int64_t value)
{
    uint64_t rest = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    for (; rest >= 0x80; rest >>= 7) {
        *at++ = (uint8_t)(rest | 0x80);
    }
    *at++ = (uint8_t)rest;
    return at;
}

/* Computes the checksum of the batch of `length` bytes at `batch` after its bytes were changed. */
static inline void wire_batch_seal(uint8_t *batch, size_t length)
{
    wire_put32(batch + 17, wire_crc32c(batch + 21, length - 21));
}

/* Writes a batch of `count` keyless records with `size` value bytes each; returns its length.
 * *value is set to the first value's bytes, which a caller may change before wire_batch_seal. */
static inline size_t wire_batch(uint8_t *batch, int count, int size, uint8_t **value)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t now_ms = (int64_t)wall.tv_sec * 1000 + wall.tv_nsec / 1000000;
    uint8_t *at = batch + WIRE_BATCH_HEADER_BYTES;
    uint8_t scratch[16];
    uint64_t noise = 88172645463325252u;
    for (int index = 0; index < count; index++) {
        uint8_t *head = scratch;
        head = wire_put_varint(head, index);
        uint8_t *value_size = scratch + 8;
        size_t value_size_bytes = (size_t)(wire_put_varint(value_size, size) - value_size);
        size_t index_bytes = (size_t)(head - scratch);
        int64_t body = (int64_t)(2 + index_bytes + 1 + value_size_bytes) + size + 1;
        at = wire_put_varint(at, body);
        *at++ = 0; /* attributes */
        *at++ = 0; /* timestamp delta */
        memcpy(at, scratch, index_bytes);
        at += index_bytes;
        *at++ = 1; /* key: null */
        memcpy(at, value_size, value_size_bytes);
        at += value_size_bytes;
        if (index == 0 && value) {
            *value = at;
        }
        for (int byte = 0; byte < size; byte++) {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            *at++ = (uint8_t)('A' + noise % 26);
        }
        *at++ = 0; /* headers */
    }
    size_t length = (size_t)(at - batch);
    wire_put64(batch, 0);
    wire_put32(batch + 8, (int64_t)length - 12);
    wire_put32(batch + 12, -1);
    batch[16] = 2;
    wire_put16(batch + 21, 0);
    wire_put32(batch + 23, count - 1);
    wire_put64(batch + 27, now_ms);
    wire_put64(batch + 35, now_ms);
    wire_put64(batch + 43, -1);
    wire_put16(batch + 51, -1);
    wire_put32(batch + 53, -1);
    wire_put32(batch + 57, count);
    wire_batch_seal(batch, length);
    return length;
}

static inline uint8_t *wire_header(uint8_t *at, int api_key, int version, int32_t correlation)
{
    at = wire_put32(at, 0); /* frame size, set by wire_finish */
    at = wire_put16(at, api_key);
    at = wire_put16(at, version);
    at = wire_put32(at, correlation);
    return wire_put_text(at, "bench");
}

static inline size_t wire_finish(uint8_t *frame, const uint8_t *end)
{
    size_t length = (size_t)(end - frame);
    wire_put32(frame, (int64_t)length - 4);
    return length;
}

/* Writes a Produce v8 frame up to the batch; the caller writes the batch at the returned
 * address. */
static inline uint8_t *wire_produce(uint8_t *frame, int acks, const char *topic, int partition,
                                    size_t batch_length, uint8_t **partition_at)
{
    uint8_t *at = wire_header(frame, WIRE_PRODUCE, 8, 0);
    at = wire_put16(at, -1); /* transactional id: null */
    at = wire_put16(at, acks);
    at = wire_put32(at, 30000);
    at = wire_put32(at, 1);
    at = wire_put_text(at, topic);
    at = wire_put32(at, 1);
    if (partition_at) {
        *partition_at = at;
    }
    at = wire_put32(at, partition);
    return wire_put32(at, (int64_t)batch_length);
}

/* The error code of a Produce v8 response body that holds one topic and one partition. */
static inline int wire_produce_error(const uint8_t *body)
{
    int name_length = wire_get16(body + 8);
    return wire_get16(body + 8 + 2 + name_length + 4 + 4);
}

/* Sorted percentiles as JSON members, in microseconds. */
static inline int wire_by_size(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left;
    int64_t b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static inline void wire_print_percentiles(int64_t *samples_ns, size_t count)
{
    if (!count) {
        printf("\"samples\": 0");
        return;
    }
    qsort(samples_ns, count, sizeof *samples_ns, wire_by_size);
    const double ranks[] = {0.5, 0.95, 0.99, 0.999};
    const char *const names[] = {"p50_us", "p95_us", "p99_us", "p999_us"};
    for (int rank = 0; rank < 4; rank++) {
        size_t index = (size_t)(ranks[rank] * (double)(count - 1));
        printf("\"%s\": %.1f, ", names[rank], (double)samples_ns[index] / 1000);
    }
    printf("\"max_us\": %.1f, \"samples\": %zu", (double)samples_ns[count - 1] / 1000, count);
}

#endif
