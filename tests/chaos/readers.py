"""Consumers, single and in groups, that record what they received.

Owns: one thread for each reader, with its client.
Invariants: records enter the history before their offsets are committed; sessions: a new session
  starts whenever a consumer fetches its positions again.
"""

import time

import confluent_kafka

from pylog.client import Consumer, KafkaError, TopicPartition
from tests.chaos.history import Committed, History, Partition, Read, ObservedPosition
from tests.chaos.writers import Client, value_of

POLL_S = 0.3
COMMIT_S = 30.0


def polled(consumer) -> list:
    """Return records, or none if the cluster is unavailable for longer than the call's timeout."""
    try:
        return consumer.poll(POLL_S)
    except KafkaError as error:
        if not error.retriable:
            raise
        return []


class Reader(Client):
    """Read whole topics from their beginnings with pylog's client. topics: name -> partition count.
    """

    kind = "reader"

    def __init__(self, name, history: History, bootstrap, topics: dict[str, int],
                 committed_only: bool):
        super().__init__(name, history, bootstrap)
        self._topics = topics
        self._committed_only = committed_only

    def work(self) -> None:
        isolation = "read_committed" if self._committed_only else "read_uncommitted"
        with Consumer({"bootstrap.servers": self.bootstrap, "auto.offset.reset": "none",
                       "isolation.level": isolation}) as consumer:
            parts = [TopicPartition(topic, number) for topic, count in self._topics.items()
                     for number in range(count)]
            consumer.assign(parts)
            for part in parts:
                consumer.seek(part, 0)
            self.asks("polls")
            while not self.stopping.is_set():
                for record in polled(consumer):
                    self.history.add(Read(
                        self.name, 0, Partition(record.topic, record.partition), record.offset,
                        value_of(record.value), self._committed_only))
                    self.went_on()


class Member(Client):
    """A group member that reads committed records and commits everything it has read."""

    kind = "member"

    def __init__(self, group: str, number, history: History, bootstrap, topics: list):
        super().__init__(f"{group}/{number}", history, bootstrap)
        self.group = group
        self._topics = topics
        self._session = 0
        self.settings = {
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "isolation.level": "read_committed",
            "session.timeout.ms": 10_000,
            # A hung member blocks the rest of its group for this time.
            "max.poll.interval.ms": 60_000}

    def saw(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        self.history.add(Read(self.name, self._session, Partition(topic, partition), offset,
                              value_of(value), True))

    def moved(self) -> None:
        """Start a new session: after a rebalance, positions are the committed offsets. Keeps
        sessions.
        """
        self._session += 1

    def committed(self, offsets: dict) -> None:
        """Record acknowledged offsets. offsets: (topic, partition) -> offset."""
        now_s = time.monotonic()
        for (topic, partition), offset in offsets.items():
            self.history.add(Committed(self.group, Partition(topic, partition), offset, now_s))
        self.went_on()

    def record_positions(self, offsets: dict, asked_s: float) -> None:
        for (topic, partition), offset in offsets.items():
            self.history.add(ObservedPosition(
                self.group, Partition(topic, partition), offset, asked_s))


class OwnMember(Member):
    """A member with pylog's client."""

    def work(self) -> None:
        with Consumer(self.settings) as consumer:
            consumer.subscribe(self._topics, on_assign=lambda parts: self.moved())
            while not self.stopping.is_set():
                self.asks("a poll")
                records = polled(consumer)
                for record in records:
                    self.saw(record.topic, record.partition, record.offset, record.value)
                if not records:
                    continue
                ends = {(record.topic, record.partition): record.offset + 1 for record in records}
                self.asks(f"a commit of {_shown(ends)}")
                try:
                    consumer.commit({TopicPartition(*part): end for part, end in ends.items()},
                                    COMMIT_S)
                except KafkaError as error:
                    self.refused("a commit", error)
                    continue
                self.committed(ends)
                self._ask(consumer)

    def _ask(self, consumer) -> None:
        if self.chance.random() > 0.05:
            return
        self.asks("the group's positions")
        asked_s = time.monotonic()
        try:
            found = consumer.committed(consumer.assignment(), COMMIT_S)
        except KafkaError as error:
            self.refused("a look at positions", error)
            return
        self.record_positions({tuple(part): entry.offset for part, entry in found.items()
                   if entry is not None}, asked_s)


class LibrdkafkaMember(Member):
    """A member with librdkafka."""

    def work(self) -> None:
        consumer = confluent_kafka.Consumer({**self.settings, **self.librdkafka()})
        consumer.subscribe(self._topics, on_assign=lambda *_: self.moved())
        while not self.stopping.is_set():
            self.asks("a poll")
            found = [message for message in consumer.consume(100, POLL_S) if not message.error()]
            for message in found:
                self.saw(message.topic(), message.partition(), message.offset(), message.value())
            if found:
                self._commit(consumer, found)
        self.asks("a close")
        consumer.close()

    def _commit(self, consumer, messages) -> None:
        ends = {(message.topic(), message.partition()): message.offset() + 1
                for message in messages}
        self.asks(f"a synchronous commit of {_shown(ends)}")
        try:
            answers = consumer.commit(offsets=[
                confluent_kafka.TopicPartition(*part, end) for part, end in ends.items()],
                asynchronous=False)
        except confluent_kafka.KafkaException as error:
            self.refused("a commit", error)
            return
        self.committed({(row.topic, row.partition): ends[row.topic, row.partition]
                        for row in answers if row.error is None})


def _shown(ends: dict) -> str:
    return ", ".join(f"{topic}-{partition} at {end}" for (topic, partition), end in ends.items())
