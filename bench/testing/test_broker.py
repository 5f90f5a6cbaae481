"""The cost of a broker for a test: until it is usable, until the next test has one, until it is
gone.

"Usable" means an ApiVersions response over a new connection and a topic that accepted a record;
imports are done before.
"""

import socket
import struct

import pytest

from pylog.testing import Broker
from pylog.testing.plugin import Brokers

ROUNDS = 20
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
KINDS = pytest.mark.parametrize("process", [False, True], ids=["threads", "process"])


def _use(broker, name: str) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as connection:
        connection.sendall(API_VERSIONS)
        assert len(connection.recv(1 << 16)) > 10
    broker.create_topic(name).append("x")


class _Config:
    """Replaces pytest's config, without options."""

    def getoption(self, name):
        return None

    def getini(self, name):
        return {"pylog_broker_settings": [], "pylog_broker_directory": "memory"}.get(name, "thread")


@KINDS
def test_a_new_broker_until_it_is_usable(benchmark, process):
    made = []

    def setup():
        for broker in made:
            broker.close()
        made[:] = [Broker(process=process)]

    def work():
        _use(made[0].start(), "t")

    benchmark.pedantic(work, setup=setup, rounds=ROUNDS, warmup_rounds=1)
    made[0].close()


@KINDS
def test_a_broker_until_it_is_gone(benchmark, process):

    def setup():
        broker = Broker(process=process).start()
        _use(broker, "t")
        return (broker,), {}

    benchmark.pedantic(Broker.close, setup=setup, rounds=ROUNDS, warmup_rounds=1)


@KINDS
@pytest.mark.parametrize("topic_count", [1, 20])
def test_the_same_broker_until_the_next_test_uses_it(
        benchmark, tmp_path_factory, process, topic_count):
    """Measure the end of one test and the beginning of the next: delete old topics, create one."""
    brokers = Brokers(_Config(), tmp_path_factory)
    held = [brokers.acquire({}, process)]

    def setup():
        for number in range(topic_count):
            held[0].create_topic(f"t-{number}").append("x")

    def work():
        brokers.release(held[0], {}, process)
        held[0] = brokers.acquire({}, process)
        _use(held[0], "t")

    benchmark.pedantic(work, setup=setup, rounds=ROUNDS, warmup_rounds=1)
    brokers.close()


def test_a_clock_that_is_moved(benchmark):
    with Broker() as broker:
        for number in range(10):
            broker.create_topic(f"t-{number}", retention_ms=60_000)
        benchmark.pedantic(broker.clock.advance, kwargs={"seconds": 10}, rounds=ROUNDS)
