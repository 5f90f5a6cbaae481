"""Pages while brokers are down or do not respond: pages name failures, other parts work."""

import json
import time

import pytest

from pylog.client import Admin, Producer
from pylog.client.admin.types import NewTopic
from pylog.client.types import TopicPartition
from pylog.testing import Broker, Cluster
from tests.console.served import WAIT_S, Served

SHORT = {"request.timeout.ms": 1000, "default.api.timeout.ms": 2000}


def until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster():
    """Yield a cluster of two brokers, after the second has stopped."""
    with Cluster(2) as one:
        with Admin(bootstrap_servers=one.bootstrap) as admin:
            admin.create_topics([NewTopic("both", replica_assignments={0: [1, 2]}),
                                 NewTopic("second", replica_assignments={0: [2]})])
            with Producer(bootstrap_servers=one.bootstrap) as producer:
                producer.send("both", b"one").result()
                producer.send("second", b"one").result()
            admin.alter_consumer_group_offsets("g", {TopicPartition("both", 0): 0})
        one.brokers[2].close()
        yield one


@pytest.fixture(scope="module")
def served(cluster):
    with Served({"test": {"bootstrap.servers": cluster.brokers[1].bootstrap, **SHORT}}) as one:
        yield one


def test_the_overview_names_offline_partitions_and_missing_brokers(client):
    until(lambda: "no leader" in client.get("/").text)
    text = client.get("/").text
    assert "These brokers have replicas but do not run: 2." in text
    assert "1 of 2 replicas in sync" in text
    assert "Controllers" in text and "active" in text


def test_numbers_of_an_offline_partition_are_unknown_and_not_zero(client):
    until(lambda: "no leader" in client.get("/").text)
    row, = json.loads(client.get("/topics?q=second&format=json").text)["rows"]
    assert (row["records"], row["problems"]) == (None, 1)
    assert "unknown" in client.get("/topics?q=second").text
    assert "unknown" in client.get("/topics/second").text


def test_other_partitions_work_while_one_is_offline(client):
    row, = json.loads(client.get("/topics?q=both&format=json").text)["rows"]
    assert row["records"] == 1
    assert "The search is complete" in client.get("/topics/both/records").text
    assert client.get("/groups/g").status == 200


def test_searches_of_an_offline_partition_are_not_called_empty(client):
    text = client.get("/topics/second/records").text
    assert "No record matches" not in text and "The search is complete" not in text


def test_pages_of_a_silent_broker_end_with_a_reason_and_others_go_on():
    with Broker(process=True) as broker:
        broker.create_topic("seen").append(b"one")
        with Served({"test": {"bootstrap.servers": broker.bootstrap, **SHORT}}) as served:
            client = served.client()
            assert client.get("/topics/seen/records").status == 200
            broker.pause()
            try:
                for path in ("/", "/topics/seen/records"):
                    response = client.get(path)
                    assert response.status in (502, 504), path
                    assert "There are none" not in response.text
                assert client.get("/about").status == 200
            finally:
                broker.resume()
            assert client.get("/topics/seen/records").status == 200
