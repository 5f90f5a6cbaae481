"""The asyncio producer: single records or whole tables.

Owns: nothing. core.Producing does the work, on the application's event loop.
Invariants: never blocks the loop: slow work is awaited or runs on a thread.
Source: Kafka's Java client; aiokafka for the Python API.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Generic

from pylog.client import blocking
from pylog.client.config.configured import Configured, given
from pylog.client.config.durations import rounded
from pylog.client.config.settings import PRODUCER, Settings
from pylog.client.errors import IllegalStateError, KafkaTimeoutError, LostRecords
from pylog.client.extras import require
from pylog.client.generics import KeyIn, ValueIn
from pylog.client.network.metrics import Metrics
from pylog.client import shutdown
from pylog.client.producer.core import Producing, within
from pylog.client.producer.delivery import Delivery, RecordMetadata, TableDelivery
from pylog.client.producer.transaction_context import AioTransaction, core_of
from pylog.client.types import GroupMetadata, Offsets, TopicPartition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self, Unpack

    from pylog.client.consumer.aio_consumer import Consumer
    from pylog.client.interfaces import (
        ArrowColumn, ArrowData, DeliveryCallback, Headers, Serializes,
    )
    from pylog.client.options import ProducerConfig, ProducerOptions

CLOSE_S = 30.0


class Producer(Configured, Generic[KeyIn, ValueIn]):
    """`async with Producer(bootstrap_servers="…") as producer: await producer.send(…)`."""

    def __init__(self, config: ProducerConfig | None = None, /, *,
                 key_serializer: Serializes[KeyIn] | None = None,
                 value_serializer: Serializes[ValueIn] | None = None,
                 **more: Unpack[ProducerOptions]):
        self.settings = Settings(PRODUCER, config, **given(
            more, key_serializer=key_serializer, value_serializer=value_serializer))
        self._unstarted = Producing(self.settings)

    @property
    def _core(self) -> Producing:
        if not self._unstarted.started:
            raise IllegalStateError("the producer is not started",
                                    remedy="use `async with Producer(…) as producer:`, or `await "
                                    "producer.start()` first")
        return self._unstarted

    async def start(self) -> Self:
        """Connect to the cluster. Call on the loop that all calls will use."""
        core = self._unstarted
        if not core.started:
            await core.start()
            shutdown.watch(core)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: Any, *rest: object) -> None:
        await self.close(CLOSE_S if kind is None else 0)

    def __del__(self) -> None:
        core = getattr(self, "_unstarted", None)
        if core is not None and core.started:
            shutdown.dropped(self, core)

    async def send(self, topic: str, value: ValueIn | None = None, key: KeyIn | None = None, *,
                   partition: int | None = None, timestamp: int | None = None,
                   headers: Headers | None = None, on_delivery: DeliveryCallback | None = None
                   ) -> Delivery:
        """Send one record; await the Delivery for its outcome. See Producer.send."""
        core = self._core
        transaction = core.check()
        given = core.prepared(topic, value, key, partition, timestamp, headers, on_delivery)
        found, end_s = core.put(*given), 0.0
        while not isinstance(found, Delivery):
            end_s = end_s or time.monotonic() + core.block_s
            await core.wait_for(found, given[0], given[3], max(0.0, end_s - time.monotonic()))
            core.check_same(transaction)
            found = core.put(*given)
        return found

    async def send_and_wait(
        self, topic: str, value: ValueIn | None = None, key: KeyIn | None = None, *,
        partition: int | None = None, timestamp: int | None = None, headers: Headers | None = None,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """Send one record and await its acknowledgement. See Producer.send_and_wait."""
        delivery = await self.send(topic, value, key, partition=partition, timestamp=timestamp,
                                   headers=headers)
        if timeout is None:
            return await delivery
        try:
            async with asyncio.timeout(timeout):
                return await delivery
        except TimeoutError as failure:
            if isinstance(failure, KafkaTimeoutError):
                raise
            raise KafkaTimeoutError(f"no acknowledgement within {rounded(timeout)}") from failure

    async def send_arrow(
        self, data: ArrowData, topic: str, *, key: ArrowColumn | None = None,
        value: ArrowColumn | None = None, partition: ArrowColumn | None = None,
        timestamp: ArrowColumn | None = None, headers: ArrowColumn | None = None,
        batch_bytes: int | None = None,
    ) -> TableDelivery:
        """Send each row of a table; await the TableDelivery for the outcome. See
        Producer.send_arrow.
        """
        require("send_arrow", "numpy", "pyarrow")
        from pylog.client.producer.table_writer import TableSender

        loop = asyncio.get_running_loop()

        def wait_for(what: str, topic: str, partition: int | None, end_s: float) -> None:
            left_s = max(0.0, end_s - time.monotonic())
            asyncio.run_coroutine_threadsafe(
                self._core.wait_for(what, topic, partition, left_s), loop).result()

        columns = {"key": key, "value": value, "partition": partition, "timestamp": timestamp,
                   "headers": headers}

        transaction = self._core.check()

        def work() -> TableDelivery:
            return TableSender(self._core, topic, batch_bytes, wait_for, transaction).send(
                data, columns)

        return await blocking.run(work)

    def metrics(self) -> Metrics:
        """Return metrics as {group: {name: value}} with Kafka's names, including a group per topic.
        """
        return self._core.metrics()

    async def flush(self, timeout: float | None = None, *, check: bool = False) -> int:
        """Send all buffered records and return when each has an outcome.

        Returns the number of records that failed since the last flush. With `check`, raises
        LostRecords if it is not zero. Raises KafkaTimeoutError.
        """
        return LostRecords.checked(await self._core.flush(timeout), check)

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return the topic's partitions. Raises KafkaError."""
        await self._core.wait_for("metadata", topic, None, self._core.block_s)
        count = self._core.cluster.metadata.partition_count(topic)
        return [TopicPartition(topic, partition) for partition in range(count)]

    async def close(self, timeout: float | None = CLOSE_S) -> None:
        """Deliver buffered records for at most `timeout` seconds, fail the rest and close."""
        if self._unstarted.started:
            await self._unstarted.close(timeout)

    # Transactions

    def transaction(self, consumer: Consumer[Any, Any] | None = None) -> AioTransaction:
        """See Producer.transaction, with `async with`."""
        if consumer is None:
            return AioTransaction(self, self._core, None)
        # Imported lazily to keep this module out of programs that only produce.
        from pylog.client.consumer.aio_consumer import Consumer

        return AioTransaction(self, self._core, core_of(consumer, Consumer))

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Fence earlier producers of the transactional.id. Call once, before the first transaction.
        """
        await within(self._core.needs_transactions().init(), timeout)

    def begin_transaction(self) -> None:
        """Begin a transaction; it includes all records sent from now on."""
        self._core.needs_transactions().begin()

    async def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str,
                                          timeout: float | None = None) -> None:
        """Commit consumed offsets with the transaction. See Producer.send_offsets_to_transaction.
        """
        await within(self._core.send_offsets(offsets, group), timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver all records and commit. Raises the error of a failed record: abort then."""
        await within(self._core.end_transaction(True), timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Drop unsent records and abort."""
        await within(self._core.end_transaction(False), timeout)
