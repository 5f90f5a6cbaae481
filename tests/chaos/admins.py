"""Admin clients that make, move and delete topics while machines fail.

Owns: a thread for each, with its client.
Invariants: (1) a topic's end is told when nothing more is asked of it.
"""

import itertools
import time

from pylog.client import Admin, KafkaError, NewTopic, TopicPartition
from tests.chaos.history import History, Topic
from tests.chaos.writers import Client

WAIT_S = 20.0
ASKED_ONCE_S = 1.0      # The client asks another broker when one has not answered for two.


class Maker(Client):
    """Makes topics of so many replicas and deletes most of them."""

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
        created = self._asked(f"the creation of {name}", lambda: admin.create_topics(
            [NewTopic(name, 2, self._replicas)], timeout=WAIT_S))
        # Whoever hung while it was asked may make the topic when it wakes, after its deletion.
        once = time.monotonic() - began_s < ASKED_ONCE_S
        if self.chance.random() < 0.1:
            return Topic(name, created, False, False)
        self.stopping.wait(self.chance.uniform(0, 3))
        deleted = self._asked(f"the deletion of {name}", lambda: admin.delete_topics(
            [name], timeout=WAIT_S))
        return Topic(name, created, True, once and created and deleted)

    def _asked(self, what: str, call) -> bool:
        """Whether it was acknowledged."""
        self.asks(what)
        try:
            call()
        except KafkaError as error:
            self.refused("a topic's change", error)
            return False
        self.went_on()
        return True


class Mover(Client):
    """Moves partitions of a topic between two and three machines, and their leaders."""

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
            # Kafka's controller never ends a move that adds what an earlier one, which it took the
            # place of, still takes away.
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
