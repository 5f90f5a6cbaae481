/* Requests a scheduler time slice for the calling thread.
 *
 * A thread with a short slice is scheduled sooner after waking, and more often. A thread with a
 * long slice yields to waking threads, and is scheduled less often. Both get the same CPU time
 * in total, so no thread starves, even one that holds a lock. Threads that answer requests
 * therefore use short slices. They use long slices, as the workers do, while they transfer data
 * for bulk reads.
 *
 * Measured beside a reader of 1 GB/s from disk, with two processors, Linux 6.18, on a machine
 * with other load: time that runnable threads of the latency path (reactors and a client) waited
 * for other threads of the broker, p99: 187 to 266 us without long slices, 92 to 192 us with
 * them, 35 to 80 us without the reader. SCHED_IDLE for the workers was not better (73 to 150
 * us), and a thread preempted while holding a lock may then not run again for a second on busy
 * processors. A nice value of 19 had no effect: weights decide the share of CPU time, not the
 * order.
 *
 * The kernel notices the end of a slice at its next tick, up to 4 ms later (250 Hz), or when a
 * thread wakes. Until then, runnable threads wait for a thread that always finds more work. A
 * thread that continues without sleeping must therefore yield. Measured with two reactors on one
 * processor, the client on another, and 64 connections that produce single records: p99 4.3 ms
 * without yielding, 1.0 ms with it; p99.9 4.9 and 1.5 ms; CPU per request 7.8 us in both cases.
 * With 8 connections: 0.97 and 0.32 ms.
 *
 * Needs Linux 6.12; has no effect on earlier kernels or without permission.
 * Threads: any, each for itself. */
#ifndef PYLOG_TIME_SLICE_H
#define PYLOG_TIME_SLICE_H

#include <stdint.h>

enum {
    SLICES_USUAL_NS = 0,
    SLICES_SHORT_NS = 200 * 1000,
    SLICES_LONG_NS = 20 * 1000 * 1000
};

/* *now: the slice requested before, initially 0. Does not change niceness or policy. */
void time_slice_request(uint32_t *now, uint32_t wanted_ns);

/* Yields to the other runnable threads, then continues. */
void time_slice_yield(void);

#endif
