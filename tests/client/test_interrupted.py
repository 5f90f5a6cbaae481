"""Calls interrupted by a signal handler at any point: none hangs, and no record is lost or
duplicated.
"""

import json
import subprocess
import sys

import pytest

from tests.client.interrupted_client import SCENARIOS
from tests.client.reading import new_topic, read_topic

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_signal_handler_may_call_the_client_that_it_interrupts(brokerd, scenario):
    topic = new_topic(brokerd.bootstrap)
    child = subprocess.run(
        [sys.executable, "-m", "tests.client.interrupted_client", scenario, brokerd.bootstrap,
         topic], capture_output=True, text=True, timeout=350)
    assert child.returncode == 0, child.stderr
    accepted, acknowledged = json.loads(child.stdout)
    rows = read_topic(brokerd.bootstrap, topic, 1)[0]
    written = [int(row[2].split()[0]) for row in rows]
    assert sorted(acknowledged) == sorted(written) == sorted(set(written))
    assert set(accepted) <= set(written)
