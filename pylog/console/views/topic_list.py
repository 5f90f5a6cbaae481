"""Topics: the list, and creating, deleting and purging one.

Owns: nothing.
Invariants: sizes and record counts are read only for the topics on the page, unless the list is
  ordered by them; a topic is deleted or purged only after its name was typed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pylog.client.admin.types import NewTopic
from pylog.client.errors import AuthorizationError, KafkaError
from pylog.client.types import TopicPartition
from pylog.console import topic_sizes, visible_lags
from pylog.console.config_entries import parse_lines
from pylog.console.groups.history import GroupLag
from pylog.console.listings import Column, Row, listed
from pylog.console.pages import (
    Page, PageError, audit_details, form_of, integer, not_audited, redirect, required,
)
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.client.network.cluster_metadata import TopicInfo
    from pylog.console.clusters import ClusterSession

PARTITIONS_CREATED_MAX, REPLICATION_FACTOR_MAX = 100_000, 1000
INT64_MAX = 2**63 - 1
COLUMNS = [
    Column("topic", "Topic"), Column("partitions", "Partitions", is_number=True),
    Column("replicas", "Replicas", is_number=True),
    Column("problems", "Not in sync", is_number=True),
    Column("records", "Offsets", is_lazy=True, is_number=True),
    Column("bytes", "Size", is_lazy=True, is_number=True),
    Column("lag_records", "Worst lag", is_lazy=True, is_number=True),
    Column("lag_group", "Group with it", sorts=False, is_lazy=True)]


async def topics(request: Request, cluster: ClusterSession) -> Response:
    """List topics. Sizes, counts and lags are read for the rows on the page."""
    with_internal = request.query_params.get("internal") == "1"
    found = await cluster.admin.list_topics(internal=True)
    rows = [_row(topic) for topic in found.values() if with_internal or not topic.is_internal]
    errors: list[str] = []

    async def fill(visible: list[Row]) -> None:
        some = {row["topic"]: found[row["topic"]] for row in visible}
        sizes, ranges, lags = await asyncio.gather(
            cluster.attempt("DESCRIBE CLUSTER (sizes)",
                            lambda: topic_sizes.replica_bytes(cluster.admin, some)),
            cluster.attempt("DESCRIBE TOPIC (offsets)",
                            lambda: topic_sizes.offset_ranges(cluster.admin, some)),
            cluster.attempt("DESCRIBE GROUP (lags)", lambda: visible_lags.lags(request, cluster)))
        errors.extend(f"{what}: {part.error}" for what, part in (
            ("sizes", sizes), ("offsets", ranges), ("lags", lags)) if part.error)
        _add_lags(visible, lags.value, errors)
        for row in visible:
            row.update(topic_sizes.totals(found[row["topic"]], sizes.value, ranges.value))

    listing = await listed(request, COLUMNS, rows, search=("topic",), sort="topic", fill=fill,
                           keep=("internal",))
    return listing.response("topics") or render(
        request, "topics.html", listing=listing, errors=errors, with_internal=with_internal,
        hidden_count=sum(topic.is_internal for topic in found.values()))


def _add_lags(visible: list[Row], lags: visible_lags.Lags | None, errors: list[str]) -> None:
    """Add the group with the largest lag to each row."""
    if lags is not None and lags.error:
        errors.append(f"lags: {lags.error}")
    is_known = lags is not None and lags.history is not None
    worst = lags.worst() if lags is not None else {}
    for row in visible:
        one = worst.get(row["topic"], GroupLag("", None, is_known))
        row.update(lag_records=one.records, lag_group=one.group or None,
                   lag_is_complete=one.is_complete)


def _row(topic: TopicInfo) -> Row:
    return {"topic": topic.name, "partitions": len(topic.partitions),
            "is_internal": topic.is_internal,
            "replicas": max((len(one.replicas) for one in topic.partitions.values()), default=0),
            "problems": sum(one.leader < 0 or len(one.isr) < len(one.replicas)
                            for one in topic.partitions.values()),
            "records": None, "bytes": None, "lag_records": None, "lag_group": None,
            "lag_is_complete": False}


async def create(request: Request, cluster: ClusterSession) -> Response:
    """Create a topic."""
    if request.method == "GET":
        return render(request, "topic_new.html", form={}, failure="")
    form = await form_of(request)
    audit_details(request, topic=form.get("name", ""))
    try:
        name = required(form, "name", "Name")
        new = NewTopic(
            name, _count(form, "partitions", "Partitions", PARTITIONS_CREATED_MAX),
            _count(form, "replicas", "Replicas", REPLICATION_FACTOR_MAX),
            configs={key: value or "" for key, value in parse_lines(
                form.get("settings", "")).items()})
        await cluster.admin.create_topics([new])
    except AuthorizationError:
        raise
    except (KafkaError, PageError) as failure:
        # The form keeps its values, so that the user can correct one.
        return render(request, "topic_new.html", 400, form=form, failure=str(failure))
    return redirect(cluster.url("topics", name), f"The topic {name} was created.")


def _count(form: dict[str, str], name: str, label: str, most: int) -> int:
    text = form.get(name, "").strip()
    return integer(text, label, 1, most) if text else -1


async def delete(request: Request, cluster: ClusterSession) -> Response:
    """Delete a topic, after its name was typed."""
    name = request.path_params["topic"]
    await _known(cluster, name)
    if request.method == "GET":
        return render(request, "topic_delete.html", name=name, failure="")
    if (await form_of(request)).get("name", "") != name:
        not_audited(request)
        return render(request, "topic_delete.html", 400, name=name,
                      failure="The typed name is another one.")
    await cluster.admin.delete_topics([name])
    return redirect(cluster.url("topics"), f"The topic {name} was deleted.")


async def purge(request: Request, cluster: ClusterSession) -> Response:
    """Delete records before an offset, or all, after the topic's name was typed."""
    name = request.path_params["topic"]
    topic = await _known(cluster, name)
    ranges = await topic_sizes.offset_ranges(cluster.admin, {name: topic})
    rows = [{"partition": number, "first": ranges.get((name, number), (None, None))[0],
             "end": ranges.get((name, number), (None, None))[1]} for number in topic.partitions]

    def page(failure: str, status: int = 200) -> Response:
        return render(request, "topic_purge.html", status, name=name, rows=rows, failure=failure)

    if request.method == "GET":
        return page("")
    form = await form_of(request)
    if form.get("name", "") != name:
        not_audited(request)
        return page("The typed name is another one.", 400)
    before = _purged(name, topic, form)
    audit_details(request, before={str(part): offset for part, offset in before.items()})
    await cluster.admin.delete_records(before)
    return redirect(cluster.url("topics", name), f"Records of the topic {name} were deleted.")


def _purged(name: str, topic: TopicInfo, form: dict[str, str]) -> dict[TopicPartition, int]:
    """Return the offset of each partition before which records are deleted; -1: all."""
    which = form.get("partition", "").strip()
    if not which:
        return {TopicPartition(name, number): -1 for number in topic.partitions}
    number = integer(which, "Partition", 0, max(topic.partitions))
    before = form.get("before", "").strip()
    return {TopicPartition(name, number):
            integer(before, "Offset", 0, INT64_MAX) if before else -1}


async def _known(cluster: ClusterSession, name: str) -> Any:
    return (await cluster.admin.describe_topics([name]))[name]


PAGES = [
    Page("/topics", topics, operations=(
        "DESCRIBE TOPIC", "DESCRIBE CLUSTER for sizes", "DESCRIBE GROUP for lags"),
         changes=False, audit=""),
    Page("/topics/new", create, methods=("GET", "POST"),
         operations=("CREATE TOPIC or CREATE CLUSTER",), changes=True, audit="topics.create"),
    Page("/topics/{topic}/delete", delete, methods=("GET", "POST"),
         operations=("DESCRIBE TOPIC", "DELETE TOPIC"), changes=True, audit="topics.delete"),
    Page("/topics/{topic}/purge", purge, methods=("GET", "POST"),
         operations=("DESCRIBE TOPIC", "DELETE TOPIC"), changes=True, audit="topics.purge"),
]
