/* OpenSSL contexts from PEM texts: parsed, checked against each other, and never changed
 * afterwards. */
#include "transport/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"
#include "os/lock.h"

enum {
    CERTIFICATES_BYTES_MAX = 64 << 10, /* for a client's chain */
    CIPHERS_BYTES_MAX = 4096,
    SESSION_S = 7200 /* lifetime of a session ticket, in s */
};
/* TLS 1.3 suites, the cheapest first. A client that prefers ChaCha20 gets it. */
#define SUITES "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"

struct tls {
    SSL_CTX *context;
    BIO_METHOD *socket;
    atomic_uint references;
};

struct tls_server {
    struct transport_maker maker; /* first member: pointers to both convert */
    atomic_uint references;
    struct lock lock;
    struct tls *newest GUARDED_BY(lock);
};

const char *tls_library(void) { return OpenSSL_version(OPENSSL_VERSION); }

/* ---- error reasons */

/* Writes the message and OpenSSL's reason to `why`. Returns false. */
static bool refuse(char *why, const char *what) {
    unsigned long error = ERR_peek_last_error();
    const char *reason = error == 0 ? NULL : ERR_reason_error_string(error);
    snprintf(why, TLS_WHY_BYTES, reason == NULL ? "%s" : "%s: %s", what, reason);
    ERR_clear_error();
    return false;
}

/* Returns true at the end of a PEM text, which OpenSSL reports as an error. */
static bool is_end(void) {
    unsigned long error = ERR_peek_last_error();
    bool end = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
    if (end) ERR_clear_error();
    return end;
}

/* ---- certificates and keys */

/* Passes the key's password; OpenSSL's default callback would prompt on the terminal. */
static int give_password(char *to, int room, int writing, void *password) {
    (void)writing;
    size_t bytes = password == NULL ? 0 : strlen(password);
    if (bytes == 0 || bytes > (size_t)room) return -1;
    memcpy(to, password, bytes);
    return (int)bytes;
}

/* Calls `take` with each certificate of a text and transfers its ownership. Returns false if
 * `take` fails or the text is invalid. *count: number of certificates. */
static bool each_certificate(const char *pem, bool (*take)(SSL_CTX *, X509 *, int), SSL_CTX *to,
                             int *count) {
    BIO *text = BIO_new_mem_buf(pem, -1);
    bool good = text != NULL;
    *count = 0;
    while (good) {
        X509 *certificate = PEM_read_bio_X509(text, NULL, give_password, NULL);
        if (certificate == NULL) {
            good = is_end();
            break;
        }
        good = take(to, certificate, *count);
        ++*count;
    }
    BIO_free(text);
    return good;
}

static bool take_own(SSL_CTX *to, X509 *certificate, int index) {
    if (index != 0) {
        if (SSL_CTX_add0_chain_cert(to, certificate) == 1) return true;
        X509_free(certificate);
        return false;
    }
    bool good = SSL_CTX_use_certificate(to, certificate) == 1;
    X509_free(certificate);
    return good;
}

static bool take_trusted(SSL_CTX *to, X509 *certificate, int index) {
    (void)index;
    bool good = X509_STORE_add_cert(SSL_CTX_get_cert_store(to), certificate) == 1 &&
                SSL_CTX_add_client_CA(to, certificate) == 1;
    X509_free(certificate);
    return good;
}

static bool use_key(SSL_CTX *to, const struct tls_settings *settings, char *why) {
    void *password = (void *)(uintptr_t)settings->key_password;
    BIO *text = BIO_new_mem_buf(settings->key, -1);
    EVP_PKEY *key =
        text == NULL ? NULL : PEM_read_bio_PrivateKey(text, NULL, give_password, password);
    BIO_free(text);
    if (key == NULL) {
        const char *hint = settings->key_password == NULL
                               ? "the private key cannot be read, or needs a password"
                               : "the private key cannot be read, or its password is wrong";
        return refuse(why, hint);
    }
    bool good = SSL_CTX_use_PrivateKey(to, key) == 1;
    EVP_PKEY_free(key);
    return good || refuse(why, "the private key does not belong to the certificate");
}

static bool use_own(SSL_CTX *to, const struct tls_settings *settings, char *why) {
    if (settings->connects && settings->chain == NULL && settings->key == NULL) return true;
    if (settings->chain == NULL || settings->key == NULL)
        return refuse(why, "there is no certificate that matches the private key");
    int count;
    if (!each_certificate(settings->chain, take_own, to, &count))
        return refuse(why, "the certificate chain cannot be used");
    if (count == 0) return refuse(why, "there is no certificate in the chain");
    if (!use_key(to, settings, why)) return false;
    return SSL_CTX_check_private_key(to) == 1 ||
           refuse(why, "the private key does not belong to the certificate");
}

static bool use_revoked(SSL_CTX *to, const char *pem, char *why) {
    X509_STORE *store = SSL_CTX_get_cert_store(to);
    BIO *text = BIO_new_mem_buf(pem, -1);
    bool good = text != NULL;
    int count = 0;
    while (good) {
        X509_CRL *list = PEM_read_bio_X509_CRL(text, NULL, give_password, NULL);
        if (list == NULL) {
            good = is_end();
            break;
        }
        good = X509_STORE_add_crl(store, list) == 1;
        X509_CRL_free(list);
        count++;
    }
    BIO_free(text);
    if (!good) return refuse(why, "the certificate revocation list cannot be read");
    if (count == 0) return refuse(why, "the file has no certificate revocation list");
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
    return true;
}

static bool use_trust(SSL_CTX *to, const struct tls_settings *settings, char *why) {
    int count = 0;
    bool required = settings->connects || settings->client_auth == TLS_CLIENT_REQUIRED;
    if (!required && settings->client_auth == TLS_CLIENT_NONE) return true;
    if (settings->trusted != NULL &&
        !each_certificate(settings->trusted, take_trusted, to, &count))
        return refuse(why, "the trusted certificates cannot be used");
    if (settings->trusted == NULL && settings->connects)
        count = SSL_CTX_set_default_verify_paths(to);
    if (count == 0) return refuse(why, "the trust store has no certificates");
    /* As in Java, any trusted certificate ends a chain. */
    X509_STORE_set_flags(SSL_CTX_get_cert_store(to), X509_V_FLAG_PARTIAL_CHAIN);
    if (settings->revoked != NULL && !use_revoked(to, settings->revoked, why)) return false;
    SSL_CTX_set_verify(to, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                       transport_tls_verified);
    return true;
}

/* ---- ciphers */

/* Returns the cipher with this OpenSSL or IANA name. */
static const SSL_CIPHER *find_cipher(const STACK_OF(SSL_CIPHER) *known, const char *name,
                                     size_t len) {
    for (int i = 0; i < sk_SSL_CIPHER_num(known); i++) {
        const SSL_CIPHER *cipher = sk_SSL_CIPHER_value(known, i);
        const char *names[] = {SSL_CIPHER_get_name(cipher), SSL_CIPHER_standard_name(cipher)};
        for (int k = 0; k < 2; k++)
            if (names[k] != NULL && strlen(names[k]) == len && memcmp(names[k], name, len) == 0)
                return cipher;
    }
    return NULL;
}

struct cipher_lists {
    char suites[CIPHERS_BYTES_MAX], others[CIPHERS_BYTES_MAX]; /* TLS 1.3; earlier versions */
};

static bool add_name(char *list, const char *name) {
    size_t used = strlen(list), bytes = strlen(name);
    if (used + bytes + 2 > CIPHERS_BYTES_MAX) return false;
    if (used != 0) list[used++] = ':';
    memcpy(list + used, name, bytes + 1);
    return true;
}

static bool sort_ciphers(const STACK_OF(SSL_CIPHER) *known, const char *names,
                         struct cipher_lists *to, char *why) {
    for (const char *at = names; *at != 0; at += *at == ':') {
        size_t len = strcspn(at, ":");
        const SSL_CIPHER *cipher = find_cipher(known, at, len);
        if (cipher == NULL) {
            snprintf(why, TLS_WHY_BYTES, "no such cipher suite: %.*s", (int)(len < 100 ? len : 100),
                     at);
            return false;
        }
        bool suite = SSL_CIPHER_get_protocol_id(cipher) >> 8 == 0x13;
        if (!add_name(suite ? to->suites : to->others, SSL_CIPHER_get_name(cipher)))
            return refuse(why, "too many cipher suites");
        at += len;
    }
    return true;
}

static bool use_ciphers(SSL_CTX *to, const struct tls_settings *settings, char *why) {
    int low = settings->version_min, high = settings->version_max;
    struct cipher_lists lists = {.suites = SUITES};
    if (settings->ciphers != NULL) {
        lists.suites[0] = 0;
        if (SSL_CTX_set_cipher_list(to, "ALL:COMPLEMENTOFALL") != 1)
            return refuse(why, "OpenSSL has no ciphers");
        if (!sort_ciphers(SSL_CTX_get_ciphers(to), settings->ciphers, &lists, why)) return false;
        /* Do not offer versions without a cipher. */
        if (lists.others[0] == 0) low = TLS1_3_VERSION;
        if (lists.suites[0] == 0) high = TLS1_2_VERSION;
        if (low > high)
            return refuse(why, "no cipher suite belongs to an enabled protocol");
        const char *others = lists.others[0] == 0 ? "DEFAULT" : lists.others;
        if (SSL_CTX_set_cipher_list(to, others) != 1)
            return refuse(why, "the cipher suites cannot be used");
    }
    return (SSL_CTX_set_ciphersuites(to, lists.suites) == 1 &&
            SSL_CTX_set_min_proto_version(to, low) == 1 &&
            SSL_CTX_set_max_proto_version(to, high) == 1) ||
           refuse(why, "protocols and cipher suites cannot be used");
}

/* ---- contexts */

static bool set_up(SSL_CTX *to, const struct tls_settings *settings, char *why) {
    static const unsigned char id[] = "pylog"; /* session context: OpenSSL requires one */
    /* No renegotiation, no compression. */
    SSL_CTX_set_options(to, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                                SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA |
                                SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(to, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                             SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(to, 1);
    SSL_CTX_set_max_cert_list(to, CERTIFICATES_BYTES_MAX);
    /* Sessions exist only in clients' tickets, one per handshake. */
    SSL_CTX_set_session_cache_mode(to, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_timeout(to, SESSION_S);
    if (SSL_CTX_set_num_tickets(to, 1) != 1 ||
        SSL_CTX_set_session_id_context(to, id, sizeof id - 1) != 1)
        return refuse(why, "TLS sessions");
    return use_ciphers(to, settings, why) && use_own(to, settings, why) &&
           use_trust(to, settings, why);
}

struct tls *tls_new(const struct tls_settings *settings, char why[TLS_WHY_BYTES]) {
    assert(settings->version_min <= settings->version_max);
    ERR_clear_error();
    struct tls *tls = calloc(1, sizeof *tls);
    if (tls != NULL) {
        atomic_store(&tls->references, 1);
        tls->context = SSL_CTX_new(settings->connects ? TLS_client_method() : TLS_server_method());
        tls->socket = transport_tls_socket();
    }
    if (tls == NULL || tls->context == NULL || tls->socket == NULL)
        refuse(why, "out of memory");
    else if (set_up(tls->context, settings, why))
        return tls;
    if (tls != NULL) tls_release(tls);
    return NULL;
}

void tls_retain(struct tls *tls) {
    unsigned before = atomic_fetch_add(&tls->references, 1);
    assert(before > 0);
}

void tls_release(struct tls *tls) {
    unsigned before = atomic_fetch_sub(&tls->references, 1);
    assert(before > 0);
    if (before != 1) return;
    SSL_CTX_free(tls->context);
    BIO_meth_free(tls->socket);
    free(tls);
}

SSL *tls_open(struct tls *tls) { return SSL_new(tls->context); }

const BIO_METHOD *tls_socket(const struct tls *tls) { return tls->socket; }

/* ---- servers */

static struct tls_server *server_of(struct transport_maker *maker) {
    return (struct tls_server *)(void *)maker;
}

static bool server_open(struct transport_maker *maker, struct transport *t) {
    struct tls_server *server = server_of(maker);
    lock_acquire(&server->lock);
    struct tls *tls = server->newest;
    if (tls != NULL) tls_retain(tls);
    lock_release(&server->lock);
    if (tls == NULL) return false;
    bool opened = transport_tls_accept(tls, t);
    tls_release(tls);
    return opened;
}

static void server_retain(struct transport_maker *maker) {
    unsigned before = atomic_fetch_add(&server_of(maker)->references, 1);
    assert(before > 0);
}

static void server_release(struct transport_maker *maker) { tls_server_release(server_of(maker)); }

struct tls_server *tls_server_new(void) {
    struct tls_server *server = calloc(1, sizeof *server);
    if (server == NULL) return NULL;
    server->maker = (struct transport_maker){server_open, server_retain, server_release};
    atomic_store(&server->references, 1);
    lock_init(&server->lock);
    return server;
}

void tls_server_use(struct tls_server *server, struct tls *tls) {
    tls_retain(tls);
    lock_acquire(&server->lock);
    struct tls *before = server->newest;
    server->newest = tls;
    lock_release(&server->lock);
    if (before != NULL) tls_release(before);
}

struct transport_maker *tls_server_maker(struct tls_server *server) { return &server->maker; }

void tls_server_release(struct tls_server *server) {
    unsigned before = atomic_fetch_sub(&server->references, 1);
    assert(before > 0);
    if (before != 1) return;
    lock_acquire(&server->lock);
    struct tls *tls = server->newest;
    server->newest = NULL;
    lock_release(&server->lock);
    if (tls != NULL) tls_release(tls);
    lock_destroy(&server->lock);
    free(server);
}
