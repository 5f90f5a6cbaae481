"""A power cut loses all unsynced data or a random part of it.

Every record acknowledged with acks=all and every acknowledged topic must survive. The disks come
from the broker's recorded file system calls (disk.py), cut at the kill and at earlier times.
"""

import random
import shutil
import time

import pytest

from tests.durability.disk import MAP, PowerCut, environment, read_record
from tests.durability.load import Writer, check, read_all
from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.talk import create_topic, unique

pytestmark = pytest.mark.timeout(280)
CUTS = 10


def _load(ram, preload, load_s: float):
    """Run writers against a recorded broker and kill it.

    Return (events, root, topic, writers, ready_ns).
    """
    root, record = ram / "run", ram / "record"
    data = root / "data"
    data.mkdir(parents=True)
    broker = Brokerd(root, environment=environment(preload, data, record), data_dir=data)
    with broker:
        topic = unique("cut")
        create_topic(broker.port, topic, 3, segment_bytes=1 << 20)
        ready_ns = time.monotonic_ns()
        writers = [Writer(number, broker.port, topic, number, idempotent=number != 1,
                          value_bytes=[100, 400, 2000][number],
                          codec=[raw.NONE, raw.LZ4, raw.ZSTD][number],
                          pause_s=0.002).start() for number in range(3)]
        time.sleep(load_s)
        for writer in writers:
            writer.wait_acked(50)
        broker.kill()
        for writer in writers:
            writer.stop()
        assert broker.alarms() == []
    return read_record(record), data, topic, writers, ready_ns


def _lmdb(path: str) -> bool:
    return "state.lmdb" in path


def _examine(ram, cut: PowerCut, generator, topic: str, writers, until_ns: int | None) -> int:
    """Start a broker on the disk of `cut` and return the number of surviving acknowledged records.
    """
    goal = ram / "after"
    shutil.rmtree(goal, ignore_errors=True)
    (goal / "data").mkdir(parents=True)
    cut.write_to(goal / "data", generator)
    with Brokerd(goal) as broker:
        found = sum(check(writer, read_all(broker.port, topic, writer.partition), until_ns)
                    for writer in writers)
        with Connection(broker.port) as connection:
            row = ask(connection, raw.METADATA, 12, topics=[{"name": topic, "topic_id": None}],
                      allow_auto_topic_creation=False)["topics"][0]
        assert len(row["partitions"]) == 3
        assert broker.alarms() == []
    return found


def test_acknowledged_records_survive_a_power_cut(ram, preload, random_source):
    events, root, topic, writers, ready_ns = _load(ram, preload, 2.0)
    total = sum(writer.acked_records for writer in writers)
    assert total > 100
    assert {event.path for event in events if event.type == MAP and not _lmdb(event.path)} == set()
    cut = PowerCut(events, root)
    assert _examine(ram, cut, None, topic, writers, None) == total
    for _ in range(3):
        seed = random_source.randrange(1 << 30)
        assert _examine(ram, cut, random.Random(seed), topic, writers, None) == total, seed
    first = next(number for number, event in enumerate(events) if event.time_ns > ready_ns)
    for turn in range(CUTS):
        count = random_source.randrange(first, len(events))
        cut = PowerCut(events, root, count)
        generator = random.Random(turn) if turn % 2 else None
        _examine(ram, cut, generator, topic, writers, events[count].time_ns)


@pytest.mark.slow
def test_acknowledged_records_survive_any_of_a_hundred_power_cuts(ram, preload, random_source):
    events, root, topic, writers, ready_ns = _load(ram, preload, 4.0)
    first = next(number for number, event in enumerate(events) if event.time_ns > ready_ns)
    for turn in range(100):
        count = random_source.randrange(first, len(events))
        cut = PowerCut(events, root, count)
        generator = random.Random(turn) if turn % 3 else None
        _examine(ram, cut, generator, topic, writers, events[count].time_ns)


@pytest.mark.kafka
def test_the_same_power_cut_loses_acknowledged_records_of_kafka(ram, preload, monkeypatch,
                                                                  against):
    """Proof of the method: it must find the known data loss of Kafka's defaults."""
    if against != "kafka":
        pytest.skip("with --against kafka")
    from tests.fixtures.brokers import Kafka

    data, record = ram / "kafka", ram / "record"
    data.mkdir()
    for key, value in environment(preload, data, record).items():
        monkeypatch.setenv(key, value)
    with Kafka(ram) as broker:
        for key in environment(preload, data, record):
            monkeypatch.delenv(key)
        topic = unique("cut")
        create_topic(broker.port, topic, 1)
        writer = Writer(0, broker.port, topic, 0, idempotent=False).start()
        writer.wait_acked(200)
        broker.kill()
        writer.stop()
    events = read_record(record)
    assert writer.acked_records > 100
    goal = ram / "after"
    goal.mkdir()
    PowerCut(events, data).write_to(goal)
    logs = list(goal.glob(f"{topic}-0/*.log"))
    assert sum(path.stat().st_size for path in logs) == 0
