/* The minimum work of a broker under TLS 1.3 with AES-128-GCM, as bare loops on OpenSSL: the
 * floor under the table of bench.vs, as floor.c is in plain text.
 *
 * usage: floor_tls recv|send UNIT_BYTES TOTAL_BYTES FILE CERTIFICATE [WRITE_BYTES]
 *
 * recv: SSL_read into a buffer of one unit, checksum it (CRC-32C), pwrite it to a growing file,
 * in pieces of WRITE_BYTES. send: SSL_write of units from a mapped file whose pages are in
 * memory, one small request before each. CERTIFICATE: a PEM file with a key and its certificate.
 *
 * The other end is a second process. Prints the loop's CPU seconds per 1e9 bytes as JSON,
 * without the handshake. */
#include <fcntl.h>
#include <openssl/ssl.h>
#include <sys/mman.h>

#include "pair.h"

enum { MAP_BYTES = 256 << 20 };
#define SUITE "TLS_AES_128_GCM_SHA256"

static SSL *begin(int stream, const char *certificate)
{
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_read_ahead(context, 1);
    if (SSL_CTX_set_ciphersuites(context, SUITE) != 1) {
        wire_die("no %s", SUITE);
    }
    if (certificate && (SSL_CTX_use_certificate_file(context, certificate, SSL_FILETYPE_PEM) != 1 ||
                        SSL_CTX_use_PrivateKey_file(context, certificate, SSL_FILETYPE_PEM) != 1)) {
        wire_die("%s: no certificate with a key", certificate);
    }
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, stream);
    if ((certificate ? SSL_accept(ssl) : SSL_connect(ssl)) != 1) {
        wire_die("no handshake");
    }
    return ssl;
}

static void put_all(SSL *ssl, const uint8_t *at, size_t length)
{
    size_t sent;
    for (; length; at += sent, length -= sent) {
        if (SSL_write_ex(ssl, at, length, &sent) != 1) {
            wire_die("SSL_write");
        }
    }
}

static void get_all(SSL *ssl, uint8_t *at, size_t length)
{
    size_t got;
    for (; length; at += got, length -= got) {
        if (SSL_read_ex(ssl, at, length, &got) != 1) {
            wire_die("SSL_read");
        }
    }
}

static uint8_t *room_for(size_t unit)
{
    uint8_t *room = calloc(1, unit);
    if (!room) {
        wire_die("no memory");
    }
    return room;
}

static void feed(int stream, size_t unit, int64_t total)
{
    SSL *ssl = begin(stream, NULL);
    uint8_t *frame = room_for(unit);
    for (int64_t sent = 0; sent < total; sent += (int64_t)unit) {
        put_all(ssl, frame, unit);
    }
    get_all(ssl, frame, 1); /* wait until the other end has received everything */
}

static void drain(int stream, size_t unit, int64_t total)
{
    SSL *ssl = begin(stream, NULL);
    uint8_t *frame = room_for(unit);
    for (int64_t got = 0; got < total; got += (int64_t)unit) {
        put_all(ssl, (const uint8_t *)"next", 4);
        get_all(ssl, frame, unit);
    }
}

static double take(int file, size_t unit, int64_t total, size_t piece, const char *certificate)
{
    pid_t child;
    uint8_t *frame = room_for(unit);
    SSL *ssl = begin(pair_open(feed, unit, total, &child), certificate);
    volatile uint32_t sum = 0;
    double before = pair_cpu_s();
    for (int64_t at = 0; at < total; at += (int64_t)unit) {
        get_all(ssl, frame, unit);
        sum ^= pair_keep(file, frame, unit, at, piece);
    }
    double took = pair_cpu_s() - before;
    put_all(ssl, (const uint8_t *)"!", 1);
    waitpid(child, NULL, 0);
    return took;
}

static double give(int file, size_t unit, int64_t total, const char *certificate)
{
    pid_t child;
    pair_fill(file, MAP_BYTES, 0);
    const uint8_t *map = mmap(NULL, MAP_BYTES, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED || unit > MAP_BYTES / 2) {
        wire_die("map: %s", strerror(errno));
    }
    SSL *ssl = begin(pair_open(drain, unit, total, &child), certificate);
    double before = pair_cpu_s();
    for (int64_t done = 0; done < total; done += (int64_t)unit) {
        uint8_t request[4];
        get_all(ssl, request, 4);
        put_all(ssl, map + done % (MAP_BYTES - (int64_t)unit), unit);
    }
    double took = pair_cpu_s() - before;
    waitpid(child, NULL, 0);
    return took;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        wire_die("usage: floor_tls recv|send UNIT_BYTES TOTAL_BYTES FILE CERTIFICATE "
                 "[WRITE_BYTES]");
    }
    signal(SIGPIPE, SIG_IGN);
    size_t unit = (size_t)atoll(argv[2]);
    int64_t total = atoll(argv[3]);
    int file = open(argv[4], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || unit < 1 || unit > 128u << 20) {
        wire_die("%s: %s", argv[4], strerror(errno));
    }
    size_t piece = argc > 6 ? (size_t)atoll(argv[6]) : 0;
    double took = strcmp(argv[1], "send") == 0
                      ? give(file, unit, total, argv[5])
                      : take(file, unit, total, piece ? piece : unit, argv[5]);
    close(file);
    unlink(argv[4]);
    printf("{\"unit_bytes\": %zu, \"cpu_s_per_gb\": %.4f}\n", unit, took / ((double)total / 1e9));
    return 0;
}
