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
from pylog.console.records.masking import HEADER, KEY, VALUE, TopicMask, VisibleRow
from pylog.console.pages import EXPORT, Page, PageError, audit_details
from pylog.console.records.previews import preview, whole_text
from pylog.console.rendering import bytes_size, local_time, number, render, utc_time, visible
from pylog.console.records.search import Limits, RecordSearch, Searches
from pylog.console.values import column_formats
from pylog.console.values.column_formats import AUTO, ColumnFormat, formats_of
from pylog.console.values.row_decoding import RowDecoder

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
            VALUE: ("value", "json", "value_regex"), HEADER: ("header",)}
QUERY = (*filters.NAMES, *column_formats.NAMES)


class Cells(NamedTuple):
    """A row of the table of results. key_note, value_note: see Preview.note."""

    partition: str
    offset: str
    time: str
    time_utc: str
    key: str
    key_kind: str
    key_note: str
    value: str
    value_kind: str
    value_note: str
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


def decoder_of(request: Request, topic: str) -> RowDecoder:
    """Return what decodes the records of a topic, in the formats of the query. Raises PageError."""
    console = request.app.state.console
    return RowDecoder(topic, formats_of(request.query_params), console.schemas, console.decoder)


async def visible_rows(mask: TopicMask, decoder: RowDecoder, rows: list[Row]) -> list[VisibleRow]:
    """Return rows as the user may see them, decoded."""
    parts = await asyncio.to_thread(decoder.decode, rows)
    return [mask.row(row, decoded) for row, decoded in zip(rows, parts)]


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
             if key in QUERY and value]
    formats, decoder = formats_of(request.query_params), decoder_of(request, name)
    context: dict[str, Any] = {
        "name": name, "given": request.query_params, "pairs": pairs, "error": None, "rows": [],
        "partition_count": len(info.partitions), "json_texts": request.query_params.getlist("json"),
        "format_titles": column_formats.TITLES, "formats": formats,
        "has_registry": console.schemas is not None, "result": None,
        "tails": "tail" in request.query_params, "stream": "",
        "export": cluster.url("topics", name, "download"), "orders": filters.ORDERS,
        "copy": _url(cluster, name, "copy", [pair for pair in pairs if pair[0] not in (
            "left", "order", "limit")]),
        "matches_max": console.settings["console.search.matches.max"]}
    try:
        chosen = filters.parse(pairs)
    except FilterError as failure:
        return render(request, "records.html", 400, **{**context, "error": failure})
    mask = mask_of(request, cluster, name)
    if context["tails"]:
        return render(request, "records.html", **{
            **context, "stream": _url(cluster, name, "stream", pairs, tail="1")})
    # The newest records cost little: they are shown even if many searches run.
    with contextlib.nullcontext() if chosen.is_empty else console.searches.slot():
        ranges, shortcut = await search.plan(cluster.admin.cluster, name, chosen)
        run = RecordSearch(cluster.admin.cluster, name, chosen, ranges,
                           limits_of(request, chosen, PAGE_S), console.seconds, decoder)
        found: list[Row] = []
        async for one in run.found():
            found += one.rows()
    audit_details(request, query=request.url.query, count=len(found),
                  records=run.progress.records)
    context["rows"] = [cells(request, cluster, name, row, formats)
                       for row in await visible_rows(mask, decoder, found)]
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
    if progress.decoded:
        figures += (f". {number(progress.decoded)} of them were decoded to be compared, "
                    f"{number(round(progress.decoded / max(progress.seconds, 0.001)))} each "
                    "second: this is slower than comparing bytes")
    if progress.undecoded:
        figures += (f". {number(progress.undecoded)} of these could not be decoded, and their "
                    f"bytes were compared: {progress.undecoded_reason}")
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


def cells(request: Request, cluster: ClusterSession, topic: str, row: VisibleRow,
          formats: dict[str, ColumnFormat]) -> Cells:
    """Return a row as texts."""
    key, value = preview(row.key, formats[KEY]), preview(row.value, formats[VALUE])
    chosen = {name: given for name in column_formats.NAMES
              if (given := request.query_params.get(name))}
    has_page = request.app.state.console.has_page(RECORD_PAGE)
    headers = ", ".join(f"{name}={preview(given).shown}" for name, given in row.headers[:5])
    return Cells(
        str(row.partition), str(row.offset), local_time(row.timestamp), utc_time(row.timestamp),
        visible(key.shown), key.kind, visible(key.note), visible(value.shown), value.kind,
        visible(value.note),
        visible(headers[:300]) + ("…" if len(row.headers) > 5 else ""), bytes_size(row.bytes),
        cluster.url("topics", topic, "records", row.partition, row.offset, **chosen)
        if has_page else "")


# ---- live


async def live(request: Request, cluster: ClusterSession) -> Response:
    """Stream a search, or new records, as events."""
    name = request.path_params["topic"]
    chosen = filter_of(request)
    mask = mask_of(request, cluster, name)
    decoder = decoder_of(request, name)
    audit_details(request, query=request.url.query)
    if "tail" in request.query_params:
        source = _tail_events(request, cluster, name, chosen, mask, decoder)
    else:
        source = _search_events(request, cluster, name, chosen, mask, decoder)
    return stream(request, _counted(request, source))


async def _counted(request: Request, source: AsyncGenerator[bytes, None]
                   ) -> AsyncGenerator[bytes, None]:
    """Write an audit line with the number of records at the end of a stream."""
    request.state.record_count = 0
    try:
        async with contextlib.aclosing(source) as parts:
            async for part in parts:
                yield part
    finally:
        audit_details(request, count=request.state.record_count)
        request.state.audit_end()


async def _rows_event(request: Request, cluster: ClusterSession, name: str, mask: TopicMask,
                      decoder: RowDecoder, rows: list[Row]) -> bytes:
    formats = formats_of(request.query_params)
    request.state.record_count += len(rows)
    return event("match", {"rows": [
        cells(request, cluster, name, row, formats)._asdict()
        for row in await visible_rows(mask, decoder, rows)]})


async def _tail_events(request: Request, cluster: ClusterSession, name: str, chosen: Filter,
                       mask: TopicMask, decoder: RowDecoder) -> AsyncGenerator[bytes, None]:
    left_out = arrived = shown = 0
    source = tail.ticks(cluster.admin.cluster, name, chosen, request.app.state.console.seconds,
                        decoder)
    async with contextlib.aclosing(source) as ticks:
        async for tick in ticks:
            arrived += tick.arrived
            left_out += tick.left_out
            shown += len(tick.rows)
            if tick.rows:
                yield await _rows_event(request, cluster, name, mask, decoder, tick.rows)
            yield event("progress", {"text": (
                f"{number(arrived)} records arrived, {number(shown)} shown, {number(left_out)} "
                f"left out. At most {tail.RECORDS_MAX} are shown each second.")})


async def _search_events(request: Request, cluster: ClusterSession, name: str, chosen: Filter,
                         mask: TopicMask, decoder: RowDecoder) -> AsyncGenerator[bytes, None]:
    console = request.app.state.console
    pairs = [(key, value) for key, value in request.query_params.multi_items()
             if key in QUERY and value]
    with console.searches.slot():
        ranges, shortcut = await search.plan(cluster.admin.cluster, name, chosen)
        seconds = float(console.settings["console.search.seconds.max"])
        run = RecordSearch(cluster.admin.cluster, name, chosen, ranges,
                           limits_of(request, chosen, seconds), console.seconds, decoder)
        shown_s = 0.0
        async with contextlib.aclosing(run.found()) as results:
            async for found in results:
                if found.count:
                    yield await _rows_event(request, cluster, name, mask, decoder,
                                            list(found.rows()))
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
    mask, decoder = mask_of(request, cluster, name), decoder_of(request, name)
    formats = formats_of(request.query_params)
    chosen.order, chosen.all_partitions = filters.OLDEST, True
    ranges, _ = await search.plan(cluster.admin.cluster, name, chosen)
    audit_details(request, query=request.url.query, format=kind)
    console.searches.check()
    run = RecordSearch(cluster.admin.cluster, name, chosen, ranges, Limits(chosen.limit),
                       console.seconds, decoder)
    texts = RowTexts(name, mask, decoder, formats)
    lines = _csv_lines(request, run, texts) if kind == "csv" \
        else _json_lines(request, run, texts)
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return ClosingResponse(
        _counted(request, _limited(console.searches, lines)),
        media_type="application/x-ndjson" if kind == "jsonl" else "text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{safe}.{kind}"'})


async def _limited(searches: Searches, lines: AsyncGenerator[bytes, None]
                   ) -> AsyncGenerator[bytes, None]:
    """Count a download as a search while it runs."""
    with searches.slot():
        async with contextlib.aclosing(lines) as source:
            async for part in source:
                yield part


class RowTexts:
    """Rows as the lines of a file. Methods block: call them on a thread."""

    def __init__(self, topic: str, mask: TopicMask, decoder: RowDecoder,
                 formats: dict[str, ColumnFormat]):
        self._topic = topic
        self._mask = mask
        self._decoder = decoder
        self._formats = formats
        self._start = f'{{"topic": {json.dumps(topic, ensure_ascii=False)}, "partition": '
        self._is_plain = not mask.hides_something and all(
            form.name == AUTO for form in formats.values())

    def json_lines(self, found: search.Found) -> bytes:
        """Return JSON lines, by native code unless a value is masked, decoded or formatted."""
        if self._is_plain and not self._decoder.may_decode_any(found.columns):
            head = f'{self._start}{found.partition}, "offset": '.encode()
            return bytes(text_lines.documents(found.columns, [
                (first, stop, head) for first, stop in found.stretches]))
        return "".join(json.dumps({
            "topic": self._topic, "partition": row.partition, "offset": row.offset,
            "timestamp": row.timestamp, "key": whole_text(row.key, self._formats[KEY]),
            "value": whole_text(row.value, self._formats[VALUE]),
            "headers": [{"key": name, "value": whole_text(given)} for name, given in row.headers]},
            ensure_ascii=False) + "\n" for row in self._visible(found)).encode()

    def csv_lines(self, found: search.Found) -> bytes:
        out = io.StringIO()
        writer = csv.writer(out)
        for row in self._visible(found):
            writer.writerow([csv_cell(given) for given in (
                row.partition, row.offset, row.timestamp,
                whole_text(row.key, self._formats[KEY]),
                whole_text(row.value, self._formats[VALUE]),
                json.dumps([[name, whole_text(given)] for name, given in row.headers],
                           ensure_ascii=False) if row.headers else "")])
        return out.getvalue().encode()

    def _visible(self, found: search.Found) -> list[VisibleRow]:
        rows = list(found.rows())
        return [self._mask.row(row, decoded)
                for row, decoded in zip(rows, self._decoder.decode(rows))]


async def _json_lines(request: Request, run: RecordSearch, texts: RowTexts
                      ) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(run.found()) as results:
        async for found in results:
            if found.count:
                assert isinstance(found, search.Found), "a download is in offset order"
                request.state.record_count += found.count
                yield await asyncio.to_thread(texts.json_lines, found)
    for text in run.errors:
        yield json.dumps({"error": text}).encode() + b"\n"


async def _csv_lines(request: Request, run: RecordSearch, texts: RowTexts
                     ) -> AsyncGenerator[bytes, None]:
    yield (",".join(CSV_HEAD) + "\r\n").encode()
    async with contextlib.aclosing(run.found()) as results:
        async for found in results:
            if found.count:
                assert isinstance(found, search.Found), "a download is in offset order"
                request.state.record_count += found.count
                yield await asyncio.to_thread(texts.csv_lines, found)
    for text in run.errors:
        yield f"error,,,,{json.dumps(text)},\r\n".encode()


PAGES = [
    Page("/topics/{topic}/records", records, operations=OPERATIONS, changes=False,
         audit="records.read"),
    Page("/topics/{topic}/records/stream", live, operations=OPERATIONS, changes=False,
         audit="records.read"),
    Page("/topics/{topic}/download", download, operations=OPERATIONS, changes=False,
         audit="records.export", permission=EXPORT),
]
