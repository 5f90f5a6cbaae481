/* Preloaded into a broker under test: shifts its wall clock by the nanoseconds in the first
 * eight bytes of the file CLOCK_FILE, which may change at any time. Other clocks are unchanged. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SECOND = 1000000000 };
static const volatile int64_t *offset_ns;

__attribute__((constructor)) static void open_file(void) {
    const char *name = getenv("CLOCK_FILE");
    int fd = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof *offset_ns, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) offset_ns = at;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    int result = (int)syscall(SYS_clock_gettime, clock, out);
    if (result != 0 || offset_ns == NULL) return result;
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return result;
    int64_t now = (int64_t)out->tv_sec * SECOND + out->tv_nsec + *offset_ns;
    out->tv_sec = now / SECOND;
    out->tv_nsec = now % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}
