"""Joining a group with the classic protocol: the member's requests and assignment, and the leader's
work.

The coordinator is simulated and the clock is virtual.
"""

import asyncio

import pytest

from pylog.client.consumer import assignors, classic_membership
from pylog.client.consumer.classic_membership import pack, unpack
from pylog.client.errors import ConfigError, KafkaConnectionError, KafkaError, error
from pylog.protocol import codec, messages
from pylog.protocol.errors import ErrorCode
from tests.client.played_consumer import ONE, OTHER, TWO, picture
from tests.client.played_group import JOINED, joined, synced


# Joining.

def test_new_member_joins_syncs_and_is_assigned_partitions(play_member):
    async def steps(world, one):
        assert one.has_pending_work
        await one.run_pending_work()
        assert world.kinds() == ["join", "sync"] and not one.has_pending_work
        assert (one.member_id, one.generation, one.stable, one.leads) == ("m", 1, True, False)
        assert world.calls == [("assigned", [ONE])] and one.owned() == [ONE]
        (_, join, *of_join), (_, sync, *of_sync) = world.requests
        assert of_join == of_sync == ["join", 12.0]
        assert (join.group_id, join.session_timeout_ms, join.rebalance_timeout_ms, join.member_id,
                join.group_instance_id, join.protocol_type) == (
            "g", 6000, 7000, "", None, "consumer")
        assert [row.name for row in join.protocols] == ["range", "cooperative-sticky"]
        assert (sync.generation_id, sync.member_id, sync.protocol_type, sync.protocol_name,
                sync.assignments) == (1, "m", "consumer", "range", [])
        await one.run_pending_work()
        assert len(world.requests) == 2

    play_member(steps, session_timeout_ms=6000, max_poll_interval_ms=7000)


def test_member_rejoins_immediately_with_its_new_id(play_member):
    async def steps(world, one):
        world.script["join"] = [joined(code=ErrorCode.MEMBER_ID_REQUIRED), joined()]
        began_s = world.clock.now_s
        await one.run_pending_work()
        assert [join.member_id for join in world.asked("join")] == ["", "m"]
        assert world.clock.now_s == began_s

    play_member(steps)


@pytest.mark.parametrize("code, keeps_id", [
    (ErrorCode.UNKNOWN_MEMBER_ID, False), (ErrorCode.ILLEGAL_GENERATION, True)])
def test_removed_member_rejoins(play_member, code, keeps_id):
    async def steps(world, one):
        await one.run_pending_work()
        one.subscription_changed()
        world.script["sync"] = [synced(code=code), synced(ONE)]
        await one.run_pending_work()
        assert [join.member_id for join in world.asked("join")] == [
            "", "m", "m" if keeps_id else ""]
        assert one.stable and one.owned() == [ONE]

    play_member(steps)


@pytest.mark.parametrize("failure", [
    error(ErrorCode.REBALANCE_IN_PROGRESS), error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    KafkaConnectionError("gone")])
def test_retriable_error_triggers_a_rejoin_after_a_pause(play_member, failure):
    async def steps(world, one):
        world.script["sync"] = [failure, failure, synced(ONE)]
        await one.run_pending_work()
        assert world.kinds() == ["join", "sync"] * 3 and one.stable
        assert 1000.15 < world.clock.now_s < 1000.25

    play_member(steps)


def test_permanent_error_is_raised_and_the_next_poll_rejoins(play_member):
    async def steps(world, one):
        world.script["join"] = [joined(code=ErrorCode.GROUP_AUTHORIZATION_FAILED), joined()]
        with pytest.raises(KafkaError) as raised:
            await one.run_pending_work()
        assert raised.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED and one.has_pending_work
        assert not one.stable
        await one.run_pending_work()
        assert one.stable

    play_member(steps)


def test_former_coordinator_is_looked_up_again(play_member):
    async def steps(world, one):
        world.script["join"] = [joined(code=ErrorCode.NOT_COORDINATOR), joined()]
        world.script["sync"] = [synced(code=ErrorCode.NOT_COORDINATOR), synced()]
        await one.run_pending_work()
        assert world.forgotten == 2

    play_member(steps)


# Eager and cooperative.

def test_eager_member_revokes_everything_before_it_joins(play_member):
    async def steps(world, one):
        await one.run_pending_work()
        world.script["sync"] = [synced(TWO)]
        one.subscription_changed()
        await one.run_pending_work()
        assert world.calls[1:] == [("commit", [ONE]), ("revoked", [ONE]), ("commit stored", None),
                                   ("assigned", [TWO])]
        assert one.owned() == [TWO] and not one.cooperative

    play_member(steps)


def test_cooperative_member_keeps_its_partitions_and_rejoins_to_release_the_rest(
        play_member):
    async def steps(world, one):
        assert one.cooperative
        world.script["sync"] = [synced(ONE, TWO), synced(TWO, OTHER), synced(TWO, OTHER)]
        await one.run_pending_work()
        assert world.kinds() == ["join", "sync"]
        one.subscription_changed()
        await one.run_pending_work()
        assert world.calls == [
            ("assigned", [ONE, TWO]),
            ("commit", [ONE]), ("revoked", [ONE]), ("commit stored", None),
            ("assigned", [OTHER]), ("assigned", [])]
        assert world.kinds() == ["join", "sync"] * 3

    play_member(steps, topics=("t", "u"), partition_assignment_strategy="cooperative-sticky")


def test_cooperative_member_revokes_unsubscribed_partitions_before_it_joins(play_member):
    async def steps(world, one):
        world.script["sync"] = [synced(ONE, OTHER), synced(ONE)]
        await one.run_pending_work()
        world.subscription.topics = frozenset("t")
        one.subscription_changed()
        await one.run_pending_work()
        assert world.calls[1:] == [
            ("commit", [OTHER]), ("revoked", [OTHER]), ("commit stored", None), ("assigned", [])]
        assert world.kinds() == ["join", "sync"] * 2

    play_member(steps, topics=("t", "u"), partition_assignment_strategy="cooperative-sticky")


def test_partitions_are_revoked_even_if_the_listener_fails(play_member):
    async def steps(world, one):
        await one.run_pending_work()

        async def fails(what, partitions):
            raise ValueError(what)

        world.call_listener = fails
        await one.take([ONE])
        assert one.owned() == [] and one.has_pending_work
        with pytest.raises(ValueError, match="revoked"):
            await one.run_pending_work()
        assert not one.has_pending_work
        await one.run_pending_work()

    play_member(steps)


def test_listener_exception_is_raised_after_the_rebalance_step(play_member):
    async def steps(world, one):
        async def fails(what, partitions):
            world.calls.append((what, partitions))
            raise ValueError(what)

        await one.run_pending_work()
        world.call_listener = fails
        world.script["sync"] = [synced(TWO), synced(TWO)]
        one.needs_join = True
        with pytest.raises(ValueError, match="revoked"):
            await one.run_pending_work()
        assert one.owned() == [TWO] and len(world.asked("join")) == 3
        await one.run_pending_work()

    play_member(steps, partition_assignment_strategy=["cooperative-sticky"])


def test_eager_member_sends_heartbeats_until_its_listener_returns(play_member):
    async def steps(world, one):
        async def later():
            await asyncio.sleep(10)

        await one.run_pending_work()
        world.commit_before_revoke = later
        one.needs_join = True
        await one.run_pending_work()
        assert world.kinds() == ["join", "sync", "beat", "beat", "beat", "join", "sync"]

    play_member(steps)


def subscription_in(join, name):
    [row] = [row for row in join.protocols if row.name == name]
    assert row.metadata[:2] == b"\0\3"
    return codec.program("ConsumerProtocolSubscription", 3).decode(row.metadata, 2)


def test_member_sends_its_subscription_and_owned_partitions(play_member):
    async def steps(world, one):
        world.script["sync"] = [synced(ONE, TWO, OTHER)]
        await one.run_pending_work()
        one.subscription_changed()
        await one.run_pending_work()
        first, second = [subscription_in(join, "cooperative-sticky")
                         for join in world.asked("join")]
        assert (first.topics, first.rack_id, first.generation_id, first.owned_partitions) == (
            ["t", "u"], "r", -1, [])
        assert first.user_data == b"\xff\xff\xff\xff" and second.user_data == b"\0\0\0\1"
        assert second.generation_id == 1
        assert [(row.topic, row.partitions) for row in second.owned_partitions] == [
            ("t", [0, 1]), ("u", [0])]

    play_member(steps, topics=("t", "u"), client_rack="r",
                partition_assignment_strategy="cooperative-sticky")


def test_sticky_member_sends_partitions_that_it_revoked(play_member):
    async def steps(world, one):
        await one.run_pending_work()
        for failures in (0, 1):
            world.script["sync"] = [error(ErrorCode.REBALANCE_IN_PROGRESS)] * failures + [
                synced(ONE)]
            one.subscription_changed()
            await one.run_pending_work()
        told = [subscription_in(join, "sticky") for join in world.asked("join")]
        assert [(row.owned_partitions, row.rack_id) for row in told] == [([], None)] * 4
        assert [assignors.unpack_sticky(row.user_data)[0] for row in told] == [
            (), (("t", 0),), (("t", 0),), (("t", 0),)]
        plain = [subscription_in(join, "range").user_data for join in world.asked("join")]
        assert plain == [None] * 4

    play_member(steps, partition_assignment_strategy="sticky,range")


def test_lost_partitions_are_not_sent_as_owned(play_member):
    async def steps(world, one):
        await one.run_pending_work()
        one.had, one.lost = [ONE], True
        world.calls.clear()
        await one.run_pending_work()
        assert not one.lost and world.calls == [("lost", [ONE]), ("assigned", [ONE])]
        told = subscription_in(world.asked("join")[1], "sticky")
        assert assignors.unpack_sticky(told.user_data)[0] == ()

    play_member(steps, partition_assignment_strategy="sticky")


# Leading.

def member(name, topics=("t",), owned=(), generation=-1, version=3, user_data=None, cut=None):
    made = messages.ConsumerProtocolSubscription
    body = codec.program("ConsumerProtocolSubscription", version).encode(made(
        topics=list(topics), user_data=user_data, generation_id=generation, owned_partitions=[
            made.TopicPartition(topic=topic, partitions=[number]) for topic, number in owned]))
    return JOINED.JoinGroupResponseMember(
        member_id=name, metadata=(version.to_bytes(2, "big") + body)[:cut])


def test_leader_assigns_all_subscriptions_and_looks_up_unknown_topics(play_member):
    async def steps(world, one):
        world.cluster.interest = {"t"}
        world.script["join"] = [joined(leader="m", members=[
            member("m"), member("n", ["t", "u"]), member("z", ["gone"])])]
        await one.run_pending_work()
        [sync] = world.asked("sync")
        assert {row.member_id: unpack(row.assignment) for row in sync.assignments} == {
            "m": [ONE], "n": [TWO, OTHER, ("u", 1)], "z": []}
        assert one.leads and one.counted == {"t": 2, "u": 2, "gone": 0}
        assert world.refreshes == 1 and world.cluster.interest == {"t", "u", "gone"}
        one.subscription_changed()
        await one.run_pending_work()
        assert world.refreshes == 1

    play_member(steps)


def test_a_leader_that_need_not_assign_watches_its_topics_all_the_same(play_member):
    async def steps(world, one):
        world.script["join"] = [joined(leader="m", skip_assignment=True)]
        await one.run_pending_work()
        [sync] = world.asked("sync")
        assert sync.assignments == [] and one.counted == {"t": 2}

    play_member(steps)


@pytest.mark.parametrize("leads, stable, count, joins", [
    (True, True, 3, True), (True, True, 2, False), (False, True, 3, False),
    (True, False, 3, False)])
def test_leader_triggers_a_rejoin_when_its_topics_grow(
        play_member, leads, stable, count, joins):
    async def steps(world, one):
        one.needs_join, one.leads, one.stable, one.counted = False, leads, stable, {"t": 2}
        world.cluster.metadata = picture(partitions=count)
        one.metadata_changed()
        assert one.has_pending_work == joins and world.notices == joins

    play_member(steps)


def test_a_member_without_a_subscription_that_can_be_read_is_an_error_that_names_it(play_member):
    async def steps(world, one):
        world.script["join"] = [joined(leader="m", members=[member("odd", cut=9)])]
        with pytest.raises(KafkaError, match="member odd sent no subscription"):
            await one.run_pending_work()

    play_member(steps)


STICKY, COOPERATIVE = assignors.ASSIGNORS["sticky"], assignors.ASSIGNORS["cooperative-sticky"]
RANGE = assignors.ASSIGNORS["range"]


@pytest.mark.parametrize("assignor, version, generation, user_data, expected", [
    (RANGE, 0, 5, b"\0\0\0\7", ((), -1)), (RANGE, 1, 5, b"\0\0\0\7", ((("t", 0),), -1)),
    (RANGE, 2, 5, b"\0\0\0\7", ((("t", 0),), 5)), (RANGE, 3, 0, None, ((("t", 0),), 0)),
    (COOPERATIVE, 1, 5, b"\0\0\0\7", ((("t", 0),), 7)),
    (COOPERATIVE, 1, 5, b"\0\0\0\7more", ((("t", 0),), 7)),
    (COOPERATIVE, 1, 5, b"\0\0\7", ((("t", 0),), -1)),
    (COOPERATIVE, 2, 5, b"\0\0\0\7", ((("t", 0),), 5)),
    (STICKY, 3, 5, assignors.pack_sticky([TWO], 7), ((("t", 1),), 7)),
    (STICKY, 3, 5, b"odd", ((("t", 0),), 5)), (STICKY, 3, 5, None, ((("t", 0),), 5))])
def test_leader_parses_owned_partitions_of_all_versions(
        assignor, version, generation, user_data, expected):
    found = classic_membership._member(
        member("m", ["t"], [ONE], generation, version, user_data), assignor)
    assert (found.owned, found.generation) == expected and found.topics == {"t"}


# Assignor names and encoding.

def test_assignors_are_given_by_name_kafka_class_or_object():
    own = assignors.Assignor("own", lambda counts, members: {})
    found = classic_membership._assignors([
        "org.apache.kafka.clients.consumer.RangeAssignor", "roundrobin",
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor", own])
    assert list(found) == ["range", "roundrobin", "cooperative-sticky", "own"]
    assert found["own"] is own
    for given, words in ((["rang"], "no such assignor: 'rang'"), ([], "name an assignor")):
        with pytest.raises(ConfigError, match=words):
            classic_membership._assignors(given)


def test_assignment_survives_encoding():
    assert unpack(pack([ONE, OTHER, TWO])) == [ONE, TWO, OTHER]
    assert unpack(b"") == [] and unpack(pack([])) == []
    newer = b"\0\x09" + pack([ONE])[2:]
    assert unpack(newer) == [ONE]
