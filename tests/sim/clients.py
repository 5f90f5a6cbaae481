"""Producers, consumers and an admin client of a simulated cluster.

Owns: the clients' state and connections.
Invariants: a client uses only its own responses and the image of a running broker; retries: an
  idempotent producer repeats an unacknowledged batch unchanged before it sends anything else.
Source: Kafka's clients.
"""

import asyncio

from pylog._native.log.log import LogError
from pylog.metadata.image.image import NO_LEADER
from pylog.peer.connection import Peer
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from tests.sim.loop import Process
from tests.sim.serving import BROKER_PORT, CONTROLLER_PORT
from tests.sim.wire import Consume, Produce

HOST = "c"
ANSWER_S = 3.0
OUT_OF_SEQUENCE, DUPLICATE = 45, 46
PREFERRED, UNCLEAN = 0, 1


class Client(Process):
    """A process outside the cluster."""

    def __init__(self, world, number):
        super().__init__(f"client {number}")
        self.world, self.number, self.host = world, number, HOST
        self._peers: dict = {}

    def image(self):
        """Return the metadata image of some broker, or None."""
        known = [node.process.metadata.tail.published for node in self.world.brokers
                 if node.alive and node.process.membership is not None]
        return self.world.random.choice(known) if known else None

    def partition(self, names: str = "t"):
        """Return (topic, index, state) of a random partition in some broker's image, or None.

        names: prefix of the topic's name.
        """
        image = self.image()
        known = [] if image is None else sorted(
            name for name in image.topics if name.startswith(names))
        if not known:
            return None
        topic = image.topics[self.world.random.choice(known)]
        index = self.world.random.randrange(len(topic.partitions))
        return topic, index, topic.partitions[index]

    async def ask(self, node_id, port, message, version=0):
        """Send a request and return the response. Raises PeerError."""
        peer = self._peers.get((node_id, port))
        if peer is None or peer.failure is not None:
            peer = self._peers[node_id, port] = await Peer.connect(
                f"n{node_id}", port, "c", ANSWER_S)
        return await peer.call(message, version, ANSWER_S)


class Producer(Client):
    """A producer. acks: 1 or -1."""

    def __init__(self, world, number, acks, idempotent):
        super().__init__(world, number)
        self._acks, self._idempotent = acks, idempotent
        self.pause_s = world.random.choice((0.1, 0.3, 0.6))
        self._ids: dict = {}         # key -> [producer id, next sequence number]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.world.random.uniform(0.01, self.pause_s))
            chosen = self.partition()
            if chosen is not None:
                await self._send((chosen[0].id, chosen[1]), chosen[2].leader)

    def _payload(self, key, count: int):
        if not self._idempotent:
            return -1, [self.world.next_number() for _ in range(count)][0]
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = [self.world.next_number(), 0]
        return tuple(known)

    async def _send(self, key, leader) -> None:
        count = self.world.random.choice((1, 1, 2, 4))
        payload = self._payload(key, count)
        for _ in range(20 if self._idempotent else 1):
            if leader != NO_LEADER and await self._sent(key, leader, payload, count):
                return
            await asyncio.sleep(self.world.random.uniform(0.05, 0.3))
            image = self.image()
            topic = image.topics_by_id.get(key[0]) if image is not None else None
            if image is not None and topic is None:
                break
            leader = topic.partitions[key[1]].leader if topic is not None else NO_LEADER
        # Keeps retries: a new producer id has no unacknowledged batch.
        self._ids.pop(key, None)

    async def _sent(self, key, leader, payload, count) -> bool:
        try:
            error, offset = await self.ask(leader, BROKER_PORT, Produce(
                *key, payload, count, self._acks, ANSWER_S / 2))
        except PeerError:
            return False
        if error == OUT_OF_SEQUENCE:
            self._ids.pop(key, None)
            return True
        if error and error != DUPLICATE:
            return False
        if not error and self._acks == -1:
            for number in range(count):
                self.world.watcher.acknowledged(
                    key, offset + number, (payload[0], payload[1] + number))
        if self._idempotent and key in self._ids:
            self._ids[key][1] += count
        return True


class Consumer(Client):
    """A consumer that repeatedly reads everything."""

    async def run(self) -> None:
        positions: dict = {}
        while True:
            await asyncio.sleep(self.world.random.uniform(0.05, 0.5))
            chosen = self.partition()
            if chosen is None or chosen[2].leader == NO_LEADER:
                continue
            topic, index, state = chosen
            key = topic.id, index
            try:
                error, records = await self.ask(
                    state.leader, BROKER_PORT, Consume(*key, positions.get(key, 0)))
            except PeerError:
                continue
            if error:
                positions[key] = 0
                continue
            self.world.watcher.consumed(key, positions.get(key, 0), records)
            positions[key] = positions.get(key, 0) + len(records)


class Admin(Client):
    """Create and delete topics, add partitions, reassign replicas and elect leaders."""

    def __init__(self, world, number):
        super().__init__(world, number)
        self._made = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.world.random.uniform(0.3, 2.0))
            step = self.world.random.choice((
                self._create, self._delete, self._grow, self._move, self._move, self._move,
                self._call_off, self._elect, self._elect))
            wish = step()
            if wish is not None:
                await self.decided(wish)

    async def decided(self, wish):
        """Return the active controller's response to a request, or None without a response."""
        controllers = list(self.world.controllers)
        self.world.random.shuffle(controllers)
        for node in controllers:
            try:
                found = await self.ask(node.id, CONTROLLER_PORT, wish)
            except PeerError:
                continue
            if not isinstance(found, LogError):
                return found
        return None

    def create(self, partition_count, factor, name=None):
        new = messages.CreateTopicsRequest
        self._made += 1
        request = new(topics=[new.CreatableTopic(
            name=name or f"t{self._made}", num_partitions=partition_count,
            replication_factor=factor)], timeout_ms=1000)
        return lambda controller: controller.create_topics(request)

    def _create(self):
        image = self.image()
        if image is None or sum(name[0] == "t" for name in image.topics) >= 4:
            return None
        return self.create(self.world.random.randint(1, 3), self.world.random.randint(1, 3))

    def _delete(self):
        image, chosen = self.image(), self.partition()
        if chosen is None or len(image.topics) < 3:
            return None
        return lambda controller: controller.delete_topics([(None, chosen[0].id)])

    def _grow(self):
        chosen = self.partition()
        if chosen is None or len(chosen[0].partitions) > 8:
            return None
        new = messages.CreatePartitionsRequest
        request = new(topics=[new.CreatePartitionsTopic(
            name=chosen[0].name, count=len(chosen[0].partitions) + 1)], timeout_ms=1000)
        return lambda controller: controller.create_partitions(request)

    def _reassignment(self, chosen, replicas):
        new = messages.AlterPartitionReassignmentsRequest
        request = new(timeout_ms=1000, topics=[new.ReassignableTopic(
            name=chosen[0].name, partitions=[new.ReassignablePartition(
                partition_index=chosen[1], replicas=replicas)])])
        return lambda controller: controller.alter_reassignments(request)

    def _move(self):
        chosen = self.partition("")
        if chosen is None:
            return None
        ids = [node.id for node in self.world.brokers]
        return self._reassignment(chosen, self.world.random.sample(
            ids, self.world.random.randint(1, len(ids))))

    def _call_off(self):
        chosen = self.partition("")
        return None if chosen is None else self._reassignment(chosen, None)

    def _elect(self):
        chosen = self.partition("")
        if chosen is None:
            return None
        election = UNCLEAN if self.world.unclean and self.world.random.random() < 0.3 \
            else PREFERRED
        topics = [(chosen[0].name, [chosen[1]])]
        return lambda controller: controller.elect_leaders(election, topics)
