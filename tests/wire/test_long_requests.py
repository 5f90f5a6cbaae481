"""Requests with many entries, or with one entry many times: one broker, raw sockets."""

import struct
import threading
import time

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask, decode
from tests.wire.raw import Connection, frame, header
from tests.wire.talk import create_topic, unique

DESCRIBE_GROUPS, DESCRIBE_CONFIGS, DESCRIBE_PRODUCERS = 15, 32, 61
OFFSET_FETCH, LIST_GROUPS, HEARTBEAT = 9, 16, 12
BROKER = 4
MIB = 1 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    started = Brokerd(tmp_path_factory.mktemp("long"), {"auto.create.topics.enable": "false"})
    started.start()
    yield started
    assert started.alive() and started.alarms() == []
    started.kill()


@pytest.fixture
def connection(broker):
    with Connection(broker.port, wait_s=120) as opened:
        yield opened


def test_a_broker_that_is_named_four_thousand_times_is_described_once(connection):
    row = struct.pack(">b", BROKER) + raw.string("1") + struct.pack(">i", -1)
    answer = connection.call(DESCRIBE_CONFIGS, 1, raw.array([row] * 4000) + b"\0")
    assert len(decode(DESCRIBE_CONFIGS, 1, answer)["results"]) == 1
    assert len(answer) < 100_000


@pytest.mark.parametrize("count", [2, 10, 20_000])
def test_a_partitions_producers_are_described_once(broker, connection, count):
    topic = unique("described")
    create_topic(broker.port, topic)
    body = raw.uvarint(2) + raw.compact_string(topic) + raw.uvarint(count + 1) \
        + struct.pack(">i", 0) * count + b"\0\0"
    answer = decode(DESCRIBE_PRODUCERS, 0, connection.call(DESCRIBE_PRODUCERS, 0, body))
    row, = answer["topics"]
    assert [cell["partition_index"] for cell in row["partitions"]] == [0]


@pytest.mark.parametrize("count", [2, 100, 50_000])
def test_a_group_is_described_once(connection, count):
    answer = decode(DESCRIBE_GROUPS, 0, connection.call(
        DESCRIBE_GROUPS, 0, raw.array([raw.string("g")] * count)))
    assert [row["group_id"] for row in answer["groups"]] == ["g"]


def test_many_groups_are_described_in_the_order_of_the_request(connection):
    names = [f"group-{number}" for number in range(20_000)]
    answer = decode(DESCRIBE_GROUPS, 0, connection.call(
        DESCRIBE_GROUPS, 0, raw.array([raw.string(name) for name in names])))
    assert [row["group_id"] for row in answer["groups"]] == names


def test_response_keeps_the_order_of_many_requested_partitions(broker, connection):
    topic = unique("many")
    create_topic(broker.port, topic, partitions=3)
    wanted = [(topic, 3), ("gone", 2000), (topic + "x", 700)]
    answer = ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[
        {"name": name, "partitions": [
            {"partition_index": index, "timestamp": -1} for index in range(count)]}
        for name, count in wanted])
    assert [(row["name"], [cell["partition_index"] for cell in row["partitions"]])
            for row in answer["topics"]] == [(name, list(range(n))) for name, n in wanted]
    assert [cell["error_code"] for cell in answer["topics"][0]["partitions"]] == [0] * 3
    assert {cell["error_code"] for cell in answer["topics"][1]["partitions"]} == {3}


def test_a_partition_that_is_named_twice_far_apart_is_rejected_once(broker, connection):
    topic = unique("twice")
    create_topic(broker.port, topic)
    cell = {"partition_index": 0, "timestamp": -1}
    answer = ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[
        {"name": topic, "partitions": [cell]},
        {"name": "gone", "partitions": [
            {"partition_index": index, "timestamp": -1} for index in range(2000)]},
        {"name": topic, "partitions": [cell]}])
    told = [cell["error_code"] for row in answer["topics"] if row["name"] == topic
            for cell in row["partitions"]]
    assert told == [42]


def test_truncated_long_request_is_rejected_completely(broker, connection):
    body = raw.array([raw.string("g")] * 5000)[:-1]
    connection.send(frame(header(DESCRIBE_GROUPS, 0) + body))
    assert connection.closed()


def test_a_request_longer_than_the_setting_is_closed_before_it_is_read(connection):
    connection.send(struct.pack(">i", 33 * MIB) + header(DESCRIBE_GROUPS, 0))
    assert connection.closed()


def test_heartbeats_are_answered_during_long_requests(broker):
    names = [raw.string(f"group-{number}") for number in range(200_000)]
    body, done = raw.array(names), threading.Event()

    def describe():
        with Connection(broker.port, wait_s=300) as connection:
            connection.call(DESCRIBE_GROUPS, 0, body)
        done.set()

    thread = threading.Thread(target=describe)
    thread.start()
    beats = 0
    with Connection(broker.port, wait_s=60) as connection:
        beat = raw.string("none") + struct.pack(">i", 1) + raw.string("m")
        while not done.is_set():
            connection.call(HEARTBEAT, 0, beat)
            beats += 1
            time.sleep(0.005)
    thread.join()
    assert beats > 5
