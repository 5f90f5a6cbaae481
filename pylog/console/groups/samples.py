"""Samples of the lag of groups whose pages are open, and their chart.

Owns: the samples of each group and user.
Invariants: at most GROUPS_MAX groups with SAMPLES_MAX samples each are kept; a user sees only
  samples that were read with the user's own rights; an unknown lag is a gap in the chart.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

GROUPS_MAX = 500
SAMPLES_MAX = 300  # Ten minutes.
PERIOD_S = 2.0
WIDTH, HEIGHT, MARGIN = 600, 120, 4

Key = tuple[str, str, str]  # Cluster, group, principal.


class LagSample(NamedTuple):
    """records: None if the lag is unknown."""

    time_ms: int
    records: int | None


class Chart(NamedTuple):
    """lines: points of SVG polylines, one for each run of known lags. first_ms, last_ms: of the
    samples. highest, newest: lags; None if unknown.
    """

    lines: list[str]
    first_ms: int
    last_ms: int
    highest: int | None
    newest: int | None


class LagSamples:
    """The samples of all groups."""

    def __init__(self) -> None:
        self._samples: OrderedDict[Key, deque[LagSample]] = OrderedDict()

    def add(self, key: Key, sample: LagSample) -> None:
        """Add a sample, unless the last one is newer than half a period."""
        samples = self._samples.setdefault(key, deque(maxlen=SAMPLES_MAX))
        self._samples.move_to_end(key)
        if samples and sample.time_ms - samples[-1].time_ms < PERIOD_S * 500:
            samples.pop()
        samples.append(sample)
        while len(self._samples) > GROUPS_MAX:
            self._samples.popitem(last=False)

    def chart(self, key: Key, earlier: Iterable[LagSample] = ()) -> Chart | None:
        """Return the chart of a group, None before its second sample. earlier: samples from before
        its page was opened.
        """
        own = self._samples.get(key, ())
        samples = [*(one for one in earlier if not own or one.time_ms < own[0].time_ms), *own]
        if len(samples) < 2:
            return None
        first_ms, last_ms = samples[0].time_ms, samples[-1].time_ms
        highest = max((one.records for one in samples if one.records is not None), default=None)
        lines: list[str] = []
        points: list[str] = []
        for one in samples:
            if one.records is None:
                lines.append(" ".join(points))
                points = []
                continue
            x = (one.time_ms - first_ms) / max(1, last_ms - first_ms)
            y = 1 - one.records / max(1, highest or 0)
            points.append(f"{x * WIDTH:.1f},{MARGIN + y * (HEIGHT - 2 * MARGIN):.1f}")
        lines.append(" ".join(points))
        return Chart([line for line in lines if line], first_ms, last_ms, highest,
                     samples[-1].records)
