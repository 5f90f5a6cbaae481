"""Message objects."""

import copy

import pytest

from pylog.protocol import codec, messages


def test_a_message_starts_with_the_schemas_defaults():
    request = messages.MetadataRequest()
    assert request.topics == []
    assert request.allow_auto_topic_creation is True
    assert messages.FetchRequest().max_bytes == 2**31 - 1
    assert messages.FetchRequest().cluster_id is None
    assert messages.FetchRequest().replica_state.replica_id == -1


def test_lists_and_structs_are_not_shared_between_objects():
    first, second = messages.FetchRequest(), messages.FetchRequest()
    first.topics.append(1)
    first.replica_state.replica_id = 5
    assert second.topics == []
    assert second.replica_state.replica_id == -1


def test_structs_are_attributes_of_their_message():
    topic = messages.MetadataRequest.MetadataRequestTopic(name="t")
    assert topic.name == "t"
    assert topic.topic_id == bytes(16)


def test_unknown_names_are_rejected():
    with pytest.raises(AttributeError):
        messages.NoSuchRequest  # noqa: B018
    with pytest.raises(TypeError, match="MetadataRequest has no field 'topic'"):
        messages.MetadataRequest(topic=[])
    with pytest.raises(AttributeError):
        messages.MetadataRequest().topic = []


def test_message_fields_are_keyword_only():
    with pytest.raises(TypeError, match="by name only"):
        messages.MetadataRequest([])


def test_message_subclass_is_a_message():
    class Mine(messages.MetadataRequest):
        __slots__ = ()

    assert Mine(topics=None).allow_auto_topic_creation is True
    assert codec.encode_request(3, 12, Mine(topics=None)) == codec.encode_request(
        3, 12, messages.MetadataRequest(topics=None)
    )
    with pytest.raises(TypeError, match="no field 'name'"):
        Mine(name="")


def test_messages_compare_by_value():
    request = messages.MetadataRequest
    assert request() == request()
    assert request(topics=None) != request()
    assert request() != messages.MetadataResponse()
    with pytest.raises(TypeError):
        hash(request())


def test_a_copy_has_its_own_fields():
    request = messages.MetadataRequest(topics=None)
    other = copy.copy(request)
    other.topics = []
    assert request.topics is None


def test_a_message_shows_its_fields():
    text = repr(messages.FetchRequest.ReplicaState(replica_id=3))
    assert text == "FetchRequest.ReplicaState(replica_id=3, replica_epoch=-1)"
