"""Predict the rate with more reactors from two-core measurements: a queue for each busy log's lock.

Owns: nothing.
Invariants: no result exceeds the bound of the lock or of the processors.
Source: mean value analysis of a closed network (Reiser and Lavenberg, 1980), one customer per
  reactor, exponential times: real lock times vary less, so waiting is overestimated.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """One acquisition of a log's lock, measured. requests: number of requests that share it.
    outside_us, held_us: CPU without the lock, and with it.
    """

    requests: float
    outside_us: float
    held_us: float


def rate(work: Work, reactors: int, logs: int, handover_us: float = 0.0) -> float:
    """Return requests per second of this many reactors, with a processor each, on evenly used logs.

    handover_us: extra cost of a lock that another processor held last.
    """
    # Acquisitions of one log's lock: share of time, waiting, per µs.
    busy = queued = throughput = 0.0
    for count in range(1, reactors + 1):
        service = work.held_us + handover_us * min(1.0, busy)
        at_lock = service * (1 + queued)
        throughput = count / (work.outside_us + at_lock)
        throughput = min(throughput, logs / service)  # bound of the locks
        queued = throughput / logs * at_lock
        busy = throughput / logs * service
    return throughput * work.requests * 1e6


def ceiling(held_us_a_request: float) -> float:
    """Return the maximum requests per second if the lock were the only cost."""
    return 1e6 / held_us_a_request if held_us_a_request else float("inf")
