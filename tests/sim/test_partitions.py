"""Acknowledged records survive broker failures, in a simulation that must find planted bugs."""

import pytest

from pylog.metadata.controller import broker_registration
from pylog.metadata.controller.partitions import alter_partition
from pylog.metadata.controller.partitions.partition_change import PartitionChange
from tests.sim.partitions import Wrong, run

SEEDS = 30


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_acknowledged_records_survive_every_leader(first):
    acked = 0
    for seed in range(first, first + 10):
        try:
            acked += sum(map(len, run(seed).acked))
        except Wrong as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert acked > 10


def _any_replica(patch):
    patch.setattr(PartitionChange, "_is_complete", lambda self, broker_id: True)


def _fenced_too(patch):
    patch.setattr(alter_partition, "_may_join", lambda image, broker_id, epoch: True)


def _stale_proposals(patch):
    fault = alter_partition._fault

    def lenient(image, topic, wanted, members, broker_id):
        found = fault(image, topic, wanted, members, broker_id)
        return 0 if found == 95 else found
    patch.setattr(alter_partition, "_fault", lenient)


def _moves_end_early(patch):
    end = PartitionChange._end_reassignment

    def hasty(self):
        if self.adding or self.removing:
            self.isr = list(dict.fromkeys([*self.isr, *self.adding]))
        end(self)
    patch.setattr(PartitionChange, "_end_reassignment", hasty)


def _crashes_are_clean(patch):
    restarted = broker_registration._restarted
    patch.setattr(broker_registration, "_restarted",
                  lambda rules, broker_id, _: restarted(rules, broker_id, True))


# With a seed that finds it, or a slightly smaller one.
PLANTS = [(_any_replica, 0), (_fenced_too, 110), (_stale_proposals, 100), (_moves_end_early, 0),
          (_crashes_are_clean, 26), ("by committed", 97), ("below minimum", 8), ("joins early", 47),
          ("no truncation", 5)]


@pytest.mark.parametrize(("plant", "first"), PLANTS)
def test_a_planted_bug_is_found(plant, first, monkeypatch):
    faults = (plant,) if isinstance(plant, str) else ()
    if not faults:
        plant(monkeypatch)
    for seed in range(first, first + 60):
        try:
            run(seed, faults)
        except (Wrong, AssertionError):
            return
    pytest.fail("it was not found")
