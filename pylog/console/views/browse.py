"""The records of a topic: browse, search, follow, and download them.

Owns: nothing.
Invariants: a page says that nothing was found only after a complete search; otherwise it names the
  offsets that were not searched, with a link that continues there; the bytes of records are
  escaped, and numbers of records reach the browser as text.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import Response

from pylog._native.client import text_lines
from pylog.client.columns.rows import Row
from pylog.console.records import filters, search, tail
from pylog.console.events import ClosingResponse, event, stream
from pylog.console.records.filters import Filter, FilterError
from pylog.console.listings import csv_cell
from pylog.console.records.masking import KEY, VALUE, TopicMask
from pylog.console.pages import EXPORT, Page, PageError, audit_details
from pylog.console.records.previews import preview, whole_text
from pylog.console.rendering import bytes_size, local_time, number, render, utc_time, visible
from pylog.console.records.search import Limits, RecordSearch, Searches

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.console.clusters import ClusterSession

PAGE_S = 5.0  # A page then shows its matches so far; its script or its link continues.
BROWSED = 50
PROGRESS_S = 0.25
RANGES_SHOWN_MAX = 50
CSV_HEAD = ("partition", "offset", "timestamp", "key", "value", "headers")
RECORD_PAGE = "/topics/{topic}/records/{partition}/{offset}"
OPERATIONS = ("READ TOPIC", "DESCRIBE TOPIC")
# Names of the query that compare a part of each record.
COMPARED = {KEY: ("key", "key_prefix", "key_contains", "key_json", "key_regex"),
            VALUE: ("value", "json", "value_regex")}


class Cells(NamedTuple):
    """A row of the table of results."""

    partition: str
    offset: str
    time: str
    time_utc: str
    key: str
    key_kind: str
    value: str
    value_kind: str
    headers: str
    size: str
    link: str


def filter_of(request: Request) -> Filter:
    """Return the filter of the query. Raises PageError."""
    try:
        return filters.parse(request.query_params.multi_items())
    except FilterError as failure:
        raise PageError(400, f"The filter is not valid in the field {failure.field}",
                        failure.given, failure.remedy) from None


def mask_of(request: Request, cluster: ClusterSession, topic: str) -> TopicMask:
    """Return what the user may not see of a topic. Raises PageError for a filter that would find
    out hidden values by comparing them.
    """
    mask: TopicMask = request.app.state.console.masks.of(topic, cluster.principal)
    for part, names in COMPARED.items():
        used = [name for name in names if request.query_params.get(name)]
        if used and mask.hides(part):
            raise PageError(403, "Hidden fields cannot be searched", used[0],
                            f"Fields of the {part} are hidden from you. Search without this "
                            "condition.")
    return mask


def limits_of(request: Request, chosen: Filter, seconds: float) -> Limits:
    """Return the limits of a search for a page."""
    settings = request.app.state.console.settings
    most = settings["console.search.matches.max"]
    wanted = chosen.limit or (min(BROWSED, most) if chosen.is_empty else most)
    return Limits(min(wanted, most), min(seconds, settings["console.search.seconds.max"]),
                  settings["console.search.bytes.max"])


async def records(request: Request, cluster: ClusterSession) -> Response:
    """Show the newest records, or the result of a search."""
    name = request.path_params["topic"]
    console = request.app.state.console
    info = (await cluster.admin.describe_topics([name]))[name]
    pairs = [(key, value) for key, value in request.query_params.multi_items()
             if key in filters.NAMES and value]
    context: dict[str, Any] = {
        "name": name, "given": request.query_params, "pairs": pairs, "error": None, "rows": [],
        "partition_count": len(info.partitions), "json_texts": request.query_params.getlist("json"),
        "result": None, "tails": "tail" in request.query_params, "stream": "",
        "export": cluster.url("topics", name, "download"), "orders": filters.ORDERS,
        "copy": _url(cluster, name, "copy", [pair for pair in pairs if pair[0] not in (
            "left", "order", "limit")]),
        "matches_max": console.settings["console.search.matches.max"]}
    try:
        chosen = filters.parse(pairs)
    except FilterError as failure:
        return render(request, "records.html", 400, **{**context, "error": failure})
    mask_of(request, cluster, name)
    if context["tails"]:
        return render(request, "records.html", **{
            **context, "stream": _url(cluster, name, "stream", pairs, tail="1")})
    # The newest records cost little: they are shown even if many searches run.
    with contextlib.nullcontext() if chosen.is_empty else console.searches.slot():
        ranges, shortcut = await search.plan(cluster.admin.cluster, name, chosen)
        run = RecordSearch(cluster.admin.cluster, name, chosen, ranges,
                           limits_of(request, chosen, PAGE_S), console.seconds)
        found: list[Row] = []
        async for one in run.found():
            found += one.rows()
    audit_details(request, query=request.url.query, count=len(found),
                  records=run.progress.records)
    context["rows"] = [cells(request, cluster, name, row) for row in found]
    context["result"] = result = summary(run, cluster, name, pairs, shortcut)
    if run.reason == search.TIME:
        context["stream"] = result["stream"]
    return render(request, "records.html", **context)


def summary(run: RecordSearch, cluster: ClusterSession, name: str, pairs: list[tuple[str, str]],
            shortcut: int | None) -> dict[str, Any]:
    """Return the outcome of a search for a page, and the links that continue it."""
    progress, left = run.progress, filters.ranges_text(run.left)
    others = [pair for pair in pairs if pair[0] != "left"]
    unread = [f"partition {partition}: {start} to {end - 1}"
              for partition, rows in sorted(run.unread.items()) for start, end in rows]
    figures = (f"{number(progress.records)} records, {bytes_size(progress.fetched_bytes)} in "
               f"{progress.seconds:.2f} s")
    if run.is_complete:
        text = (f"{number(progress.matches)} found. The search is complete: {figures}."
                if progress.matches else
                f"No record matches. The search is complete: {figures}.")
    else:
        why = {search.LIMIT: "it has found as many records as it may",
               search.TIME: "its time is over", search.BYTES: "it has read as much as it may",
               search.STOPPED: "it was stopped"}.get(run.reason, "batches are damaged")
        text = (f"{number(progress.matches)} found so far. The search is not complete, because "
                f"{why}: {figures}, {progress.share:.1%} of the range.")
    return {
        "text": text, "complete": run.is_complete, "count": progress.matches,
        "errors": run.errors, "unread": unread[:RANGES_SHOWN_MAX],
        "unread_more": max(0, len(unread) - RANGES_SHOWN_MAX),
        "deleted": [f"partition {partition}: {start} to {stop - 1}"
                    for partition, start, stop in run.deleted[:RANGES_SHOWN_MAX]],
        "more": _url(cluster, name, "", [*others, ("left", left)]) if left else "",
        "stream": _url(cluster, name, "stream", [*others, ("left", left)]) if left else "",
        "shortcut": shortcut,
        "all_partitions": _url(cluster, name, "", [*others, ("all_partitions", "1")])}


def _url(cluster: ClusterSession, name: str, part: str, pairs: list[tuple[str, str]],
         **more: str) -> str:
    """Return the path of a topic's records with this query."""
    query: dict[str, list[str]] = {}
    for key, value in [*pairs, *more.items()]:
        query.setdefault(key, []).append(value)
    segments = [part] if part == "copy" else ["records", *filter(None, [part])]
    return cluster.url("topics", name, *segments, **query)


def cells(request: Request, cluster: ClusterSession, topic: str, row: Row) -> Cells:
    """Return a row as texts, with the hidden fields masked."""
    mask = request.app.state.console.masks.of(topic, cluster.principal)
    key, value = preview(mask.key(row.key)), preview(mask.value(row.value))
    has_page = request.app.state.console.has_page(RECORD_PAGE)
    headers = ", ".join(f"{name}={preview(given).shown}" for name, given in row.headers[:5])
    return Cells(
        str(row.partition), str(row.offset), local_time(row.timestamp), utc_time(row.timestamp),
        visible(key.shown), key.kind, visible(value.shown), value.kind,
        visible(headers[:300]) + ("…" if len(row.headers) > 5 else ""), bytes_size(row.bytes),
        cluster.url("topics", topic, "records", row.partition, row.offset) if has_page else "")


# ---- live


async def live(request: Request, cluster: ClusterSession) -> Response:
    """Stream a search, or new records, as events."""
    name = request.path_params["topic"]
    chosen = filter_of(request)
    mask_of(request, cluster, name)
    audit_details(request, query=request.url.query)
    if "tail" in request.query_params:
        return stream(request, _tail_events(request, cluster, name, chosen))
    return stream(request, _search_events(request, cluster, name, chosen))


async def _tail_events(request: Request, cluster: ClusterSession, name: str, chosen: Filter
                       ) -> AsyncGenerator[bytes, None]:
    left_out = arrived = shown = 0
    source = tail.ticks(cluster.admin.cluster, name, chosen, request.app.state.console.seconds)
    async with contextlib.aclosing(source) as ticks:
        async for tick in ticks:
            arrived += tick.arrived
            left_out += tick.left_out
            shown += len(tick.rows)
            if tick.rows:
                yield event("match", {"rows": [cells(request, cluster, name, row)._asdict()
                                               for row in tick.rows]})
            yield event("progress", {"text": (
                f"{number(arrived)} records arrived, {number(shown)} shown, {number(left_out)} "
                f"left out. At most {tail.RECORDS_MAX} are shown each second.")})


async def _search_events(request: Request, cluster: ClusterSession, name: str, chosen: Filter
                         ) -> AsyncGenerator[bytes, None]:
    console = request.app.state.console
    pairs = [(key, value) for key, value in request.query_params.multi_items()
             if key in filters.NAMES and value]
    with console.searches.slot():
        ranges, shortcut = await search.plan(cluster.admin.cluster, name, chosen)
        seconds = float(console.settings["console.search.seconds.max"])
        run = RecordSearch(cluster.admin.cluster, name, chosen, ranges,
                           limits_of(request, chosen, seconds), console.seconds)
        shown_s = 0.0
        async with contextlib.aclosing(run.found()) as results:
            async for found in results:
                if found.count:
                    yield event("match", {"rows": [cells(request, cluster, name, row)._asdict()
                                                   for row in found.rows()]})
                progress = run.progress
                if progress.seconds - shown_s >= PROGRESS_S:
                    shown_s = progress.seconds
                    left_s = progress.seconds_left
                    yield event("progress", {"share": f"{progress.share:.4f}", "text": (
                        f"{number(progress.records)} records, "
                        f"{bytes_size(progress.fetched_bytes)}, {progress.share:.1%} of the range, "
                        f"{progress.mb_per_s:.0f} MB/s"
                        + (f", about {left_s:.0f} s left" if left_s is not None else ""))})
    done = summary(run, cluster, name, pairs, shortcut)
    yield event("done", {"reason": run.reason, **{key: done[key] for key in (
        "text", "complete", "unread", "more", "errors")}})


# ---- download


async def download(request: Request, cluster: ClusterSession) -> Response:
    """Stream all records that match, as JSON lines or CSV."""
    name = request.path_params["topic"]
    console = request.app.state.console
    kind = request.query_params.get("format", "jsonl")
    if kind not in ("jsonl", "csv"):
        raise PageError(400, "There is no such format", kind[:100], "Choose jsonl or csv.")
    chosen = filter_of(request)
    mask = mask_of(request, cluster, name)
    chosen.order, chosen.all_partitions = filters.OLDEST, True
    ranges, _ = await search.plan(cluster.admin.cluster, name, chosen)
    audit_details(request, query=request.url.query, format=kind)
    console.searches.check()
    run = RecordSearch(cluster.admin.cluster, name, chosen, ranges, Limits(chosen.limit),
                       console.seconds)
    lines = _csv_lines(run, mask) if kind == "csv" else \
        _masked_json_lines(name, run, mask) if mask.hides_something else _json_lines(name, run)
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return ClosingResponse(
        _limited(console.searches, lines),
        media_type="application/x-ndjson" if kind == "jsonl" else "text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{safe}.{kind}"'})


async def _limited(searches: Searches, lines: AsyncGenerator[bytes, None]
                   ) -> AsyncGenerator[bytes, None]:
    """Count a download as a search while it runs."""
    with searches.slot():
        async with contextlib.aclosing(lines) as source:
            async for part in source:
                yield part


async def _json_lines(topic: str, run: RecordSearch) -> AsyncGenerator[bytes, None]:
    heads: dict[int, bytes] = {}
    start = f'{{"topic": {json.dumps(topic, ensure_ascii=False)}, "partition": '
    async with contextlib.aclosing(run.found()) as results:
        async for found in results:
            if not found.count:
                continue
            assert isinstance(found, search.Found), "a download is in offset order"
            head = heads.setdefault(found.partition,
                                    f'{start}{found.partition}, "offset": '.encode())
            yield bytes(await asyncio.to_thread(text_lines.documents, found.columns, [
                (first, stop, head) for first, stop in found.stretches]))
    for text in run.errors:
        yield json.dumps({"error": text}).encode() + b"\n"


async def _masked_json_lines(topic: str, run: RecordSearch, mask: TopicMask
                             ) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(run.found()) as results:
        async for found in results:
            if found.count:
                yield await asyncio.to_thread(_masked_part, topic, list(found.rows()), mask)
    for text in run.errors:
        yield json.dumps({"error": text}).encode() + b"\n"


def _masked_part(topic: str, rows: list[Row], mask: TopicMask) -> bytes:
    return "".join(json.dumps({
        "topic": topic, "partition": row.partition, "offset": row.offset,
        "timestamp": row.timestamp, "key": whole_text(mask.key(row.key)),
        "value": whole_text(mask.value(row.value)),
        "headers": [{"key": name, "value": whole_text(given)} for name, given in row.headers]},
        ensure_ascii=False) + "\n" for row in rows).encode()


async def _csv_lines(run: RecordSearch, mask: TopicMask) -> AsyncGenerator[bytes, None]:
    yield (",".join(CSV_HEAD) + "\r\n").encode()
    async with contextlib.aclosing(run.found()) as results:
        async for found in results:
            if found.count:
                yield await asyncio.to_thread(_csv_part, list(found.rows()), mask)
    for text in run.errors:
        yield f"error,,,,{json.dumps(text)},\r\n".encode()


def _csv_part(rows: list[Row], mask: TopicMask) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out)
    for row in rows:
        writer.writerow([csv_cell(given) for given in (
            row.partition, row.offset, row.timestamp, whole_text(mask.key(row.key)),
            whole_text(mask.value(row.value)),
            json.dumps([[name, whole_text(given)] for name, given in row.headers],
                       ensure_ascii=False) if row.headers else "")])
    return out.getvalue().encode()


PAGES = [
    Page("/topics/{topic}/records", records, operations=OPERATIONS, changes=False,
         audit="records.read"),
    Page("/topics/{topic}/records/stream", live, operations=OPERATIONS, changes=False,
         audit="records.read"),
    Page("/topics/{topic}/download", download, operations=OPERATIONS, changes=False,
         audit="records.export", permission=EXPORT),
]
