"""Bar charts as SVG with round numbers on the axes.

Owns: nothing.
Invariants: a chart is a single element that needs no script and no other file; axis labels are
  round numbers.
"""

from __future__ import annotations

import html as markup
import math
from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 920, 230, 58, 14, 20, 28
TICKS_MAX = 5
log2 = math.log2


def bars(values: Sequence[float], ticks: Sequence[tuple[float, str]], hints: Sequence[str],
         kind: str, marks: Sequence[tuple[float, str]] = ()) -> str:
    """Return a plot as one element that needs no other file."""
    return framed(plot(values, ticks, hints, kind, marks))


def framed(drawn: str, height: int = HEIGHT) -> str:
    """drawn: the SVG of `plot`, with its height."""
    return (f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {height}" role="img">{drawn}</svg>'
            "</div>")


def plot(values: Sequence[float], ticks: Sequence[tuple[float, str]], hints: Sequence[str],
         kind: str, marks: Sequence[tuple[float, str]] = (), height: int = HEIGHT) -> str:
    """values: heights. ticks, marks: (position in bars, label) below and across. hints: per bar.
    kind: the class of the bars.
    """
    across, foot = (WIDTH - LEFT - RIGHT) / len(values), height - BOTTOM
    levels = steps(0, max(values) or 1.0, TICKS_MAX)
    top = max(*values, levels[-1])
    parts = []
    for level in levels:
        y = foot - (foot - TOP) * level / top
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" '
                     f'y2="{y:.1f}"/><text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
                     f"{short(level)}</text>")
    gap = 1.0 if across > 4 else 0.0
    for bar, value in enumerate(values):
        if value:
            length = max((foot - TOP) * value / top, 1.0)
            parts.append(
                f'<rect class="{kind}" x="{LEFT + bar * across:.2f}" y="{foot - length:.2f}" '
                f'width="{across - gap:.2f}" height="{length:.2f}">'
                f"<title>{markup.escape(hints[bar])}</title></rect>")
    for place, text in ticks:
        x = LEFT + place * across
        if LEFT <= x <= WIDTH - RIGHT + 1:
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{foot}" '
                         f'y2="{foot + 5}"/><text x="{x:.1f}" y="{height - 8}" '
                         f'text-anchor="middle">{text}</text>')
    return "".join(parts + _marks(marks, across, foot))


def _marks(marks: Sequence[tuple[float, str]], across: float, foot: float) -> list[str]:
    parts: list[str] = []
    last = -math.inf
    for number, (place, text) in enumerate(marks):
        x = LEFT + place * across
        # Labels that are close together are placed on opposite sides of their lines.
        anchor, aside = ("start", 4) if number or x - LEFT < 60 else ("end", -4)
        if x - last > 2 or number == 0:
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 12}" '
                         f'y2="{foot}"/><text class="mark" x="{x + aside:.1f}" '
                         f'y="{TOP - 6}" text-anchor="{anchor}">{text}</text>')
        last = x
    return parts


def steps(low: float, high: float, count_max: int) -> list[float]:
    """Return round, evenly spaced numbers from low to high, at most count_max + 1."""
    rough = (high - low) / count_max
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * .999)
    return [low + number * step for number in range(int((high - low) / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten in [low, high]; only the powers if there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 6 else (1,)
    made = [factor * 10.0 ** power for power in powers for factor in factors]
    return [value for value in made if low <= value <= high]


def short(value: float) -> str:
    """Return an axis label: 250, 1.5 k, 2 M."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g}"


def duration(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms"
    if milliseconds < 1_000_000:
        return f"{milliseconds / 1000:.3g} s"
    if milliseconds < 7_200_000:
        return f"{milliseconds / 60_000:.3g} min"
    return f"{milliseconds / 3_600_000:.3g} h"
