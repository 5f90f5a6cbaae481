"""Admin clients that create, reassign and delete topics while machines fail.

Owns: one thread for each admin client, with its client.
Invariants: a topic's result enters the history after the last request about the topic.
"""

import itertools
import time

from pylog.client import Admin, KafkaError, NewTopic, TopicPartition
from tests.chaos.history import History, Topic
from tests.chaos.writers import Client

WAIT_S = 20.0
ASKED_ONCE_S = 1.0  # The client asks another broker after two seconds.


class Maker(Client):
    """Create topics with the given replication factor and delete most of them."""

    kind = "admin"

    def __init__(self, name, history: History, bootstrap, rate: float, replicas: int = 3):
        super().__init__(name, history, bootstrap)
        self._rate, self._replicas = rate, replicas

    def work(self) -> None:
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            for number in itertools.count():
                self.history.add(self._life(admin, f"{self.name}-{number}"))
                if self.stopping.wait(self.chance.expovariate(self._rate)):
                    return

    def _life(self, admin, name: str) -> Topic:
        began_s = time.monotonic()
        created = self._is_acknowledged(f"the creation of {name}", lambda: admin.create_topics(
            [NewTopic(name, 2, self._replicas)], timeout=WAIT_S))
        # A hung broker may execute the creation after it wakes, when the topic is already deleted.
        # Therefore only topics whose creation was requested once are judged.
        once = time.monotonic() - began_s < ASKED_ONCE_S
        if self.chance.random() < 0.1:
            return Topic(name, created, False, False)
        self.stopping.wait(self.chance.uniform(0, 3))
        deleted = self._is_acknowledged(f"the deletion of {name}", lambda: admin.delete_topics(
            [name], timeout=WAIT_S))
        return Topic(name, created, True, once and created and deleted)

    def _is_acknowledged(self, what: str, call) -> bool:
        """Return True if the request was acknowledged."""
        self.asks(what)
        try:
            call()
        except KafkaError as error:
            self.refused("a topic's change", error)
            return False
        self.went_on()
        return True


class Mover(Client):
    """Reassign a topic's partitions between two and three machines, and elect other leaders."""

    kind = "admin"

    def __init__(self, name, history: History, bootstrap, topic: str, partitions: int, nodes,
                 rate: float):
        super().__init__(name, history, bootstrap)
        self._parts = [TopicPartition(topic, number) for number in range(partitions)]
        self._nodes = list(nodes)
        self._rate = rate

    def work(self) -> None:
        with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            while not self.stopping.wait(self.chance.expovariate(self._rate)):
                self._try(lambda: self._step(admin))
            # Kafka's controller never completes a reassignment that adds a replica which the
            # replaced reassignment is still removing.
            for part in self._parts:
                self._try(lambda part=part: admin.alter_partition_reassignments(
                    {part: None}, timeout=WAIT_S))
            everywhere = {part: self._nodes for part in self._parts}
            self._try(lambda: admin.alter_partition_reassignments(everywhere, timeout=WAIT_S))

    def _step(self, admin) -> None:
        part = self.chance.choice(self._parts)
        what = self.chance.random()
        if what < 0.2:
            admin.elect_leaders([part], timeout=WAIT_S)
        elif what < 0.3:
            admin.alter_partition_reassignments({part: None}, timeout=WAIT_S)
        else:
            replicas = self.chance.sample(self._nodes, self.chance.choice((2, 3, 3)))
            admin.alter_partition_reassignments({part: replicas}, timeout=WAIT_S)

    def _try(self, call) -> None:
        self.asks("a move")
        try:
            call()
        except KafkaError:
            return
        self.went_on()
