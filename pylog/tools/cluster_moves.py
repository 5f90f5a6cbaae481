"""`pylog cluster move|drain`: which brokers partitions shall be on, and how far they are.

Owns: nothing.
Called by: tools.cluster.
Invariants: (1) a plan is a function of what the cluster says, and balances what it adds; (2) a
  partition keeps its number of replicas, and what need not move stays.
Source: KIP-455 (reassignment); Kafka's kafka-reassign-partitions.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

import click

from pylog.client.administration import Admin
from pylog.client.metadata import Metadata, PartitionInfo
from pylog.client.offsets import TopicPartition
from pylog.tools import inquiry
from pylog.tools.command import Tool, confirmed
from pylog.tools.session import Session, ToolError

MOVES = {"topic": "TOPIC", "partition": "PARTITION", "from": "FROM", "to": "TO"}
WAIT_S = 0.5

Plan = dict[TopicPartition, list[int]]


def planned(metadata: Metadata, parts: Iterable[PartitionInfo], allowed: set[int]) -> Plan:
    """New replicas for the partitions that have some elsewhere than on the `allowed` brokers.

    Keeps (1), (2). Raises ToolError: there are too few brokers.
    """
    loads = dict.fromkeys(sorted(allowed), 0)
    for topic in metadata.topics.values():
        for part in topic.partitions.values():
            for node in part.replicas:
                loads[node] = loads.get(node, 0) + 1
    found: Plan = {}
    for part in parts:
        if set(part.replicas) <= allowed:
            continue
        if len(part.replicas) > len(allowed):
            raise ToolError(f"{part.topic}-{part.partition} has {len(part.replicas)} replicas, "
                            f"and there are only {len(allowed)} brokers for them")
        found[TopicPartition(part.topic, part.partition)] = _replaced(
            metadata, part, allowed, loads)
    return found


def _replaced(metadata: Metadata, part: PartitionInfo, allowed: set[int], loads: dict[int, int]
              ) -> list[int]:
    """The replicas with those that have to go replaced, each in its place."""
    kept = {node for node in part.replicas if node in allowed}
    replicas = []
    for node in part.replicas:
        if node in kept:
            replicas.append(node)
            continue
        racks = {_rack(metadata, other) for other in kept}
        chosen = min((other for other in sorted(allowed) if other not in kept),
                     key=lambda other: (_rack(metadata, other) in racks - {None}, loads[other]))
        kept.add(chosen)
        loads[chosen] += 1
        loads[node] -= 1
        replicas.append(chosen)
    return replicas


def _rack(metadata: Metadata, node: int) -> str | None:
    row = metadata.nodes.get(node)
    return None if row is None else row.rack


@click.command(cls=Tool)
@click.argument("pattern", metavar="TOPIC")
@click.option("-t", "--to", "to", required=True, metavar="IDS", help="Brokers, between commas.")
@click.option("--dry-run", is_flag=True, help="Only say what would be moved.")
@click.option("--wait", is_flag=True, help="Return when everything has arrived.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def move(session: Session, pattern: str, to: str, dry_run: bool, wait: bool, yes: bool) -> None:
    """Move the partitions of TOPIC (a name or a pattern) to certain brokers."""
    try:
        allowed = {int(number) for number in to.split(",")}
    except ValueError:
        raise click.UsageError(f"--to {to!r}: expected broker ids between commas") from None
    _carry_out(session, pattern, lambda metadata: allowed, dry_run, wait, yes)


@click.command(cls=Tool)
@click.argument("broker", type=int)
@click.option("--dry-run", is_flag=True, help="Only say what would be moved.")
@click.option("--wait", is_flag=True, help="Return when everything has arrived.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def drain(session: Session, broker: int, dry_run: bool, wait: bool, yes: bool) -> None:
    """Move every partition away from BROKER, so that it can be taken away."""
    _carry_out(session, "*", lambda metadata: set(metadata.nodes) - {broker}, dry_run, wait, yes)


def _carry_out(session: Session, pattern: str, allowed_of: Any, dry_run: bool, wait: bool,
               yes: bool) -> None:
    async def look(admin: Admin) -> tuple[Metadata, Plan]:
        metadata = await inquiry.all_topics(admin.cluster)
        allowed = allowed_of(metadata)
        missing = allowed - set(metadata.nodes)
        if missing:
            raise ToolError(f"there is no broker {min(missing)}")
        parts = [part for name, topic in sorted(metadata.topics.items())
                 if fnmatch.fnmatchcase(name, pattern) for part in topic.partitions.values()]
        if not parts and pattern != "*":
            raise inquiry.unknown("topic", pattern, metadata.topics)
        return metadata, planned(metadata, parts, allowed)

    metadata, plan = session.administer(look)
    rows = [{"topic": part.topic, "partition": part.partition,
             "from": list(metadata.topics[part.topic].partitions[part.partition].replicas),
             "to": replicas} for part, replicas in plan.items()]
    session.out.rows(rows, MOVES, empty="everything is where it shall be")
    if dry_run or not plan:
        return
    confirmed(f"Move {len(plan)} partitions?", yes)

    async def start(admin: Admin) -> None:
        await admin.alter_partition_reassignments(plan, session.timeout_s)
        if wait:
            await _arrived(admin, plan)

    session.administer(start)
    if not wait:
        session.out.note("started; pylog cluster says when it is over")


async def _arrived(admin: Admin, plan: Plan) -> None:
    import asyncio

    while plan.keys() & (await admin.list_partition_reassignments()).keys():
        await asyncio.sleep(WAIT_S)
