"""Cached heartbeat responses: content and validity; cached heartbeats extend the session."""

from types import SimpleNamespace

import pytest

from pylog.coordinator.groups import offsets
from pylog.coordinator.groups.consumer import heartbeat as consumer_heartbeat
from pylog.coordinator.groups.consumer import target_assignment
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.state import classic_group, classic_records
from pylog.coordinator.groups.state.heartbeat_cache import GroupHeartbeats
from pylog.coordinator.runtime.timers import Timers
from pylog.coordinator.runtime.transactional_batches import TransactionalRecords
from pylog.metadata.image.image import Image, Topic
from pylog.protocol import messages
from tests.coordinator.consumer_world import Repeat
from tests.coordinator.world import LIMITS, Clock

T = Topic("t", b"t" * 16, (SimpleNamespace(replicas=()),) * 4)
IMAGE = Image(topics={"t": T}, topics_by_id={T.id: T}, offset=5)
SESSION_MS, AT_REST_MS = 45_000, 3000
ROWS = messages.ConsumerGroupHeartbeatRequest.TopicPartitions


class Machine:
    """A machine, heartbeats to it, and the runtime's work between them."""

    def __init__(self):
        self.groups = GroupShard(LIMITS, Clock(), str, image=lambda: IMAGE)
        self.groups.loaded()

    def write(self) -> None:
        self.groups.repeats.void_changed(self.groups.records)
        self.groups.records = []

    def beat(self, member_id: str, epoch: int, group_id: str = "g", **fields) -> Repeat:
        """Return True if a reactor may answer it from now on."""
        repeat = Repeat()
        answer = consumer_heartbeat.heartbeat(
            self.groups, messages.ConsumerGroupHeartbeatRequest(
                group_id=group_id, member_id=member_id, member_epoch=epoch, **fields),
            1, consumer_heartbeat.Client("c", "/h", repeat=repeat))
        assert answer.error_code == 0, answer.error_message
        self.write()
        return repeat

    def join(self, member_id: str, group_id: str = "g") -> Repeat:
        return self.beat(member_id, 0, group_id, topic_partitions=[], rebalance_timeout_ms=1000,
                         subscribed_topic_names=["t"])

    def advance(self, ms: int) -> None:
        """Advance the clock by ms and run what is due."""
        self.groups.clock.ms += ms
        self.groups.tick()
        self.write()

    def members(self) -> list:
        return list(self.groups.groups["g"].members)


@pytest.fixture
def state_machine():
    return Machine()


@pytest.fixture
def resting(state_machine):
    """Return a machine whose member "a" is stable in epoch 2."""
    state_machine.join("a")
    state_machine.advance(AT_REST_MS)
    return state_machine


def is_open(repeat: Repeat, state_machine: Machine) -> bool:
    return state_machine.groups.clock.ms < repeat.until_ms


def test_only_unchanged_heartbeats_are_answered_from_the_cache(state_machine):
    assert not is_open(state_machine.join("a"), state_machine), "it wrote records"
    state_machine.advance(1000)
    assert is_open(state_machine.beat("a", 2), state_machine)


def test_cached_response_is_valid_until_the_interval_would_change(state_machine):
    state_machine.join("a")
    state_machine.advance(1000)
    assert state_machine.beat("a", 2).until_ms == state_machine.groups.clock.ms + AT_REST_MS - 1000
    state_machine.advance(AT_REST_MS - 1000)
    assert state_machine.beat("a", 2).until_ms == state_machine.groups.groups["g"].refresh_ms


def test_repeated_known_fields_are_answered_from_the_cache(resting):
    held = resting.groups.groups["g"].members["a"].assigned
    owned = [ROWS(topic_id=topic_id, partitions=list(parts)) for topic_id, parts in held.items()]
    first = resting.beat("a", 2)
    again = resting.beat("a", 2, topic_partitions=owned, subscribed_topic_names=["t"])
    assert is_open(again, resting) and not is_open(first, resting), "a member has one"


def test_member_with_an_expression_is_not_cached(state_machine):
    for _ in range(2):
        state_machine.beat("a", 0, topic_partitions=[], rebalance_timeout_ms=1000,
                     subscribed_topic_regex="t.*")
        state_machine.advance(AT_REST_MS)
    epoch = state_machine.groups.groups["g"].members["a"].epoch
    assert not is_open(state_machine.beat("a", epoch), state_machine)
    assert not is_open(state_machine.beat("a", epoch, topic_partitions=[]), state_machine)


def test_group_change_invalidates_cached_responses(resting):
    other = resting.join("a", "other")
    resting.advance(AT_REST_MS)
    other = resting.beat("a", 2, "other")
    before = resting.beat("a", 2)
    resting.join("b")
    assert not is_open(before, resting) and is_open(other, resting)
    for member_id in ("a", "b", "a"):
        epoch = resting.groups.groups["g"].members[member_id].epoch
        resting.beat(member_id, epoch, topic_partitions=[])
    resting.advance(AT_REST_MS)
    before = resting.beat("a", 3)
    assert is_open(before, resting)
    resting.beat("b", -1)
    assert not is_open(before, resting)


def test_topic_change_invalidates_cached_responses(resting):
    before = resting.beat("a", 2)
    target_assignment.topics_changed(resting.groups, {"u"})
    assert is_open(before, resting), "nobody reads that one"
    target_assignment.topics_changed(resting.groups, {"t"})
    assert not is_open(before, resting)
    assert is_open(resting.beat("a", 2, topic_partitions=[]), resting)


def test_committed_offsets_change_nothing_of_it(resting):
    before = resting.beat("a", 2)
    request = messages.OffsetCommitRequest(
        group_id="g", member_id="a", generation_id_or_member_epoch=2)
    assert offsets.commit(resting.groups, request, [("t", T.id, 0, 5, -1, "")], 9) == 0
    assert resting.groups.records
    resting.groups.records.append(TransactionalRecords(7, 0, []))
    resting.write()
    assert is_open(before, resting)


def test_an_answer_that_a_reactor_gave_is_a_sign_of_life(resting):
    repeat = resting.beat("a", 2)
    for _ in range(3):
        resting.groups.clock.ms += SESSION_MS - 1
        repeat.last = resting.groups.clock.ms
        resting.advance(1)
        assert is_open(repeat, resting) and resting.members() == ["a"]
    resting.advance(SESSION_MS - 2)
    assert resting.members() == ["a"]
    resting.advance(1)
    assert resting.members() == [] and not is_open(repeat, resting)


def test_it_counts_too_when_something_changed_since(resting):
    repeat = resting.beat("a", 2)
    resting.groups.clock.ms += 40_000
    repeat.last = resting.groups.clock.ms
    resting.join("b")
    assert not is_open(repeat, resting)
    resting.advance(30_000)
    assert "a" in resting.members()
    resting.advance(15_000)
    assert "a" not in resting.members()


def test_cached_heartbeat_neither_restores_a_member_nor_ends_a_session(resting):
    repeat = resting.beat("a", 2)
    repeat.last = resting.groups.clock.ms
    resting.groups.clock.ms += 10_000
    resting.beat("a", 2, topic_partitions=[])
    resting.advance(SESSION_MS - 1)
    assert resting.members() == ["a"]
    repeat = resting.beat("a", 2)
    repeat.last = resting.groups.clock.ms
    resting.beat("a", -1)
    assert len(resting.groups.timers) == 0


def test_unloaded_coordinator_voids_cached_heartbeats(resting):
    repeat = resting.beat("a", 2)
    resting.groups.repeats.void_all()
    assert not is_open(repeat, resting)


def test_records_name_the_group_that_they_are_of():
    repeats, given = GroupHeartbeats(Timers()), {}
    for group_id in ("g", "gg", "\N{SNOWMAN}"):
        given[group_id] = Repeat()
        repeats.offer(group_id, "a", given[group_id], ("session", group_id), 10, 100)
    repeats.void_changed([(classic_group.group_key("\N{SNOWMAN}"), b""),
                          (classic_records.offset_key("g", "t", 1), None)])
    assert [group_id for group_id, row in given.items() if row.until_ms < 0] == ["\N{SNOWMAN}"]
