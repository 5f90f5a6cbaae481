/* Any bytes as the input of a TLS connection, in pieces: the connection waits, fails or passes,
 * reads no more than allowed, and frees everything at its end. Any bytes as a PKCS12 file: read
 * or rejected. */
#include <errno.h>
#include <openssl/ssl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tls_context.h"

static const char certificate[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBdTCCARugAwIBAgIUadEKh625MWAr2SWC7JIMHcGsfFEwCgYIKoZIzj0EAwIw\n"
    "DzENMAsGA1UEAwwEZnV6ejAgFw0yNjExMjIxMTExNTVaGA8yMTI2MTAyOTExMTE1\n"
    "NVowDzENMAsGA1UEAwwEZnV6ejBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABKGo\n"
    "4HIjguE2AFYmlb/3PXks01au1md9I8CpEFLiA2pa+rNqFvjnXvE1t5u3N5fA/DEe\n"
    "GjHulzdzBxZWa6oqpeWjUzBRMB0GA1UdDgQWBBTRbMNPY7aFdAxj9WHod9fg7B0f\n"
    "ZTAfBgNVHSMEGDAWgBTRbMNPY7aFdAxj9WHod9fg7B0fZTAPBgNVHRMBAf8EBTAD\n"
    "AQH/MAoGCCqGSM49BAMCA0gAMEUCIC3Oo2O3S9WgPxfj1j+0r8ha25xJFTFEpHhP\n"
    "/Cjp+tffAiEAiOohk9L/nZcuWINdVXjAzJaALJVIDXU+GLy7Z0snSNI=\n"
    "-----END CERTIFICATE-----\n";
static const char key[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgFB/TAuUyOwOqqZ3s\n"
    "Vy75xcuvJljX6R4dV0EpLlZWZIyhRANCAAShqOByI4LhNgBWJpW/9z15LNNWrtZn\n"
    "fSPAqRBS4gNqWvqzahb4517xNbebtzeXwPwxHhox7pc3cwcWVmuqKqXl\n"
    "-----END PRIVATE KEY-----\n";

static void require(int holds) {
    if (!holds) { abort(); }
}

static struct tls *context(void) {
    static struct tls *made;
    char why[TLS_WHY_BYTES];
    struct tls_settings settings = {.chain = certificate,
                                    .key = key,
                                    .trusted = certificate,
                                    .version_min = TLS1_2_VERSION,
                                    .version_max = TLS1_3_VERSION,
                                    .client_auth = TLS_CLIENT_REQUESTED};
    if (made == NULL) { made = tls_new(&settings, why); }
    require(made != NULL);
    return made;
}

static void receive(struct transport *t) {
    uint8_t room[512];
    for (int i = 0; i < 64; i++) {
        ssize_t n = t->calls->recv(t, room, sizeof room);
        require(n <= (ssize_t)sizeof room);
        if (n <= 0) {
            require(n == 0 || errno != 0);
            return;
        }
    }
}

static void connection(const uint8_t *data, size_t size) {
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    struct transport t = {.fd = ends[0]};
    require(transport_tls_accept(context(), &t));
    struct transport_report report;
    size_t piece = size == 0 ? 1 : 1 + data[0] * (size_t)8;
    for (size_t at = 1; at < size; at += piece) {
        size_t left = size - at;
        if (write(ends[1], data + at, left < piece ? left : piece) < 0) { break; }
        if (!t.handshaking) {
            receive(&t);
        } else if (t.calls->handshake(&t, &report) == TRANSPORT_FAILED) {
            require(t.handshaking && memchr(report.text, 0, sizeof report.text) != NULL);
            break;
        }
    }
    shutdown(ends[1], SHUT_WR);
    if (t.handshaking) { require(t.calls->handshake(&t, &report) != TRANSPORT_WAITS); }
    t.calls->end(&t);
    require(t.session == NULL);
    close(ends[0]);
    close(ends[1]);
}

static void store(const uint8_t *data, size_t size) {
    struct tls_store opened;
    char why[TLS_WHY_BYTES];
    if (!tls_store_open(data, size, "", &opened, why)) { return; }
    require(opened.key != NULL || opened.trusted != NULL);
    tls_store_close(&opened);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) { return 0; }
    if (data[0] & 1) {
        store(data + 1, size - 1);
    } else {
        connection(data + 1, size - 1);
    }
    return 0;
}
