"""Heartbeats of a classic member, and how it leaves the group; without a broker."""

import asyncio

import pytest

from pylog.client.errors import KafkaConnectionError, KafkaError, error
from pylog.protocol.errors import ErrorCode
from tests.client.played_consumer import ONE
from tests.client.played_group import BEATEN, synced


def test_stable_member_sends_heartbeats_with_its_identity(play_member):
    async def steps(world, one):
        world.polling = True
        await one.run_pending_work()
        await asyncio.sleep(10)
        assert world.kinds() == ["join", "sync", "beat", "beat", "beat"]
        _, beat, channel, timeout_s = world.requests[-1]
        assert (beat.group_id, beat.generation_id, beat.member_id, beat.group_instance_id) == (
            "g", 1, "m", None)
        assert (channel, timeout_s) == ("coordinator", 6.0)
        one.stable = False
        await asyncio.sleep(10)
        assert len(world.requests) == 5

    play_member(steps, session_timeout_ms=6000)


@pytest.mark.parametrize("code, joins, lost, member_id", [
    (0, False, False, "m"), (ErrorCode.REBALANCE_IN_PROGRESS, True, False, "m"),
    (ErrorCode.UNKNOWN_MEMBER_ID, True, True, ""),
    (ErrorCode.ILLEGAL_GENERATION, True, True, "m")])
def test_heartbeat_response_triggers_rejoin_or_loss(
        play_member, code, joins, lost, member_id):
    async def steps(world, one):
        await one.run_pending_work()
        world.script["beat"] = [BEATEN(error_code=int(code))]
        await one._beat_once()
        assert (one.needs_join, one.lost, one.member_id) == (joins, lost, member_id)
        assert world.notices == joins and one.generation == (-1 if lost else 1)
        assert one.stable == (not lost)
        await one.run_pending_work()
        assert (("lost", [ONE]) in world.calls) == lost

    play_member(steps)


def test_a_member_that_owned_nothing_loses_nothing(play_member):
    async def steps(world, one):
        world.script["sync"] = [synced()]
        await one.run_pending_work()
        one.commit_refused(error(ErrorCode.UNKNOWN_MEMBER_ID))
        assert one.needs_join and not one.lost

    play_member(steps)


@pytest.mark.parametrize("change", ["generation", "stable"])
def test_heartbeat_response_of_an_earlier_generation_is_ignored(play_member, change):
    async def steps(world, one):
        await one.run_pending_work()
        ask = world.ask

        async def meanwhile(*given, **more):
            found = await ask(*given, **more)
            if change == "generation":
                one.generation = 2
            else:
                one.stable = False
            return found

        world.replace(meanwhile)
        world.script["beat"] = [BEATEN(error_code=int(ErrorCode.UNKNOWN_MEMBER_ID))]
        await one._beat_once()
        assert not one.needs_join and one.member_id == "m"

    play_member(steps)


@pytest.mark.parametrize("code, fails", [
    (ErrorCode.GROUP_AUTHORIZATION_FAILED, True), (ErrorCode.FENCED_INSTANCE_ID, True),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, False)])
def test_permanent_heartbeat_error_is_raised_by_the_next_poll(play_member, code, fails):
    async def steps(world, one):
        world.polling = True
        await one.run_pending_work()
        world.script["beat"] = [BEATEN(error_code=int(code)), BEATEN()]
        await asyncio.sleep(3.5)
        assert (one.failure is not None) == one.has_pending_work == fails
        assert one.stable == (not fails) and world.notices == fails
        assert world.forgotten == (not fails)
        await asyncio.sleep(3)
        assert world.kinds().count("beat") == (1 if fails else 2)
        if fails:
            for _ in range(1 + one.failure.fatal):
                with pytest.raises(KafkaError) as raised:
                    await one.run_pending_work()
                assert raised.value.code == code
            assert (one.failure is None) == (not raised.value.fatal)

    play_member(steps)


@pytest.mark.parametrize("code, joins", [
    (ErrorCode.UNKNOWN_MEMBER_ID, True), (ErrorCode.ILLEGAL_GENERATION, True),
    (ErrorCode.REBALANCE_IN_PROGRESS, False)])
def test_rejected_commit_makes_the_member_rejoin(play_member, code, joins):
    async def steps(world, one):
        await one.run_pending_work()
        one.commit_refused(error(code))
        assert (one.needs_join, one.lost) == (joins, joins)
        one.needs_join = one.stable = False
        one.commit_refused(error(code))
        assert not one.needs_join

    play_member(steps)


# Members that do not poll, and members that leave.

def test_member_that_does_not_poll_leaves_and_rejoins_at_the_next_poll(play_member):
    async def steps(world, one):
        await one.run_pending_work()
        one.polled_s = world.clock.now_s
        await asyncio.sleep(6.5)
        assert world.kinds()[2:] == ["beat", "beat"]
        await asyncio.sleep(3)
        [leave] = world.asked("leave")
        assert [(row.member_id, row.reason) for row in leave.members] == [
            ("m", "no poll within max.poll.interval.ms")]
        assert one.lost and one.needs_join and (one.member_id, one.generation) == ("", -1)
        await asyncio.sleep(30)
        assert len(world.requests) == 5

    play_member(steps, max_poll_interval_ms=7000)


def test_member_inside_a_poll_is_not_late(play_member):
    async def steps(world, one):
        await one.run_pending_work()
        world.polling = True
        await asyncio.sleep(60)
        assert not world.asked("leave") and not one.is_late
        world.polling = False
        assert one.is_late
        one.polled_s = world.clock.now_s - 7
        assert not one.is_late

    play_member(steps, max_poll_interval_ms=7000)


def test_idle_static_member_keeps_its_partitions(play_member):
    async def steps(world, one):
        await one.run_pending_work()
        await asyncio.sleep(10)
        assert not world.asked("leave") and one.lost and one.member_id == "m"
        await one.leave()
        assert not world.asked("leave") and one.member_id == "m"
        assert world.asked("join")[0].group_instance_id == "i"

    play_member(steps, max_poll_interval_ms=7000, group_instance_id="i")


@pytest.mark.parametrize("version", [2, 3])
def test_leave_request_is_sent_once_in_the_brokers_version(play_member, version):
    async def steps(world, one):
        await one.leave()
        assert world.requests == []
        await one.run_pending_work()
        world.version = version
        await one.leave()
        await one.leave()
        [leave] = world.asked("leave")
        assert leave.group_id == "g"
        assert leave.member_id == ("m" if version < 3 else "")
        assert [(row.member_id, row.reason) for row in leave.members] == (
            [("m", "the consumer is being closed")] if version >= 3 else [])
        assert world.requests[-1][3] == 5.0 and not one.stable
        assert (one.member_id, one.generation) == ("", -1)

    play_member(steps)


def test_member_leaves_locally_if_the_request_fails(play_member):
    async def steps(world, one):
        await one.run_pending_work()
        world.script["leave"] = [KafkaConnectionError("gone")]
        await one.leave()
        assert one.member_id == "" and not one.stable

    play_member(steps)


def test_a_mistake_of_ours_is_raised_by_the_next_poll_each_time(play_member):
    async def steps(world, one):
        world.polling = True
        await one.run_pending_work()
        world.script["beat"] = [RuntimeError("a fault")]
        await asyncio.sleep(3.5)
        assert world.notices == 1
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a fault"):
                await one.run_pending_work()

    play_member(steps)


def test_second_poll_after_a_permanent_error_rejoins(play_member):
    async def steps(world, one):
        world.polling = True
        await one.run_pending_work()
        world.script["beat"] = [BEATEN(error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED)),
                                BEATEN()]
        await asyncio.sleep(4)
        with pytest.raises(KafkaError):
            await one.run_pending_work()
        await one.run_pending_work()
        await asyncio.sleep(4)
        assert world.kinds() == ["join", "sync", "beat", "join", "sync", "beat"]

    play_member(steps)
