"""A failed fdatasync: no waiting record is acknowledged, and its log directory goes offline.

After such a failure the kernel may have dropped the dirty pages, and a second sync would report
success for lost data, so a retry proves nothing.
"""

import errno

import pytest

from tests.durability.disk import environment
from tests.fixtures.brokers import Brokerd, answers
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Closed, Connection, batch
from tests.wire.talk import create_topic, fetch, produce, unique

STORAGE_ERROR = 56


@pytest.fixture
def failing(ram, preload):
    """(broker, faults file): a broker whose flushes fail when the file contains a line for it."""
    faults = ram / "faults"
    broker = Brokerd(ram / "run", environment=environment(preload, ram / "run" / "data",
                                                          faults=faults))
    with broker:
        yield broker, faults


def _codes(port: int, topic: str, count: int, acks: int = -1) -> list[int | str]:
    """Return the responses to `count` appends on new connections."""
    codes: list[int | str] = []
    for _ in range(count):
        try:
            with Connection(port, wait_s=10) as connection:
                codes.append(produce(connection, topic, batch(), acks=acks)["error_code"])
        except (Closed, OSError):
            codes.append("closed")
    return codes


def test_failed_flush_is_neither_acknowledged_nor_retried(failing):
    broker, faults = failing
    topic, other = unique("unflushed"), unique("other")
    create_topic(broker.port, topic)
    create_topic(broker.port, other)
    assert _codes(broker.port, topic, 3) == [0, 0, 0]
    faults.write_text(f"sync .log {errno.EIO}\n")
    assert 0 not in _codes(broker.port, topic, 3)
    faults.unlink()
    assert 0 not in _codes(broker.port, topic, 3), "a later flush that succeeds proves nothing"
    assert 0 not in _codes(broker.port, other, 2), "the whole log directory is offline"


def test_failed_flush_returns_kafka_storage_error(failing):
    broker, faults = failing
    topic = unique("unflushed")
    create_topic(broker.port, topic)
    faults.write_text(f"sync .log {errno.EIO}\n")
    codes = _codes(broker.port, topic, 1)
    assert set(codes) <= {STORAGE_ERROR, "closed"}, codes


def test_flushed_records_survive_a_restart_and_appends_continue(failing):
    broker, faults = failing
    topic = unique("unflushed")
    create_topic(broker.port, topic)
    assert _codes(broker.port, topic, 3) == [0, 0, 0]
    faults.write_text(f"sync .log {errno.EIO}\n")
    _codes(broker.port, topic, 2)
    faults.unlink()
    broker.kill()
    broker.start()
    with Connection(broker.port) as connection:
        assert fetch(connection, topic, 0)["high_watermark"] >= 3
    assert _codes(broker.port, topic, 1) == [0]


def test_other_log_directories_continue_when_one_is_offline(ram, preload):
    faults = ram / "faults"
    good, bad = ram / "run" / "good", ram / "run" / "bad"
    broker = Brokerd(ram / "run", {"log.dirs": f"{good},{bad}"},
                     environment=environment(preload, ram / "run", faults=faults), data_dir=good)
    with broker:
        topic = unique("spread")
        create_topic(broker.port, topic, 6)
        faults.write_text(f"sync {bad}/ {errno.EIO}\n")
        codes = {}
        for partition in range(6):
            home = "bad" if (bad / f"{topic}-{partition}").exists() else "good"
            with Connection(broker.port) as connection:
                row = produce(connection, topic, batch(), partition=partition)
            codes.setdefault(home, set()).add(row["error_code"])
        assert codes["good"] == {0}
        assert 0 not in codes.get("bad", set())
        assert answers(broker.port)


def test_metadata_is_not_acknowledged_when_its_flush_fails(failing):
    broker, faults = failing
    faults.write_text(f"sync __cluster_metadata {errno.EIO}\n")
    name = unique("unflushed-topic")
    code = None
    try:
        with Connection(broker.port, wait_s=10) as connection:
            code = ask(connection, raw.CREATE_TOPICS, 7, timeout=5000, topics=[
                {"name": name, "num_partitions": 1, "replication_factor": 1}])["topics"][0][
                    "error_code"]
    except (Closed, OSError):
        code = "closed"
    assert code != 0
