import pytest

from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from tests.api.support import with_broker

NEW = messages.CreateTopicsRequest
DELETE = messages.DeleteTopicsRequest


def creation(*names, configs=None, **fields):
    return NEW(topics=[NEW.CreatableTopic(
        name=name, num_partitions=2, replication_factor=1,
        configs=[NEW.CreatableTopicConfig(name=key, value=value)
                 for key, value in (configs or {}).items()]) for name in names], **fields)


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_in_every_version(version):
    async def scenario(broker):
        answer = await broker.ask(api.CREATE_TOPICS, version, creation("t"))
        topic, = answer.topics
        assert (topic.name, topic.error_code, topic.error_message) == ("t", 0, None)
        if version >= 5:
            assert (topic.num_partitions, topic.replication_factor) == (2, 1)
        if version >= 7:
            assert topic.topic_id == broker.image.topics["t"].id
        assert "t" in broker.logs.topics
    with_broker(scenario)


def test_create_response_contains_every_setting_with_its_source():
    async def scenario(broker):
        answer = await broker.ask(api.CREATE_TOPICS, 7, creation(
            "t", configs={"retention.ms": "5000"}))
        told = {c.name: (c.value, c.config_source) for c in answer.topics[0].configs}
        assert told["retention.ms"] == ("5000", 1)
        assert told["segment.bytes"] == ("2097152", 4)
        assert told["cleanup.policy"] == ("delete", 5)
        assert len(told) == 37
    with_broker(scenario, {"log.segment.bytes": "2097152"})


def test_invalid_topic_does_not_affect_the_others():
    async def scenario(broker):
        answer = await broker.ask(api.CREATE_TOPICS, 7, creation("..", "good"))
        assert [(t.name, t.error_code) for t in answer.topics] == [("..", 17), ("good", 0)]
        assert answer.topics[0].error_message
    with_broker(scenario)


def test_validate_only_creates_no_topic():
    async def scenario(broker):
        answer = await broker.ask(api.CREATE_TOPICS, 7, creation("t", validate_only=True))
        assert answer.topics[0].error_code == 0 and answer.topics[0].num_partitions == 2
        assert not broker.image.topics and not broker.logs.topics
    with_broker(scenario)


@pytest.mark.parametrize("version", range(1, 7))
def test_a_topic_is_deleted_in_every_version(version):
    async def scenario(broker):
        await broker.ask(api.CREATE_TOPICS, 7, creation("t"))
        if version >= 6:
            request = DELETE(timeout_ms=1000, topics=[DELETE.DeleteTopicState(name="t")])
        else:
            request = DELETE(timeout_ms=1000, topic_names=["t"])
        answer = await broker.ask(api.DELETE_TOPICS, version, request)
        assert [(r.name, r.error_code) for r in answer.responses] == [("t", 0)]
        assert not broker.image.topics and not broker.logs.topics
        assert set(broker.followers.void) == {"t"}
    with_broker(scenario)


def test_a_topic_is_deleted_by_id():
    async def scenario(broker):
        await broker.ask(api.CREATE_TOPICS, 7, creation("t"))
        id_ = broker.image.topics["t"].id
        answer = await broker.ask(api.DELETE_TOPICS, 6, DELETE(timeout_ms=1000, topics=[
            DELETE.DeleteTopicState(topic_id=id_), DELETE.DeleteTopicState(topic_id=id_[::-1])]))
        assert [r.error_code for r in answer.responses] == [0, 100]
        assert answer.responses[0].name == "t" and answer.responses[1].name is None
    with_broker(scenario)


@pytest.mark.parametrize("version, error", [(2, 42), (3, 73)])
def test_forbidden_deletion_has_its_own_error_since_version_3(version, error):
    async def scenario(broker):
        await broker.ask(api.CREATE_TOPICS, 7, creation("t"))
        broker.followers.void.clear()
        answer = await broker.ask(api.DELETE_TOPICS, version,
                                  DELETE(timeout_ms=1000, topic_names=["t"]))
        assert answer.responses[0].error_code == error
        assert broker.followers.void == []
    with_broker(scenario, {"delete.topic.enable": "false"})


def test_topics_are_not_created_or_deleted_after_the_timeout():
    async def scenario(broker):
        new = messages.CreateTopicsRequest
        rows = [new.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        answer = await broker.ask(api.CREATE_TOPICS, 7, new(timeout_ms=0, topics=rows))
        assert answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert not broker.image.topics
        await broker.ask(api.CREATE_TOPICS, 7, new(timeout_ms=1000, topics=rows))
        answer = await broker.ask(api.DELETE_TOPICS, 5, DELETE(timeout_ms=-1, topic_names=["t"]))
        assert answer.responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "t" in broker.image.topics
    with_broker(scenario)
