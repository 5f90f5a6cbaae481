"""The progress of streaming queries as a page or a picture that survives restarts.

Owns: the report's file, and the journal next to it with the batches that it shows.
Invariants: keeps the latest BATCHES_MAX batches; a batch is stored once even if it is reported
  several times; files are replaced atomically, so a kill never leaves a partial file.
Source: Spark's StreamingQueryProgress.
"""

from __future__ import annotations

import html as markup
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import chart, report
from .plan import made_directory

BATCHES_MAX = 400
PANEL_HEIGHT, TITLE_HEIGHT, TICKS_MAX = 130, 34, 10
# A picture has no page around it, and not every SVG viewer supports variables.
STYLE = """
text { font: 11.5px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #5b6675 }
text.title { font-size: 13px; font-weight: 600 } .ground { fill: #fff }
.grid { stroke: #d9dee5 } .a { fill: #2f6fcf } .b { fill: #2b9a86 }
.mark { stroke: #c8601a; stroke-dasharray: 4 3 } text.mark { fill: #c8601a; stroke: none }
"""


@dataclass(frozen=True)
class Batch:
    """One micro-batch. run: changes on a restart of the query. doubled, late: dropped rows; behind:
    records that were waiting when it was planned; state: rows kept for later batches.
    """

    query: str
    number: int
    run: str
    read: int
    written: int
    unreadable: int
    doubled: int
    late: int
    took_ms: int
    behind: int
    state: int


def batch_of(found: Mapping[str, Any]) -> Batch | None:
    """Parse a progress report; None if Spark reports an idle trigger."""
    took = found["durationMs"]
    if "addBatch" not in took:
        return None
    observed: dict[str, int] = {}
    for row in found["observedMetrics"].values():
        observed.update(row if isinstance(row, Mapping) else row.asDict())
    operators = found["stateOperators"]
    return Batch(
        found["name"], found["batchId"], str(found["runId"]), found["numInputRows"] or 0,
        observed.get("written", 0), observed.get("unreadable", 0),
        sum(each["customMetrics"].get("numDroppedDuplicateRows", 0) for each in operators),
        sum(each["numRowsDroppedByWatermark"] for each in operators), took["triggerExecution"],
        sum(map(_behind, found["sources"])), sum(each["numRowsTotal"] for each in operators))


def _behind(source: Mapping[str, Any]) -> int:
    """Return the number of waiting records of a topic; other sources do not report it."""
    last, end = (_offsets(source.get(name)) for name in ("latestOffset", "endOffset"))
    return sum(max(0, offset - end.get(place, offset)) for place, offset in last.items())


def _offsets(given: Any) -> dict[tuple[str, str], int]:
    given = json.loads(given) if isinstance(given, str) else given
    rows = given.items() if isinstance(given, Mapping) else ()
    return {(topic, number): offset for topic, offsets in rows
            if isinstance(offsets, Mapping) for number, offset in offsets.items()
            if isinstance(offset, int)}  # The topic's id is a string.


class Journal:
    """path: of the report, .html or .svg; "" for none. Raises PlanError if it cannot be written."""

    def __init__(self, path: str):
        self.path = path
        self.batches: dict[tuple[str, int], Batch] = {}
        if path:
            made_directory(str(Path(path).parent))
            if self._kept.exists():
                self.add(Batch(**row) for row in json.loads(self._kept.read_text()))

    @property
    def _kept(self) -> Path:
        return Path(f"{self.path}.json")

    def note(self, queries: Iterable[Iterable[Mapping[str, Any]]]) -> None:
        """Add Spark's reports of each query, and write the files if there are new ones."""
        found = [batch for rows in queries for batch in map(batch_of, rows) if batch]
        if self.add(found) and self.path:
            batches = list(self.batches.values())
            _replace(self._kept, json.dumps([asdict(batch) for batch in batches]))
            _replace(Path(self.path), picture(batches) if self.path.endswith(".svg") else
                     page(batches))

    def add(self, batches: Iterable[Batch]) -> bool:
        """Add batches; return True if one is new. Keeps the latest BATCHES_MAX, without duplicates.
        """
        new = {(batch.query, batch.number): batch for batch in batches}
        is_new = any(self.batches.get(key) != batch for key, batch in new.items())
        self.batches.update(new)
        for key in list(self.batches)[:-BATCHES_MAX]:
            del self.batches[key]
        return is_new


def _replace(path: Path, text: str) -> None:
    """Replace the file atomically."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


# Query, title, field, class of the bars.
PANELS = (
    ("rows", "Records read, per batch", "read", "a"),
    ("rows", "Doubles dropped", "doubled", "b"),
    ("rows", "Late orders dropped", "late", "b"),
    ("rows", "Records that wait", "behind", "a"),
    ("rows", "Duration of a batch, ms", "took_ms", "b"),
    ("totals", "Totals written, per batch", "written", "a"),
    ("totals", "Duration of a batch, ms", "took_ms", "b"),
)


def plots(batches: Iterable[Batch]) -> list[tuple[str, str]]:
    """Return (title, SVG) of each panel whose query has had a batch. Restarts are marked."""
    batches = list(batches)
    found = []
    for query, title, field, kind in PANELS:
        own = [batch for batch in batches if batch.query == query]
        if not own:
            continue
        restarts = [(place, "started anew") for place, (before, batch) in enumerate(
            zip(own, own[1:]), 1) if before.run != batch.run]
        step = int(max(1, chart.steps(0, len(own), TICKS_MAX)[1]))
        hints = [f"batch {batch.number}: {getattr(batch, field):,}" for batch in own]
        found.append((f"{query}: {title}", chart.plot(
            [getattr(batch, field) for batch in own],
            [(place + .5, f"{batch.number}") for place, batch in enumerate(own)
             if batch.number % step == 0],
            hints, kind, restarts, PANEL_HEIGHT)))
    return found


def picture(batches: Iterable[Batch]) -> str:
    """Return one SVG file with all panels stacked vertically."""
    parts, y = [], 0
    for title, plot in plots(batches):
        parts.append(f'<text class="title" x="8" y="{y + 20}">{markup.escape(title)}</text>'
                     f'<g transform="translate(0 {y + TITLE_HEIGHT})">{plot}</g>')
        y += TITLE_HEIGHT + PANEL_HEIGHT
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {chart.WIDTH} {y}" '
            f'width="{chart.WIDTH}" height="{y}"><style>{STYLE}</style>'
            f'<rect class="ground" width="{chart.WIDTH}" height="{y}"/>' + "".join(parts)
            + "</svg>\n")


def page(batches: Iterable[Batch]) -> str:
    """Return a page of the totals and all panels. It has no scripts or external files."""
    batches = list(batches)
    cards = []
    for query, name, field in (
            ("rows", "records read", "read"), ("rows", "rows written", "written"),
            ("rows", "doubles dropped", "doubled"), ("rows", "late orders dropped", "late"),
            ("rows", "not readable", "unreadable"), ("totals", "totals written", "written")):
        count = sum(getattr(batch, field) for batch in batches if batch.query == query)
        cards.append(f'<div class="card"><b>{count:,}</b><span>{name}</span></div>')
    charts = [f"<h2>{markup.escape(title)}</h2>{chart.framed(plot, PANEL_HEIGHT)}"
              for title, plot in plots(batches)]
    return report.document("Pipeline", [
        "<h1>Pipeline</h1>",
        f'<p class="note">The last {len(batches)} batches that were seen.</p>',
        '<div class="cards">', *cards, "</div>", *charts])
