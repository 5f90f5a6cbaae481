"""Producers that write numbered records and record the results.

Owns: one thread for each writer, with its client.
Invariants: known outcomes: only acknowledged outcomes enter the history; a number is used once.
"""

import random
import threading
import time
from contextlib import suppress

import confluent_kafka

from pylog.client import Producer
from tests.chaos.history import Acknowledged, History, Partition, Sent, Value, Writer

DELIVERY_MS = 300_000
IN_FLIGHT_MAX = 100
PAYLOAD = "." * 60
TRACED = {"debug": "cgrp,protocol,broker"}


def encoded_value(value: Value) -> bytes:
    return f"{value.writer} {value.number} {PAYLOAD}".encode()


def value_of(data: bytes) -> Value:
    writer, number, _ = data.decode().split(" ", 2)
    return Value(writer, int(number))


class Client(threading.Thread):
    """A thread that works until it is stopped.

    `progress` counts acknowledged operations, `went_on_s` is the time of the last one, and
    `pause_s` the longest gap since the last reset. `asked` is the last operation. kind: clients of
    one kind send the same kinds of requests. is_abandoned: a replacement exists and completes its
    work. is_traced: librdkafka logs its requests and responses to stderr.
    """

    kind = "client"
    clock = staticmethod(time.monotonic)

    def __init__(self, name: str, history: History, bootstrap: str):
        super().__init__(name=name, daemon=True)
        self.history = history
        self.bootstrap = bootstrap
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self.is_abandoned = self.is_traced = False
        self.asked = "nothing"
        self.progress = 0
        self.pause_s = 0.0
        self.chance = random.Random(name)
        self.failures: list[str] = []  # Requests that failed or timed out.
        self.went_on_s = self._last_s = self.clock()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as failure:
            self.failure = failure

    def work(self) -> None:
        """Work until `stopping` is set."""
        raise AssertionError("each client has its own")

    def went_on(self) -> None:
        now_s = self.clock()
        self.pause_s = max(self.pause_s, now_s - self._last_s)
        self.went_on_s = self._last_s = now_s
        self.progress += 1

    def asks(self, what: str) -> None:
        """Record the next operation, which may hang."""
        self.asked = what

    def librdkafka(self) -> dict:
        """Return librdkafka's settings for its request log."""
        return {"client.id": self.name, **(TRACED if self.is_traced else {"log_level": 0})}

    def refused(self, what, error) -> None:
        """Record an operation that failed after all retries of the client."""
        self.failures.append(f"{what}: {error!r}")

    def reset(self) -> float:
        """Return the longest gap so far, including the current one, and start a new one."""
        now_s = self.clock()
        longest = max(self.pause_s, now_s - self._last_s)
        self.pause_s, self._last_s = 0.0, now_s
        return longest

    def end(self, wait_s: float) -> None:
        self.stopping.set()
        self.join(wait_s)
        if self.failure is not None:
            raise self.failure
        assert not self.is_alive(), f"{self.name} hangs"


class Sender(Client):
    """Write to the partitions of a topic in turn, `rate` records per second."""

    kind = "sender"

    def __init__(self, name, history, bootstrap, topic: str, partitions: int, rate: float,
                 settings: dict | None = None, promise: Writer | None = None):
        super().__init__(name, history, bootstrap)
        history.writers[name] = promise or Writer()
        self.settings = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 2,
                         **(settings or {})}
        self._topic, self._partitions = topic, partitions
        self._rate = rate
        self._in_flight = threading.Semaphore(IN_FLIGHT_MAX)

    def values(self):
        """Yield the next (value, place) when it is due."""
        number = 0
        while not self.stopping.is_set():
            if self._in_flight.acquire(timeout=0.1):
                place = Partition(self._topic, number % self._partitions)
                value = Value(self.name, number)
                self.history.add(Sent(value, place))
                self.asks(f"record {number} into {place.topic}-{place.partition}")
                yield value, place
                number += 1
                self.stopping.wait(self.chance.expovariate(self._rate))

    def acknowledged(self, value: Value, offset: int) -> None:
        self._in_flight.release()
        self.history.add(Acknowledged(value, offset))
        self.went_on()

    def failed(self, value: Value, error) -> None:
        """Handle a record of unknown outcome. Keeps known outcomes."""
        self._in_flight.release()
        self.refused(value.number, error)


class OwnSender(Sender):
    """A sender with pylog's client."""

    def work(self) -> None:
        with Producer({"delivery.timeout.ms": DELIVERY_MS, "client.id": self.name,
                       **self.settings}) as producer:
            for value, place in self.values():
                producer.send(place.topic, encoded_value(value), partition=place.partition) \
                    .add_done_callback(lambda done, value=value: self._done(value, done))

    def _done(self, value, delivery) -> None:
        error = delivery.exception()
        if error is None:
            self.acknowledged(value, delivery.result().offset)
        else:
            self.failed(value, error)


class LibrdkafkaSender(Sender):
    """A sender with librdkafka."""

    def work(self) -> None:
        producer = self._begun()
        for value, place in self.values():
            try:
                producer.produce(place.topic, encoded_value(value), partition=place.partition,
                                 on_delivery=lambda error, sent, value=value:
                                     self.failed(value, error) if error
                                     else self.acknowledged(value, _offset(sent)))
            except confluent_kafka.KafkaException as error:
                # After a fatal error all pending records fail, and a new producer with another id
                # continues.
                self.failed(value, error)
                producer = self._begun()
        self.asks("a flush")
        producer.flush(DELIVERY_MS / 1000)

    def _begun(self) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer({
            "delivery.timeout.ms": DELIVERY_MS, "enable.idempotence": True,
            "topic.metadata.refresh.interval.ms": 5000, "socket.timeout.ms": 10_000,
            **self.settings, **self.librdkafka()})
        threading.Thread(target=self._poll, args=(producer,), daemon=True).start()
        return producer

    def _poll(self, producer) -> None:
        while not self.stopping.is_set():
            # produce() reports fatal errors as well.
            with suppress(confluent_kafka.KafkaException):
                producer.poll(0.1)


def _offset(sent) -> int:
    """Return a record's offset, or -1 for a retry whose first acknowledgement was lost."""
    found = sent.offset()
    return -1 if found is None else found
