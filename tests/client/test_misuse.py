"""Errors for wrong use of the client explain the correct use."""

import asyncio
import inspect
import socket

import numpy
import pytest

from pylog.client import Admin, Consumer, NewTopic, Producer, TopicPartition, scan
from pylog.client.admin import admin
from pylog.client.config.durations import rounded
from pylog.client.errors import AuthenticationError, KafkaTimeoutError, SerializationError
from tests.client.support import new_name, new_topic


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
def test_non_bytes_value_is_reported_with_a_solution(brokerd, producer, given, words):
    topic = new_topic(brokerd)
    for _ in range(2):  # Before the topic is known, and after.
        with pytest.raises(SerializationError, match=words):
            producer.send(topic, **given)
    producer.send(topic, b"v").result(20)


@pytest.mark.parametrize("given, words", [
    ({"partition": "0"}, "a partition must be a whole number, not '0'"),
    ({"timestamp": "now"}, "a timestamp in ms must be a whole number, not 'now'"),
])
def test_non_numeric_value_is_reported(brokerd, producer, given, words):
    with pytest.raises(TypeError, match=words):
        producer.send(new_topic(brokerd), b"v", **given)


def test_invalid_topic_is_reported(producer):
    with pytest.raises(TypeError, match="a topic name must be a str, not 5"):
        producer.send(5, b"v")


def test_invalid_partition_is_reported(brokerd):
    with Consumer(bootstrap_servers=brokerd.bootstrap) as consumer:
        with pytest.raises(TypeError, match=r"such as TopicPartition\('orders', 0\)"):
            consumer.assign(["orders"])
        with pytest.raises(TypeError, match="subscribe takes topics"):
            consumer.assign("orders")
        with pytest.raises(TypeError, match="is not a partition"):
            consumer.seek(("orders", "0"), 1)
        assert TopicPartition.of(["orders", 1]) == ("orders", 1)


PLURAL = {
    (name, argument.name): inspect.signature(method)
    for name, method in inspect.getmembers(admin.Admin, inspect.iscoroutinefunction)
    if not name.startswith("_") for argument in inspect.signature(method).parameters.values()
    if "Iterable" in str(argument.annotation)
    and not str(argument.annotation).startswith("Mapping")}


def test_some_admin_calls_accept_collections():
    assert len(PLURAL) > 20 and ("delete_topics", "names") in PLURAL


@pytest.mark.parametrize("given", ["abc", b"abc"])
@pytest.mark.parametrize("call", PLURAL, ids=".".join)
def test_admin_calls_reject_a_str_as_a_collection(call, given):
    name, plural = call
    arguments = {argument.name: object() for argument in PLURAL[call].parameters.values()
                 if argument.default is argument.empty and argument.name != "self"}
    with pytest.raises(TypeError, match=f"{plural} takes a list, not b?'abc'"):
        asyncio.run(getattr(admin.Admin(bootstrap_servers="localhost:1"), name)(
            **{**arguments, plural: given}))


def test_a_str_deletes_no_topics(brokerd):
    with Admin(bootstrap_servers=brokerd.bootstrap) as admin:
        admin.create_topics(["p", "q"])
        with pytest.raises(TypeError, match=r"pass \['pq'\]"):
            admin.delete_topics("pq")
        assert {"p", "q"} <= set(admin.list_topics())
        admin.delete_topics(("p", "q"))


@pytest.mark.parametrize("call", [
    lambda consumer: consumer.committed("abc"), lambda consumer: consumer.end_offsets("abc"),
    lambda consumer: consumer.beginning_offsets("abc"),
    lambda consumer: consumer.poll_arrow(columns="key"),
    lambda consumer: consumer.poll_numpy(columns="key"), lambda consumer: consumer.assign("abc"),
    lambda consumer: scan("abc", columns="key", bootstrap_servers="localhost:1")])
def test_consumers_reject_a_str_as_a_collection(brokerd, call):
    with Consumer(bootstrap_servers=brokerd.bootstrap, group_id="g") as consumer:
        with pytest.raises(TypeError, match="takes a list, not '(abc|key)'"):
            call(consumer)


class Whole:
    """A number that is not an int, such as NumPy's."""

    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number


@pytest.mark.parametrize("kind", [numpy.int32, Whole])
def test_calls_accept_numpy_numbers(brokerd, producer, kind):
    name, group = new_name("numbers"), new_name("g")
    with Admin(bootstrap_servers=brokerd.bootstrap) as admin:
        admin.create_topics([NewTopic(name, num_partitions=kind(2), replication_factor=kind(1))])
        admin.create_partitions({name: kind(3)})
        part = TopicPartition(name, kind(1))
        for number in range(10):
            sent = producer.send(name, b"v", partition=kind(1), timestamp=kind(number)).result(20)
        assert sent == (name, 1, 9, 9) and type(sent.timestamp) is type(sent.partition) is int
        with Consumer(bootstrap_servers=brokerd.bootstrap, group_id=group,
                      enable_auto_commit=False) as consumer:
            consumer.assign([part])
            consumer.seek(part, kind(4))
            assert [record.offset for record in consumer.poll(20.0, kind(3))] == [4, 5, 6]
            plain = TopicPartition(name, 1)
            consumer.pause(part)
            assert consumer.paused() == {plain} and consumer.lag(part) == {plain: 3}
            assert consumer.commit({part: kind(5)}) == {plain: (5, "", -1)}
            assert consumer.commit({part: (kind(6), "m", kind(0))}) == {plain: (6, "m", 0)}
            assert consumer.offsets_for_times({part: kind(3)})[plain].offset == 3
            assert consumer.end_offsets([part]) == {plain: 10}
        admin.alter_consumer_group_offsets(group, {part: kind(7)})
        assert admin.list_consumer_group_offsets(group)[plain].offset == 7
        assert admin.list_offsets({part: kind(2)})[plain].offset == 2
        assert admin.delete_records({part: kind(2)}) == {plain: 2}
        assert [*admin.describe_log_dirs([kind(brokerd_id(admin))])] == [brokerd_id(admin)]


def brokerd_id(admin) -> int:
    return admin.describe_cluster().nodes[0].id


@pytest.mark.parametrize("offset", [1.5, "1", None])
def test_offsets_that_are_no_whole_number_are_rejected(brokerd, offset):
    with Consumer(bootstrap_servers=brokerd.bootstrap, group_id="g") as consumer:
        part = TopicPartition(new_topic(brokerd), 0)
        consumer.assign([part])
        with pytest.raises(TypeError, match="whole number"):
            consumer.seek(part, offset)
        with pytest.raises(TypeError, match="whole number|not an offset"):
            consumer.commit({part: offset})


@pytest.mark.parametrize("protocol, words", [
    ("PLAINTEXT",
     "connected, but it does not respond; check that it is a broker's port, without TLS"),
    ("SSL", "connected, but it does not speak TLS"),
])
def test_silent_port_is_distinguished_from_a_closed_one(protocol, words):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Admin(bootstrap_servers=f"127.0.0.1:{port}", security_protocol=protocol,
                   default_api_timeout_ms=2500) as admin, \
                pytest.raises(KafkaTimeoutError) as failure:
            admin.describe_cluster()
    assert str(failure.value) == f"not done within 2.5 s: 127.0.0.1:{port}: {words}"


def test_login_at_a_port_without_sasl_is_reported(brokerd):
    with pytest.raises(AuthenticationError) as failure:
        with Admin(bootstrap_servers=brokerd.bootstrap, security_protocol="SASL_PLAINTEXT",
                   sasl_username="u", sasl_password="p") as admin:
            admin.describe_cluster()
    assert str(failure.value) == (f"{brokerd.bootstrap}: this port does not support SASL: "
                                  "set security.protocol=PLAINTEXT")


@pytest.mark.parametrize("seconds, text", [
    (2.4999987, "2.5 s"), (30, "30 s"), (1234.04, "1234 s"), (0.0500001, "0.05 s")])
def test_times_are_shown_rounded(seconds, text):
    assert rounded(seconds) == text
