"""The consumer of a program with asyncio: the same calls as consumer.Consumer, awaited.

Owns: the waiting of polls; the work is consuming.Consuming's, on the running loop.
Invariants: (1) one task at a time polls or iterates; (2) callbacks may be coroutine functions; (3)
  positions move only past what a poll returns: when it raises or is cancelled, they stay.
Source: aiokafka for how it feels; Kafka's consumer for what it means.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from pylog._native.columns import Columns, Record
from pylog.client.config.settings import CONSUMER, Settings
from pylog.client.consumer.consumer import (
    ALL_COLUMNS, CLOSE_S, COLUMN_BYTES_MAX, COLUMN_RECORDS_MAX, Make, empty_batch,
)
from pylog.client.consumer.core import Consuming
from pylog.client.consumer.rebalance_listener import listener_of, weakly
from pylog.client.errors import ClosedError, ConcurrentUseError, IllegalStateError
from pylog.client.network.metrics import Metrics
from pylog.client.producer import shutdown
from pylog.client.types import (
    EARLIEST, LATEST, GroupMetadata, OffsetAndMetadata, TopicPartition,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Unpack

    from pylog.client.options import ConsumerOptions


class Consumer:
    """`async with Consumer(bootstrap_servers="…", group_id="g") as consumer: …`"""

    def __init__(self, config: Mapping[str, Any] | None = None,
                 **more: Unpack[ConsumerOptions]):
        self.settings = Settings(CONSUMER, config, **more)
        self._event = asyncio.Event()
        self._records_max = self.settings["max.poll.records"]
        self._started: Consuming | None = None
        self._listener: Any = None
        self._interceptors: list[Any] = []

    @property
    def _core(self) -> Consuming:
        if self._started is None:
            raise IllegalStateError("the consumer is not started: use `async with`, or `start`")
        return self._started

    async def start(self) -> Consumer:
        """Once, on the loop that all calls will be made on."""
        if self._started is None:
            core = Consuming(self.settings, _call, self._event.set)
            self._started = await core.start()
            self._interceptors = [
                interceptor for interceptor in core.interceptors
                if hasattr(interceptor, "on_consume")]
        return self

    async def __aenter__(self) -> Consumer:
        return await self.start()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __del__(self) -> None:
        core = getattr(self, "_started", None)
        if core is not None:
            shutdown.dropped(self, core)

    # Reading

    async def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """Up to max_records (default max.poll.records) records; empty after `timeout` seconds."""
        most = self._records_max if max_records is None else max_records
        collector = self._core.collector
        found: list[Record] = await self._poll(
            timeout, lambda: collector.records(most), self._intercepted) or []
        return found

    def _intercepted(self, found: list[Record]) -> tuple[list[Record], None]:
        for interceptor in self._interceptors:
            found = interceptor.on_consume(found)
        return found, None

    async def poll_columns(self, timeout: float = 0.0, max_records: int = COLUMN_RECORDS_MAX,
                           headers: bool = True, max_bytes: int = COLUMN_BYTES_MAX
                           ) -> tuple[Columns, list[TopicPartition]] | None:
        """Native columns, without pyarrow and NumPy, and whose their sources are; None after
        `timeout` seconds without a record. Raises KafkaError."""
        known = self._core.subscription.known
        found: tuple[Columns, list[TopicPartition]] | None = await self._columns(
            timeout, max_records, headers, max_bytes, lambda native: ((native, known), None))
        return found

    async def poll_arrow(self, timeout: float = 0.0, max_records: int = COLUMN_RECORDS_MAX,
                         columns: Iterable[str] = ALL_COLUMNS,
                         max_bytes: int = COLUMN_BYTES_MAX) -> Any:
        """A pyarrow.RecordBatch, without a row after `timeout` seconds."""
        from pylog.client import arrow

        names, known = arrow.ordered(columns), self._core.subscription.known
        found = await self._columns(timeout, max_records, "headers" in names, max_bytes,
                                    lambda native: (arrow.record_batch(native, known, names), None))
        return empty_batch(names) if found is None else found

    async def poll_numpy(self, timeout: float = 0.0, max_records: int = COLUMN_RECORDS_MAX,
                         columns: Iterable[str] = ALL_COLUMNS, value_dtype: Any = None,
                         key_dtype: Any = None, max_bytes: int = COLUMN_BYTES_MAX
                         ) -> dict[str, Any]:
        """NumPy arrays by column name; {} after `timeout` seconds without a record. Raises
        RecordDeserializationError at a record whose length is not the dtype's."""
        from pylog.client import arrow

        names, known = arrow.ordered(columns), self._core.subscription.known
        found: dict[str, Any] | None = await self._columns(
            timeout, max_records, False, max_bytes,
            lambda native: arrow.numpy_rows(native, known, names, value_dtype, key_dtype))
        return found or {}

    async def _columns(self, timeout: float, max_records: int, headers: bool, max_bytes: int,
                       make: Make) -> Any:
        collector = self._core.collector
        return await self._poll(
            timeout, lambda: collector.columns(max_records, headers, max_bytes), make)

    async def _poll(self, timeout: float, take: Callable[[], Any], make: Make) -> Any:
        """What `make` makes of what `take` took; None after `timeout` seconds."""
        core = self._core
        if core.closed:
            raise ClosedError("the consumer is closed")
        if core.polling:
            raise ConcurrentUseError(
                "another task is polling this consumer: use one consumer per task")  # Keeps (1).
        core.polling = True
        try:
            return await self._polled(timeout, take, make)
        finally:
            core.polling = False

    async def _polled(self, timeout: float, take: Callable[[], Any], make: Make) -> Any:
        core, event = self._core, self._event
        if core.iteration is not None:
            await core.put_back()
        end_s = time.monotonic() + timeout
        while True:
            event.clear()
            offsets = core.polled()
            if offsets is not None:
                core.auto_commit(offsets)
            if core.attention:
                await core.attend(max(0.0, end_s - time.monotonic()))
            # Yield to the tasks that fetch, in a program that polls without pause. Before records
            # are taken: a cancellation after that would lose them.
            await asyncio.sleep(0)
            found = await self._handed_out(take, make)
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

    async def _handed_out(self, take: Callable[[], Any], make: Make) -> Any:
        """Keeps (3). Nothing in it waits, so it cannot be cancelled."""
        try:
            found = take()
            if not found:
                return None
            made, unread = make(found)
        except BaseException:
            await self._core.take_back()
            raise
        if unread:
            await self._core.take_back(unread)
        return made

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Record by record, without end: a commit holds what came so far, the last one included.
        An iteration that was left is gone on with by the next one, or by a poll."""
        while True:
            record = self._core.next_record()
            if record is None:
                self._core.iterate(await self.poll(1.0))
            else:
                yield record

    def wakeup(self) -> None:
        """The poll that waits, or the next one, raises WakeupError."""
        self._core.woken = True
        self._core.notify()

    def metrics(self) -> Metrics:
        """{group: {name: value}} by Kafka's names, with a group for each topic."""
        return self._core.metrics()

    # Subscription

    async def subscribe(self, topics: Iterable[str] | str | None = None, *, pattern: Any = None,
                        listener: Any = None, on_assign: Callable[..., Any] | None = None,
                        on_revoke: Callable[..., Any] | None = None,
                        on_lost: Callable[..., Any] | None = None) -> None:
        """Topics by name, or all that match a pattern (re, or one name that begins with "^")."""
        callbacks = listener_of(listener, on_assign, on_revoke, on_lost)
        self._listener = callbacks, self._listener  # The second until the first replaces it.
        await self._core.subscribe(topics, pattern, weakly(callbacks))
        self._listener = callbacks

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these partitions, without a group's help."""
        await self._core.assign(partitions)

    async def unsubscribe(self) -> None:
        await self._core.unsubscribe()

    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer has now."""
        return [tp for tp, state in self._core.subscription.states.items() if not state.revoking]

    def subscription(self) -> set[str]:
        """The topics, those of a pattern as they are known now."""
        return set(self._core.subscription.topics)

    def member_id(self) -> str | None:
        membership = self._core.membership
        return membership.member_id if membership is not None else None

    def group_metadata(self) -> GroupMetadata:
        """For Producer.send_offsets_to_transaction."""
        return self._core.group_metadata()

    # Positions

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Of every assigned partition where it is known, in the form that a commit takes."""
        return self._core.consumed()

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next poll goes on at `offset`."""
        await self._core.seek(TopicPartition.of(partition), offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        await self._core.seek_to(partitions, "earliest")

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        await self._core.seek_to(partitions, "latest")

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the next record that a poll gives."""
        return await self._core.position(TopicPartition.of(partition), timeout)

    async def pause(self, *partitions: TopicPartition) -> None:
        await self._core.set_paused(partitions, True)

    async def resume(self, *partitions: TopicPartition) -> None:
        await self._core.set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, state in self._core.subscription.states.items() if state.paused}

    async def beginning_offsets(self, partitions: Iterable[TopicPartition],
                                timeout: float | None = None) -> dict[TopicPartition, int]:
        return await self._core.ends(partitions, EARLIEST, timeout)

    async def end_offsets(self, partitions: Iterable[TopicPartition],
                          timeout: float | None = None) -> dict[TopicPartition, int]:
        return await self._core.ends(partitions, LATEST, timeout)

    async def offsets_for_times(self, times: Mapping[TopicPartition, int],
                                timeout: float | None = None) -> dict[TopicPartition, Any]:
        """The first record at or after each time (ms): OffsetAndTimestamp, None if none is."""
        return await self._core.list_offsets(times, timeout)

    async def lag(self, *partitions: TopicPartition, timeout: float | None = None
                  ) -> dict[TopicPartition, int]:
        return await self._core.lag(partitions, timeout)

    # Commits

    async def commit(self, offsets: Mapping[TopicPartition, Any] | None = None,
                     timeout: float | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commits the positions, or these offsets (int or OffsetAndMetadata: the next to read)."""
        return await self._core.commit(offsets, timeout)

    def commit_async(self, offsets: Mapping[TopicPartition, Any] | None = None,
                     callback: Callable[..., Any] | None = None) -> None:
        """Without waiting; callback(offsets, error or None)."""
        given = self._core.committable() if offsets is None else offsets
        self._core.commit_in_background(given, callback)

    def store_offsets(self, offsets: Mapping[TopicPartition, Any] | Record | Iterable[Record]
                      ) -> None:
        """With enable.auto.offset.store=false: later commits without offsets hold these.

        Takes records that are processed, or offsets as commit() takes them. Does not wait.
        Raises IllegalStateError, and stores nothing then, for a partition that is not assigned.
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
        """Commits where that is automatic, leaves the group, closes the connections."""
        if self._started is not None:
            await self._started.close(timeout)


async def _call(function: Callable[..., Any], partitions: list[TopicPartition]) -> None:
    """Keeps (2)."""
    result = function(partitions)
    if inspect.isawaitable(result):
        await result
