"""Transactions: what is open, who holds back a partition, and ends by force."""

import pytest
from confluent_kafka import KafkaException, Producer

from tests.tools.support import run, topic_of
from tests.wire.talk import unique

WAIT_S = 30


def begun(broker, topic: str) -> tuple[Producer, str]:
    """A producer with a record in an open transaction, and its id."""
    id_ = unique("txn")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": id_})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    producer.flush(WAIT_S)
    return producer, id_


def holding(broker, topic: str) -> list:
    return run("txn", "holding", f"{topic}-0", "--json", broker=broker).json


def test_an_open_transaction_is_listed_described_and_named_as_what_holds_back(brokerd):
    topic = topic_of(brokerd)
    producer, id_ = begun(brokerd, topic)
    listed = run("txn", "list", "--state", "Ongoing", "--json", broker=brokerd).json
    assert id_ in [row["transactional_id"] for row in listed]
    described = run("txn", "describe", id_, "--json", broker=brokerd).json[0]
    assert (described["state"], described["partitions"]) == ("Ongoing", f"{topic}-0")
    held = holding(brokerd, topic)
    assert [(row["transactional_id"], row["transaction_start"]) for row in held] == [(id_, 0)]
    producer.commit_transaction(WAIT_S)
    assert holding(brokerd, topic) == []


def test_a_transaction_is_terminated_and_its_producer_fenced(brokerd):
    topic = topic_of(brokerd)
    producer, id_ = begun(brokerd, topic)
    run("txn", "forcibly-terminate", id_, "--yes", broker=brokerd)
    assert holding(brokerd, topic) == []
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)


def test_one_partition_is_freed_of_a_producer(brokerd):
    topic = topic_of(brokerd)
    producer, _ = begun(brokerd, topic)
    number = holding(brokerd, topic)[0]["producer_id"]
    run("txn", "abort", f"{topic}-0", "--producer-id", str(number), "--yes", broker=brokerd)
    assert holding(brokerd, topic) == []
    del producer


@pytest.mark.parametrize("words", [("--sample",), ()])
def test_the_producer_that_holds_a_group_back_is_named(target, words):
    topic, group = topic_of(target, 1), unique("group")
    producer, id_ = begun(target, topic)
    run("groups", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute", broker=target)
    view = run("groups", "explain", group, "-s", 0.2, "--json", *words, broker=target).json
    found = {row["reason"]: row for row in view["reasons"]}["open_transaction"]
    assert found["holder"]["transactional_id"] == id_
    assert f"It is of transactional id {id_}, open in {topic}-0 from offset 0 on" in found["text"]
    producer.abort_transaction(WAIT_S)
