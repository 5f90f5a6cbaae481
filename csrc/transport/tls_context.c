/* Sets up OpenSSL's contexts from PEM texts, which are parsed and checked against each other. */
#include "transport/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/assertion.h"

enum {
    CERTIFICATES_BYTES_MAX = 64 << 10, /* for a client's chain */
    CIPHERS_BYTES_MAX = 4096,
    SESSION_S = 7200 /* lifetime of a session ticket, in s */
};
/* TLS 1.3 suites, the cheapest first. A client that prefers ChaCha20 gets it. */
#define SUITES "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"

const char *tls_library(void) { return OpenSSL_version(OPENSSL_VERSION); }

/* ---- error reasons */

bool tls_fail(char *why, const char *what) {
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
        return tls_fail(why, hint);
    }
    bool good = SSL_CTX_use_PrivateKey(to, key) == 1;
    EVP_PKEY_free(key);
    return good || tls_fail(why, "the private key does not belong to the certificate");
}

static bool use_own(SSL_CTX *to, const struct tls_settings *settings, char *why) {
    if (settings->connects && settings->chain == NULL && settings->key == NULL) return true;
    if (settings->chain == NULL || settings->key == NULL)
        return tls_fail(why, "there is no certificate that matches the private key");
    int count;
    if (!each_certificate(settings->chain, take_own, to, &count))
        return tls_fail(why, "the certificate chain cannot be used");
    if (count == 0) return tls_fail(why, "there is no certificate in the chain");
    if (!use_key(to, settings, why)) return false;
    return SSL_CTX_check_private_key(to) == 1 ||
           tls_fail(why, "the private key does not belong to the certificate");
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
    if (!good) return tls_fail(why, "the certificate revocation list cannot be read");
    if (count == 0) return tls_fail(why, "the file has no certificate revocation list");
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
    return true;
}

static bool use_trust(SSL_CTX *to, const struct tls_settings *settings, char *why) {
    int count = 0;
    bool required = settings->connects || settings->client_auth == TLS_CLIENT_REQUIRED;
    if (!required && settings->client_auth == TLS_CLIENT_NONE) return true;
    if (settings->trusted != NULL &&
        !each_certificate(settings->trusted, take_trusted, to, &count))
        return tls_fail(why, "the trusted certificates cannot be used");
    if (settings->trusted == NULL && settings->connects)
        count = SSL_CTX_set_default_verify_paths(to);
    if (count == 0) return tls_fail(why, "the trust store has no certificates");
    /* As in Java, any trusted certificate ends a chain. */
    X509_STORE_set_flags(SSL_CTX_get_cert_store(to), X509_V_FLAG_PARTIAL_CHAIN);
    if (settings->revoked != NULL && !use_revoked(to, settings->revoked, why)) return false;
    SSL_CTX_set_verify(to, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                       NULL);
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
            return tls_fail(why, "too many cipher suites");
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
            return tls_fail(why, "OpenSSL has no ciphers");
        if (!sort_ciphers(SSL_CTX_get_ciphers(to), settings->ciphers, &lists, why)) return false;
        /* Do not offer versions without a cipher. */
        if (lists.others[0] == 0) low = TLS1_3_VERSION;
        if (lists.suites[0] == 0) high = TLS1_2_VERSION;
        if (low > high)
            return tls_fail(why, "no cipher suite belongs to an enabled protocol");
        const char *others = lists.others[0] == 0 ? "DEFAULT" : lists.others;
        if (SSL_CTX_set_cipher_list(to, others) != 1)
            return tls_fail(why, "the cipher suites cannot be used");
    }
    return (SSL_CTX_set_ciphersuites(to, lists.suites) == 1 &&
            SSL_CTX_set_min_proto_version(to, low) == 1 &&
            SSL_CTX_set_max_proto_version(to, high) == 1) ||
           tls_fail(why, "protocols and cipher suites cannot be used");
}

/* ---- contexts */

bool tls_set_up(SSL_CTX *to, const struct tls_settings *settings, char *why) {
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
        return tls_fail(why, "TLS sessions");
    return use_ciphers(to, settings, why) && use_own(to, settings, why) &&
           use_trust(to, settings, why);
}
