"""Processors of a broker and its clients, and the spread over several rounds.

Invariants: a broker is started on every processor and all its threads are pinned afterwards, so
  that it sizes itself as in production.
Source: measured: unpinned, the same program takes 3.4 to 33 CPU s per million small requests,
  depending on how its threads are scheduled.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

SPREAD_MAX = 0.05
ROUNDS_LEAST = 3


@dataclass(frozen=True)
class Placement:
    """Processors of the broker, and of every process started while it applies."""

    name: str
    broker: frozenset[int]
    clients: frozenset[int]


def placements(processors: Sequence[int] | None = None) -> dict[str, Placement]:
    """Return same: broker and clients share one processor; apart: one each; free: any. `apart`
    needs two processors.
    """
    mine = sorted(os.sched_getaffinity(0) if processors is None else processors)
    every = frozenset(mine)
    last = frozenset(mine[-1:])
    found = {"same": Placement("same", last, last), "free": Placement("free", every, every)}
    if len(mine) > 1:
        found["apart"] = Placement("apart", last, frozenset(mine[:1]))
    return found


def pin(pid: int, processors: frozenset[int]) -> None:
    """Pin every thread of `pid`; threads that it starts later inherit it."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), processors)
        except ProcessLookupError:
            continue  # The thread has ended.


@contextmanager
def pinned(placement: Placement) -> Iterator[None]:
    """Run this process and its children on the clients' processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, placement.clients)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def unpinned() -> Iterator[None]:
    """Run this process on every processor of the machine, so that a broker sizes itself as usual.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each round that both sides have."""
    return [a / b for a, b in zip(ours, theirs, strict=False) if b]


def spread(values: Sequence[float]) -> float | None:
    """Return the interquartile range over the median; None for fewer than ROUNDS_LEAST."""
    if len(values) < ROUNDS_LEAST:
        return None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)


def is_steady(values: Sequence[float]) -> bool:
    found = spread(values)
    return found is not None and found < SPREAD_MAX
