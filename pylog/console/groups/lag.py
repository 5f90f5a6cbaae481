"""The lag of groups, for pages: of the groups in a list, and of one group's partitions.

Owns: nothing.
Invariants: offsets of many groups are read with few requests; a lag that could not be read is None
  with an error, never 0; lag in records is the end offset minus the committed offset, or minus the
  log start offset if that is later; lag in seconds is the age of the first uncommitted record.
Source: kafka-consumer-groups for the meaning of lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pylog.client.admin import group_lag, partition_offsets
from pylog.client.admin.admin import Admin
from pylog.client.errors import (
    GroupIdNotFoundError, KafkaError, UnsupportedByBrokerError, UnsupportedVersionError,
)
from pylog.client.types import TopicPartition

LIST_S_MAX = 10.0
OFFSETS_S_MAX = 5.0  # Retries of groups whose coordinator is loading.
SHARE_GROUPS_AT_ONCE = 16
CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"


class Total(NamedTuple):
    """The lag of a group. records: None if it is unknown or nothing is committed. error: why some
    or all of it is unknown, else "".
    """

    records: int | None
    partitions: int | None
    error: str


class Member(NamedTuple):
    """A member of any kind of group. assignment: as text, because Streams groups have tasks."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: str
    partitions: tuple[TopicPartition, ...]


class Group(NamedTuple):
    group_id: str
    type: str
    state: str
    assignor: str
    coordinator: int
    members: list[Member]


def error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__


class Offsets(NamedTuple):
    """One partition of a group. None: unknown; the lag of a share group has no committed offset."""

    committed: int | None
    end: int | None
    lag: int | None


async def listed(admin: Admin, states: Iterable[str] = (), types: Iterable[str] = ()
                 ) -> tuple[list[Any], dict[int, str]]:
    """Return (the groups, {broker that did not list its groups: reason}). Raises KafkaError if no
    broker listed its groups.
    """
    try:
        return await admin.list_groups(states, types, LIST_S_MAX), {}
    except KafkaError as failure:
        results = failure.results or {}
        lists = {node: rows for node, rows in results.items() if isinstance(rows, list)}
        if not lists:
            raise
        found = {row.group_id: row for rows in lists.values() for row in rows}
        return list(found.values()), {
            node: error_text(result) for node, result in results.items()
            if isinstance(result, KafkaError)}


async def offsets_and_ends(admin: Admin, groups: Mapping[str, str]
                           ) -> dict[str, dict[TopicPartition, Offsets]]:
    """Return the offsets of each group, without groups whose offsets could not be read. groups:
    {name: type}.
    """
    found: dict[str, dict[TopicPartition, Offsets]] = {}
    committed = {name: rows for name, rows in (await offsets(admin, {
        name: None for name, kind in groups.items() if kind != SHARE})).items()
        if isinstance(rows, dict)}
    bounds = await _bounds(admin, {part for rows in committed.values() for part in rows})
    for name, rows in committed.items():
        found[name] = {}
        for part, offset in rows.items():
            bound = bounds[part]
            is_known = isinstance(bound, tuple)
            found[name][part] = Offsets(
                offset, bound[1] if is_known else None,
                max(0, bound[1] - max(offset, bound[0])) if is_known else None)
    shared = await _share_offsets(admin, [name for name, kind in groups.items() if kind == SHARE])
    for name, result in shared.items():
        if not isinstance(result, KafkaError):
            found[name] = {part: Offsets(None, None, row.lag if row.lag >= 0 else None)
                           for part, row in result.items() if row.start_offset >= 0}
    return found


async def _share_offsets(admin: Admin, names: Iterable[str]
                         ) -> dict[str, dict[TopicPartition, Any] | KafkaError]:
    """Return the offsets of each share group, or its error."""
    room = asyncio.Semaphore(SHARE_GROUPS_AT_ONCE)
    found: dict[str, dict[TopicPartition, Any] | KafkaError] = {}

    async def one(name: str) -> None:
        async with room:
            try:
                found[name] = await admin.list_share_group_offsets(name, timeout=OFFSETS_S_MAX)
            except KafkaError as failure:
                found[name] = failure

    await asyncio.gather(*map(one, names))
    return found


async def offsets(admin: Admin, groups: Mapping[str, Iterable[TopicPartition] | None]
                  ) -> dict[str, dict[TopicPartition, int] | KafkaError]:
    """Return the committed offsets of each group, or its error."""
    found = await group_lag.settled(
        groups, admin.list_offsets_of_consumer_groups(groups, timeout=OFFSETS_S_MAX))
    return {group: result if isinstance(result, KafkaError)
            else {part: row.offset for part, row in result.items()}
            for group, result in found.items()}


async def totals(admin: Admin, groups: Mapping[str, str]) -> dict[str, Total]:
    """Return the lag of each group. groups: {name: type}."""
    shared = [name for name, kind in groups.items() if kind == SHARE]
    others = [name for name, kind in groups.items() if kind != SHARE]
    found: dict[str, Total] = {}
    if others:
        committed = await offsets(admin, dict.fromkeys(others))
        parts = {part for result in committed.values() if isinstance(result, dict)
                 for part in result}
        bounds = await _bounds(admin, parts)
        for name, result in committed.items():
            found[name] = Total(None, None, error_text(result)) \
                if isinstance(result, KafkaError) else total(result, bounds)
    for name, rows in (await _share_offsets(admin, shared)).items():
        if isinstance(rows, KafkaError):
            found[name] = Total(None, None, error_text(rows))
            continue
        lags = [row.lag for row in rows.values() if row.lag >= 0]
        unknown = sum(row.lag < 0 <= row.start_offset for row in rows.values())
        found[name] = Total(sum(lags) if lags else None, len(rows),
                            f"the lag of {unknown} partitions is unknown" if unknown else "")
    return found


async def _bounds(admin: Admin, parts: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
    listed = sorted(parts)
    try:
        metadata = await partition_offsets.metadata_of(
            admin.cluster, {part.topic for part in listed})
        return dict(await partition_offsets.bounds(admin.cluster, metadata, listed))
    except KafkaError as failure:
        return dict.fromkeys(listed, error_text(failure))


def total(committed: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Any]) -> Total:
    records, failed = 0, []
    for part, offset in committed.items():
        bound = bounds[part]
        if isinstance(bound, tuple):
            records += max(0, bound[1] - max(offset, bound[0]))
        else:
            failed.append(f"{part.topic}-{part.partition}: {bound}")
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    is_known = len(failed) < len(committed)
    return Total(records if is_known else None, len(committed),
                 f"{failed[0]}{more}" if failed else "")


async def described(admin: Admin, name: str) -> Group:
    """Return a group of any kind. Raises GroupIdNotFoundError and other KafkaErrors."""
    try:
        row = (await admin.describe_consumer_groups([name]))[name]
        return Group(name, row.type, row.state, row.assignor, row.coordinator, [
            Member(one.member_id, one.group_instance_id, one.client_id, one.host,
                   named(one.assignment), tuple(sorted(one.assignment)))
            for one in row.members])
    except GroupIdNotFoundError as failure:
        missing = failure
    for look in (_share_group, _streams_group):
        try:
            return await look(admin, name)
        except (GroupIdNotFoundError, UnsupportedByBrokerError, UnsupportedVersionError):
            continue
    raise missing


async def _share_group(admin: Admin, name: str) -> Group:
    row = (await admin.describe_share_groups([name]))[name]
    return Group(name, SHARE, row.state, row.assignor, row.coordinator, [
        Member(one.member_id, None, one.client_id, one.host, named(one.assignment),
               tuple(sorted(one.assignment))) for one in row.members])


async def _streams_group(admin: Admin, name: str) -> Group:
    row = (await admin.describe_streams_groups([name]))[name]
    sources = {one.id: [*one.sources, *one.repartition_sources] for one in row.subtopologies}
    return Group(name, STREAMS, row.state, "", row.coordinator, [
        Member(one.member_id, one.instance_id, one.client_id, one.host,
               ", ".join(f"{task.subtopology}_{task.partition}" for task in one.assignment.active),
               tuple(TopicPartition(topic, task.partition) for task in one.assignment.active
                     for topic in sources.get(task.subtopology, ())))
        for one in row.members])


def named(parts: Iterable[TopicPartition]) -> str:
    """Return partitions as text: orders: 0, 1; payments: 2."""
    by_topic: dict[str, list[str]] = {}
    for part in sorted(parts):
        by_topic.setdefault(part.topic, []).append(str(part.partition))
    return "; ".join(f"{topic}: {', '.join(numbers)}" for topic, numbers in by_topic.items())


async def partitions(admin: Admin, group: Group, now_ms: Callable[[], int],
                     with_ages: bool = True) -> list[dict[str, Any]]:
    """Return a row for each partition that the group has committed or a member reads.

    Raises KafkaError if the group's offsets could not be read.
    """
    owners = {part: member for member in group.members for part in member.partitions}
    if group.type == SHARE:
        return await _share_partitions(admin, group, owners)
    committed = (await offsets(admin, {group.group_id: None}))[group.group_id]
    if isinstance(committed, KafkaError):
        raise committed
    rows = await group_lag.rows(admin.cluster, sorted({*committed, *owners}), committed,
                                now_ms if with_ages else None)
    for row in rows:
        owner = owners.get(TopicPartition(row["topic"], row["partition"]))
        row["member_id"] = owner.member_id if owner else None
        row["client_id"] = owner.client_id if owner else None
    return rows


async def _share_partitions(admin: Admin, group: Group, owners: Mapping[TopicPartition, Member]
                            ) -> list[dict[str, Any]]:
    found = await admin.list_share_group_offsets(group.group_id, timeout=OFFSETS_S_MAX)
    bounds = await _bounds(admin, {*found, *owners})
    rows = []
    for part in sorted({*found, *owners}):
        row, bound = found.get(part), bounds[part]
        owner = owners.get(part)
        rows.append({
            "topic": part.topic, "partition": part.partition,
            "committed_offset": row.start_offset if row and row.start_offset >= 0 else None,
            "start_offset": None, "last_stable_offset": None,
            "end_offset": bound[1] if isinstance(bound, tuple) else None,
            "lag_records": row.lag if row and row.lag >= 0 else None, "lag_seconds": None,
            "error": None, "member_id": owner.member_id if owner else None,
            "client_id": owner.client_id if owner else None})
    return rows


def summed(rows: Iterable[Mapping[str, Any]]) -> tuple[int | None, float | None, list[str]]:
    """Return (lag in records, lag in seconds, errors) of rows of partitions()."""
    listed = list(rows)
    records = [row["lag_records"] for row in listed if row["lag_records"] is not None]
    ages = [row["lag_seconds"] for row in listed if row["lag_seconds"] is not None]
    errors = [f"{row['topic']}-{row['partition']}: {row['error']}" for row in listed
              if row["error"]]
    return sum(records) if records else None, max(ages) if ages else None, errors
