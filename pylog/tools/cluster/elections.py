"""`pylog cluster elect`: preferred and unclean leader elections.

Owns: nothing.
Invariants: an unclean election, which can lose records, lists its partitions and requires
  confirmation; a partition that already has the requested leader is no error.
Source: kafka-leader-election (KIP-460).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from pylog.client.errors import KafkaError
from pylog.protocol.errors import ErrorCode
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import TOPIC, Tool, confirmed
from pylog.tools.cli.session import Session, ToolError

if TYPE_CHECKING:
    from pylog.client.admin.admin import Admin
    from pylog.client.network.cluster_metadata import Metadata
    from pylog.client.types import TopicPartition

ELECTED = {"topic": "TOPIC", "partition": "PARTITION", "before": "LEADER BEFORE",
           "leader": "LEADER", "error": "ERROR"}
CHECKS, CHECK_INTERVAL_S = 20, 0.1


@click.command(cls=Tool)
@click.argument("names", nargs=-1, type=TOPIC, metavar="[TOPIC[:0,1]]...")
@click.option("--unclean", is_flag=True, help="Elect a replica that lacks records if no other "
              "is alive: the missing records are lost.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def elect(session: Session, names: tuple[str, ...], unclean: bool, yes: bool) -> None:
    """Elect the preferred replica as leader of each partition; of all partitions without TOPIC."""
    if unclean:
        if not names:
            raise click.UsageError("--unclean needs the names of topics")
        confirmed(f"Elect out-of-sync leaders of {', '.join(names)}? Records that they lack are "
                  f"lost", yes)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        metadata = await cluster_queries.all_topics(admin.cluster)
        before = {part: metadata.leader(*part)
                  for part in cluster_queries.partitions_of(metadata.topics.values())}
        parts = [part for name in names
                 for part in await cluster_queries.named(admin.cluster, name)]
        ended = await admin.elect_leaders(parts or None, unclean, session.timeout_s)
        metadata = await _seen(admin, [part for part, failure in ended.items()
                                       if failure is None and not unclean])
        return [{"topic": part.topic, "partition": part.partition,
                 "before": before.get(part, -1), "leader": metadata.leader(*part),
                 "error": str(failure) if failure is not None else None}
                for part, failure in sorted(ended.items()) if not _election_not_needed(failure)]

    rows = session.administer(work)
    session.out.rows(rows, ELECTED, empty="every preferred leader is already the leader")
    failed = [row for row in rows if row["error"]]
    if failed:
        raise ToolError(f"{len(failed)} of {len(rows)} elections failed, the first: "
                        f"{failed[0]['error']}")


async def _seen(admin: Admin, elected: list[TopicPartition]) -> Metadata:
    """Return the metadata as soon as the broker has received the new leaders."""
    for _ in range(CHECKS):
        metadata = await cluster_queries.all_topics(admin.cluster)
        infos = [metadata.partition(*part) for part in elected]
        if all(info is None or info.leader == info.replicas[0] for info in infos):
            break
        await asyncio.sleep(CHECK_INTERVAL_S)
    return metadata


def _election_not_needed(failure: Any) -> bool:
    """Return the partitions that failed. A partition that already has its leader is no error."""
    return isinstance(failure, KafkaError) and failure.code == ErrorCode.ELECTION_NOT_NEEDED
