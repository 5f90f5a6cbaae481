"""A histogram of durations: buckets of 3 % width, percentiles, a drawing.

Owns: its counts.
Invariants: memory does not grow with the number of durations; a percentile is at most one bucket's
  width above the exact value.
Source: the idea of HdrHistogram.
"""

from __future__ import annotations

import math
from typing import Any

FIRST_S = 1e-6
PER_DOUBLING = 24
BUCKETS = 36 * PER_DOUBLING  # Up to 19 hours.
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
BAR_COLUMNS = 40


class Latencies:
    """Call add(seconds), then `summary` or `drawing`."""

    def __init__(self) -> None:
        self.counts = [0] * (BUCKETS + 1)
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        at = 0 if seconds <= FIRST_S else int(math.log2(seconds / FIRST_S) * PER_DOUBLING) + 1
        self.counts[min(at, BUCKETS)] += 1
        self.count += 1
        self.sum_s += seconds
        if seconds > self.max_s:
            self.max_s = seconds

    def percentile(self, share: float) -> float:
        """Return an upper bound in seconds for `share` percent, at most one bucket too high."""
        wanted = math.ceil(self.count * share / 100)
        seen = 0
        for at, count in enumerate(self.counts):
            seen += count
            if seen >= wanted and seen:
                return min(FIRST_S * 2 ** (at / PER_DOUBLING), self.max_s)
        return self.max_s

    def summary(self) -> dict[str, Any]:
        """Return percentiles in ms; the keys are stable."""
        if not self.count:
            return {}
        found = {"mean": self.sum_s / self.count}
        found.update({f"p{share:g}": self.percentile(share) for share in PERCENTILES})
        found["max"] = self.max_s
        return {key: round(value * 1000, 4) for key, value in found.items()}

    def drawing(self) -> list[str]:
        """Return one line for each doubling from the shortest duration to the longest."""
        rows: dict[int, int] = {}
        for at, count in enumerate(self.counts):
            if count:
                doubling = -(-at // PER_DOUBLING)
                rows[doubling] = rows.get(doubling, 0) + count
        if not rows:
            return []
        most = max(rows.values())
        return [f"  <= {_ms(FIRST_S * 2 ** at * 1000):>9} ms  "
                f"{'#' * round(rows.get(at, 0) / most * BAR_COLUMNS):<{BAR_COLUMNS}}  "
                f"{rows.get(at, 0)}" for at in range(min(rows), max(rows) + 1)]


def _ms(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
