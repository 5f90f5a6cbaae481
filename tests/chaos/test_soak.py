"""A cluster of three real brokerds with etcd, under faults and all kinds of clients."""

import os
import signal
import subprocess
import sys

import pytest

from tests.brokers import REPOSITORY

ALLOWED = subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not ALLOWED, reason="network namespaces are not allowed here")


def soak(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "tests.chaos", *arguments], cwd=REPOSITORY,
                          text=True, capture_output=True)


@pytest.mark.timeout(280)
def test_nothing_is_lost_or_doubled_while_machines_die_hang_and_are_cut_off(random_source):
    done = soak("--seconds", "12", "--seed", str(random_source.randrange(1 << 32)),
                "--faults", "killed,isolated,powerless,hung")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_amid_a_fault_has_its_verdict(number):
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
def test_no_client_is_refused_anything_while_all_are_restarted_in_turn(random_source):
    done = soak("--rolling", "--seconds", "1", "--seed", str(random_source.randrange(1 << 32)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1200)
def test_kafkas_brokers_and_ours_replace_each_other_under_load(random_source):
    done = soak("--kafka", "--seconds", "120", "--seed", str(random_source.randrange(1 << 32)))
    assert done.returncode == 0, done.stdout + done.stderr
