/* TLS between two ends in one process: the pieces that cross the socket, rejected peers and the
 * reasons, and the text form of names in certificates. */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tls_context.h"
#include "scene_names.h"

enum { RECORD = 16 << 10 };

/* ---- certificates */

struct identity {
    char key[4096], chain[8192];
};

static void write_pem(BIO *bio, char *to, size_t room) {
    int n = BIO_read(bio, to, (int)room - 1);
    CHECK(n > 0);
    to[n] = 0;
    BIO_free(bio);
}

/* Make a self-signed certificate for this host, valid for this many seconds. */
static void make_identity(struct identity *out, const char *name, const char *host, long seconds) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *own = X509_new();
    X509_set_version(own, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(own), 1);
    X509_gmtime_adj(X509_getm_notBefore(own), -86400 * 30);
    X509_gmtime_adj(X509_getm_notAfter(own), seconds);
    X509_set_pubkey(own, key);
    X509_NAME *names = X509_get_subject_name(own);
    X509_NAME_add_entry_by_txt(names, "CN", MBSTRING_UTF8, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(own, names);
    X509_EXTENSION *for_host = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, host);
    CHECK(for_host != NULL && X509_add_ext(own, for_host, -1) == 1);
    X509_EXTENSION_free(for_host);
    CHECK(X509_sign(own, key, EVP_sha256()) > 0);
    BIO *bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL);
    write_pem(bio, out->key, sizeof out->key);
    bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, own);
    write_pem(bio, out->chain, sizeof out->chain);
    X509_free(own);
    EVP_PKEY_free(key);
}

/* ---- two ends */

static struct identity broker, alice;
static struct transport server, client;
static uint8_t workspace[TRANSPORT_WORKSPACE_BYTES];
static struct transport_report report; /* of the server's handshake */
static int sends, sends_with_more, receives, send_error, recv_error;
static ssize_t send_room = -1; /* free space of the socket for sends; -1: unlimited */

ssize_t __real_send(int fd, const void *from, size_t bytes, int flags);
ssize_t __wrap_send(int fd, const void *from, size_t bytes, int flags);
ssize_t __wrap_send(int fd, const void *from, size_t bytes, int flags) {
    CHECK(flags & MSG_NOSIGNAL);
    if (send_error != 0) {
        errno = send_error;
        send_error = 0;
        return -1;
    }
    if (send_room == 0) {
        errno = EAGAIN;
        return -1;
    }
    sends++;
    sends_with_more += (flags & MSG_MORE) != 0;
    if (send_room >= 0 && bytes > (size_t)send_room) bytes = (size_t)send_room;
    ssize_t n = __real_send(fd, from, bytes, flags & ~MSG_MORE);
    if (send_room >= 0) send_room -= n;
    return n;
}
ssize_t __real_recv(int fd, void *to, size_t room, int flags);
ssize_t __wrap_recv(int fd, void *to, size_t room, int flags);
ssize_t __wrap_recv(int fd, void *to, size_t room, int flags) {
    receives++;
    if (recv_error == 0) return __real_recv(fd, to, room, flags);
    errno = recv_error;
    recv_error = 0;
    return -1;
}

static struct tls_settings settings_of(const struct identity *own, const struct identity *trusted) {
    return (struct tls_settings){.chain = own == NULL ? NULL : own->chain,
                                 .key = own == NULL ? NULL : own->key,
                                 .trusted = trusted == NULL ? NULL : trusted->chain,
                                 .version_min = TLS1_2_VERSION,
                                 .version_max = TLS1_3_VERSION};
}

static void open_sockets(void) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    server = (struct transport){.fd = pair[0], .workspace = workspace};
    client = (struct transport){.fd = pair[1]};
}

/* Run the server's side of a handshake, and the client's when it can continue. */
static enum transport_shake shake(void) {
    enum transport_shake ours = TRANSPORT_WAITS, theirs = TRANSPORT_WAITS;
    struct transport_report other;
    for (int i = 0; i < 10 && ours == TRANSPORT_WAITS; i++) {
        if (theirs == TRANSPORT_WAITS) theirs = client.calls->handshake(&client, &other);
        ours = server.calls->handshake(&server, &report);
    }
    if (theirs == TRANSPORT_WAITS) theirs = client.calls->handshake(&client, &other);
    return theirs == TRANSPORT_FAILED && ours == TRANSPORT_SAFE ? TRANSPORT_FAILED : ours;
}

static enum transport_shake open_both(const struct tls_settings *of_server,
                                      const struct tls_settings *of_client, const char *host,
                                      bool checked) {
    char why[TLS_WHY_BYTES] = "";
    struct tls *own = tls_new(of_server, why), *other = tls_new(of_client, why);
    if (own == NULL || other == NULL) fprintf(stderr, "%s\n", why);
    CHECK(own != NULL && other != NULL);
    open_sockets();
    CHECK(transport_tls_accept(own, &server) &&
          transport_tls_connect(other, &client, host, checked));
    tls_release(own); /* the sessions hold references */
    tls_release(other);
    return shake();
}

static void open_usual(void) {
    make_identity(&broker, "broker", "DNS:broker,IP:127.0.0.1", 86400);
    struct tls_settings own = settings_of(&broker, NULL), other = settings_of(NULL, &broker);
    other.connects = true;
    CHECK(open_both(&own, &other, "broker", true) == TRANSPORT_SAFE);
    CHECK(!server.handshaking && !client.handshaking && report.text[0] == 0 && !report.resumed);
    uint8_t byte; /* consumes the tickets */
    CHECK(client.calls->recv(&client, &byte, 1) == -1 && errno == EAGAIN);
    sends = sends_with_more = 0;
}

static void close_both(void) {
    transport_close(&server);
    transport_close(&client);
    CHECK(server.fd == -1 && server.session == NULL);
}

static ssize_t send_pieces(struct iovec *pieces, size_t count, bool more) {
    sends = sends_with_more = 0;
    return server.calls->send(&server, pieces, count, more);
}

/* Queue these bytes for the client. */
static void arrive(const uint8_t *bytes, size_t len) {
    uint8_t *got = malloc(len);
    size_t have = 0;
    for (int i = 0; have < len; i++) {
        ssize_t n = client.calls->recv(&client, got + have, len - have);
        CHECK(n > 0 && i < 1000);
        have += (size_t)n;
    }
    CHECK(have == len && memcmp(got, bytes, len) == 0);
    free(got);
}

/* Receive what the client can read, after the `has` bytes it already has; return the new total. */
static size_t arrived(uint8_t *to, size_t has, size_t room) {
    ssize_t n;
    while (has < room && (n = client.calls->recv(&client, to + has, room - has)) > 0)
        has += (size_t)n;
    return has;
}

static uint8_t bytes[100000];
static void fill_bytes(void) {
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i % 253);
}

SCENE(small_chunks_share_a_tls_record) {
    fill_bytes();
    open_usual();
    struct iovec three[] = {{bytes, 10}, {bytes + 10, 1}, {bytes + 11, 89}};
    CHECK(send_pieces(three, 3, false) == 100 && sends == 1 && sends_with_more == 0);
    arrive(bytes, 100);
    three[2].iov_len = 589;
    CHECK(send_pieces(three, 3, true) == 600 && sends == 1 && sends_with_more == 1);
    arrive(bytes, 600);
    struct iovec much[] = {{bytes, RECORD - 1}, {bytes + RECORD - 1, 5000}};
    CHECK(send_pieces(much, 2, false) == RECORD && sends == 1 && sends_with_more == 1);
    arrive(bytes, RECORD);
    struct iovec one = {bytes, 2 * RECORD + 7};
    CHECK(send_pieces(&one, 1, false) == 2 * RECORD + 7 && sends == 3 && sends_with_more == 2);
    arrive(bytes, 2 * RECORD + 7);
    struct iovec first[] = {{bytes, RECORD}, {bytes, 5}};
    CHECK(send_pieces(first, 2, false) == RECORD && sends == 1 && sends_with_more == 1);
    arrive(bytes, RECORD);
    one.iov_len = 513;
    CHECK(send_pieces(&one, 1, true) == 513 && sends_with_more == 1);
    arrive(bytes, 513);
    close_both();
}

static void *send_range(void *file) {
    CHECK(server.calls->sendfile(&server, *(int *)file, 0, 3 * RECORD) == 3 * RECORD);
    return NULL;
}

/* The gathered records alone are more than 64 KiB. */
SCENE(file_range_is_sent_from_a_small_stack) {
    enum { SMALL_STACK_BYTES = 72 << 10 };
    fill_bytes();
    open_usual();
    int file = memfd_create("log", 0);
    CHECK(write(file, bytes, 3 * RECORD) == 3 * RECORD);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, SMALL_STACK_BYTES) == 0);
    CHECK(pthread_create(&thread, &attributes, send_range, &file) == 0);
    pthread_attr_destroy(&attributes);
    pthread_join(thread, NULL);
    arrive(bytes, 3 * RECORD);
    close(file);
    close_both();
}

SCENE(bytes_before_a_range_share_its_first_record) {
    fill_bytes();
    open_usual();
    int file = memfd_create("log", 0);
    CHECK(write(file, bytes, 50000) == 50000);
    struct iovec two[] = {{bytes + 60000, 500}, {bytes + 60500, 12}};
    CHECK(send_pieces(two, 2, true) == 512 && sends == 0);
    CHECK(server.calls->sendfile(&server, file, 7, 1000) == 1000);
    CHECK(sends == 1 && sends_with_more == 0);
    arrive(bytes + 60000, 512);
    arrive(bytes + 7, 1000);
    /* The range gets the rest of the first record. */
    CHECK(send_pieces(two, 2, true) == 512 && sends == 0);
    CHECK(server.calls->sendfile(&server, file, 0, RECORD) == RECORD);
    CHECK(sends == 1 && sends_with_more == 0);
    arrive(bytes + 60000, 512);
    arrive(bytes, RECORD);
    /* A full socket and an unreadable range leave the records for the next attempt. */
    CHECK(send_pieces(two, 1, true) == 500);
    CHECK(server.calls->sendfile(&server, -1, 0, 10) == -1 && errno == EBADF && sends == 0);
    send_error = EAGAIN;
    CHECK(server.calls->sendfile(&server, file, 0, 10) == -1 && errno == EAGAIN && sends == 0);
    CHECK(server.calls->sendfile(&server, file, 0, 10) == 10 && sends == 1);
    arrive(bytes + 60000, 500);
    arrive(bytes, 10);
    close(file);
    close_both();
}

SCENE(blocked_bytes_are_sent_again) {
    fill_bytes();
    open_usual();
    int file = memfd_create("log", 0);
    CHECK(write(file, bytes, 100) == 100);
    struct iovec two[] = {{bytes + 200, 5}, {bytes + 205, 5}};
    send_error = EAGAIN;
    CHECK(send_pieces(two, 1, false) == -1 && errno == EAGAIN);
    /* The record of five bytes waits in OpenSSL, and now a range follows it. */
    ssize_t n = send_pieces(two, 2, true);
    CHECK(n >= 5 && sends >= 1);
    if (n == 5) CHECK(send_pieces(two + 1, 1, true) == 5 && sends == 0);
    CHECK(server.calls->sendfile(&server, file, 0, 100) == 100);
    arrive(bytes + 200, 10);
    arrive(bytes, 100);
    close(file);
    close_both();
}

SCENE(read_stops_when_the_socket_is_empty) {
    open_usual();
    struct iovec piece = {(uint8_t *)"bytes", 5};
    CHECK(send_pieces(&piece, 1, false) == 5);
    uint8_t got[100];
    recv_error = 0;
    receives = 0;
    CHECK(client.calls->recv(&client, got, sizeof got) == 5 && receives == 1 && !client.left);
    CHECK(send_pieces(&piece, 1, false) == 5 && send_pieces(&piece, 1, false) == 5);
    receives = 0;
    CHECK(client.calls->recv(&client, got, sizeof got) == 10 && receives == 1);
    CHECK(client.calls->recv(&client, got, sizeof got) == -1 && errno == EAGAIN);
    close_both();
}

/* Read from the client; return the bytes that its session still holds. */
static size_t inside_after(size_t room, ssize_t expected) {
    uint8_t got[1000];
    CHECK(client.calls->recv(&client, got, room) == expected);
    return client.inside;
}

SCENE(pending_tls_bytes_are_never_underreported) {
    enum { HEADER = 5, OVERHEAD = 22 };
    static const size_t parts[] = {1, HEADER, HEADER + 1, 300, 400 + OVERHEAD - 1};
    open_usual();
    struct iovec piece = {bytes, 400};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        CHECK(client.inside == 0 && send_pieces(&piece, 1, false) == 400);
        CHECK(inside_after(100, 100) == 300 + OVERHEAD);
        send_room = (ssize_t)parts[i]; /* of the next record */
        CHECK(send_pieces(&piece, 1, false) == -1 && errno == EAGAIN);
        size_t inside = inside_after(1000, 300); /* with the first record's excess length */
        CHECK(inside >= parts[i] - (parts[i] == HEADER) * HEADER && inside <= parts[i] + OVERHEAD);
        send_room = -1;
        CHECK(send_pieces(&piece, 1, false) == 400 && inside_after(1000, 400) == 0);
    }
    close_both();
}

SCENE(four_records_of_a_range_are_sent_together) {
    fill_bytes();
    open_usual();
    int file = memfd_create("log", 0);
    CHECK(write(file, bytes, 90000) == 90000);
    CHECK(server.calls->sendfile(&server, file, 100, 89000) == 89000);
    CHECK(sends == 2 && sends_with_more == 1);
    arrive(bytes + 100, 89000);
    CHECK(server.calls->sendfile(&server, file, 89990, 40) == 10);
    arrive(bytes + 89990, 10);
    CHECK(server.calls->sendfile(&server, file, 50000, 60000) == 40000);
    arrive(bytes + 50000, 40000);
    CHECK(server.calls->sendfile(&server, file, 90000, 40) == 0);
    CHECK(server.calls->sendfile(&server, file, 90000, 40000) == 0);
    CHECK(server.calls->sendfile(&server, -1, 0, 40) == -1 && errno == EBADF);
    CHECK(server.calls->sendfile(&server, -1, 0, 40000) == -1 && errno == EBADF);
    CHECK(server.calls->failure(&server) == NULL);
    close(file);
    close_both();
}

SCENE(rest_of_a_range_is_sent_when_writable) {
    fill_bytes();
    open_usual();
    int file = memfd_create("log", 0);
    CHECK(write(file, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
    static const ssize_t rooms[] = {997,   16405, 16406, 16407, 30000, 49217,
                                    49218, 65623, 65624, 65625, 81000};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        size_t head = i % 2 == 0 ? 0 : 100, range = sizeof bytes - head, sent = 0, has = 0;
        uint8_t *got = malloc(sizeof bytes);
        struct iovec piece = {bytes, head};
        if (head != 0) CHECK(send_pieces(&piece, 1, true) == (ssize_t)head);
        for (int tries = 0; sent < range; tries++) {
            if (tries == 0 || send_room == 0) send_room = rooms[i];
            /* Like the rest of a connection's turn, which is short after a partial send. */
            size_t offered = range - sent < 70000 ? range - sent : tries % 3 == 1 ? 500 : 70000;
            ssize_t n = server.calls->sendfile(&server, file, (off_t)(head + sent), offered);
            CHECK(n > 0 || (n == -1 && errno == EAGAIN));
            CHECK(tries < 1000 && server.calls->failure(&server) == NULL);
            if (n > 0) sent += (size_t)n;
            has = arrived(got, has, sizeof bytes);
        }
        CHECK(sent == range && arrived(got, has, sizeof bytes) == sizeof bytes);
        CHECK(memcmp(got, bytes, sizeof bytes) == 0);
        send_room = -1;
        free(got);
    }
    close(file);
    close_both();
}

SCENE(disconnect_during_a_range_ends_the_session) {
    fill_bytes();
    int file = memfd_create("log", 0);
    CHECK(write(file, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
    for (int waits = 0; waits < 3; waits++) {
        open_usual();
        send_room = waits != 0 ? 20000 : -1;
        /* Three of four records and a piece were sent: the last is not counted. */
        if (waits != 0) CHECK(server.calls->sendfile(&server, file, 0, 65536) == 3 * RECORD);
        send_error = EPIPE;
        if (waits < 2) {
            CHECK(server.calls->sendfile(&server, file, 3 * RECORD, 30000) == -1);
            CHECK(errno == EPROTO && server.calls->failure(&server) != NULL);
        }
        send_room = -1;
        close_both();
        send_error = 0;
    }
    close(file);
}

SCENE(rest_is_sent_when_writable) {
    fill_bytes();
    open_usual();
    size_t sent = 0;
    struct iovec piece = {bytes, 64000};
    for (;; sent += 64000) { /* until it is full, inside a piece or between two */
        ssize_t n = send_pieces(&piece, 1, false);
        if (n == 64000) continue;
        CHECK(n < 0 ? errno == EAGAIN : n % RECORD == 0);
        size_t part = n < 0 ? 0 : (size_t)n;
        for (size_t i = 0; i < sent / 64000; i++) arrive(bytes, 64000);
        if (part != 0) arrive(bytes, part);
        piece = (struct iovec){bytes + part, 64000 - part};
        CHECK(send_pieces(&piece, 1, false) == (ssize_t)(64000 - part));
        arrive(bytes + part, 64000 - part);
        break;
    }
    send_error = recv_error = EINTR;
    piece = (struct iovec){bytes, 10};
    CHECK(send_pieces(&piece, 1, false) == 10 && send_error == 0);
    arrive(bytes, 10);
    CHECK(recv_error == 0 && server.calls->failure(&server) == NULL);
    close_both();
}

SCENE(close_notify_follows_the_last_bytes) {
    open_usual();
    uint8_t got[100];
    CHECK(client.calls->recv(&client, got, sizeof got) == -1 && errno == EAGAIN && !client.left);
    struct iovec piece = {(uint8_t *)"bytes", 5};
    CHECK(send_pieces(&piece, 1, false) == 5);
    transport_close(&server);
    CHECK(client.calls->recv(&client, got, 3) == 3 && memcmp(got, "byt", 3) == 0);
    CHECK(client.calls->recv(&client, got, sizeof got) == 2 && client.left);
    CHECK(client.calls->recv(&client, got, sizeof got) == 0 && !client.left);
    CHECK(client.calls->failure(&client) == NULL);
    transport_close(&client);
}

SCENE(invalid_record_ends_the_session_with_a_reason) {
    open_usual();
    uint8_t got[100];
    CHECK(__real_send(client.fd, "\x17\x03\x03\0\5hello and more", 19, 0) == 19);
    CHECK(server.calls->recv(&server, got, sizeof got) == -1 && errno == EPROTO);
    const char *why = server.calls->failure(&server);
    CHECK(why != NULL && server.left);
    errno = 0;
    CHECK(server.calls->recv(&server, got, sizeof got) == -1 && errno == EPROTO);
    CHECK(server.calls->failure(&server) == why);
    close_both();
}

/* ---- rejected peers and the reasons */

/* Check the server's reply to these bytes instead of a handshake. */
static void say(const char *hello, size_t len, const char *why) {
    char unused[TLS_WHY_BYTES];
    struct tls_settings own = settings_of(&broker, NULL);
    struct tls *tls = tls_new(&own, unused);
    open_sockets();
    CHECK(transport_tls_accept(tls, &server) && server.handshaking);
    tls_release(tls);
    CHECK(server.calls->handshake(&server, &report) == TRANSPORT_WAITS && report.text[0] == 0);
    if (len != 0) CHECK(__real_send(client.fd, hello, len, 0) == (ssize_t)len);
    shutdown(client.fd, SHUT_WR);
    enum transport_shake said = TRANSPORT_WAITS;
    for (int i = 0; i < 100 && said == TRANSPORT_WAITS; i++)
        said = server.calls->handshake(&server, &report);
    CHECK(said == TRANSPORT_FAILED && server.handshaking && !report.resumed);
    if (strcmp(report.text, why) != 0) fprintf(stderr, "said: %s\n", report.text);
    CHECK(strcmp(report.text, why) == 0);
    CHECK(server.calls->handshake(&server, &report) == TRANSPORT_FAILED);
    CHECK(strcmp(report.text, why) == 0);
    close(client.fd);
    transport_close(&server);
}

SCENE(non_tls_clients_are_classified) {
    make_identity(&broker, "broker", "DNS:broker", 86400);
    say("GET / HTTP/1.1\r\n\r\n", 18, "HTTP on a TLS port");
    say("\0\0\0\x12\0\x12\0\3\0\0\0\0\0\2me\0\0", 18, "plain text on a TLS port");
    say("", 0, "");
    say("\x16\3\1", 3, "the peer closed the connection");
}

SCENE(certificate_is_checked_for_host_and_validity) {
    make_identity(&broker, "broker", "DNS:broker,IP:127.0.0.1", 86400);
    struct tls_settings own = settings_of(&broker, NULL), other = settings_of(NULL, &broker);
    other.connects = true;
    static const struct {
        const char *host;
        bool checked, good;
    } cases[] = {{"broker", true, true},  {"other", true, false},     {"other", false, true},
                 {"127.0.0.1", true, true}, {"127.0.0.2", true, false}, {"::1", true, false},
                 {"::1", false, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum transport_shake said = open_both(&own, &other, cases[i].host, cases[i].checked);
        CHECK((said == TRANSPORT_SAFE) == cases[i].good);
        close_both();
    }
    make_identity(&broker, "broker", "DNS:broker", -10);
    own = settings_of(&broker, NULL), other.trusted = broker.chain;
    CHECK(open_both(&own, &other, "broker", true) == TRANSPORT_FAILED);
    close_both();
}

SCENE(client_certificate_identifies_or_rejects) {
    make_identity(&broker, "broker", "DNS:broker", 86400);
    make_identity(&alice, "alice", "DNS:alice", 86400);
    struct tls_settings other = settings_of(&alice, &broker), own = settings_of(&broker, &alice);
    other.connects = true;
    for (int required = 0; required < 2; required++) {
        own.client_auth = required ? TLS_CLIENT_REQUIRED : TLS_CLIENT_REQUESTED;
        own.trusted = alice.chain, other.chain = alice.chain, other.key = alice.key;
        CHECK(open_both(&own, &other, "broker", true) == TRANSPORT_SAFE);
        CHECK(strcmp(report.text, "CN=alice") == 0);
        close_both();
        own.trusted = broker.chain; /* does not trust alice's issuer */
        CHECK(open_both(&own, &other, "broker", true) == TRANSPORT_FAILED);
        CHECK(report.text[0] != 0);
        close_both();
        other.chain = other.key = NULL;
        CHECK((open_both(&own, &other, "broker", true) == TRANSPORT_SAFE) == !required);
        close_both();
    }
    other.chain = alice.chain, other.key = alice.key, own.client_auth = TLS_CLIENT_NONE;
    CHECK(open_both(&own, &other, "broker", true) == TRANSPORT_SAFE && report.text[0] == 0);
    close_both();
}

/* Rejected with a reason that begins with these words. */
static void refuse(struct tls_settings settings, const char *words) {
    char why[TLS_WHY_BYTES] = "";
    CHECK(tls_new(&settings, why) == NULL);
    if (strncmp(why, words, strlen(words)) != 0) fprintf(stderr, "said: %s\n", why);
    CHECK(strncmp(why, words, strlen(words)) == 0);
    CHECK(ERR_peek_error() == 0);
}

SCENE(invalid_tls_settings_report_the_reason) {
    make_identity(&broker, "broker", "DNS:broker", 86400);
    make_identity(&alice, "alice", "DNS:alice", 86400);
    struct tls_settings good = settings_of(&broker, &alice), bad = good;
    bad.key = NULL, refuse(bad, "there is no certificate that matches the private key");
    bad = good, bad.chain = NULL, refuse(bad,
                                         "there is no certificate that matches the private key");
    bad.connects = true, refuse(bad, "there is no certificate that matches the private key");
    bad = good, bad.chain = "", refuse(bad, "there is no certificate in the chain");
    bad = good, bad.chain = broker.key, refuse(bad, "there is no certificate in the chain");
    bad = good, bad.key = alice.key, refuse(bad, "the private key does not belong");
    bad = good, bad.key = "x", refuse(bad, "the private key cannot be read, or needs a password");
    bad.key_password = "x", refuse(bad, "the private key cannot be read, or its password");
    bad = good, bad.client_auth = TLS_CLIENT_REQUESTED, bad.trusted = NULL;
    refuse(bad, "the trust store has no certificates");
    bad.trusted = "", refuse(bad, "the trust store has no certificates");
    bad.trusted = "-----BEGIN CERTIFICATE-----\nx\n";
    refuse(bad, "the trusted certificates cannot");
    bad.trusted = alice.chain, bad.revoked = "";
    refuse(bad, "the file has no certificate revocation list");
    bad.revoked = "-----BEGIN X509 CRL-----\nx\n";
    refuse(bad, "the certificate revocation list cannot");
    bad = good, bad.ciphers = "TLS_AES_128_GCM_SHA256:NO_SUCH";
    refuse(bad, "no such cipher suite: NO_SUCH");
    bad.ciphers = ":", refuse(bad, "no such cipher suite: ");
    bad.ciphers = "TLS_AES_128_GCM_SHA256", bad.version_max = TLS1_2_VERSION;
    refuse(bad, "no cipher suite belongs to an enabled protocol");
    bad = good, bad.version_min = TLS1_3_VERSION, bad.ciphers = "ECDHE-ECDSA-AES128-GCM-SHA256";
    refuse(bad, "no cipher suite belongs to an enabled protocol");
    char why[TLS_WHY_BYTES];
    bad = good, bad.trusted = "x"; /* no client certificate is requested */
    struct tls *tls = tls_new(&bad, why);
    CHECK(tls != NULL);
    tls_release(tls);
}

/* ---- names */

static X509_NAME *name_of(const char *const parts[][2], int count) {
    X509_NAME *name = X509_NAME_new();
    for (int i = 0; i < count; i++) {
        bool with = parts[i][0][0] == '+'; /* of the same set as the previous one */
        CHECK(X509_NAME_add_entry_by_txt(name, parts[i][0] + with, MBSTRING_UTF8,
                                         (const unsigned char *)parts[i][1], -1, -1,
                                         with ? -1 : 0) == 1);
    }
    return name;
}

static void write_name(const char *const parts[][2], int count, const char *expected) {
    X509_NAME *name = name_of(parts, count);
    size_t len = strlen(expected);
    char text[512];
    CHECK(tls_name(name, text, sizeof text));
    if (strcmp(text, expected) != 0) fprintf(stderr, "wrote: %s\n", text);
    CHECK(strcmp(text, expected) == 0);
    memset(text, 'x', sizeof text);
    CHECK(tls_name(name, text, len + 1) && strcmp(text, expected) == 0 && text[len + 1] == 'x');
    if (len != 0) CHECK(!tls_name(name, text, len) && !tls_name(name, text, 1));
    CHECK(!tls_name(name, text, 0));
    X509_NAME_free(name);
}

SCENE(distinguished_name_is_formatted_in_reverse_with_grouped_sets) {
    write_name((const char *const[][2]){{"C", "DE"}}, 0, "");
    write_name((const char *const[][2]){{"CN", "me"}}, 1, "CN=me");
    write_name((const char *const[][2]){{"C", "DE"}, {"O", "us"}, {"CN", "me"}}, 3,
               "CN=me,O=us,C=DE");
    write_name((const char *const[][2]){{"C", "DE"}, {"CN", "me"}, {"+UID", "7"}}, 3,
               "CN=me+UID=7,C=DE");
    write_name((const char *const[][2]){{"C", "DE"}, {"+O", "us"}, {"CN", "me"}}, 3,
               "CN=me,C=DE+O=us");
    write_name((const char *const[][2]){{"L", "a"}, {"ST", "b"}, {"OU", "c"}, {"street", "d"},
                                        {"DC", "e"}},
               5, "DC=e,STREET=d,OU=c,ST=b,L=a");
    write_name((const char *const[][2]){{"serialNumber", "5"}}, 1, "2.5.4.5=#130135");
}

SCENE(special_characters_of_a_name_are_escaped) {
    write_name((const char *const[][2]){{"CN", ",=+<>#;\"\\"}}, 1,
               "CN=\\,\\=\\+\\<\\>\\#\\;\\\"\\\\");
    write_name((const char *const[][2]){{"CN", " a b "}}, 1, "CN=\\ a b\\ ");
    write_name((const char *const[][2]){{"CN", "  "}}, 1, "CN=\\ \\ ");
    write_name((const char *const[][2]){{"CN", "a"}, {"O", " "}}, 2, "O=\\ ,CN=a");
    X509_NAME *name = X509_NAME_new();
    char text[32];
    CHECK(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)"a\0b", 3,
                                     -1, 0) == 1);
    CHECK(tls_name(name, text, sizeof text) && strcmp(text, "CN=a\\00b") == 0);
    X509_NAME_free(name);
}
