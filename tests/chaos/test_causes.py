"""Attribution of problems: simulated logs and leaderships of Kafka's brokers 1, 2 and of ours, 3.
"""

import pytest

from tests.chaos.causes import OURS, THEIRS, UNKNOWN, Causes
from tests.chaos.history import (
    Acknowledged,
    Case,
    Ended,
    Final,
    Finding,
    History,
    Partition,
    Sent,
    Value,
)
from tests.chaos.reigns import Append, Leadership
from tests.chaos.traces import Refusal

A, B = Partition("orders", 0), Partition("orders", 1)
ONE = Value("one", 1)
PRODUCER = 7


class World:
    """A partition with simulated time. leaders: of epochs 0, 1, ..., ten seconds each."""

    def __init__(self, *leaders: int):
        self.now_s = 0.0
        self.history = History(lambda: self.now_s)
        self.finals = {A: Final({}, set())}
        self.reigns = {A: [Leadership(epoch, leader, 10.0 * epoch)
                           for epoch, leader in enumerate(leaders)]}
        self.appends: list[Append] = []
        self.refusals: list[Refusal] = []

    def record(self, at_s: float, event) -> None:
        self.now_s = at_s
        self.history.add(event)

    def append(self, epoch: int, sequence: int, count: int = 1, producer_epoch: int = 0) -> int:
        """Append a batch and return its offset."""
        first = self.appends[-1].last + 1 if self.appends else 0
        self.appends.append(Append(first, first + count - 1, epoch, PRODUCER, producer_epoch,
                                   sequence, sequence + count - 1, False))
        return first

    def causes(self) -> Causes:
        return Causes(self.history, self.finals, {1, 2}, self.reigns, lambda place: self.appends,
                      lambda name: self.refusals if name == ONE.writer else [])

    def side(self, what: str, **case) -> str:
        return self.causes().of(what, Case("it", **case)).side

    def side_of_pair(self, earlier: int, offset: int) -> str:
        found = {self.side(what, place=A, value=ONE, offset=offset, earlier=earlier)
                 for what in ("doubled", "out of order")}
        assert len(found) == 1
        return found.pop()

    def side_of_lost(self, offset: int) -> str:
        return self.side("acknowledged and lost", place=A, value=ONE, offset=offset)


@pytest.mark.parametrize(("leader", "side"), [(1, THEIRS), (3, OURS)])
def test_contradicting_batch_is_attributed_to_leader_of_its_epoch(leader, side):
    world = World(1, 3, leader)
    earlier = world.append(0, 0, 5)
    world.append(1, 5)
    assert world.side_of_pair(earlier, world.append(2, 0, 5)) == side


@pytest.mark.parametrize(("leader", "side"), [(1, THEIRS), (3, OURS)])
def test_sequence_gap_is_attributed_to_leader_of_the_later_batch(leader, side):
    world = World(1, leader, 3)
    world.append(0, 0)
    earlier = world.append(1, 2)
    offset = world.append(2, 3)
    assert world.side_of_pair(earlier, offset) == side


def test_returning_producer_epoch_contradicts_the_log():
    world = World(1, 3)
    earlier = world.append(0, 0, producer_epoch=1)
    assert world.side_of_pair(earlier, world.append(1, 1, producer_epoch=0)) == OURS


def test_wrapped_sequence_numbers_are_in_order():
    world = World(1, 2)
    earlier = world.append(0, (1 << 31) - 1)
    world.appends[-1] = world.appends[-1]._replace(last_sequence=(1 << 31) - 1)
    assert "began anew" in world.causes().of("doubled", Case(
        "it", A, ONE, offset=world.append(1, 0), earlier=earlier)).reason


def begun_anew(*leaders: int, other: int = 1) -> tuple[World, int, int]:
    """Return a record sent in the second epoch and again under another producer epoch.

    other: the leader of another partition.
    """
    world = World(*leaders)
    world.reigns[B] = [Leadership(0, other, 0.0)]
    world.record(11.0, Sent(ONE, A))
    world.record(29.0, Acknowledged(ONE, 1))
    return world, world.append(1, 0), world.append(2, 0, producer_epoch=1)


@pytest.mark.parametrize(("leaders", "other", "side"), [
    ((1, 2, 1), 2, THEIRS), ((3, 3, 3), 3, OURS), ((1, 3, 1), 1, UNKNOWN), ((1, 2, 3), 1, UNKNOWN),
    ((1, 2, 1), 3, UNKNOWN)])
def test_reset_producer_is_attributed_to_all_leaders_of_its_partitions(
        leaders, other, side):
    world, *pair = begun_anew(*leaders, other=other)
    assert world.side_of_pair(*pair) == side


@pytest.mark.parametrize(("broker", "side"), [(2, THEIRS), (3, OURS)])
def test_logged_refusal_identifies_the_broker(broker, side):
    world, *pair = begun_anew(1, 3, 2)
    world.refusals = [Refusal(15.0, broker, "out of order"), Refusal(16.0, 5 - broker, "later")]
    assert world.side_of_pair(*pair) == side


@pytest.mark.parametrize("at_s", [10.0, 30.0])
def test_refusal_at_another_time_is_ignored(at_s):
    world, *pair = begun_anew(1, 3, 2)
    world.refusals = [Refusal(at_s, 2, "out of order")]
    assert world.side_of_pair(*pair) == UNKNOWN


@pytest.mark.parametrize(("leaders", "side"), [
    ((1, 2, 3), THEIRS), ((3, 1, 2), UNKNOWN), ((1, 3, 2), UNKNOWN), ((3, 3, 1), OURS),
    ((3, -1, 1), OURS)])
def test_lost_record_without_offset_is_attributed_to_current_and_previous_leader(leaders, side):
    world = World(*leaders)
    world.record(11.0, Sent(ONE, A))
    world.record(12.0, Acknowledged(ONE, -1))
    assert world.side_of_lost(-1) == side


@pytest.mark.parametrize(("leaders", "side"), [
    ((1, 1, 2, 3), THEIRS), ((1, 1, 3, 1), UNKNOWN), ((3, 3, 3, 1), OURS)])
def test_replaced_record_is_attributed_to_all_leaders_in_between(leaders, side):
    world = World(*leaders)
    world.record(11.0, Sent(ONE, A))
    world.record(12.0, Acknowledged(ONE, 0))
    world.append(2, 0)
    assert world.side_of_lost(0) == side


@pytest.mark.parametrize(("digests", "side"), [
    ({1: "x", 2: "x", 3: "z"}, OURS), ({1: "x", 2: "z", 3: "x"}, THEIRS),
    ({1: "x", 2: "y", 3: "z"}, UNKNOWN), ({1: "x", 2: "z"}, THEIRS), ({1: "x", 3: "z"}, UNKNOWN)])
def test_only_differing_replica_is_wrong(digests, side):
    world = World(1)
    world.finals[A].digests.update(digests)
    assert world.side("replicas differ", place=A) == side


@pytest.mark.parametrize(("coordinators", "leader", "side"), [
    ((1, 2), 1, THEIRS), ((1, 3), 1, UNKNOWN), ((1, 2), 3, UNKNOWN), ((3, 3), 3, OURS)])
def test_torn_transaction_is_attributed_to_coordinators_and_leaders(
        coordinators, leader, side):
    world = World(leader)
    world.reigns[Partition("__transaction_state", 0)] = [
        Leadership(epoch, number, 10.0 * epoch)
        for epoch, number in enumerate(coordinators)]
    world.record(5.0, Sent(ONE, A, "copier.2-17"))
    world.record(15.0, Ended("copier.2-17", True))
    assert world.side("aborted transactions that are visible", name="copier.2-17") == side


def test_group_offset_is_attributed_to_group_coordinators():
    world = World(3)
    world.reigns[Partition("__consumer_offsets", 0)] = [Leadership(0, 2, 0.0)]
    assert world.side("positions of groups that went back", name="group") == THEIRS
    assert world.side("committed by a group that never read it", name="group", place=A) == UNKNOWN


def test_problem_without_suspects_is_not_attributed_to_kafka():
    world = World()
    assert world.side_of_lost(3) == UNKNOWN
    assert world.side_of_pair(0, 1) == UNKNOWN
    assert world.side("topics that were made and are gone", name="made") == UNKNOWN
    assert world.side("read past others", place=A, value=ONE, offset=1) == UNKNOWN
    assert world.side("aborted transactions that are visible", name="one-1") == UNKNOWN


def test_split_separates_kafkas_problems_with_reasons():
    world = World(1, 3)
    first = world.append(0, 0)
    ours, theirs = world.causes().split([Finding("doubled", [
        Case("a", A, ONE, world.append(0, 0), first),
        Case("b", A, ONE, world.append(1, 0), first)])])
    told = "sequence 0 of 7/0 at {} follows 0 of epoch 0; by {}"
    assert [str(found) for found in theirs] == [
        f"doubled: 1: a (Kafka's: {told.format(1, 1)})"]
    assert [str(found) for found in ours] == [f"doubled: 1: b (ours: {told.format(2, 3)})"]
