"""The exception hierarchy."""

import pickle

import pytest

from pylog.client import Consumer, Producer, TopicPartition, errors
from pylog.protocol.errors import TABLE


def test_each_error_code_has_one_class_with_kafkas_name():
    for code, row in TABLE.items():
        if code == 0:
            continue
        cls = errors.error_class(code)
        assert cls is errors.error_class(code) is getattr(errors, cls.__name__)
        assert cls.code == code == row
        assert not (cls.retriable and cls.fatal)
        assert cls.retriable == row.retriable, row


def test_names_are_those_of_kafka():
    assert errors.NotLeaderOrFollowerError.code == 6
    assert errors.InvalidTopicError.code == 17
    assert errors.UnknownServerError.code == -1
    assert issubclass(errors.NotLeaderOrFollowerError, errors.InvalidMetadataError)
    assert issubclass(errors.TopicAuthorizationFailedError, errors.AuthorizationError)


def test_fenced_clients_raise_a_fatal_error():
    assert errors.ProducerFencedError.fatal
    assert errors.FencedInstanceIdError.fatal
    assert not errors.OffsetOutOfRangeError.fatal


def test_an_unknown_code_is_an_unknown_error():
    assert isinstance(errors.error(31999), errors.UnknownServerError)


def test_message_contains_the_requested_object():
    assert str(errors.error(3, context="t-0")).startswith("t-0: ")
    with pytest.raises(errors.UnknownTopicOrPartitionError, match="own words"):
        errors.raise_for(3, "own words")
    errors.raise_for(0)


def test_remedy_ends_the_message_and_survives_pickling():
    made = errors.KafkaConnectionError("localhost:9092 speaks TLS", remedy="set it")
    copied = pickle.loads(pickle.dumps(made))
    for one in (made, copied):
        assert (str(one), one.remedy) == ("localhost:9092 speaks TLS: set it", "set it")
    assert errors.IllegalStateError("closed").remedy == errors.error(3).remedy == ""
    at = errors.RecordDeserializationError.at(TopicPartition("t", 0), 5, "too short")
    assert str(at).endswith(at.remedy) and at.remedy == "seek past it to continue"


@pytest.mark.parametrize("failing, remedy", [
    (lambda: Consumer(bootstrap_server="x"), "did you mean 'bootstrap.servers'?"),
    (lambda: Producer(bootstrap_servers="x:1", acks="2"), "allowed are all, -1, 0, 1"),
])
def test_client_errors_carry_the_remedy_of_their_message(failing, remedy):
    with pytest.raises(errors.ConfigError) as failure:
        failing()
    assert failure.value.remedy == remedy and str(failure.value).endswith(f": {remedy}")
