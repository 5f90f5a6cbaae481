"""Clients with quotas: everything arrives, at the permitted rate."""

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.wire.talk import create_topic, unique
from tests.wire.test_quotas import limit

pytestmark = pytest.mark.timeout(300)
RATE, RECORDS, RECORD_BYTES = 100_000, 200, 10_000
# Time for the bytes beyond a burst of ten seconds' worth.
LEAST_S = (RECORDS * RECORD_BYTES - 11 * RATE) / RATE
PERF = "org.apache.kafka.tools.ProducerPerformance"
READ = "org.apache.kafka.tools.ConsumerPerformance"


@pytest.fixture
def client_id(target):
    name = unique("slow")
    limit(target.port, {"client-id": name}, producer_byte_rate=RATE, consumer_byte_rate=RATE)
    yield name
    limit(target.port, {"client-id": name}, producer_byte_rate=None, consumer_byte_rate=None)


def test_librdkafka_sends_and_receives_everything_at_its_rate(target, client_id):
    topic = unique("slow-topic")
    create_topic(target.port, topic)
    told = []
    producer = Producer({"bootstrap.servers": target.bootstrap, "client.id": client_id,
                         "throttle_cb": told.append, "message.timeout.ms": 120_000,
                         "batch.size": 20_000})
    start_s = time.monotonic()
    for number in range(RECORDS):
        producer.produce(topic, bytes([number]) * RECORD_BYTES, partition=0)
    assert producer.flush(120) == 0
    sent_s = time.monotonic() - start_s
    assert sent_s >= LEAST_S * 0.8, sent_s
    assert any(event.throttle_time > 0 for event in told)
    consumer = Consumer({
        "bootstrap.servers": target.bootstrap, "client.id": client_id, "group.id": "unused",
        "enable.auto.commit": False, "fetch.max.bytes": 100_000,
        "max.partition.fetch.bytes": 100_000, "message.max.bytes": 100_000,
        "receive.message.max.bytes": 1_000_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    start_s, values = time.monotonic(), []
    while len(values) < RECORDS and time.monotonic() - start_s < 120:
        values += [message.value() for message in consumer.consume(50, 1.0)]
    took_s = time.monotonic() - start_s
    consumer.close()
    assert values == [bytes([number]) * RECORD_BYTES for number in range(RECORDS)]
    assert took_s >= LEAST_S * 0.8, took_s


@pytest.mark.kafka
def test_java_clients_send_and_receive_everything_at_their_quota(target, client_id):
    from bench.kafka import run_tool

    topic = unique("slow-java")
    create_topic(target.port, topic)
    start_s = time.monotonic()
    done = run_tool(PERF, "--topic", topic, "--num-records", RECORDS, "--record-size", RECORD_BYTES,
                    "--throughput", -1, "--print-metrics", "--command-property",
                    f"bootstrap.servers={target.bootstrap}", f"client.id={client_id}",
                    "batch.size=20000", "enable.idempotence=false", wait_s=120, heap="128m")
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - start_s >= LEAST_S * 0.8
    throttled = [line for line in done.stdout.splitlines() if "produce-throttle-time-max" in line]
    assert throttled and float(throttled[0].rpartition(":")[2]) > 0, throttled
    start_s = time.monotonic()
    done = run_tool(READ, "--bootstrap-server", target.bootstrap, "--topic", topic,
                    "--num-records", RECORDS, "--timeout", 60_000, "--command-property",
                    f"client.id={client_id}", "fetch.max.bytes=100000",
                    "max.partition.fetch.bytes=100000", wait_s=120, heap="128m")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{RECORDS}," in done.stdout
    assert time.monotonic() - start_s >= LEAST_S * 0.8
