"""Send the accumulator's batches to their leaders and handle failures.

Owns: the requests in flight, the sequences of each partition.
Invariants:
- send order: batches of a partition are sent in the order of their numbers and, with idempotence,
  acknowledged in that order;
- exclusive retry: a retry is sent only while no other batch of its partition is in flight;
- in-flight limit: each broker has at most max.in.flight.requests.per.connection requests in flight;
- gapless sequences: a partition's sequences have no gap: after a loss, a new epoch starts at 0;
- known producer: a second batch is in flight only if the broker acknowledged a batch just before. A
  broker without state for the producer accepts any sequence, so it could append the second batch
  after it rejected the first;
- definite response: only the broker's response for a batch acknowledges it. No new batch is sent
  while a later one is acknowledged and an earlier one has no response, so the earlier one is among
  the last batches that the broker remembers and its retry gets a definite response.
Source: Kafka's Java client (Sender, TransactionManager); KIP-98, KIP-360 (epochs), KIP-580
  (backoff), KIP-91 (delivery timeout).
"""

from __future__ import annotations

import asyncio
import collections
import time
from typing import Any

from pylog._native.client.batch_builder import seal
from pylog.client.producer.accumulator import SEQUENCE_MASK, Accumulator, Queue
from pylog.client.network.cluster import Backoff, Cluster
from pylog.client.producer.delivery import Pending
from pylog.client.config.durations import rounded
from pylog.client.errors import FatalError, KafkaError, KafkaTimeoutError, error
from pylog.client.network.metrics import Records
from pylog.client.config.settings import Settings
from pylog.client.producer.transaction_manager import Identity
from pylog.protocol.counts import counted
from pylog.protocol import messages
from pylog.protocol.codec import ZERO_UUID
from pylog.protocol.errors import ErrorCode

IDLE_S = 3600.0
IN_FLIGHT_PER_PARTITION_MAX = 5  # Batches that a broker remembers per idempotent producer.
KNOWN_S = 1.0  # Brokers keep a producer's state for producer.id.expiration.ms: 1 day by default.
TOPIC_ID_VERSION = 13
REQUEST_OVERHEAD_BYTES = 512
REFUSAL = ("broker %d rejected records for %s-%d; they are sent again with a new epoch and may be "
           "duplicated: %s")
_NEW_EPOCH = {int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), int(ErrorCode.UNKNOWN_PRODUCER_ID),
              int(ErrorCode.INVALID_PRODUCER_EPOCH)}


class Sender:
    """A task that sends batches until it is cancelled."""

    def __init__(self, cluster: Cluster, settings: Settings, accumulator: Accumulator,
                 identity: Identity | None, acks: int):
        self.cluster, self.accumulator, self.identity, self.acks = (
            cluster, accumulator, identity, acks)
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.timeout_ms = settings["request.timeout.ms"]
        self.delivery_s = settings.seconds("delivery.timeout.ms")
        self.request_bytes_max = settings["max.request.size"]
        self.in_flight_max = settings["max.in.flight.requests.per.connection"]
        self.retries = settings["retries"]
        self.availability_s = settings.seconds("partitioner.availability.timeout.ms")
        self.in_flight: collections.Counter[int] = collections.Counter()
        self.failure: KafkaError | None = None
        self.counts = Records()
        self._last_request_s: dict[int, float] = {}  # Time of the last request to each broker.
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._draining: dict[int, asyncio.Task[None]] = {}
        self._next_s = 0.0
        self._wakeup: asyncio.Future[None] | None = None

    # The loop.

    async def run(self) -> None:
        while True:
            wait_s = self.step()
            if not self.accumulator.may_sleep(time.monotonic() + wait_s):
                await asyncio.sleep(0)
                continue
            await self._sleep(wait_s)

    async def _sleep(self, wait_s: float) -> None:
        self._wakeup = self.loop.create_future()
        timer = self.loop.call_later(wait_s, self.awake)
        try:
            await self._wakeup
        finally:
            timer.cancel()
            self._wakeup = None

    def awake(self) -> None:
        """Wake the sender. Call on the loop."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _step_by(self, at_s: float) -> None:
        self._next_s = min(self._next_s, at_s)

    def step(self) -> float:
        """Send all batches that can be sent. Returns the seconds until more may be due without a
        wake-up.
        """
        now_s = time.monotonic()
        self._next_s = now_s + IDLE_S
        progress = True
        while progress:
            requests: dict[int, list[Pending]] = {}
            sizes: collections.Counter[int] = collections.Counter()
            for queue in list(self.accumulator.active.values()):
                if queue.in_flight and queue.open is None and not queue.ready:
                    continue  # All batches are in flight.
                pending = self._head(queue, now_s)
                if pending is not None:
                    self._place(pending, now_s, requests, sizes)
            progress = bool(requests)
            for node_id, pendings in requests.items():
                self._send(node_id, pendings)
        return max(self._next_s - now_s, 0.0)

    def _head(self, queue: Queue, now_s: float) -> Pending | None:
        """Return the queue's next batch if it may be sent now."""
        due_s = self.accumulator.close_due(queue, now_s)
        if due_s is not None:
            self._step_by(due_s)
        self._expire(queue, now_s)
        if not queue.ready:
            self.accumulator.drop_if_idle(queue)
            return None
        head = queue.ready[0]
        self._step_by(head.created_s + self.delivery_s)
        if head.retry_at_s > now_s:
            self._step_by(head.retry_at_s)
            return None
        if queue.in_flight and (head.attempts or self.in_flight_max == 1 or queue.needs_new_epoch):
            return None  # Keeps "send order" and "exclusive retry".
        if self.identity is None:
            return head
        if queue.in_flight and (
                len(queue.in_flight) >= self._in_flight_max(queue, now_s)
                or queue.in_flight[0].number < queue.acknowledged):
            return None  # Keeps "known producer" and "definite response".
        if queue.is_unresolved and head.base_sequence < 0:
            if queue.in_flight:
                return None
            queue.is_unresolved = False
            # Keeps "gapless sequences".
            queue.needs_new_epoch |= queue.next_sequence != queue.acknowledged_end
        if queue.needs_new_epoch:
            self._bump_epoch(queue)
        return head if self.identity.admits(queue.topic, queue.partition) else None

    def _in_flight_max(self, queue: Queue, now_s: float) -> int:
        """Return how many batches of a partition may be in flight. Keeps "known producer"."""
        is_known = now_s < queue.known_until_s and queue.topic_id == self.cluster.metadata.topic_id(
            queue.topic)
        return IN_FLIGHT_PER_PARTITION_MAX if is_known else 1

    def _place(self, pending: Pending, now_s: float, requests: dict[int, list[Pending]],
               sizes: collections.Counter[int]) -> None:
        """Add a batch to its leader's request if it fits."""
        node_id = self.cluster.metadata.leader(pending.topic, pending.partition)
        if node_id < 0:
            self.cluster.request_refresh()
            self._step_by(now_s + self.settings.seconds("retry.backoff.ms"))
            return
        if self.in_flight[node_id] >= self.in_flight_max or node_id in self._draining:
            return  # Keeps "in-flight limit".
        if self.cluster.usable(node_id) is None:
            self._connect(node_id)
            return
        size = pending.batch.nbytes + REQUEST_OVERHEAD_BYTES
        if node_id in requests and sizes[node_id] + size > self.request_bytes_max:
            return
        requests.setdefault(node_id, []).append(pending)
        sizes[node_id] += size

    def stalled(self, topic: str) -> set[int]:
        """Return partitions whose leader had batches waiting but could not be sent any for
        partitioner.availability.timeout.ms; empty if that is 0. Callable from any thread.
        """
        if not self.availability_s:
            return set()
        metadata, early_s = self.cluster.metadata, time.monotonic() - self.availability_s
        nodes = set()
        for waits, partition, since_s in self.accumulator.waiting():
            node_id = metadata.leader(waits, partition)
            if max(since_s, self._last_request_s.get(node_id, 0.0)) < early_s:
                nodes.add(node_id)
        return {partition for partition in range(metadata.partition_count(topic))
                if metadata.leader(topic, partition) in nodes} if nodes else set()

    def _expire(self, queue: Queue, now_s: float) -> None:
        """Fail batches that have waited for delivery.timeout.ms."""
        while queue.ready and queue.ready[0].created_s + self.delivery_s <= now_s:
            pending = queue.ready.popleft()
            why = "" if pending.last_failure is None else f"; the last: {pending.last_failure}"
            failure = KafkaTimeoutError(
                f"{pending.topic}-{pending.partition}: not delivered within "
                f"{rounded(self.delivery_s)} and {pending.attempts} tries{why}")
            self._give_up(pending, failure)

    # Connections.

    def _connect(self, node_id: int) -> None:
        if node_id not in self._connecting:
            self._connecting[node_id] = asyncio.create_task(self._reach(node_id))

    async def _reach(self, node_id: int) -> None:
        try:
            await self.cluster.connection(node_id)
        except FatalError as failure:
            self.fail_all(failure)
        except KafkaError as failure:
            if failure.stale_metadata:
                self.cluster.request_refresh()
            await asyncio.sleep(self.settings.seconds("reconnect.backoff.ms"))
        finally:
            del self._connecting[node_id]
            self.accumulator.notify()

    async def _drain(self, node_id: int) -> None:
        """Wait for space in the send buffer, the only backpressure without responses (acks=0)."""
        try:
            connection = self.cluster.usable(node_id)
            if connection is not None:
                await connection.drain()
        except KafkaError:
            self.cluster.request_refresh()
        finally:
            del self._draining[node_id]
            self.accumulator.notify()

    def fail_all(self, failure: KafkaError) -> None:
        """Fail everything unsent with `failure`, after a fatal error of the producer."""
        self.failure = failure
        self.accumulator.fail_unsent(failure)

    # Requests.

    def _send(self, node_id: int, pendings: list[Pending]) -> None:
        topics: dict[str, list[Any]] = {}
        if self.identity is not None:
            for pending in pendings:
                self._stamp(pending.queue, pending)
        seal([pending.batch for pending in pendings])
        for pending in pendings:
            queue = pending.queue
            popped = queue.ready.popleft()
            assert popped is pending, "another batch comes first"
            queue.in_flight.append(pending)
            pending.attempts += 1
            topics.setdefault(pending.topic, []).append(_PARTITION(
                index=pending.partition, records=memoryview(pending.batch)))
        try:
            future = self._request(node_id, topics)
        except KafkaError as failure:
            for pending in pendings:
                self._failed(node_id, pending, failure)
            return
        if future is None:
            for pending in pendings:
                self._acknowledged(pending, -1, -1)
            self._draining[node_id] = asyncio.create_task(self._drain(node_id))
            return
        self.in_flight[node_id] += 1
        self._last_request_s[node_id] = time.monotonic()
        future.add_done_callback(lambda done: self._on_response(node_id, pendings, done))

    def _request(self, node_id: int, topics: dict[str, list[Any]]) -> asyncio.Future[Any] | None:
        """Send a Produce request. Returns None if it has no response (acks=0)."""
        connection = self.cluster.usable(node_id)
        if connection is None:
            raise error(ErrorCode.NETWORK_EXCEPTION)
        identity = self.identity
        version_max = None if identity is None else identity.produce_version_max
        ids = {name: self.cluster.metadata.topic_id(name) for name in topics}
        if ZERO_UUID in ids.values():
            version_max = min(version_max or TOPIC_ID_VERSION - 1, TOPIC_ID_VERSION - 1)
        request = messages.ProduceRequest(
            transactional_id=None if identity is None else identity.transactional_id,
            acks=self.acks, timeout_ms=self.timeout_ms,
            topic_data=[_TOPIC(name=name, topic_id=ids[name], partition_data=rows)
                        for name, rows in topics.items()])
        version = connection.version(messages.ProduceRequest, version_max)
        if self.acks == 0:
            connection.send_only(request, version=version)
            return None
        return connection.send(request, version=version)

    def _on_response(self, node_id: int, pendings: list[Pending],
                     done: asyncio.Future[Any]) -> None:
        self.in_flight[node_id] -= 1
        failure = None if done.cancelled() else done.exception()
        if failure is None and not done.cancelled():
            self._outcomes(node_id, pendings, done.result())
        else:
            known = failure if isinstance(failure, KafkaError) else error(
                ErrorCode.NETWORK_EXCEPTION, str(failure))
            for pending in pendings:
                self._failed(node_id, pending, known)
        self.accumulator.notify()

    def _outcomes(self, node_id: int, pendings: list[Pending], response: Any) -> None:
        metadata = self.cluster.metadata
        rows = {(topic.name or metadata.ids.get(topic.topic_id), row.index): row
                for topic in response.responses for row in topic.partition_responses}
        for pending in pendings:
            row = rows.get((pending.topic, pending.partition))
            if row is None:
                self._failed(node_id, pending,
                             error(ErrorCode.NETWORK_EXCEPTION, "no response for it"))
            elif row.error_code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._acknowledged(pending, row.base_offset, row.log_append_time_ms)
            else:
                self._failed(node_id, pending, error(
                    row.error_code, row.error_message, f"{pending.topic}-{pending.partition}"))

    def _acknowledged(self, pending: Pending, base_offset: int, append_time: int) -> None:
        queue = pending.queue
        queue.in_flight.remove(pending)
        queue.known_until_s = time.monotonic() + KNOWN_S
        queue.topic_id = self.cluster.metadata.topic_id(pending.topic)
        if pending.number > queue.acknowledged:
            queue.acknowledged = pending.number
            queue.acknowledged_end = (pending.base_sequence + pending.count) & SEQUENCE_MASK
        if pending.last_failure is not None:
            self.cluster.notices.over(("retried", pending.topic), "records for %s are delivered",
                                      pending.topic)
        self.counts.batch(pending.topic, pending.count, pending.bytes)
        self.accumulator.complete(pending, base_offset, append_time)

    # Failures.

    def _failed(self, node_id: int, pending: Pending, failure: KafkaError) -> None:
        queue = pending.queue
        first = not any(other.number < pending.number for other in queue.in_flight)
        queue.in_flight.remove(pending)
        queue.known_until_s = 0.0  # Keeps "known producer".
        if failure.stale_metadata:
            self.cluster.request_refresh()
        if failure.code == ErrorCode.MESSAGE_TOO_LARGE and pending.count > 1 and (
                self.failure is None):
            self.accumulator.split(pending)
            return
        if not self._may_retry(node_id, pending, failure, first):
            self._give_up(pending, failure)
            return
        pauses = Backoff(self.settings.seconds("retry.backoff.ms"),
                         self.settings.seconds("retry.backoff.max.ms"))
        self.counts.retries += pending.count
        pending.last_failure = failure
        self.cluster.notices.warn_if_it_stays(
            ("retried", pending.topic), "retrying records for %s-%d: %s", pending.topic,
            pending.partition, failure)
        pauses.failures = pending.attempts - 1
        pending.retry_at_s = time.monotonic() + pauses.next()
        queue.put_back(pending)

    def _may_retry(self, node_id: int, pending: Pending, failure: KafkaError, first: bool) -> bool:
        """Return True if the batch should be retried. `first`: all batches sent before it have a
        response.
        """
        if self.failure is not None or pending.attempts > self.retries:
            return False
        if self.identity is not None and not self.identity.may_retry:
            return False
        if time.monotonic() >= pending.created_s + self.delivery_s:
            return False
        if self.identity is not None and failure.code in _NEW_EPOCH:
            queue = pending.queue
            is_out_of_order = failure.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if is_out_of_order and pending.number < queue.acknowledged:
                return False  # A later batch is in the log: this sequence stays invalid.
            earlier = not first or any(other.base_sequence >= 0 and other.number < pending.number
                                       for other in queue.ready)
            if earlier and is_out_of_order:
                return True  # Fits after the retry of an earlier batch.
            if self.identity.transactional_id is not None:
                return False
            queue.needs_new_epoch = True
            # The broker may have accepted the batch under the old epoch; the retry would duplicate
            # it.
            self.cluster.notices.warn(
                ("refused", pending.topic, pending.partition, queue.epoch),
                REFUSAL, node_id, pending.topic, pending.partition, failure)
            return True
        return failure.retriable

    def _give_up(self, pending: Pending, failure: KafkaError) -> None:
        if self.identity is not None:
            if self.identity.transactional_id is not None:
                self.identity.note_failure(failure)
            elif pending.base_sequence >= 0:
                # Keeps "gapless sequences". Batches sent after one without a response keep their
                # sequences: all of them may be in the log.
                is_refused = failure.code > 0 and not failure.retriable
                pending.queue.needs_new_epoch |= is_refused
                pending.queue.is_unresolved |= not is_refused
        self.cluster.notices.warn(
            ("lost", pending.topic, type(failure)), "%s for %s-%d lost: %s",
            counted(pending.count, "record"), pending.topic, pending.partition, failure)
        self.counts.lost(pending.topic, pending.count)
        self.accumulator.complete(pending, error=failure)

    # Sequences.

    def _bump_epoch(self, queue: Queue) -> None:
        """Start a new epoch, in which the partition's sequences begin at 0 (KIP-360)."""
        assert self.identity is not None and not queue.in_flight
        self.identity.bump()
        queue.needs_new_epoch = queue.is_unresolved = False
        queue.producer_id = -1
        for pending in queue.ready:
            pending.base_sequence = -1

    def _stamp(self, queue: Queue, pending: Pending) -> None:
        identity = self.identity
        assert identity is not None
        if pending.base_sequence >= 0:
            return
        stale = (queue.producer_id, queue.epoch) != (identity.producer_id, identity.epoch)
        if stale and not queue.in_flight:
            if queue.producer_id != identity.producer_id:
                queue.known_until_s = 0.0
            queue.producer_id, queue.epoch = identity.producer_id, identity.epoch
            queue.next_sequence = queue.acknowledged_end = 0
            queue.acknowledged = -1.0
        pending.base_sequence = queue.next_sequence
        queue.next_sequence = (queue.next_sequence + pending.count) & SEQUENCE_MASK
        pending.batch.stamp(queue.producer_id, queue.epoch, pending.base_sequence,
                            identity.transactional_id is not None)


_TOPIC = messages.ProduceRequest.TopicProduceData
_PARTITION = messages.ProduceRequest.PartitionProduceData
