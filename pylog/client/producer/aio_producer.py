"""The asyncio producer: single records or whole tables.

Owns: nothing. core.Producing does the work, on the application's event loop.
Invariants: never blocks the loop: slow work is awaited or runs on a thread.
Source: Kafka's Java client; aiokafka for the Python API.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from pylog.client import blocking
from pylog.client.config.settings import PRODUCER, Settings
from pylog.client.errors import IllegalStateError, LostRecords
from pylog.client.extras import require
from pylog.client.network.metrics import Metrics
from pylog.client import shutdown
from pylog.client.producer.core import Producing
from pylog.client.producer.delivery import Delivery, RecordMetadata, TableDelivery
from pylog.client.producer.transaction_context import AioTransaction, core_of
from pylog.client.types import TopicPartition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Unpack

    from pylog.client.consumer.aio_consumer import Consumer
    from pylog.client.options import ProducerOptions

CLOSE_S = 30.0


class Producer:
    """`async with Producer(bootstrap_servers="…") as producer: await producer.send(…)`."""

    def __init__(self, config: Mapping[str, Any] | None = None,
                 **more: Unpack[ProducerOptions]):
        self.settings = Settings(PRODUCER, config, **more)
        self._unstarted = Producing(self.settings)

    @property
    def _core(self) -> Producing:
        if not self._unstarted.started:
            raise IllegalStateError("the producer is not started: use `async with Producer(…) as "
                                    "producer:`, or `await producer.start()` first")
        return self._unstarted

    async def start(self) -> Producer:
        """Connect to the cluster. Call on the loop that all calls will use."""
        core = self._unstarted
        if not core.started:
            await core.start()
            shutdown.watch(core)
        return self

    async def __aenter__(self) -> Producer:
        return await self.start()

    async def __aexit__(self, kind: Any, *rest: object) -> None:
        await self.close(CLOSE_S if kind is None else 0)

    def __del__(self) -> None:
        core = getattr(self, "_unstarted", None)
        if core is not None and core.started:
            shutdown.dropped(self, core)

    async def send(self, topic: str, value: Any = None, key: Any = None, *,
                   partition: int | None = None, timestamp: int | None = None, headers: Any = None,
                   on_delivery: Callable[..., Any] | None = None) -> Delivery:
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

    async def send_and_wait(self, topic: str, value: Any = None, key: Any = None,
                            **more: Any) -> RecordMetadata:
        """Send one record and await its acknowledgement."""
        return await (await self.send(topic, value, key, **more))

    async def send_arrow(
        self, data: Any, topic: str, *, key: Any = None, value: Any = None, partition: Any = None,
        timestamp: Any = None, headers: Any = None, batch_bytes: int | None = None,
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

    def transaction(self, consumer: Consumer | None = None) -> AioTransaction:
        """See Producer.transaction, with `async with`."""
        if consumer is None:
            return AioTransaction(self, self._core, None)
        # Imported lazily to keep this module out of programs that only produce.
        from pylog.client.consumer.aio_consumer import Consumer

        return AioTransaction(self, self._core, core_of(consumer, Consumer))

    async def init_transactions(self) -> None:
        """Fence earlier producers of the transactional.id. Call once, before the first transaction.
        """
        await self._core.needs_transactions().init()

    def begin_transaction(self) -> None:
        """Begin a transaction; it includes all records sent from now on."""
        self._core.needs_transactions().begin()

    async def send_offsets_to_transaction(self, offsets: Mapping[Any, Any], group: Any) -> None:
        """Commit consumed offsets with the transaction. See Producer.send_offsets_to_transaction.
        """
        await self._core.send_offsets(offsets, group)

    async def commit_transaction(self) -> None:
        """Deliver all records and commit. Raises the error of a failed record: abort then."""
        await self._core.end_transaction(True)

    async def abort_transaction(self) -> None:
        """Drop unsent records and abort."""
        await self._core.end_transaction(False)
