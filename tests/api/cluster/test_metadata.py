import asyncio
import time

import pytest

from pylog.protocol import api, codec, messages
from tests.api.support import with_broker

NEW = messages.MetadataRequest
TOPICS = messages.CreateTopicsRequest


async def make(broker, *names, partitions=1):
    results = await broker.controller.create_topics(TOPICS(topics=[
        TOPICS.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        for name in names]))
    assert [result.error for result in results] == [0] * len(names)
    return [result.topic_id for result in results]


async def metadata(broker, version, *topics, every=False, **fields):
    wanted = None if every else [
        NEW.MetadataRequestTopic(name=topic) if isinstance(topic, str)
        else NEW.MetadataRequestTopic(topic_id=topic, name=None) for topic in topics]
    return await broker.ask(api.METADATA, version, NEW(topics=wanted, **fields))


def errors(answer):
    return [(topic.name, topic.error_code) for topic in answer.topics]


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_a_named_topic_includes_partitions(version):
    async def scenario(broker):
        id_, = await make(broker, "t", partitions=3)
        answer = await metadata(broker, version, "t")
        topic, = answer.topics
        assert (topic.name, topic.error_code) == ("t", 0)
        assert [p.partition_index for p in topic.partitions] == [0, 1, 2]
        assert {p.leader_id for p in topic.partitions} == {1}
        assert topic.partitions[0].isr_nodes == [1]
        if version >= 10:
            assert topic.topic_id == id_
        if version >= 7:
            assert topic.partitions[0].leader_epoch == 0
        if version >= 2:
            assert answer.cluster_id == broker.cluster_id
    with_broker(scenario)


@pytest.mark.parametrize(("listener", "host"), [
    ("PLAINTEXT://:9092", "dialled.example"), ("PLAINTEXT://0.0.0.0:9092", "dialled.example"),
    ("PLAINTEXT://[::]:9092", "dialled.example"), ("PLAINTEXT://broker.example:9092",
                                                   "broker.example"),
    ("PLAINTEXT://10.1.2.3:9092", "10.1.2.3"),
])
def test_without_advertised_listeners_clients_get_the_host_of_the_listener(listener, host):
    async def scenario(broker):
        answer = await metadata(broker, 9)
        assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(1, host, 1234)]
        assert answer.controller_id == 1
    with_broker(scenario, {"listeners": listener})


def test_advertised_address_is_returned():
    async def scenario(broker):
        answer = await metadata(broker, 9)
        assert [(b.host, b.port) for b in answer.brokers] == [("registered.example", 9092)]
    with_broker(scenario, {"advertised.listeners": "PLAINTEXT://registered.example:9092"})


def test_null_requests_all_topics_and_an_empty_list_none():
    async def scenario(broker):
        await make(broker, "a", "b")
        assert errors(await metadata(broker, 1, every=True)) == [("a", 0), ("b", 0)]
        assert errors(await metadata(broker, 1)) == []
        assert errors(await metadata(broker, 0)) == [("a", 0), ("b", 0)]
    with_broker(scenario)


def test_topics_are_found_by_id_and_unknown_ids_reported():
    async def scenario(broker):
        id_, = await make(broker, "a")
        answer = await metadata(broker, 12, id_, bytes(15) + b"\x42")
        assert errors(answer) == [("a", 0), (None, 100)]
        assert answer.topics[1].topic_id == bytes(15) + b"\x42"
    with_broker(scenario)


def test_ids_are_rejected_before_version_12():
    async def scenario(broker):
        answer = await broker.ask(api.METADATA, 10, NEW(topics=[
            NEW.MetadataRequestTopic(topic_id=bytes(15) + b"\x42", name=None)]))
        assert answer.topics[0].error_code == 42
    with_broker(scenario)


def test_unknown_topics_are_created_when_both_sides_allow_it():
    async def scenario(broker):
        requested = []
        create = broker.controller.create_topics

        async def created(request, **options):
            requested.extend((row.num_partitions, row.replication_factor)
                             for row in request.topics)
            return await create(request, **options)

        broker.controller.create_topics = created
        answer = await metadata(broker, 4, "fresh", allow_auto_topic_creation=True)
        assert errors(answer) == [("fresh", 0)]
        # A controller on another node may have other defaults than this broker; it decides on
        # those that the broker does not set.
        assert requested == [(4, -1)]
        assert len(answer.topics[0].partitions) == 4
        answer = await metadata(broker, 4, "other", allow_auto_topic_creation=False)
        assert errors(answer) == [("other", 3)]
        assert set(broker.image.topics) == {"fresh"}
    with_broker(scenario, {"num.partitions": "4", "auto.create.topics.enable": "true"})


def test_the_broker_may_forbid_creation():
    async def scenario(broker):
        assert errors(await metadata(broker, 3, "fresh")) == [("fresh", 3)]
    with_broker(scenario, {"auto.create.topics.enable": "false"})


def test_names_that_cannot_be_are_not_created():
    async def scenario(broker):
        answer = await metadata(broker, 4, "..", "a b", "", "__consumer_offsets",
                                allow_auto_topic_creation=True)
        assert errors(answer) == [("..", 17), ("a b", 17), ("", 17), ("__consumer_offsets", 3)]
        assert answer.topics[3].is_internal
        assert not broker.image.topics
    with_broker(scenario, {"auto.create.topics.enable": "true"})


def test_colliding_name_is_reported():
    async def scenario(broker):
        await make(broker, "a.b")
        answer = await metadata(broker, 4, "a_b", allow_auto_topic_creation=True)
        assert errors(answer) == [("a_b", 17)]
    with_broker(scenario, {"auto.create.topics.enable": "true"})


def test_authorized_operations_are_returned_only_on_request():
    async def scenario(broker):
        await make(broker, "a")
        plain = await metadata(broker, 8, "a")
        assert plain.topics[0].topic_authorized_operations == -2**31
        assert plain.cluster_authorized_operations == -2**31
        asked = await metadata(broker, 8, "a", include_topic_authorized_operations=True,
                               include_cluster_authorized_operations=True)
        assert asked.topics[0].topic_authorized_operations == 3576
        assert asked.cluster_authorized_operations == 8096
    with_broker(scenario)


def test_repeated_name_is_answered_once():
    async def scenario(broker):
        await make(broker, "a")
        assert errors(await metadata(broker, 9, "a", "a")) == [("a", 0)]
    with_broker(scenario)


@pytest.mark.parametrize("create", [False, True])
def test_a_hundred_thousand_unknown_names_take_at_most_a_second(create):
    async def scenario(broker):
        request = codec.encode_request(api.METADATA, 9, NEW(topics=[
            NEW.MetadataRequestTopic(name=f"unknown-{n}") for n in range(100_000)],
            allow_auto_topic_creation=create))
        begin = time.perf_counter()
        answer = await broker.ask(
            api.METADATA, 9, codec.decode_request(api.METADATA, 9, request))
        took = time.perf_counter() - begin
        made = sum(topic.error_code == 0 for topic in answer.topics)
        assert len(answer.topics) == 100_000 and made == (1000 if create else 0)
        # Twice through the codec on this side; generous for slow machines.
        assert took < 3
        print(f"{took:.2f} s")
    with_broker(scenario, {"auto.create.topics.enable": "true"})


class Departures:
    """Replaces pylog.replication's; the test sets the suspects."""

    suspects = frozenset()

    def __init__(self, *listed):
        self.decided = asyncio.Event()
        self.listed = listed

    def is_listed(self, broker_id):
        return broker_id in self.listed

    async def settled(self):
        await self.decided.wait()


def test_metadata_waits_while_a_leader_may_have_failed():
    async def scenario(broker):
        await make(broker, "t")
        departures = broker.departures = Departures()
        departures.suspects = {1}
        asking = [asyncio.create_task(metadata(broker, 4, *topics, allow_auto_topic_creation=auto))
                  for topics, auto in ((["t"], False), (["new", "t"], True))]
        await asyncio.sleep(0)
        assert not any(one.done() for one in asking)
        departures.decided.set()
        assert [errors(await one) for one in asking] == [[("t", 0)], [("new", 0), ("t", 0)]]
    with_broker(scenario, {"auto.create.topics.enable": "true"})


def test_metadata_of_all_topics_waits_while_a_leader_may_have_failed():
    async def scenario(broker):
        departures = broker.departures = Departures()
        departures.suspects = {2}
        asking = asyncio.create_task(metadata(broker, 9, every=True))
        await asyncio.sleep(0)
        assert not asking.done()
        departures.decided.set()
        await asking
    with_broker(scenario)


def test_metadata_of_unaffected_topics_does_not_wait():
    """A consumer's Fetch waits behind its Metadata request on the same connection."""
    async def scenario(broker):
        await make(broker, "t")
        departures = broker.departures = Departures()
        departures.suspects = {2}
        assert errors(await metadata(broker, 9, "t")) == [("t", 0)]
        assert errors(await metadata(broker, 9, "unknown")) == [("unknown", 3)]
    with_broker(scenario, {"auto.create.topics.enable": "false"})


def test_a_fenced_broker_is_named_only_while_it_has_just_died():
    async def scenario(broker):
        row = broker.image.brokers[1]
        broker.image.brokers = {1: row, 2: row._replace(
            id=2, fenced=True, endpoints=(row.endpoints[0]._replace(host="died.example"),))}
        assert [b.node_id for b in (await metadata(broker, 9)).brokers] == [1]
        broker.departures = Departures(2)
        assert [(b.node_id, b.host) for b in (await metadata(broker, 9)).brokers] == [
            (1, "localhost"), (2, "died.example")]
    with_broker(scenario)
