/* Counts mutex operations of a process, for bench.growth.reactors. Loaded with LD_PRELOAD;
 * WAITS_FILE names a file of sizeof(struct site) * SITES_MAX zero bytes, which this library maps
 * for its counters.
 *
 * For each call site (its return address): acquisitions, contended acquisitions, and nanoseconds
 * of waiting and of holding. A wait on a condition ends one hold and begins another. The clock
 * is read twice per acquisition, three times if it is contended. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SITES_MAX = 4096, HELD_MAX = 16 };

struct site {
    _Atomic uint64_t address, locked, contended, waited_ns, held_ns;
};

struct holding {
    pthread_mutex_t *mutex;
    struct site *site;
    uint64_t since_ns;
};

static struct site *sites;
static _Thread_local struct holding held[HELD_MAX];
static _Thread_local int held_count;
static int (*real_lock)(pthread_mutex_t *);
static int (*real_trylock)(pthread_mutex_t *);
static int (*real_unlock)(pthread_mutex_t *);
static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *);
static int (*real_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

__attribute__((constructor)) static void waits_begin(void)
{
    real_lock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
    real_trylock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_trylock");
    real_unlock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    real_wait = (int (*)(pthread_cond_t *, pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_cond_wait");
    real_timedwait = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))dlsym(
        RTLD_NEXT, "pthread_cond_timedwait");
    const char *path = getenv("WAITS_FILE");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED
                         : mmap(NULL, sizeof(struct site) * SITES_MAX, PROT_READ | PROT_WRITE,
                                MAP_SHARED, file, 0);
    if (file >= 0) {
        close(file);
    }
    if (map != MAP_FAILED) {
        sites = map;
    }
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* NULL: counting is disabled, or the table is full. */
static struct site *site_of(const void *address)
{
    uint64_t key = (uint64_t)(uintptr_t)address;
    for (uint64_t probe = 0; sites && probe < SITES_MAX; probe++) {
        struct site *s = &sites[(key * 0x9e3779b97f4a7c15u + probe) % SITES_MAX];
        uint64_t is = atomic_load_explicit(&s->address, memory_order_relaxed);
        if (is == key || (is == 0 && atomic_compare_exchange_strong(&s->address, &is, key)) ||
            is == key) {
            return s;
        }
    }
    return NULL;
}

static void add(_Atomic uint64_t *counter, uint64_t value)
{
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static void begin_holding(pthread_mutex_t *mutex, struct site *site, uint64_t since_ns)
{
    if (held_count < HELD_MAX) {
        held[held_count++] = (struct holding){mutex, site, since_ns};
    }
}

/* Returns the call site, NULL if it was not counted. */
static struct site *end_holding(pthread_mutex_t *mutex)
{
    for (int i = held_count - 1; i >= 0; i--) {
        if (held[i].mutex != mutex) {
            continue;
        }
        struct site *site = held[i].site;
        add(&site->held_ns, now_ns() - held[i].since_ns);
        for (held_count--; i < held_count; i++) {
            held[i] = held[i + 1];
        }
        return site;
    }
    return NULL;
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    struct site *site = real_trylock ? site_of(__builtin_return_address(0)) : NULL;
    if (!site) {
        if (!real_lock) {
            waits_begin();
        }
        return real_lock(mutex);
    }
    int result = real_trylock(mutex);
    uint64_t since_ns = now_ns();
    if (result) {
        result = real_lock(mutex);
        uint64_t got_ns = now_ns();
        add(&site->contended, 1);
        add(&site->waited_ns, got_ns - since_ns);
        since_ns = got_ns;
    }
    if (!result) {
        add(&site->locked, 1);
        begin_holding(mutex, site, since_ns);
    }
    return result;
}

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (!real_unlock) {
        waits_begin();
    }
    end_holding(mutex);
    return real_unlock(mutex);
}

int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    struct site *site = end_holding(mutex);
    int result = real_wait(condition, mutex);
    if (site) {
        begin_holding(mutex, site, now_ns());
    }
    return result;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                           const struct timespec *until)
{
    struct site *site = end_holding(mutex);
    int result = real_timedwait(condition, mutex, until);
    if (site) {
        begin_holding(mutex, site, now_ns());
    }
    return result;
}
