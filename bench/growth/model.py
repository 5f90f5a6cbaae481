"""What more reactors would give, by the two-core figures: a queue before each hot log's lock.

Owns: nothing.
Invariants: (1) no figure is above what the lock alone, or the processors alone, let through.
Source: mean value analysis of a closed network (Reiser and Lavenberg, 1980), one customer a
  reactor, exponential times: locks are held more regularly, so that waiting is overstated.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """Of one turn at a log's lock, measured. requests: that share it. outside_us, held_us: CPU
    without it, and with it."""

    requests: float
    outside_us: float
    held_us: float


def rate(work: Work, reactors: int, logs: int, handover_us: float = 0.0) -> float:
    """Requests a second of so many reactors, a processor each, on evenly used logs.

    handover_us: what it costs more to get a lock that another one had just then.
    """
    busy = queued = throughput = 0.0   # turns at one log's lock: share of time, waiting, 1/µs
    for count in range(1, reactors + 1):
        service = work.held_us + handover_us * min(1.0, busy)
        at_lock = service * (1 + queued)
        throughput = count / (work.outside_us + at_lock)
        throughput = min(throughput, logs / service)   # Keeps (1).
        queued = throughput / logs * at_lock
        busy = throughput / logs * service
    return throughput * work.requests * 1e6


def ceiling(held_us_a_request: float) -> float:
    """Requests a second that a lock lets through if nothing else took time."""
    return 1e6 / held_us_a_request if held_us_a_request else float("inf")
