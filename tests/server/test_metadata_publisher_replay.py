"""A metadata log replayed on real files gives the state of the broker that wrote it."""

import asyncio
import random
import time

import pytest

from pylog._native.log.io_pool import IoPool
from pylog._native.records import batch
from pylog._native.server.grants import Grants
from pylog.config import Settings
from pylog.config.client_quotas import ClientQuotas
from pylog.log.manager import LogManager
from pylog.metadata.image.image import RESOURCE_BROKER, is_internal
from pylog.metadata.image.state_store import Store
from pylog.metadata.log.metadata_log import MetadataBatch
from pylog.metadata.service import MetadataService
from pylog.protocol import messages
from pylog.server.metadata_publisher import Publisher
from tests.metadata.memory import Followers, published
from tests.metadata.node import Node
from tests.server.test_metadata_publisher import History, topic_records

STEPS = 40


class Granted:
    """Records installed grants that have not been removed since."""

    def __init__(self):
        self.topics = {}
        self._native = Grants()

    def install(self, topic, logs):
        own = [logs.get(topic.name, index) for index in range(len(topic.partitions))]
        if any(own):
            self._native.install(topic.name, topic.id, own, is_internal(topic.name), False)
            self.topics[topic.name] = topic.id, own

    def remove(self, name):
        self._native.remove(name)
        self.topics.pop(name, None)


class Following:
    """The parts that a broker composes around a metadata service: everything that records affect.
    """

    def __init__(self, service, logs, settings, node_id):
        self.service, self.logs, self.settings = service, logs, settings
        self.grants = Granted()
        self.followers = Followers()
        self.quotas = ClientQuotas(settings, time.monotonic_ns)
        self.quotas.take(service.image.client_quotas)
        self.publisher = Publisher(
            node_id, service, logs, self.grants, self.quotas, (self.followers,), lambda: None)

    @property
    def tail(self):
        return self.service.tail

    def state(self):
        """Return the state that must not depend on how this broker reached it."""
        logs, image = self.logs, self.service.image
        # Like a request that finds no grant.
        for topic in image.topics.values():
            if topic.name not in self.grants.topics:
                self.grants.install(topic, logs)
        return {
            "image": image,
            "logs": {(topic_id, name, index): _role(one)
                     for name, topic_id, index, one in logs._topics.all()},
            "settings": {name: logs._topics.config(overrides)
                         for name, (_, _, overrides) in logs._topics.entries.items()},
            "timed": {(name, index) for name, _, index, one in logs._topics.all()
                      if one in logs._topics.timed},
            "dynamic": (self.settings.dynamic_own, self.settings.dynamic_cluster),
            "quotas": self.quotas._quotas,
            "grants": {name: (topic_id, [one is not None for one in own])
                       for name, (topic_id, own) in self.grants.topics.items()},
        }

    def check(self):
        """Check the invariants of the state."""
        logs = self.logs
        for name, (topic_id, own) in self.grants.topics.items():
            assert topic_id == logs._topics.entries[name].topic_id, name
            assert own == [logs.get(name, index) for index in range(
                len(self.service.image.topics[name].partitions))], name
        for topic in self.service.image.topics.values():
            for index, state in enumerate(topic.partitions):
                role = (state.leader == 1, state.leader_epoch)
                assert _role(logs.get(topic.name, index)) == (
                    *role, len(state.isr) if role[0] else None), (topic.name, index)
        here = [logs.dir_index(name, index) for name, _, index, _ in logs._topics.all()]
        assert logs.disks.loads == [here.count(number) for number in range(len(logs.paths))]


def _role(partition_log):
    return (partition_log.is_leader, partition_log.leader_epoch,
            partition_log.in_sync_count if partition_log.is_leader else None)


class LivedNode(Node):
    """A node on two log directories with all followers of its metadata log."""

    def __init__(self, path):
        folders = [path / "one", path / "two"]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        super().__init__(",".join(map(str, folders)))
        self.following = Following(self.service, self.logs, self.settings, self.node_id)

    def ends(self):
        return {(topic_id, index): (one.start_offset, one.end_offset)
                for _, topic_id, index, one in self.logs._topics.all()}


class Replaying(Following):
    """A broker without a metadata log, on an empty directory."""

    def __init__(self, path):
        path.mkdir()
        settings = Settings({"log.dirs": str(path)})
        self.pool = IoPool(2)
        logs = LogManager(settings, self.pool, Node.now_ms)
        logs.open()
        self.store = Store(str(path))
        logs.open_partitions([], {}, frozenset(), self.store)
        node_id = settings["node.id"]
        super().__init__(
            MetadataService(settings, logs, node_id, Node.now_ms), logs, settings, node_id)

    def close(self):
        for _, _, _, one in self.logs._topics.all():
            one.release()
        self.store.close()
        self.logs.close()


class RealHistory(History):
    """Decisions of a node, records written by others, and requests in between."""

    def __init__(self, dice, node):
        self.dice = dice
        self.node = node
        self.broker = node.following
        self.controller = node.service.controller
        # A separate generator: the number of draws depends on the threads.
        self.misses = random.Random(dice.random())

    async def live(self, steps):
        kinds = (self.create, self.create, self.create, self.delete, self.again, self.grow,
                 self.alter_topic, self.alter_flush, self.alter_broker, self.quota, self.isr,
                 self.isr, self.leader, self.transaction, self.miss, self.miss, self.produce,
                 self.produce)
        for _ in range(steps):
            step, miss = self.dice.choice(kinds)(), self.dice.random() < 0.5
            asked = asyncio.ensure_future(step)
            # Requests arrive while a record is applied.
            while miss and not asked.done():
                await self.miss()
                await asyncio.sleep(0)
            await asked
            self.broker.check()

    async def _written(self, *records):
        tail, log = self.broker.tail, self.node.service._log
        offset = log.append(list(records), log._epoch, tail.newest.offset + 1)
        tail.push(tail.fold(MetadataBatch(offset, log._epoch, list(records))))
        await tail.wait(offset)

    async def miss(self):
        topics = self.broker.service.image.topics
        if topics:
            topic = topics[self.misses.choice(sorted(topics))]
            self.broker.grants.install(topic, self.node.logs)

    async def produce(self):
        log = self.node.logs.get(self.a_topic(), 0)
        if log is not None and log.is_leader:
            for _ in range(self.dice.randrange(1, 20)):
                log.append(batch.build([(None, b"x" * 90, Node.now_ms(), ())]), Node.now_ms(),
                           leader_epoch=log.leader_epoch)

    async def again(self):
        """The same name, another topic; also within one range of records."""
        tail, name = self.broker.tail, self.a_topic()
        topic = tail.newest.topics.get(name)
        if topic is None:
            return
        if self.dice.random() < 0.5:
            await self.controller.delete_topics([(name, bytes(16))])
            await self.create(name)
        else:
            records = topic_records(name, leader=self.dice.choice((1, 2)))
            for record in records:
                record.topic_id = self.dice.randbytes(16)
            records[1].topic_id = records[0].topic_id
            await self._written(messages.RemoveTopicRecord(topic_id=topic.id), *records)

    async def create(self, name=None):
        new = messages.CreateTopicsRequest
        await self.controller.create_topics(new(topics=[new.CreatableTopic(
            name=name or self.dice.choice("abcdef"), num_partitions=self.dice.randrange(1, 4),
            replication_factor=1, configs=[
                new.CreatableTopicConfig(name="retention.ms", value="5000"),
                new.CreatableTopicConfig(name="flush.ms", value="70000")]
            [:self.dice.randrange(3)])]))

    async def grow(self):
        new = messages.CreatePartitionsRequest
        topic = self.broker.tail.newest.topics.get(self.a_topic())
        if topic is not None:
            await self.controller.create_partitions(new(topics=[new.CreatePartitionsTopic(
                name=topic.name, count=len(topic.partitions) + self.dice.randrange(1, 3),
                assignments=None)]))

    async def alter_flush(self):
        await self._alter(2, self.a_topic(), "flush.ms", str(self.dice.randrange(1000, 9000)))

    async def leader(self):
        topic = self.broker.tail.newest.topics.get(self.a_topic())
        if topic is not None:
            await self._written(messages.PartitionChangeRecord(
                partition_id=self.dice.randrange(len(topic.partitions)), topic_id=topic.id,
                replicas=[1, 2], isr=[1, 2], leader=self.dice.choice((1, 2))))

    async def alter_broker(self):
        key, value = self.dice.choice((
            ("log.retention.ms", str(self.dice.randrange(1000, 9000))),
            ("compression.type", self.dice.choice(("zstd", "producer"))),
            ("num.partitions", str(self.dice.randrange(1, 4)))))
        await self._alter(RESOURCE_BROKER, "" if key == "num.partitions" else
                          self.dice.choice(("", "1")), key, value)


def live(node, dice):
    history = RealHistory(dice, node)
    asyncio.run(published(node.following.publisher, history.live(STEPS)))


def replayed(node, path, dice):
    """Return the state of a new broker that follows the node's metadata log from its beginning."""
    fresh = Replaying(path)
    tail, batches = fresh.tail, list(node.service._log.read(0))

    async def follow():
        left = batches
        while left:
            # One read may return several appends.
            count = dice.randrange(1, 7)
            some, left = left[:count], left[count:]
            tail.push(tail.fold(MetadataBatch(some[-1].last_offset, some[-1].epoch, [
                record for appended in some for record in appended.records])))
            if dice.random() < 0.7:
                await tail.wait(tail.newest.offset)
        await tail.wait(tail.newest.offset)

    try:
        asyncio.run(published(fresh.publisher, follow()))
        found = fresh.state()
        fresh.check()
        return found
    finally:
        fresh.close()


@pytest.mark.parametrize("seed", range(12))
def test_new_broker_replays_the_log_to_the_same_state(tmp_path, seed):
    dice = random.Random(seed)
    node = LivedNode(tmp_path / "lived")
    live(node, dice)
    assert node.service.image.offset > STEPS // 4, seed
    assert replayed(node, tmp_path / "fresh", dice) == node.following.state(), seed
    node.following.check()
    node.stop()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("end", ["crash", "stop"])
def test_restarted_broker_restores_the_state_of_its_log(tmp_path, seed, end):
    dice = random.Random(f"{end} {seed}")
    node = LivedNode(tmp_path / "lived")
    for round_ in range(2):
        live(node, dice)
        before = node.ends()
        getattr(node, end)()
        node = LivedNode(tmp_path / "lived")
        while node.logs.recovering:
            time.sleep(0.01)
        assert node.ends() == before, seed
        assert replayed(node, tmp_path / f"fresh{round_}", dice) == node.following.state(), seed
        node.following.check()
    node.stop()
