"""Transactions: open ones, the producer that blocks a partition, and forced aborts."""

import pytest
from confluent_kafka import KafkaException, Producer

from tests.tools.support import run, topic_of
from tests.wire.talk import unique

WAIT_S = 30


def begun(broker, topic: str) -> tuple[Producer, str]:
    """Return a producer with a record in an open transaction, and its id."""
    id_ = unique("txn")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": id_})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    producer.flush(WAIT_S)
    return producer, id_


def holding(broker, topic: str) -> list:
    return run("txn", "holding", f"{topic}-0", "--json", broker=broker).json


def test_open_transaction_is_listed_described_and_named_as_blocking(brokerd):
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


def test_producer_is_aborted_in_one_partition(brokerd):
    topic = topic_of(brokerd)
    producer, _ = begun(brokerd, topic)
    number = holding(brokerd, topic)[0]["producer_id"]
    run("txn", "abort", f"{topic}-0", "--producer-id", str(number), "--force", "--yes",
        broker=brokerd)
    assert holding(brokerd, topic) == []
    del producer


def test_tracked_transaction_is_not_aborted_in_one_partition(target):
    topic = topic_of(target, 2)
    producer, id_ = begun(target, topic)
    number = holding(target, topic)[0]["producer_id"]
    refused = run("txn", "abort", f"{topic}-0", "--producer-id", str(number), "--yes",
                  broker=target, fails=True)
    assert f"pylog txn forcibly-terminate {id_} aborts it in all partitions" in refused.err
    assert len(holding(target, topic)) == 1
    # A partition that is not part of the transaction has nothing to abort.
    nothing = run("txn", "abort", f"{topic}-1", "--producer-id", str(number), "--yes",
                  broker=target, fails=True)
    assert f"producer {number} has no open transaction in {topic}-1" in nothing.err
    producer.commit_transaction(WAIT_S)
    assert [row["value"] for row in run(
        "consume", topic, "--read-committed", "--json", broker=target).lines] == ["v"]


def test_state_filter_ignores_case_and_rejects_misspellings(brokerd):
    producer, id_ = begun(brokerd, topic_of(brokerd))
    listed = run("txn", "list", "--state", "ongoing", "--json", broker=brokerd).json
    assert id_ in [row["transactional_id"] for row in listed]
    refused = run("txn", "list", "--state", "Open", broker=brokerd, fails=True).err
    assert "preparecommit" in refused.lower()
    producer.abort_transaction(WAIT_S)


@pytest.mark.parametrize("words", [("holding",), ("abort", "--producer-id", "1", "--yes")])
def test_misspelt_partition_is_not_awaited(brokerd, words):
    topic = topic_of(brokerd, 2)
    command, *more = words
    missing = run("txn", command, f"{topic}x-0", *more, broker=brokerd, fails=True)
    assert f"there is no topic '{topic}x'; nearest valid name: {topic}" in missing.err
    beyond = run("txn", command, f"{topic}-2", *more, broker=brokerd, fails=True)
    assert f"topic {topic} has no partition 2" in beyond.err


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
