"""A broker that restarts while a consumer works."""

import time

import pytest

from pylog.client import Admin, Consumer, TopicPartition, errors
from tests.client.support import as_rows, collect, new_name, new_topic, poll_until, put, rows
from tests.fixtures.brokers import Brokerd


@pytest.fixture
def broker(tmp_path):
    with Brokerd(tmp_path, {"group.initial.rebalance.delay.ms": "0"}) as made:
        yield made


def quick(broker, **settings):
    return Consumer({"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest",
                     "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100,
                     "heartbeat.interval.ms": 200}, **settings)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_reading_continues_after_a_restart_without_loss_or_duplicates(broker, end):
    topic = new_topic(broker)
    put(broker, topic, rows(100))
    with quick(broker) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found = collect(consumer, 60)
        getattr(broker, end)()
        found += consumer.poll(0.3)
        broker.start()
        put(broker, topic, rows(100, 100))
        found += collect(consumer, 200 - len(found))
        assert as_rows(found) == rows(200)


def test_member_rejoins_after_a_restart_and_resumes_from_its_commits(broker):
    topic, group = new_topic(broker, 2), new_name("g")
    put(broker, topic, rows(40))
    with quick(broker, group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        assert len(collect(consumer, 40)) == 40
        consumer.commit()
        broker.kill()
        assert consumer.poll(0.2) == []
        broker.start()
        put(broker, topic, rows(40, 40))
        found = collect(consumer, 40)
        assert as_rows(found) == rows(40, 40)
        consumer.commit()
        assert consumer.committed([TopicPartition(topic, 0)])[topic, 0].offset == 80
        poll_until([consumer], lambda: len(consumer.assignment()) == 2, "both partitions")


def test_calls_wait_for_the_broker_and_give_up_in_time(broker):
    topic = new_topic(broker)
    with quick(broker) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.poll(0.2)
        broker.kill()
        began_s = time.monotonic()
        with pytest.raises(errors.KafkaTimeoutError):
            consumer.end_offsets([TopicPartition(topic, 0)], timeout=0.5)
        assert time.monotonic() - began_s < 5
        broker.start()
        assert consumer.end_offsets([TopicPartition(topic, 0)]) == {(topic, 0): 0}


def test_recreated_topic_is_read_from_its_beginning(broker):
    topic = new_topic(broker)
    put(broker, topic, rows(30))
    with quick(broker, metadata_max_age_ms=200, allow_auto_create_topics=False) as consumer, \
            Admin(bootstrap_servers=broker.bootstrap) as admin:
        consumer.assign([TopicPartition(topic, 0)])
        assert len(collect(consumer, 30)) == 30
        admin.delete_topics([topic])
        consumer.poll(0.5)
        admin.create_topics([topic])
        put(broker, topic, rows(5, 500))
        assert as_rows(collect(consumer, 5)) == rows(5, 500)


def test_close_without_a_broker_is_bounded(broker):
    topic = new_topic(broker)
    consumer = quick(broker, group_id=new_name("g"))
    consumer.subscribe([topic])
    poll_until([consumer], lambda: consumer.assignment(), "the partition")
    broker.kill()
    began_s = time.monotonic()
    consumer.close(timeout=1.0)
    assert time.monotonic() - began_s < 4
