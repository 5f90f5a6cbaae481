/* TLS of one listener, or of the connections to one, by OpenSSL: the certificate, whom it trusts,
 * and what it agrees to.
 *
 * A context (struct tls) is made whole or not at all, never changed, and counted: connections keep
 * the one that they began with. A server is what a listener holds: it hands the newest context to
 * each new connection. Invariants: (1) no renegotiation, no compression, no early data; (2) tickets
 * are a context's own: what was trusted by an older one is asked for its certificate again. */
#ifndef PYLOG_TLS_H
#define PYLOG_TLS_H

#include "net/transport.h"

enum tls_client_auth { TLS_CLIENT_NONE, TLS_CLIENT_REQUESTED, TLS_CLIENT_REQUIRED };
struct tls_settings {
    /* PEM texts, ended by 0. NULL: none. revoked: lists of revoked certificates (CRL); with any,
     * each certificate's issuer must have one. */
    const char *chain, *key, *key_password, *trusted, *revoked;
    /* Names of OpenSSL or the IANA, between colons; NULL: the default. */
    const char *ciphers;
    int version_min, version_max; /* TLS1_2_VERSION, TLS1_3_VERSION */
    enum tls_client_auth client_auth; /* of a listener */
    /* For connections that begin here: without a certificate of its own too, and the system's
     * authorities where none are named. */
    bool connects;
};

enum { TLS_WHY_BYTES = 256 };
struct tls;
/* NULL: `why` says what is wrong. */
struct tls *tls_new(const struct tls_settings *settings, char why[TLS_WHY_BYTES]);
void tls_retain(struct tls *tls);
void tls_release(struct tls *tls);

struct tls_server;
struct tls_server *tls_server_new(void);
/* From now on for new connections; takes a reference. */
void tls_server_use(struct tls_server *server, struct tls *tls);
/* Counted with the server. */
struct transport_maker *tls_server_maker(struct tls_server *server);
void tls_server_release(struct tls_server *server);

/* ---- transport_tls.c */
struct ssl_st;
struct bio_method_st;
/* Over t->fd. False: out of memory. */
bool transport_tls_accept(struct tls *tls, struct transport *t);
/* The same, as the side that begins. host: whom the certificate is for, if it is checked. */
bool transport_tls_connect(struct tls *tls, struct transport *t, const char *host, bool checked);
struct x509_store_ctx_st;
/* OpenSSL's callback: keeps what a certificate was refused for. */
int transport_tls_verified(int good, struct x509_store_ctx_st *checked);
/* How OpenSSL reaches the socket. NULL: out of memory. */
struct bio_method_st *transport_tls_socket(void);

/* ---- tls.c, for transport_tls.c */
struct ssl_st *tls_open(struct tls *tls);
const struct bio_method_st *tls_socket(const struct tls *tls);

/* ---- tls_name.c */
struct X509_name_st;
/* As Java's X500Principal writes a name (RFC 2253). False: it is longer than `room`, or no text. */
bool tls_name(const struct X509_name_st *name, char *to, size_t room);

/* ---- tls_store.c: a PKCS12 file as PEM texts. */
struct tls_store {
    char *key, *chain, *trusted; /* malloc'ed; NULL: none. chain: of the key, its own first */
};
bool tls_store_open(const void *data, size_t bytes, const char *password, struct tls_store *out,
                    char why[TLS_WHY_BYTES]);
void tls_store_close(struct tls_store *store);

const char *tls_library(void); /* OpenSSL and its version, that which runs */

#endif
