"""`pylog groups explain`: why a group lags, in a sentence, with the numbers that say so.

Owns: nothing.
Called by: tools.groups, tools.history (the endpoint).
Invariants: (1) any Kafka broker will do: two samples of offsets and the group's description are
  enough; (2) a broker that has a metrics endpoint knows more and is asked first, for two seconds at
  most.
Source: monitor.explain has the reasons, for both ways.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import click

from pylog.client.administration import Admin
from pylog.client.errors import KafkaError
from pylog.client.settings import Settings
from pylog.monitor.admission import KEYSTORE
from pylog.monitor.explain import reasons
from pylog.tools import lags, resources
from pylog.tools.command import GROUP, Tool
from pylog.tools.printer import cell, span
from pylog.tools.session import Session, ToolError

ENDPOINT_S = 2.0
HTTPS = "https://"
LOOKS = 5  # Between the two samples, for rebalances.
ROWS_MAX = 10
PARTS = {"topic": "TOPIC", "partition": "PARTITION", "lag_records": "LAG",
         "lag_seconds": ("BEHIND", span), "produce_rate": ("PRODUCED/S", lambda v: _rate(v)),
         "consume_rate": ("COMMITTED/S", lambda v: _rate(v)), "member_id": "MEMBER"}


def endpoint_options(command: Any) -> Any:
    """Which endpoint a command asks, and by what."""
    command = click.option("--token", envvar="PYLOG_METRICS_TOKEN", show_envvar=True,
                           help="The endpoint's metrics.token.")(command)
    return click.option("-m", "--metrics", metavar="[https://]HOST:PORT", help="The broker's "
                        "metrics endpoint.  [default: what its metrics.listener says]")(command)


@click.command(cls=Tool)
@click.argument("name", type=GROUP, metavar="GROUP")
@click.option("-s", "--seconds", default=5.0, show_default=True,
              type=click.FloatRange(min=0.1, max=600), help="Between the two samples.")
@endpoint_options
@click.option("--sample", is_flag=True, help="Do not ask the metrics endpoint.")
@click.pass_obj
def explain(session: Session, name: str, seconds: float, metrics: str | None,
            token: str | None, sample: bool) -> None:
    """Say in one sentence why a group lags, and what that is read from."""
    async def work(admin: Admin) -> dict[str, Any]:
        described = await lags.described(admin, name)
        found = None if sample else await from_endpoint(
            admin, name, described.coordinator, metrics, token)
        if found is None and metrics:
            raise ToolError(f"{metrics} does not tell of group {name}")
        if found is not None and found["rate_seconds"] > 0:
            return {**found, "source": "metrics endpoint"}
        sampled = await _sampled(admin, name, seconds, session)
        return {**sampled, "source": f"two samples, {sampled['rate_seconds']:g} s apart"}

    view = session.administer(work)
    view["sentence"] = sentence(view)
    out = session.out
    if out.as_json:
        out.document(view)
        return
    out.title(view["sentence"])
    for row in view["reasons"][1:]:
        out.line(f"  also: {row['text']}")
    rows = sorted(view["partitions"], key=lambda row: -(row["lag_records"] or 0))
    out.line()
    out.table(rows[:ROWS_MAX], PARTS, empty="it has committed nothing")
    if len(rows) > ROWS_MAX:
        out.line(f"... and {len(rows) - ROWS_MAX} partitions more")
    out.line(f"from {view['source']}")


def sentence(view: dict[str, Any]) -> str:
    """Lag and first reason."""
    lag = view["lag_records"]
    if not any(row["committed_offset"] is not None for row in view["partitions"]):
        return f"{view['group']}: It has committed nothing yet, so there is no lag to report."
    if not lag:
        return f"{view['group']}: {view['reasons'][0]['text']}"
    behind = f" ({span(view['lag_seconds'])})" if view["lag_seconds"] else ""
    return f"{view['group']} is {lag} records{behind} behind: {view['reasons'][0]['text']}"


def _rate(value: float | None) -> str:
    return cell(None if value is None else round(value, 1))


# The metrics endpoint

async def from_endpoint(admin: Admin, group: str, coordinator: int, metrics: str | None,
                        token: str | None) -> dict[str, Any] | None:
    """What the coordinator's endpoint says; None when it has none. Keeps (2)."""
    address = metrics or await _address(admin, coordinator)
    if address is None:
        return None
    try:
        async with asyncio.timeout(ENDPOINT_S):
            found = await asyncio.to_thread(_get, address, group, token, admin.cluster.settings)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "reasons" in found else None


async def _address(admin: Admin, coordinator: int) -> str | None:
    try:
        rows = await resources.described(admin.cluster, resources.BROKER, str(coordinator),
                                         ["metrics.listener", KEYSTORE])
    except (ToolError, KafkaError):
        return None
    values = {row["name"]: row["value"] for row in rows}
    value = values.get("metrics.listener")
    if not value:
        return None
    host, _, port = value.rpartition(":")
    if host.strip("[]") in ("", "0.0.0.0", "::"):
        host = admin.cluster.metadata.nodes[coordinator].host
    return f"{HTTPS if values.get(KEYSTORE) else ''}{host}:{port}"


def _get(address: str, group: str, token: str | None, settings: Settings) -> Any:
    import http.client
    from urllib.parse import quote

    if address.startswith(HTTPS):
        from pylog.security import outgoing

        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.removeprefix(HTTPS), timeout=ENDPOINT_S,
            context=outgoing.context(lambda name: settings[name]))
    else:
        connection = http.client.HTTPConnection(address, timeout=ENDPOINT_S)
    try:
        connection.request("GET", f"/explain/group/{quote(group, safe='')}",
                           headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        body = answer.read()
        return json.loads(body) if answer.status == 200 else None
    except http.client.HTTPException as error:
        raise ValueError(str(error)) from None
    finally:
        connection.close()


# Two samples

async def _sampled(admin: Admin, group: str, seconds: float, session: Session) -> dict[str, Any]:
    """The same view out of what any broker reports."""
    first = await lags.view(admin, group, session.now_ms, with_seconds=False)
    begun = time.monotonic()
    rebalances = await _watched(admin, group, first, seconds, session)
    last = await lags.view(admin, group, session.now_ms)
    taken = time.monotonic() - begun
    before = {(row["topic"], row["partition"]): row for row in first["partitions"]}
    made = {
        **last, "rebalances": {"count": rebalances, "seconds": round(taken, 1)},
        "rate_seconds": round(taken, 1), "lag_records": last["lag_records"] or 0,
        "lag_seconds": last["lag_seconds"] or 0.0,
        # A broker does not report whom another one throttles.
        "members": [{**member, "partitions": len(member["partitions"]), "throttled_ms": 0}
                    for member in last["members"]],
        "partitions": [_part(row, before.get((row["topic"], row["partition"])), taken)
                       for row in last["partitions"]]}
    made["reasons"] = reasons(made)
    return made


async def _watched(admin: Admin, group: str, first: dict[str, Any], seconds: float,
                   session: Session) -> int:
    """Waits, and counts how often members or assignments were others than before."""
    count, known = 0, _shape(first["members"])
    with session.out.progress(f"watch {group}", LOOKS) as done:
        for _ in range(LOOKS):
            await asyncio.sleep(seconds / LOOKS)
            described = await lags.described(admin, group)
            shape = sorted((member.member_id, sorted(map(list, member.assignment)))
                           for member in described.members)
            if shape != known:
                count, known = count + 1, shape
            done(1)
    return count


def _shape(members: list[dict[str, Any]]) -> list[Any]:
    return sorted((one["member_id"], one["partitions"]) for one in members)


def _part(row: dict[str, Any], before: dict[str, Any] | None, taken: float) -> dict[str, Any]:
    made = {**row, "high_watermark": row["end_offset"], "consume_rate": None, "produce_rate": None,
            "cold_reads": None, "lag_records": row["lag_records"] or 0}
    if made["last_stable_offset"] is None:
        made["last_stable_offset"] = row["end_offset"]
    if before is None or taken <= 0:
        return made
    for name, key in (("consume_rate", "committed_offset"), ("produce_rate", "end_offset")):
        if row[key] is not None and before[key] is not None:
            made[name] = round((row[key] - before[key]) / taken, 3)
    return made
