/* Logins at a fixed rate, each over a new connection that is closed afterwards.
 *
 * usage: logins PORT RATE_PER_S SECONDS THREADS
 *
 * BENCH_LOGIN names the user and password (SCRAM-SHA-256); if BENCH_TLS_CA is set, TLS is used.
 * Login i starts when it is due, or later if all threads are busy; its latency counts from the
 * due time. Prints one line of JSON. */
#include <pthread.h>
#include <stdatomic.h>

#include "secure.h"

enum { THREADS_MAX = 256 };

static struct {
    int port;
    double rate_s;
    long wanted;
    int64_t begin_ns;
    int64_t *samples_ns;
    atomic_long taken;
} all;

static void *work(void *unused)
{
    (void)unused;
    for (;;) {
        long number = atomic_fetch_add(&all.taken, 1);
        if (number >= all.wanted) {
            return NULL;
        }
        int64_t due_ns = all.begin_ns + (int64_t)((double)number / all.rate_s * 1e9);
        struct timespec due = {due_ns / 1000000000, due_ns % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        secure_stream made = secure_connect(all.port);
        all.samples_ns[number] = wire_now_ns() - due_ns;
        secure_close(&made);
    }
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MAX];
    if (argc != 5 || !getenv("BENCH_LOGIN")) {
        wire_die("usage: BENCH_LOGIN=USER:PASSWORD logins PORT RATE_PER_S SECONDS THREADS");
    }
    int count = atoi(argv[4]);
    all.port = atoi(argv[1]);
    all.rate_s = atof(argv[2]);
    all.wanted = (long)(all.rate_s * atof(argv[3]));
    all.samples_ns = calloc((size_t)all.wanted + 1, sizeof *all.samples_ns);
    if (count < 1 || count > THREADS_MAX || !all.samples_ns) {
        wire_die("1 to %d threads", THREADS_MAX);
    }
    secure_stream first = secure_connect(all.port);
    secure_close(&first);
    all.begin_ns = wire_now_ns() + 100000000;
    for (int index = 0; index < count; index++) {
        if (pthread_create(&threads[index], NULL, work, NULL)) {
            wire_die("no thread");
        }
    }
    for (int index = 0; index < count; index++) {
        pthread_join(threads[index], NULL);
    }
    printf("{\"logins\": %ld, \"seconds\": %.3f, ", all.wanted,
           (double)(wire_now_ns() - all.begin_ns) / 1e9);
    wire_print_percentiles(all.samples_ns, (size_t)all.wanted);
    printf("}\n");
    return 0;
}
