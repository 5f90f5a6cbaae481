/* Connections of the load clients to a broker with TLS or SASL, configured by environment
 * variables: BENCH_TLS_CA (a PEM file with the trusted CA; enables TLS 1.3) and BENCH_LOGIN
 * (user:password, for SCRAM-SHA-256). Without either they are the same as from wire_connect.
 *
 * Owns: nothing; the callers own the connections.
 * Source: RFC 5802, RFC 7677 (SCRAM); KIP-152 (SaslAuthenticate). */
#ifndef BENCH_SECURE_H
#define BENCH_SECURE_H

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <signal.h>

#include "wire.h"

enum { SECURE_SASL_HANDSHAKE = 17, SECURE_SASL_AUTHENTICATE = 36, SECURE_TEXT_BYTES = 1024,
       SECURE_HASH_BYTES = 32, SECURE_NONCE_BYTES = 18 };

typedef struct {
    int fd;
    SSL *ssl; /* NULL: plain text */
} secure_stream;

/* The one context of the program. */
static inline SSL_CTX *secure_context(const char *trusted)
{
    static SSL_CTX *context;
    if (!context) {
        context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
        SSL_CTX_set_read_ahead(context, 1);
        if (SSL_CTX_load_verify_locations(context, trusted, NULL) != 1) {
            wire_die("%s: no certificate to trust", trusted);
        }
        signal(SIGPIPE, SIG_IGN);
    }
    return context;
}

static inline void secure_send_all(const secure_stream *to, const uint8_t *at, size_t length)
{
    size_t sent;
    if (!to->ssl) {
        wire_send_all(to->fd, at, length);
        return;
    }
    for (; length; at += sent, length -= sent) {
        if (SSL_write_ex(to->ssl, at, length, &sent) != 1) {
            wire_die("send: TLS failed");
        }
    }
}

static inline void secure_recv_all(const secure_stream *from, uint8_t *at, size_t length)
{
    size_t got;
    if (!from->ssl) {
        wire_recv_all(from->fd, at, length);
        return;
    }
    for (; length; at += got, length -= got) {
        if (SSL_read_ex(from->ssl, at, length, &got) != 1) {
            wire_die("recv: closed by the broker, or TLS failed");
        }
    }
}

/* Discards received bytes. */
static inline void secure_drain(const secure_stream *from)
{
    uint8_t waste[4096];
    size_t got;
    if (!from->ssl) {
        while (recv(from->fd, waste, sizeof waste, MSG_DONTWAIT) > 0) {
        }
        return;
    }
    while (SSL_has_pending(from->ssl) || recv(from->fd, waste, 1, MSG_PEEK | MSG_DONTWAIT) > 0) {
        if (SSL_read_ex(from->ssl, waste, sizeof waste, &got) != 1) {
            wire_die("recv: closed by the broker, or TLS failed");
        }
    }
}

/* ---- a login */

static inline void secure_hmac(const uint8_t *key, const char *text, uint8_t *out)
{
    unsigned length;
    HMAC(EVP_sha256(), key, SECURE_HASH_BYTES, (const uint8_t *)text, strlen(text), out, &length);
}

/* Computes the salted password and caches the last one, as a client that logs in often does. The
 * first call must not run concurrently with others. */
static inline const uint8_t *secure_salted(const char *password, const char *salt, int rounds)
{
    static char known[SECURE_TEXT_BYTES];
    static uint8_t salted[SECURE_HASH_BYTES];
    if (strcmp(known, salt)) {
        uint8_t raw[SECURE_TEXT_BYTES];
        int length = EVP_DecodeBlock(raw, (const uint8_t *)salt, (int)strlen(salt));
        for (const char *end = salt + strlen(salt); end > salt && end[-1] == '='; end--) {
            length--;
        }
        PKCS5_PBKDF2_HMAC(password, (int)strlen(password), raw, length, rounds, EVP_sha256(),
                          sizeof salted, salted);
        snprintf(known, sizeof known, "%s", salt);
    }
    return salted;
}

/* Builds the client's final message with its proof (RFC 5802, section 3). */
static inline void secure_proof(const char *first, const char *challenge, const char *password,
                                char *out)
{
    char nonce[256], salt[256], text[3 * SECURE_TEXT_BYTES];
    int rounds;
    if (sscanf(challenge, "r=%255[^,],s=%255[^,],i=%d", nonce, salt, &rounds) != 3) {
        wire_die("SCRAM: %s", challenge);
    }
    const uint8_t *salted = secure_salted(password, salt, rounds);
    uint8_t key[SECURE_HASH_BYTES], stored[SECURE_HASH_BYTES], sign[SECURE_HASH_BYTES];
    uint8_t proof[64];
    secure_hmac(salted, "Client Key", key);
    EVP_Digest(key, sizeof key, stored, NULL, EVP_sha256(), NULL);
    snprintf(text, sizeof text, "%s,%s,c=biws,r=%s", first, challenge, nonce);
    secure_hmac(stored, text, sign);
    for (int index = 0; index < SECURE_HASH_BYTES; index++) {
        key[index] ^= sign[index];
    }
    EVP_EncodeBlock(proof, key, sizeof key);
    snprintf(out, SECURE_TEXT_BYTES, "c=biws,r=%s,p=%s", nonce, (const char *)proof);
}

/* Sends `body` and reads the response after its correlation id; returns its length. */
static inline size_t secure_ask(const secure_stream *to, int api_key, int version,
                                const uint8_t *body, size_t length, uint8_t *answer)
{
    uint8_t frame[2 * SECURE_TEXT_BYTES], head[4];
    uint8_t *at = wire_header(frame, api_key, version, 1);
    memcpy(at, body, length);
    secure_send_all(to, frame, wire_finish(frame, at + length));
    secure_recv_all(to, head, 4);
    size_t got = (size_t)wire_get32(head);
    if (got < 6 || got > SECURE_TEXT_BYTES) {
        wire_die("an answer of %zu bytes to a login", got);
    }
    secure_recv_all(to, answer, got);
    memmove(answer, answer + 4, got - 4);
    if (wire_get16(answer)) {
        wire_die("login refused with error %d", wire_get16(answer));
    }
    return got - 4;
}

/* Sends one message of the client; stores the broker's in `reply`, terminated by 0. */
static inline void secure_say(const secure_stream *to, const char *text, char *reply)
{
    uint8_t body[SECURE_TEXT_BYTES + 4], answer[SECURE_TEXT_BYTES];
    size_t length = strlen(text);
    memcpy(wire_put32(body, (int64_t)length), text, length);
    secure_ask(to, SECURE_SASL_AUTHENTICATE, 0, body, length + 4, answer);
    int why = wire_get16(answer + 2);
    const uint8_t *at = answer + 4 + (why > 0 ? why : 0);
    memcpy(reply, at + 4, (size_t)wire_get32(at));
    reply[wire_get32(at)] = 0;
}

static inline void secure_login(const secure_stream *to, const char *login)
{
    char user[128], first[256], text[SECURE_TEXT_BYTES], reply[SECURE_TEXT_BYTES];
    uint8_t body[64], answer[SECURE_TEXT_BYTES], noise[SECURE_NONCE_BYTES], nonce[64];
    const char *password = strchr(login, ':');
    if (!password || password - login >= (long)sizeof user) {
        wire_die("BENCH_LOGIN is not user:password");
    }
    snprintf(user, sizeof user, "%.*s", (int)(password - login), login);
    size_t length = (size_t)(wire_put_text(body, "SCRAM-SHA-256") - body);
    secure_ask(to, SECURE_SASL_HANDSHAKE, 1, body, length, answer);
    RAND_bytes(noise, sizeof noise);
    EVP_EncodeBlock(nonce, noise, sizeof noise);
    snprintf(first, sizeof first, "n=%s,r=%s", user, (const char *)nonce);
    snprintf(text, sizeof text, "n,,%s", first);
    secure_say(to, text, reply);
    secure_proof(first, reply, password + 1, text);
    secure_say(to, text, reply);
    if (strncmp(reply, "v=", 2)) {
        wire_die("SCRAM: %s", reply);
    }
}

/* Returns a connection that is ready for requests. */
static inline secure_stream secure_connect(int port)
{
    const char *trusted = getenv("BENCH_TLS_CA"), *login = getenv("BENCH_LOGIN");
    secure_stream made = {.fd = wire_connect(port)};
    if (trusted) {
        made.ssl = SSL_new(secure_context(trusted));
        SSL_set_fd(made.ssl, made.fd);
        if (SSL_connect(made.ssl) != 1) {
            wire_die("no TLS handshake with port %d", port);
        }
    }
    if (login) {
        secure_login(&made, login);
    }
    return made;
}

/* The same for programs that read and write the socket themselves. */
static inline int secure_connect_plain(int port)
{
    secure_stream made = secure_connect(port);
    if (made.ssl) {
        wire_die("this load has no TLS");
    }
    return made.fd;
}

static inline void secure_close(secure_stream *stream)
{
    SSL_free(stream->ssl);
    close(stream->fd);
}

#endif
