"""The producer of a program without asyncio: records one by one, or whole tables.

Owns: nothing; the work is producing.Producing's, on the shared event loop, and of plain records
  _native.intake's.
Invariants: (1) send() returns as soon as the record is in its batch, and blocks for at most
  max.block.ms; (2) callbacks run on the client's thread, which must not wait there.
Source: Kafka's Java client; kafka-python and confluent-kafka for how it feels in Python.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pylog._native.intake import Intake
from pylog.client.background_loop import Driver
from pylog.client.config.durations import rounded
from pylog.client.config.settings import PRODUCER, Settings
from pylog.client.errors import BufferFullError, KafkaTimeoutError, LostRecords
from pylog.client.network.metrics import Metrics
from pylog.client.producer import shutdown
from pylog.client.producer.core import Producing
from pylog.client.producer.delivery import Delivery, TableDelivery
from pylog.client.producer.transaction_context import Transaction, core_of
from pylog.client.types import TopicPartition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Unpack

    from pylog.client.consumer.consumer import Consumer
    from pylog.client.options import ProducerOptions
    from pylog.client.producer.table_writer import TableSender

CLOSE_S = 30.0


class Producer(Intake):
    """Writes to topics: `with Producer(bootstrap_servers="…") as producer: producer.send(…)`.

    Settings have Kafka's names, in a dict with dots or as keywords with underscores.
    """

    def __init__(self, config: Mapping[str, Any] | None = None,
                 **more: Unpack[ProducerOptions]):
        self.settings = Settings(PRODUCER, config, **more)
        self._driver = Driver.shared()
        self._core: Producing = self._driver.run(self._make())
        core = self._core
        shutdown.watch(core)
        plain = not core.interceptors and not core.serializes and core.transactions is None
        # Where nothing has to be done to a record before it is taken.
        super().__init__(core.routes if plain else {})

    async def _make(self) -> Producing:
        return await Producing(self.settings).start()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: Any, *rest: object) -> None:
        self.close(CLOSE_S if kind is None else 0)

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            shutdown.dropped(self, core)

    # Records

    def send_slowly(self, topic: str, value: Any, key: Any, partition: int | None,
                    timestamp: int | None, headers: Any,
                    on_delivery: Callable[..., Any] | None) -> Delivery:
        """What `send` leaves: a record that begins a batch, has to be made bytes, or must wait."""
        core = self._core
        given = core.prepared(topic, value, key, partition, timestamp, headers, on_delivery)
        found, end_s = core.put(*given), 0.0
        while not isinstance(found, Delivery):
            end_s = end_s or time.monotonic() + core.block_s
            self._wait_for(found, given[0], given[3], end_s)
            found = core.put(*given)
        return found

    def _wait_for(self, what: str, topic: str, partition: int | None, end_s: float) -> None:
        left_s = max(0.0, end_s - time.monotonic())
        if threading.current_thread() is self._driver.thread:
            # Keeps (2): what is waited for can only come from this very thread.
            raise BufferFullError(f"a callback cannot wait for {what}")
        self._core.check()
        self._driver.run(self._core.wait_for(what, topic, partition, left_s))

    # Tables

    def send_arrow(
        self, data: Any, topic: str, *, key: Any = None, value: Any = None, partition: Any = None,
        timestamp: Any = None, headers: Any = None, batch_bytes: int | None = None,
    ) -> TableDelivery:
        """Sends each row of a pyarrow Table, RecordBatch, reader or anything with an Arrow stream.

        key, value, partition, timestamp, headers: a column's name or an array; without a name the
        column that is called so, if there is one. Keys and values are binary or string columns;
        partition is an integer column (null: by key), timestamp a timestamp or int64 (ms) column,
        headers list<struct<key, value>> or map. batch_bytes: of one batch, batch.size by default.
        Blocks while buffer.memory is full. Raises KafkaError, TypeError, and RowError for a row
        that cannot be sent: rows before it were.
        """
        from pylog.client.producer.table_writer import TableSender

        self._core.check()
        sender = TableSender(self._core, topic, batch_bytes, self._wait_for)
        return sender.send(data, {"key": key, "value": value, "partition": partition,
                                  "timestamp": timestamp, "headers": headers})

    def rows(self, topic: str) -> TableSender:
        """Sends rows that are native columns already (pylog._native.builder), with `write`."""
        from pylog.client.producer.table_writer import TableSender

        self._core.check()
        return TableSender(self._core, topic, None, self._wait_for)

    def metrics(self) -> Metrics:
        """{group: {name: value}} by Kafka's names, with a group for each topic."""
        return self._core.metrics()

    # Waiting, ending

    def flush(self, timeout: float | None = None, *, check: bool = False) -> int:
        """Sends what waits and returns when all of it has an outcome.

        Returns how many records have failed since the last flush; with `check`, raises LostRecords
        when there are any. Raises KafkaTimeoutError, ClosedError after a fork.
        """
        return LostRecords.checked(self._driver.run(self._core.flush(timeout)), check)

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions. Raises KafkaError."""
        self._driver.run(self._core.wait_for("metadata", topic, None, self._core.block_s))
        count = self._core.cluster.metadata.partition_count(topic)
        return [TopicPartition(topic, partition) for partition in range(count)]

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Delivers what waits, for at most `timeout` seconds; what is left fails."""
        if not self._core.forked:     # A child leaves its parent's connections alone.
            self._driver.run(self._core.close(timeout))

    # Transactions

    def transaction(self, consumer: Consumer | None = None) -> Transaction:
        """`with producer.transaction(consumer):` begins a transaction and commits it at the end,
        together with the positions of `consumer`; an exception aborts it, and the consumer goes
        back to what was committed.

        The consumer needs a group.id and enable.auto.commit=false. Raises in the end what
        a record failed with, CommitFailedError and its like when the group has moved on,
        RebalanceNeededError when the consumer lost partitions meanwhile: aborted, and to be begun
        again unless `.fatal`. The first one fences earlier producers of the transactional.id.
        """
        if consumer is None:
            return Transaction(self, self._driver.run, self._core, None)
        # Imported here: a program that only writes does not pay for it.
        from pylog.client.consumer.consumer import Consumer

        return Transaction(
            self, self._driver.run, self._core, core_of(consumer, Consumer))

    def init_transactions(self, timeout: float | None = None) -> None:
        """Once, before the first transaction: fences earlier producers of the transactional.id."""
        self._run(self._core.needs_transactions().init(), timeout)

    def begin_transaction(self) -> None:
        """Records sent from now on belong together."""
        self._core.needs_transactions().begin()

    def send_offsets_to_transaction(self, offsets: Mapping[Any, Any], group: Any) -> None:
        """Commits consumed offsets with the transaction.

        offsets: by TopicPartition, the next offset to read or an OffsetAndMetadata. group: the
        consumer's group_metadata(), or a group id.
        """
        self._driver.run(self._core.send_offsets(offsets, group))

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Delivers all and commits. Raises what a record failed with: then abort."""
        self._run(self._core.end_transaction(True), timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Drops what is not sent and aborts."""
        self._run(self._core.end_transaction(False), timeout)

    def _run(self, work: Any, timeout: float | None) -> None:
        import asyncio

        async def bounded() -> None:
            try:
                async with asyncio.timeout(timeout):
                    await work
            except TimeoutError as failure:
                if isinstance(failure, KafkaTimeoutError):
                    raise
                raise KafkaTimeoutError(f"not done within {rounded(timeout)}") from failure

        self._driver.run(bounded())
