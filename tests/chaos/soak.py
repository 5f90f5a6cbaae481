"""One run: machines, clients, faults in turn, rest, and the verdict.

Owns: the clients.
Called by: tests.chaos.__main__.
Invariants: (1) what happens to the machines follows from the seed; (2) one fault at a time, and
  after each everything is in sync again before the next.
"""

import hashlib
import random
import time
from collections import Counter
from pathlib import Path

import confluent_kafka

from pylog.client import Admin, KafkaError, NewTopic
from tests.chaos.admins import Maker, Mover
from tests.chaos.faults import FAULTS
from tests.chaos.history import Final, History, Place, problems
from tests.chaos.machines import Machines
from tests.chaos.readers import LibrdkafkaMember, Member, OwnMember, Reader
from tests.chaos.transactors import Copier, LibrdkafkaTransactor, OwnTransactor
from tests.chaos.writers import LibrdkafkaSender, OwnSender, Sender, value_of

TOPICS = {"orders": 4, "moved": 3, "accounts": 2, "copies": 4}
MOVED = "moved"
RECOVERY_S = 240.0
END_S = 480.0
# A record that is not acknowledged within this is one that failed.
STRICT_MS = 30_000
TOLD_MAX = 5
READERS = (Reader, Member, Copier)


class Stuck(Exception):
    """Something did not go on, though nothing stood in its way."""


class Soak:
    """seed: of what happens. say: takes a line. strict: whatever a client is refused after all its
    tries, or not answered in time, is a problem; nothing is moved then. lenient: nor is it one that
    a sender was refused something: a Kafka that was killed knows of a producer only its last batch,
    and ends one that repeats the batch before it.
    """

    def __init__(self, machines: Machines, seed: int, say=print, strict: bool = False,
                 lenient: bool = False):
        self.machines = machines
        self._strict, self._lenient = strict, lenient
        self.history = History()
        self._chance = random.Random(seed)
        self._say = say
        self._admin = Admin({"bootstrap.servers": machines.bootstrap})
        self._clients: list = []

    def run(self, seconds: float, faults: list[str]) -> list[str]:
        """The problems. Raises Stuck."""
        self._start()
        end_s = time.monotonic() + seconds
        turns = []
        while time.monotonic() < end_s:
            turns = turns or self._chance.sample(faults, len(faults))
            self._turn(turns.pop())
        return self._verdict()

    def roll(self, seconds: float) -> list[str]:
        """As run(): all machines are restarted, one after the other, again and again."""
        self._start()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            for machine in self._chance.sample(list(self.machines.of.values()),
                                               len(self.machines.of)):
                self._restart(machine)
        return self._verdict()

    def _start(self) -> None:
        self._admin.create_topics([NewTopic(name, count, 3) for name, count in TOPICS.items()],
                                  timeout=RECOVERY_S)
        self._recovered("the start")
        self._begin()
        self._recovered("the clients' start")
        for client in self._clients:
            # Until their groups were there they may have been refused.
            client.failures.clear()

    def _verdict(self) -> list[str]:
        clients = self._clients
        for client in clients:
            for failure, count in Counter(client.failures).most_common(TOLD_MAX):
                self._say(f"{client.name} was refused {count} times: {failure}")
        failures = [f"{client.name} was refused {len(client.failures)}: {client.failures[:3]}"
                    for client in clients if client.failures
                    and (self._strict or isinstance(client, Sender) and not self._lenient)]
        self._end()
        return failures + problems(self.history, self._finals(), self._existing())

    def _begin(self) -> None:
        given = self.history, self.machines.bootstrap
        settings = {"delivery.timeout.ms": STRICT_MS, "request.timeout.ms": STRICT_MS // 3} \
            if self._strict else {}
        senders = [
            OwnSender("own", *given, "orders", 4, 60, settings),
            LibrdkafkaSender("librdkafka", *given, "orders", 4, 60, settings),
            OwnSender("own-moved", *given, "moved", 3, 30, settings),
            LibrdkafkaSender("librdkafka-moved", *given, "moved", 3, 30, settings),
            OwnTransactor("own-transactor", *given, "accounts", 2, 5),
            LibrdkafkaTransactor("librdkafka-transactor", *given, "accounts", 2, 5)]
        self._clients = [
            *senders,
            Reader("reader", *given, TOPICS, False), Reader("committed", *given, TOPICS, True),
            *(OwnMember("own-group", number, *given, ["orders", "accounts"])
              for number in range(2)),
            *(LibrdkafkaMember("librdkafka-group", number, *given, ["moved", "accounts"])
              for number in range(2)),
            Copier("copier", *given, "orders", "copies", ["own", "librdkafka"]),
            # As in Kafka, a broker that stops gets no replicas.
            Maker("maker", *given, 1, len(self.machines.of) - self._strict)]
        if not self._strict:
            self._clients.append(
                Mover("mover", *given, MOVED, TOPICS[MOVED], self.machines.of, 1))
        for client in self._clients:
            client.start()

    def _turn(self, name: str) -> None:
        for client in self._clients:
            client.reset()
        began_s = time.monotonic()
        with FAULTS[name](self.machines, self._chance) as sentence:
            self._say(f"{name}: {sentence}")
            time.sleep(self._chance.uniform(0.5, 8))
            held = self._longest()
        healed_s = time.monotonic()
        self._recovered(sentence)
        now_s = time.monotonic()
        self._say(f"  {healed_s - began_s:.1f} s, well again after {now_s - healed_s:.1f} s; "
                  f"longest pauses {held}; afterwards {self._longest()}")

    def _restart(self, machine) -> None:
        for client in self._clients:
            client.reset()
        began_s = time.monotonic()
        assert machine.stop() == 0, machine.tail()
        stopped_s = time.monotonic()
        machine.spawn()
        machine.await_ready()
        self._recovered(f"the restart of {machine.number}")
        self._say(f"{machine.number} is stopped in {stopped_s - began_s:.1f} s, and back after "
                  f"{time.monotonic() - stopped_s:.1f} s; longest pauses {self._longest()}")

    def _longest(self) -> str:
        found = sorted(((client.reset(), client.name) for client in self._clients), reverse=True)
        return ", ".join(f"{name} {pause:.1f}" for pause, name in found if pause > 1)

    def _recovered(self, what: str) -> None:
        """Returns once every client went on and every replica is in sync."""
        before = {client: client.progress for client in self._clients}
        end_s = time.monotonic() + RECOVERY_S
        while True:
            dead = [f"{client.name}: {client.failure!r}" for client in self._clients
                    if client.failure is not None] + [
                        f"{number} ended: {machine.tail()}"
                        for number, machine in self.machines.of.items() if not machine.alive()]
            if dead:
                raise Stuck(f"after {what}: {dead}")
            stuck = self._stuck(before)
            if not stuck:
                return
            if time.monotonic() > end_s:
                raise Stuck(f"{RECOVERY_S} s after {what}: {stuck}")
            time.sleep(0.1)

    def _stuck(self, before: dict) -> list[str]:
        """A group's progress is that of any of its members."""
        groups: dict[str, bool] = {}
        for client, progress in before.items():
            name = client.name.partition("/")[0]
            groups[name] = groups.get(name, False) or client.progress > progress
        return [name for name, went_on in groups.items() if not went_on] or self._out_of_sync()

    def _out_of_sync(self) -> list[str]:
        # What is moved all the time is in sync at the end.
        asked = [name for name in TOPICS if name != MOVED or not self._clients]
        try:
            topics = self._admin.describe_topics(asked, timeout=5)
            moves = {} if self._clients else self._admin.list_partition_reassignments(timeout=5)
        except KafkaError as error:
            return [f"{error!r}"]
        return [f"{part.topic}-{part.partition}: {part}" for topic in topics.values()
                for part in topic.partitions.values()
                if set(part.isr) != set(part.replicas)] + [f"{move}" for move in moves]

    def _end(self) -> None:
        self._say("the end: waiting for clients and groups")
        for client in self._clients:
            if not isinstance(client, READERS):
                client.stopping.set()
        # Readers last: what they read was written.
        for client in sorted(self._clients, key=lambda one: isinstance(one, READERS)):
            client.end(END_S)
        self._clients = []
        self._recovered("the end")

    def told(self) -> str:
        """How much there was to judge."""
        kinds = {}
        for event in self.history.events:
            kinds[type(event).__name__] = kinds.get(type(event).__name__, 0) + 1
        return ", ".join(f"{count} {name}" for name, count in kinds.items())

    def _existing(self) -> set[str]:
        return set(self._admin.list_topics(timeout=RECOVERY_S))

    def _finals(self) -> dict[Place, Final]:
        finals = {}
        for topic, count in TOPICS.items():
            for partition in range(count):
                place = Place(topic, partition)
                records = read_whole(self.machines.bootstrap, place, "read_uncommitted")
                visible = read_whole(self.machines.bootstrap, place, "read_committed")
                finals[place] = Final(records, set(visible), self._digests(place))
        return finals

    def _digests(self, place: Place) -> dict[int, str]:
        end_s = time.monotonic() + RECOVERY_S
        while True:
            found = {number: digest for number, machine in self.machines.of.items()
                     if (digest := digest_of(machine.data_dir, place)) is not None}
            if len(set(found.values())) == 1 or time.monotonic() > end_s:
                return found
            time.sleep(0.5)


def read_whole(bootstrap: str, place: Place, isolation: str) -> dict:
    """offset -> value, read by librdkafka from the beginning to the end."""
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": bootstrap, "group.id": "final", "enable.auto.commit": False,
        "isolation.level": isolation, "enable.partition.eof": True, "log_level": 0,
        "auto.offset.reset": "error"})
    consumer.assign([confluent_kafka.TopicPartition(place.topic, place.partition, 0)])
    found = {}
    try:
        while True:
            for message in consumer.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    found[message.offset()] = value_of(message.value())
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return found
                elif not error.retriable():
                    raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()


def digest_of(data: Path, place: Place) -> str | None:
    """Of the records of one replica as they lie on the disk, without room that was taken ahead;
    None: it is not there."""
    folder = data / f"{place.topic}-{place.partition}"
    if not folder.is_dir():
        return None
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.log")):
        found.update(path.name.encode() + path.read_bytes().rstrip(b"\0"))
    return found.hexdigest()
