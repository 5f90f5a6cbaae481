"""Metrics of clients, and their reporters."""

import time

import pytest

from pylog.client import Consumer, Producer, TopicPartition
from pylog.client.network.metrics import TOPICS_MAX, Records
from tests.wire.talk import create_topic, unique


def test_producer_and_consumer_count_records_bytes_and_requests(brokerd):
    topic = unique("counted")
    create_topic(brokerd.port, topic, 2)
    with Producer(bootstrap_servers=brokerd.bootstrap) as producer:
        for number in range(1000):
            producer.send(topic, b"v" * 50, b"%d" % number)
        producer.flush()
        sent = producer.metrics()
    own = sent["producer-metrics"]
    assert own["record-send-total"] == 1000 and own["record-error-total"] == 0
    assert own["byte-total"] > 50_000 and own["buffer-available-bytes"] > 0
    assert own["response-total"] >= 3 and 0 < own["request-latency-avg"] <= own[
        "request-latency-max"]
    assert sent[f"producer-topic-metrics.{topic}"]["record-send-total"] == 1000
    with Consumer(bootstrap_servers=brokerd.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        consumer.seek_to_beginning()
        count = 0
        while count < 1000:
            count += len(consumer.poll(5))
        read = consumer.metrics()
    own = read["consumer-fetch-manager-metrics"]
    assert own["records-consumed-total"] == 1000 and own["records-lag-max"] == 0
    assert own["bytes-consumed-total"] > 50_000
    assert read[f"consumer-fetch-manager-metrics.{topic}"]["records-consumed-total"] == 1000
    assert read["consumer-coordinator-metrics"]["assigned-partitions"] == 2


def test_statistics_callback_is_called_periodically(brokerd):
    found = []

    def take(metrics) -> None:
        found.append(metrics["producer-metrics"]["request-total"])
        raise ValueError("the application's own")

    with Producer(bootstrap_servers=brokerd.bootstrap, statistics_interval_ms=10, stats_cb=take):
        end_s = time.monotonic() + 30
        while len(found) < 2 and time.monotonic() < end_s:
            time.sleep(0.01)
    assert len(found) >= 2


def test_topics_that_are_counted_are_bounded():
    counts = Records()
    for number in range(TOPICS_MAX * 2):
        counts.batch(f"t{number}", 1, 10)
    counts.lost("t0", 3)
    assert len(counts.topics) == TOPICS_MAX + 1
    assert counts.records == TOPICS_MAX * 2 and sum(
        row[0] for row in counts.topics.values()) == TOPICS_MAX * 2
    assert counts.by_topic("g", ("a", "b", "c"))["g.t0"] == {"a": 1, "b": 10, "c": 3}


def test_instruments_and_traces_reach_open_telemetry(brokerd):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider

    from pylog.client import telemetry

    topic, reader = unique("traced"), InMemoryMetricReader()
    create_topic(brokerd.port, topic, 1)
    tracing = telemetry.Tracing(TracerProvider())
    with Producer(bootstrap_servers=brokerd.bootstrap, interceptor_classes=[tracing]) as producer:
        telemetry.observe(producer, MeterProvider([reader]))
        producer.send(topic, b"v", headers={"own": b"1"})
        producer.flush()
        data = reader.get_metrics_data()
    values = {metric.name: metric.data.data_points[0].value
              for resource in data.resource_metrics for scope in resource.scope_metrics
              for metric in scope.metrics}
    assert values["kafka.producer_metrics.record_send_total"] == 1
    with Consumer(bootstrap_servers=brokerd.bootstrap, interceptor_classes=[tracing]) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        (record,) = consumer.poll(30)
    assert ("own", b"1") in record.headers and telemetry.context_of(record) is not None
