/* TLS transport. OpenSSL accesses the socket through a custom BIO: no SIGPIPE when the peer has
 * closed, MSG_MORE while more data follows, and a limit on the bytes that one call may read,
 * even if few of them are application data.
 *
 * File ranges are read into a buffer of one record and encrypted from there: the bytes are then
 * in the CPU cache, truncation of the file or a disk failure is harmless, and no map is needed.
 * OpenSSL copies what it encrypts in any case. The few bytes before a range wait for it and go
 * into its first record, so that a small response is one record and one packet. For longer
 * ranges, several records are gathered for one system call, which costs more per record than the
 * copy. If the socket does not accept all of them, the rest waits in the session, and the last
 * record is reported as sent only when the socket has accepted everything. */
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "format/assertion.h"
#include "os/lock.h"
#include "transport/tls_context.h"

enum {
    RECORD_BYTES = SSL3_RT_MAX_PLAIN_LENGTH,
    HANDSHAKE_BYTES_MAX = 192 << 10, /* limit for a peer's handshake messages */
    OVERHEAD_BYTES = 64 << 10,       /* that one recv may read beyond its room */
    /* Per system call: more would not stay in the nearest CPU caches. */
    GATHER_RECORDS = 4,
    /* Includes the rest of a record that the socket did not accept. */
    SEALED_BYTES = RECORD_BYTES + SSL3_RT_HEADER_LENGTH + SSL3_RT_MAX_ENCRYPTED_OVERHEAD,
    GATHER_BYTES = (GATHER_RECORDS + 1) * SEALED_BYTES,
    HELD_BYTES_MAX = 512,
    REFUSAL_BYTES = 512,
    DAY_BYTES = 16
};

struct gather {
    size_t bytes;
    uint8_t room[GATHER_BYTES];
};

struct workspace { /* one per thread, in transport->workspace */
    uint8_t record[RECORD_BYTES];
    struct gather gather;
};
_Static_assert(sizeof(struct workspace) <= TRANSPORT_WORKSPACE_BYTES, "a thread has room for it");

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

struct session {
    SSL *ssl;
    struct tls *tls;
    const char *why; /* static text, or `refusal` */
    char *refusal;   /* malloc'ed: why a certificate was rejected, or NULL */
    size_t budget;   /* bytes that this call may still read from the socket */
    size_t received;
    size_t inside; /* bytes received but not yet returned, since OpenSSL was last empty */
    int fd;
    bool more, starved, ended, failed; /* starved: the budget was too small */
    bool emptied;                      /* the last read emptied the socket */
    bool refused;                      /* OpenSSL holds a record: it must be sent first */
    uint16_t held;                     /* bytes reported as sent that wait for their range */
    uint8_t held_bytes[HELD_BYTES_MAX];
    struct gather *gather; /* NULL: each record is sent separately */
    uint8_t *left;         /* malloc'ed: records not yet accepted by the socket; NULL: none */
    size_t left_bytes, left_sent;
    size_t owed; /* bytes of a range in `left` that are not reported as sent */
};

/* ---- the socket */

static ssize_t to_socket(const struct session *s, const void *from, size_t bytes, bool more) {
    ssize_t n;
    do n = send(s->fd, from, bytes, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    while (n < 0 && errno == EINTR);
    return n;
}

/* Sends waiting records. Returns false with errno if the socket did not accept all of them. */
static bool left_goes(struct session *s) {
    if (s->left == NULL) return true;
    ssize_t n = to_socket(s, s->left + s->left_sent, s->left_bytes - s->left_sent, false);
    if (n < 0) return false;
    s->left_sent += (size_t)n;
    assert_slow(s->left_sent <= s->left_bytes);
    if (s->left_sent < s->left_bytes) {
        errno = EAGAIN;
        return false;
    }
    free(s->left);
    s->left = NULL;
    return true;
}

static int bio_write(BIO *bio, const char *from, int bytes) {
    struct session *s = BIO_get_data(bio);
    assert_slow(bytes > 0);
    BIO_clear_retry_flags(bio);
    struct gather *g = s->gather;
    if (g != NULL && (size_t)bytes > sizeof g->room - g->bytes) {
        BIO_set_retry_write(bio);
        return -1;
    }
    if (g != NULL) {
        memcpy(g->room + g->bytes, from, (size_t)bytes);
        g->bytes += (size_t)bytes;
        return bytes;
    }
    ssize_t n = left_goes(s) ? to_socket(s, from, (size_t)bytes, s->more) : -1;
    if (n < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
    return (int)n;
}

static int bio_read(BIO *bio, char *to, int room) {
    struct session *s = BIO_get_data(bio);
    assert_slow(room > 0);
    BIO_clear_retry_flags(bio);
    size_t most = (size_t)room < s->budget ? (size_t)room : s->budget;
    if (most == 0) {
        s->starved = true;
        BIO_set_retry_read(bio);
        return -1;
    }
    ssize_t n;
    do n = recv(s->fd, to, most, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
    if (n == 0) s->ended = true;
    s->emptied = n > 0 && (size_t)n < most;
    if (n > 0) {
        assert_slow((size_t)n <= s->budget);
        s->budget -= (size_t)n;
        s->received += (size_t)n;
        s->inside += (size_t)n;
    }
    return (int)n;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer) {
    (void)number, (void)pointer;
    const struct session *s = BIO_get_data(bio);
    if (command == BIO_CTRL_EOF) return s->ended;
    return command == BIO_CTRL_FLUSH;
}

/* Returns the BIO with which OpenSSL accesses the socket, or NULL if out of memory. */
static BIO_METHOD *new_socket(void) {
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "socket");
    if (method == NULL) return NULL;
    if (BIO_meth_set_write(method, bio_write) == 1 && BIO_meth_set_read(method, bio_read) == 1 &&
        BIO_meth_set_ctrl(method, bio_ctrl) == 1)
        return method;
    BIO_meth_free(method);
    return NULL;
}

/* ---- failures */

/* Writes a certificate's start or end date, or "" if it is invalid. */
static void write_day(char to[DAY_BYTES], const ASN1_TIME *time) {
    struct tm tm;
    to[0] = 0;
    if (ASN1_TIME_to_tm(time, &tm) == 1) strftime(to, DAY_BYTES, "%Y-%m-%d", &tm);
}

/* Returns the verdict on a certificate, with the date if it has expired or is not yet valid, and
 * the certificate's name. */
static const char *refusal_of(struct session *s, X509 *certificate, int verdict) {
    const char *what = X509_verify_cert_error_string(verdict);
    char name[REFUSAL_BYTES / 2], day[DAY_BYTES] = "";
    if (certificate != NULL && s->refusal == NULL) s->refusal = malloc(REFUSAL_BYTES);
    if (certificate == NULL || s->refusal == NULL) return what;
    if (verdict == X509_V_ERR_CERT_HAS_EXPIRED)
        write_day(day, X509_get0_notAfter(certificate));
    else if (verdict == X509_V_ERR_CERT_NOT_YET_VALID)
        write_day(day, X509_get0_notBefore(certificate));
    bool named = tls_name(X509_get_subject_name(certificate), name, sizeof name);
    snprintf(s->refusal, REFUSAL_BYTES, "%s%s%s%s%s", what, day[0] != 0 ? ", on " : "", day,
             named ? ": " : "", named ? name : "");
    return s->refusal;
}

/* Verification callback of OpenSSL: stores why a certificate was rejected. */
static int on_verified(int good, X509_STORE_CTX *checked) {
    if (good) return 1;
    const SSL *ssl = X509_STORE_CTX_get_ex_data(checked, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct session *s = BIO_get_data(SSL_get_rbio(ssl));
    refusal_of(s, X509_STORE_CTX_get_current_cert(checked), X509_STORE_CTX_get_error(checked));
    return 0;
}

static const char *reason_of(const struct session *s) {
    unsigned long error = ERR_peek_error();
    int reason = ERR_GET_REASON(error);
    long verdict = SSL_get_verify_result(s->ssl);
    if (error == 0) return s->received == 0 ? NULL : "the peer closed the connection";
    if (ERR_GET_LIB(error) == ERR_LIB_SSL) {
        if (reason == SSL_R_HTTP_REQUEST || reason == SSL_R_HTTPS_PROXY_REQUEST)
            return "HTTP on a TLS port";
        if (reason == SSL_R_WRONG_VERSION_NUMBER && !SSL_is_init_finished(s->ssl))
            return "plain text on a TLS port";
        if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED && verdict != X509_V_OK)
            return s->refusal != NULL ? s->refusal : X509_verify_cert_error_string(verdict);
    }
    const char *text = ERR_reason_error_string(error);
    return text != NULL ? text : "TLS failed";
}

/* Handles an incomplete OpenSSL call: sets EAGAIN, or ends the session with EPROTO. */
static ssize_t not_done(struct session *s, int result) {
    int error = SSL_get_error(s->ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        errno = EAGAIN;
        return -1;
    }
    if (!s->failed) s->why = reason_of(s);
    s->failed = true;
    ERR_clear_error();
    errno = EPROTO;
    return -1;
}

/* Ends the session for a reason outside OpenSSL. Returns false. */
static bool lost(struct session *s, const char *why) {
    s->why = why;
    s->failed = true;
    errno = EPROTO;
    return false;
}

static const char *tls_failure(const struct transport *t) {
    const struct session *s = t->session;
    return s->failed ? s->why : NULL;
}

/* ---- bytes */

/* Returns the bytes received but not yet returned, including record overhead. If OpenSSL has
 * only a record header, it reports nothing pending, which is correct for application data. */
static size_t inside_after(struct session *s, size_t got) {
    assert_slow(got <= s->inside);
    s->inside = SSL_has_pending(s->ssl) ? s->inside - got : 0;
    return s->inside;
}

static ssize_t tls_recv(struct transport *t, void *to, size_t room) {
    struct session *s = t->session;
    assert_slow(room > 0 && !t->handshaking);
    s->budget = room + OVERHEAD_BYTES;
    s->starved = s->emptied = t->left = false;
    size_t got = 0;
    errno = EPROTO;
    while (got < room && !s->failed) {
        size_t n = 0;
        ERR_clear_error();
        int result = SSL_read_ex(s->ssl, (uint8_t *)to + got, room - got, &n);
        assert_slow(n <= room - got);
        got += n;
        /* The socket is empty: another read would only return EAGAIN. */
        if (result == 1 && s->emptied && !SSL_has_pending(s->ssl)) break;
        if (result == 1) continue;
        if (SSL_get_error(s->ssl, result) == SSL_ERROR_ZERO_RETURN) {
            t->left = got != 0; /* report the end in the next call */
            return (ssize_t)got;
        }
        not_done(s, result);
        t->left = s->failed || s->starved;
        break;
    }
    t->inside = inside_after(s, got);
    if (got == 0) return -1;
    return (ssize_t)got;
}

/* Writes at most one record. Returns the number of bytes accepted, or -1 with errno. */
static ssize_t put(struct session *s, const void *from, size_t bytes, bool more) {
    size_t n = 0;
    assert_slow(bytes > 0);
    s->more = more;
    s->budget = 0; /* do not read here */
    ERR_clear_error();
    int result = SSL_write_ex(s->ssl, from, bytes, &n);
    assert_slow(n <= bytes);
    s->refused = result != 1;
    return result == 1 ? (ssize_t)n : not_done(s, result);
}

static size_t record_of(size_t bytes) { return bytes < RECORD_BYTES ? bytes : RECORD_BYTES; }

static ssize_t put_chunk(struct session *s, const struct iovec *chunk, bool more) {
    size_t sent = 0;
    while (sent < chunk->iov_len) {
        size_t bytes = record_of(chunk->iov_len - sent);
        bool goes_on = more || sent + bytes < chunk->iov_len;
        ssize_t n = put(s, (const uint8_t *)chunk->iov_base + sent, bytes, goes_on);
        if (n < 0) return sent != 0 ? (ssize_t)sent : -1;
        sent += (size_t)n;
    }
    return (ssize_t)sent;
}

/* Holds the bytes for the range that follows. Returns false if they must be sent immediately. */
static bool hold(struct session *s, const struct iovec *pieces, size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += pieces[i].iov_len;
    if (s->refused || bytes > sizeof s->held_bytes) return false;
    uint8_t *to = s->held_bytes;
    for (size_t i = 0; i < count; i++) {
        memcpy(to, pieces[i].iov_base, pieces[i].iov_len);
        to += pieces[i].iov_len;
    }
    s->held = (uint16_t)bytes;
    return true;
}

static ssize_t tls_send(struct transport *t, struct iovec *pieces, size_t count, bool more) {
    struct session *s = t->session;
    assert_slow(count > 0 && !t->handshaking);
    assert_slow(s->held == 0); /* the range of held bytes comes first */
    if (more && hold(s, pieces, count)) return s->held;
    if (count == 1 || pieces[0].iov_len >= RECORD_BYTES)
        return put_chunk(s, &pieces[0], more || count > 1);
    uint8_t record[RECORD_BYTES]; /* many small responses in one record */
    size_t bytes = 0, left = 0;
    for (size_t i = 0; i < count; i++) {
        size_t copied = pieces[i].iov_len;
        if (copied > sizeof record - bytes) copied = sizeof record - bytes;
        memcpy(record + bytes, pieces[i].iov_base, copied);
        bytes += copied;
        left += pieces[i].iov_len - copied;
    }
    return put(s, record, bytes, more || left != 0);
}

/* Sends the gathered records; the rest waits in s->left. Returns false if the session ended. */
static bool give(struct session *s, const struct gather *g, bool more) {
    ssize_t n = to_socket(s, g->room, g->bytes, more);
    if (n < 0 && errno == EAGAIN) n = 0;
    if (n == (ssize_t)g->bytes) return true;
    size_t left = g->bytes - (size_t)(n < 0 ? 0 : n);
    if (n >= 0) s->left = malloc(left);
    if (s->left == NULL) return lost(s, n < 0 ? "the peer closed the connection" : "out of memory");
    memcpy(s->left, g->room + n, left);
    s->left_bytes = left;
    s->left_sent = 0;
    return true;
}

/* Sends the next records of a range. Returns the number of bytes sent, including held bytes; 0
 * at the end of the file; -1 with errno. */
static ssize_t put_range(struct session *s, struct workspace *work, int file, off_t position,
                         size_t bytes) {
    uint8_t *record = work->record;
    work->gather.bytes = 0;
    size_t went = 0, last = 0, read_bytes = 0;
    ssize_t had = 0;
    if (s->held + bytes > RECORD_BYTES) s->gather = &work->gather;
    do {
        size_t held = read_bytes == 0 ? s->held : 0;
        size_t room = record_of(held + bytes - read_bytes) - held;
        if (held != 0) memcpy(record, s->held_bytes, held);
        do had = pread(file, record + held, room, position + (off_t)read_bytes);
        while (had < 0 && errno == EINTR);
        if (had <= 0) break;
        ssize_t n = put(s, record, held + (size_t)had, read_bytes + (size_t)had < bytes);
        if (n <= 0) {
            had = n;
            break;
        }
        read_bytes += (size_t)n - held;
        last = (size_t)n;
        went += last;
    } while (read_bytes < bytes && went < (size_t)GATHER_RECORDS * RECORD_BYTES);
    bool gathered = s->gather != NULL && went != 0;
    s->gather = NULL;
    if (went == 0) return had;
    if (gathered && !give(s, &work->gather, read_bytes < bytes)) return -1;
    if (s->left == NULL) return (ssize_t)went;
    s->owed = last;
    errno = EAGAIN;
    return went == last ? -1 : (ssize_t)(went - last);
}

/* Returns how many of the sent bytes belong to the range. */
static size_t without_held(struct session *s, size_t went) {
    size_t of_held = went < s->held ? went : s->held;
    s->held = (uint16_t)(s->held - of_held);
    if (s->held != 0) memmove(s->held_bytes, s->held_bytes + of_held, s->held);
    return went - of_held;
}

static ssize_t tls_sendfile(struct transport *t, int file, off_t position, size_t bytes) {
    struct session *s = t->session;
    assert(t->workspace != NULL);
    assert_slow(bytes > 0 && position >= 0 && !t->handshaking);
    if (!left_goes(s)) {
        if (errno != EAGAIN) lost(s, "the peer closed the connection");
        return -1;
    }
    size_t sent = without_held(s, s->owed);
    s->owed = 0;
    while (sent < bytes && s->left == NULL) {
        ssize_t n = put_range(s, t->workspace, file, position + (off_t)sent, bytes - sent);
        if (n <= 0) return sent != 0 ? (ssize_t)sent : n;
        sent += without_held(s, (size_t)n);
    }
    return (ssize_t)sent;
}

/* ---- start and end of a session */

/* With a resumed session, the certificate may have expired since it was verified. */
static bool has_expired(const X509 *certificate) {
    return X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0;
}

static enum transport_shake shaken(struct transport *t, struct transport_report *out) {
    struct session *s = t->session;
    X509 *certificate = SSL_get0_peer_certificate(s->ssl);
    out->resumed = SSL_session_reused(s->ssl) == 1;
    if (certificate == NULL) {
        t->handshaking = false;
        return TRANSPORT_SAFE;
    }
    s->why = NULL;
    if (has_expired(certificate))
        s->why = refusal_of(s, certificate, X509_V_ERR_CERT_HAS_EXPIRED);
    else if (!tls_name(X509_get_subject_name(certificate), out->text, sizeof out->text))
        s->why = "the name in the certificate is too long or not text";
    t->handshaking = s->failed = s->why != NULL;
    return s->failed ? TRANSPORT_FAILED : TRANSPORT_SAFE;
}

static void tell(struct transport_report *out, const char *why) {
    size_t bytes = why == NULL ? 0 : strnlen(why, sizeof out->text - 1);
    if (bytes != 0) memcpy(out->text, why, bytes);
    out->text[bytes] = 0;
}

static enum transport_shake tls_handshake(struct transport *t, struct transport_report *out) {
    struct session *s = t->session;
    assert(t->handshaking);
    out->resumed = false;
    out->text[0] = 0;
    enum transport_shake shake = TRANSPORT_FAILED;
    if (!s->failed) {
        ERR_clear_error();
        int result = SSL_do_handshake(s->ssl);
        if (result == 1) {
            shake = shaken(t, out);
        } else if (not_done(s, result), !s->failed && !s->starved) {
            shake = TRANSPORT_WAITS;
        } else if (!s->failed) {
            s->failed = true;
            s->why = "too many bytes before the end of the handshake";
        }
    }
    if (shake == TRANSPORT_FAILED) tell(out, s->why);
    assert(shake == TRANSPORT_SAFE || t->handshaking);
    return shake;
}

static void tls_end(struct transport *t) {
    struct session *s = t->session;
    ERR_clear_error();
    s->budget = 0;
    s->more = false;
    if (!s->failed && !t->handshaking) SSL_shutdown(s->ssl);
    ERR_clear_error();
    SSL_free(s->ssl);
    tls_release(s->tls);
    free(s->refusal);
    free(s->left);
    free(s);
    t->session = NULL;
}

/* ---- contexts ---- */

struct tls *tls_new(const struct tls_settings *settings, char why[TLS_WHY_BYTES]) {
    assert(settings->version_min <= settings->version_max);
    ERR_clear_error();
    struct tls *tls = calloc(1, sizeof *tls);
    if (tls != NULL) {
        atomic_store(&tls->references, 1);
        tls->context = SSL_CTX_new(settings->connects ? TLS_client_method() : TLS_server_method());
        tls->socket = new_socket();
    }
    if (tls == NULL || tls->context == NULL || tls->socket == NULL) {
        tls_fail(why, "out of memory");
    } else if (tls_set_up(tls->context, settings, why)) {
        SSL_CTX_set_verify(tls->context, SSL_CTX_get_verify_mode(tls->context), on_verified);
        return tls;
    }
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

/* ---- sessions ---- */

static const struct transport_calls transport_tls = {.recv = tls_recv,
                                                     .send = tls_send,
                                                     .sendfile = tls_sendfile,
                                                     .handshake = tls_handshake,
                                                     .failure = tls_failure,
                                                     .end = tls_end};

/* Creates the session, which owns `ssl` from now on. Returns false if out of memory, and frees
 * it. */
static bool begin(struct tls *tls, struct transport *t, SSL *ssl) {
    struct session *s = ssl == NULL ? NULL : calloc(1, sizeof *s);
    BIO *bio = s == NULL ? NULL : BIO_new(tls->socket);
    if (bio == NULL) {
        SSL_free(ssl);
        free(s);
        ERR_clear_error();
        return false;
    }
    *s = (struct session){.ssl = ssl, .tls = tls, .fd = t->fd, .budget = HANDSHAKE_BYTES_MAX};
    tls_retain(tls);
    BIO_set_data(bio, s);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio); /* takes one reference for both */
    t->calls = &transport_tls;
    t->session = s;
    t->handshaking = true;
    return true;
}

bool transport_tls_accept(struct tls *tls, struct transport *t) {
    SSL *ssl = SSL_new(tls->context);
    if (ssl != NULL) SSL_set_accept_state(ssl);
    return begin(tls, t, ssl);
}

/* Sets the expected name in the certificate, and the server name sent to the peer (SNI). */
static bool name(SSL *ssl, const char *host, bool checked) {
    uint8_t address[16];
    bool numeric =
        inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
    /* RFC 6066: an IP address must not be sent as a server name. */
    if (!numeric && SSL_set_tlsext_host_name(ssl, host) != 1) return false;
    if (!checked) return true;
    return numeric ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1
                   : SSL_set1_host(ssl, host) == 1;
}

bool transport_tls_connect(struct tls *tls, struct transport *t, const char *host, bool checked) {
    SSL *ssl = SSL_new(tls->context);
    if (ssl != NULL && !name(ssl, host, checked)) {
        SSL_free(ssl);
        ERR_clear_error();
        ssl = NULL;
    }
    if (ssl != NULL) {
        SSL_set_connect_state(ssl);
        /* The owner of the socket may have closed it before the session ends. */
        SSL_set_quiet_shutdown(ssl, 1);
    }
    return begin(tls, t, ssl);
}

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
