/* TLS for a listener or for outgoing connections, with OpenSSL: certificate, trusted
 * certificates, protocols and ciphers.
 *
 * A context (struct tls) is created completely or not at all, is immutable and
 * reference-counted: connections keep their context. A server belongs to a listener: it gives
 * its newest context to each new connection.
 *
 * Invariants: no renegotiation, no compression, no early data. Tickets are valid for one context
 * only: after a change of certificates, clients must present their certificate again. */
#ifndef PYLOG_TLS_CONTEXT_H
#define PYLOG_TLS_CONTEXT_H

#include "transport/transport.h"

enum tls_client_auth { TLS_CLIENT_NONE, TLS_CLIENT_REQUESTED, TLS_CLIENT_REQUIRED };
struct tls_settings {
    /* NUL-terminated PEM texts; NULL: none. revoked: certificate revocation lists (CRLs); if
     * set, each certificate's issuer must have one. */
    const char *chain, *key, *key_password, *trusted, *revoked;
    /* OpenSSL or IANA names, separated by colons; NULL: default. */
    const char *ciphers;
    int version_min, version_max; /* TLS1_2_VERSION, TLS1_3_VERSION */
    enum tls_client_auth client_auth; /* for a listener */
    /* For outgoing connections: the certificate is optional, and the default is the system's
     * certificate authorities. */
    bool connects;
};

enum { TLS_WHY_BYTES = 256 };
struct tls;
/* Returns NULL on failure, with the reason in `why`. */
struct tls *tls_new(const struct tls_settings *settings, char why[TLS_WHY_BYTES]);
void tls_retain(struct tls *tls);
void tls_release(struct tls *tls);

struct tls_server;
struct tls_server *tls_server_new(void);
/* Uses the context for new connections; takes a reference. */
void tls_server_use(struct tls_server *server, struct tls *tls);
/* Has the same reference count as the server. */
struct transport_maker *tls_server_maker(struct tls_server *server);
void tls_server_release(struct tls_server *server);

/* Starts TLS as a server on t->fd. Returns false if out of memory. */
bool transport_tls_accept(struct tls *tls, struct transport *t);
/* Starts TLS as a client. host: expected name in the certificate, verified if `checked`. */
bool transport_tls_connect(struct tls *tls, struct transport *t, const char *host, bool checked);

/* ---- tls_context.c, for tls_transport.c */
struct ssl_ctx_st;
/* Returns false on failure, with the reason in `why`. */
bool tls_set_up(struct ssl_ctx_st *to, const struct tls_settings *settings, char *why);
/* Writes the message and OpenSSL's reason to `why`. Returns false. */
bool tls_fail(char *why, const char *what);

/* ---- certificate_name.c */
struct X509_name_st;
/* Writes a name in the format of Java's X500Principal (RFC 2253). Returns false if it is longer
 * than `room` or not text. */
bool tls_name(const struct X509_name_st *name, char *to, size_t room);

/* ---- pkcs12.c: PKCS12 files as PEM texts */
struct tls_store {
    char *key, *chain, *trusted; /* malloc'ed; NULL: none. chain: the key's own certificate first */
};
bool tls_store_open(const void *data, size_t bytes, const char *password, struct tls_store *out,
                    char why[TLS_WHY_BYTES]);
void tls_store_close(struct tls_store *store);

const char *tls_library(void); /* name and version of the OpenSSL in use */

#endif
