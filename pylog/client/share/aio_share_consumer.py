"""The asyncio share consumer: the calls of share_consumer.ShareConsumer, awaited.

Owns: nothing. core.Sharing does the work, on the running loop.
Invariants: only one task at a time polls or iterates.
Source: Kafka's KafkaShareConsumer (KIP-932).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Generic

from pylog._native.client.columns import Record
from pylog.client.config.configured import Configured, given
from pylog.client.config.settings import SHARE_CONSUMER, Settings
from pylog.client.errors import ConcurrentUseError, IllegalStateError, KafkaError
from pylog.client.extras import require
from pylog.client import shutdown
from pylog.client.share.acknowledgements import Acknowledge
from pylog.client.share.core import Sharing
from pylog.client.share.record_reader import COLUMNS, ShareRecords
from pylog.client.share.share_consumer import CLOSE_S, Callback
from pylog.client.generics import K, V
from pylog.client.types import TopicPartition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self, Unpack

    import pyarrow as pa

    from pylog.client.interfaces import Deserializes, ShareColumnName
    from pylog.client.options import ShareConsumerConfig, ShareConsumerOptions


class ShareConsumer(Configured, Generic[K, V]):
    """`async with ShareConsumer(bootstrap_servers="…", group_id="g") as consumer: …`."""

    def __init__(self, config: ShareConsumerConfig | None = None, /, *,
                 key_deserializer: Deserializes[K] | None = None,
                 value_deserializer: Deserializes[V] | None = None,
                 **more: Unpack[ShareConsumerOptions]):
        self.settings = Settings(SHARE_CONSUMER, config, **given(
            more, key_deserializer=key_deserializer, value_deserializer=value_deserializer))
        self._started: ShareRecords | None = None

    @property
    def _records(self) -> ShareRecords:
        if self._started is None:
            raise IllegalStateError(
                "the share consumer is not started", remedy="use `async with ShareConsumer(…) as "
                "consumer:`, or `await consumer.start()` first")
        return self._started

    async def start(self) -> Self:
        if self._started is None:
            self._started = ShareRecords(await Sharing(self.settings).start())
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __del__(self) -> None:
        records = getattr(self, "_started", None)
        if records is not None:
            shutdown.dropped(self, records.core)

    async def subscribe(self, topics: Iterable[str] | str) -> None:
        """Subscribe to topics by name."""
        await self._records.core.subscribe(topics)

    async def unsubscribe(self) -> None:
        """Leave the group and release unacknowledged records to other members."""
        await self._records.core.unsubscribe()
        self._records.run_callback()

    def subscription(self) -> set[str]:
        return set(self._records.core.subscription.topics)

    def assignment(self) -> list[TopicPartition]:
        return list(self._records.core.subscription.states)

    def _begin_poll(self) -> None:
        """Check that no other task polls. Raises ConcurrentUseError."""
        if self._records.core.polling:
            raise ConcurrentUseError(
                "another task is polling this share consumer",
                remedy="use one share consumer per task")
        self._records.release_rest()

    async def poll(self, timeout: float = 0.0) -> list[Record[K, V]]:
        """See share_consumer.ShareConsumer.poll."""
        self._begin_poll()
        found = self._records.records(await self._records.core.poll(timeout))
        self._records.core.undelivered = ()
        return found

    async def poll_arrow(self, timeout: float = 0.0, columns: Iterable[ShareColumnName] = COLUMNS
                   ) -> pa.RecordBatch:
        """See share_consumer.ShareConsumer.poll_arrow."""
        require("poll_arrow", "numpy", "pyarrow")
        self._begin_poll()
        found = self._records.arrow(await self._records.core.poll(timeout), columns)
        self._records.core.undelivered = ()
        return found

    async def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        """Iterate over records endlessly. See share_consumer.ShareConsumer."""
        while True:
            record = self._records.next_record()
            if record is None:
                self._records.iterate(await self.poll(1.0))
            else:
                self._records.received = record
                yield record

    def delivery_count(self, record: Record[Any, Any]) -> int:
        """Return how often a record of the last poll was delivered, including this time."""
        return self._records.delivery_count(record)

    def acknowledge(self, records: Record[Any, Any] | Iterable[Record[Any, Any]] | pa.RecordBatch,
                    kind: Acknowledge = Acknowledge.ACCEPT) -> None:
        """See share_consumer.ShareConsumer.acknowledge."""
        self._records.acknowledge(records, kind)

    async def commit(self, timeout: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """See share_consumer.ShareConsumer.commit."""
        self._records.accept_received()
        found = await self._records.core.commit(timeout)
        self._records.run_callback()
        return found

    def set_acknowledgement_commit_callback(self, callback: Callback | None) -> None:
        """See share_consumer.ShareConsumer.set_acknowledgement_commit_callback."""
        self._records.callback = callback

    def wakeup(self) -> None:
        """Make the waiting poll, or the next one, raise WakeupError. Call on the loop's thread."""
        self._records.core.woken = True
        self._records.core.notify()

    async def close(self, timeout: float = CLOSE_S) -> None:
        """Send acknowledgements, release other acquired records and leave the group."""
        if self._started is not None:
            await self._started.core.close(timeout)
            self._started.run_callback()
