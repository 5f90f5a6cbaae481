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


def _delete(machine, group="g"):
    """Run a deletion to its end and return the error code."""
    steps = group_describe.delete(machine.groups, group)
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
def machine():
    return Machine()


def test_the_first_rebalance_waits_for_more_members(machine):
    machine.join("a")
    machine.run(60)
    machine.join("b")
    assert machine.run(40).answers == {}
    machine.run(100)
    assert {token: answer.generation_id for token, answer in machine.answers.items()} \
        == {"a": 1, "b": 1}
    leader = machine.answers["a"]
    assert [row.member_id for row in leader.members] == ["client-0", "client-1"]
    assert machine.answers["b"].members == [] and machine.answers["b"].leader == "client-0"


def test_followers_get_their_assignment_when_the_leader_has_sent_it(machine):
    machine.join("a")
    machine.join("b")
    machine.run(100).run(100)
    assert machine.sync("b syncs", "client-1", 1) is None
    machine.sync("a syncs", "client-0", 1, {"client-0": b"x", "client-1": b"y"})
    assert machine.answers["a syncs"].assignment == b"x"
    assert machine.answers["b syncs"].assignment == b"y"
    # The first record is that of the group, written by the first join.
    assert machine.group.state == STABLE and len(machine.log) == 2


def test_a_member_that_is_silent_for_its_session_is_removed(machine):
    first, second = machine.stable("a", "b")
    machine.run(900)
    assert machine.heartbeat(first, 1) == 0
    machine.run(200)
    assert list(machine.group.members) == [first]
    assert machine.heartbeat(first, 1) == 27
    assert machine.heartbeat(second, 1) == 25


def test_member_that_misses_the_rebalance_is_removed(machine):
    first, second = machine.stable("a", "b")
    machine.join("c")
    machine.join("a again", first)
    assert machine.group.state == PREPARING
    machine.run(500)
    assert machine.answers["c"].generation_id == 2
    assert second not in machine.group.members


def test_a_member_that_joins_but_never_syncs_is_removed(machine):
    machine.join("a", session_ms=5000)
    machine.join("b", session_ms=5000)
    machine.run(100).run(100)
    machine.sync("a syncs", "client-0", 1, {"client-0": b"x"})
    machine.run(500)
    assert list(machine.group.members) == ["client-0"]
    assert machine.heartbeat("client-0", 1) == 27


def test_the_last_member_that_leaves_empties_the_group(machine):
    member, = machine.stable("a")
    assert machine.groups.leave("g", [(member, None)]) == [0]
    machine.settle()
    assert machine.group.state == EMPTY and machine.group.generation == 2
    assert machine.groups.leave("g", [(member, None)]) == [25]


def test_issued_member_id_expires(machine):
    answer = machine.join("a", version=4)
    assert answer.error_code == 79 and answer.member_id == "client-0"
    machine.run(1000)
    assert machine.group.state == EMPTY and not machine.group.pending
    assert machine.join("late", "client-0").error_code == 25


def test_rejected_join_leaves_an_empty_group(machine):
    refused = machine.join("a", protocols=())
    assert refused.error_code == 23
    assert machine.group.state == EMPTY and len(machine.log) == 1


def test_group_rejects_members_above_its_limit(machine):
    machine.stable("a", "b", "c")
    assert machine.join("d").error_code == 81


def test_returning_static_member_does_not_trigger_a_rebalance(machine):
    machine.join("a", instance="i")
    machine.run(100)
    machine.sync("a syncs", "i-0", 1, {"i-0": b"x"}, "i")
    answer = machine.join("back", instance="i", version=9)
    assert (answer.error_code, answer.generation_id, answer.member_id) == (0, 1, "i-1")
    assert answer.skip_assignment and answer.leader == "i-1"
    assert machine.sync("back syncs", "i-1", 1, instance="i").assignment == b"x"
    assert machine.heartbeat("i-0", 1, "i") == 82
    assert machine.sync("old", "i-0", 1, instance="i").error_code == 82


def test_a_second_join_of_a_member_answers_the_first(machine):
    machine.stable("a", "b")
    machine.join("again", "client-1", protocols=(("range", b"new"),))
    machine.join("and again", "client-1", protocols=(("range", b"new"),))
    assert machine.answers["again"].error_code == 27
    assert "and again" not in machine.answers


def test_lost_join_response_is_repeated(machine):
    machine.join("a")
    machine.run(100)
    assert machine.join("a again", "client-0").generation_id == 1
    assert machine.group.state == COMPLETING


def test_the_protocol_that_most_members_prefer_is_chosen(machine):
    machine.join("a", protocols=(("one", b""), ("two", b"")))
    machine.join("b", protocols=(("two", b""), ("one", b"")))
    machine.join("c", protocols=(("two", b""), ("three", b""), ("one", b"")))
    machine.run(100).run(100)
    assert machine.answers["a"].protocol_name == "two"


def test_commit_requires_the_members_generation(machine):
    member, = machine.stable("a")
    assert machine.commit(5, member, 1) == 0
    assert machine.commit(6, member, 2) == 22
    assert machine.commit(6, "x", 1) == 25
    assert machine.commit(6) == 25
    assert offsets.fetch(machine.groups, "g", None, False)[0][1][0][1].offset == 5


def test_a_commit_counts_as_a_heartbeat(machine):
    member, = machine.stable("a")
    machine.run(900)
    machine.commit(5, member, 1)
    machine.run(900)
    assert machine.heartbeat(member, 1) == 0


def test_offsets_of_an_empty_group_expire_after_the_retention(machine):
    machine.commit(5)
    machine.commit(6, topic="kept", retention_ms=10_000)
    machine.clock.ms += 999
    assert offsets.expire(machine.groups, machine.group) == 0
    machine.clock.ms += 1
    assert offsets.expire(machine.groups, machine.group) == 1
    machine.clock.ms += 9000
    assert offsets.expire(machine.groups, machine.group) == 1
    assert "g" not in machine.groups.groups
    assert [value for _, value in machine.settle().log[-3:]] == [None] * 3
    assert machine.groups.events["offset_expired"] == 2


def test_offsets_that_a_live_group_is_not_subscribed_to_expire_after_the_retention(machine):
    subscription = struct.pack(">hih1si", 0, 1, 1, b"t", -1)
    machine.join("a", protocols=(("range", subscription),))
    machine.run(300)
    member = machine.answers["a"].member_id
    machine.sync("s", member, 1, {member: b""})
    assert machine.group.state == STABLE
    machine.commit(5, member, 1)
    machine.commit(6, member, 1, topic="left")
    machine.clock.ms += 999
    assert offsets.expire(machine.groups, machine.group) == 0
    machine.clock.ms += 1
    assert offsets.expire(machine.groups, machine.group) == 1
    assert [topic for topic, _ in machine.group.offsets] == ["t"]


def test_offsets_expire_one_retention_after_the_last_member_left(machine):
    member, = machine.stable("a")
    machine.commit(5, member, 1)
    machine.run(600)
    assert machine.heartbeat(member, 1) == 0
    machine.groups.leave("g", [(member, None)])
    machine.clock.ms += 999
    assert offsets.expire(machine.groups, machine.group) == 0
    machine.clock.ms += 1
    assert offsets.expire(machine.groups, machine.group) == 1


def test_offsets_of_a_live_group_do_not_expire(machine):
    member, = machine.stable("a")
    machine.commit(5, member, 1)
    machine.clock.ms += 100_000
    assert offsets.expire(machine.groups, machine.group) == 0


def test_repeated_join_or_sync_answers_the_previous_request_first(machine):
    machine.join("a")
    machine.join("b")
    machine.run(100).run(100).run(100)
    leader, follower = (sorted(machine.answers.values(), key=lambda one: not one.members))
    machine.sync("first", follower.member_id, leader.generation_id)
    assert "first" not in machine.answers
    machine.sync("again", follower.member_id, leader.generation_id)
    assert machine.answers["first"].error_code == 27 and "again" not in machine.answers
    machine.sync("leads", leader.member_id, leader.generation_id, {
        follower.member_id: b"share", leader.member_id: b"own"})
    assert (machine.answers["again"].error_code, machine.answers["again"].assignment) == (
        0, b"share")


def test_a_group_is_described_with_its_protocol_only_while_it_is_stable(machine):
    def described():
        row, = group_describe.described(machine.groups, "g", 5, 1000)
        return (row.group_state, row.protocol_type, row.protocol_data,
                [(one.member_metadata, one.member_assignment) for one in row.members])

    machine.join("a", protocols=(("range", b"asked"),))
    assert described() == ("PreparingRebalance", "consumer", "", [(b"", b"")])
    machine.run(300)
    member = machine.answers["a"].member_id
    assert described() == ("CompletingRebalance", "consumer", "", [(b"", b"")])
    machine.sync("s", member, 1, {member: b"given"})
    assert described() == ("Stable", "consumer", "range", [(b"asked", b"given")])
    machine.groups.leave("g", [(member, None)])
    assert described() == ("Empty", "consumer", "", [])


def test_a_group_is_deleted_only_when_it_is_empty(machine):
    member, = machine.stable("a")
    machine.commit(5, member, 1)
    assert _delete(machine) == 68
    machine.groups.leave("g", [(member, None)])
    assert _delete(machine) == 0
    assert _delete(machine) == 69
    again = Machine()
    loaded(again.groups, machine.settle().log)
    assert again.groups.groups == {}


def test_a_restart_brings_members_and_offsets_back(machine):
    first, second = machine.stable("a", "b")
    machine.commit(5, first, 1)
    again = Machine()
    loaded(again.groups, machine.log)
    assert again.heartbeat(first, 1) == 0
    assert again.sync("b syncs", second, 1).assignment == second.encode()
    assert again.commit(6, first, 1) == 0
    again.run(900)
    assert again.heartbeat(second, 1) == 0
    again.run(200)
    assert list(again.group.members) == [second]


def _static_pair(machine):
    """Return a leader and a static follower that have joined; the leader has sent the assignment.
    """
    machine.join("a", instance="one")
    machine.join("b", instance="two")
    machine.run(100).run(100).run(100)
    first, second = (machine.answers[token].member_id for token in "ab")
    assert machine.group.leader == first and machine.group.state == COMPLETING
    return first, second


def test_replaced_static_member_continues_after_a_replay(machine):
    first, second = _static_pair(machine)
    for token, member in (("sync b", second), ("sync a", first)):
        instance = "two" if member == second else "one"
        machine.sync(token, member, 1, {first: b"1", second: b"2"}, instance)
    for number, instance in enumerate(("two", "one", "two")):
        before = machine.group.statics[instance]
        answer = machine.join(f"back {number}", instance=instance, version=9)
        assert (answer.error_code, answer.generation_id) == (0, 1)
        again = Machine()
        loaded(again.groups, machine.log)
        assert again.heartbeat(answer.member_id, 1, instance) == 0
        assert again.heartbeat(before, 1, instance) == 82 and again.heartbeat(before, 1) == 25
        assert again.sync("sync", answer.member_id, 1, instance=instance).assignment == \
            {"one": b"1", "two": b"2"}[instance]
        assert again.group.leader == machine.group.leader
        assert again.run(1001).group.members == {}


def test_a_static_follower_that_is_replaced_before_it_syncs_is_missed_at_the_sync_timeout(machine):
    first, second = _static_pair(machine)
    machine.sync("sync a", first, 1, {first: b"1", second: b"2"}, "one")
    assert machine.group.state == STABLE
    back = machine.join("back", instance="two", session_ms=10_000)
    assert back.error_code == 0 and machine.group.unsynced == {back.member_id}
    machine.run(300)
    assert machine.heartbeat(first, 1, "one") == 0
    machine.run(100)
    assert list(machine.group.members) == [first] and machine.group.state == PREPARING
    assert machine.heartbeat(back.member_id, 1, "two") == 25


def test_replacing_a_static_follower_during_assignment_rebalances(machine):
    first, second = _static_pair(machine)
    waiting = machine.sync("sync b", second, 1, instance="two")
    assert waiting is None
    machine.join("back", instance="two", session_ms=10_000)
    assert machine.answers["sync b"].error_code == 82
    assert machine.heartbeat(first, 1, "one") == 27
    assert machine.join("again", first, instance="one").generation_id == 2
    back = machine.answers["back"]
    machine.sync("sync again", first, 2, {back.member_id: b"2"}, "one")
    # The other member never syncs.
    machine.run(499).run(1)
    assert list(machine.group.members) == [first] and machine.heartbeat(first, 2, "one") == 27


def test_protocol_is_kept_unless_another_has_more_votes(machine):
    likes = [("a", "b"), ("b", "a")]
    for token, names in zip("xy", likes, strict=True):
        machine.join(token, instance=token, protocols=[(name, b"") for name in names])
    machine.run(100).run(100).run(100)
    chosen = machine.group.protocol
    members = [machine.answers[token].member_id for token in "xy"]
    machine.sync("s0", machine.group.leader, 1, dict.fromkeys(members, b"z"),
                 "xy"[members.index(machine.group.leader)])
    for number, at in enumerate((0, 1, 0, 0, 1)):
        answer = machine.join(f"back {number}", instance="xy"[at],
                              protocols=[(name, b"") for name in likes[at]])
        assert (answer.error_code, machine.group.state) == (0, STABLE)
    assert machine.group.protocol == chosen


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
        group = world.machine.groups[GROUP]
        assert group.state == STABLE and len(group.members) == len(world.consumers)
