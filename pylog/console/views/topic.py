"""One topic: its partitions with leaders, replicas, offsets and sizes.

Owns: nothing.
Invariants: a number that could not be read is shown as missing, never as zero.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

from starlette.responses import Response

from pylog.client.admin.types import ConfigResource, ResourceType
from pylog.console import config_entries, topic_sizes
from pylog.console.listings import Column, listed
from pylog.console.pages import Page
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.console.clusters import ClusterSession

COLUMNS = [
    Column("partition", "Partition", is_number=True), Column("leader", "Leader", is_number=True),
    Column("replicas", "Replicas", sorts=False), Column("isr", "In sync", sorts=False),
    Column("first", "First offset", is_number=True), Column("end", "End offset", is_number=True),
    Column("records", "Offsets", is_number=True), Column("bytes", "Size", is_number=True),
    Column("problem", "Problem")]


async def topic(request: Request, cluster: ClusterSession) -> Response:
    """Show a topic."""
    name = request.path_params["topic"]
    found = (await cluster.admin.describe_topics([name]))[name]
    only = {name: found}
    sizes, ranges, settings = await asyncio.gather(
        cluster.attempt("DESCRIBE CLUSTER (sizes)",
                        lambda: topic_sizes.replica_bytes(cluster.admin, only)),
        cluster.attempt(f"DESCRIBE TOPIC {name} (offsets)",
                        lambda: topic_sizes.offset_ranges(cluster.admin, only)),
        cluster.attempt(f"DESCRIBE_CONFIGS TOPIC {name}", lambda: config_entries.read(
            cluster.admin, ConfigResource(ResourceType.TOPIC, name))))
    stored = (sizes.value or {}).get(name, {})
    rows = []
    for number, one in found.partitions.items():
        first, end = (ranges.value or {}).get((name, number), (None, None))
        rows.append({
            "partition": number, "leader": one.leader if one.leader >= 0 else None,
            "replicas": list(one.replicas), "isr": list(one.isr), "first": first, "end": end,
            "records": None if end is None or first is None else end - first,
            "bytes": stored.get((number, one.leader)), "problem": _problem(one)})
    listing = await listed(request, COLUMNS, rows, search=("partition", "leader", "problem"),
                           sort="partition")
    return listing.response(f"topic-{name}") or render(
        request, "topic.html", name=name, topic=found, listing=listing, sizes=sizes, ranges=ranges,
        totals=topic_sizes.totals(found, sizes.value, ranges.value), settings=settings,
        own=[entry for entry in (settings.value or {}).values() if entry.is_own],
        topic_id=base64.urlsafe_b64encode(found.id).decode().rstrip("="))


def _problem(partition: object) -> str:
    leader, isr, replicas = (getattr(partition, name) for name in ("leader", "isr", "replicas"))
    if leader < 0:
        return "no leader"
    missing = [broker for broker in replicas if broker not in isr]
    return f"not in sync: {', '.join(map(str, missing))}" if missing else ""


PAGES = [
    Page("/topics/{topic}", topic, operations=(
        "DESCRIBE TOPIC", "DESCRIBE_CONFIGS TOPIC", "DESCRIBE CLUSTER for sizes"),
        changes=False, audit=""),
]
