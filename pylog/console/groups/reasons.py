"""Why a group lags, in sentences with their numbers; and why it rebalanced.

Owns: nothing.
Invariants: a broker's endpoint is used only if it shows no partition that the user may not see;
  otherwise the sentences come from two readings, of which the later one has the user's own
  rights and decides which partitions are shown.
Source: pylog.monitor.explain has the reasons for both sources.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pylog.client.admin.admin import Admin
from pylog.client.admin import metrics_endpoint
from pylog.client.admin.group_lag import with_rates
from pylog.client.types import TopicPartition
from pylog.console.groups import lag as group_lag
from pylog.console.groups import share_reasons
from pylog.console.groups.lag import SHARE, Group
from pylog.coordinator.groups.state.rebalance_tracker import sentence
from pylog.monitor.explain import reasons

BETWEEN_READINGS_S = 2.0

Earlier = tuple[int, Mapping[TopicPartition, Mapping[str, Any]]]  # Time in ms, offsets.


class Explanation(NamedTuple):
    """texts: the most useful reason first. rows: of the partitions, with rates. source: where the
    numbers come from.
    """

    texts: list[str]
    rows: list[dict[str, Any]]
    source: str


async def explain(admin: Admin, group: Group, now_ms: Callable[[], int], is_brokerd: bool,
                  before: Earlier | None) -> Explanation:
    """Explain a group's lag. before: an earlier reading. Raises KafkaError."""
    if group.type == SHARE:
        return await _share(admin, group, now_ms)
    rows = await group_lag.partitions(admin, group, now_ms, with_ages=before is not None)
    if is_brokerd:
        view = await metrics_endpoint.group_view(
            admin.cluster, group.coordinator, group.group_id)
        visible = {(row["topic"], row["partition"]) for row in rows}
        if view is not None and metrics_endpoint.knows_pace(view) \
                and not view.get("missing_partitions") and all(
                    (row["topic"], row["partition"]) in visible for row in view["partitions"]):
            return Explanation([row["text"] for row in view["reasons"]], view["partitions"],
                               f"the metrics of broker {group.coordinator}, "
                               f"over {view['rate_seconds']:.0f} s")
    if before is not None:
        time_ms, old = before
        seconds = (now_ms() - time_ms) / 1000
        return _explained(_view(group, old, group, rows, seconds), rows,
                          f"the console's samples of the last {seconds:.0f} s")
    seconds_of = asyncio.get_running_loop().time
    begun_s = seconds_of()
    await asyncio.sleep(BETWEEN_READINGS_S)
    later = await group_lag.described(admin, group.group_id)
    last = await group_lag.partitions(admin, later, now_ms)
    seconds = seconds_of() - begun_s
    old = {TopicPartition(row["topic"], row["partition"]): row for row in rows}
    return _explained(_view(group, old, later, last, seconds), last,
                      f"two readings, {seconds:.1f} s apart")


async def _share(admin: Admin, group: Group, now_ms: Callable[[], int]) -> Explanation:
    """Explain the lag of a share group from two readings."""
    seconds_of = asyncio.get_running_loop().time
    begun_s = seconds_of()
    before = await group_lag.partitions(admin, group, now_ms)
    await asyncio.sleep(BETWEEN_READINGS_S)
    later = await group_lag.described(admin, group.group_id)
    now = await group_lag.partitions(admin, later, now_ms)
    seconds = seconds_of() - begun_s
    return Explanation(share_reasons.reasons(later, before, now, seconds),
                       share_reasons.with_rates(before, now, seconds),
                       f"two readings, {seconds:.1f} s apart")


def _explained(view: dict[str, Any], rows: list[dict[str, Any]], source: str) -> Explanation:
    failed = [f"{row['topic']}-{row['partition']} could not be read: {row['error']}."
              for row in rows if row["error"]]
    known = [] if failed and not view["lag_records"] else [row["text"] for row in reasons(view)]
    return Explanation(known + failed, view["partitions"], source)


async def history(admin: Admin, group: Group) -> list[dict[str, Any]] | None:
    """Return the last rebalances, newest first, each with its `sentence`; None if the coordinator
    does not report them.
    """
    view = await metrics_endpoint.group_view(admin.cluster, group.coordinator, group.group_id)
    if view is None or "history" not in view:
        return None
    return [{**row, "sentence": sentence(row)} for row in view["history"]]


def _view(first: Group, before: Mapping[TopicPartition, Mapping[str, Any]], group: Group,
          rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return the argument of reasons()."""
    parts = [with_rates(row, before.get(TopicPartition(row["topic"], row["partition"])), seconds)
             for row in rows
             if row["committed_offset"] is not None]
    return {
        "group": group.group_id, "state": group.state,
        "rebalances": {"count": int(_shape(first) != _shape(group)), "seconds": round(seconds, 1)},
        "rate_seconds": round(seconds, 1), "partitions": parts,
        "lag_records": sum(part["lag_records"] for part in parts),
        "lag_seconds": max((part["lag_seconds"] or 0.0 for part in parts), default=0.0),
        # A broker does not report which clients another broker throttles.
        "members": [{"member_id": one.member_id, "client_id": one.client_id, "throttled_ms": 0}
                    for one in group.members]}


def _shape(group: Group) -> list[tuple[str, str]]:
    return sorted((one.member_id, one.assignment) for one in group.members)
