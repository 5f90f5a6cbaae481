"""`pylog txn`: list transactions, find those that block a partition, and abort them.

Owns: nothing.
Invariants: every abort requires confirmation; a transaction is aborted in one partition only if no
  coordinator tracks it there: otherwise it could still be committed in its other partitions.
Source: kafka-transactions, for the vocabulary.
"""

from __future__ import annotations

from typing import Any

import click

from pylog.client.admin.admin import Admin
from pylog.client.admin.open_transactions import OPEN_STATES, STATES, open_transactions
from pylog.client.types import TopicPartition
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import Tools, Watchable, confirmed
from pylog.tools.cli.output import span
from pylog.tools.cli.session import Session, ToolError

LISTED = {"transactional_id": "TRANSACTIONAL ID", "producer_id": "PRODUCER", "state": "STATE",
          "coordinator": "COORDINATOR"}
DESCRIBED = {"transactional_id": "TRANSACTIONAL ID", "producer_id": "PRODUCER",
             "producer_epoch": "EPOCH", "state": "STATE", "open_seconds": ("OPEN", span),
             "timeout_seconds": ("TIMEOUT", span), "partitions": "PARTITIONS",
             "coordinator": "COORDINATOR"}
HOLDING = {"producer_id": "PRODUCER", "producer_epoch": "EPOCH",
           "transaction_start": "FIRST OFFSET", "quiet_seconds": ("LAST WRITE", span),
           "transactional_id": "TRANSACTIONAL ID"}


@click.group("txn", cls=Tools)
def txn() -> None:
    """Transactions: list open ones, find what blocks a partition, abort."""


@txn.command("list", cls=Watchable)
@click.option("--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False),
              metavar="STATE", help="Only in this state; may be repeated.")
@click.option("--open-for", "open_s", type=float, default=-1.0,
              help="Only transactions open for more seconds than this.")
@click.pass_obj
def list_transactions(session: Session, states: tuple[str, ...], open_s: float) -> None:
    """List transactional ids."""
    async def work(admin: Admin) -> list[dict[str, Any]]:
        duration_ms = -1 if open_s < 0 else int(open_s * 1000)
        return [row._asdict() for row in await admin.list_transactions(states, duration_ms)]

    session.out.rows(session.administer(work), LISTED, empty="no transactions")


@txn.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.pass_obj
def describe(session: Session, ids: tuple[str, ...]) -> None:
    """Describe transactional ids: state, producer, partitions, open time."""
    async def work(admin: Admin) -> list[dict[str, Any]]:
        return [_described(row._asdict(), session.now_ms())
                for row in (await admin.describe_transactions(ids)).values()]

    session.out.rows(session.administer(work), DESCRIBED)


@txn.command()
@click.argument("partition", metavar="TOPIC-PARTITION")
@click.pass_obj
def holding(session: Session, partition: str) -> None:
    """List the producers whose open transactions block a partition, the first offset first."""
    part = _partition(partition)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        await _check(admin, part)
        return await holders(admin, part, session.now_ms())

    session.out.rows(session.administer(work), HOLDING, empty="no open transaction")


@txn.command()
@click.argument("partition", metavar="TOPIC-PARTITION")
@click.option("--producer-id", type=int, required=True, help="Producer id from `holding`.")
@click.option("--force", is_flag=True, help="Abort even if a coordinator tracks the transaction. "
              "The producer can then still commit its other partitions.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def abort(session: Session, partition: str, producer_id: int, force: bool, yes: bool) -> None:
    """Abort a producer's transaction in one partition that no coordinator tracks."""
    part = _partition(partition)
    confirmed(f"abort the transaction of producer {producer_id} in {partition}?", yes)

    async def work(admin: Admin) -> None:
        await _check(admin, part)
        if not force:
            await _refuse_tracked(admin, part, producer_id)
        for row in await admin.describe_producers(part):
            if row.producer_id == producer_id and row.transaction_start >= 0:
                await admin.abort_transaction(
                    part, producer_id, row.producer_epoch, row.coordinator_epoch)
                return
        raise ToolError(f"producer {producer_id} has no open transaction in {partition}")

    session.administer(work)


@txn.command("forcibly-terminate")
@click.argument("id_", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def forcibly_terminate(session: Session, id_: str, yes: bool) -> None:
    """Abort the open transaction of a transactional id, and fence its producer."""
    confirmed(f"abort the open transaction of {id_}, and fence its producer?", yes)

    async def work(admin: Admin) -> None:
        await admin.describe_transactions([id_])  # InitProducerId would create it.
        await admin.fence_producers([id_])

    session.administer(work)


def _partition(text: str) -> TopicPartition:
    topic, dash, number = text.rpartition("-")
    if not dash or not number.isdecimal():
        raise click.UsageError(f"{text!r}: expected TOPIC-PARTITION, as orders-0")
    return TopicPartition(topic, int(number))


async def _check(admin: Admin, part: TopicPartition) -> None:
    """Raise ToolError if a partition does not exist: the request would wait until its timeout."""
    await cluster_queries.named(admin.cluster, f"{part.topic}:{part.partition}")


async def _refuse_tracked(admin: Admin, part: TopicPartition, producer_id: int) -> None:
    """Raise ToolError if a coordinator has the producer's transaction open in a partition, and
    KafkaError if a coordinator is not available.
    """
    ids = [row.transactional_id for row in await open_transactions(admin)
           if row.producer_id == producer_id]
    for id_, row in (await admin.describe_transactions(ids)).items():
        if row.state in OPEN_STATES and part in row.partitions:
            raise ToolError(
                f"the coordinator tracks this transaction as {id_} ({row.state}): pylog txn "
                f"forcibly-terminate {id_} aborts it in all partitions. --force aborts it in "
                f"{part} only, and its other partitions can still be committed")


def _described(row: dict[str, Any], now_ms: int) -> dict[str, Any]:
    started_ms, timeout_ms = row.pop("start_ms"), row.pop("timeout_ms")
    is_open = row["state"] in OPEN_STATES
    row["open_seconds"] = (now_ms - started_ms) / 1000 if is_open else None
    row["timeout_seconds"] = timeout_ms / 1000
    row["partitions"] = ", ".join(f"{topic}-{number}" for topic, number in row["partitions"])
    return row


async def holders(admin: Admin, part: TopicPartition, now_ms: int) -> list[dict[str, Any]]:
    """Return the producers that block a partition, the first offset first."""
    producers = [row for row in await admin.describe_producers(part) if row.transaction_start >= 0]
    names = {row.producer_id: row.transactional_id for row in await admin.list_transactions()}
    return [{"producer_id": row.producer_id, "producer_epoch": row.producer_epoch,
             "transaction_start": row.transaction_start,
             "quiet_seconds": (now_ms - row.last_timestamp_ms) / 1000,
             "transactional_id": names.get(row.producer_id)}
            for row in sorted(producers, key=lambda row: row.transaction_start)]


COMMANDS = {"txn": txn}
