"""`pylog cluster move|drain|grow|shrink`: plan which brokers hold the replicas, and how many.

Owns: nothing.
Invariants: a plan depends only on the cluster's state and balances the replicas it adds; replicas
  that need not move keep their place in the list: the first replica is the preferred leader.
Source: KIP-455 (reassignment); Kafka's kafka-reassign-partitions.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import click

from pylog.client.admin.admin import Admin
from pylog.client.network.cluster_metadata import Metadata, PartitionInfo
from pylog.client.types import TopicPartition
from pylog.protocol.counts import counted
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import Tool, confirmed
from pylog.tools.cli.session import Session, ToolError

MOVES = {"topic": "TOPIC", "partition": "PARTITION", "from": "FROM", "to": "TO"}
WAIT_S = 0.5
SETTLE_S = 5.0  # Time after the end of a move until every broker's metadata shows it.

Plan = dict[TopicPartition, list[int]]


def same(count: int) -> int:
    """Return the unchanged replication factor, for a plan that only moves replicas."""
    return count


def planned(metadata: Metadata, parts: Iterable[PartitionInfo], allowed: set[int],
            count_of: Callable[[int], int] = same, retained: Iterable[int] = ()) -> Plan:
    """Return new replicas for the partitions that have some on other than the `allowed` brokers, or
    that change their replication factor. count_of: current replication factor -> new one. retained:
    other brokers, which keep their replicas but get no new ones.

    The result depends only on the arguments, and retained replicas keep their place. Raises
    ToolError if there are too few brokers.
    """
    staying = {*allowed, *retained}
    loads = dict.fromkeys(sorted(allowed), 0)
    for topic in metadata.topics.values():
        for part in topic.partitions.values():
            for node in part.replicas:
                loads[node] = loads.get(node, 0) + 1
    found: Plan = {}
    for part in parts:
        count = count_of(len(part.replicas))
        if set(part.replicas) <= staying and len(part.replicas) == count:
            continue
        if count > len(allowed | (staying & set(part.replicas))):
            there = "is" if len(allowed) == 1 else "are"
            raise ToolError(
                f"{part.topic}-{part.partition} needs {counted(count, 'replica')}, but there "
                f"{there} only {counted(len(allowed), 'broker')} for them")
        found[TopicPartition(part.topic, part.partition)] = _replaced(
            metadata, part, allowed, staying, loads, count)
    return found


def _replaced(metadata: Metadata, part: PartitionInfo, allowed: set[int], staying: set[int],
              loads: dict[int, int], count: int) -> list[int]:
    """Return `count` replicas: the retained ones, with new brokers in place of the removed ones."""
    retained = [node for node in part.replicas if node in staying][:count]
    missing = count - len(retained)
    replicas = []
    for node in (*part.replicas, *[None] * missing):
        if node in retained:
            replicas.append(node)
            continue
        if node is not None:
            loads[node] -= 1
        if missing:
            missing -= 1
            replicas.append(_choose_broker(metadata, [*retained, *replicas], allowed, loads))
    assert len(set(replicas)) == count, (replicas, count)
    return replicas


def _choose_broker(metadata: Metadata, used: list[int], allowed: set[int],
                   loads: dict[int, int]) -> int:
    """Return the broker with the fewest replicas, in a rack without a replica if possible."""
    racks = {_rack(metadata, node) for node in used} - {None}
    chosen = min((node for node in sorted(allowed) if node not in used),
                 key=lambda node: (_rack(metadata, node) in racks, loads[node]))
    loads[chosen] += 1
    return chosen


def _rack(metadata: Metadata, node: int) -> str | None:
    row = metadata.nodes.get(node)
    return None if row is None else row.rack


TO = click.option("-t", "--to", "to", required=True, metavar="IDS",
                  help="Broker ids, separated by commas.")


def move_options(command: Any) -> Any:
    """Add the options that all of these commands share."""
    for option in (
            click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
            click.option("--wait", is_flag=True, help="Wait until all moves are complete."),
            click.option("--dry-run", is_flag=True, help="Only show what would be moved.")):
        command = option(command)
    return command


@click.command(cls=Tool)
@click.argument("pattern", metavar="TOPIC")
@TO
@move_options
@click.pass_obj
def move(session: Session, pattern: str, to: str, **how: bool) -> None:
    """Move the partitions of TOPIC (a name or a pattern) to the given brokers."""
    allowed = _numbers(to)
    _reassign(session, pattern, lambda metadata: allowed, same, **how)


@click.command(cls=Tool)
@click.argument("broker", type=int)
@move_options
@click.pass_obj
def drain(session: Session, broker: int, **how: bool) -> None:
    """Move every partition away from BROKER, so that you can remove it.

    Replicas on other brokers stay, even if their broker is down.
    """
    _reassign(session, "*", lambda metadata: set(metadata.nodes) - {broker}, same, broker,
              retains_absent=True, **how)


@click.command(cls=Tool)
@click.argument("pattern", metavar="[TOPIC]", default="*")
@click.option("-r", "--replication-factor", "factor", type=click.IntRange(1), default=3,
              show_default=True, help="Minimum number of replicas of each partition.")
@move_options
@click.pass_obj
def grow(session: Session, pattern: str, factor: int, **how: bool) -> None:
    """Add replicas to the partitions of TOPIC (a name or a pattern), or of all topics.

    Internal topics grow too. Leaders keep their role, and brokers that are down keep their
    replicas.
    """
    _reassign(session, pattern, lambda metadata: set(metadata.nodes),
              lambda count: max(count, factor), retains_absent=True, **how)


@click.command(cls=Tool)
@TO
@move_options
@click.pass_obj
def shrink(session: Session, to: str, **how: bool) -> None:
    """Keep all partitions on the given brokers only, with as many replicas as fit there."""
    allowed = _numbers(to)
    _reassign(session, "*", lambda metadata: allowed, lambda count: min(count, len(allowed)),
              **how)


def _numbers(to: str) -> set[int]:
    try:
        return {int(number) for number in to.split(",")}
    except ValueError:
        raise click.UsageError(f"--to {to!r}: expected broker ids separated by commas") from None


def _reassign(session: Session, pattern: str, allowed_of: Any, count_of: Any,
              leaving: int | None = None, retains_absent: bool = False, **how: bool) -> None:
    """leaving: a broker that must be registered or have replicas. retains_absent: a broker that is
    down keeps its replicas, because it may come back.
    """
    async def query(admin: Admin) -> tuple[Metadata, Plan]:
        metadata = await cluster_queries.all_topics(admin.cluster)
        allowed = allowed_of(metadata)
        absent = set(await cluster_queries.absent_brokers(admin.cluster, metadata))
        known = set(metadata.nodes) | (absent if leaving is not None else set())
        missing = (allowed if leaving is None else {*allowed, leaving}) - known
        if missing:
            raise ToolError(f"there is no broker {min(missing)}")
        parts = [part for name, topic in sorted(metadata.topics.items())
                 if fnmatch.fnmatchcase(name, pattern) for part in topic.partitions.values()]
        if not parts and pattern != "*":
            raise cluster_queries.unknown("topic", pattern, metadata.topics)
        return metadata, planned(metadata, parts, allowed, count_of,
                                 absent - {leaving} if retains_absent else ())

    carry_out(session, query, **how)


def carry_out(session: Session, query: Callable[[Admin], Awaitable[tuple[Metadata, Plan]]],
              before: Callable[[Metadata, Plan], None] | None = None, /, *, dry_run: bool,
              wait: bool, yes: bool) -> None:
    """Print a plan and start it after confirmation. before: called just before the start."""
    metadata, plan = session.administer(query)
    rows = [{"topic": part.topic, "partition": part.partition,
             "from": list(metadata.topics[part.topic].partitions[part.partition].replicas),
             "to": replicas} for part, replicas in plan.items()]
    session.out.rows(rows, MOVES, empty="every replica is already in place")
    if dry_run or not plan:
        return
    confirmed(f"Move {counted(len(plan), 'partition')}?", yes)
    if before is not None:
        before(metadata, plan)

    async def start(admin: Admin) -> None:
        await admin.alter_partition_reassignments(plan, session.timeout_s)
        if wait:
            await _arrived(admin, plan, metadata)

    session.administer(start)
    if not wait:
        session.out.note("started; pylog cluster moves shows the progress")


async def _arrived(admin: Admin, plan: Plan, before: Metadata) -> None:
    """Wait for the end of every move. Raises ToolError for the moves that failed.

    A cancelled move is no longer listed either, so the replicas decide.
    """
    import asyncio

    while plan.keys() & (await admin.list_partition_reassignments()).keys():
        await asyncio.sleep(WAIT_S)
    end_s = time.monotonic() + SETTLE_S
    while True:
        topics = (await cluster_queries.all_topics(admin.cluster)).topics
        missed = {part: None if topic is None or part.partition not in topic.partitions
                  or topic.id != before.topics[part.topic].id
                  else list(topic.partitions[part.partition].replicas)
                  for part, topic in ((part, topics.get(part.topic)) for part in plan)}
        missed = {part: found for part, found in missed.items() if found != plan[part]}
        if not missed:
            return
        if time.monotonic() > end_s:
            break
        await asyncio.sleep(WAIT_S)
    raise ToolError("not moved: " + "; ".join(
        f"{part.topic}-{part.partition} was deleted" if found is None else
        f"{part.topic}-{part.partition} is on brokers {found}, not on {plan[part]}: its move was "
        "cancelled or replaced by another one" for part, found in missed.items()))
