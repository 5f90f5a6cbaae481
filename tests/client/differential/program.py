"""Random programs for two clients: sends, faults, reads and changes of groups and topics.

Owns: nothing.
Invariants: a program depends only on its seed; a program has one correct outcome, except for
  records in flight during a fault: it flushes wherever another producer, a rejected record or a new
  topic would make the order of records depend on timing.
"""

import random
from typing import Any, NamedTuple

PARTITIONS = 2
PLAIN, IDEMPOTENT = "plain", "idempotent"
COMPACTED = "compacted"
TOPICS = ("first", "second", COMPACTED)
FAULTS = ("restart", "kill", "cut connections", "lose responses", "lose requests", "delay")
NO_EVENT, FORGET, RECREATE = "none", "forget producers", "recreate topic"
EVENTS_IN_FLIGHT = (NO_EVENT, FORGET, RECREATE)
FAULTS_IN_FLIGHT = ("none", "lose responses", "answer error")
# Errors that Produce, Fetch and OffsetCommit may return and that clients retry.
ERRORS = {
    "Produce": ("LEADER_NOT_AVAILABLE", "NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT",
                "NOT_ENOUGH_REPLICAS", "KAFKA_STORAGE_ERROR"),
    "Fetch": ("NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR"),
    "OffsetCommit": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR",
                     "COORDINATOR_NOT_AVAILABLE"),
}
STEPS_MIN, STEPS_MAX = 8, 20
MESSAGE_BYTES_MAX = 20_000
MEMBERS_MAX = 3


class Row(NamedTuple):
    """A record to send. number: unique in the program; the timestamp is derived from it."""

    number: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Step(NamedTuple):
    """action: the name of a method of Execution; arguments: its arguments."""

    action: str
    arguments: tuple[Any, ...] = ()


class Program(NamedTuple):
    """settings: for both clients, by librdkafka's names."""

    seed: int
    settings: dict[str, dict[str, Any]]
    steps: list[Step]


class _Writer:
    """Writes one program."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.steps: list[Step] = []
        self.number = 0
        self.producer: str | None = None  # of the records that are not flushed
        self.members = 0
        self.is_down = False

    def step(self, action: str, *arguments: Any) -> None:
        self.steps.append(Step(action, arguments))

    def flush(self) -> None:
        self.start_broker()
        self.step("flush")
        self.producer = None

    def start_broker(self) -> None:
        if self.is_down:
            self.step("start_broker")
            self.is_down = False

    # Steps of a program.

    def send(self) -> None:
        choose = self.random.choice
        producer = choose((PLAIN, IDEMPOTENT, IDEMPOTENT, IDEMPOTENT))
        if self.producer not in (None, producer):
            self.flush()
        self.producer = producer
        for _ in range(choose((1, 1, 2, 4))):
            topic = choose(TOPICS)
            rows = [self.row(topic) for _ in range(choose((1, 3, 10, 40)))]
            # Clients may distribute records without keys arbitrarily.
            is_keyed = all(row.key is not None for row in rows) and choose((True, False))
            self.step("send", producer, topic,
                      None if is_keyed else self.random.randrange(PARTITIONS), rows)

    def row(self, topic: str) -> Row:
        choose = self.random.choice
        self.number += 1
        key = choose((b"", b"a", b"key %d" % self.random.randrange(9), None))
        if topic == COMPACTED and key is None:
            key = b"k"
        value = choose((None, b"", b"%d" % self.number, bytes(500), self.random.randbytes(300)))
        headers = choose(([], [], [("h", b"1")], [("h", b""), ("h", None), ("é", b"\xff")]))
        return Row(self.number, key, value, headers)

    def send_refused(self) -> None:
        """Send a record that the broker rejects."""
        producer = self.random.choice((PLAIN, IDEMPOTENT))
        row = self.row(COMPACTED)
        topic = self.random.choice(TOPICS)
        if topic == COMPACTED:
            row = row._replace(key=None)
        else:
            row = row._replace(value=self.random.randbytes(MESSAGE_BYTES_MAX * 2))
        self.flush()
        self.step("send_refused", producer, topic, self.random.randrange(PARTITIONS), row)

    def disturb(self) -> None:
        self.start_broker()
        self.step("disturb", self.random.choice(FAULTS), self.random.choice((1, 1, 2, 3)))

    def stop_broker(self) -> None:
        if not self.is_down:
            self.step("stop_broker", self.random.choice((True, False)))
            self.is_down = True
            self.send()

    def forget_producers(self) -> None:
        self.flush()
        self.step("forget_producers")

    def disrupt_in_flight(self) -> None:
        """Cause a fault while several batches of an idempotent producer are unanswered."""
        choose = self.random.choice
        self.flush()
        topic = choose(TOPICS)
        self.step("hold_produce")
        for _ in range(choose((2, 5, 8))):
            self.step("send", IDEMPOTENT, topic, 0, [self.row(topic) for _ in range(5)])
        event = choose(EVENTS_IN_FLIGHT)
        self.step("disrupt_in_flight", topic, event, choose(FAULTS_IN_FLIGHT),
                  choose(ERRORS["Produce"]))
        if event == RECREATE:
            self.members = 0
        self.flush()

    def answer_error(self) -> None:
        """Let the broker reject consumer requests with a retriable error."""
        self.start_broker()
        api = self.random.choice(("Fetch", "OffsetCommit"))
        self.step("answer_error", self.random.choice(ERRORS[api]), api,
                  self.random.choice((1, 1, 2, 3)))

    def recreate_topic(self) -> None:
        self.flush()
        self.step("recreate_topic", self.random.choice(TOPICS))
        self.members = 0

    def delete_records(self) -> None:
        self.flush()
        self.step("delete_records", self.random.choice(TOPICS[:2]),
                  self.random.randrange(PARTITIONS), self.random.random())

    def read(self) -> None:
        self.flush()
        for _ in range(self.random.choice((1, 2, 4))):
            topic, partition = self.random.choice(TOPICS), self.random.randrange(PARTITIONS)
            if self.random.random() < 0.5:
                self.step("seek", topic, partition, self.random.choice(
                    (0.0, 1.0, 2.0, self.random.random(), self.random.random())))
            self.step("read", topic, partition, self.random.choice((1, 5, 1000)))
        if self.random.random() < 0.5:
            self.step("commit")

    def change_group(self) -> None:
        self.flush()
        if self.members:
            self.step("drain_group")
        if self.members < MEMBERS_MAX and (self.members == 0 or self.random.random() < 0.6):
            self.step("join")
            self.members += 1
        else:
            self.step("leave", self.random.randrange(self.members))
            self.members -= 1
        if self.members:
            self.step("drain_group")

    def write(self, group: bool) -> None:
        self.send()
        actions = {
            self.send: 8, self.disturb: 4, self.stop_broker: 1, self.read: 3,
            self.send_refused: 1, self.forget_producers: 1, self.recreate_topic: 1,
            self.disrupt_in_flight: 2, self.answer_error: 2,
            self.delete_records: 1, self.change_group: 2 if group else 0,
        }
        for action in self.random.choices(
                list(actions), list(actions.values()),
                k=self.random.randint(STEPS_MIN, STEPS_MAX)):
            action()
        self.flush()
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                self.step("read", topic, partition, 1_000_000)
        self.step("commit")
        if self.members:
            self.step("drain_group")


def written(seed: int) -> Program:
    """Return the program of a seed."""
    writer = _Writer(seed)
    choose = writer.random.choice
    producer = {"compression.type": choose(("none", "gzip", "snappy", "lz4", "zstd")),
                "batch.size": choose((500, 3000, 200_000)), "linger.ms": choose((0, 1, 5))}
    group = choose(({"partition.assignment.strategy": "range"},
                    {"partition.assignment.strategy": "cooperative-sticky"},
                    {"group.protocol": "consumer"}))
    writer.write(choose((True, False)))
    return Program(seed, {"producer": producer, "group": group}, writer.steps)
