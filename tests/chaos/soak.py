"""One run: machines, clients, a sequence of faults, a pause, and the verdict.

Owns: the clients.
Invariants: the seed determines the faults; one fault at a time, and all replicas are in sync again
  before the next; verdict: every run ends with one, because a stalled component ends the faults, a
  check that cannot run is a problem, and every wait is bounded.
"""

import hashlib
import random
import time
import traceback
from collections import Counter
from pathlib import Path

import confluent_kafka

from pylog.client import Admin, KafkaError, NewTopic
from tests.chaos.admins import Maker, Mover
from tests.chaos.faults import FAULTS
from tests.chaos.history import Final, Finding, History, Partition, findings
from tests.chaos.machines import Machines
from tests.chaos.readers import LibrdkafkaMember, Member, OwnMember, Reader
from tests.chaos.traces import CapturedLog, Trace
from tests.chaos.transactors import Copier, LibrdkafkaTransactor, OwnTransactor
from tests.chaos.watch import Crew, Role
from tests.chaos.writers import LibrdkafkaSender, OwnSender, Sender, value_of

TOPICS = {"orders": 4, "moved": 3, "accounts": 2, "copies": 4}
MOVED = "moved"
RECOVERY_S = 240.0
END_S = 480.0
# A record without acknowledgement within this time has failed.
STRICT_MS = 30_000
TOLD_MAX = 5
READ_S = 120.0
READERS = (Reader, Member, Copier)


class Stuck(Exception):
    """A component makes no progress although no fault is active."""


class Soak:
    """A run.

    seed: determines the faults. say: prints a line. strict: a request that fails after all retries
    or times out is a problem; no partition is reassigned then. lenient: failed sends are no
    problem: a killed Kafka broker restores only the last batch of each producer and rejects a retry
    of the batch before it. traces: logs of librdkafka's clients, None if they do not log. theirs:
    the problems attributed to Kafka; run() returns all others.
    """

    def __init__(self, machines: Machines, seed: int, say=print, strict: bool = False,
                 lenient: bool = False, traces: CapturedLog | None = None):
        self.machines = machines
        self._strict, self._lenient, self._traces = strict, lenient, traces
        self.history = History()
        self._chance = random.Random(seed)
        self._say = say
        self._admin = Admin({"bootstrap.servers": machines.bootstrap})
        self._crew = Crew([], say)
        self._found: list[str] = []
        self.theirs: list[str] = []
        self.is_interrupted = False

    def run(self, seconds: float, faults: list[str]) -> list[str]:
        """Inject faults and return the problems."""
        turns: list[str] = []

        def turn() -> None:
            if not turns:
                turns.extend(self._chance.sample(faults, len(faults)))
            self._turn(turns.pop())

        return self._run_with_verdict(seconds, turn)

    def roll(self, seconds: float) -> list[str]:
        """Restart the machines one after the other for the given time and return the problems."""
        def turn() -> None:
            for machine in self._chance.sample(list(self.machines.of.values()),
                                               len(self.machines.of)):
                self._restart(machine)

        return self._run_with_verdict(seconds, turn)

    def _run_with_verdict(self, seconds: float, turn) -> list[str]:
        is_well = self._tried("the start", self._start)
        end_s = time.monotonic() + seconds
        while is_well and time.monotonic() < end_s and not self.is_interrupted:
            is_well = self._tried("a fault", turn)
        if not is_well:
            self._tried("bringing all machines back", self._mended)
        try:
            return self._verdict()
        finally:
            self._admin.close()

    def _tried(self, what: str, step) -> bool:
        """Run a step and return True if it succeeded. An error becomes a problem. Keeps the
        verdict.
        """
        try:
            step()
        except Exception as failure:
            self._found.append(f"{what}: {failure!r}")
            self._say(f"FAILED {what}: {traceback.format_exc()}")
            return False
        return True

    def _mended(self) -> None:
        self.machines.heal()
        self._revived()
        self._recovered("the failure")

    def _revived(self) -> None:
        """Restart machines that exited by themselves, and report each as a problem."""
        for number, machine in self.machines.of.items():
            if not machine.alive():
                self._found.append(f"{number} ended: {machine.tail()}")
                machine.spawn()
                machine.await_ready()

    def _start(self) -> None:
        self._admin.create_topics([NewTopic(name, count, 3) for name, count in TOPICS.items()],
                                  timeout=RECOVERY_S)
        self._recovered("the start")
        self._crew = Crew(self._roles(), self._say, self._trace)
        self._crew.start()
        self._recovered("the clients' start")
        for client in self._crew.clients:
            # Requests may fail until the groups exist.
            client.failures.clear()

    def _trace(self, name: str) -> Trace | None:
        return self._traces.of(name, time.time()) if self._traces else None

    def _verdict(self) -> list[str]:
        self._say("the end: waiting for clients and groups")
        clients = self._crew.clients
        self._crew.end(END_S, lambda client: isinstance(client, READERS))
        for client in clients:
            for failure, count in Counter(client.failures).most_common(TOLD_MAX):
                self._say(f"{client.name} was refused {count} times: {failure}")
        refused = [f"{client.name} was refused {len(client.failures)}: {client.failures[:3]}"
                   for client in clients if client.failures
                   and (self._strict or isinstance(client, Sender) and not self._lenient)]
        self._tried("the end", lambda: self._recovered("the end"))
        hung, own = self._crew.verdict()
        for sentence in own:
            self._say(f"its own fault: {sentence}")
        finals = self._finals()
        found = findings(self.history, finals, self._existing())
        ours: list[Finding] = []
        if not self._tried("whose it is", lambda: ours.extend(self._split(found, finals))):
            ours = found
        return [*refused, *hung, *map(str, ours), *self._found]

    def _split(self, found: list[Finding], finals: dict[Partition, Final]) -> list[Finding]:
        """Return findings without those attributed to Kafka, which are logged."""
        refusals = self._traces.refusals if self._traces else lambda name: []
        causes = self.machines.causes(self.history, finals, refusals)
        if causes is None:
            return found
        ours, theirs = causes.split(found)
        self.theirs = [str(finding) for finding in theirs]
        for sentence in self.theirs:
            self._say(f"Kafka's own: {sentence}")
        return ours

    def _roles(self) -> list[Role]:
        """Return the roles of clients.

        A replacement has a new name but keeps the transactional id or group.
        """
        given = self.history, self.machines.bootstrap
        settings = {"delivery.timeout.ms": STRICT_MS, "request.timeout.ms": STRICT_MS // 3} \
            if self._strict else {}

        def role(name: str, kind, *more) -> Role:
            def make(made: str):
                client = kind(made, *given, *more)
                client.is_traced = self._traces is not None
                return client
            return Role(name, make)

        def member(group: str, number: int, kind, topics: list) -> Role:
            return role(f"{group}/{number}", lambda made, *rest: kind(
                *made.split("/", 1), *rest), topics)

        roles = [
            role("own", OwnSender, "orders", 4, 60, settings),
            role("librdkafka", LibrdkafkaSender, "orders", 4, 60, settings),
            role("own-moved", OwnSender, "moved", 3, 30, settings),
            role("librdkafka-moved", LibrdkafkaSender, "moved", 3, 30, settings),
            role("own-transactor", OwnTransactor, "accounts", 2, 5, "own-transactor"),
            role("librdkafka-transactor", LibrdkafkaTransactor, "accounts", 2, 5,
                 "librdkafka-transactor"),
            role("reader", Reader, TOPICS, False), role("committed", Reader, TOPICS, True),
            *(member("own-group", number, OwnMember, ["orders", "accounts"])
              for number in range(2)),
            *(member("librdkafka-group", number, LibrdkafkaMember, ["moved", "accounts"])
              for number in range(2)),
            role("copier", Copier, "orders", "copies", "copier"),
            # As in Kafka, a broker in shutdown gets no replicas.
            role("maker", Maker, 1, len(self.machines.of) - self._strict)]
        if not self._strict:
            roles.append(role("mover", Mover, MOVED, TOPICS[MOVED], self.machines.of, 1))
        return roles

    def _turn(self, name: str) -> None:
        for client in self._crew.clients:
            client.reset()
        began_s = time.monotonic()
        with FAULTS[name](self.machines, self._chance) as sentence:
            self._say(f"{name}: {sentence}")
            self._pause(self._chance.uniform(0.5, 8))
            held = self._longest()
        healed_s = time.monotonic()
        self._recovered(sentence)
        now_s = time.monotonic()
        self._say(f"  {healed_s - began_s:.1f} s, well again after {now_s - healed_s:.1f} s; "
                  f"longest pauses {held}; afterwards {self._longest()}")

    def _pause(self, seconds: float) -> None:
        """Wait, but end early if the run is interrupted."""
        end_s = time.monotonic() + seconds
        while not self.is_interrupted and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.2))

    def _restart(self, machine) -> None:
        for client in self._crew.clients:
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
        found = sorted(((client.reset(), client.name) for client in self._crew.clients),
                       reverse=True)
        return ", ".join(f"{name} {pause:.1f}" for pause, name in found if pause > 1)

    def _recovered(self, what: str) -> None:
        """Wait until every client or its replacement makes progress and every replica is in sync.

        Raises Stuck after RECOVERY_S.
        """
        self._crew.mark()
        end_s = time.monotonic() + RECOVERY_S
        while True:
            self._revived()
            if self._crew.replace_hung():
                # A replacement gets as much time as the client it replaces.
                end_s = time.monotonic() + RECOVERY_S
            stuck = self._crew.waiting() or self._out_of_sync()
            if not stuck:
                return
            if time.monotonic() > end_s:
                raise Stuck(f"{RECOVERY_S} s after {what}: {stuck}")
            time.sleep(0.1)

    def _out_of_sync(self) -> list[str]:
        # The topic under constant reassignment is in sync only at the end.
        is_moved = bool(self._crew.clients)
        asked = [name for name in TOPICS if name != MOVED or not is_moved]
        try:
            topics = self._admin.describe_topics(asked, timeout=5)
            moves = {} if is_moved else self._admin.list_partition_reassignments(timeout=5)
        except KafkaError as error:
            return [f"{error!r}"]
        return [f"{part.topic}-{part.partition}: {part}" for topic in topics.values()
                for part in topic.partitions.values()
                if set(part.isr) != set(part.replicas)] + [f"{move}" for move in moves]

    def summary(self) -> str:
        """Return a summary of the amount of data that was judged."""
        kinds = {}
        for event in self.history.events:
            kinds[type(event).__name__] = kinds.get(type(event).__name__, 0) + 1
        return ", ".join(f"{count} {name}" for name, count in kinds.items())

    def _existing(self) -> set[str] | None:
        """Return the existing topics, or None if no broker responds."""
        names: set[str] = set()
        is_known = self._tried("the topics' names", lambda: names.update(
            self._admin.list_topics(timeout=RECOVERY_S)))
        return names if is_known else None

    def _finals(self) -> dict[Partition, Final]:
        """Return the final state of all partitions that can be read to their ends."""
        finals: dict[Partition, Final] = {}
        end_s = time.monotonic() + END_S
        for place in (Partition(topic, partition) for topic, count in TOPICS.items()
                      for partition in range(count)):
            if time.monotonic() > end_s:
                self._found.append(f"not read in {END_S} s: {place.topic}-{place.partition}")
                continue

            def read(place: Partition = place) -> None:
                records, visible = (read_whole(self.machines.bootstrap, place, isolation)
                                    for isolation in ("read_uncommitted", "read_committed"))
                finals[place] = Final(records, set(visible), self._digests(place, end_s))

            self._tried(f"reading {place.topic}-{place.partition}", read)
        return finals

    def _digests(self, place: Partition, end_s: float) -> dict[int, str]:
        while True:
            found = {number: digest for number, machine in self.machines.of.items()
                     if (digest := digest_of(machine.data_dir, place)) is not None}
            if len(set(found.values())) == 1 or time.monotonic() > end_s:
                return found
            time.sleep(0.5)


def read_whole(bootstrap: str, place: Partition, isolation: str) -> dict:
    """Read a partition with librdkafka from beginning to end and return offset -> value.

    Raises Stuck if no record arrives for READ_S.
    """
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": bootstrap, "group.id": "final", "enable.auto.commit": False,
        "isolation.level": isolation, "enable.partition.eof": True, "log_level": 0,
        "auto.offset.reset": "error"})
    consumer.assign([confluent_kafka.TopicPartition(place.topic, place.partition, 0)])
    found = {}
    end_s = time.monotonic() + READ_S
    try:
        while time.monotonic() < end_s:
            for message in consumer.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    found[message.offset()] = value_of(message.value())
                    end_s = time.monotonic() + READ_S
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return found
                elif not error.retriable():
                    raise confluent_kafka.KafkaException(error)
        raise Stuck(f"{place} {isolation}: nothing came for {READ_S} s after {len(found)} records")
    finally:
        consumer.close()


def digest_of(data: Path, place: Partition) -> str | None:
    """Return the digest of one replica's records on disk, or None if it does not exist.

    Preallocated space is excluded.
    """
    folder = data / f"{place.topic}-{place.partition}"
    if not folder.is_dir():
        return None
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.log")):
        found.update(path.name.encode() + path.read_bytes().rstrip(b"\0"))
    return found.hexdigest()
