"""The driver's side of an exactly-once sink: commit many transactions as one.

Owns: nothing between calls; each call opens its own connections.
Invariants:
- single decision: one transaction, with the sink's own transactional id, decides a batch: it
  commits the batch's number and the list of its parts as an offset. No part is committed before it;
  after it every part is, by this driver or the next;
- fencing: beginning a batch fences all earlier runs, so no other run can decide;
- decided parts: a part named by a decision is never aborted.
Source: two-phase commit with the decision stored in Kafka; KIP-98 (fencing), KIP-447 (stable
  offsets), KIP-664 (open transactions), KIP-939 (any process with its epoch can end a transaction).
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
    """Input of each task of a batch: the right to decide, and the previous decision."""

    right: Prepared
    last: Decision


class Committer:
    """settings: a producer's. topic: its partition 0 stores the sink's offset as a group."""

    def __init__(self, settings: Mapping[str, Any], sink: str, topic: str):
        self.settings = Settings(PRODUCER, {**settings, "transactional.id": sink})
        self.sink = sink
        self.decision_partition = TopicPartition(topic, 0)

    def begin(self) -> Begun:
        """Begin a batch: fence earlier runs and complete a batch that was decided but not finished.
        """
        begun: Begun = self._with(self._begin)
        return begun

    def commit(self, right: Prepared, decision: Decision) -> None:
        """Decide a batch and commit its parts.

        Raises KafkaError. Then `abort`, or the batch's next run, finds out if it was decided.
        """
        self._with(self._commit, right, decision)

    def finish(self, batch: int) -> None:
        """Commit the parts of a batch that was decided earlier."""
        self._with(self._finish_last, batch)

    def abort(self, right: Prepared, batch: int, parts: Iterable[Prepared]) -> None:
        """Abort the open transactions of a failed batch, unless it was decided."""
        self._with(self._abort, right, batch, list(parts))

    def _with(self, work: Callable[..., Any], *given: Any) -> Any:
        async def run() -> Any:
            values = self.settings.values
            async with Admin.from_settings({name: values[name] for name in self.settings.given
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
            await own.send_offsets({self.decision_partition: decision.row()}, self.sink)
        except KafkaError as failure:
            if failure.code == ErrorCode.OFFSET_METADATA_TOO_LARGE:
                raise ConfigError(
                    f"batch {decision.batch} has {len(decision.parts)} tasks, which do not fit "
                    f"into offset.metadata.max.bytes: coalesce() it") from failure
            raise
        own.begin_end(True)
        await own.end(True)  # This is the decision.
        await self._finish(admin, decision)

    async def _finish_last(self, admin: Admin, batch: int) -> None:
        last = await self._last(admin)
        if last.batch == batch:  # A later batch is decided only after this one is finished.
            await self._finish(admin, last)

    async def _finish(self, admin: Admin, decision: Decision) -> None:
        """Commit all parts of a decided batch. Repeating a commit is not an error in Kafka."""
        ended = await asyncio.gather(
            *[self._end(admin.cluster, part, True) for part in decision.parts],
            return_exceptions=True)
        for part, failure in zip(decision.parts, ended):
            if isinstance(failure, FatalError) or _is_over(failure):
                raise error(ErrorCode.INVALID_TXN_STATE, (
                    f"batch {decision.batch} was decided, but {part.transactional_id} had already "
                    f"been aborted: its records are lost. Set kafka.transaction.timeout.ms longer "
                    f"than a restart of the driver ({failure})")) from failure
            if failure is not None:
                raise failure

    async def _abort(self, admin: Admin, right: Prepared, batch: int, parts: list[Prepared]
                     ) -> None:
        # The decision may be in flight: end its transaction first, then read the outcome.
        try:
            await self._end(admin.cluster, right, False)
        except FatalError:
            return  # Another run has begun and owns the batch.
        except KafkaError as failure:
            if not _is_over(failure):
                raise
        if (await self._last(admin)).batch >= batch:
            return  # Never abort a decided part.
        for part in parts:
            try:
                await self._end(admin.cluster, part, False)
            except KafkaError as failure:
                if not isinstance(failure, FatalError) and not _is_over(failure):
                    raise

    async def _check_open(self, admin: Admin, decision: Decision) -> None:
        """Check that a part has not timed out or been fenced: a decision must not name such a part.
        """
        found = await asyncio.gather(*[admin.describe_transactions([part.transactional_id])
                                       for part in decision.parts])
        for part, rows in zip(decision.parts, found):
            row = rows[part.transactional_id]
            if (row.state, row.producer_id, row.producer_epoch) != (_ONGOING, *part[1:]):
                raise error(ErrorCode.INVALID_TXN_STATE, (
                    f"batch {decision.batch} is not committed: {part.transactional_id} is "
                    f"{row.state} (epoch {row.producer_epoch}, written at {part.epoch}). Check "
                    f"whether the batch took longer than kafka.transaction.timeout.ms"))

    async def _end_strays(self, admin: Admin, named: set[str]) -> None:
        """Abort transactions of killed or rejected task attempts, except decided parts.
        read_committed consumers would wait for them.
        """
        # Older versions ended the id after the attempt number.
        ours = re.compile(re.escape(self.sink) + r"-task-\d+(-\d+-\d+)?-\d+")
        open_ids = {row.transactional_id for row in await admin.list_transactions([_ONGOING])
                    if ours.fullmatch(row.transactional_id)}
        await admin.fence_producers(sorted(open_ids - named))

    async def _last(self, admin: Admin) -> Decision:
        found = await admin.list_consumer_group_offsets(
            self.sink, [self.decision_partition], require_stable=True)
        return Decision.of(found.get(self.decision_partition))

    async def _end(self, cluster: Cluster, part: Prepared, committed: bool) -> None:
        transactions = self._transactions(cluster)
        await transactions.resume(part)
        transactions.begin_end(committed)
        await transactions.end(committed)

    def _transactions(self, cluster: Cluster) -> Transactions:
        return Transactions(cluster, self.settings, lambda: None, lambda _: None)


def _is_over(failure: BaseException | None) -> bool:
    return isinstance(failure, KafkaError) and failure.code == ErrorCode.INVALID_TXN_STATE
