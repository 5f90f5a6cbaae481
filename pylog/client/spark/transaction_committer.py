"""The driver's side of a sink that is exactly once: many transactions that are committed as one.

Owns: nothing between calls; each makes its own connections.
Invariants: (1) a batch is decided by one transaction, that of the sink's own transactional id: it
  commits the batch's number and the list of its parts as an offset. Before that no part is
  committed, after it each is, by this driver or the next; (2) who begins a batch fences all who
  began one before, so nobody else can decide; (3) a part that a decision names is never aborted.
Source: two-phase commit with the decision kept by Kafka; KIP-98 (fencing), KIP-447 (stable
  offsets), KIP-664 (what is open), KIP-939 (a transaction is ended by who knows its epoch).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pylog.client.admin.admin import Admin
from pylog.client.background_loop import Driver
from pylog.client.config.settings import ALL, PRODUCER, ROWS, Settings
from pylog.client.errors import ConfigError, FatalError, KafkaError, error
from pylog.client.network.cluster import Cluster
from pylog.client.producer.transaction_manager import Prepared, Transactions
from pylog.client.spark.epoch_decision import Decision
from pylog.client.types import TopicPartition
from pylog.protocol.errors import ErrorCode

_ONGOING = "Ongoing"


class Begun(NamedTuple):
    """What each task of a batch is given: the right to decide, and what was decided before."""

    right: Prepared
    last: Decision


class Committer:
    """settings: of a producer. topic: in whose partition 0 the sink, a group, has its offset."""

    def __init__(self, settings: Mapping[str, Any], sink: str, topic: str):
        self.settings = Settings(PRODUCER, {**settings, "transactional.id": sink})
        self.sink = sink
        self.kept_at = TopicPartition(topic, 0)

    def begin(self) -> Begun:
        """Keeps (2). What the one before had only half decided has its outcome then."""
        begun: Begun = self._with(self._begin)
        return begun

    def commit(self, right: Prepared, decision: Decision) -> None:
        """Decides a batch and commits its parts. Raises KafkaError; whether it was decided is then
        for `abort`, or the batch's next run, to find out."""
        self._with(self._commit, right, decision)

    def finish(self, batch: int) -> None:
        """Commits the parts of a batch that was decided before."""
        self._with(self._finish_last, batch)

    def abort(self, right: Prepared, batch: int, parts: Iterable[Prepared]) -> None:
        """Ends what is open of a batch that failed, unless it was decided after all."""
        self._with(self._abort, right, batch, list(parts))

    def _with(self, work: Callable[..., Any], *given: Any) -> Any:
        async def run() -> Any:
            values = self.settings.values
            async with Admin({name: values[name] for name in self.settings.given
                              if ALL in ROWS[name].roles}) as admin:
                return await work(admin, *given)

        return Driver.shared().run(run())

    async def _begin(self, admin: Admin) -> Begun:
        own = self._transactions(admin.cluster)
        await own.init()
        return Begun(own.prepared(), await self._last(admin))

    async def _commit(self, admin: Admin, right: Prepared, decision: Decision) -> None:
        await self._check_open(admin, decision)
        await self._end_strays(admin, {part.transactional_id for part in decision.parts})
        own = self._transactions(admin.cluster)
        await own.resume(right)
        try:
            await own.send_offsets({self.kept_at: decision.row()}, self.sink)
        except KafkaError as failure:
            if failure.code == ErrorCode.OFFSET_METADATA_TOO_LARGE:
                raise ConfigError(
                    f"batch {decision.batch} has {len(decision.parts)} tasks, more than "
                    f"offset.metadata.max.bytes lets a decision name: coalesce() it") from failure
            raise
        own.begin_end(True)
        await own.end(True)  # Keeps (1): this is the decision.
        await self._finish(admin, decision)

    async def _finish_last(self, admin: Admin, batch: int) -> None:
        last = await self._last(admin)
        if last.batch == batch:  # A later one is only decided when this one is done.
            await self._finish(admin, last)

    async def _finish(self, admin: Admin, decision: Decision) -> None:
        """The other half of (1). A commit that is asked for again is no fault, for Kafka too."""
        ended = await asyncio.gather(
            *[self._end(admin.cluster, part, True) for part in decision.parts],
            return_exceptions=True)
        for part, failure in zip(decision.parts, ended):
            if isinstance(failure, FatalError) or _is_over(failure):
                raise error(ErrorCode.INVALID_TXN_STATE, (
                    f"batch {decision.batch} was decided, but {part.transactional_id} had been "
                    f"aborted by then: its records are lost. kafka.transaction.timeout.ms has to "
                    f"be longer than a driver is away ({failure})")) from failure
            if failure is not None:
                raise failure

    async def _abort(self, admin: Admin, right: Prepared, batch: int, parts: list[Prepared]
                     ) -> None:
        # The decision may be under way: it is ended first, and whether it was made is read then.
        try:
            await self._end(admin.cluster, right, False)
        except FatalError:
            return  # Another run has begun: the batch is its own.
        except KafkaError as failure:
            if not _is_over(failure):
                raise
        if (await self._last(admin)).batch >= batch:
            return  # Keeps (3).
        for part in parts:
            try:
                await self._end(admin.cluster, part, False)
            except KafkaError as failure:
                if not isinstance(failure, FatalError) and not _is_over(failure):
                    raise

    async def _check_open(self, admin: Admin, decision: Decision) -> None:
        """A part that has timed out, or was fenced, must not be named by a decision."""
        found = await asyncio.gather(*[admin.describe_transactions([part.transactional_id])
                                       for part in decision.parts])
        for part, rows in zip(decision.parts, found):
            row = rows[part.transactional_id]
            if (row.state, row.producer_id, row.producer_epoch) != (_ONGOING, *part[1:]):
                raise error(ErrorCode.INVALID_TXN_STATE, (
                    f"batch {decision.batch} is not committed: {part.transactional_id} is "
                    f"{row.state} (epoch {row.producer_epoch}, written at {part.epoch}). Has the "
                    f"batch taken longer than kafka.transaction.timeout.ms?"))

    async def _end_strays(self, admin: Admin, named: set[str]) -> None:
        """What tries of tasks left open that were killed, or that Spark did not take: readers of
        committed records would wait for these. Keeps (3)."""
        # Older versions ended the id after the attempt number.
        ours = re.compile(re.escape(self.sink) + r"-task-\d+(-\d+-\d+)?-\d+")
        open_ids = {row.transactional_id for row in await admin.list_transactions([_ONGOING])
                    if ours.fullmatch(row.transactional_id)}
        await admin.fence_producers(sorted(open_ids - named))

    async def _last(self, admin: Admin) -> Decision:
        found = await admin.list_consumer_group_offsets(
            self.sink, [self.kept_at], require_stable=True)
        return Decision.of(found.get(self.kept_at))

    async def _end(self, cluster: Cluster, part: Prepared, committed: bool) -> None:
        transactions = self._transactions(cluster)
        await transactions.resume(part)
        transactions.begin_end(committed)
        await transactions.end(committed)

    def _transactions(self, cluster: Cluster) -> Transactions:
        return Transactions(cluster, self.settings, lambda: None, lambda _: None)


def _is_over(failure: BaseException | None) -> bool:
    return isinstance(failure, KafkaError) and failure.code == ErrorCode.INVALID_TXN_STATE
