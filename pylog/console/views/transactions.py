"""Transactions: list, describe, and abort, also those that their coordinator has lost.

Owns: nothing.
Invariants: an abort fences the producer, and needs the typed id; a marker is written only for a
  transaction that is in no coordinator's list while all of them are available, that has not written
  for HANGING_MS_MIN, and that the page showed in the same state.
Source: KIP-664 (hanging transactions); kafka-transactions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pylog.client.admin.open_transactions import OPEN_STATES, STATES, open_transactions
from pylog.client.errors import KafkaError
from pylog.client.types import TopicPartition
from pylog.console.listings import Column, listed
from pylog.console.pages import (
    Page, PageError, audit_details, form_of, integer, not_audited, redirect, required,
)
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from pylog.client.admin.types import ProducerDescription
    from pylog.console.clusters import ClusterSession

# Kafka's largest transaction timeout and some time for its end, as in kafka-transactions. Without
# DESCRIBE on all transactional ids, a user's list of open transactions is incomplete.
HANGING_MS_MIN = 20 * 60_000
PARTITIONS_MAX = 200  # Of one topic or transaction: each costs a request.
AT_ONCE = 8
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
COLUMNS = [
    Column("id", "Transactional id"), Column("state", "State"),
    Column("producer_id", "Producer id", is_number=True),
    Column("coordinator", "Coordinator", is_number=True),
    Column("started_ms", "Begun", sorts=False, is_lazy=True, is_number=True),
    Column("partitions", "Partitions", sorts=False, is_lazy=True, is_number=True),
    Column("error", "Not read", sorts=False, is_lazy=True)]


async def transactions(request: Request, cluster: ClusterSession) -> Response:
    """List the transactional ids."""
    state = request.query_params.get("state", "")
    if state and state not in STATES:
        raise PageError(400, "There is no such state", state[:100],
                        f"Choose one of {', '.join(STATES)}.")
    found = await cluster.admin.list_transactions([state] if state else ())

    async def fill(visible: list[dict[str, Any]]) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(row: dict[str, Any]) -> None:
            async with room:
                try:
                    described = (await cluster.admin.describe_transactions([row["id"]]))[row["id"]]
                except KafkaError as failure:
                    row["error"] = str(failure) or type(failure).__name__
                    return
                row["started_ms"] = described.start_ms if described.start_ms >= 0 else None
                row["partitions"] = len(described.partitions)

        await asyncio.gather(*map(one, visible))

    rows = [{"id": one.transactional_id, "state": one.state, "producer_id": one.producer_id,
             "coordinator": one.coordinator, "started_ms": None, "partitions": None, "error": ""}
            for one in found]
    listing = await listed(request, COLUMNS, rows, sort="id", search=("id", "producer_id"),
                           fill=fill, keep=("state",))
    return listing.response("transactions") or render(
        request, "transactions.html", listing=listing, states=STATES, state=state)


async def transaction(request: Request, cluster: ClusterSession) -> Response:
    """Show one transactional id with its open transaction."""
    name = request.path_params["id"]
    found = (await cluster.admin.describe_transactions([name]))[name]
    producers = await _producers(cluster, list(found.partitions)[:PARTITIONS_MAX])
    rows = []
    for part in found.partitions[:PARTITIONS_MAX]:
        states = producers[part]
        own = next((one for one in states if one.producer_id == found.producer_id), None) \
            if isinstance(states, list) else None
        rows.append({"part": part, "error": states if isinstance(states, str) else "",
                     "start": own.transaction_start if own else None,
                     "written_ms": own.last_timestamp_ms if own else None})
    return render(request, "transaction.html", found=found, rows=rows,
                  more=max(0, len(found.partitions) - PARTITIONS_MAX),
                  is_open=found.state in OPEN_STATES)


async def _producers(cluster: ClusterSession, parts: list[TopicPartition]
                     ) -> dict[TopicPartition, list[ProducerDescription] | str]:
    """Return the producers of each partition, or why they could not be read."""
    room = asyncio.Semaphore(AT_ONCE)
    found: dict[TopicPartition, list[ProducerDescription] | str] = {}

    async def one(part: TopicPartition) -> None:
        async with room:
            try:
                found[part] = await cluster.admin.describe_producers(part)
            except KafkaError as failure:
                found[part] = str(failure) or type(failure).__name__

    await asyncio.gather(*map(one, parts))
    return found


async def abort(request: Request, cluster: ClusterSession) -> Response:
    """Show the form, or abort the open transaction of an id."""
    name = request.path_params["id"]
    found = (await cluster.admin.describe_transactions([name]))[name]
    failure = ""
    if request.method == "POST":
        if required(await form_of(request), "name", "The transactional id") == name.strip():
            audit_details(request, producer_id=found.producer_id, state=found.state)
            await cluster.admin.fence_producers([name])
            return redirect(cluster.url("transactions", name),
                            "The transaction is aborted, and its producer is fenced.")
        not_audited(request)
        failure = "The text is not the transactional id."
    return render(request, "transaction_abort.html", found=found, failure=failure)


async def hanging(request: Request, cluster: ClusterSession) -> Response:
    """Show the open transactions of a topic that no coordinator knows, or abort one."""
    name = request.path_params["topic"]
    topic = (await cluster.admin.describe_topics([name]))[name]
    parts = [TopicPartition(name, number) for number in sorted(topic.partitions)]
    if request.method == "POST":
        form = await form_of(request)
        number = integer(form.get("partition", ""), "Partition", 0, INT32_MAX)
        producer = integer(form.get("producer_id", ""), "Producer id", 0, INT64_MAX)
        start = integer(form.get("start", ""), "Offset", 0, INT64_MAX)
        part = TopicPartition(name, number)
        rows, _ = await _hanging(request, cluster, [part] if number in topic.partitions else [])
        row = next((one for one in rows if one["producer"].producer_id == producer
                    and one["producer"].transaction_start == start), None)
        if row is None:
            raise PageError(409, "The transaction is not hanging any more", f"producer {producer}",
                            "Read the list again.")
        one = row["producer"]
        audit_details(request, partition=number, producer_id=producer, start=start)
        await cluster.admin.abort_transaction(part, producer, one.producer_epoch,
                                              one.coordinator_epoch)
        return redirect(cluster.url("topics", name, "hanging"),
                        f"The transaction of producer {producer} in partition {number} is aborted.")
    rows, errors = await _hanging(request, cluster, parts[:PARTITIONS_MAX])
    return render(request, "transactions_hanging.html", name=name, rows=rows, errors=errors,
                  more=max(0, len(parts) - PARTITIONS_MAX))


async def _hanging(request: Request, cluster: ClusterSession, parts: list[TopicPartition]
                   ) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the open transactions of partitions whose producers no coordinator lists as open, and
    the partitions that could not be read.
    """
    # The producers first: a transaction that begins in between is then listed as open.
    producers = await _producers(cluster, parts)
    known = {one.producer_id for one in await open_transactions(cluster.admin)}
    before_ms = request.app.state.console.now_ms() - HANGING_MS_MIN
    rows = [{"part": part, "producer": one} for part in parts
            if isinstance(states := producers[part], list) for one in states
            if one.transaction_start >= 0 and one.producer_id not in known
            and one.last_timestamp_ms < before_ms]
    return rows, [f"{part}: {states}" for part, states in producers.items()
                  if isinstance(states, str)]


PAGES = [
    Page("/transactions", transactions, operations=("DESCRIBE TRANSACTIONAL_ID",), changes=False,
         audit=""),
    Page("/transactions/{id}", transaction, operations=(
        "DESCRIBE TRANSACTIONAL_ID", "READ TOPIC for producers"), changes=False, audit=""),
    Page("/transactions/{id}/abort", abort, methods=("GET", "POST"), operations=(
        "DESCRIBE TRANSACTIONAL_ID", "WRITE TRANSACTIONAL_ID"), changes=True,
        audit="transactions.abort"),
    Page("/topics/{topic}/hanging", hanging, methods=("GET", "POST"), operations=(
        "READ TOPIC", "DESCRIBE TOPIC for the transactions' internal topic",
        "DESCRIBE TRANSACTIONAL_ID", "ALTER CLUSTER or CLUSTER_ACTION CLUSTER"),
        changes=True, audit="transactions.abort"),
]
