"""The tables and the picture of the curves, and bench/results/growth.md, which contains them.

Owns: bench/results/growth.md's sections of curves, bench/results/growth.svg.
Invariants: a section contains one run and names it; a missing point is a gap in the table and in
  the picture, never an interpolated value.
"""

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.growth.curves import CURVES, Curve
from bench.table import number

PAGE = Path(__file__).resolve().parents[1] / "results" / "growth.md"
PICTURE = PAGE.with_suffix(".svg")
BENDS = 1.1  # A ratio to Kafka's growth; smaller differences are within the spread of rounds.
COLOURS = {"kafka": "#888888", "pylog": "#1f6fb4"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, ACROSS = 340, 220, 52, 12, 40, 34, 3

# By point, side and key: a value for each round.
Samples = Mapping[int, Mapping[str, Mapping[str, Sequence[float]]]]


def value(samples: Samples, point: int, side: str, key: str) -> float | None:
    rounds = samples.get(point, {}).get(side, {}).get(key, ())
    return median(rounds) if rounds else None


def growth(curve: Curve, samples: Samples, side: str,
           last: int | None = None) -> tuple[int, float] | None:
    """Return the last point with a value, and the ratio of its value to the minimum."""
    found = [(point, at) for point in sorted(samples) if last is None or point <= last
             if (at := value(samples, point, side, curve.bending)) is not None]
    least = min((at for _, at in found), default=0.0)
    return (found[-1][0], found[-1][1] / least) if len(found) > 1 and least else None


def verdict(curve: Curve, samples: Samples) -> str:
    """Describe how the compared metric grows on each side."""
    ours, theirs = growth(curve, samples, "pylog"), growth(curve, samples, "kafka")
    if ours is None:
        return ""
    what = curve.figures[curve.bending]
    text = f"{what}: {ours[1]:.2f} times the least at {ours[0]:,} {curve.growing}"
    if theirs is None:
        return f"{text}."
    common = growth(curve, samples, "pylog", theirs[0]) or ours
    bends = common[1] > theirs[1] * BENDS and common[1] > BENDS
    there = "" if common == ours else f", pylog's {common[1]:.2f} times there"
    return (f"{text}, Kafka's {theirs[1]:.2f} times at {theirs[0]:,}{there}: "
            f"{'**bends more than Kafka’s**' if bends else 'no more than Kafka’s'}.")


def table(curve: Curve, samples: Samples, sides: Sequence[str]) -> str:
    figures = {**curve.figures, "rss_mb": "memory, MB"}
    lines = [f"| {curve.growing} | " + " | ".join(
        f"{text}: {', '.join(sides)}" for text in figures.values()) + " |",
        "|--:|" + "--:|" * len(figures)]
    for point in sorted(samples):
        cells = [" / ".join(number(value(samples, point, side, key)) for side in sides)
                 for key in figures]
        lines.append(f"| {point:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def section(curve: Curve, samples: Samples, sides: Sequence[str], head: Sequence[str],
            failures: Sequence[str]) -> str:
    """Return the section of one run."""
    parts = [curve.text, "\n".join(head), table(curve, samples, sides), verdict(curve, samples)]
    if failures:
        parts.append("Without a figure:\n" + "\n".join(f"- {line}" for line in failures))
    return "\n\n".join(part for part in parts if part) + "\n"


def picture(found: Mapping[str, Samples]) -> str:
    """Return small plots, both axes logarithmic, as one SVG."""
    rows = math.ceil(len(found) / ACROSS)
    panels = [
        f'<g transform="translate({place % ACROSS * WIDTH},{place // ACROSS * HEIGHT})">'
        f"{_panel(CURVES[name], samples)}</g>"
        for place, (name, samples) in enumerate(found.items())]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * ACROSS} '
            f'{HEIGHT * rows}" font-family="sans-serif" font-size="11" fill="#444">'
            f'<rect width="100%" height="100%" fill="#fff"/>{"".join(panels)}</svg>\n')


def _panel(curve: Curve, samples: Samples) -> str:
    lines = {side: [(point, at) for point in sorted(samples) if point > 0
                    and (at := value(samples, point, side, curve.bending))]
             for side in COLOURS}
    points = [pair for line in lines.values() for pair in line]
    if not points:
        return ""
    x_at = _scale([x for x, _ in points], LEFT, WIDTH - RIGHT)
    y_at = _scale([y for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = [f'<text x="{LEFT}" y="16" font-weight="bold">{html.escape(curve.title)}</text>'
             f'<text x="{LEFT}" y="30">{html.escape(curve.figures[curve.bending])}</text>']
    for power in _powers([y for _, y in points]):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_at(power):.1f}" '
                     f'y2="{y_at(power):.1f}" stroke="#ddd"/><text x="{LEFT - 5}" '
                     f'y="{y_at(power) + 4:.1f}" text-anchor="end">{power:,g}</text>')
    for x in sorted({x for x, _ in points}):
        parts.append(f'<text x="{x_at(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                     f"{_short(x)}</text>")
    for side, line in lines.items():
        drawn = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{COLOURS[side]}" '
                     'stroke-width="2"/>')
        parts += [f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{COLOURS[side]}"/>'
                  for x, y in line]
        if line:
            parts.append(f'<text x="{WIDTH - RIGHT}" y="{y_at(line[-1][1]) - 6:.1f}" '
                         f'text-anchor="end" fill="{COLOURS[side]}">{side}</text>')
    return "".join(parts)


def _powers(values: Sequence[float]) -> list[float]:
    low, high = (round_(math.log10(end)) for round_, end in (
        (math.floor, min(values)), (math.ceil, max(values))))
    return [10.0 ** power for power in range(low, max(high, low + 1) + 1)]


def _scale(values: Sequence[float], begin: float, end: float):
    powers = _powers(values)
    low, high = math.log10(powers[0]), math.log10(powers[-1])
    return lambda at: begin + (end - begin) * (math.log10(at) - low) / (high - low)


def _short(count: float) -> str:
    for unit, suffix in ((1_000_000, "M"), (1000, "k")):
        if count >= unit:
            return f"{count / unit:g}{suffix}"
    return f"{count:g}"
