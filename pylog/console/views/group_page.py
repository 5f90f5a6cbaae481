"""One group: members, assignments, lag, its lag live, why it lags, and its rebalances.

Owns: nothing.
Invariants: each number has the time it was read; a number that could not be read is shown as an
  error, never as 0.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pylog.console import events, visible_lags
from pylog.console.groups import lag as group_lag
from pylog.console.groups import reasons as group_reasons
from pylog.console.groups.lag import SHARE, Group
from pylog.console.groups.samples import HEIGHT, PERIOD_S, WIDTH, LagSample
from pylog.console.listings import Column, listed
from pylog.console.pages import Page, PageError
from pylog.console.rendering import environment, render

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from pylog.console.clusters import ClusterSession, Part

STREAM_S_MAX = 3600
COLUMNS = [Column("topic", "Topic"), Column("partition", "Partition", is_number=True),
           Column("committed_offset", "Committed", is_number=True),
           Column("end_offset", "End", is_number=True),
           Column("lag_records", "Lag, records", is_number=True),
           Column("lag_seconds", "Lag, time", is_number=True),
           Column("client_id", "Client"), Column("error", "Not read", sorts=False)]
READ = ("DESCRIBE GROUP", "DESCRIBE TOPIC", "READ TOPIC")


async def group(request: Request, cluster: ClusterSession) -> Response:
    """Show a group of any kind."""
    found = await group_lag.described(cluster.admin, request.path_params["group"])
    part = await _read(request, cluster, found)
    live = _live(request, cluster, found, part)
    rows = part.value or []
    listing = await listed(request, COLUMNS, rows, search=("topic", "client_id"),
                           sort="-lag_records")
    shares: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        shares.setdefault(row["member_id"] or "", []).append(row)
    members = [{**one._asdict(), "lag": group_lag.summed(shares.get(one.member_id, ()))}
               for one in found.members]
    return listing.response(f"group-{found.group_id}") or render(
        request, "group.html", group=found, part=part, listing=listing, members=members,
        tab="", live=live)


async def _read(request: Request, cluster: ClusterSession, found: Group) -> Part:
    """Return the rows of the group's partitions."""
    now_ms = request.app.state.console.now_ms
    return await cluster.attempt(f"DESCRIBE GROUP {found.group_id}", lambda: group_lag.partitions(
        cluster.admin, found, now_ms))


def _live(request: Request, cluster: ClusterSession, found: Group, part: Part) -> dict[str, Any]:
    """Add a sample, and return what group_live.html shows."""
    samples = request.app.state.console.lag_samples
    records, seconds, errors = group_lag.summed(part.value or [])
    key = (cluster.name, found.group_id, cluster.principal)
    if not part.denied:
        samples.add(key, LagSample(part.read_ms, None if errors or part.error else records))
    return {"state": found.state, "member_count": len(found.members), "records": records,
            "seconds": seconds, "errors": errors, "part": part, "width": WIDTH, "height": HEIGHT,
            "has_ages": found.type != SHARE, "chart": samples.chart(key, visible_lags.samples(
                request, cluster, found.group_id, part.value or []))}


async def stream(request: Request, cluster: ClusterSession) -> Response:
    """Send the lag every PERIOD_S as a piece of HTML."""
    name = request.path_params["group"]
    await group_lag.described(cluster.admin, name)

    async def changes() -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + STREAM_S_MAX
        while loop.time() < end_s:
            next_s = loop.time() + PERIOD_S
            found = await group_lag.described(cluster.admin, name)
            live = _live(request, cluster, found, await _read(request, cluster, found))
            html = environment().get_template("group_live.html").render(live=live)
            yield events.event("html", {"html": html})
            await asyncio.sleep(max(0.0, next_s - loop.time()))

    return events.stream(request, changes())


async def explain(request: Request, cluster: ClusterSession) -> Response:
    """Explain why the group lags."""
    found = await group_lag.described(cluster.admin, request.path_params["group"])
    console = request.app.state.console
    explanation = await group_reasons.explain(
        cluster.admin, found, console.now_ms, cluster.is_brokerd,
        visible_lags.before(request, cluster, found.group_id))
    return render(request, "group_explain.html", group=found, explanation=explanation,
                  read_ms=console.now_ms(), tab="explain")


async def history(request: Request, cluster: ClusterSession) -> Response:
    """Show the group's last rebalances. Only brokerd reports them."""
    if not cluster.is_brokerd:
        raise PageError(404, "This cluster does not record rebalances", cluster.name)
    found = await group_lag.described(cluster.admin, request.path_params["group"])
    return render(request, "group_history.html", group=found, tab="history",
                  rows=await group_reasons.history(cluster.admin, found))


PAGES = [
    Page("/groups/{group}", group, operations=READ, changes=False, audit=""),
    Page("/groups/{group}/stream", stream, operations=READ, changes=False, audit=""),
    Page("/groups/{group}/explain", explain, operations=(*READ, "DESCRIBE_CONFIGS CLUSTER"),
         changes=False, audit=""),
    Page("/groups/{group}/history", history,
         operations=("DESCRIBE GROUP", "DESCRIBE_CONFIGS CLUSTER"), changes=False, audit=""),
]
