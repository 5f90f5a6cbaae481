import pytest

from pylog.protocol import api, messages
from tests.api.support import with_broker

CLUSTER = messages.DescribeClusterRequest
NEW = messages.DescribeTopicPartitionsRequest
TOPICS = messages.CreateTopicsRequest


async def make(broker, **partitions):
    await broker.controller.create_topics(TOPICS(topics=[
        TOPICS.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in partitions.items()]))


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described_in_every_version(version):
    async def scenario(broker):
        answer = await broker.ask(api.DESCRIBE_CLUSTER, version, CLUSTER())
        assert (answer.error_code, answer.cluster_id, answer.controller_id) \
            == (0, broker.cluster_id, 1)
        assert [(b.broker_id, b.host, b.port) for b in answer.brokers] \
            == [(1, "localhost", 1234)]
        assert answer.cluster_authorized_operations == -2**31
    with_broker(scenario)


@pytest.mark.parametrize("kind, error", [(2, 114), (3, 115)])
def test_other_endpoint_types_are_rejected(kind, error):
    async def scenario(broker):
        answer = await broker.ask(api.DESCRIBE_CLUSTER, 1, CLUSTER(endpoint_type=kind))
        assert answer.error_code == error and answer.error_message
    with_broker(scenario)


@pytest.mark.parametrize("broker_id, error", [(7, 102), (1, 42)])
def test_unknown_or_only_broker_cannot_be_unregistered(broker_id, error):
    async def scenario(broker):
        answer = await broker.ask(api.UNREGISTER_BROKER, 0, messages.UnregisterBrokerRequest(
            broker_id=broker_id))
        assert answer.error_code == error and answer.error_message
        assert list(broker.image.brokers) == [1]
    with_broker(scenario)


@pytest.mark.parametrize("controller_id, error", [(7, 136), (1, 42)])
def test_controllers_are_not_registered_one_by_one(controller_id, error):
    async def scenario(broker):
        answer = await broker.ask(
            api.UNREGISTER_CONTROLLER, 0,
            messages.UnregisterControllerRequest(controller_id=controller_id))
        assert answer.error_code == error and answer.error_message
    with_broker(scenario)


def pages(answer):
    return [(topic.name, [p.partition_index for p in topic.partitions]) for topic in answer.topics]


def test_all_topics_come_sorted_when_none_is_named():
    async def scenario(broker):
        await make(broker, b=2, a=1)
        answer = await broker.ask(api.DESCRIBE_TOPIC_PARTITIONS, 0, NEW())
        assert pages(answer) == [("a", [0]), ("b", [0, 1])]
        assert answer.next_cursor is None
    with_broker(scenario)


def test_cursor_pages_contain_every_partition_once():
    async def scenario(broker):
        await make(broker, a=3, b=5, c=1)
        seen, cursor = [], None
        for _ in range(20):
            answer = await broker.ask(api.DESCRIBE_TOPIC_PARTITIONS, 0, NEW(
                response_partition_limit=2, cursor=cursor))
            seen += [(name, index) for name, indexes in pages(answer) for index in indexes]
            if answer.next_cursor is None:
                break
            cursor = NEW.Cursor(topic_name=answer.next_cursor.topic_name,
                                partition_index=answer.next_cursor.partition_index)
        assert seen == [("a", n) for n in range(3)] + [("b", n) for n in range(5)] + [("c", 0)]
    with_broker(scenario)


def test_unknown_and_invalid_names_are_reported():
    async def scenario(broker):
        answer = await broker.ask(api.DESCRIBE_TOPIC_PARTITIONS, 0, NEW(topics=[
            NEW.TopicRequest(name="no"), NEW.TopicRequest(name="a b")]))
        assert [(t.name, t.error_code) for t in answer.topics] == [("a b", 17), ("no", 3)]
    with_broker(scenario)


def test_a_negative_cursor_is_rejected():
    async def scenario(broker):
        await make(broker, a=1)
        answer = await broker.ask(api.DESCRIBE_TOPIC_PARTITIONS, 0, NEW(
            topics=[NEW.TopicRequest(name="a")],
            cursor=NEW.Cursor(topic_name="a", partition_index=-1)))
        assert answer.topics[0].error_code == 42
    with_broker(scenario)


def test_broker_limit_bounds_a_page():
    async def scenario(broker):
        await make(broker, a=5)
        answer = await broker.ask(api.DESCRIBE_TOPIC_PARTITIONS, 0, NEW())
        assert pages(answer) == [("a", [0, 1, 2])]
        assert answer.next_cursor.partition_index == 3
    with_broker(scenario, {"max.request.partition.size.limit": "3"})
