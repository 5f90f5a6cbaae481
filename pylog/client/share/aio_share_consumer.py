"""The share consumer of a program with asyncio: the calls of share_consumer.ShareConsumer, awaited.

Owns: nothing; the work is sharing.Sharing's, on the running loop.
Invariants: (1) one task at a time polls or iterates.
Source: Kafka's KafkaShareConsumer (KIP-932).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from pylog._native.columns import Record
from pylog.client.config.settings import SHARE_CONSUMER, Settings
from pylog.client.errors import ConcurrentUseError, IllegalStateError, KafkaError
from pylog.client.producer import shutdown
from pylog.client.share.acknowledgements import Acknowledge
from pylog.client.share.core import Sharing
from pylog.client.share.record_reader import COLUMNS, ShareRecords
from pylog.client.share.share_consumer import CLOSE_S, Callback
from pylog.client.types import TopicPartition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Unpack

    from pylog.client.options import ShareConsumerOptions


class ShareConsumer:
    """`async with ShareConsumer(bootstrap_servers="…", group_id="g") as consumer: …`."""

    def __init__(self, config: Mapping[str, Any] | None = None,
                 **more: Unpack[ShareConsumerOptions]):
        self.settings = Settings(SHARE_CONSUMER, config, **more)
        self._started: ShareRecords | None = None

    @property
    def _records(self) -> ShareRecords:
        if self._started is None:
            raise IllegalStateError("the share consumer is not started: use `async with`, or start")
        return self._started

    async def start(self) -> ShareConsumer:
        if self._started is None:
            self._started = ShareRecords(await Sharing(self.settings).start())
        return self

    async def __aenter__(self) -> ShareConsumer:
        return await self.start()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __del__(self) -> None:
        records = getattr(self, "_started", None)
        if records is not None:
            shutdown.dropped(self, records.core)

    async def subscribe(self, topics: Iterable[str] | str) -> None:
        """Topics by name."""
        await self._records.core.subscribe(topics)

    async def unsubscribe(self) -> None:
        """Leaves the group; what is in hand and was not acknowledged goes to others."""
        await self._records.core.unsubscribe()
        self._records.tell()

    def subscription(self) -> set[str]:
        return set(self._records.core.subscription.topics)

    def assignment(self) -> list[TopicPartition]:
        return list(self._records.core.subscription.states)

    def _begin_poll(self) -> None:
        """Keeps (1). Raises ConcurrentUseError."""
        if self._records.core.polling:
            raise ConcurrentUseError(
                "another task is polling this share consumer: use one share consumer per task")
        self._records.give_back()

    async def poll(self, timeout: float = 0.0) -> list[Record]:
        """As share_consumer's."""
        self._begin_poll()
        return self._records.records(await self._records.core.poll(timeout))

    async def poll_arrow(self, timeout: float = 0.0, columns: Iterable[str] = COLUMNS) -> Any:
        """As share_consumer's."""
        self._begin_poll()
        return self._records.arrow(await self._records.core.poll(timeout), columns)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """As share_consumer's."""
        while True:
            record = self._records.next_record()
            if record is None:
                self._records.iterate(await self.poll(1.0))
            else:
                yield record

    def delivery_count(self, record: Record) -> int:
        """How often a record of the last poll was handed to somebody, this time included."""
        return self._records.delivery_count(record)

    def acknowledge(self, records: Record | Iterable[Record] | Any,
                    kind: Acknowledge = Acknowledge.ACCEPT) -> None:
        """As share_consumer's."""
        self._records.acknowledge(records, kind)

    async def commit(self, timeout: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """As share_consumer's."""
        found = await self._records.core.commit(timeout)
        self._records.tell()
        return found

    def set_acknowledgement_commit_callback(self, callback: Callback | None) -> None:
        """As share_consumer's."""
        self._records.callback = callback

    def wakeup(self) -> None:
        """From the loop's own thread: the poll that waits, or the next one, raises WakeupError."""
        self._records.core.woken = True
        self._records.core.notify()

    async def close(self, timeout: float = CLOSE_S) -> None:
        """Sends acknowledgements, gives back what else is in hand, leaves the group."""
        if self._started is not None:
            await self._started.core.close(timeout)
            self._started.tell()
