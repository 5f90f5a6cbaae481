"""CreateTopics requests to three brokerds, from before their start until they form a cluster."""

import asyncio
import threading

from pylog.client import Admin
from pylog.peer.connection import Peer
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.fixtures.clusters import START_S, Cluster, until

NEW = messages.CreateTopicsRequest
VERSION, PARTITIONS, MADE = 7, 2, 5
# Too few brokers; no active controller yet; an earlier attempt was executed.
REFUSALS = {ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NOT_CONTROLLER,
            ErrorCode.REQUEST_TIMED_OUT}


class Asker(threading.Thread):
    """Creates topics with one and with three replicas at one broker until enough exist.

    made: name -> replica count. refusals: all other error codes.
    """

    def __init__(self, broker):
        super().__init__(daemon=True)
        self._port = broker.port
        self.made: dict[str, int] = {}
        self.refusals: set[int] = set()
        self.stopping = threading.Event()
        self.is_done = False

    def run(self) -> None:
        asyncio.run(self._ask())
        self.is_done = True

    async def _ask(self) -> None:
        number = 0
        while len(self.made) < MADE and not self.stopping.is_set():
            number += 1
            try:
                peer = await Peer.connect("127.0.0.1", self._port, "asker", 5)
                try:
                    for replicas in (1, 3):
                        await self._create(peer, f"t-{self._port}-{number}-{replicas}", replicas)
                finally:
                    peer.close()
            except PeerError:
                await asyncio.sleep(0.01)

    async def _create(self, peer, name: str, replicas: int) -> None:
        answer = await peer.call(NEW(timeout_ms=5000, topics=[NEW.CreatableTopic(
            name=name, num_partitions=PARTITIONS, replication_factor=replicas)]), VERSION, 30)
        if answer.topics[0].error_code == ErrorCode.NONE:
            self.made[name] = replicas
        else:
            self.refusals.add(answer.topics[0].error_code)


def in_sync(broker) -> dict:
    """Return topic -> ISR sizes of its partitions that have a leader."""
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        found = admin.describe_topics(list(admin.list_topics()))
    return {name: [len(part.isr) for part in topic.partitions.values() if part.leader is not None]
            for name, topic in found.items()}


def test_topics_requested_while_a_cluster_forms_are_rejected_or_created_everywhere(tmp_path):
    cluster = Cluster(tmp_path)
    askers = [Asker(broker) for broker in cluster.brokers.values()]
    for asker in askers:
        asker.start()
    with cluster:
        try:
            until(lambda: all(asker.is_done for asker in askers), START_S, cluster.tails())
        finally:
            for asker in askers:
                asker.stopping.set()
        assert set.union(*[asker.refusals for asker in askers]) <= REFUSALS
        wanted = {name: [replicas] * PARTITIONS for asker in askers
                  for name, replicas in asker.made.items()}
        for broker in cluster.brokers.values():
            until(lambda of=broker: wanted.items() <= in_sync(of).items(), words=cluster.tails())
