"""Transactional producers and groups of a simulated cluster, and the outcomes of their work.

Owns: the responses they received.
Invariants: atomicity: a committed transaction exists as a whole, an aborted one is invisible, one
  of unknown outcome is either, and none stays open at the end; group offsets: a group's offset
  never falls below an acknowledged one and never comes from an uncommitted transaction.
Source: KIP-98, KIP-447.
"""

import asyncio

from pylog._native.records import batch
from pylog.coordinator.runtime.internal_topic import partition_of
from pylog.metadata.image.image import NO_LEADER
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.sim.clients import ANSWER_S, Client
from tests.sim.loop import Wrong
from tests.sim.producers import Part
from tests.sim.serving import BROKER_PORT
from tests.sim.wire import ENSURE, Transactional

TOPIC, OFFSETS, STATES = "x", "__consumer_offsets", "__transaction_state"
PARTITIONS = 2
TIMEOUT_MS = 6000
PATIENCE_S = 8.0
COMMIT_KEY = b"\0\0\0\1"
INIT_VERSION, ADD_VERSION, ADD_OFFSETS_VERSION, END_VERSION = 4, 3, 3, 4
COMMIT_VERSION, FETCH_VERSION, TXN_COMMIT_VERSION = 8, 7, 3
PASSING = frozenset((
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNSTABLE_OFFSET_COMMIT))


class Given(Exception):
    """An error that a client cannot recover from, or no response."""


class Transaction:
    """A transaction.

    written: [(partition, value)]. wanted: its commit was requested. ended: True if it was
    committed, False if aborted, None if unknown.
    """

    def __init__(self):
        self.written: list = []
        self.wanted = False
        self.ended: bool | None = None


class Ledger:
    """The results that clients received."""

    def __init__(self):
        self.transactions: dict[int, Transaction] = {}
        self.floors: dict[str, int] = {}  # Group -> highest acknowledged offset.

    def check_position(self, group: str, floor: int, position: int) -> None:
        """Check an offset requested when the highest acknowledged one was `floor`."""
        if position < floor:
            raise Wrong(f"{group} is at {position} after {floor}")
        found = self.transactions.get(position)
        if found is not None and (not found.wanted or found.ended is False):
            raise Wrong(f"{group} is at {position}, which was not committed")

    def check(self, logs: list) -> None:
        """Check all transactions against the logs: the records of each partition. Keeps atomicity.
        """
        visible, left = set(), set()
        for index, records in enumerate(logs):
            waiting: dict = {}
            for payload in [record.payload for record in records]:
                self._walk(index, payload, waiting, visible)
            left |= waiting.keys()
        if left:
            raise Wrong(f"transactions of {left} are open at rest")
        for name, found in self.transactions.items():
            there = visible & set(found.written)
            is_whole = len(there) == len(found.written)
            if found.ended and not is_whole or there and (
                    not is_whole or not found.wanted or found.ended is False):
                raise Wrong(f"transaction {name}, wanted {found.wanted}, ended {found.ended}: "
                            f"{sorted(there)} of {found.written} is there")

    @staticmethod
    def _walk(index, payload: Part, waiting, visible) -> None:
        header = payload.header
        _, _, key, value, _ = list(batch.records(payload.data))[payload.index]
        if not header.attributes & batch.CONTROL:
            waiting.setdefault(header.producer_id, []).append((index, value))
            return
        ended = waiting.pop(header.producer_id, ())
        if key == COMMIT_KEY:
            visible.update(ended)


class Coordinated(Client):
    """A client of coordinators."""

    _asked: int | None = None  # The last coordinator.

    def _leader_at(self, topic_name: str, index: int | None, key: str):
        image = self.image()
        topic = image.topics.get(topic_name) if image is not None else None
        if topic is None:
            return None
        index = partition_of(key, len(topic.partitions)) if index is None else index
        leader = topic.partitions[index].leader
        return None if leader == NO_LEADER else leader

    async def say(self, topic: str, message, version: int, code, key: str = "", index=None):
        """Send a request to the leader of a key's partition until it succeeds; return the response.

        Retries transient errors. code: (response) -> its error. Raises Given.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_S
        while loop.time() < until:
            leader = self._asked = self._leader_at(topic, index, key)
            try:
                if leader is None:
                    await self._ensure()
                else:
                    answer = await self.ask(leader, BROKER_PORT, message, version)
                    error = code(answer)
                    if not error:
                        return answer
                    if error not in PASSING:
                        raise Given(ErrorCode.of(error).name)
            except PeerError:
                pass
            await asyncio.sleep(self.world.random.uniform(0.02, 0.2))
        raise Given("no answer in time")

    async def _ensure(self) -> None:
        node = self.world.random.choice(self.world.brokers)
        await self.ask(node.id, BROKER_PORT, ENSURE)

    async def look_at(self, group: str) -> None:
        """Fetch a group's offset and check it. Keeps group offsets."""
        floor, ask = self.world.ledger.floors.get(group, -1), messages.OffsetFetchRequest
        answer = await self.say(OFFSETS, ask(group_id=group, require_stable=True, topics=[
            ask.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]), FETCH_VERSION,
            lambda answer: answer.error_code or answer.topics[0].partitions[0].error_code, group)
        topic = self.world.watcher.image.topics[OFFSETS]
        # As in Kafka, a coordinator that does not know its successor yet may return an older
        # offset.
        if topic.partitions[partition_of(group, len(topic.partitions))].leader == self._asked:
            self.world.ledger.check_position(
                group, floor, answer.topics[0].partitions[0].committed_offset)


class Committer(Coordinated):
    """A group that commits increasing offsets."""

    async def run(self) -> None:
        group = f"group{self.number}"
        while True:
            await asyncio.sleep(self.world.random.uniform(0.2, 0.8))
            position = self.world.next_number()
            new = messages.OffsetCommitRequest
            try:
                await self.say(OFFSETS, new(
                    group_id=group, topics=[new.OffsetCommitRequestTopic(name=TOPIC, partitions=[
                        new.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=position,
                            committed_metadata="")])]), COMMIT_VERSION,
                    lambda answer: answer.topics[0].partitions[0].error_code, group)
                self.world.ledger.floors[group] = position
                await self.look_at(group)
            except Given:
                continue


class Transactor(Coordinated):
    """Run transactions over a topic's partitions and a group's offset, and abort some."""

    def __init__(self, world, number):
        super().__init__(world, number)
        self._positions: set = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.world.random.uniform(0.05, 0.4))
            try:
                await self._session()
            except Given:
                continue

    async def _session(self) -> None:
        """Run transactions until an error; the next session ends the open one."""
        self._id, self._group = f"id{self.number}", f"transactor{self.number}"
        answer = await self._coordinated(messages.InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=TIMEOUT_MS), INIT_VERSION)
        self._producer = answer.producer_id, answer.producer_epoch
        self._sequences = [0] * PARTITIONS
        while True:
            await asyncio.sleep(self.world.random.uniform(0.1, 0.6))
            await self._transaction()
            await self.look_at(self._group)

    def _coordinated(self, message, version: int):
        return self.say(STATES, message, version, lambda answer: answer.error_code, self._id)

    async def _transaction(self) -> None:
        choose, name = self.world.random, self.world.next_number()
        found = self.world.ledger.transactions[name] = Transaction()
        for index in choose.sample(range(PARTITIONS), choose.randint(1, PARTITIONS)):
            await self._write(found, name, index)
        if choose.random() < 0.5:
            await self._commit_position(name)
        found.wanted = choose.random() < 0.7
        await self._coordinated(messages.EndTxnRequest(
            transactional_id=self._id, producer_id=self._producer[0],
            producer_epoch=self._producer[1], committed=found.wanted), END_VERSION)
        found.ended = found.wanted
        if found.ended and name in self._positions:
            self.world.ledger.floors[self._group] = name

    async def _write(self, found: Transaction, name: int, index: int) -> None:
        producer_id, epoch = self._producer
        new = messages.AddPartitionsToTxnRequest
        await self.say(STATES, new(
            v3_and_below_transactional_id=self._id, v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch, v3_and_below_topics=[
                new.AddPartitionsToTxnTopic(name=TOPIC, partitions=[index])]), ADD_VERSION,
            lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[
                0].partition_error_code, self._id)
        values = [b"%d of %d" % (number, name) for number in range(self.world.random.randint(1, 3))]
        data = batch.build([(None, value, 0, ()) for value in values], producer_id=producer_id,
                           producer_epoch=epoch, base_sequence=self._sequences[index],
                           attributes=batch.TRANSACTIONAL)
        image = self.image()
        if image is None or TOPIC not in image.topics:
            raise Given("no broker")
        found.written += [(index, value) for value in values]
        await self.say(TOPIC, Transactional(
            image.topics[TOPIC].id, index, data, self._id, ANSWER_S / 2), 0, int, index=index)
        self._sequences[index] += len(values)

    async def _commit_position(self, name: int) -> None:
        producer_id, epoch = self._producer
        await self._coordinated(messages.AddOffsetsToTxnRequest(
            transactional_id=self._id, producer_id=producer_id, producer_epoch=epoch,
            group_id=self._group), ADD_OFFSETS_VERSION)
        new = messages.TxnOffsetCommitRequest
        await self.say(OFFSETS, new(
            transactional_id=self._id, group_id=self._group, producer_id=producer_id,
            producer_epoch=epoch, topics=[new.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[
                new.TxnOffsetCommitRequestPartition(
                    partition_index=0, committed_offset=name, committed_metadata="")])]),
            TXN_COMMIT_VERSION, lambda answer: answer.topics[0].partitions[0].error_code,
            self._group)
        self._positions.add(name)
