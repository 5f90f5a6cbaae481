/* Opens TLS 1.3 connections from one thread as fast as possible.
 *
 * usage: handshakes PORT COUNT AT_ONCE full|resumed
 *
 * Keeps AT_ONCE handshakes in progress until COUNT connections have been opened and closed. A
 * connection counts as done when the broker has closed its end too. resumed: each connection
 * presents the ticket of an earlier connection. BENCH_TLS_CA names the trusted CA file. Prints
 * one line of JSON. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/epoll.h>

#include "secure.h"

enum { AT_ONCE_MAX = 4096, WAIT_MS = 20000 };

typedef struct {
    int stream;
    bool shaken;
    SSL *ssl;
} visitor;

typedef struct {
    visitor *visitors;
    SSL_CTX *context;
    SSL_SESSION *ticket; /* session of the previous connection, NULL for a full handshake */
    int port, poller;
    long wanted, begun, ended, resumed;
} storm;

static SSL_SESSION *newest;

static int keep(SSL *ssl, SSL_SESSION *session)
{
    (void)ssl;
    SSL_SESSION_free(newest);
    newest = session;
    return 1;
}

static void begin(storm *all, visitor *one)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)all->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *one = (visitor){.stream = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (one->stream < 0 ||
        (connect(one->stream, (struct sockaddr *)&address, sizeof address) &&
         errno != EINPROGRESS)) {
        wire_die("connect to port %d: %s", all->port, strerror(errno));
    }
    one->ssl = SSL_new(all->context);
    SSL_set_fd(one->ssl, one->stream);
    SSL_set_connect_state(one->ssl);
    if (all->ticket) {
        SSL_set_session(one->ssl, all->ticket);
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = one};
    if (epoll_ctl(all->poller, EPOLL_CTL_ADD, one->stream, &event)) {
        wire_die("epoll_ctl: %s", strerror(errno));
    }
    all->begun++;
}

static bool waits(const visitor *one, int result)
{
    int error = SSL_get_error(one->ssl, result);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
}

/* Returns 1 if the broker has closed the connection after us. */
static bool goes_on(storm *all, visitor *one)
{
    uint8_t waste[4096];
    if (!one->shaken) {
        int result = SSL_do_handshake(one->ssl);
        if (result != 1) {
            if (!waits(one, result)) {
                wire_die("a handshake failed after %ld others", all->ended);
            }
            return false;
        }
        one->shaken = true;
        all->resumed += SSL_session_reused(one->ssl);
        SSL_shutdown(one->ssl);
        shutdown(one->stream, SHUT_WR);
    }
    int result;
    do {
        result = SSL_read(one->ssl, waste, sizeof waste);
    } while (result > 0);
    return !waits(one, result);
}

static void run(storm *all, int at_once)
{
    struct epoll_event events[256];
    for (int index = 0; index < at_once && all->begun < all->wanted; index++) {
        begin(all, &all->visitors[index]);
    }
    while (all->ended < all->wanted) {
        int ready = epoll_wait(all->poller, events, 256, WAIT_MS);
        if (ready <= 0) {
            wire_die("nothing for %d ms after %ld handshakes", WAIT_MS, all->ended);
        }
        for (int index = 0; index < ready; index++) {
            visitor *one = events[index].data.ptr;
            if (!goes_on(all, one)) {
                continue;
            }
            SSL_free(one->ssl);
            close(one->stream);
            all->ended++;
            if (all->begun < all->wanted) {
                begin(all, one);
            }
        }
    }
}

int main(int argc, char **argv)
{
    const char *trusted = getenv("BENCH_TLS_CA");
    if (argc != 5 || !trusted) {
        wire_die("usage: BENCH_TLS_CA=FILE handshakes PORT COUNT AT_ONCE full|resumed");
    }
    int at_once = atoi(argv[3]);
    storm all = {.port = atoi(argv[1]), .context = secure_context(trusted)};
    all.visitors = calloc(AT_ONCE_MAX, sizeof *all.visitors);
    all.poller = epoll_create1(EPOLL_CLOEXEC);
    if (at_once < 1 || at_once > AT_ONCE_MAX || !all.visitors) {
        wire_die("1 to %d at once", AT_ONCE_MAX);
    }
    SSL_CTX_set_session_cache_mode(all.context,
                                   SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(all.context, keep);
    bool resumed = strcmp(argv[4], "resumed") == 0;
    if (resumed) {
        all.wanted = 1;
        run(&all, 1);
        if (!newest) {
            wire_die("the broker gives no tickets");
        }
        /* Otherwise OpenSSL removes a used ticket from its cache. */
        SSL_CTX_set_session_cache_mode(all.context, SSL_SESS_CACHE_OFF);
        all = (storm){.visitors = all.visitors, .context = all.context, .ticket = newest,
                      .port = all.port, .poller = all.poller};
    }
    all.wanted = atol(argv[2]);
    int64_t begin_ns = wire_now_ns();
    run(&all, at_once);
    printf("{\"handshakes\": %ld, \"resumed\": %ld, \"seconds\": %.6f}\n", all.ended, all.resumed,
           (double)(wire_now_ns() - begin_ns) / 1e9);
    return 0;
}
