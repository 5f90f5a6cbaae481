"""Copy the records of a topic, or a search result, to another topic or cluster.

Owns: nothing.
Invariants: a copy starts only after its preview; its ranges are those of the preview; the target
  topic exists already.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.datastructures import ImmutableMultiDict
from starlette.responses import Response

from pylog.client.columns.rows import Row
from pylog.client.errors import KafkaError
from pylog.console.records import filters, search
from pylog.console.records.copies import Copy
from pylog.console.records.filters import Filter, FilterError
from pylog.console.records.jobs import Job
from pylog.console.pages import (
    PRODUCE, Page, PageError, audit_details, integer, not_audited, principals_of, redirect,
    required,
)
from pylog.console.records.previews import preview
from pylog.console.rendering import render, visible
from pylog.console.records.search import Limits, RecordSearch
from pylog.console.values import column_formats
from pylog.console.values.column_formats import formats_of
from pylog.console.values.row_decoding import RowDecoder

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.console.clusters import ClusterSession

SAMPLE, SAMPLE_S = 10, 3.0
RATE_MAX = 10**9
KEEP, BY_KEY = "keep", "key"


async def copy(request: Request, cluster: ClusterSession) -> Response:
    """Show the form, the preview, or start the copy."""
    name = request.path_params["topic"]
    if request.app.state.console.masks.of(name, cluster.principal).hides_something:
        raise PageError(403, "Records of this topic cannot be copied", name,
                        "Fields of the topic are hidden from you by console.masking.file.")
    info = (await cluster.admin.describe_topics([name]))[name]
    if request.method == "GET":
        return _form(request, name, request.query_params, None)
    form = await request.form()
    pairs = [(key, value) for key, value in form.multi_items() if isinstance(value, str)]
    given = ImmutableMultiDict(pairs)
    try:
        chosen = filters.parse(pairs)
    except FilterError as failure:
        return _form(request, name, given, failure, 400)
    chosen.order, chosen.all_partitions = filters.OLDEST, True
    texts = dict(pairs)
    rate = integer(texts.get("rate") or "0", "The rate", 0, RATE_MAX)
    by_key = texts.get("partitions") == BY_KEY
    target_topic = required(texts, "target", "The target topic")
    target = _target(request, cluster, texts.get("cluster", ""))
    partitions = len((await target.admin.describe_topics([target_topic]))[target_topic].partitions)
    if not by_key and partitions < len(info.partitions):
        raise PageError(400, "The target topic has too few partitions",
                        f"{target_topic} has {partitions}, {name} has {len(info.partitions)}",
                        "Choose partitions by key, or add partitions to the target topic.")
    ranges, _ = await search.plan(cluster.admin.cluster, name, chosen)
    total = sum(end - start for rows in ranges.values() for start, end in rows)
    if texts.get("step") != "start":
        not_audited(request)
        sample = await _sample(request, cluster, name, chosen, ranges, texts)
        left = filters.ranges_text(ranges)
        hidden = [(key, value) for key, value in pairs
                  if key not in ("csrf", "step", "left") and value]
        return render(request, "copy_preview.html", name=name, total=total, hidden=hidden,
                      left=left, sample=sample, target_topic=target_topic, target=target,
                      by_key=by_key, rate=rate, as_bytes=chosen.is_empty and not by_key,
                      same=target is cluster and target_topic == name)
    audit_details(request, target=target_topic, target_cluster=target.name, offsets=total)
    work = Copy(cluster.client_settings, name, chosen, ranges, target.client_settings, target_topic,
                by_key, rate, request.app.state.console.seconds, _decoder(request, name, texts))
    job: Job = request.app.state.console.jobs.start(
        f"Copy {name} to {target_topic}" + (f" on {target.name}" if target is not cluster else ""),
        principals_of(request)[cluster.name], cluster.name, total, work.run)
    return redirect(f"/jobs/{job.id}", "The copy has started.")


def _form(request: Request, name: str, given: Any, error: FilterError | None, status: int = 200
          ) -> Response:
    others = [one for one in request.state.session.clusters
              if one != request.state.cluster.name]
    pairs = [(key, value) for key, value in given.multi_items()
             if key in (*filters.NAMES, *column_formats.NAMES) and value
             and key not in ("order", "limit")]
    return render(request, "copy.html", status, name=name, given=given, error=error,
                  clusters=others, pairs=pairs)


def _target(request: Request, cluster: ClusterSession, name: str) -> ClusterSession:
    """Return the target's session: of a cluster in which the user is logged in."""
    if not name or name == cluster.name:
        return cluster
    found: ClusterSession | None = request.state.session.clusters.get(name)
    if found is None:
        raise PageError(400, "You are not logged in to the target cluster", name[:100],
                        "Open a page of that cluster first, then start the copy again.")
    return found


async def _sample(request: Request, cluster: ClusterSession, name: str, chosen: Filter,
                  ranges: dict[int, list[tuple[int, int]]], texts: dict[str, str]
                  ) -> list[dict[str, str]]:
    """Return the first records that would be copied, as texts; none if they cannot be read."""
    decoder, formats = _decoder(request, name, texts), formats_of(texts)
    run = RecordSearch(cluster.admin.cluster, name, chosen, ranges, Limits(SAMPLE, SAMPLE_S),
                       request.app.state.console.seconds, decoder)
    rows: list[Row] = []
    try:
        async for found in run.found():
            rows += found.rows()
    except KafkaError as failure:
        raise PageError(502, "The records could not be read", str(failure),
                        "Check that the brokers are running, then try again.") from None
    mask = request.app.state.console.masks.of(name, cluster.principal)
    decoded = await asyncio.to_thread(decoder.decode, rows[:SAMPLE])
    shown = [mask.row(row, parts) for row, parts in zip(rows, decoded)]
    return [{"partition": str(row.partition), "offset": str(row.offset),
             "key": visible(preview(row.key, formats["key"]).shown),
             "value": visible(preview(row.value, formats["value"]).shown)} for row in shown]


def _decoder(request: Request, name: str, texts: dict[str, str]) -> RowDecoder:
    console = request.app.state.console
    return RowDecoder(name, formats_of(texts), console.schemas, console.decoder)


PAGES = [
    Page("/topics/{topic}/copy", copy, methods=("GET", "POST"),
         operations=("READ TOPIC", "DESCRIBE TOPIC", "WRITE TOPIC of the target"), changes=True,
         audit="records.copy", permission=PRODUCE),
]
