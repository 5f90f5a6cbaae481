"""kill -9 in a loop under load.

The page cache survives a kill, so this finds acknowledgements before the write, torn tails and lost
state. test_power_cut.py finds missing flushes.
"""

import time

import pytest

from tests.durability.load import Writer, check, read_all
from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.talk import create_topic, unique

pytestmark = pytest.mark.timeout(280)


def _kill_loop(broker: Brokerd, generator, rounds: int, acks: int) -> None:
    topic = unique("killed")
    identity = create_topic(broker.port, topic, 4, segment_bytes=1 << 20)
    writers = [Writer(number, broker.port, topic, number, idempotent=number % 2 == 0, acks=acks,
                      codec=[raw.NONE, raw.LZ4, raw.ZSTD, raw.NONE][number],
                      value_bytes=[100, 300, 1000, 3000][number]).start() for number in range(4)]
    for turn in range(rounds):
        time.sleep(generator.uniform(0.1, 0.8))
        broker.kill()
        broker.start()
        with Connection(broker.port) as connection:
            row = ask(connection, raw.METADATA, 12, topics=[{"name": topic, "topic_id": None}],
                      allow_auto_topic_creation=False)["topics"][0]
        assert (row["topic_id"], len(row["partitions"])) == (identity, 4), turn
    for writer in writers:
        writer.wait_acked(20)
    for writer in writers:
        writer.stop()
    for writer in writers:
        assert not set(writer.errors) & {2, 45, 47, 87}, writer.errors
        rows = read_all(broker.port, topic, writer.partition)
        assert check(writer, rows) == writer.acked_records > 0
    assert broker.stop() == 0
    broker.start()
    for writer in writers:
        check(writer, read_all(broker.port, topic, writer.partition))
    assert broker.alarms() == []


@pytest.mark.parametrize("acks, rounds", [
    (-1, 5), (1, 4), pytest.param(-1, 40, marks=pytest.mark.slow),
    pytest.param(1, 40, marks=pytest.mark.slow)])
def test_kill_9_under_load_keeps_every_acknowledged_record_once_and_in_order(
        ram, random_source, acks, rounds):
    with Brokerd(ram) as broker:
        _kill_loop(broker, random_source, rounds, acks)


def test_kill_during_recovery_loses_nothing(ram, random_source):
    with Brokerd(ram) as broker:
        topic = unique("twice-killed")
        create_topic(broker.port, topic)
        writer = Writer(0, broker.port, topic, 0, idempotent=True).start()
        writer.wait_acked(500)
        broker.kill()
        for _ in range(5):
            broker.spawn()
            time.sleep(random_source.uniform(0.02, 0.3))
            broker.kill()
        broker.start()
        writer.stop()
        assert check(writer, read_all(broker.port, topic, 0)) == writer.acked_records > 0


def test_clean_stop_keeps_topic_ids_records_and_producer_state(ram):
    with Brokerd(ram) as broker:
        topic = unique("stopped")
        identity = create_topic(broker.port, topic, 3, retention_ms=123456789)
        writer = Writer(0, broker.port, topic, 2, idempotent=True).start()
        writer.wait_acked(100)
        with Connection(broker.port) as connection:
            cluster = ask(connection, 60, 0)["cluster_id"]
        assert broker.stop() == 0
        broker.start()
        writer.wait_acked(100)
        writer.stop()
        assert not set(writer.errors) & {45, 47}
        assert check(writer, read_all(broker.port, topic, 2)) == writer.acked_records > 0
        with Connection(broker.port) as connection:
            assert ask(connection, 60, 0)["cluster_id"] == cluster
            row = ask(connection, raw.METADATA, 12, topics=[{"name": topic, "topic_id": None}],
                      allow_auto_topic_creation=False)["topics"][0]
        assert (row["topic_id"], len(row["partitions"])) == (identity, 3)
        assert broker.alarms() == []


def test_deleted_topic_stays_deleted_after_a_kill(ram):
    with Brokerd(ram) as broker:
        topic, kept = unique("deleted"), unique("kept")
        create_topic(broker.port, topic)
        create_topic(broker.port, kept)
        with Connection(broker.port) as connection:
            answer = ask(connection, raw.DELETE_TOPICS, 6, timeout=5000,
                         topics=[{"name": topic, "topic_id": None}])
            assert answer["responses"][0]["error_code"] == 0
        broker.kill()
        broker.start()
        with Connection(broker.port) as connection:
            rows = ask(connection, raw.METADATA, 12, topics=None,
                       allow_auto_topic_creation=False)["topics"]
        assert kept in {row["name"] for row in rows}
        assert topic not in {row["name"] for row in rows}


def test_a_data_directory_is_not_opened_twice(ram):
    from tests.fixtures.brokers import BrokerDied

    with Brokerd(ram / "first") as broker:
        second = Brokerd(ram / "second", data_dir=broker.data_dir)
        with pytest.raises(BrokerDied):
            second.start(wait_s=10)
        assert broker.alive()
