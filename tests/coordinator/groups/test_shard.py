"""The group state machine: single steps, and thousands of random schedules."""

import random
import struct
from types import SimpleNamespace

import pytest

from pylog.coordinator.groups import describe as group_describe
from pylog.coordinator.groups import offsets
from pylog.coordinator.groups.classic.protocol import SentResponse
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.state.classic_group import COMPLETING, EMPTY, PREPARING, STABLE
from pylog.coordinator.groups.state.group_config import Limits
from pylog.protocol import messages
from tests.coordinator.world import GROUP, Clock, World, loaded

SCHEDULES = 10_000
STEPS = 40
DEEP_STEPS = 800
LIMITS = Limits(10, 60_000, 3, 100, 10, 1000)


def _delete(store, group="g"):
    """Run a deletion to its end and return the error code."""
    steps = group_describe.delete(store.groups, group)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class Machine:
    """A machine with a virtual clock; responses by the name of the request."""

    def __init__(self, limits=LIMITS):
        self.clock = Clock()
        self.groups = GroupShard(limits, self.clock, iter(map(str, range(1000))).__next__)
        self.log = []
        self.answers = {}
        self.flushes, self.unsent = True, []

    def run(self, ms: int = 0):
        self.clock.ms += ms
        self.groups.tick()
        return self.settle()

    def settle(self):
        self.log += self.groups.records
        self.groups.records = []
        replies, self.groups.responses = self.groups.responses, []
        for token, message in replies:
            if isinstance(token, SentResponse):
                if self.flushes:
                    token.respond(message)
                else:
                    self.unsent.append(token)
                continue
            assert token not in self.answers, f"{token} is answered twice"
            self.answers[token] = message
        return self

    def flush(self):
        """Complete a flush that delayed responses since `flushes` was set to False."""
        self.flushes = True
        unsent, self.unsent = self.unsent, []
        for token in unsent:
            token.respond(None)

    def join(self, token, member="", *, version=3, instance=None, session_ms=1000,
             rebalance_ms=500, protocols=(("range", b""),), kind="consumer", group="g"):
        new = messages.JoinGroupRequest
        self.groups.join(new(
            group_id=group, session_timeout_ms=session_ms, rebalance_timeout_ms=rebalance_ms,
            member_id=member, group_instance_id=instance, protocol_type=kind,
            protocols=[new.JoinGroupRequestProtocol(name=name, metadata=metadata)
                       for name, metadata in protocols]), version, "client", "/host", token)
        self.settle()
        return self.answers.get(token)

    def sync(self, token, member, generation, shares=None, instance=None):
        new = messages.SyncGroupRequest
        self.groups.sync(new(
            group_id="g", generation_id=generation, member_id=member, group_instance_id=instance,
            assignments=[new.SyncGroupRequestAssignment(member_id=name, assignment=share)
                         for name, share in (shares or {}).items()]), token)
        self.settle()
        return self.answers.get(token)

    def heartbeat(self, member, generation, instance=None) -> int:
        return self.groups.heartbeat(SimpleNamespace(
            group_id="g", generation_id=generation, member_id=member, group_instance_id=instance))

    def commit(self, offset, member="", generation=-1, retention_ms=-1, topic="t"):
        found = offsets.commit(self.groups, SimpleNamespace(
            group_id="g", generation_id_or_member_epoch=generation, member_id=member,
            group_instance_id=None, retention_time_ms=retention_ms),
            [(topic, bytes(16), 0, offset, -1, None)])
        self.settle()
        return found

    def stable(self, *tokens):
        """Create a stable group of these members and return their ids."""
        for token in tokens:
            self.join(token)
        self.run(100).run(100).run(100)
        answers = [self.answers[token] for token in tokens]
        generation = answers[0].generation_id
        for token, answer in zip(tokens, answers, strict=True):
            self.sync(f"{token} syncs", answer.member_id, generation,
                      {row.member_id: row.member_id.encode() for row in answer.members})
        assert self.group.state == STABLE
        return [answer.member_id for answer in answers]

    @property
    def group(self):
        return self.groups.groups["g"]


@pytest.fixture
def store():
    return Machine()


def test_the_first_rebalance_waits_for_more_members(store):
    store.join("a")
    store.run(60)
    store.join("b")
    assert store.run(40).answers == {}
    store.run(100)
    assert {token: answer.generation_id for token, answer in store.answers.items()} \
        == {"a": 1, "b": 1}
    leader = store.answers["a"]
    assert [row.member_id for row in leader.members] == ["client-0", "client-1"]
    assert store.answers["b"].members == [] and store.answers["b"].leader == "client-0"


def test_followers_get_their_assignment_when_the_leader_has_sent_it(store):
    store.join("a")
    store.join("b")
    store.run(100).run(100)
    assert store.sync("b syncs", "client-1", 1) is None
    store.sync("a syncs", "client-0", 1, {"client-0": b"x", "client-1": b"y"})
    assert store.answers["a syncs"].assignment == b"x"
    assert store.answers["b syncs"].assignment == b"y"
    # The first record is that of the group, written by the first join.
    assert store.group.state == STABLE and len(store.log) == 2


def test_a_member_that_is_silent_for_its_session_is_removed(store):
    first, second = store.stable("a", "b")
    store.run(900)
    assert store.heartbeat(first, 1) == 0
    store.run(200)
    assert list(store.group.members) == [first]
    assert store.heartbeat(first, 1) == 27
    assert store.heartbeat(second, 1) == 25


def test_member_that_misses_the_rebalance_is_removed(store):
    first, second = store.stable("a", "b")
    store.join("c")
    store.join("a again", first)
    assert store.group.state == PREPARING
    store.run(500)
    assert store.answers["c"].generation_id == 2
    assert second not in store.group.members


def test_a_member_that_joins_but_never_syncs_is_removed(store):
    store.join("a", session_ms=5000)
    store.join("b", session_ms=5000)
    store.run(100).run(100)
    store.sync("a syncs", "client-0", 1, {"client-0": b"x"})
    store.run(500)
    assert list(store.group.members) == ["client-0"]
    assert store.heartbeat("client-0", 1) == 27


def test_the_last_member_that_leaves_empties_the_group(store):
    member, = store.stable("a")
    assert store.groups.leave("g", [(member, None)]) == [0]
    store.settle()
    assert store.group.state == EMPTY and store.group.generation == 2
    assert store.groups.leave("g", [(member, None)]) == [25]


def test_issued_member_id_expires(store):
    answer = store.join("a", version=4)
    assert answer.error_code == 79 and answer.member_id == "client-0"
    store.run(1000)
    assert store.group.state == EMPTY and not store.group.pending
    assert store.join("late", "client-0").error_code == 25


def test_rejected_join_leaves_an_empty_group(store):
    refused = store.join("a", protocols=())
    assert refused.error_code == 23
    assert store.group.state == EMPTY and len(store.log) == 1


def test_group_rejects_members_above_its_limit(store):
    store.stable("a", "b", "c")
    assert store.join("d").error_code == 81


def test_returning_static_member_does_not_trigger_a_rebalance(store):
    store.join("a", instance="i")
    store.run(100)
    store.sync("a syncs", "i-0", 1, {"i-0": b"x"}, "i")
    answer = store.join("back", instance="i", version=9)
    assert (answer.error_code, answer.generation_id, answer.member_id) == (0, 1, "i-1")
    assert answer.skip_assignment and answer.leader == "i-1"
    assert store.sync("back syncs", "i-1", 1, instance="i").assignment == b"x"
    assert store.heartbeat("i-0", 1, "i") == 82
    assert store.sync("old", "i-0", 1, instance="i").error_code == 82


def test_a_second_join_of_a_member_answers_the_first(store):
    store.stable("a", "b")
    store.join("again", "client-1", protocols=(("range", b"new"),))
    store.join("and again", "client-1", protocols=(("range", b"new"),))
    assert store.answers["again"].error_code == 27
    assert "and again" not in store.answers


def test_lost_join_response_is_repeated(store):
    store.join("a")
    store.run(100)
    assert store.join("a again", "client-0").generation_id == 1
    assert store.group.state == COMPLETING


def test_the_protocol_that_most_members_prefer_is_chosen(store):
    store.join("a", protocols=(("one", b""), ("two", b"")))
    store.join("b", protocols=(("two", b""), ("one", b"")))
    store.join("c", protocols=(("two", b""), ("three", b""), ("one", b"")))
    store.run(100).run(100)
    assert store.answers["a"].protocol_name == "two"


def test_a_commit_counts_as_a_heartbeat(store):
    member, = store.stable("a")
    store.run(900)
    store.commit(5, member, 1)
    store.run(900)
    assert store.heartbeat(member, 1) == 0


def test_offsets_of_an_empty_group_expire_after_the_retention(store):
    store.commit(5)
    store.commit(6, topic="kept", retention_ms=10_000)
    store.clock.ms += 999
    assert offsets.expire(store.groups, store.group) == 0
    store.clock.ms += 1
    assert offsets.expire(store.groups, store.group) == 1
    store.clock.ms += 9000
    assert offsets.expire(store.groups, store.group) == 1
    assert "g" not in store.groups.groups
    assert [value for _, value in store.settle().log[-3:]] == [None] * 3
    assert store.groups.events["offset_expired"] == 2


def test_offsets_that_a_live_group_is_not_subscribed_to_expire_after_the_retention(store):
    subscription = struct.pack(">hih1si", 0, 1, 1, b"t", -1)
    store.join("a", protocols=(("range", subscription),))
    store.run(300)
    member = store.answers["a"].member_id
    store.sync("s", member, 1, {member: b""})
    assert store.group.state == STABLE
    store.commit(5, member, 1)
    store.commit(6, member, 1, topic="left")
    store.clock.ms += 999
    assert offsets.expire(store.groups, store.group) == 0
    store.clock.ms += 1
    assert offsets.expire(store.groups, store.group) == 1
    assert [topic for topic, _ in store.group.offsets] == ["t"]


def test_offsets_expire_one_retention_after_the_last_member_left(store):
    member, = store.stable("a")
    store.commit(5, member, 1)
    store.run(600)
    assert store.heartbeat(member, 1) == 0
    store.groups.leave("g", [(member, None)])
    store.clock.ms += 999
    assert offsets.expire(store.groups, store.group) == 0
    store.clock.ms += 1
    assert offsets.expire(store.groups, store.group) == 1


def test_offsets_of_a_live_group_do_not_expire(store):
    member, = store.stable("a")
    store.commit(5, member, 1)
    store.clock.ms += 100_000
    assert offsets.expire(store.groups, store.group) == 0


def test_repeated_join_or_sync_answers_the_previous_request_first(store):
    store.join("a")
    store.join("b")
    store.run(100).run(100).run(100)
    leader, follower = (sorted(store.answers.values(), key=lambda one: not one.members))
    store.sync("first", follower.member_id, leader.generation_id)
    assert "first" not in store.answers
    store.sync("again", follower.member_id, leader.generation_id)
    assert store.answers["first"].error_code == 27 and "again" not in store.answers
    store.sync("leads", leader.member_id, leader.generation_id, {
        follower.member_id: b"share", leader.member_id: b"own"})
    assert (store.answers["again"].error_code, store.answers["again"].assignment) == (
        0, b"share")


def test_a_group_is_described_with_its_protocol_only_while_it_is_stable(store):
    def described():
        row, = group_describe.described(store.groups, "g", 5, 1000)
        return (row.group_state, row.protocol_type, row.protocol_data,
                [(one.member_metadata, one.member_assignment) for one in row.members])

    store.join("a", protocols=(("range", b"asked"),))
    assert described() == ("PreparingRebalance", "consumer", "", [(b"", b"")])
    store.run(300)
    member = store.answers["a"].member_id
    assert described() == ("CompletingRebalance", "consumer", "", [(b"", b"")])
    store.sync("s", member, 1, {member: b"given"})
    assert described() == ("Stable", "consumer", "range", [(b"asked", b"given")])
    store.groups.leave("g", [(member, None)])
    assert described() == ("Empty", "consumer", "", [])


def test_a_group_is_deleted_only_when_it_is_empty(store):
    member, = store.stable("a")
    store.commit(5, member, 1)
    assert _delete(store) == 68
    store.groups.leave("g", [(member, None)])
    assert _delete(store) == 0
    assert _delete(store) == 69
    again = Machine()
    loaded(again.groups, store.settle().log)
    assert again.groups.groups == {}


def test_a_restart_brings_members_and_offsets_back(store):
    first, second = store.stable("a", "b")
    store.commit(5, first, 1)
    again = Machine()
    loaded(again.groups, store.log)
    assert again.heartbeat(first, 1) == 0
    assert again.sync("b syncs", second, 1).assignment == second.encode()
    assert again.commit(6, first, 1) == 0
    again.run(900)
    assert again.heartbeat(second, 1) == 0
    again.run(200)
    assert list(again.group.members) == [second]


def _static_pair(store):
    """Return a leader and a static follower that have joined; the leader has sent the assignment.
    """
    store.join("a", instance="one")
    store.join("b", instance="two")
    store.run(100).run(100).run(100)
    first, second = (store.answers[token].member_id for token in "ab")
    assert store.group.leader == first and store.group.state == COMPLETING
    return first, second


def test_replaced_static_member_continues_after_a_replay(store):
    first, second = _static_pair(store)
    for token, member in (("sync b", second), ("sync a", first)):
        instance = "two" if member == second else "one"
        store.sync(token, member, 1, {first: b"1", second: b"2"}, instance)
    for number, instance in enumerate(("two", "one", "two")):
        before = store.group.statics[instance]
        answer = store.join(f"back {number}", instance=instance, version=9)
        assert (answer.error_code, answer.generation_id) == (0, 1)
        again = Machine()
        loaded(again.groups, store.log)
        assert again.heartbeat(answer.member_id, 1, instance) == 0
        assert again.heartbeat(before, 1, instance) == 82 and again.heartbeat(before, 1) == 25
        assert again.sync("sync", answer.member_id, 1, instance=instance).assignment == \
            {"one": b"1", "two": b"2"}[instance]
        assert again.group.leader == store.group.leader
        assert again.run(1001).group.members == {}


def test_a_static_follower_that_is_replaced_before_it_syncs_is_missed_at_the_sync_timeout(store):
    first, second = _static_pair(store)
    store.sync("sync a", first, 1, {first: b"1", second: b"2"}, "one")
    assert store.group.state == STABLE
    back = store.join("back", instance="two", session_ms=10_000)
    assert back.error_code == 0 and store.group.unsynced == {back.member_id}
    store.run(300)
    assert store.heartbeat(first, 1, "one") == 0
    store.run(100)
    assert list(store.group.members) == [first] and store.group.state == PREPARING
    assert store.heartbeat(back.member_id, 1, "two") == 25


def test_replacing_a_static_follower_during_assignment_rebalances(store):
    first, second = _static_pair(store)
    waiting = store.sync("sync b", second, 1, instance="two")
    assert waiting is None
    store.join("back", instance="two", session_ms=10_000)
    assert store.answers["sync b"].error_code == 82
    assert store.heartbeat(first, 1, "one") == 27
    assert store.join("again", first, instance="one").generation_id == 2
    back = store.answers["back"]
    store.sync("sync again", first, 2, {back.member_id: b"2"}, "one")
    # The other member never syncs.
    store.run(499).run(1)
    assert list(store.group.members) == [first] and store.heartbeat(first, 2, "one") == 27


def test_protocol_is_kept_unless_another_has_more_votes(store):
    likes = [("a", "b"), ("b", "a")]
    for token, names in zip("xy", likes, strict=True):
        store.join(token, instance=token, protocols=[(name, b"") for name in names])
    store.run(100).run(100).run(100)
    chosen = store.group.protocol
    members = [store.answers[token].member_id for token in "xy"]
    store.sync("s0", store.group.leader, 1, dict.fromkeys(members, b"z"),
                 "xy"[members.index(store.group.leader)])
    for number, at in enumerate((0, 1, 0, 0, 1)):
        answer = store.join(f"back {number}", instance="xy"[at],
                              protocols=[(name, b"") for name in likes[at]])
        assert (answer.error_code, store.group.state) == (0, STABLE)
    assert store.group.protocol == chosen


def _schedule(seed: int, steps: int) -> World:
    world = World(random.Random(seed))
    chance = world.random
    for _ in range(steps):
        if not world.step():
            break
        if chance.random() < 0.01:
            world.restart()
        world.check()
    return world


def test_random_schedules_keep_the_invariants(random_source):
    first = random_source.randrange(1 << 40)
    generations = commits = 0
    for seed in range(first, first + SCHEDULES):
        # Most are short and differ in their beginning; a few are long.
        steps = DEEP_STEPS if seed % 100 == 0 else STEPS
        try:
            world = _schedule(seed, steps)
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}, {steps} steps: {error}") from error
        generations += len(world.owners)
        commits += len(world.committed)
    assert generations > SCHEDULES // 10 and commits > SCHEDULES // 50, (generations, commits)


def test_a_group_without_faults_becomes_stable(random_source):
    for _ in range(20):
        world = World(random.Random(random_source.randrange(1 << 40)))
        world.loss = world.twice = 0
        world.act = lambda consumer, world=world: (
            world.join(consumer) if consumer.owned is None and consumer.waiting is None
            else world.heartbeat(consumer) if consumer.waiting is None else None)
        for _ in range(2000):
            world.step()
            world.flush()
        group = world.state_machine.groups[GROUP]
        assert group.state == STABLE and len(group.members) == len(world.consumers)
