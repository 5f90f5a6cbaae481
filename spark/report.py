"""One HTML page of a verdict that needs no other file: figures, plots, a table per partition.

Owns: nothing.
Called by: spark.validate, spark.soak.
Invariants: (1) the page loads nothing; (2) it reads in light and dark.
"""

from __future__ import annotations

import html as markup
import time

from spark import summary
from spark.plan import Outcome
from spark.verdict import MEANING, Verdict

WIDTH, HEIGHT, LEFT, BOTTOM = 860, 220, 70, 26
BARS_MAX = 240
STYLE = """
:root { color-scheme: light dark; --line: #8886; --bar: #3b7dd8; --good: #2a8a4a; --bad: #c33; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 900px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin-top: 2rem }
.verdict { color: #fff; padding: .6rem 1rem; border-radius: 6px; font-weight: 600; }
.good { background: var(--good) } .bad { background: var(--bad) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right }
td:first-child, th:first-child { text-align: left }
td.fault { color: var(--bad); font-weight: 600 }
.scroll { overflow-x: auto } svg { width: 100%; height: auto }
svg text { font: 11px system-ui, sans-serif; fill: currentColor } svg rect { fill: var(--bar) }
svg line { stroke: var(--line) } code { font-size: .9em }
"""


def html(topic: str, found: Verdict, outcome: Outcome | None, seconds: float) -> str:
    """The page."""
    word = "Good" if found.good else "Bad"
    lost = sum(found.faults.values())
    says = ("every record is there once, whole and in order" if found.good
            else f"{lost} faults; see below")
    parts = [
        f"<h1>Topic {markup.escape(topic)}</h1>",
        f'<p class="verdict {word.lower()}">{word}: {says}.</p>',
        _figures(found, outcome, seconds), _faults(found),
        "<h2>Throughput, by the records' timestamps</h2>", _throughput(found),
        "<h2>From a record's timestamp to its reading</h2>", _latency(found),
        "<h2>Partitions</h2>", _partitions(found),
        f"<p>Written {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}.</p>",
    ]
    return ("<!doctype html><html lang=en><head><meta charset=utf-8>"
            "<meta name=viewport content='width=device-width'>"
            f"<title>{word}: {markup.escape(topic)}</title><style>{STYLE}</style></head><body>"
            + "\n".join(parts) + "</body></html>\n")


def _figures(found: Verdict, outcome: Outcome | None, seconds: float) -> str:
    rows = [("records found", f"{found.records:,}"), ("records expected", f"{found.expected:,}"),
            ("bytes of values", f"{found.bytes:,}"),
            ("read in", f"{seconds:.1f} s: {found.records / seconds:,.0f} records/s, "
                        f"{found.bytes / seconds / 1e6:,.1f} MB/s"),
            ("largest partition over the mean", f"{found.skew:.2f}")]
    if outcome is not None:
        took = max(1e-3, (outcome.ended_ms - outcome.started_ms) / 1000)
        total = sum(outcome.counts.values())
        rows.insert(2, ("loaded in", f"{took:.1f} s: {total / took:,.0f} records/s, "
                                     f"{outcome.bytes / took / 1e6:,.1f} MB/s "
                                     f"(engine {outcome.plan.engine})"))
        rows.append(("content", f"seed {outcome.plan.content.seed}, sizes "
                     f"{outcome.plan.content.sizes}, keys {outcome.plan.content.keys}, "
                     f"skew {outcome.plan.content.skew}"))
    return "<table>" + "".join(
        f"<tr><td>{name}</td><td>{markup.escape(text)}</td></tr>" for name, text in rows
    ) + "</table>"


def _faults(found: Verdict) -> str:
    rows = "".join(
        f"<tr><td>{name.replace('_', ' ')}</td>"
        f"<td{' class=fault' if count else ''}>{count:,}</td>"
        f"<td style='text-align:left'>{MEANING[name]}</td></tr>"
        for name, count in found.faults.items())
    told = "".join(f"<li><code>{markup.escape(text)}</code></li>" for text in found.examples)
    told += "".join(f"<li><code>missing: generator {generator}, sequences {first} to {last}"
                    "</code></li>" for generator, first, last in found.missing_runs)
    return f"<h2>Checks</h2><table>{rows}</table>" + (f"<ul>{told}</ul>" if told else "")


def _throughput(found: Verdict) -> str:
    if not found.seconds:
        return "<p>No timestamps were read.</p>"
    first, last = found.seconds[0][0], found.seconds[-1][0]
    step = max(1, -(-(last - first + 1) // BARS_MAX))
    bars = [0.0] * ((last - first) // step + 1)
    for second, count, _ in found.seconds:
        bars[(second - first) // step] += count / step
    ticks = [(place, f"{place * step} s") for place in
             range(0, len(bars), max(1, len(bars) // 8))]
    return _plot(bars, ticks, "records/s")


def _latency(found: Verdict) -> str:
    if not found.latency_ms:
        return "<p>No timestamps were read.</p>"
    used = [number for number, count in enumerate(found.latencies) if count]
    low, high = used[0], used[-1] + 1
    bars = [float(count) for count in found.latencies[low:high]]
    ticks = [(place, _duration(summary.latency_ms(low + place)))
             for place in range(0, len(bars), max(1, len(bars) // 8))]
    rows = "".join(f"<td>{name}: {_duration(value)}</td>"
                   for name, value in found.latency_ms.items())
    return _plot(bars, ticks, "records") + f"<table><tr>{rows}</tr></table>"


def _duration(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms"
    return f"{milliseconds / 1000:.3g} s"


def _plot(bars: list[float], ticks: list[tuple[int, str]], unit: str) -> str:
    """Bars over an axis, as SVG."""
    top = max(bars) or 1.0
    width = (WIDTH - LEFT) / len(bars)
    plain = HEIGHT - BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img aria-label="{unit}">']
    for share in (0.0, 0.5, 1.0):
        y = 12 + (plain - 12) * (1 - share)
        parts.append(f'<line x1={LEFT} x2={WIDTH} y1={y:.1f} y2={y:.1f} />'
                     f'<text x={LEFT - 6} y={y + 4:.1f} text-anchor=end>{top * share:,.0f}</text>')
    for place, value in enumerate(bars):
        height = (plain - 12) * value / top
        parts.append(f'<rect x={LEFT + place * width:.2f} y={plain - height:.2f} '
                     f'width={max(width - .5, .5):.2f} height={height:.2f} />')
    for place, text in ticks:
        parts.append(f'<text x={LEFT + place * width:.1f} y={HEIGHT - 8}>{text}</text>')
    parts.append(f'<text x={LEFT} y=9>{unit}</text></svg>')
    return "".join(parts)


def _partitions(found: Verdict) -> str:
    names = ["partition", "records", "bytes", "first_offset", "end_offset", "doubled",
             "disordered", "corrupted", "foreign", "wrong_key", "unread", "unexplained_gaps"]
    faults = set(names[5:])
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in names)
    rows = ""
    for part in found.partitions:
        cells = [(name, getattr(part, name)) for name in names]
        rows += "<tr>" + "".join(
            f"<td{' class=fault' if name in faults and value else ''}>{value:,}</td>"
            for name, value in cells) + "</tr>"
    return f"<div class=scroll><table><tr>{head}</tr>{rows}</table></div>"
