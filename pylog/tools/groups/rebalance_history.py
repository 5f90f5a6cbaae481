"""`pylog groups history`: the last rebalances of a group, their causes and costs.

Owns: nothing.
Invariants: newest first.
Source: coordinator.rebalances, through the metrics endpoint of the group's coordinator.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from pylog.client.admin.admin import Admin
from pylog.client.admin.metrics_endpoint import group_view
from pylog.coordinator.groups.state.rebalance_tracker import sentence
from pylog.protocol.counts import counted
from pylog.tools.cli.metrics_endpoint import endpoint_options
from pylog.tools.cli.command import GROUP, Tool
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.groups import lag

ROWS = {"time": "TIME", "took_ms": "TOOK MS", "generation": "GENERATION", "members": "MEMBERS",
        "why": "WHY"}
CAUSES = {"after_ms": "AFTER MS", "cause": "CAUSE", "client_id": "CLIENT", "host": "HOST",
          "member_id": "MEMBER", "reason": "REASON"}
STOPPED = {"stopped_ms": "WITHOUT WORK MS", "client_id": "CLIENT", "host": "HOST",
           "member_id": "MEMBER"}


@click.command(cls=Tool)
@click.argument("name", type=GROUP, metavar="GROUP")
@click.option("-n", "--limit", default=10, show_default=True, type=click.IntRange(min=1),
              help="Number of rebalances.")
@click.option("-l", "--long", "is_long", is_flag=True, help="Show every cause and member.")
@endpoint_options
@click.pass_obj
def history(session: Session, name: str, limit: int, is_long: bool, metrics: str | None,
            token: str | None) -> None:
    """List the last rebalances of a group, their causes, and which members had no partitions."""
    async def work(admin: Admin) -> list[dict[str, Any]]:
        described = await lag.described(admin, name)
        found = await group_view(
            admin.cluster, described.coordinator, name, metrics, token)
        if found is None or "history" not in found:
            raise ToolError(
                f"broker {described.coordinator} does not report group {name}: set its "
                "metrics.listener, or name the endpoint with --metrics HOST:PORT")
        return found["history"][:limit]

    rows = session.administer(work)
    out = session.out
    if out.as_json:
        out.document(rows)
        return
    shown = [{**row, "time": _time(row["time_ms"]), "why": sentence(row)} for row in rows]
    if not is_long:
        out.table(shown, ROWS, empty=f"no rebalance of {name} is recorded")
        return
    for row in shown:
        out.title(f"{row['time']}  {row['took_ms']} ms, generation {row['generation']}, "
                  f"{counted(row['members'], 'member')}")
        out.table([{key: cause.get(key) for key in CAUSES} for cause in row["causes"]], CAUSES)
        out.table(row["stopped"], STOPPED, empty="no member stopped consuming")
        out.line()


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
