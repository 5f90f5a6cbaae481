"""Effects depend on records only, not on their writer."""

import asyncio
import random
import threading
from types import SimpleNamespace

import pytest

from pylog.config import Settings
from pylog.coordinator.groups.state.group_config import GROUP_RESOURCE
from pylog.log.partition_logs import Role
from pylog.metadata.controller.active_controller import ActiveController
from pylog.metadata.image.image import RESOURCE_BROKER, RESOURCE_TOPIC, Image
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.metadata_log import MetadataBatch
from pylog.protocol import messages
from tests.metadata.memory import (
    Followers,
    MemoryLog,
    NoLogs,
    Unlimited,
    metadata_of,
    published,
    publisher_of,
)
from tests.metadata.node import Node

NEW = messages.CreateTopicsRequest
ENDPOINTS = [("PLAINTEXT", "localhost", 9092, 0)]
DIRECTORIES = [bytes(15) + b"\x05"]


class Broker:
    """A tail with all its followers, on replacements."""

    def __init__(self):
        self.settings = Settings()
        self.tail = Tail(Image())
        self.logs = NoLogs()
        self.followers = Followers()
        self.quotas = Unlimited()
        self.publisher = publisher_of(
            metadata_of(self.tail, self.settings), self.logs, self.followers, self.quotas)

    def state(self):
        return {"image": self.tail.published, "logs": self.logs.topics,
                "quotas": self.quotas.taken or {},
                "own": self.settings.dynamic_own, "cluster": self.settings.dynamic_cluster}

    async def follow(self, *records):
        """Write records like another broker's controller."""
        self.tail.push(self.tail.fold(
            MetadataBatch(self.tail.newest.offset + len(records), 7, list(records))))
        await published(self.publisher, self.tail.wait(self.tail.newest.offset))


def topic_records(name="t", isr=(1,), leader=1):
    topic_id = name.encode().ljust(16, b"-")
    return [messages.TopicRecord(name=name, topic_id=topic_id), messages.PartitionRecord(
        partition_id=0, topic_id=topic_id, replicas=[1, 2], isr=list(isr), leader=leader,
        leader_epoch=3, partition_epoch=0, removing_replicas=[], adding_replicas=[],
        directories=[bytes(16)] * 2)]


def test_topic_of_another_controller_gets_its_logs():
    broker = Broker()
    asyncio.run(broker.follow(*topic_records()))
    assert broker.logs.topics["t"][1] == [Role(True, 3, 1)]


def test_topic_deleted_by_another_controller_loses_logs_grants_and_offsets():
    broker = Broker()
    asyncio.run(broker.follow(*topic_records()))
    asyncio.run(broker.follow(messages.RemoveTopicRecord(topic_id=b"t".ljust(16, b"-"))))
    assert broker.logs.topics == {} and "t" in broker.followers.void
    assert broker.followers.deleted == ["t"]


def test_coordinators_learn_of_leaders_once_the_logs_have_their_parts():
    broker = Broker()
    seen, changed = [], broker.followers.topic_changed
    broker.followers.topic_changed = lambda topic: (
        seen.append(broker.logs.topics["t"][1][0].leads), changed(topic))
    asyncio.run(broker.follow(*topic_records()))
    for leader in (2, 1):
        asyncio.run(broker.follow(messages.PartitionChangeRecord(
            partition_id=0, topic_id=b"t".ljust(16, b"-"), leader=leader)))
    assert broker.followers.changed == [("t", [1]), ("t", [2]), ("t", [1])]
    assert seen == [True, False, True]


def test_topic_recreated_in_one_batch_is_a_new_topic():
    broker = Broker()
    asyncio.run(broker.follow(*topic_records()))
    again = topic_records()
    for record in again:
        record.topic_id = b"u" * 16
    asyncio.run(broker.follow(
        messages.RemoveTopicRecord(topic_id=b"t".ljust(16, b"-")), *again))
    assert broker.logs.topics["t"][0] == b"u" * 16 and broker.followers.deleted == ["t"]


def test_cached_responses_end_with_acl_setting_and_feature_changes():
    broker, voided = Broker(), []
    broker.publisher.repeats = SimpleNamespace(void=lambda: voided.append(len(voided)))
    for record, count in (
            (topic_records()[0], 0),
            (messages.ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name="t",
                                   name="segment.ms", value="500000"), 0),
            (messages.ConfigRecord(resource_type=GROUP_RESOURCE, resource_name="g",
                                   name="consumer.heartbeat.interval.ms", value="6000"), 1),
            (messages.ConfigRecord(resource_type=RESOURCE_BROKER, resource_name="1",
                                   name="log.cleaner.threads", value="3"), 2),
            (messages.FeatureLevelRecord(name="group.version", feature_level=1), 3),
            (messages.AccessControlEntryRecord(
                id=bytes(16), resource_type=3, resource_name="g", pattern_type=3,
                principal="User:u", host="*", operation=3, permission_type=3), 4)):
        asyncio.run(broker.follow(record))
        assert len(voided) == count, record


def test_a_change_of_the_isr_reaches_the_log_of_a_partition(tmp_path):
    node = Node(tmp_path)
    node.create("t")
    tail, log = node.service.tail, node.logs.get("t", 0)
    assert log.in_sync_count == 1
    for isr, leader_epoch in (([1, 2], 0), ([1, 2, 3], 0), ([1], 0)):
        change = messages.PartitionChangeRecord(
            partition_id=0, topic_id=tail.newest.topics["t"].id, isr=isr, replicas=[1, 2, 3])
        offset = node.service._log.append(
            [change], node.service.controller._epoch, tail.newest.offset + 1)
        tail.push(tail.fold(MetadataBatch(offset, tail.newest.epoch, [change])))
        node.decide(tail.wait(offset))
        assert (log.in_sync_count, log.leader_epoch) == (len(isr), leader_epoch)
        assert log.is_leader
    node.stop()


def test_failed_effect_is_logged_and_later_effects_follow(caplog):
    broker = Broker()

    def refuse(*_):
        raise ValueError("no")

    broker.logs.create = refuse
    asyncio.run(broker.follow(*topic_records(), messages.ConfigRecord(
        resource_type=RESOURCE_BROKER, resource_name="", name="num.partitions", value="5")))
    assert broker.settings["num.partitions"] == 5
    assert "a metadata change could not be applied" in caplog.text


def test_failed_effect_of_one_topic_does_not_affect_others():
    broker = Broker()
    asyncio.run(broker.follow(*topic_records("gone"), *topic_records("stays")))
    create, delete, assume = broker.logs.create, broker.logs.delete, broker.logs.assume

    def unless(bad, effect):
        def run(name, *args):
            if name == bad:
                raise ValueError("no")
            effect(name, *args)
        return run

    broker.logs.create, broker.logs.delete = unless("bad", create), unless("gone", delete)
    asyncio.run(broker.follow(
        messages.RemoveTopicRecord(topic_id=b"gone".ljust(16, b"-")),
        *topic_records("bad"), *topic_records("good"), messages.PartitionChangeRecord(
            partition_id=0, topic_id=b"stays".ljust(16, b"-"), isr=[1, 2])))
    assert broker.logs.topics["good"][1] == [Role(True, 3, 1)]
    assert broker.logs.topics["stays"][1] == [Role(True, 3, 2)]
    # A request for a new topic that missed before its logs existed is notified again.
    assert {"gone", "good", "stays"} <= set(broker.followers.void)
    broker.logs.assume = unless("good", assume)
    asyncio.run(broker.follow(*(messages.PartitionChangeRecord(
        partition_id=0, topic_id=name.encode().ljust(16, b"-"), isr=[1])
        for name in ("good", "stays"))))
    assert broker.logs.topics["stays"][1] == [Role(True, 3, 1)]


def test_stop_waits_for_a_running_effect():
    broker, begun, goes_on, done = Broker(), threading.Event(), threading.Event(), []

    def slow(*args):
        begun.set()
        assert goes_on.wait(30)
        done.append(args[0])

    broker.logs.create = slow

    async def run():
        loop = asyncio.get_running_loop()
        publishing = loop.create_task(broker.publisher.run())
        records = topic_records()
        broker.tail.push(broker.tail.fold(MetadataBatch(len(records) - 1, 7, records)))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        stopping = loop.create_task(broker.publisher.stop(publishing))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not stopping.done()
        goes_on.set()
        await stopping
        return list(done)

    assert asyncio.run(run()) == ["t"]


def test_a_registration_that_failed_is_no_later_requests_failure(caplog):
    broker = Broker()

    async def run():
        controller = ActiveController(
            MemoryLog(), broker.tail, broker.logs, broker.settings, random.Random(1), 1)
        # An epoch of no controller: the append is a Conflict.
        broker.publisher._registering = asyncio.ensure_future(
            controller.register_again(ENDPOINTS, DIRECTORIES))
        await broker.publisher.registered()

        async def breaks():
            raise ValueError("no")

        broker.publisher._registering = asyncio.ensure_future(breaks())
        for _ in range(2):
            await broker.publisher.registered()

    asyncio.run(run())
    assert "this broker cannot be registered" in caplog.text


def test_settings_of_other_brokers_have_no_effect():
    broker = Broker()
    asyncio.run(broker.follow(messages.ConfigRecord(
        resource_type=RESOURCE_BROKER, resource_name="2", name="log.cleaner.threads", value="3")))
    assert broker.logs.reconfigured == 0


class History:
    """Random decisions of one broker, and records written by others in between."""

    def __init__(self, dice):
        self.dice = dice
        self.log = MemoryLog()
        self.broker = Broker()
        self.controller = ActiveController(
            self.log, self.broker.tail, self.broker.logs, self.broker.settings,
            random.Random(dice.random()), 1)

    async def live(self, steps):
        self.controller.become_active(clean=True)
        self.controller.register(ENDPOINTS, DIRECTORIES)
        self.broker.tail.begin()
        for _ in range(steps):
            await self.dice.choice((self.create, self.create, self.delete, self.grow,
                                    self.alter_topic, self.alter_broker, self.quota, self.isr,
                                    self.leave, self.transaction))()

    def a_topic(self):
        topics = sorted(self.broker.tail.newest.topics)
        return self.dice.choice(topics) if topics else "none"

    async def create(self):
        await self.controller.create_topics(NEW(topics=[NEW.CreatableTopic(
            name=self.dice.choice("abcdef"), num_partitions=self.dice.randrange(1, 4),
            replication_factor=1, configs=[NEW.CreatableTopicConfig(
                name="retention.ms", value="5000")][:self.dice.randrange(2)])]))

    async def delete(self):
        await self.controller.delete_topics([(self.a_topic(), bytes(16))])

    async def grow(self):
        new = messages.CreatePartitionsRequest
        await self.controller.create_partitions(new(topics=[new.CreatePartitionsTopic(
            name=self.a_topic(), count=self.dice.randrange(1, 6), assignments=None)]))

    async def _alter(self, kind, name, key, value):
        new = messages.IncrementalAlterConfigsRequest
        await self.controller.alter_configs(new(resources=[new.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[new.AlterableConfig(
                name=key, config_operation=self.dice.randrange(2), value=value)])]), True)

    async def alter_topic(self):
        await self._alter(RESOURCE_TOPIC, self.a_topic(), "segment.ms",
                          str(self.dice.randrange(1000, 9000)))

    async def alter_broker(self):
        await self._alter(RESOURCE_BROKER, self.dice.choice(("", "1")), "log.retention.ms",
                          str(self.dice.randrange(1000, 9000)))

    async def quota(self):
        new = messages.AlterClientQuotasRequest
        await self.controller.alter_client_quotas(new(entries=[new.EntryData(
            entity=[new.EntityData(entity_type="user", entity_name=self.dice.choice("xy"))],
            ops=[new.OpData(key="consumer_byte_rate", value=float(self.dice.randrange(1, 99)),
                            remove=self.dice.random() < 0.3)])]), {})

    async def _written(self, *records):
        """Append by another controller of the same epoch, as a tail receives it."""
        tail = self.broker.tail
        offset = self.log.append(list(records), self.log.epoch, tail.newest.offset + 1)
        tail.push(tail.fold(MetadataBatch(offset, self.log.epoch, list(records))))
        await tail.wait(offset)

    async def isr(self):
        topic = self.broker.tail.newest.topics.get(self.a_topic())
        if topic is not None:
            await self._written(messages.PartitionChangeRecord(
                partition_id=0, topic_id=topic.id, leader=self.dice.choice((-2, 1, -1)),
                isr=self.dice.choice(([1], [1, 2]))))

    async def leave(self):
        await self.controller.leave_offline([(self.a_topic(), 0)])

    async def transaction(self):
        await self._written(messages.BeginTransactionRecord(name="many"))
        name = f"z{self.broker.tail.newest.offset}"
        await self._written(*topic_records(name))
        await self._written(self.dice.choice((
            messages.EndTransactionRecord(), messages.AbortTransactionRecord(reason="no"))))


@pytest.mark.parametrize("seed", range(40))
def test_replayed_history_gives_the_same_state_as_live_updates(seed):
    dice = random.Random(seed)

    async def lived():
        history = History(dice)
        await published(history.broker.publisher, history.live(40))
        return history

    async def replayed(batches):
        broker = Broker()
        while batches:
            # One read may return several appends.
            count = dice.randrange(1, 7)
            some, batches = batches[:count], batches[count:]
            broker.tail.push(broker.tail.fold(MetadataBatch(
                some[-1].last_offset, some[-1].epoch, [one for batch in some
                                                       for one in batch.records])))
        await published(broker.publisher, broker.tail.wait(broker.tail.newest.offset))
        return broker

    history = asyncio.run(lived())
    again = asyncio.run(replayed(list(history.log.batches)))
    assert again.state() == history.broker.state(), seed
