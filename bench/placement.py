"""Where a broker and its clients run, and whether figures of several rounds agree.

Invariants: (1) a broker is started with every processor and pinned afterwards, all threads that it
  has, so that it sizes itself as it would anywhere.
Source: measured: unpinned, the same program takes 3.4 to 33 CPU s per million small requests, as
  its threads happen to lie.
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
    """Processors of the broker, and of everything that this process starts meanwhile."""

    name: str
    broker: frozenset[int]
    clients: frozenset[int]


def placements(processors: Sequence[int] | None = None) -> dict[str, Placement]:
    """same: broker and clients share one processor; apart: one each; free: any. Without a second
    processor there is no apart."""
    mine = sorted(os.sched_getaffinity(0) if processors is None else processors)
    every = frozenset(mine)
    last = frozenset(mine[-1:])
    found = {"same": Placement("same", last, last), "free": Placement("free", every, every)}
    if len(mine) > 1:
        found["apart"] = Placement("apart", last, frozenset(mine[:1]))
    return found


def pin(pid: int, processors: frozenset[int]) -> None:
    """Every thread of `pid`; those that it starts later inherit it."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), processors)
        except ProcessLookupError:
            continue  # It has ended meanwhile.


@contextmanager
def pinned(placement: Placement) -> Iterator[None]:
    """This process, and what it starts, where `placement` has the clients."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, placement.clients)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def unpinned() -> Iterator[None]:
    """This process on every processor of the machine, as a broker is started. Keeps (1)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Of the rounds that both have."""
    return [a / b for a, b in zip(ours, theirs, strict=False) if b]


def spread(values: Sequence[float]) -> float | None:
    """The middle half of the values, over their median; None for fewer than ROUNDS_LEAST."""
    if len(values) < ROUNDS_LEAST:
        return None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)


def is_steady(values: Sequence[float]) -> bool:
    found = spread(values)
    return found is not None and found < SPREAD_MAX
