"""A cluster of three real brokerds with etcd, under faults and all kinds of clients."""

import os
import signal
import subprocess
import sys

import pytest

from tests.fixtures.brokers import REPOSITORY

ALLOWED = subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not ALLOWED, reason="network namespaces are not allowed here")


def soak(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "tests.chaos", *arguments], cwd=REPOSITORY,
                          text=True, capture_output=True)


@pytest.mark.timeout(280)
def test_no_loss_or_duplicates_while_machines_crash_hang_and_are_partitioned(random_source):
    done = soak("--seconds", "12", "--seed", str(random_source.randrange(1 << 32)),
                "--faults", "killed,isolated,powerless,hung")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_interrupted_during_a_fault_reports_a_verdict(number):
    with subprocess.Popen(
            [sys.executable, "-m", "tests.chaos", "--seconds", "86400", "--faults", "hung"],
            cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True) as run:
        told = []
        for line in run.stdout:
            told.append(line)
            if line.startswith("hung: "):
                # Like a terminal: signal the whole process group.
                os.killpg(run.pid, number)
    assert run.returncode == 0, told
    assert any(line.startswith("VERDICT 0 lost, ") for line in told), told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_request_fails_during_a_rolling_restart(random_source):
    done = soak("--rolling", "--seconds", "1", "--seed", str(random_source.randrange(1 << 32)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1200)
def test_mixed_cluster_with_kafka_fails_over_under_load(random_source):
    done = soak("--kafka", "--seconds", "120", "--seed", str(random_source.randrange(1 << 32)))
    assert done.returncode == 0, done.stdout + done.stderr
