"""`pylog topics branch`: an instant copy of a topic; needs brokerd.

Owns: nothing.
Invariants: a branch is created by CreateTopics with the broker's creation options, which is
  possible from any client; the error for a broker other than brokerd differs from a refusal by
  brokerd.
Source: metadata.branching.
"""

from __future__ import annotations

from typing import Any

import click

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import NewTopic
from pylog.client.errors import KafkaError
from pylog.metadata.controller.partitions.topic_branches import AT_OFFSET, AT_TIME, SOURCE
from pylog.protocol.errors import ErrorCode
from pylog.tools.cli import cluster_queries, config_resources
from pylog.tools.cli.command import TOPIC, Tool, pairs
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.cli.time_arguments import moment


@click.command(cls=Tool)
@click.argument("source", type=TOPIC, metavar="SRC")
@click.argument("name", metavar="DST")
@click.option("--at", "at", metavar="WHERE", help="Omit records at or after an offset (the "
              "same in every partition) or a time: 2026-11-01T10:00, -10m, @seconds.")
@click.option("-s", "--set", "settings", metavar="KEY=VALUE", multiple=True,
              help="Override a setting of the source; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Validate only; change nothing.")
@click.pass_obj
def branch(session: Session, source: str, name: str, at: str | None, settings: tuple[str, ...],
           dry_run: bool) -> None:
    """Create topic DST as a branch of SRC: the same records at the same offsets, instantly.

    The branch shares SRC's segment files (hard links). Later writes, cleaning and deletions in one
    topic do not affect the other. Requires a cluster of a single brokerd.
    """
    configs = {**pairs(settings, "--set"), SOURCE: source, **_where(session, at)}

    async def work(admin: Admin) -> bytes | None:
        await cluster_queries.topics(admin.cluster, [source])
        try:
            made = await admin.create_topics([NewTopic(name, -1, -1, configs=configs)], dry_run,
                                             session.timeout_s)
        except KafkaError as error:
            failure = (error.results or {}).get(name, error)
            if failure.code == ErrorCode.INVALID_CONFIG and "nknown" in str(failure):
                # Distinguish another broker from a refusal.
                raise ToolError("this broker cannot make branches, only brokerd can: "
                                f"{failure}") from None
            raise ToolError(f"topic {cluster_queries.error_text(failure)}") from None
        found = made.get(name) if made else None
        return found if isinstance(found, bytes) else None

    id_ = session.administer(work)
    row: dict[str, Any] = {"topic": name, "source": source, "dry_run": dry_run,
                           "id": config_resources.uuid_text(id_) if id_ else None}
    session.out.result(row, f"{name} {'would be' if dry_run else 'is'} a branch of {source}")


def _where(session: Session, at: str | None) -> dict[str, str]:
    if at is None:
        return {}
    if at.isdigit():
        return {AT_OFFSET: at}
    return {AT_TIME: str(moment(at.removeprefix("@"), session.now_ms()))}
