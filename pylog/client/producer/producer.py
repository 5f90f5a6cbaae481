"""The blocking producer: single records or whole tables.

Owns: nothing. core.Producing does the work on the shared event loop; record_intake handles plain
  records.
Invariants: send() returns when the record is in its batch and blocks for at most max.block.ms;
  callbacks run on the client's thread and must not block there.
Source: Kafka's Java client; kafka-python and confluent-kafka for the Python API.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic

from pylog._native.client.record_intake import FastSend
from pylog.client.background_loop import Driver
from pylog.client.config.configured import Configured, given
from pylog.client.config.settings import PRODUCER, Settings
from pylog.client.errors import BufferFullError, LostRecords
from pylog.client.extras import require
from pylog.client.generics import KeyIn, ValueIn
from pylog.client.network.metrics import Metrics
from pylog.client import shutdown
from pylog.client.producer.core import Producing, within
from pylog.client.producer.delivery import Delivery, RecordMetadata, TableDelivery
from pylog.client.producer.transaction_context import Transaction, core_of
from pylog.client.producer.transaction_manager import Prepared
from pylog.client.types import GroupMetadata, Offsets, TopicPartition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self, Unpack

    from pylog.client.consumer.consumer import Consumer
    from pylog.client.interfaces import (
        ArrowColumn, ArrowData, DeliveryCallback, Headers, Serializes,
    )
    from pylog.client.options import ProducerConfig, ProducerOptions
    from pylog.client.producer.table_writer import TableSender

CLOSE_S = 30.0


class Producer(FastSend, Configured, Generic[KeyIn, ValueIn]):
    """Write records: `with Producer(bootstrap_servers="…") as producer: producer.send(…)`.

    Settings have Kafka's names: pass a dict with dots, or keywords with underscores.
    """

    def __init__(self, config: ProducerConfig | None = None, /, *,
                 key_serializer: Serializes[KeyIn] | None = None,
                 value_serializer: Serializes[ValueIn] | None = None,
                 **more: Unpack[ProducerOptions]):
        self.settings = Settings(PRODUCER, config, **given(
            more, key_serializer=key_serializer, value_serializer=value_serializer))
        self._driver = Driver.shared()
        self._core: Producing = self._driver.run(self._make())
        core = self._core
        shutdown.watch(core)
        plain = not core.interceptors and not core.serializes and core.transactions is None
        # Native code may add records directly only if they need no processing first.
        super().__init__(core.routes if plain else {})

    async def _make(self) -> Producing:
        return await Producing(self.settings).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *rest: object) -> None:
        self.close(CLOSE_S if kind is None else 0)

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            shutdown.dropped(self, core)

    # Records

    if TYPE_CHECKING:  # Native code implements it: FastSend.send.
        def send(self, topic: str, value: ValueIn | None = None, key: KeyIn | None = None, *,
                 partition: int | None = None, timestamp: int | None = None,
                 headers: Headers | None = None, on_delivery: DeliveryCallback | None = None
                 ) -> Delivery: ...

    def send_and_wait(self, topic: str, value: ValueIn | None = None, key: KeyIn | None = None, *,
                      partition: int | None = None, timestamp: int | None = None,
                      headers: Headers | None = None, timeout: float | None = None
                      ) -> RecordMetadata:
        """Send one record and wait for its acknowledgement.

        timeout: seconds; None waits until delivery.timeout.ms fails the record. Raises what send()
        and Delivery.result() raise.
        """
        return self.send(topic, value, key, partition=partition, timestamp=timestamp,
                         headers=headers).result(timeout)

    def _send_slowly(self, topic: str, value: Any, key: Any, partition: int | None,
                    timestamp: int | None, headers: Any,
                    on_delivery: Callable[..., Any] | None) -> Delivery:
        """Send a record that native code cannot add: it starts a batch, needs conversion, or must
        wait.
        """
        core = self._core
        transaction = core.check()
        given = core.prepared(topic, value, key, partition, timestamp, headers, on_delivery)
        found, end_s = core.put(*given), 0.0
        while not isinstance(found, Delivery):
            end_s = end_s or time.monotonic() + core.block_s
            self._wait_for(found, given[0], given[3], end_s)
            core.check_same(transaction)
            found = core.put(*given)
        return found

    def _wait_for(self, what: str, topic: str, partition: int | None, end_s: float) -> None:
        left_s = max(0.0, end_s - time.monotonic())
        if threading.current_thread() is self._driver.thread:
            # Only this thread could end the wait, so waiting would deadlock.
            raise BufferFullError(f"a callback cannot wait for {what}")
        self._driver.run(self._core.wait_for(what, topic, partition, left_s))

    # Tables

    def send_arrow(
        self, data: ArrowData, topic: str, *, key: ArrowColumn | None = None,
        value: ArrowColumn | None = None, partition: ArrowColumn | None = None,
        timestamp: ArrowColumn | None = None, headers: ArrowColumn | None = None,
        batch_bytes: int | None = None,
    ) -> TableDelivery:
        """Send each row of a pyarrow Table, RecordBatch, reader or other object with an Arrow
        stream.

        key, value, partition, timestamp, headers: a column name or an array; by default the column
        of that name, if present. Keys and values are binary or string columns, partition is an
        integer column (null: choose by key), timestamp a timestamp or int64 (ms) column, headers
        list<struct<key, value>> or map. batch_bytes: batch size, batch.size by default. Blocks
        while buffer.memory is full. Raises KafkaError, TypeError, and RowError if a row cannot be
        sent; the rows before it were sent.
        """
        require("send_arrow", "numpy", "pyarrow")
        from pylog.client.producer.table_writer import TableSender

        sender = TableSender(self._core, topic, batch_bytes, self._wait_for, self._core.check())
        return sender.send(data, {"key": key, "value": value, "partition": partition,
                                  "timestamp": timestamp, "headers": headers})

    def metrics(self) -> Metrics:
        """Return metrics as {group: {name: value}} with Kafka's names, including a group per topic.
        """
        return self._core.metrics()

    # Flush and close.

    def flush(self, timeout: float | None = None, *, check: bool = False) -> int:
        """Send all buffered records and return when each has an outcome.

        Returns the number of records that failed since the last flush. With `check`, raises
        LostRecords if it is not zero. Raises KafkaTimeoutError, or ClosedError after a fork.
        """
        return LostRecords.checked(self._driver.run(self._core.flush(timeout)), check)

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return the topic's partitions. Raises KafkaError."""
        self._driver.run(self._core.wait_for("metadata", topic, None, self._core.block_s))
        count = self._core.cluster.metadata.partition_count(topic)
        return [TopicPartition(topic, partition) for partition in range(count)]

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Deliver buffered records for at most `timeout` seconds, fail the rest and close."""
        if not self._core.forked:  # A forked child must not touch its parent's connections.
            self._driver.close_client(self._core.close(timeout))

    # Transactions

    def transaction(self, consumer: Consumer[Any, Any] | None = None) -> Transaction:
        """Run `with producer.transaction(consumer):` as one transaction, with the consumer's
        positions.

        It commits at the end of the block. An exception aborts it and resets the consumer to its
        committed offsets. The consumer needs a group.id and enable.auto.commit=false. At the end of
        the block, raises the error of a failed record, CommitFailedError or a similar error if the
        group has rebalanced, or RebalanceNeededError if the consumer lost partitions during the
        transaction. After these errors the transaction is aborted: begin it again unless the error
        is `.fatal`. After KafkaTimeoutError the commit continues in the background: call
        commit_transaction() to wait for its outcome. The first transaction fences earlier producers
        of the transactional.id.
        """
        if consumer is None:
            return Transaction(self, self._driver.run, self._core, None)
        # Imported lazily to keep this module out of programs that only produce.
        from pylog.client.consumer.consumer import Consumer

        return Transaction(
            self, self._driver.run, self._core, core_of(consumer, Consumer))

    def init_transactions(self, timeout: float | None = None) -> None:
        """Fence earlier producers of the transactional.id. Call once, before the first transaction.
        """
        self._run(self._core.needs_transactions().init(), timeout)

    def begin_transaction(self) -> None:
        """Begin a transaction; it includes all records sent from now on."""
        self._core.needs_transactions().begin()

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str,
                                    timeout: float | None = None) -> None:
        """Commit consumed offsets with the transaction.

        offsets: by TopicPartition, the next offset to read or an OffsetAndMetadata. group: the
        consumer's group_metadata(), or a group id. Raises KafkaTimeoutError after `timeout`
        seconds.
        """
        self._run(self._core.send_offsets(offsets, group), timeout)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver all records and commit. Raises the error of a failed record: abort then."""
        self._run(self._core.end_transaction(True), timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Drop unsent records and abort."""
        self._run(self._core.end_transaction(False), timeout)

    def _run(self, work: Coroutine[Any, Any, None], timeout: float | None) -> None:
        self._driver.run(within(work, timeout))


def row_sender(producer: Producer[Any, Any], topic: str) -> TableSender:
    """Return a sender whose `write` takes native columns (pylog._native.client.batch_builder)."""
    from pylog.client.producer.table_writer import TableSender

    core = producer._core
    return TableSender(core, topic, None, producer._wait_for, core.check())


def prepared(producer: Producer[Any, Any]) -> Prepared:
    """Deliver the open transaction's records and leave it open, even if the producer closes.

    Raises the error of a failed record.

    Source: KIP-939.
    """
    found: Prepared = producer._driver.run(producer._core.prepare_transaction())
    return found
