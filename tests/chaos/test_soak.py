"""A cluster of three real brokerds with their etcds, among faults, under all kinds of clients."""

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
def test_no_client_is_refused_anything_while_all_are_restarted_in_turn(random_source):
    done = soak("--rolling", "--seconds", "1", "--seed", str(random_source.randrange(1 << 32)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1200)
def test_kafkas_brokers_and_ours_replace_each_other_under_load(random_source):
    done = soak("--kafka", "--seconds", "120", "--seed", str(random_source.randrange(1 << 32)))
    assert done.returncode == 0, done.stdout + done.stderr
