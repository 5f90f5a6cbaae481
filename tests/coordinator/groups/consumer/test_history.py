"""Histories of consumer groups from seeds: no partition is assigned twice in one epoch, metrics
agree with the members, a restart changes nothing, and in the end every member has a share.
"""

import random

import pytest

from pylog.coordinator.groups.consumer import current_assignment, target_assignment
from pylog.coordinator.groups.consumer.group import ConsumerGroup
from pylog.coordinator.groups.state.heartbeat_cache import GroupHeartbeats
from tests.coordinator.consumer_world import World

SEEDS = 120
SEEDS_SLOW = 10_000
STEPS = 600
PAUSE_MS = 150  # between resolutions of expressions; Kafka's 10 s would be most of a history


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(target_assignment, "PAUSE_MS", PAUSE_MS)


def run(seed: int) -> int:
    """Return the number of heartbeats answered from the cache."""
    world = World(random.Random(seed))
    try:
        for _ in range(STEPS):
            if not world.step():
                break
        world.calm_down()
        world.check_end()
    except BaseException:
        print(f"seed of the history: {seed}")
        raise
    return world.repeated


@pytest.mark.parametrize("part", range(4))
def test_groups_converge_despite_lost_messages(random_source, part):
    repeated = sum(run(random_source.randrange(1 << 40)) for _ in range(SEEDS // 4))
    assert repeated > SEEDS, "reactors answer many of them"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_groups_converge_despite_many_lost_messages(random_source):
    for _ in range(SEEDS_SLOW):
        run(random_source.randrange(1 << 40))


def finds(fault) -> bool:
    for seed in range(SEEDS):
        try:
            run(seed)
        except Exception as found:
            print(type(found))
            return True
    return False


def test_planted_double_assignment_is_found(monkeypatch):
    monkeypatch.setattr(ConsumerGroup, "owner", lambda self, topic_id, partition: None)
    assert finds("two owners")


def test_a_member_that_need_not_revoke_is_found(monkeypatch):
    monkeypatch.setattr(current_assignment, "_owns", lambda owned, revoking: False)
    assert finds("no revocation")


def test_planted_unrefreshed_topics_are_found(monkeypatch):
    monkeypatch.setattr(target_assignment, "topics_changed", lambda groups, names: None)
    assert finds("stale")


def test_checker_detects_stale_repeated_responses(monkeypatch):
    monkeypatch.setattr(GroupHeartbeats, "void_changed", lambda self, records: None)
    assert finds("stale")
