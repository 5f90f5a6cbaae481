"""Records of elections and reassignments in a cluster of several brokers."""

from types import SimpleNamespace

import pytest

from pylog.config import Settings
from pylog.metadata.controller.partitions import elections, reassignments
from pylog.metadata.image.image import apply
from pylog.metadata.controller.partitions.eligible_leader_replicas import ELR_FEATURE
from pylog.metadata.controller.partitions.partition_change import UNCLEAN, PartitionChange, Rules
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.metadata.controller.partitions.test_topics import cluster, create, decided, topic


def of_three(**fields):
    """Return a cluster of three brokers with topic t on 1 and 2."""
    image, _ = create(cluster(3), topic("t", -1, -1, assignments=[(0, [1, 2])]))
    image = applied(image, messages.FeatureLevelRecord(name=ELR_FEATURE, feature_level=1))
    if fields:
        image = applied(image, messages.PartitionChangeRecord(
            partition_id=0, topic_id=image.topics["t"].id, **fields))
    return image


def applied(image, *records):
    return apply(image, records, image.offset + len(records), image.epoch)


CALLED_OFF = SimpleNamespace(
    name="t", partitions=[SimpleNamespace(partition_index=0, replicas=None)])
UNCLEAN_ALLOWED = {"unclean.leader.election.enable": "true"}


def reassigned(image, replicas, **settings):
    records, results = reassignments.alter(Rules(image, Settings(settings)), [SimpleNamespace(
        name="t", partitions=[SimpleNamespace(partition_index=0, replicas=replicas)])], True)
    assert results[0][1][0][1].error == 0
    return applied(image, *records).partition("t", 0)


def directory(broker_id):
    return bytes(14) + b"\1" + bytes([broker_id])


def test_reassignment_keeps_each_replicas_directory():
    state = reassigned(of_three(), [3, 2])
    assert state.replicas == (3, 2, 1) and state.adding_replicas == (3,)
    assert state.directories == (directory(3), directory(2), directory(1))


def test_cancelled_reassignment_removes_directories_of_added_replicas():
    image = of_three(replicas=[3, 2, 1], adding_replicas=[3], removing_replicas=[1],
                     directories=[directory(3), directory(2), directory(1)])
    state = reassigned(image, None)
    assert (state.replicas, state.directories) == ((2, 1), (directory(2), directory(1)))


def test_cancelled_reassignment_adds_no_out_of_sync_replica_to_the_isr():
    """Kafka puts the first replica there if unclean elections are allowed, although it is fenced
    and eligible.
    """
    image = of_three(replicas=[3, 2, 1], adding_replicas=[3], removing_replicas=[1], leader=-1,
                     isr=[], eligible_leader_replicas=[2],
                     directories=[directory(3), directory(2), directory(1)])
    image = applied(image, messages.BrokerRegistrationChangeRecord(
        broker_id=2, broker_epoch=image.brokers[2].epoch, fenced=1))
    state = reassigned(image, None)
    assert (state.replicas, state.leader, state.isr) == ((2, 1), -1, ())
    assert state.eligible_leader_replicas == (2,)


def fenced(image, *broker_ids):
    for id_ in broker_ids:
        image = applied(image, messages.BrokerRegistrationChangeRecord(
            broker_id=id_, broker_epoch=image.brokers[id_].epoch, fenced=1))
    return image


def moved_to_three(**fields):
    """Return a cluster in which t moves from 1 to 3, and only 3 has all acknowledged records."""
    return of_three(replicas=[3, 1], adding_replicas=[3], removing_replicas=[1], leader=-1,
                    isr=[], **fields)


@pytest.mark.parametrize("known", ["eligible_leader_replicas", "last_known_elr"])
def test_reassignment_is_not_cancelled_if_only_the_new_replica_is_in_sync(known):
    image = moved_to_three(**{known: [3]})
    records, results = reassignments.alter(Rules(image, Settings()), [CALLED_OFF], True)
    assert not records
    assert results[0][1][0][1].error == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_last_known_leader_is_removed_with_its_replica():
    """Seed 100044 of the simulation: a broker was elected, and in the ISR, of a partition of which
    it had no replica.
    """
    image = fenced(moved_to_three(eligible_leader_replicas=[3], last_known_elr=[3]), 1, 3)
    state = reassigned(image, None, **UNCLEAN_ALLOWED)
    assert (state.replicas, state.leader, state.isr) == ((1,), -1, ())
    assert (state.eligible_leader_replicas, state.last_known_elr) == ((), ())


@pytest.mark.parametrize("level", [0, 1])
def test_reassignment_is_cancelled_with_data_loss_only_if_a_leader_exists(level):
    """Seeds 202529 and 202831 of the simulation: a fenced broker was added to the ISR, and would
    have become leader without the recovery mark.
    """
    image = applied(
        of_three(replicas=[3, 1], adding_replicas=[3], removing_replicas=[1], leader=3, isr=[3],
                 directories=[directory(3), directory(1)]),
        messages.FeatureLevelRecord(name=ELR_FEATURE, feature_level=level))
    records, results = reassignments.alter(
        Rules(fenced(image, 1), Settings(UNCLEAN_ALLOWED)), [CALLED_OFF], True)
    assert not records
    assert results[0][1][0][1].error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    state = reassigned(image, None, **UNCLEAN_ALLOWED)
    assert (state.replicas, state.leader, state.isr) == ((1,), 1, (1,))
    assert state.leader_recovery_state == 1
    assert state.last_known_elr == ()


def test_last_eligible_replica_is_elected_without_a_last_known_leader():
    """Seed 205041 of the simulation: the last replica of a partition lost power after its
    reassignment was cancelled, and only an administrator's unclean election could elect a leader.
    """
    image = fenced(of_three(replicas=[2], isr=[], leader=-1, eligible_leader_replicas=[2],
                            directories=[directory(2)]), 2)
    change = PartitionChange(Rules(image, Settings()), image.topics["t"], 0)
    change.crashed = {2}
    image = applied(image, change.record())
    state = image.partition("t", 0)
    assert (state.leader, state.isr, state.eligible_leader_replicas) == (-1, (), ())
    assert state.last_known_elr == (2,)
    image = applied(image, messages.BrokerRegistrationChangeRecord(
        broker_id=2, broker_epoch=image.brokers[2].epoch, fenced=-1))
    change = PartitionChange(Rules(image, Settings()), image.topics["t"], 0)
    state = applied(image, change.record()).partition("t", 0)
    assert (state.leader, state.isr, state.leader_recovery_state) == (2, (2,), 1)
    assert state.last_known_elr == ()


def test_last_known_leader_that_is_no_replica_is_not_elected():
    """A state that Kafka's controller may have written."""
    state = reassigned(of_three(leader=-1, isr=[], last_known_elr=[3]), [1, 2])
    assert (state.leader, state.isr, state.last_known_elr) == (-1, (), ())


def elected(image, lost=frozenset()):
    records, results = decided(
        elections.elect_leaders(Rules(image, Settings(), lost), UNCLEAN, [("t", [0])]))
    assert results[0][1][0][1].error == 0
    return applied(image, *records).partition("t", 0)


def test_a_leader_that_was_not_in_sync_recovers():
    state = elected(of_three(leader=-1, isr=[1]), {(1, "t", 0)})
    assert (state.leader, state.isr, state.leader_recovery_state) == (2, (2,), 1)


def test_eligible_replica_is_elected_first_and_without_recovery():
    state = elected(of_three(leader=-1, isr=[], eligible_leader_replicas=[2],
                             last_known_elr=[1]))
    assert (state.leader, state.isr, state.leader_recovery_state) == (2, (2,), 0)
    assert (state.eligible_leader_replicas, state.last_known_elr) == ((), ())


def test_an_eligible_replica_without_its_disk_does_not_lead():
    state = elected(of_three(leader=-1, isr=[], eligible_leader_replicas=[2]), {(2, "t", 0)})
    assert (state.leader, state.isr, state.leader_recovery_state) == (1, (1,), 1)
    assert state.eligible_leader_replicas == ()


def test_a_leader_from_the_isr_does_not_recover():
    assert elected(of_three(leader=-1, isr=[2])).leader_recovery_state == 0


def test_a_replica_that_a_reassignment_removes_is_no_longer_eligible():
    image = of_three(replicas=[3, 1], adding_replicas=[3], removing_replicas=[1], isr=[1])
    topic = image.topics["t"]
    change = PartitionChange(Rules(image, Settings({"min.insync.replicas": "2"})), topic, 0)
    change.isr = [1, 3]
    image = applied(image, change.record())
    state = image.partition("t", 0)
    assert (state.replicas, state.isr, state.eligible_leader_replicas) == ((3,), (3,), ())
