"""Consume, transform, produce: commit consumed offsets and produced records atomically.

Owns: for each transaction, whether its consumer lost partitions.
Invariants: a transaction whose consumer lost a partition is aborted: the next owner reads the same
  records; after an abort, the consumer resumes at its committed offsets, or where it started; if
  the outcome is unknown, the consumer's positions do not change.
Source: KIP-447; Kafka Streams for the steps after an abort.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from pylog.client.errors import (
    ConfigError, IllegalStateError, KafkaError, ProgramEndedError, RebalanceNeededError,
)
from pylog.client.producer.core import Producing
from pylog.client.producer.transaction_manager import UNINITIALIZED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pylog.client.consumer.core import Consuming


def core_of(consumer: Any, kind: type) -> Consuming:
    """Return a consumer's core. Raises TypeError if it is not of the given class."""
    if not isinstance(consumer, kind):
        package = "pylog.client.aio" if kind.__module__.endswith("aio_consumer") else "pylog.client"
        raise TypeError(f"this producer works with a {package}.Consumer, not {consumer!r}")
    core: Consuming = consumer._core  # type: ignore[attr-defined]
    return core


class _Step:
    """One transaction of a producer, optionally with a consumer's positions."""

    def __init__(self, producer: Producing, consumer: Consuming | None):
        self._producer, self._consumer = producer, consumer
        self._losses = 0

    async def begin(self) -> None:
        transactions, consumer = self._producer.needs_transactions(), self._consumer
        if consumer is not None:
            if consumer.settings["group.id"] is None:
                raise IllegalStateError("the consumer has no group.id")
            if consumer.settings["enable.auto.commit"]:
                raise ConfigError("a consumer whose positions are committed by transactions needs "
                                  "enable.auto.commit=false")
            self._losses = consumer.subscription.losses
        if transactions.state == UNINITIALIZED:
            await transactions.init()
        transactions.begin()

    async def commit(self) -> None:
        producer, consumer = self._producer, self._consumer
        offsets = {}
        if consumer is not None:
            if consumer.subscription.losses != self._losses:
                # The partition's next owner reads the same records.
                raise RebalanceNeededError("the consumer lost partitions during the transaction, "
                                           "which was aborted", remedy="begin it again")
            offsets = consumer.moved()
            if offsets:
                await producer.send_offsets(offsets, consumer.group_metadata())
        await producer.end_transaction(True)
        if consumer is not None:
            consumer.keep(offsets)

    async def abort(self, reason: BaseException) -> None:
        try:
            await self._producer.end_transaction(False)
        except KafkaError as failure:
            # The outcome is unknown: keep the consumer's positions.
            reason.add_note(f"The transaction could not be aborted: {failure}")
            return
        if self._consumer is not None:
            self._consumer.rewind()


class Transaction:
    """See Producer.transaction."""

    def __init__(self, owner: object, run: Callable[[Coroutine[Any, Any, None]], Any],
                 producer: Producing, consumer: Consuming | None):
        self._owner = owner  # Keeps the producer alive: a dropped producer is closed.
        self._run = run
        self._step = _Step(producer, consumer)

    def __enter__(self) -> None:
        self._run(self._step.begin())

    def __exit__(self, kind: object, reason: BaseException | None, trace: object) -> None:
        if reason is not None:
            self._abort(reason)
            return
        try:
            self._run(self._step.commit())
        except BaseException as failure:
            self._abort(failure)
            raise

    def _abort(self, reason: BaseException) -> None:
        try:
            self._run(self._step.abort(reason))
        except ProgramEndedError:
            pass  # The broker aborts the transaction after transaction.timeout.ms.


class AioTransaction:
    """See Producer.transaction, with `async with`."""

    def __init__(self, owner: object, producer: Producing, consumer: Consuming | None):
        self._owner = owner
        self._step = _Step(producer, consumer)

    async def __aenter__(self) -> None:
        await self._step.begin()

    async def __aexit__(self, kind: object, reason: BaseException | None, trace: object) -> None:
        if reason is not None:
            await self._step.abort(reason)
            return
        try:
            await self._step.commit()
        except BaseException as failure:
            await self._step.abort(failure)
            raise
