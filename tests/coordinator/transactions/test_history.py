"""Transactions with lost and delayed messages, restarts and killed producers: complete histories,
from seeds.
"""

import random

import pytest

from tests.coordinator.transaction_world import run

SEEDS = 60
FAULTS = ("guard", "marker", "early", "hasty", "unverified")


def test_committed_records_are_read_once_and_aborted_ones_never(random_source):
    committed = 0
    for _ in range(SEEDS):
        seed = random_source.randrange(1 << 30)
        try:
            world = run(random.Random(seed))
        except Exception as failure:
            raise AssertionError(f"seed {seed}") from failure
        committed += list(world.outcomes.values()).count("committed")
    assert committed > 10 * SEEDS


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_histories(random_source):
    for _ in range(10_000):
        seed = random_source.randrange(1 << 30)
        try:
            run(random.Random(seed))
        except Exception as failure:
            raise AssertionError(f"seed {seed}") from failure


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(random_source, fault):
    for _ in range(4000):  # The rarest fault is found in 3 of 1,000 histories.
        try:
            run(random.Random(random_source.randrange(1 << 30)), (fault,))
        except AssertionError:
            return
    raise AssertionError(f"nothing found {fault}")
