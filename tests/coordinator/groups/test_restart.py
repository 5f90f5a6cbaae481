"""Offsets and groups after stops, crashes and the loss of state.lmdb, in a whole broker."""

import time

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.talk import create_topic
from tests.wire.test_groups import (
    COMMIT,
    DESCRIBE,
    FETCH,
    HEARTBEAT,
    LIST,
    _commit_fields,
    _member,
    _ready,
)

SETTINGS = {"group.initial.rebalance.delay.ms": 0}


@pytest.fixture
def broker(tmp_path):
    with Brokerd(tmp_path, SETTINGS) as broker:
        yield broker
        assert broker.alarms() == []


def _committed(port: int, group: str, topic: str) -> int:
    _ready(port, group)
    with Connection(port) as connection:
        answer = ask(connection, FETCH, 5, group_id=group, topics=[
            {"name": topic, "partition_indexes": [0]}])
    return answer["topics"][0]["partitions"][0]["committed_offset"]


def _commit(port: int, group: str, topic: str, offset: int, member="", generation=-1) -> None:
    with Connection(port) as connection:
        answer = ask(connection, COMMIT, 8,
                     **_commit_fields(group, topic, offset, member, generation))
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0, answer


def _forget_map(broker) -> None:
    (broker.data_dir / "state.lmdb").unlink()


STOPS = {"clean": Brokerd.stop, "killed": Brokerd.kill}


@pytest.mark.parametrize("without_map", [False, True], ids=["", "without state.lmdb"])
@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_committed_offsets_survive_a_restart(broker, stop, without_map):
    create_topic(broker.port, "t")
    for number in range(30):
        _ready(broker.port, f"group-{number}")
        _commit(broker.port, f"group-{number}", "t", number)
    for again in range(3):
        stop(broker)
        if without_map:
            _forget_map(broker)
        broker.start()
        for number in range(30):
            assert _committed(broker.port, f"group-{number}", "t") == number + again
            _commit(broker.port, f"group-{number}", "t", number + again + 1)


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_member_continues_after_a_restart(broker, stop):
    _ready(broker.port, "g")
    create_topic(broker.port, "t")
    member, generation = _member(broker.port, "g")
    stop(broker)
    broker.start()
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        with Connection(broker.port) as connection:
            answer = ask(connection, HEARTBEAT, 3, group_id="g", generation_id=generation,
                         member_id=member, group_instance_id=None)
        assert answer["error_code"] == 0
        with Connection(broker.port) as connection:
            described = ask(connection, DESCRIBE, 5, groups=["g"])["groups"][0]
        if described["error_code"] == 0:
            break
    assert described["group_state"] == "Stable"
    assert described["members"][0]["member_assignment"] == b"a"
    _commit(broker.port, "g", "t", 3, member, generation)


def test_groups_unused_since_the_start_are_listed(broker):
    create_topic(broker.port, "t")
    for number in range(5):
        _ready(broker.port, f"cold-{number}")
        _commit(broker.port, f"cold-{number}", "t", 1)
    broker.stop()
    broker.start()
    _committed(broker.port, "cold-3", "t")
    with Connection(broker.port) as connection:
        listed = ask(connection, LIST, 4, states_filter=[])["groups"]
    assert sorted(row["group_id"] for row in listed) == [f"cold-{n}" for n in range(5)]


def test_recreated_topic_does_not_inherit_offsets(broker):
    create_topic(broker.port, "t")
    _ready(broker.port, "g")
    _commit(broker.port, "g", "t", 9)
    broker.stop()
    broker.start()
    with Connection(broker.port) as connection:
        assert ask(connection, 20, 3, topic_names=["t"],
                   timeout=5000)["responses"][0]["error_code"] == 0
    create_topic(broker.port, "t")
    assert _committed(broker.port, "g", "t") == -1
    broker.kill()
    _forget_map(broker)
    broker.start()
    assert _committed(broker.port, "g", "t") == -1
