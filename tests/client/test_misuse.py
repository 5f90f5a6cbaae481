"""What an application does wrong is told in words that say what to do instead."""

import socket

import pytest

from pylog.client import Admin, Consumer, Producer, TopicPartition
from pylog.client.durations import rounded
from pylog.client.errors import AuthenticationError, KafkaTimeoutError, SerializationError
from tests.client.support import new_topic


@pytest.fixture(scope="module")
def producer(brokerd):
    with Producer(bootstrap_servers=brokerd.bootstrap) as made:
        yield made


@pytest.mark.parametrize("given, words", [
    ({"value": 5}, "the value is of type int: send bytes, str or a buffer, or give the producer a "
                   "value.serializer"),
    ({"value": {"a": 1}}, "the value is of type dict"), ({"value": b"v", "key": 3.5},
                                                         "the key is of type float"),
    ({"value": b"v", "headers": 7}, "headers are"),
])
def test_what_is_no_bytes_is_told_with_what_to_do(brokerd, producer, given, words):
    topic = new_topic(brokerd)
    for _ in range(2):      # Before the topic is known, and then.
        with pytest.raises(SerializationError, match=words):
            producer.send(topic, **given)
    producer.send(topic, b"v").result(20)


@pytest.mark.parametrize("given, words", [
    ({"partition": "0"}, "a partition is a number, not '0'"),
    ({"timestamp": "now"}, "a timestamp is a whole number of ms, not 'now'"),
])
def test_what_is_no_number_is_told(brokerd, producer, given, words):
    with pytest.raises(TypeError, match=words):
        producer.send(new_topic(brokerd), b"v", **given)


def test_what_is_no_topic_is_told(producer):
    with pytest.raises(TypeError, match="a topic's name is a str, not 5"):
        producer.send(5, b"v")


def test_what_is_no_partition_is_told(brokerd):
    with Consumer(bootstrap_servers=brokerd.bootstrap) as consumer:
        with pytest.raises(TypeError, match=r"such as TopicPartition\('orders', 0\)"):
            consumer.assign(["orders"])
        with pytest.raises(TypeError, match="subscribe takes topics"):
            consumer.assign("orders")
        with pytest.raises(TypeError, match="is no partition"):
            consumer.seek(("orders", "0"), 1)
        assert TopicPartition.of(["orders", 1]) == ("orders", 1)


@pytest.mark.parametrize("protocol, words", [
    ("PLAINTEXT", "connected, but it does not answer: is it a broker's port, without TLS?"),
    ("SSL", "connected, but it does not speak TLS"),
])
def test_a_port_that_says_nothing_is_told_from_one_that_is_not_there(protocol, words):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Admin(bootstrap_servers=f"127.0.0.1:{port}", security_protocol=protocol,
                   default_api_timeout_ms=2500) as admin, \
                pytest.raises(KafkaTimeoutError) as failure:
            admin.describe_cluster()
    assert str(failure.value) == f"not done within 2.5 s: 127.0.0.1:{port}: {words}"


def test_a_login_at_a_port_that_takes_none_is_told(brokerd):
    with pytest.raises(AuthenticationError) as failure:
        with Admin(bootstrap_servers=brokerd.bootstrap, security_protocol="SASL_PLAINTEXT",
                   sasl_username="u", sasl_password="p") as admin:
            admin.describe_cluster()
    assert str(failure.value) == (f"{brokerd.bootstrap}: this port takes no login: "
                                  "set security.protocol=PLAINTEXT")


@pytest.mark.parametrize("seconds, text", [
    (2.4999987, "2.5 s"), (30, "30 s"), (1234.04, "1234 s"), (0.0500001, "0.05 s")])
def test_times_are_told_in_round_figures(seconds, text):
    assert rounded(seconds) == text
