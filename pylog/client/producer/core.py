"""Shared core of both producers: route each record to its partition's batch; flush and close.

Owns: the cluster, accumulator, sender and identity of one producer; its routes by topic.
Invariants: `put` never blocks and needs no event loop; closing fails every unacknowledged record;
  records of one thread and partition keep their order.
Source: Kafka's Java client; KIP-679 (idempotence by default).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from pylog._native.client.record_intake import Route
from pylog.client import callbacks
from pylog.client.producer import record_check
from pylog.client.producer.accumulator import Accumulator
from pylog.client.network.cluster import Cluster
from pylog.client.producer.delivery import Delivery, Pending
from pylog.client.arguments import whole
from pylog.client.config.durations import rounded
from pylog.client.errors import (
    BufferFullError, ClosedError, ConfigError, FatalError, ForkedError, IllegalStateError,
    KafkaError, KafkaTimeoutError, SerializationError, error,
)
from pylog.client.network.metrics import Metrics
from pylog.client.producer.partitioners import Default, Sticky, partitioner
from pylog.client.producer.sender import Sender
from pylog.client.config.settings import CODECS, Settings
from pylog.client.producer.transaction_manager import (
    ABORT, COMMIT, Identity, Prepared, Transactions,
)
from pylog.protocol.errors import ErrorCode

_LOG = logging.getLogger("pylog.client")
LEVELS = {"gzip": "compression.gzip.level", "lz4": "compression.lz4.level",
          "zstd": "compression.zstd.level"}
IDEMPOTENT_IN_FLIGHT_MAX = 5


class Producing:
    """The core of a producer. Run `await Producing(settings).start()` on the loop that it will use.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.acks, idempotent = acks_of(settings)
        codec = CODECS.index(settings["compression.type"])
        level_name = LEVELS.get(settings["compression.type"], "")
        self.codec = codec
        self.level = settings[level_name] if level_name in settings.given else None
        self.request_bytes_max = settings["max.request.size"]
        self.batch_bytes = min(settings["batch.size"], self.request_bytes_max)
        self.block_s = settings.seconds("max.block.ms")
        self.linger_s = settings.seconds("linger.ms")
        self.partitioner = partitioner(settings["partitioner.class"], self.batch_bytes,
                                       settings["partitioner.ignore.keys"])
        self.key_serializer = _serializer(settings["key.serializer"])
        self.value_serializer = _serializer(settings["value.serializer"])
        self.serializes = self.key_serializer is not None or self.value_serializer is not None
        self.interceptors = callbacks.interceptors_of(settings["interceptor.classes"])
        self.started = self.closed = self._stopping = False
        self.process = os.getpid()
        self._idempotent = idempotent
        # Empty while records cannot be sent, so that native code never bypasses the checks.
        self.routes: dict[str, Route] = {}
        self.forked = False
        self.loop: asyncio.AbstractEventLoop

    async def start(self) -> Producing:
        self.loop = asyncio.get_running_loop()
        self.cluster = await Cluster(self.settings).start()
        self.started = True
        self.cluster.watchers.append(lambda _: self.routes.clear())
        self.accumulator = Accumulator(
            batch_bytes=self.batch_bytes, bytes_max=self.settings["buffer.memory"],
            linger_s=self.linger_s, codec=self.codec, level=self.level,
            wake=lambda: self.loop.call_soon_threadsafe(self.sender.awake))
        self.accumulator.loop = self.loop
        adaptive = self.settings["partitioner.adaptive.partitioning.enable"]
        if adaptive and isinstance(self.partitioner, Sticky):
            self.partitioner.load = self.accumulator.load
        self.transactions: Transactions | None = None
        self.identity: Identity | None = None
        if self.settings["transactional.id"] is not None:
            self.identity = self.transactions = Transactions(
                self.cluster, self.settings, self.accumulator.notify, self._fail)
        elif self._idempotent:
            self.identity = Identity(
                self.cluster, self.settings, self.accumulator.notify, self._fail)
        self.sender = Sender(self.cluster, self.settings, self.accumulator, self.identity,
                             self.acks)
        if adaptive and isinstance(self.partitioner, Sticky):
            self.partitioner.stalled = self.sender.stalled
        self._task = asyncio.create_task(self.sender.run())
        self._task.add_done_callback(self._ended)
        self.cluster.report(self.metrics)
        return self

    def metrics(self) -> Metrics:
        """Return totals with Kafka's names, for the producer and for each topic."""
        counts, used = self.sender.counts, self.accumulator.bytes_used
        room = self.settings["buffer.memory"]
        own = {
            **self.cluster.traffic_rows(),
            "record-send-total": counts.records, "record-error-total": counts.errors,
            "record-retry-total": counts.retries, "byte-total": counts.bytes,
            "batch-size-avg": counts.bytes / counts.batches if counts.batches else 0.0,
            "records-per-batch-avg": counts.records / counts.batches if counts.batches else 0.0,
            "requests-in-flight": self.sender.in_flight.total(),
            "buffer-total-bytes": room, "buffer-available-bytes": max(0, room - used),
        }
        return {"producer-metrics": own, **counts.by_topic("producer-topic-metrics", (
            "record-send-total", "byte-total", "record-error-total"))}

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all records if the sender ends unexpectedly, by a bug or with the event loop: the
        application must not wait forever.
        """
        if task.cancelled() and not self._stopping:
            self._fail(FatalError("the event loop cancelled the producer's task: it is ending"))
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            _LOG.error("the sender has failed", exc_info=failure)
            self._fail(FatalError(f"the sender has failed: {failure!r}"))

    def _fail(self, failure: KafkaError) -> None:
        self.routes.clear()
        if isinstance(failure, FatalError) or self.transactions is None:
            self.sender.fail_all(failure)
        else:
            self.accumulator.fail_unsent(failure)

    # Adding a record.

    def mark_forked(self) -> None:
        """Make every further call raise ForkedError, in a forked child."""
        self.forked = True
        self.routes.clear()  # Otherwise native code would still accept records.

    def check(self) -> int:
        """Raise if records cannot be sent. Returns the number of the transaction, 0 without one.
        """
        if self.forked:
            raise ForkedError
        if self.closed:
            raise ClosedError("the producer is closed")
        if self.sender.failure is not None:
            raise self.sender.failure
        return 0 if self.transactions is None else self.transactions.check_open()

    def check_same(self, transaction: int) -> None:
        """Raise if records cannot be sent in the transaction of that number.

        Call after a wait: otherwise a record of an aborted transaction is sent in the next one.
        """
        if self.check() != transaction:
            raise IllegalStateError("the transaction ended before the record was sent")

    def prepared(self, topic: str, value: Any, key: Any, partition: int | None,
              timestamp: int | None, headers: Any,
              on_delivery: Callable[..., Any] | None) -> tuple[Any, ...]:
        """Return put()'s arguments for a record: interceptors and serializers are applied. Raises
        KafkaError.
        """
        if self.interceptors:
            topic, value, key, partition, timestamp, headers = self.intercepted(
                topic, value, key, partition, timestamp, headers)
            on_delivery = self.acknowledging(on_delivery)
        if self.serializes:
            key, value = self._serialized(topic, value, key)
        if partition is not None:
            partition = whole(f"{topic}: a partition", partition)
        if timestamp is not None:
            timestamp = whole(f"{topic}: a timestamp in ms", timestamp)
        return topic, key, value, partition, timestamp, headers, on_delivery

    def _serialized(self, topic: str, value: Any, key: Any) -> tuple[Any, Any]:
        """Serialize key and value. Raises SerializationError."""
        try:
            if self.key_serializer is not None and key is not None:
                key = self.key_serializer(topic, key)
            if self.value_serializer is not None and value is not None:
                value = self.value_serializer(topic, value)
        except KafkaError:
            raise
        except Exception as failure:
            raise SerializationError(f"{topic}: {failure}") from failure
        return key, value

    def put(self, topic: str, key: Any, value: Any, partition: int | None, timestamp: int | None,
            headers: Any, on_delivery: Callable[..., Any] | None) -> Delivery | str:
        """Add a record. Returns its Delivery, or "metadata" or "memory" if the caller must wait
        first.
        """
        if type(key) is str:
            key = key.encode()
        if type(value) is str:
            value = value.encode()
        try:
            size = (0 if key is None else len(key)) + (0 if value is None else len(value))
            if headers:
                size += header_bytes(headers)
        except (TypeError, ValueError, AttributeError) as failure:
            raise record_check.of(topic, key, value, headers, failure) from failure
        if size > self.request_bytes_max:
            raise error(ErrorCode.MESSAGE_TOO_LARGE,
                        f"{topic}: a record of {size} bytes is over max.request.size")
        route = self.routes.get(topic) or self._route(topic)
        if route is None:
            if not isinstance(topic, str):
                raise TypeError(f"a topic name must be a str, not {topic!r}")
            return "metadata"
        if partition is None:
            partition = self._choose(route, topic, key, size)
        if not 0 <= partition < len(route.partitions):
            if partition < 0:
                raise ValueError(f"{topic} has no partition {partition}")
            return "metadata"
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        accumulator = self.accumulator
        try:
            queue = accumulator.queue(topic, partition)
            appended = accumulator.append(queue, key, value, timestamp, headers, on_delivery, size)
        except (TypeError, ValueError, AttributeError) as failure:
            raise record_check.of(topic, key, value, headers, failure) from failure
        if appended is None:
            return "memory"
        route.set_queue(partition, queue)
        if self.sender.failure is not None:
            # The failure was set after the check above: fail the record, because no sender would.
            self.loop.call_soon_threadsafe(accumulator.fail_unsent, self.sender.failure)
        return Delivery(appended[0], appended[1], timestamp)

    def _choose(self, route: Route, topic: str, key: Any, size: int) -> int:
        chooser = self.partitioner
        if key is not None or not isinstance(chooser, Sticky):
            return int(chooser.choose(topic, key, route.partitions, route.available, size))
        # Count the bytes that native code has added since the last choice.
        size += route.take_sticky_bytes()
        partition = chooser.choose(topic, key, route.partitions, route.available, size)
        route.set_sticky(partition, chooser.bytes_left(topic))
        return int(partition)

    def _route(self, topic: str) -> Route | None:
        metadata = self.cluster.metadata
        count = metadata.partition_count(topic)
        if not count:
            return None
        partitions = list(range(count))
        available = [p for p in partitions if metadata.leader(topic, p) >= 0] or partitions
        hashes = type(self.partitioner) is Default and not self.partitioner.ignore_keys
        route = Route(self.accumulator, partitions, available, hashes, self.request_bytes_max)
        if not self.closed and self.sender.failure is None:
            self.routes[topic] = route
            if metadata is not self.cluster.metadata:
                self.routes.clear()  # Metadata changed and cleared the routes too early.
        return route

    async def wait_for(self, what: str, topic: str, partition: int | None,
                       timeout_s: float) -> None:
        """Wait until `put` can be retried. Raises KafkaError."""
        if what == "metadata":
            await self._wait_for_metadata(topic, partition, timeout_s)
            return
        room: asyncio.Future[None] = self.loop.create_future()

        def resolve() -> None:
            if not room.done():
                room.set_result(None)

        self.accumulator.when_room([lambda: self.loop.call_soon_threadsafe(resolve)])
        try:
            async with asyncio.timeout(timeout_s):
                await room
        except TimeoutError:
            raise BufferFullError(
                f"buffer.memory stayed full for {self.block_s} s (max.block.ms)") from None

    async def _wait_for_metadata(self, topic: str, partition: int | None,
                                 timeout_s: float) -> None:
        try:
            await self.cluster.topic(topic, timeout_s)
        except KafkaTimeoutError as failure:
            raise KafkaTimeoutError(
                f"{topic}: no metadata within {rounded(timeout_s)} (max.block.ms): "
                f"{failure}") from failure
        count = self.cluster.metadata.partition_count(topic)
        if partition is not None and partition >= count:
            await self.cluster.refresh([topic])
            count = self.cluster.metadata.partition_count(topic)
            if partition >= count:
                raise ValueError(f"{topic} has no partition {partition}, only {count}")

    # Interceptors

    def intercepted(self, topic: str, value: Any, key: Any, partition: Any, timestamp: Any,
                    headers: Any) -> tuple[Any, ...]:
        """Apply on_send(topic=, value=, ...) of each interceptor, which returns changed fields."""
        given = {"topic": topic, "value": value, "key": key, "partition": partition,
                 "timestamp": timestamp, "headers": headers}
        for interceptor in self.interceptors:
            if hasattr(interceptor, "on_send"):
                given.update(interceptor.on_send(**given) or {})
        return tuple(given.values())

    def acknowledging(self, on_delivery: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """Return an on_delivery that first calls the interceptors' on_acknowledgement."""
        functions = [interceptor.on_acknowledgement for interceptor in self.interceptors
                     if hasattr(interceptor, "on_acknowledgement")]
        if not functions:
            return on_delivery

        def acknowledged(metadata: Any, failure: Any) -> None:
            for function in functions:
                callbacks.call("an interceptor's on_acknowledgement", function, metadata, failure)
            if on_delivery is not None:
                on_delivery(metadata, failure)

        return acknowledged

    # Flush and close.

    async def flush(self, timeout_s: float | None = None) -> int:
        """Send all buffered records and await their outcome. Returns the number of records that
        failed since the last flush. Raises KafkaTimeoutError.
        """
        accumulator = self.accumulator
        pendings = accumulator.pendings()
        accumulator.flushing += 1
        accumulator.notify()
        try:
            async with asyncio.timeout(timeout_s):
                for pending in pendings:
                    await self._settled(pending)
        except TimeoutError:
            raise KafkaTimeoutError(
                f"not all was delivered within {rounded(timeout_s)}") from None
        finally:
            accumulator.flushing -= 1
        return accumulator.take_lost()

    async def _settled(self, pending: Pending) -> None:
        if not pending.done:
            await pending.future()

    async def close(self, timeout_s: float | None = None) -> None:
        """Deliver buffered records for at most timeout_s, fail the rest and close. Keeps that
        closing fails every unacknowledged record.
        """
        if self.closed:
            return
        self.closed = True
        self.routes.clear()
        try:
            if timeout_s is None or timeout_s > 0:
                await self.flush(timeout_s)
        except KafkaTimeoutError:
            pass
        finally:
            self.sender.fail_all(ClosedError("the producer was closed"))
            if self.identity is not None:
                self.identity.close()
            await self.cluster.close()
            # Closing the cluster failed its requests. Let their callbacks run, so that every batch
            # completes.
            await asyncio.sleep(0)
            self._stopping = True
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self.accumulator.fail_unsent(ClosedError("the producer was closed"))
            callbacks.close_interceptors(self.interceptors)

    async def abandon(self, timeout_s: float) -> None:
        """Close for an application that dropped the producer; deliver its records first."""
        await self.close(timeout_s)

    # Transactions

    def needs_transactions(self) -> Transactions:
        if self.transactions is None:
            raise IllegalStateError(
                "this producer sends no transactions",
                remedy="set transactional.id when you create it")
        return self.transactions

    async def end_transaction(self, committed: bool) -> None:
        await self.needs_transactions().finish(
            COMMIT if committed else ABORT, lambda: self._end_transaction(committed))

    async def _end_transaction(self, committed: bool) -> None:
        transactions = self.needs_transactions()
        transactions.begin_end(committed)
        if not committed:
            self.accumulator.fail_unsent(error(
                ErrorCode.OPERATION_NOT_ATTEMPTED, "the transaction was aborted"))
        await self.flush()
        await transactions.end(committed)
        # Another thread's send() may have added a record after its check.
        self.accumulator.fail_unsent(error(
            ErrorCode.OPERATION_NOT_ATTEMPTED, "the transaction ended before the record was sent"))

    async def prepare_transaction(self) -> Prepared:
        """Deliver all records and leave the transaction open. Raises the error of a failed record.
        """
        transactions = self.needs_transactions()
        transactions.check_open()
        await self.flush()
        transactions.check_open()
        return transactions.prepared()

    async def send_offsets(self, offsets: Mapping[Any, Any], group: Any) -> None:
        await self.needs_transactions().send_offsets(offsets, group)


async def within(work: Coroutine[Any, Any, None], timeout_s: float | None) -> None:
    """Await a call. Raises KafkaTimeoutError after timeout_s."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError as failure:
        if isinstance(failure, KafkaTimeoutError):
            raise
        raise KafkaTimeoutError(f"not done within {rounded(timeout_s)}") from failure


def acks_of(settings: Settings) -> tuple[int, bool]:
    """Return (acks as sent in a request, True if idempotent). Raises ConfigError."""
    acks = {"all": -1, "-1": -1, "0": 0, "1": 1}[settings["acks"]]
    idempotent = settings["enable.idempotence"]
    asked = ("enable.idempotence" in settings.given and idempotent
             or settings["transactional.id"] is not None)
    if settings["transactional.id"] is not None and not idempotent:
        raise ConfigError("transactional.id needs enable.idempotence")
    fits = (acks == -1 and settings["retries"] > 0 and
            settings["max.in.flight.requests.per.connection"] <= IDEMPOTENT_IN_FLIGHT_MAX)
    if asked and not fits:
        raise ConfigError("enable.idempotence=true needs acks=all, retries above 0 and "
                          "max.in.flight.requests.per.connection of at most 5")
    if settings["delivery.timeout.ms"] < settings["linger.ms"] + settings["request.timeout.ms"]:
        if "delivery.timeout.ms" in settings.given:
            raise ConfigError("delivery.timeout.ms must be at least linger.ms + request.timeout.ms")
    return acks, idempotent and fits


def header_bytes(headers: Any) -> int:
    """Return an upper bound for the encoded size of headers."""
    pairs = headers.items() if isinstance(headers, dict) else headers
    return sum(16 + 4 * len(key) + (0 if value is None else 4 * len(value)) for key, value in pairs)


def _serializer(given: Any) -> Callable[[str, Any], Any] | None:
    """Return f(topic, data) for a serializer: an object with `serialize`, or a function of data."""
    if given is None:
        return None
    if hasattr(given, "serialize"):
        found: Callable[[str, Any], Any] = given.serialize
        return found
    if callable(given):
        return lambda _, data: given(data)
    raise ConfigError(f"not a serializer: {given!r}")
