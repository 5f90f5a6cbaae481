"""The clients of pylog.client against a test broker, with and without faults."""

import time

import pytest

from pylog.client import Consumer, Producer

SECONDS_MAX = 20


@pytest.fixture(params=[False, True], ids=["threads", "process"])
def broker(request, make_broker):
    broker = make_broker(process=request.param)
    broker.create_topic("t", partitions=2)
    return broker


@pytest.fixture
def producer(broker):
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        yield producer


def _consumer(broker, **settings) -> Consumer:
    consumer = Consumer(bootstrap_servers=broker.bootstrap, group_id="g",
                        auto_offset_reset="earliest", **settings)
    consumer.subscribe(["t"])
    return consumer


def _read(consumer, count: int) -> list:
    found = []
    end_s = time.monotonic() + SECONDS_MAX
    while len(found) < count and time.monotonic() < end_s:
        found += [record.value for record in consumer.poll(0.2)]
    return sorted(found)


def test_an_idempotent_producer_writes_once_though_an_answer_is_lost(broker, producer):
    producer.send("t", b"first")
    producer.flush()
    fault = broker.faults.lose_answers("Produce")
    producer.send("t", b"second")
    producer.flush(SECONDS_MAX)
    assert fault.hits == 1
    broker.topic("t").assert_records(["first", "second"], any_order=True)


def test_a_consumer_survives_dropped_connections(broker, producer):
    with _consumer(broker) as consumer:
        producer.send("t", b"1")
        producer.flush()
        assert _read(consumer, 1) == [b"1"]
        assert broker.faults.drop_connections() > 0
        producer.send("t", b"2")
        producer.flush(SECONDS_MAX)
        assert _read(consumer, 1) == [b"2"]


@pytest.mark.parametrize("disturb", ["rebalance", "expire_session"])
def test_consumer_recovers_from_a_disturbed_group(broker, producer, disturb):
    with _consumer(broker, heartbeat_interval_ms=50) as consumer:
        producer.send("t", b"1")
        producer.flush()
        assert _read(consumer, 1) == [b"1"]
        consumer.commit()
        group = broker.group("g")
        getattr(group, disturb)()
        assert group.state != "Stable"
        producer.send("t", b"2")
        producer.flush()
        found = []
        end_s = time.monotonic() + SECONDS_MAX
        while (group.state != "Stable" or not found) and time.monotonic() < end_s:
            found += [record.value for record in consumer.poll(0.1)]
        assert b"2" in found and len(group.members()) == 1


def test_committed_offsets_can_be_queried(broker, producer):
    for number in range(10):
        producer.send("t", b"%d" % number, partition=number % 2)
    producer.flush()
    with _consumer(broker) as consumer:
        assert len(_read(consumer, 10)) == 10
        consumer.commit()
        assert broker.group("g").offsets() == {("t", 0): 5, ("t", 1): 5}
