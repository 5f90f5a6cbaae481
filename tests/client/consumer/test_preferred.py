"""Fetching from a closer replica if the leader names one (KIP-392)."""

import time
from types import SimpleNamespace

import pytest

from pylog.client.consumer.fetcher import Fetcher, _Node
from pylog.client.consumer.subscription_state import PartitionState
from pylog.client.types import TopicPartition

LEADER, NEAR = 1, 2
AGE_S = 300.0


class Queue(list):
    def put(self, items):
        self.extend(items)


class Settings:
    def seconds(self, name):
        return {"metadata.max.age.ms": AGE_S, "retry.backoff.ms": 0.0}[name]


@pytest.fixture
def state():
    made = PartitionState(TopicPartition("t", 0), 1)
    made.move_to(7)
    return made


@pytest.fixture
def node():
    pokes = []
    fetcher = SimpleNamespace(settings=Settings(), queue=Queue(), poke=lambda: pokes.append(True),
                              arrived=lambda: None, pokes=pokes)
    return SimpleNamespace(id=LEADER, fetcher=fetcher, _refused=None)


def answer(node, state, **fields):
    row = SimpleNamespace(**{
        "topic": "t", "partition": 0, "error_code": 0, "high_watermark": 9,
        "last_stable_offset": 8, "log_start_offset": 3, "preferred_replica": -1, "records": b"",
        "aborted": [], "leader": None, **fields})
    frame = SimpleNamespace(users=None, released=False)
    frame.release = lambda: setattr(frame, "released", True)
    _Node._queue_fetched(node, [row], {("t", 0): (state, state.epoch, b"")}, frame)
    return frame


def place(state, now_s, nodes=(LEADER, NEAR)):
    metadata = SimpleNamespace(nodes=set(nodes), leader=lambda topic, partition: LEADER)
    return Fetcher.node_of(None, state, metadata, now_s)


def test_preferred_replica_is_used_while_metadata_is_valid(node, state):
    before_s = time.monotonic()
    frame = answer(node, state, preferred_replica=NEAR)
    after_s = time.monotonic()
    assert node.fetcher.pokes == [True] and frame.released and node.fetcher.queue == []
    assert place(state, after_s) == place(state, before_s + AGE_S - 0.001) == NEAR
    assert place(state, after_s + AGE_S) == LEADER
    assert place(state, after_s) == LEADER, "the leader is to name it again"


def test_unknown_preferred_replica_is_ignored(node, state):
    answer(node, state, preferred_replica=NEAR)
    assert place(state, time.monotonic(), nodes=[LEADER]) == LEADER


def test_broker_0_may_be_the_preferred_replica(node, state):
    answer(node, state, preferred_replica=0)
    assert place(state, time.monotonic(), nodes=[0, LEADER]) == 0


def test_a_broker_that_names_itself_changes_nothing(node, state):
    answer(node, state, preferred_replica=LEADER)
    assert state.preferred == -1 and node.fetcher.pokes == []
    assert (state.high_watermark, state.last_stable_offset, state.log_start_offset) == (9, 8, 3)


def test_seek_returns_to_the_leader(node, state):
    answer(node, state, preferred_replica=NEAR)
    state.move_to(1)
    assert place(state, time.monotonic()) == LEADER


def test_an_answer_from_before_a_seek_is_dropped(node, state):
    asked = {("t", 0): (state, state.epoch, b"")}
    state.move_to(1)
    frame = SimpleNamespace(users=None, released=False)
    frame.release = lambda: setattr(frame, "released", True)
    _Node._queue_fetched(node, [SimpleNamespace(topic="t", partition=0)], asked, frame)
    assert frame.released and node.fetcher.queue == [] and state.high_watermark == -1
