/* How long a turn on a processor the calling thread asks the scheduler for.
 *
 * A thread that asks for short turns goes first when it wakes up, and gets them often; one that
 * asks for long turns gives way to whoever wakes up, and gets them seldom. Both get as much time in
 * all: nobody starves, whatever locks are held. So the threads that answer ask for short ones, and
 * ask for long ones, as the workers do, for as long as they move what is read in bulk.
 *
 * Measured beside a reader of 1 GB/s from the disk on two processors, Linux 6.18, a machine with
 * other work: how long threads of the tail (the reactors' and a client's) waited, when awake, for
 * threads of ours, p99: 187 to 266 us without long turns, 92 to 192 with, 35 to 80 alone.
 * SCHED_IDLE for the workers instead did not do better (73 to 150), and there one that is preempted
 * with a lock may not run again for a second while the processors are busy. To be nicer (19) did
 * nothing: weights say who gets more, not who goes first.
 *
 * A slice that is over is noticed at the kernel's next tick, up to 4 ms later (250 Hz), or when
 * somebody wakes up: whoever was awake before waits so long for a thread that finds new work each
 * time. So a thread that works on without a sleep gives way by itself. Measured with two reactors
 * on one processor, the client on another, 64 connections of one-record Produces: p99 4.3 ms
 * without, 1.0 ms with it, p99.9 4.9 and 1.5, CPU a request 7.8 us both; 8 connections 0.97 and
 * 0.32 ms.
 *
 * Since Linux 6.12; before that, and where it is forbidden, all stays as it is.
 * Threads: any, each for itself. */
#ifndef PYLOG_SLICES_H
#define PYLOG_SLICES_H

#include <stdint.h>

enum {
    SLICES_USUAL_NS = 0,
    SLICES_SHORT_NS = 200 * 1000,
    SLICES_LONG_NS = 20 * 1000 * 1000
};

/* *now: what the thread asked for before, 0 at first. Niceness and policy stay what they are. */
void slices_ask(uint32_t *now, uint32_t wanted_ns);

/* The calling thread goes on when the others that may run now have had a turn. */
void slices_give_way(void);

#endif
