"""After kill -9, a broker serves recovered partitions while it still recovers another."""

import os
import time

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection, batch, record
from tests.wire.talk import append, create_topic, fetch, produce

NOT_LEADER = 6


@pytest.fixture
def half_way(ram):
    """(a broker that cannot open "slow", a function that unblocks it)."""
    with Brokerd(ram) as broker:
        for name in ("slow", "quick"):
            create_topic(broker.port, name)
            append(broker.port, name, batch([record(b"k")]))
        broker.kill()
        # Opening the pipe for reading blocks until a writer opens it.
        pipe = broker.data_dir / "slow-0" / "leader-epoch-checkpoint"
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        broker.start()
        let_go = []

        def go_on():
            if not let_go:
                let_go.append(os.close(os.open(pipe, os.O_WRONLY)))

        yield broker, go_on
        if broker.alive():
            go_on()


def one(connection, topic):
    return produce(connection, topic, batch([record(b"k")]))


def test_recovered_partitions_serve_and_others_return_retriable_errors(half_way):
    broker, go_on = half_way
    with Connection(broker.port) as connection:
        assert one(connection, "quick")["base_offset"] == 1
        assert fetch(connection, "quick", 0)["high_watermark"] == 2
        assert one(connection, "slow")["error_code"] == NOT_LEADER
        assert fetch(connection, "slow", 0)["error_code"] == NOT_LEADER
        row = ask(connection, raw.METADATA, 12, topics=[{"name": "slow", "topic_id": None}],
                  allow_auto_topic_creation=False)["topics"][0]
        assert row["error_code"] == 0 and row["partitions"][0]["leader_id"] >= 0
        go_on()
        end_s = time.monotonic() + 20
        while (answer := one(connection, "slow"))["error_code"] and time.monotonic() < end_s:
            assert answer["error_code"] == NOT_LEADER
            time.sleep(0.05)
        assert answer["base_offset"] == 1
        assert fetch(connection, "slow", 0)["high_watermark"] == 2
    assert not broker.alarms()


def test_topics_created_during_recovery_survive(half_way):
    broker, go_on = half_way
    create_topic(broker.port, "new")
    append(broker.port, "new", batch([record(b"k")]))
    broker.kill()
    (broker.data_dir / "slow-0" / "leader-epoch-checkpoint").unlink()
    broker.start()
    with Connection(broker.port) as connection:
        for name in ("new", "quick", "slow"):
            assert one(connection, name)["base_offset"] == 1


def test_stop_during_recovery_loses_nothing(half_way):
    broker, go_on = half_way
    broker.process.terminate()
    time.sleep(0.3)
    go_on()
    # Send no second signal: one during the exit would end the process.
    assert broker.process.wait(60) == 0
    (broker.data_dir / "slow-0" / "leader-epoch-checkpoint").unlink(missing_ok=True)
    broker.start()
    with Connection(broker.port) as connection:
        for name in ("quick", "slow"):
            assert one(connection, name)["base_offset"] == 1
