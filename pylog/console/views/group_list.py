"""The list of groups, and the groups that read one topic.

Owns: nothing.
Invariants: lags are read for the visible rows only, unless the list is ordered by lag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pylog.client.admin import partition_offsets
from pylog.client.errors import KafkaError
from pylog.client.types import TopicPartition
from pylog.console.groups import lag as group_lag
from pylog.console.listings import Column, listed
from pylog.console.pages import Page, PageError
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from pylog.console.clusters import ClusterSession

TYPES = ("classic", "consumer", "share", "streams")
STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling",
          "NotReady", "Stable", "Dead")
COLUMNS = [Column("group", "Group"), Column("type", "Type"), Column("state", "State"),
           Column("protocol", "Protocol"),
           Column("lag_records", "Lag, records", is_lazy=True, is_number=True),
           Column("partitions", "Partitions", sorts=False, is_lazy=True, is_number=True),
           Column("error", "Not read", sorts=False, is_lazy=True)]
TOPIC_COLUMNS = [Column("group", "Group"), Column("type", "Type"), Column("state", "State"),
                 Column("lag_records", "Lag, records", is_number=True),
                 Column("partitions", "Partitions", is_number=True),
                 Column("error", "Not read", sorts=False)]


async def groups(request: Request, cluster: ClusterSession) -> Response:
    """List groups of every kind."""
    query = request.query_params
    state, kind = query.get("state", ""), query.get("type", "")
    if state and state not in STATES or kind and kind not in TYPES:
        raise PageError(400, "The filter is not valid", state or kind,
                        "Choose a state and a type from the lists.")
    found, failures = await group_lag.listed(
        cluster.admin, [state] if state else [], [kind] if kind else [])
    rows = [{"group": one.group_id, "type": one.type.lower() or "classic", "state": one.state,
             "protocol": one.protocol} for one in found]

    async def fill(visible: list[dict[str, Any]]) -> None:
        lags = await group_lag.totals(
            cluster.admin, {row["group"]: row["type"] for row in visible})
        for row in visible:
            total = lags[row["group"]]
            row.update(lag_records=total.records, partitions=total.partitions, error=total.error)

    listing = await listed(request, COLUMNS, rows, search=("group",), sort="group", fill=fill,
                           keep=("state", "type"))
    return listing.response("groups") or render(
        request, "groups.html", listing=listing, states=STATES, types=TYPES, state=state,
        kind=kind, failures=failures, read_ms=request.app.state.console.now_ms())


async def topic_groups(request: Request, cluster: ClusterSession) -> Response:
    """List the groups that have committed offsets of a topic, with their lag in it."""
    topic = request.path_params["topic"]
    admin = cluster.admin
    info = (await admin.describe_topics([topic]))[topic]
    parts = [TopicPartition(topic, number) for number in info.partitions]
    found, failures = await group_lag.listed(admin)
    others = {one.group_id: one for one in found if one.type.lower() != group_lag.SHARE}
    async with request.app.state.console.whole_lists:
        committed = await group_lag.offsets(admin, dict.fromkeys(others, parts))
    metadata = await partition_offsets.metadata_of(admin.cluster, [topic])
    bounds = await partition_offsets.bounds(admin.cluster, metadata, parts)
    rows = []
    for name, result in committed.items():
        if isinstance(result, KafkaError):
            total = group_lag.Total(None, None, group_lag.error_text(result))
        elif result:
            total = group_lag.total(result, bounds)
        else:
            continue
        one = others[name]
        rows.append({"group": name, "type": one.type.lower() or "classic", "state": one.state,
                     "lag_records": total.records, "partitions": total.partitions,
                     "error": total.error})
    listing = await listed(request, TOPIC_COLUMNS, rows, search=("group",), sort="-lag_records")
    return listing.response(f"groups-of-{topic}") or render(
        request, "topic_groups.html", listing=listing, name=topic, tab="groups", failures=failures,
        read_ms=request.app.state.console.now_ms())


PAGES = [
    Page("/groups", groups, operations=("DESCRIBE GROUP", "DESCRIBE TOPIC"), changes=False,
         audit=""),
    Page("/topics/{topic}/groups", topic_groups,
         operations=("DESCRIBE TOPIC", "DESCRIBE GROUP"), changes=False, audit=""),
]
