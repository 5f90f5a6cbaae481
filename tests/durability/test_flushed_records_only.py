"""consume.flushed.records.only: consumers read a record of a single replica only after its flush.

The preloaded shim blocks every flush of the topic's files while its faults file requests that.
"""

import threading
import time
import uuid
from functools import partial

import pytest

from pylog.client import (
    Admin, ConfigResource, Consumer, NewTopic, Producer, ResourceType, ShareConsumer,
    TopicPartition,
)
from tests.durability.disk import environment
from tests.fixtures.brokers import Brokerd
from tests.fixtures.clusters import Cluster, until
from tests.wire.raw import Connection, batch
from tests.wire.talk import create_topic, fetch, produce, unique

SETTING = "consume.flushed.records.only"
WAIT_S = 60
QUIET_S = 0.5  # Twice fetch.max.wait.ms: a readable record would arrive within this time.


class Held:
    """A broker whose flushes of one topic can be blocked."""

    def __init__(self, broker, folder, preload):
        self.broker, self._faults = broker, folder / "faults"
        broker.environment = environment(preload, broker.data_dir, faults=self._faults)

    def hold(self, topic):
        self._faults.write_text(f"hold /{topic}- 1\n")

    def release(self):
        self._faults.unlink(missing_ok=True)


@pytest.fixture
def held(ram, preload):
    one = Held(Brokerd(ram / "run", {SETTING: "true"}), ram, preload)
    with one.broker:
        yield one
        one.release()


def high_watermark(port, topic):
    with Connection(port) as connection:
        return fetch(connection, topic)["high_watermark"]


def write(port, topic, acks=1):
    with Connection(port, wait_s=WAIT_S) as connection:
        assert produce(connection, topic, batch(), acks=acks)["error_code"] == 0


def stays_hidden(port, topic, end=0):
    limit = time.monotonic() + QUIET_S
    while time.monotonic() < limit:
        assert high_watermark(port, topic) == end
        time.sleep(0.02)


def test_record_is_hidden_until_flushed(held):
    port, topic = held.broker.port, unique("hidden")
    create_topic(port, topic)
    held.hold(topic)
    write(port, topic)
    stays_hidden(port, topic)
    with Consumer(bootstrap_servers=held.broker.bootstrap, group_id=None,
                  auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert not consumer.poll(QUIET_S)
        held.release()
        assert until(lambda: consumer.poll(1.0), WAIT_S)[0].offset == 0


def test_acks_all_waits_for_the_flush(held):
    port, topic = held.broker.port, unique("all")
    create_topic(port, topic)
    held.hold(topic)
    writer = threading.Thread(target=write, args=(port, topic, -1))
    writer.start()
    try:
        stays_hidden(port, topic)
        assert writer.is_alive()
    finally:
        held.release()
        writer.join(WAIT_S)
    assert not writer.is_alive() and high_watermark(port, topic) == 1


def test_the_setting_changes_at_run_time_in_both_directions(held):
    port, topic = held.broker.port, unique("live")
    create_topic(port, topic)

    def change(value):
        with Admin(bootstrap_servers=held.broker.bootstrap) as admin:
            admin.incremental_alter_configs(
                {ConfigResource(ResourceType.BROKER, ""): {SETTING: value}})

    held.hold(topic)
    write(port, topic)
    stays_hidden(port, topic)
    change("false")
    until(lambda: high_watermark(port, topic) == 1, WAIT_S)
    change("true")

    def hides():
        end = high_watermark(port, topic)
        write(port, topic)
        return high_watermark(port, topic) == end

    until(hides, WAIT_S)
    held.release()
    with Connection(port) as connection:
        until(lambda: not produce(connection, topic, batch())["error_code"], WAIT_S)


def test_transactions_and_share_groups_read_only_flushed_records(held):
    topic, bootstrap = unique("groups"), held.broker.bootstrap
    create_topic(held.broker.port, topic)
    with Admin(bootstrap_servers=bootstrap) as admin:
        group = f"g-{uuid.uuid4().hex[:8]}"
        admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, group): {
            "share.auto.offset.reset": "earliest"}})
    with Producer(bootstrap_servers=bootstrap, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"committed")
        producer.commit_transaction()
        with ShareConsumer(bootstrap_servers=bootstrap, group_id=group) as sharing, Consumer(
                bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest",
                isolation_level="read_committed") as consumer:
            sharing.subscribe([topic])
            consumer.assign([TopicPartition(topic, 0)])
            for reader in sharing, consumer:
                found = until(partial(reader.poll, 1.0), WAIT_S)
                assert [record.value for record in found] == [b"committed"]
            held.hold(topic)
            with Connection(held.broker.port) as connection:
                assert produce(connection, topic, batch(), acks=1)["error_code"] == 0
            for reader in sharing, consumer:
                assert not reader.poll(QUIET_S)
            held.release()
            for reader in sharing, consumer:
                found = until(partial(reader.poll, 1.0), WAIT_S)
                assert [record.offset for record in found] == [2]


def test_single_replica_topic_in_a_cluster_hides_unflushed_records(ram, preload):
    with_setting = Cluster(ram, settings={SETTING: "true"})
    held = Held(with_setting.brokers[2], ram, preload)
    topic = unique("single")
    with with_setting as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, replica_assignments={0: [2]})])
        until(lambda: high_watermark(held.broker.port, topic) == 0, WAIT_S)
        held.hold(topic)
        try:
            write(held.broker.port, topic)
            stays_hidden(held.broker.port, topic)
        finally:
            held.release()
        until(lambda: high_watermark(held.broker.port, topic) == 1, WAIT_S)
