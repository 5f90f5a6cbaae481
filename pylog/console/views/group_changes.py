"""Changes of a group: reset or delete its offsets after a preview, and delete the group.

Owns: nothing.
Invariants: offsets change only if they are still those of the preview, and only in a group without
  members; a new offset is inside the log; a group is deleted only if its name was typed.
"""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

from pylog.client.admin import partition_offsets
from pylog.client.errors import GroupIdNotFoundError, KafkaError
from pylog.client.types import TopicPartition
from pylog.console.groups import lag as group_lag
from pylog.console.groups.lag import SHARE, Group
from pylog.console.pages import (
    Page, PageError, audit_details, form_of, integer, not_audited, redirect, required,
)
from pylog.console.rendering import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from pylog.console.clusters import ClusterSession

EARLIEST, LATEST, OFFSET, SHIFT, TIME, DELETE = WAYS = (
    "earliest", "latest", "offset", "shift", "time", "delete")
LARGEST_OFFSET = 2**63 - 1
PARTITIONS_MAX = 10_000


async def offsets(request: Request, cluster: ClusterSession) -> Response:
    """Show the form, the preview of a change, or make the change."""
    name = request.path_params["group"]
    group = await _group(cluster, name)
    form = await form_of(request) if request.method == "POST" else {}
    committed = await _committed(cluster, group)
    if form.get("step") == "apply":
        return await _apply(request, cluster, group, form, committed)
    if request.method == "GET":
        return await _form(request, group, committed, form)
    not_audited(request)
    rows = await _preview(cluster, group, form, committed)
    return await _form(request, group, committed, form, rows=rows)


async def _group(cluster: ClusterSession, name: str) -> Group:
    """Return the group. Raises PageError if it does not exist or is a share group."""
    try:
        group = await group_lag.described(cluster.admin, name)
    except GroupIdNotFoundError:
        raise PageError(404, "There is no such group, or you may not see it", name,
                        "Check the name.") from None
    return group


async def _committed(cluster: ClusterSession, group: Group) -> Mapping[TopicPartition, int]:
    """Return the committed offsets, or the start offsets of a share group. Raises KafkaError."""
    if group.type == SHARE:
        found = await cluster.admin.list_share_group_offsets(group.group_id)
        return {part: row.start_offset for part, row in found.items() if row.start_offset >= 0}
    result = (await group_lag.offsets(cluster.admin, {group.group_id: None}))[group.group_id]
    if isinstance(result, KafkaError):
        raise result
    return result


async def _form(request: Request, group: Group, committed: Mapping[TopicPartition, int],
                form: Mapping[str, str], *, rows: list[dict[str, Any]] | None = None,
                failure: str = "") -> Response:
    plan = [] if rows is None else [
        [row["topic"], row["partition"], row["committed"], row["new"]] for row in rows]
    return render(request, "group_offsets.html", group=group, tab="offsets", form=form, rows=rows,
                  failure=failure, plan=json.dumps(plan), way=form.get("way", EARLIEST),
                  topics=sorted({part.topic for part in committed}))


async def _preview(cluster: ClusterSession, group: Group, form: dict[str, str],
                   committed: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    """Return a row for each partition: committed, wanted and new offset. Raises PageError."""
    way = form.get("way", "")
    if way not in WAYS:
        raise PageError(400, "The way to change the offsets is not valid", way)
    parts = await _chosen(cluster, form, committed)
    if way == DELETE and group.type == SHARE and form.get("partitions", "").strip():
        raise PageError(400, "Offsets of a share group are deleted by topic",
                        form["partitions"][:100], "Leave the partitions empty.")
    if way == DELETE:
        return [_row(part, committed.get(part), None, None) for part in parts
                if part in committed]
    metadata = await partition_offsets.metadata_of(
        cluster.admin.cluster, {part.topic for part in parts})
    bounds = await partition_offsets.bounds(cluster.admin.cluster, metadata, parts)
    known: dict[TopicPartition, tuple[int, int]] = {}
    for part, bound in bounds.items():
        if isinstance(bound, str):
            raise PageError(502, "The ends of a partition could not be read", f"{part}: {bound}",
                            "Choose other partitions, or try again when it has a leader.")
        known[part] = bound
    at_time = await _at_time(cluster, metadata, known, form) if way == TIME else {}
    rows = []
    for part, (low, high) in known.items():
        now = committed.get(part)
        if way == OFFSET:
            wanted = integer(form.get("value", ""), "Offset", 0, LARGEST_OFFSET)
        elif way == SHIFT:
            if now is None:
                continue
            wanted = now + integer(form.get("value", ""), "Number of records", -LARGEST_OFFSET,
                                   LARGEST_OFFSET)
        elif way == TIME:
            wanted = at_time[part]
        else:
            wanted = low if way == EARLIEST else high
        rows.append(_row(part, now, wanted, min(max(wanted, low), high)))
    return rows


def _row(part: TopicPartition, committed: int | None, wanted: int | None, new: int | None
         ) -> dict[str, Any]:
    return {"topic": part.topic, "partition": part.partition, "committed": committed,
            "wanted": wanted, "new": new,
            "change": None if new is None or committed is None else new - committed}


async def _chosen(cluster: ClusterSession, form: Mapping[str, str],
                  committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Return the partitions of the form: of a topic, or all with a committed offset."""
    topic = form.get("other_topic", "").strip() or form.get("topic", "")
    if not topic:
        if not committed:
            raise PageError(400, "The group has committed no offset", "",
                            "Enter the name of a topic.")
        return sorted(committed)
    info = (await cluster.admin.describe_topics([topic]))[topic]
    wanted = form.get("partitions", "").strip()
    if not wanted:
        return [TopicPartition(topic, number) for number in sorted(info.partitions)]
    numbers = {integer(one.strip(), "Partition", 0, 2**31 - 1) for one in wanted.split(",")}
    missing = numbers - info.partitions.keys()
    if missing:
        raise PageError(400, f"The topic {topic} has no such partition", str(min(missing)),
                        f"It has the partitions 0 to {len(info.partitions) - 1}.")
    return [TopicPartition(topic, number) for number in sorted(numbers)]


async def _at_time(cluster: ClusterSession, metadata: Any,
                   bounds: Mapping[TopicPartition, tuple[int, int]], form: Mapping[str, str]
                   ) -> dict[TopicPartition, int]:
    """Return the offset of the first record at or after the form's time, or the end offset."""
    text = form.get("value", "").strip()
    try:
        time_ms = int(text) if text.isdecimal() else int(
            datetime.datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):
        raise PageError(400, "The time is not valid", text, "Enter a time such as "
                        "2026-11-28T10:00 (local time of the console), 2026-11-28T10:00Z, or "
                        "milliseconds since 1970.") from None
    found = await partition_offsets.offsets(
        cluster.admin.cluster, metadata, dict.fromkeys(bounds, time_ms))
    result = {}
    for part, (_, high) in bounds.items():
        row = found.get(part)
        if not isinstance(row, tuple):
            raise PageError(502, "The offset at this time could not be read", f"{part}: {row}")
        result[part] = row[0] if row[0] >= 0 else high
    return result


async def _apply(request: Request, cluster: ClusterSession, group: Group, form: dict[str, str],
                 committed: Mapping[TopicPartition, int]) -> Response:
    """Make the change of the preview, or show a new preview if something changed."""
    plan = _plan(form.get("plan", ""))
    if group.members:
        not_audited(request)
        return await _form(request, group, committed, form, failure="The group has members. Stop "
                           "them first: their commits would overwrite the change.")
    if any(committed.get(part) != now for part, (now, _) in plan.items()):
        not_audited(request)
        return await _form(request, group, committed, form, rows=await _preview(
            cluster, group, form, committed), failure="The group committed other offsets since the "
            "preview. This is the new one.")
    audit_details(request, offsets=[f"{part}: {now} to {new}" for part, (now, new) in
                                    list(plan.items())[:100]], count=len(plan))
    new = {part: offset for part, (_, offset) in plan.items() if offset is not None}
    gone = [part for part, (_, offset) in plan.items() if offset is None]
    if group.type == SHARE:
        if new:
            await cluster.admin.alter_share_group_offsets(group.group_id, new)
        if gone:
            await cluster.admin.delete_share_group_offsets(
                group.group_id, sorted({part.topic for part in gone}))
    elif new:
        await cluster.admin.alter_consumer_group_offsets(group.group_id, new)
    elif gone:
        await cluster.admin.delete_consumer_group_offsets(group.group_id, gone)
    return redirect(cluster.url("groups", group.group_id),
                    f"{len(plan)} offsets of {group.group_id} were "
                    f"{'deleted' if gone else 'changed'}.")


def _plan(text: str) -> dict[TopicPartition, tuple[int | None, int | None]]:
    """Return {partition: (committed offset, new offset, None to delete it)} of a preview."""
    try:
        rows = json.loads(text)
        if not isinstance(rows, list) or not 0 < len(rows) <= PARTITIONS_MAX:
            raise ValueError("not a list of offsets")
        plan = {}
        for topic, number, now, new in rows:
            if not isinstance(topic, str) or not isinstance(number, int) or not all(
                    one is None or isinstance(one, int) and one >= 0 for one in (now, new)):
                raise ValueError("not an offset")
            plan[TopicPartition(topic, number)] = now, new
    except (ValueError, TypeError):
        raise PageError(400, "The form has no preview", text[:100],
                        "Go back and make a preview first.") from None
    return plan


async def delete(request: Request, cluster: ClusterSession) -> Response:
    """Show the form, or delete the group."""
    name = request.path_params["group"]
    group = await group_lag.described(cluster.admin, name)
    failure = ""
    if request.method == "POST":
        form = await form_of(request)
        if required(form, "name", "The group's name") != name.strip():
            not_audited(request)
            failure = "The name is not that of the group."
        else:
            await cluster.admin.delete_consumer_groups([name])
            return redirect(cluster.url("groups"), f"The group {name} was deleted.")
    return render(request, "group_delete.html", group=group, tab="delete", failure=failure)


PAGES = [
    Page("/groups/{group}/offsets", offsets, methods=("GET", "POST"),
         operations=("READ GROUP", "READ TOPIC", "DELETE GROUP"), changes=True,
         audit="groups.offsets"),
    Page("/groups/{group}/delete", delete, methods=("GET", "POST"),
         operations=("DESCRIBE GROUP", "DELETE GROUP"), changes=True, audit="groups.delete"),
]
