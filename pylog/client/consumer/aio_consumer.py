"""The asyncio consumer: the calls of consumer.Consumer, awaited.

Owns: the waiting of polls. core.Consuming does the work, on the running loop.
Invariants: only one task at a time polls or iterates; callbacks may be coroutine functions;
  positions move only past records that a poll returns: if it raises or is cancelled, they do not
  change.
Source: aiokafka for the Python API; Kafka's consumer for the semantics.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Generic

from pylog._native.client.columns import Columns, Record
from pylog.client.callbacks import intercepted
from pylog.client.config.configured import Configured, given
from pylog.client.config.settings import CONSUMER, Settings
from pylog.client.consumer.consumer import (
    ALL_COLUMNS, CLOSE_S, COLUMN_BYTES_MAX, COLUMN_RECORDS_MAX, Make, empty_batch,
)
from pylog.client.consumer.core import Consuming
from pylog.client.consumer.rebalance_listener import listener_of, weakly
from pylog.client.consumer.record_iterator import check_batches
from pylog.client.consumer.subscription_state import NO_POLL
from pylog.client.errors import ClosedError, ConcurrentUseError, IllegalStateError
from pylog.client.extras import require
from pylog.client.generics import K, V
from pylog.client.network.metrics import Metrics
from pylog.client import shutdown
from pylog.client.types import (
    EARLIEST, LATEST, GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, Offsets, TopicPartition,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import Self, Unpack

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from pylog.client.consumer.rebalance_listener import RebalanceListener
    from pylog.client.interfaces import (
        ColumnName, CommitCallback, Deserializes, RebalanceCallback,
    )
    from pylog.client.options import ConsumerConfig, ConsumerOptions


class Consumer(Configured, Generic[K, V]):
    """`async with Consumer(bootstrap_servers="…", group_id="g") as consumer: …`"""

    def __init__(self, config: ConsumerConfig | None = None, /, *,
                 key_deserializer: Deserializes[K] | None = None,
                 value_deserializer: Deserializes[V] | None = None,
                 **more: Unpack[ConsumerOptions]):
        self.settings = Settings(CONSUMER, config, **given(
            more, key_deserializer=key_deserializer, value_deserializer=value_deserializer))
        self._event = asyncio.Event()
        self._records_max = self.settings["max.poll.records"]
        self._started: Consuming | None = None
        self._listener: Any = None
        self._interceptors: list[Any] = []

    @property
    def _core(self) -> Consuming:
        if self._started is None:
            raise IllegalStateError("the consumer is not started",
                                    remedy="use `async with Consumer(…) as consumer:`, or `await "
                                    "consumer.start()` first")
        return self._started

    async def start(self) -> Self:
        """Start the consumer. Call once, on the loop that all calls will use."""
        if self._started is None:
            core = Consuming(self.settings, _call, self._event.set)
            self._started = await core.start()
            self._interceptors = [
                interceptor for interceptor in core.interceptors
                if hasattr(interceptor, "on_consume")]
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __del__(self) -> None:
        core = getattr(self, "_started", None)
        if core is not None:
            shutdown.dropped(self, core)

    # Reading

    async def poll(self, timeout: float = 0.0, max_records: int | None = None
                   ) -> list[Record[K, V]]:
        """Return up to max_records (default max.poll.records) records; empty after `timeout`
        seconds.
        """
        most = self._records_max if max_records is None else max_records
        collector = self._core.collector
        found: list[Record[K, V]] = await self._poll(
            timeout, lambda: collector.records(most), self._intercepted) or []
        return found

    def _intercepted(self, found: list[Record[K, V]]) -> tuple[list[Record[K, V]], None]:
        return intercepted(self._interceptors, found), None

    async def poll_columns(self, timeout: float = 0.0, max_records: int = COLUMN_RECORDS_MAX,
                           headers: bool = True, max_bytes: int = COLUMN_BYTES_MAX
                           ) -> tuple[Columns, list[TopicPartition]] | None:
        """Return native columns, without pyarrow and NumPy, and the partition of each source
        number. Returns None after `timeout` seconds without a record. Raises KafkaError.
        """
        known = self._core.subscription.known
        found: tuple[Columns, list[TopicPartition]] | None = await self._columns(
            timeout, max_records, headers, max_bytes, lambda native: ((native, known), None))
        return found

    async def poll_arrow(self, timeout: float = 0.0, max_records: int = COLUMN_RECORDS_MAX,
                         columns: Iterable[ColumnName] = ALL_COLUMNS,
                         max_bytes: int = COLUMN_BYTES_MAX) -> pa.RecordBatch:
        """Return a pyarrow.RecordBatch; it has no rows after `timeout` seconds without a record."""
        from pylog.client.columns import arrow

        require("poll_arrow", "pyarrow")
        names, known = arrow.ordered(columns), self._core.subscription.known
        found = await self._columns(timeout, max_records, "headers" in names, max_bytes,
                                    lambda native: (arrow.record_batch(native, known, names), None))
        return empty_batch(names) if found is None else found

    async def poll_numpy(self, timeout: float = 0.0, max_records: int = COLUMN_RECORDS_MAX,
                         columns: Iterable[ColumnName] = ALL_COLUMNS,
                         value_dtype: npt.DTypeLike | None = None,
                         key_dtype: npt.DTypeLike | None = None, max_bytes: int = COLUMN_BYTES_MAX
                         ) -> dict[str, np.ndarray]:
        """Return NumPy arrays by column name; {} after `timeout` seconds without a record. Raises
        RecordDeserializationError if a record's length differs from the dtype's.
        """
        from pylog.client.columns import arrow

        require("poll_numpy", "numpy")
        names, known = arrow.ordered(columns), self._core.subscription.known
        found: dict[str, np.ndarray] | None = await self._columns(
            timeout, max_records, False, max_bytes,
            lambda native: arrow.numpy_rows(native, known, names, value_dtype, key_dtype))
        return found or {}

    async def _columns(self, timeout: float, max_records: int, headers: bool, max_bytes: int,
                       make: Make) -> Any:
        collector = self._core.collector
        return await self._poll(
            timeout, lambda: collector.columns(max_records, headers, max_bytes), make)

    async def _poll(self, timeout: float, take: Callable[[], Any], make: Make) -> Any:
        """Poll with `take` and convert the result with `make`. Returns None after `timeout`
        seconds.
        """
        core = self._core
        if core.closed:
            raise ClosedError("the consumer is closed")
        if core.polling:
            raise ConcurrentUseError(
                "another task is polling this consumer", remedy="use one consumer per task")
        core.polling = True
        try:
            return await self._polled(timeout, take, make)
        finally:
            core.polling = False

    async def _polled(self, timeout: float, take: Callable[[], Any], make: Make) -> Any:
        core, event = self._core, self._event
        core.check_topics()
        if core.has_undelivered:
            await core.put_back()
        end_s = time.monotonic() + timeout
        while True:
            event.clear()
            due = core.polled()
            if due is not None:
                core.auto_commit(due)
            if core.has_pending_work:
                await core.run_pending_work(max(0.0, end_s - time.monotonic()))
            # Let the fetch tasks run even if the application polls without pause. Do it before
            # taking records: a cancellation after that would lose them.
            await asyncio.sleep(0)
            found = await self._take_and_convert(take, make)
            if core.fetcher.starved:
                core.fetcher.poke()
            if found is not None:
                return found
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return None
            try:
                async with asyncio.timeout(left_s):
                    await event.wait()
            except TimeoutError:
                pass

    async def _take_and_convert(self, take: Callable[[], Any], make: Make) -> Any:
        """Take and convert without awaiting, so that it cannot be cancelled. The next poll takes
        the records again if this one raises.
        """
        collector = self._core.collector
        collector.undelivered_poll = collector.poll
        found, made = take(), None
        if found:
            made, unread = make(found)
            if unread:
                await self._core.restore_undelivered(unread)
        collector.undelivered_poll = NO_POLL
        return made

    async def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        """Iterate over records endlessly. A commit includes all records yielded so far, also the
        last.

        After a break, the next iteration or poll continues with the remaining records.
        """
        while True:
            record = self._core.next_record()
            if record is None:
                self._core.iterate(await self.poll(1.0))
            else:
                self._core.collector.undelivered_poll = NO_POLL
                yield record

    async def batches(self, size: int, timeout: float) -> AsyncIterator[list[Record[K, V]]]:
        """Yield lists of up to `size` records, endlessly. See Consumer.batches."""
        check_batches(size, timeout)
        while True:
            if found := await self.poll(timeout, size):
                yield found

    def wakeup(self) -> None:
        """Make the waiting poll, or the next one, raise WakeupError."""
        self._core.woken = True
        self._core.notify()

    def metrics(self) -> Metrics:
        """Return metrics as {group: {name: value}} with Kafka's names, including a group per topic.
        """
        return self._core.metrics()

    # Subscription

    async def subscribe(self, topics: Iterable[str] | str | None = None, *,
                        pattern: str | re.Pattern[str] | None = None,
                        listener: RebalanceListener | None = None,
                  on_assign: RebalanceCallback | None = None,
                        on_revoke: RebalanceCallback | None = None,
                        on_lost: RebalanceCallback | None = None) -> None:
        """Subscribe to topics by name, or to all that match a pattern (re, or one name with "^"
        first).
        """
        callbacks = listener_of(listener, on_assign, on_revoke, on_lost)
        self._listener = callbacks, self._listener  # Holds the old one until replaced.
        await self._core.subscribe(topics, pattern, weakly(callbacks))
        self._listener = callbacks

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions, without a group."""
        await self._core.assign(partitions)

    async def unsubscribe(self) -> None:
        await self._core.unsubscribe()

    def assignment(self) -> list[TopicPartition]:
        """Return the currently assigned partitions."""
        return [tp for tp, state in self._core.subscription.states.items() if not state.revoking]

    def subscription(self) -> set[str]:
        """Return the subscribed topics; for a pattern, those that currently match."""
        return set(self._core.subscription.topics)

    def member_id(self) -> str | None:
        membership = self._core.membership
        return membership.member_id if membership is not None else None

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata for Producer.send_offsets_to_transaction."""
        return self._core.group_metadata()

    # Positions

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the known positions of assigned partitions, in commit()'s format."""
        return self._core.consumed()

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset` with the next poll."""
        await self._core.seek(TopicPartition.of(partition), offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        await self._core.seek_to(partitions, "earliest")

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        await self._core.seek_to(partitions, "latest")

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record to be polled."""
        return await self._core.position(TopicPartition.of(partition), timeout)

    async def pause(self, *partitions: TopicPartition) -> None:
        await self._core.set_paused(partitions, True)

    async def resume(self, *partitions: TopicPartition) -> None:
        await self._core.set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, state in self._core.subscription.states.items() if state.paused}

    async def beginning_offsets(self, partitions: Iterable[TopicPartition],
                                timeout: float | None = None) -> dict[TopicPartition, int]:
        return await self._core.boundary_offsets(partitions, EARLIEST, timeout)

    async def end_offsets(self, partitions: Iterable[TopicPartition],
                          timeout: float | None = None) -> dict[TopicPartition, int]:
        return await self._core.boundary_offsets(partitions, LATEST, timeout)

    async def offsets_for_times(self, times: Mapping[TopicPartition, int],
                                timeout: float | None = None
                                ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time (ms) as OffsetAndTimestamp, or None."""
        return await self._core.list_offsets(times, timeout)

    async def lag(self, *partitions: TopicPartition, timeout: float | None = None
                  ) -> dict[TopicPartition, int]:
        return await self._core.lag(partitions, timeout)

    # Commits

    async def commit(self, offsets: Offsets | None = None,
                     timeout: float | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit the positions, or these offsets (int or OffsetAndMetadata: the next to read)."""
        return await self._core.commit(offsets, timeout)

    def commit_async(self, offsets: Offsets | None = None,
                     callback: CommitCallback | None = None) -> None:
        """Commit in the background, then call callback(offsets, error or None)."""
        self._core.commit_in_background(self._core.commit_request(offsets), callback)

    def store_offsets(self, offsets: Offsets | Record[Any, Any] | Iterable[Record[Any, Any]]
                      ) -> None:
        """Store offsets for later commits without offsets (enable.auto.offset.store=false).

        Accepts processed records, or offsets as for commit(). Does not wait. Raises
        IllegalStateError, and stores nothing, if a partition is not assigned.
        """
        self._core.store(offsets)

    async def committed(self, partitions: Iterable[TopicPartition], timeout: float | None = None
                        ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._core.committed(partitions, timeout)

    # Topics

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        return await self._core.partitions_for(topic, timeout)

    async def list_topics(self, timeout: float | None = None) -> dict[str, list[int]]:
        return await self._core.list_topics(timeout)

    async def close(self, timeout: float = CLOSE_S) -> None:
        """Commit if that is automatic, leave the group and close the connections."""
        if self._started is not None:
            await self._started.close(timeout)


async def _call(function: Callable[..., Any], partitions: list[TopicPartition]) -> None:
    """Call a callback and await its result if it is a coroutine function."""
    result = function(partitions)
    if inspect.isawaitable(result):
        await result
