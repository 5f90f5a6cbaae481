"""One interface for two clients: ours and confluent-kafka.

Owns: the client objects of one side of a program.
Invariants: every wait is bounded; both sides have the same settings as far as both clients support
  them.
"""

import contextlib
import itertools
import time
from typing import Any, NamedTuple

import confluent_kafka

from pylog.client import Consumer, Producer, TopicPartition
from pylog.client.errors import KafkaError, RebalanceNeededError, RetriableError
from tests.client.differential.program import IDEMPOTENT, PARTITIONS, Row

WAIT_S = 60.0
POLL_S = 0.02
COMMON = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
PRODUCER = {**COMMON, "acks": "all", "delivery.timeout.ms": 50_000, "retry.backoff.ms": 30,
            "retry.backoff.max.ms": 200}
CONSUMER = {**COMMON, "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False}
CLASSIC = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 200}


class Outcome(NamedTuple):
    """A client's report of a record. code: Kafka's error code, 0 if delivered."""

    code: int
    partition: int
    offset: int


class Read(NamedTuple):
    """A record as a consumer returned it, or as it is in the log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _producer_settings(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    # Without idempotence, order requires one request at a time.
    return {**PRODUCER, **given, "enable.idempotence": kind == IDEMPOTENT,
            "max.in.flight.requests.per.connection": 5 if kind == IDEMPOTENT else 1}


def _group_settings(given: dict[str, Any]) -> dict[str, Any]:
    return {**CONSUMER, **given, **({} if "group.protocol" in given else CLASSIC)}


class Player:
    """Executes the steps of a program. topics: the names on its side, by those in the program."""

    name: str

    def __init__(self, bootstrap: str, prefix: str, topics: dict[str, str],
                 settings: dict[str, dict[str, Any]]):
        self.bootstrap, self.prefix, self.topics, self.settings = (
            bootstrap, prefix, topics, settings)
        self.outcomes: dict[int, Outcome] = {}
        self.rebalances = 0
        self.members: list[Any] = []
        self._producers: dict[str, Any] = {}
        self._reader: Any = None
        self._numbers = itertools.count()

    @property
    def group(self) -> str:
        """Return the id of the members' group."""
        return f"{self.prefix}-group"

    def partitions(self) -> list[tuple[str, int]]:
        return [(topic, partition) for topic in self.topics.values()
                for partition in range(PARTITIONS)]

    def producer(self, kind: str) -> Any:
        if kind not in self._producers:
            self._producers[kind] = self.new_producer(kind)
        return self._producers[kind]

    def reader(self) -> Any:
        if self._reader is None:
            self._reader = self.new_reader()
        return self._reader

    def flush(self) -> None:
        for producer in self._producers.values():
            producer.flush(WAIT_S)

    def reopen_reader(self) -> bool:
        """Called after a topic was re-created. Returns True if the reader was replaced, at offset
        0.
        """
        return False

    def reopen_producer(self, kind: str) -> None:
        """Called after records of a producer failed."""

    def join(self) -> None:
        self.members.append(self.new_member(f"{self.prefix}-member-{next(self._numbers)}"))

    def leave(self, index: int) -> None:
        self.members.pop(index).close()

    def close(self) -> None:
        for consumer in [*self.members, *filter(None, [self._reader])]:
            consumer.close()
        self.members.clear()
        self.close_producers()

    def counted(self, *_: Any) -> None:
        """Callback for a new assignment."""
        self.rebalances += 1

    def assigned(self) -> list[tuple[str, int]]:
        """Return the partitions of all members."""
        return sorted((tp.topic, tp.partition) for member in self.members
                      for tp in member.assignment())

    # Different for each client.

    def new_producer(self, kind: str) -> Any: ...
    def new_reader(self) -> Any: ...
    def new_member(self, client_id: str) -> Any: ...
    def close_producers(self) -> None: ...
    def send(self, kind: str, topic: str, partition: int | None, row: Row,
             timestamp: int) -> None: ...
    def seek(self, topic: str, partition: int, offset: int) -> None: ...
    def set_paused(self, topic: str, partition: int, paused: bool) -> None: ...
    def poll(self, consumer: Any, count: int, wait_s: float
             ) -> list[tuple[str, int, Read]]: ...
    def position(self, topic: str, partition: int) -> int: ...
    def commit(self, consumer: Any) -> bool: ...


class PylogPlayer(Player):
    name = "pylog"

    def new_producer(self, kind: str) -> Producer:
        made = Producer({"bootstrap.servers": self.bootstrap,
                         **_producer_settings(kind, self.settings["producer"])})
        for topic in self.topics.values():
            made.partitions_for(topic)
        return made

    def new_reader(self) -> Consumer:
        made = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.prefix}-reader",
                         "fetch.max.wait.ms": 50, **CONSUMER})
        made.assign([TopicPartition(*tp) for tp in self.partitions()])
        made.pause(*made.assignment())
        return made

    def new_member(self, client_id: str) -> Consumer:
        made = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group,
                         "client.id": client_id, "fetch.max.wait.ms": 50,
                         **_group_settings(self.settings["group"])})
        made.subscribe(list(self.topics.values()), on_assign=self.counted,
                       on_revoke=self.counted, on_lost=self.counted)
        return made

    def close_producers(self) -> None:
        for producer in self._producers.values():
            producer.close(5)

    def send(self, kind: str, topic: str, partition: int | None, row: Row,
             timestamp: int) -> None:
        def note(metadata: Any, failure: Any) -> None:
            self.outcomes[row.number] = (
                Outcome(0, metadata.partition, metadata.offset) if failure is None
                else Outcome(failure.code, -1, -1))

        self.producer(kind).send(topic, row.value, row.key, partition=partition,
                                 timestamp=timestamp, headers=row.headers, on_delivery=note)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.reader().seek(TopicPartition(topic, partition), offset)

    def set_paused(self, topic: str, partition: int, paused: bool) -> None:
        reader = self.reader()
        (reader.pause if paused else reader.resume)(TopicPartition(topic, partition))

    def poll(self, consumer: Any, count: int, wait_s: float) -> list[tuple[str, int, Read]]:
        try:
            found = consumer.poll(wait_s, count)
        except RetriableError:
            return []
        return [(record.topic, record.partition,
                 Read(record.offset, record.timestamp, record.key, record.value,
                      tuple(record.headers))) for record in found]

    def position(self, topic: str, partition: int) -> int:
        return self.reader().position(TopicPartition(topic, partition), WAIT_S)

    def commit(self, consumer: Any) -> bool:
        """Return False if the group is rebalancing: poll, then retry."""
        try:
            consumer.commit(timeout=WAIT_S)
        except RebalanceNeededError:
            return False
        except KafkaError as failure:
            if failure.retriable:
                return False
            raise
        return True


class ConfluentPlayer(Player):
    name = "confluent-kafka"

    def new_producer(self, kind: str) -> Any:
        made = confluent_kafka.Producer({
            "bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random",
            "log_level": 0, **_producer_settings(kind, self.settings["producer"])})
        for topic in self.topics.values():
            made.list_topics(topic, WAIT_S)
        return made

    def new_reader(self) -> Any:
        made = confluent_kafka.Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": f"{self.prefix}-reader",
            "fetch.wait.max.ms": 50, "fetch.error.backoff.ms": 20, "log_level": 0, **CONSUMER})
        # Pass offsets, because librdkafka loses a seek that it accepts while it looks up the
        # committed offsets of a new assignment.
        made.assign([confluent_kafka.TopicPartition(*tp, 0) for tp in self.partitions()])
        made.pause([confluent_kafka.TopicPartition(*tp) for tp in self.partitions()])
        return made

    def new_member(self, client_id: str) -> Any:
        made = confluent_kafka.Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": self.group, "client.id": client_id,
            "fetch.wait.max.ms": 50, "fetch.error.backoff.ms": 20, "log_level": 0,
            **_group_settings(self.settings["group"])})
        made.subscribe(list(self.topics.values()), on_assign=self.counted,
                       on_revoke=self.counted, on_lost=self.counted)
        return made

    def close_producers(self) -> None:
        for producer in self._producers.values():
            producer.purge()
            producer.flush(5)

    def send(self, kind: str, topic: str, partition: int | None, row: Row,
             timestamp: int) -> None:
        def note(failure: Any, message: Any) -> None:
            self.outcomes[row.number] = (
                Outcome(0, message.partition(), message.offset()) if failure is None
                else Outcome(failure.code(), -1, -1))

        self.producer(kind).produce(
            topic, row.value, row.key, partition=-1 if partition is None else partition,
            timestamp=timestamp, headers=row.headers, on_delivery=note)

    def reopen_producer(self, kind: str) -> None:
        """librdkafka's idempotent producer stops at the first record that may be lost."""
        del self._producers[kind]

    def reopen_reader(self) -> bool:
        """librdkafka ignores a re-created topic's leader epochs while they are lower than those of
        the deleted topic, and its fetches fail until then.
        """
        if self._reader is None:
            return False
        self._reader.close()
        self._reader = None
        return True

    def seek(self, topic: str, partition: int, offset: int) -> None:
        end_s = time.monotonic() + WAIT_S
        while True:
            try:
                self.reader().seek(confluent_kafka.TopicPartition(topic, partition, offset))
                return
            except confluent_kafka.KafkaException:
                # Rejected until the fetcher of a new assignment has started.
                if time.monotonic() > end_s:
                    raise
                self.reader().poll(POLL_S)

    def set_paused(self, topic: str, partition: int, paused: bool) -> None:
        reader = self.reader()
        place = confluent_kafka.TopicPartition(topic, partition)
        (reader.pause if paused else reader.resume)([place])
        if not paused:
            # Any request wakes librdkafka's broker thread, which otherwise notices the resumed
            # partition only after its wait of 1 s.
            with contextlib.suppress(confluent_kafka.KafkaException):
                reader.get_watermark_offsets(place, POLL_S, cached=False)

    def poll(self, consumer: Any, count: int, wait_s: float) -> list[tuple[str, int, Read]]:
        found = []
        for message in consumer.consume(count, wait_s):
            failure = message.error()
            if failure is not None:
                assert not failure.fatal(), failure
                continue
            found.append((message.topic(), message.partition(), Read(
                message.offset(), message.timestamp()[1], message.key(), message.value(),
                tuple(message.headers() or ()))))
        return found

    def position(self, topic: str, partition: int) -> int:
        found, = self.reader().position([confluent_kafka.TopicPartition(topic, partition)])
        return found.offset

    def commit(self, consumer: Any) -> bool:
        # Explicit offsets, because librdkafka never commits a lower offset by itself.
        offsets = [tp for tp in consumer.position(consumer.assignment()) if tp.offset >= 0]
        try:
            if offsets:
                consumer.commit(offsets=offsets, asynchronous=False)
        except confluent_kafka.KafkaException as failure:
            code = failure.args[0].code()
            if code in _REBALANCES or failure.args[0].retriable():
                return False
            raise
        return True


_REBALANCES = {
    confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS,
    confluent_kafka.KafkaError.ILLEGAL_GENERATION, confluent_kafka.KafkaError.STALE_MEMBER_EPOCH,
    confluent_kafka.KafkaError._WAIT_COORD,
    confluent_kafka.KafkaError.NOT_COORDINATOR, confluent_kafka.KafkaError._TRANSPORT,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
