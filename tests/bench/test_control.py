"""The bench of the control plane: its programs against a brokerd, and its report of failures."""

import pytest

from bench import loads
from bench.control import __main__ as control
from bench.control import groups, metadata, offsets, shares, wire
from bench.control.table import render
from bench.process import BrokerFailed
from pylog.protocol import messages
from tests.fixtures.brokers import Brokerd

STALL_MS_MAX = 5000
STORM_PER_S = 1000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PYLOG_CACHE", str(tmp_path))


@pytest.fixture
def broker(tmp_path):
    running = Brokerd(tmp_path / "broker", {"group.initial.rebalance.delay.ms": "0"}).start()
    running.cpu_seconds = lambda: 0.0
    try:
        yield running
    finally:
        running.kill()


def test_metadata_storm_delays_no_producer(broker, monkeypatch):
    """Checks only that every request is answered and nothing waits for seconds: the machine is
    shared.
    """
    for name, value in {"TOPICS": 100, "CLIENTS": 200, "LATENCY_PER_S": 100,
                        "LATENCY_SECONDS": 1.0, "STORM_TURNS": 1}.items():
        monkeypatch.setattr(metadata, name, value)
    figures = metadata.storm(broker)
    assert figures["few_storm_p99_ms"] < STALL_MS_MAX
    assert figures["all_storm_p99_ms"] < STALL_MS_MAX
    assert figures["few_p99_us"] < STALL_MS_MAX * 1000
    assert figures["all_p99_us"] < STALL_MS_MAX * 1000
    assert figures["all_storm_per_s"] > STORM_PER_S / 4


def test_members_that_join_at_once_come_to_share_a_generation(broker):
    wire.run(_coordinator(broker.port))
    done = wire.program(broker, "group", 40, 20, 60, "together")
    assert done["joins"] >= 80 and done["generations"] >= 1


def test_commits_and_heartbeats_are_answered_without_errors(broker, monkeypatch):
    for module, name, value in ((offsets, "COMMITS", 500), (offsets, "COMMIT_GROUPS", 20),
                                (groups, "MEMBERS", 64), (groups, "HEARTBEATS", 500)):
        monkeypatch.setattr(module, name, value)
    broker.cpu_seconds = iter(range(100)).__next__
    assert offsets.commits(broker)["per_s"] > 0
    assert groups.heartbeats(broker)["per_core"] > 0


def test_records_of_a_share_group_are_acknowledged_once_and_delivered(broker, monkeypatch):
    for name, value in {"RECORDS": 4000, "LATENCY_RECORDS": 20}.items():
        monkeypatch.setattr(shares, name, value)
    broker.cpu_seconds = iter(range(100)).__next__
    figures = shares.load(broker)
    assert figures["whole_per_cpu_s"] > 0 and figures["mixed_per_cpu_s"] > 0
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]


def test_error_response_ends_the_program(broker):
    wire.run(_coordinator(broker.port))
    beat = wire.frame(12, 3, messages.HeartbeatRequest(
        group_id="nobody's", generation_id=1, member_id="nobody"))
    with pytest.raises(loads.LoadFailed, match="error 25"):
        wire.replay(broker, [beat], 2, 1, requests=4, error_at=8)


def test_failed_load_is_reported_and_the_others_continue(monkeypatch, capsys):
    def fails(side, name):
        if name == "unknown":
            raise BrokerFailed("it ended")
        return {"per_s": 5.0}

    monkeypatch.setattr(control, "_figures", fails)
    run = control.Run(["kafka", "pylog"])
    run.load("unknown")
    run.load("commits")
    assert len(run.failures) == 2 and "it ended" in run.failures[0]
    assert run.samples == {"commits": {"kafka": {"per_s": [5.0]}, "pylog": {"per_s": [5.0]}}}
    assert "| commits per second | 1/s | 5 | 5 | 1.00× |" in render(run.samples, "4.3.1")
    assert "FAILED" in capsys.readouterr().out


async def _coordinator(port: int) -> None:
    connection = await wire.Connection.open(port)
    await wire.found(connection)
    connection.close()
