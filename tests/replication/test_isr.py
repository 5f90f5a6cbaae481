"""The ISR of one partition: additions, removals, and handling of the controller's responses."""

import types

import pytest

from pylog.metadata.image.image import Partition
from pylog.protocol.errors import ErrorCode
from pylog.replication.isr import REFUSED_NS, Follower, Isr, LeaderLog, Proposal

LAG_NS = 10 * 10**9
LOG = LeaderLog(end_offset=100, high_watermark=90, epoch_start=80)


def state(isr=(1, 2), partition_epoch=5, leader_epoch=3, replicas=(1, 2, 3)) -> Partition:
    return Partition(tuple(replicas), tuple(isr), 1, leader_epoch, partition_epoch, 0, (), (), (),
                     (), ())


def made(isr=(1, 2), epochs=None) -> Isr:
    known = {1: 11, 2: 12, 3: 13} if epochs is None else epochs
    return Isr(state(isr), 1, known.get, now_ns=0)


def follower(id_, end_offset=95, caught_up_ns=0, epoch=None) -> Follower:
    return Follower(id_, 10 + id_ if epoch is None else epoch, end_offset, caught_up_ns)


def row(isr, partition_epoch=6, leader_epoch=3):
    return types.SimpleNamespace(isr=list(isr), partition_epoch=partition_epoch,
                                 leader_epoch=leader_epoch)


def test_a_replica_that_has_caught_up_is_proposed_with_all_epochs():
    isr = made()
    assert isr.join(follower(3), LOG, 0) == Proposal(3, 5, ((1, 11), (2, 12), (3, 13)))
    assert isr.maximal == {1, 2, 3}
    assert isr.committed == (1, 2)


@pytest.mark.parametrize("who", [
    follower(3, end_offset=89), follower(2), follower(9), follower(3, epoch=14)],
    ids=["behind", "a member", "no replica", "another epoch"])
def test_ineligible_replica_is_not_proposed(who):
    assert made().join(who, LOG, 0) is None


def test_no_replica_joins_below_the_leader_epochs_start():
    assert made().join(follower(3), LeaderLog(100, 90, 96), 0) is None


@pytest.mark.parametrize("epochs", [{1: 11, 2: 12}, {2: 12, 3: 13}],
                         ids=["the replica", "the leader"])
def test_while_a_broker_is_fenced_or_leaving_it_joins_no_isr_and_leads_none_that_grows(epochs):
    assert made(epochs=epochs).join(follower(3), LOG, 0) is None


def test_replica_without_a_broker_epoch_joins_the_isr():
    isr = made()
    assert isr.join(follower(3, epoch=-1), LOG, 0).isr[-1] == (3, -1)


def test_lagging_replica_leaves_the_isr_but_never_the_leader():
    isr = made()
    assert isr.tick([follower(2)], LOG, LAG_NS, LAG_NS) is None
    assert isr.tick([follower(2)], LOG, LAG_NS + 1, LAG_NS) == Proposal(3, 5, ((1, 11),))
    assert isr.maximal == {1, 2}


def test_replica_that_never_fetched_lags_since_the_election():
    isr = made()
    assert isr.tick([], LOG, LAG_NS, LAG_NS) is None
    assert isr.tick([], LOG, LAG_NS + 1, LAG_NS).isr == ((1, 11),)


def test_caught_up_replica_stays_regardless_of_its_last_fetch():
    assert made().tick([follower(2, end_offset=100)], LOG, 9 * LAG_NS, LAG_NS) is None


def test_second_isr_proposal_waits_for_the_first():
    isr = made()
    isr.join(follower(3), LOG, 0)
    assert isr.tick([], LOG, 9 * LAG_NS, LAG_NS) is None
    assert isr.join(follower(3), LOG, 0) is None


def test_an_accepted_proposal_is_the_committed_isr():
    isr = made()
    isr.on_response(isr.join(follower(3), LOG, 0), 0, row((1, 2, 3)), 0)
    assert (isr.committed, isr.partition_epoch, isr.proposal) == ((1, 2, 3), 6, None)


def test_the_image_may_come_before_the_answer():
    isr = made()
    proposal = isr.join(follower(3), LOG, 0)
    assert isr.follow(state((1, 2, 3), 6), 0)
    assert not isr.on_response(proposal, 0, row((1, 2, 3)), 0)
    assert isr.committed == (1, 2, 3)


@pytest.mark.parametrize("error", [
    ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED])
def test_outdated_epoch_error_keeps_the_proposed_isr_until_the_image_changes(error):
    isr = made()
    proposal = isr.join(follower(3), LOG, 0)
    assert not isr.on_response(proposal, error, None, 0)
    assert isr.maximal == {1, 2, 3}
    assert isr.tick([], LOG, 9 * LAG_NS, LAG_NS) is None
    isr.follow(state((1, 2), 6), 0)
    assert isr.maximal == {1, 2}


@pytest.mark.parametrize("error", [
    ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.THROTTLING_QUOTA_EXCEEDED, 31_000])
def test_undecided_proposal_is_repeated_unchanged(error):
    isr = made()
    proposal = isr.join(follower(3), LOG, 0)
    assert isr.on_response(proposal, error, None, 0)
    assert isr.proposal is proposal


def test_rejected_isr_proposal_is_retried_after_a_change_or_a_delay():
    isr = made()
    proposal = isr.join(follower(3), LOG, 0)
    assert not isr.on_response(proposal, ErrorCode.INELIGIBLE_REPLICA, None, 7)
    assert isr.maximal == {1, 2}
    assert isr.join(follower(3), LOG, 6 + REFUSED_NS) is None
    assert isr.join(follower(3), LOG, 7 + REFUSED_NS) is not None
    isr.on_response(isr.proposal, ErrorCode.INELIGIBLE_REPLICA, None, 2 * REFUSED_NS)
    isr.brokers_changed()
    assert isr.join(follower(3), LOG, 2 * REFUSED_NS) is not None


def test_an_older_state_of_the_image_changes_nothing():
    isr = made()
    assert not isr.follow(state((1,), 5), 0)
    assert isr.committed == (1, 2)


def test_new_election_restarts_the_lag():
    isr = made()
    isr.follow(state((1, 2), 6, leader_epoch=4), LAG_NS)
    assert isr.tick([], LOG, 2 * LAG_NS, LAG_NS) is None


def test_random_responses_never_lose_potential_isr_members(random_source):
    """A simulated controller that executes, rejects or loses requests, and responds late."""
    for _ in range(200):
        isr, truth, told = made(), [state()], 0
        for now in range(30):
            step = random_source.randrange(4)
            if step == 0 and told < len(truth) - 1:
                told += 1
                isr.follow(truth[told], now)
            elif step == 1:
                isr.join(follower(3), LOG, now * REFUSED_NS)
            elif step == 2:
                isr.tick([], LOG, now * LAG_NS, LAG_NS)
            elif isr.proposal is not None:
                _decide(isr, truth, random_source, now)
            assert set(truth[-1].isr) <= isr.maximal, (truth, isr.maximal)
            assert 1 in isr.committed


def _decide(isr, truth, random_source, now):
    proposal, newest = isr.proposal, truth[-1]
    if proposal.partition_epoch != newest.partition_epoch:
        error = ErrorCode.INVALID_UPDATE_VERSION
    else:
        error = random_source.choice([0, ErrorCode.INELIGIBLE_REPLICA])
    if not error:
        members = tuple(id_ for id_, _ in proposal.isr)
        newest = state(members, newest.partition_epoch + 1)
        truth.append(newest)
    if random_source.random() < 0.7:
        isr.on_response(proposal, error, row(newest.isr, newest.partition_epoch),
                     now * REFUSED_NS)


def test_unclean_leader_reports_recovery_before_others_join():
    isr = Isr(state(isr=(1,))._replace(leader_recovery_state=1), 1, {1: 11, 2: 12}.get, now_ns=0)
    told = isr.recovered(0)
    assert told == Proposal(3, 5, ((1, 11),))
    assert isr.recovered(0) is None and isr.join(follower(2), LOG, 0) is None
    assert not isr.on_response(told, ErrorCode.NONE, row([1]), 0)
    assert isr.recovered(0) is None
    assert isr.join(follower(2), LOG, 0) == Proposal(3, 6, ((1, 11), (2, 12)))


def test_rejected_recovery_report_is_repeated():
    isr = Isr(state(isr=(1,))._replace(leader_recovery_state=1), 1, {1: 11}.get, now_ns=0)
    isr.on_response(isr.recovered(0), ErrorCode.INELIGIBLE_REPLICA, None, 0)
    assert isr.tick([], LOG, 1, LAG_NS) is None
    assert isr.tick([], LOG, REFUSED_NS, LAG_NS) == Proposal(3, 5, ((1, 11),))
