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

#endif
