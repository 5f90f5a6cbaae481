"""Transactional producers that record the outcome of each transaction.

Owns: one thread for each producer, with its client.
Invariants: only acknowledged outcomes enter the history; open transactions are aborted when their
  client stops.
"""

import time
from contextlib import suppress

import confluent_kafka

from pylog.client import Consumer, KafkaError, Producer, TopicPartition
from tests.chaos.history import Copied, Ended, Partition, Sent, Value, Writer, copy_of
from tests.chaos.writers import Client, encoded_value, value_of

TRANSACTION_MS = 60_000
POLL_S = 0.3
SOCKET_MS = 10_000  # A dead machine never responds, and librdkafka's default timeout is a minute.
TRIES = 3
ERRORS = (KafkaError, confluent_kafka.KafkaException)


class Transactor(Client):
    """Run transactions over all partitions of a topic, and abort one in five.

    identity: the transactional id, by default the name.
    """

    kind = "transactor"
    records_max = 8

    def __init__(self, name, history, bootstrap, topic: str, partitions: int, rate: float,
                 identity: str = ""):
        super().__init__(name, history, bootstrap)
        history.writers[name] = Writer()
        self._topic, self._partitions = topic, partitions
        self._rate = rate
        self._number = self._count = 0
        self.settings = {
            "bootstrap.servers": bootstrap, "transactional.id": identity or name, "linger.ms": 2,
            "transaction.timeout.ms": TRANSACTION_MS}

    def work(self) -> None:
        producer = None
        while not self.stopping.is_set():
            try:
                if producer is None:
                    self.asks("its producer id")
                    producer = self.begun()
                self._transaction(producer)
            except ERRORS as error:
                self.refused("a transaction", error)
                producer = self._given_up(producer)
            self.stopping.wait(self.chance.expovariate(self._rate))
        if producer is not None:
            self.closed(producer)
        if self.is_abandoned:
            return
        self.asks("its producer id")
        # Abort the open transaction of the previous client.
        self.closed(self.begun())

    def begun(self):
        """Return a producer with this client's transactional id."""
        raise AssertionError("each client has its own")

    def sent(self, producer, value: Value, place: Partition) -> None:
        raise AssertionError("each client has its own")

    def closed(self, producer) -> None:
        raise AssertionError("each client has its own")

    def _transaction(self, producer) -> None:
        name = f"{self.name}-{self._count}"
        self._count += 1
        producer.begin_transaction()
        for _ in range(self.chance.randint(1, self.records_max)):
            place = Partition(self._topic, self._number % self._partitions)
            value = Value(self.name, self._number)
            self._number += 1
            self.history.add(Sent(value, place, name))
            self.asks(f"record {value.number} of {name}")
            self.sent(producer, value, place)
        is_committed = self.chance.random() < 0.8
        self.asks(f"the end of {name}")
        if is_committed:
            self.committed(producer)
        else:
            producer.flush(TRANSACTION_MS / 1000)
            producer.abort_transaction(TRANSACTION_MS / 1000)
        self.history.add(Ended(name, is_committed))
        self.went_on()

    def committed(self, producer) -> None:
        producer.commit_transaction(TRANSACTION_MS / 1000)

    def _given_up(self, producer):
        """Handle a failed transaction of unknown outcome. Return the next producer, or None."""
        if producer is None:
            return None
        self.asks("an abort")
        try:
            producer.abort_transaction(TRANSACTION_MS / 1000)
            return producer
        except ERRORS:
            self.closed(producer)
            return None


class OwnTransactor(Transactor):
    """A transactor with pylog's client."""

    def begun(self):
        return own_transactional(self.settings)

    def sent(self, producer, value, place) -> None:
        producer.send(place.topic, encoded_value(value), partition=place.partition)

    def closed(self, producer) -> None:
        producer.close(0)


class LibrdkafkaTransactor(Transactor):
    """A transactor with librdkafka."""

    def begun(self):
        producer = confluent_kafka.Producer({
            **self.settings, "socket.timeout.ms": SOCKET_MS, **self.librdkafka()})
        producer.init_transactions(TRANSACTION_MS / 1000)
        return producer

    def sent(self, producer, value, place) -> None:
        producer.produce(place.topic, encoded_value(value), partition=place.partition)

    def committed(self, producer) -> None:
        """Commit. A commit that timed out must be retried, not aborted."""
        for _ in range(TRIES):
            try:
                producer.commit_transaction(TRANSACTION_MS / 1000)
                return
            except confluent_kafka.KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
                error = failure
        raise error

    def closed(self, producer) -> None:
        with suppress(confluent_kafka.KafkaException):
            producer.purge()
            producer.poll(0)


class Copier(Client):
    """Copy a topic to another, with records and offsets in one transaction.

    identity: the group's id and the transactional id, by default the name.
    """

    kind = "transactor"

    def __init__(self, name, history, bootstrap, source: str, goal: str, identity: str = ""):
        super().__init__(name, history, bootstrap)
        self._identity = identity or name
        self._source, self._goal = source, goal
        self._count = 0

    def work(self) -> None:
        with Consumer({"bootstrap.servers": self.bootstrap, "group.id": self._identity,
                       "auto.offset.reset": "earliest", "enable.auto.commit": False,
                       "isolation.level": "read_committed"}) as consumer:
            consumer.subscribe([self._source])
            producer = None
            while not self.stopping.is_set():
                try:
                    producer = producer or self._begun()
                    self._copy(consumer, producer)
                except KafkaError as error:
                    self.refused("a copy", error)
                    producer = self._given_up(producer)
                    self._go_back(consumer)
            if producer is not None:
                producer.close(0)
            if self.is_abandoned:
                return
            self.asks("its producer id")
            self._begun().close(0)
            self.asks("the group's positions")
            self._tell(consumer)

    def _begun(self) -> Producer:
        return own_transactional({"bootstrap.servers": self.bootstrap, "linger.ms": 2,
                                  "transactional.id": self._identity,
                                  "transaction.timeout.ms": TRANSACTION_MS})

    def _copy(self, consumer, producer) -> None:
        self.asks("a poll")
        records = consumer.poll(POLL_S, 200)
        if not records:
            return
        name = f"{self.name}-{self._count}"
        self._count += 1
        producer.begin_transaction()
        for record in records:
            writer, number = value_of(record.value)
            self.history.writers.setdefault(copy_of(writer), Writer())
            value = Value(copy_of(writer), number)
            # A record whose transaction was aborted is copied again in another one.
            self.history.add(Sent(value, Partition(self._goal, record.partition), name))
            producer.send(self._goal, encoded_value(value), partition=record.partition)
        ends = {TopicPartition(record.topic, record.partition): record.offset + 1
                for record in records}
        self.asks(f"the positions and the end of {name}")
        producer.send_offsets_to_transaction(ends, consumer.group_metadata())
        producer.commit_transaction(TRANSACTION_MS / 1000)
        self.history.add(Ended(name, True))
        self.went_on()

    def _given_up(self, producer):
        if producer is None:
            return None
        self.asks("an abort")
        try:
            producer.abort_transaction(TRANSACTION_MS / 1000)
            return producer
        except KafkaError:
            producer.close(0)
            return None

    def _go_back(self, consumer) -> None:
        """Seek to the committed offsets, once they are available."""
        self.asks("the group's positions")
        while not self.stopping.is_set():
            try:
                parts = consumer.assignment()
                for part, entry in consumer.committed(parts, TRANSACTION_MS / 1000).items():
                    consumer.seek(part, entry.offset if entry and entry.offset >= 0 else 0)
                return
            except KafkaError:
                time.sleep(POLL_S)

    def _tell(self, consumer) -> None:
        for part, entry in consumer.committed(consumer.assignment(), TRANSACTION_MS / 1000).items():
            if entry is not None and entry.offset >= 0:
                self.history.add(Copied(
                    Partition(*part), Partition(self._goal, part[1]), entry.offset))


def own_transactional(settings: dict) -> Producer:
    """Return one of pylog's producers with its own transactional id. Raises KafkaError."""
    producer = Producer(settings)
    try:
        producer.init_transactions(TRANSACTION_MS / 1000)
    except KafkaError:
        producer.close(0)
        raise
    return producer
