"""A share group whose topic moves to another log directory of its broker."""

import time

import pytest

from pylog.client import Admin, ConfigResource, ResourceType, ShareConsumer
from pylog.testing import Broker
from tests.wire.messages import ask
from tests.wire.raw import Connection

pytestmark = pytest.mark.timeout(120)
ALTER_LOG_DIRS, LOG_DIRS = 34, 35
SETTINGS = {"share.coordinator.state.topic.num.partitions": 1, "offsets.topic.num.partitions": 1}
WAIT_S = 30


def places(connection) -> dict:
    """Return log directory -> True if its copy of the topic's partition is incomplete."""
    answer = ask(connection, LOG_DIRS, 5, topics=[{"topic": "t", "partitions": [0]}])
    return {row["log_dir"]: partition["is_future_key"] for row in answer["results"]
            for topic in row["topics"] for partition in topic["partitions"]}


def move(broker) -> None:
    with Connection(broker.port) as connection:
        here, = places(connection)
        there = next(path for path in broker.log_dirs if path != here)
        answer = ask(connection, ALTER_LOG_DIRS, 2, dirs=[
            {"path": there, "topics": [{"name": "t", "partitions": [0]}]}])
        assert answer["results"][0]["partitions"][0]["error_code"] == 0
        end_s = time.monotonic() + WAIT_S
        while places(connection) != {there: False}:
            assert time.monotonic() < end_s, places(connection)
            time.sleep(0.05)


def take(consumer, count: int) -> list:
    found, end_s = [], time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < end_s, found
        found += [record.value for record in consumer.poll(0.5)]
    return found


def test_records_after_a_move_are_delivered(tmp_path):
    with Broker(tmp_path, settings=SETTINGS, log_dirs=2) as broker:
        topic = broker.create_topic("t")
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, "g"): {
                "share.auto.offset.reset": "earliest"}})
        topic.append("before")
        with ShareConsumer(bootstrap_servers=broker.bootstrap, group_id="g") as consumer:
            consumer.subscribe(["t"])
            assert take(consumer, 1) == [b"before"]
            consumer.commit()
            move(broker)
            topic.append("after")
            assert take(consumer, 1) == [b"after"]
