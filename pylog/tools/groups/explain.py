"""`pylog groups explain`: explain in one sentence, with numbers, why a group lags.

Owns: nothing.
Invariants: works with any Kafka broker, from two samples of offsets and the group's description; a
  broker's metrics endpoint has more data and is queried first, with a timeout of two seconds; the
  transaction that blocks a partition is read from the partition's leader and can stay unknown.
Source: monitor.explain has the reasons for both data sources.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from pylog.client.admin import group_lag
from pylog.client.admin.admin import Admin
from pylog.client.admin.metrics_endpoint import group_view, knows_pace
from pylog.client.errors import KafkaError
from pylog.client.types import TopicPartition
from pylog.protocol.counts import counted
from pylog.monitor.explain import reasons
from pylog.tools.cli import totals
from pylog.tools.cli.metrics_endpoint import endpoint_options
from pylog.tools.groups import lag
from pylog.tools.cli.command import GROUP, Tool
from pylog.tools.cli.output import cell, span
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.groups.transactions import holders

LOOKS = 5  # Checks for rebalances between the two samples.
ROWS_MAX = 10
PARTS = {"topic": "TOPIC", "partition": "PARTITION", "lag_records": "LAG",
         "lag_seconds": ("BEHIND", span), "produce_rate": ("PRODUCED/S", lambda v: _rate(v)),
         "consume_rate": ("COMMITTED/S", lambda v: _rate(v)), "member_id": "MEMBER"}


@click.command(cls=Tool)
@click.argument("name", type=GROUP, metavar="GROUP")
@click.option("-s", "--seconds", default=5.0, show_default=True,
              type=click.FloatRange(min=0.1, max=600), help="Time between the two samples.")
@endpoint_options
@click.option("--sample", is_flag=True, help="Take samples; do not query the metrics endpoint.")
@click.pass_obj
def explain(session: Session, name: str, seconds: float, metrics: str | None,
            token: str | None, sample: bool) -> None:
    """Explain in one sentence why a group lags, and name the data source."""
    async def work(admin: Admin) -> dict[str, Any]:
        described = await lag.described(admin, name)
        found = None if sample else await group_view(
            admin.cluster, described.coordinator, name, metrics, token)
        if found is None and metrics:
            raise ToolError(f"{metrics} does not report group {name}")
        # The endpoint omits partitions without a replica on the coordinator.
        if found is not None and knows_pace(found) and not found.get("missing_partitions"):
            found["missing_partitions"] = []  # An older broker does not report members.
            return await _named(admin, {**found, "source": "metrics endpoint"}, session)
        sampled = await _sampled(admin, name, seconds, session)
        return await _named(admin, {
            **sampled, "source": f"two samples, {sampled['rate_seconds']:g} s apart"}, session)

    view = session.administer(work)
    view["sentence"] = sentence(view)
    out = session.out
    if out.as_json:
        out.document(view)
    else:
        _print(session, view)
    totals.check_complete(view["missing_partitions"])


def _print(session: Session, view: dict[str, Any]) -> None:
    out = session.out
    out.title(view["sentence"])
    for row in view["reasons"][1:]:
        out.line(f"  also: {row['text']}")
    rows = sorted(view["partitions"], key=lambda row: -(row["lag_records"] or 0))
    out.line()
    out.table(rows[:ROWS_MAX], PARTS, empty="it has committed nothing")
    if len(rows) > ROWS_MAX:
        out.line(f"... and {counted(len(rows) - ROWS_MAX, 'partition')} more")
    out.line(f"from {view['source']}")


def sentence(view: dict[str, Any]) -> str:
    """Return the lag and the first reason."""
    lag = view["lag_records"]
    if not any(row["committed_offset"] is not None for row in view["partitions"]):
        return f"{view['group']}: It has committed nothing yet, so there is no lag to report."
    if not lag and view["missing_partitions"]:
        count = counted(len(view["missing_partitions"]), "partition")
        return f"{view['group']}: Its lag is unknown, because {count} cannot be read."
    if not lag:
        return f"{view['group']}: {view['reasons'][0]['text']}"
    behind = f" ({span(view['lag_seconds'])})" if view["lag_seconds"] else ""
    return (f"{view['group']} is {counted(lag, 'record')}{behind} behind: "
            f"{view['reasons'][0]['text']}")


async def _named(admin: Admin, view: dict[str, Any], session: Session) -> dict[str, Any]:
    """Return the view with the producer of the transaction that blocks a partition, if its leader
    reports it.
    """
    for reason in view["reasons"]:
        if reason["reason"] != "open_transaction":
            continue
        held = min((row for row in view["partitions"] if row["lag_records"]
                    and row["last_stable_offset"] < row["high_watermark"]),
                   key=lambda row: -row["lag_records"])
        try:
            found = await holders(admin, TopicPartition(held["topic"], held["partition"]),
                                  session.now_ms())
        except KafkaError:
            continue
        if found:
            reason["holder"] = found[0]
            reason["text"] += f" {_holder_text(held, found[0])}"
    return view


def _holder_text(held: dict[str, Any], holder: dict[str, Any]) -> str:
    own = holder["transactional_id"]
    whose = f"transactional id {own}" if own else f"producer {holder['producer_id']}"
    return (f"It is of {whose}, open in {held['topic']}-{held['partition']} from offset "
            f"{holder['transaction_start']} on, and wrote last {span(holder['quiet_seconds'])} "
            "ago.")


def _rate(value: float | None) -> str:
    return cell(None if value is None else round(value, 1))


# Two samples

async def _sampled(admin: Admin, group: str, seconds: float, session: Session) -> dict[str, Any]:
    """Return the same view from data that every broker reports."""
    first = await lag.view(admin, group, session.now_ms, with_seconds=False)
    begun = time.monotonic()
    rebalances = await _watched(admin, group, first, seconds, session)
    last = await lag.view(admin, group, session.now_ms)
    elapsed_s = time.monotonic() - begun
    before = {(row["topic"], row["partition"]): row for row in first["partitions"]}
    made = {
        **last, "rebalances": {"count": rebalances, "seconds": round(elapsed_s, 1)},
        "rate_seconds": round(elapsed_s, 1), "lag_records": last["lag_records"] or 0,
        "lag_seconds": last["lag_seconds"] or 0.0,
        # A broker does not report which clients another broker throttles.
        "members": [{**member, "partitions": len(member["partitions"]), "throttled_ms": 0}
                    for member in last["members"]],
        "partitions": [
            group_lag.with_rates(row, before.get((row["topic"], row["partition"])), elapsed_s)
            for row in last["partitions"]]}
    is_unknown = not made["lag_records"] and made["missing_partitions"]
    made["reasons"] = [] if is_unknown else reasons(made)
    return made


async def _watched(admin: Admin, group: str, first: dict[str, Any], seconds: float,
                   session: Session) -> int:
    """Wait, and count how often members or assignments changed."""
    count, known = 0, _shape(first["members"])
    with session.out.progress(f"watch {group}", LOOKS) as done:
        for _ in range(LOOKS):
            await asyncio.sleep(seconds / LOOKS)
            described = await lag.described(admin, group)
            shape = sorted((member.member_id, sorted(map(list, member.assignment)))
                           for member in described.members)
            if shape != known:
                count, known = count + 1, shape
            done(1)
    return count


def _shape(members: list[dict[str, Any]]) -> list[Any]:
    return sorted((one["member_id"], one["partitions"]) for one in members)
