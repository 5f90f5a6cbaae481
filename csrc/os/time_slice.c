/* Sets the calling thread's time slice with sched_setattr. */
#include "os/time_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

void time_slice_request(uint32_t *now, uint32_t wanted_ns) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } attributes;
    if (*now == wanted_ns) return;
    *now = wanted_ns;
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
    attributes.runtime_ns = wanted_ns;
    long asked = syscall(SYS_sched_setattr, 0, &attributes, 0);
    (void)asked; /* may be forbidden: slices are only an optimization */
}

void time_slice_yield(void) { sched_yield(); }
