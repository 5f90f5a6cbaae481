"""A self-contained HTML page of a verdict: results, plots, a table per partition.

Owns: nothing.
Invariants: the page loads no other file and has no scripts; it is readable in light and dark mode,
  on paper and on a narrow screen; the verdict comes first, followed by each kind of fault.
"""

from __future__ import annotations

import html as markup
import time
from collections.abc import Iterable

from . import chart, summary
from .plan import Outcome
from .verdict import MEANING, PART_FAULTS, PartitionRow, Verdict

BARS_MAX = 200
STRIP_HEIGHT = 120
RUNS_SHOWN_MAX = 5
STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1c2430; --soft: #5b6675;
  --line: #d9dee5; --card: #f5f7f9; --bar: #2f6fcf; --bar2: #2b9a86; --good: #1e7d41;
  --bad: #b3261e; --mark: #c8601a }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --text: #e4e8ed;
  --soft: #9aa5b3; --line: #333b45; --card: #1d232a; --bar: #6ea3ef; --bar2: #56c4ae;
  --good: #22884a; --bad: #c9372c; --mark: #f0a060 } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; max-width: 960px;
  margin: 0 auto; padding: 1.5rem 1.25rem 3rem; background: var(--ground); color: var(--text) }
h1 { font-size: 1.45rem; margin: 0 0 .8rem; overflow-wrap: anywhere }
h2 { font-size: 1.08rem; margin: 2.2rem 0 .5rem }
p.note { color: var(--soft); margin: .2rem 0 .6rem }
.verdict { color: #fff; padding: .8rem 1.1rem; border-radius: 8px; margin: 0 0 1rem }
.verdict strong { font-size: 1.15rem; margin-right: .5rem } .good { background: var(--good) }
.bad { background: var(--bad) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: .7rem }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .8rem } .card b { display: block; font-size: 1.25rem; line-height: 1.3 }
.card span { color: var(--soft); font-size: .86rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
th { font-weight: 600; color: var(--soft); font-size: .86rem }
td, th { padding: .28rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap } td.text, th.text { text-align: left; white-space: normal }
.fault { color: var(--bad); font-weight: 600 } .soft { color: var(--soft) }
@media (prefers-color-scheme: dark) { .fault { color: #ff8a80 } }
ul.faults { margin: .5rem 0; padding-left: 1.2rem } ul.faults li { overflow-wrap: anywhere }
.scroll { overflow-x: auto } svg { display: block; width: 100%; min-width: 620px; height: auto }
svg text { font: 11.5px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--soft) }
svg .grid { stroke: var(--line) } svg .a { fill: var(--bar) } svg .b { fill: var(--bar2) }
svg .fault-bar { fill: var(--bad) }
svg .mark { stroke: var(--mark); stroke-dasharray: 4 3 }
svg text.mark { fill: var(--mark); stroke: none }
.share { display: inline-block; vertical-align: middle; height: .6rem; background: var(--bar);
  border-radius: 2px }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .86rem }
"""


def html(topic: str, found: Verdict, outcome: Outcome | None, seconds: float,
         more: Iterable[tuple[str, str]] = ()) -> str:
    """Return the page. seconds: duration of reading. more: (name, text) of the environment, such as
    the broker.
    """
    word = "Good" if found.good else "Bad"
    parts = [
        f"<h1>Topic <code>{markup.escape(topic)}</code></h1>", _verdict(word, found),
        _fault_list(found), _cards(found, outcome, seconds),
        "<h2>Checks</h2>", _checks(found), *_over_time(found), *_throughput(found),
        *_latency(found),
        "<h2>Partitions</h2>", _partitions(found.partitions), _circumstances(found, outcome, more),
        f"<footer>Written {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())} by "
        "spark.validate, which computes each expected record from the seed.</footer>",
    ]
    return document(f"{word}: {topic}", filter(None, parts))


def document(title: str, parts: Iterable[str]) -> str:
    """Return a self-contained page. parts: HTML."""
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{markup.escape(title)}</title><style>{STYLE}</style></head><body>"
            + "\n".join(parts) + "</body></html>\n")


def _verdict(word: str, found: Verdict) -> str:
    if found.good:
        says = f"all {found.expected:,} records exist once, intact and in order, and no others"
        says += (f", {found.superseded:,} of them replaced by later ones of their keys "
                 "(compaction)." if found.superseded else ".")
    else:
        says = "; ".join(f"{count:,} {name.replace('_', ' ')}"
                         for name, count in found.faults.items() if count) + "."
    return f'<p class="verdict {word.lower()}"><strong>{word}</strong> {says}</p>'


def _fault_list(found: Verdict) -> str:
    """Return the first positions of each kind of fault."""
    runs = [f"missing: generator {generator}, sequence {first}" if first == last else
            f"missing: generator {generator}, sequences {first} to {last} ({last - first + 1:,})"
            for generator, first, last in found.missing_runs]
    if len(runs) > RUNS_SHOWN_MAX:
        runs[RUNS_SHOWN_MAX:] = ["missing: more ranges, which the JSON of the verdict lists"]
    items = "".join(f"<li><code>{markup.escape(text)}</code></li>"
                    for text in [*runs, *found.examples])
    return f'<ul class="faults">{items}</ul>' if items else ""


def _cards(found: Verdict, outcome: Outcome | None, seconds: float) -> str:
    seconds = max(seconds, 1e-3)
    cards = [(f"{found.records:,}", f"records found of {found.expected:,}"),
             (size(found.bytes), "of values")]
    if outcome is not None:
        took = max(1e-3, (outcome.ended_ms - outcome.started_ms) / 1000)
        total = sum(outcome.counts.values())
        cards.append((f"{chart.short(total / took)}/s", f"records loaded in {took:.1f} s, "
                      f"{size(outcome.bytes / took)}/s"))
    cards.append((f"{chart.short(found.records / seconds)}/s", "records read and checked in "
                  f"{seconds:.1f} s, {size(found.bytes / seconds)}/s"))
    if found.ack_ms:
        cards.append((chart.duration(found.ack_ms["p99"]), "p99 until acknowledged, p50 "
                      f"{chart.duration(found.ack_ms['p50'])}"))
    cards.append((f"{found.skew:.2f}", "largest partition over the mean"))
    return '<div class="cards">' + "".join(
        f'<div class="card"><b>{value}</b><span>{name}</span></div>' for value, name in cards
    ) + "</div>"


def _checks(found: Verdict) -> str:
    rows = "".join(
        f'<tr><td class="text{" fault" if count else ""}">{"✗" if count else "✓"} '
        f'{name.replace("_", " ")}</td><td{" class=fault" if count else ""}>{count:,}</td>'
        f'<td class="text soft">{MEANING[name]}</td></tr>'
        for name, count in found.faults.items())
    explained = sum(part.explained_gaps for part in found.partitions)
    if explained:
        rows += (f'<tr><td class="text">explained gaps</td><td>{explained:,}</td><td class="text '
                 'soft">offsets of markers, of aborted transactions, or removed by compaction'
                 "</td></tr>")
    return f'<div class="scroll"><table>{rows}</table></div>'


def _over_time(found: Verdict) -> list[str]:
    """Return one picture: throughput, latency, missing and duplicate records, on one time axis."""
    if not found.timeline:
        return []
    first, last = found.timeline[0].second, found.timeline[-1].second
    step = max(1, -(-(last - first + 1) // BARS_MAX))
    count = (last - first) // step + 1
    rows: dict[str, list[float]] = {name: [0.0] * count for name in (
        "records", "latency", "missing", "doubled")}
    for moment in found.timeline:
        at = (moment.second - first) // step
        rows["records"][at] += moment.records / step
        rows["latency"][at] = max(rows["latency"][at], moment.ack_p99_ms or 0.0)
        rows["missing"][at] += moment.missing
        rows["doubled"][at] += moment.doubled
    ticks = [(at / step, f"{at:g} s") for at in chart.steps(0, last - first + 1, 10)]
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(first))
    parts = ["<h2>Over time</h2>", f'<p class="note">All panels start at {began}. A missing record '
             "is shown when it was sent. A duplicate is shown at its own timestamp, or when its "
             "record was sent if two tasks read the copies. Only the manifest of the load has the "
             "times of sending.</p>"]
    for title, name, unit, kind in (
            ("Records per second", "records", " records/s", "b"),
            ("Acknowledgement latency, p99 in ms", "latency", " ms", "a"),
            ("Missing records", "missing", " missing", "fault-bar"),
            ("Duplicate records", "doubled", " duplicates", "fault-bar")):
        if name == "latency" and not found.ack_ms:
            continue
        values = rows[name]
        hints = [f"{place * step} s: {value:,.0f}{unit}" for place, value in enumerate(values)]
        parts += [f'<p class="note">{title}{_count(found, name, sum(values))}</p>', chart.framed(
            chart.plot(values, ticks, hints, kind, height=STRIP_HEIGHT), STRIP_HEIGHT)]
    return parts


def _count(found: Verdict, name: str, shown: float) -> str:
    """Return how many records with this fault there are, and how many of them a panel shows."""
    if name not in found.faults:
        return ""
    count = found.faults[name]
    return f": {count:,}" + ("" if shown == count else f", of which {shown:,.0f} have a known time")


def _throughput(found: Verdict) -> list[str]:
    parts = []
    for title, note, rows, kind in (
            ("Written, records per second", "By the records' timestamps.", found.seconds, "a"),
            ("Read and checked, records per second", "By the clock of the reading tasks.",
             found.read_seconds, "b")):
        if not rows:
            continue
        first, last = rows[0][0], rows[-1][0]
        step = max(1, -(-(last - first + 1) // BARS_MAX))
        bars = [0.0] * ((last - first) // step + 1)
        volumes = [0.0] * len(bars)
        for second, count, volume in rows:
            bars[(second - first) // step] += count / step
            volumes[(second - first) // step] += volume / step
        ticks = [(at / step, f"{at:g} s") for at in chart.steps(0, last - first + 1, 10)]
        hints = [f"{place * step} s: {count:,.0f} records/s, {size(volume)}/s"
                 for place, (count, volume) in enumerate(zip(bars, volumes))]
        began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(first))
        # No mean of these seconds: they are fewer than the job took, and the card shows the
        # throughput.
        parts += [f"<h2>{title}</h2>", f'<p class="note">{note} From {began}.</p>',
                  chart.bars(bars, ticks, hints, kind)]
    return parts


def _latency(found: Verdict) -> list[str]:
    parts = []
    for title, note, counts, figures in (
            ("Until a record was acknowledged", "From handing a block of records to the producer "
             "to its last acknowledgement, weighted by records.", found.acks, found.ack_ms),
            ("From a record's timestamp to its check", "End to end where the reading follows the "
             "writing; where it comes later, how long the records lay.", found.latencies,
             found.latency_ms)):
        if not figures:
            continue
        used = [number for number, count in enumerate(counts) if count]
        low, high = max(0, used[0] - 8), used[-1] + 8
        ticks = [(summary.LATENCY_STEPS * chart.log2(tick) - low + .5, chart.duration(tick))
                 for tick in chart.decades(summary.latency_ms(low), summary.latency_ms(high))]
        marks = [(summary.LATENCY_STEPS * chart.log2(figures[name]) - low + .5, name)
                 for name in ("p50", "p99")]
        hints = [f"up to {chart.duration(summary.latency_ms(low + place))}: {count:,} records"
                 for place, count in enumerate(counts[low:high])]
        row = ", ".join(f"{name} {chart.duration(value)}" for name, value in figures.items())
        parts += [f"<h2>{title}</h2>", f'<p class="note">{note}<br>{row}.</p>', chart.bars(
            [float(count) for count in counts[low:high]], ticks, hints, "a", marks)]
    return parts


def _partitions(partitions: list[PartitionRow]) -> str:
    most = max((part.records for part in partitions), default=0) or 1
    rows = ""
    for part in partitions:
        faults = ", ".join(f"{getattr(part, name):,} {name.replace('_', ' ')}"
                           for name in PART_FAULTS if getattr(part, name))
        rows += (
            f"<tr><td>{part.partition}</td><td>{part.records:,}</td>"
            f'<td class="text"><span class="share" style="width:{6 * part.records / most:.2f}rem">'
            f"</span></td><td>{size(part.bytes)}</td><td>{part.first_offset:,}</td>"
            f"<td>{part.end_offset:,}</td><td>{part.explained_gaps:,}</td>"
            f'<td class="text {"fault" if faults else "soft"}">{faults or "none"}</td></tr>')
    head = ('<th>partition</th><th>records</th><th class="text"></th><th>values</th>'
            '<th>first offset</th><th>end offset</th><th>explained gaps</th>'
            '<th class="text">faults</th>')
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _circumstances(found: Verdict, outcome: Outcome | None,
                   more: Iterable[tuple[str, str]]) -> str:
    rows = list(more)
    if outcome is not None:
        plan, content = outcome.plan, outcome.plan.content
        keys = (f"{content.keys:,} keys" + (f" with skew {content.skew}" if content.skew else "")
                if content.keys else "no keys")
        rows = [
            ("content", f"seed {content.seed}, values of {content.sizes} bytes, {keys}"
             + (", headers" if content.headers else "")),
            ("load", f"engine {plan.engine}, {plan.generators} generators, acks "
             f"{plan.settings.get('acks', 'all')}, compression "
             f"{plan.settings.get('compression.type', 'none')}"
             + (", in transactions" if plan.transactional else "")
             + (f", {plan.rate.kind} rate up to {plan.rate.high:,.0f} records/s"
                if plan.rate.high else "")), *rows]
    if not rows:
        return ""
    return "<h2>Circumstances</h2><table>" + "".join(
        f'<tr><td class="text soft">{markup.escape(name)}</td>'
        f'<td class="text">{markup.escape(text)}</td></tr>' for name, text in rows) + "</table>"


def size(count: float) -> str:
    """Return bytes in a suitable unit."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.{0 if count >= 100 * factor else 1}f} {unit}"
    return f"{count:,.0f} B"
