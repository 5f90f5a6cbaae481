"""A broker in a separate process: the same interface, and it can be killed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from pylog.testing import BrokerFailed, record
from tests.fixtures.brokers import REPOSITORY, answers
from tests.wire import raw, talk


@pytest.fixture
def broker(make_broker):
    return make_broker(process=True)


def test_child_broker_runs_in_a_separate_process_until_close(broker):
    assert broker.pid != os.getpid() and answers(broker.port)
    pid = broker.pid
    broker.close()
    assert not os.path.exists(f"/proc/{pid}") and not answers(broker.port)


def test_records_clock_and_groups_are_as_with_threads(broker):
    topic = broker.create_topic("t", retention_ms=3_600_000)
    topic.append("a", record(key="k", value="b", headers={"h": "x"}))
    topic.assert_records(["a", record(key="k", headers=[("h", b"x")])])
    broker.clock.advance(hours=2)
    topic.assert_empty()
    assert broker.group("g").state == "Dead"


def test_errors_of_the_child_process_are_raised_unchanged(broker):
    with pytest.raises(BrokerFailed, match="no members"):
        broker.group("g").rebalance()
    with pytest.raises(ValueError, match="forward"):
        broker.clock.advance(hours=-1)


def test_acknowledged_records_survive_a_kill(broker):
    broker.create_topic("t")
    talk.append(broker.port, "t", raw.batch([raw.record(None, b"v")]))
    broker.kill()
    assert not answers(broker.port)
    broker.start()
    broker.topic("t").assert_records(["v"])


def test_crashed_child_is_reported_with_its_last_output(broker):
    os.kill(broker.pid, signal.SIGKILL)
    with pytest.raises(BrokerFailed, match="has exited"):
        broker.topics()
    broker.kill()


def test_child_that_cannot_start_reports_the_reason(make_broker):
    with pytest.raises(BrokerFailed, match="cannot listen"):
        make_broker(process=True, settings={"listeners": "PLAINTEXT://192.0.2.1:1"})


def test_only_a_child_can_be_killed(make_broker):
    with pytest.raises(BrokerFailed, match="process of its own"):
        make_broker().kill()


def test_a_child_does_not_outlive_its_parent(tmp_path):
    source = ("import json, os, sys\n"
              "from pylog.testing import Broker\n"
              f"broker = Broker({os.fspath(tmp_path)!r}, process=True).start()\n"
              "print(json.dumps([broker.pid, broker.port]), flush=True)\n"
              "os.kill(os.getpid(), 9)\n")
    done = subprocess.run([sys.executable, "-c", source], cwd=REPOSITORY, capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY)})
    pid, port = json.loads(done.stdout)
    end_s = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end_s:
        time.sleep(0.01)
    assert not answers(port)
