"""Progress of the controllers' etcds; simulated except in one test."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from pylog.metadata.quorum.etcd import Etcd
from pylog.metadata.quorum.key_value import KeysError, MemberState, Put, Row, Unreachable
from pylog.metadata.quorum.voter_status import Voter, Voters
from tests.fixtures.etcds import Etcds

KEY = "/p/at/end"


class World:
    """ends: by address, an exception if the member fails. `cut_off`: members without a leader.
    `closed`: closed connections.
    """

    def __init__(self, **ends):
        self.ends, self.cut_off, self.closed, self.asked = ends, set(), 0, 0
        self.now_ms = 1000
        self.voters = Voters({1: "e1", 2: "e2", 3: "e3"}, self.connect, KEY, lambda: self.now_ms)

    def connect(self, address):
        def get_here(key):
            self.asked += 1
            assert key == KEY
            end = self.ends[address]
            if isinstance(end, Exception):
                raise end
            return None if end is None else Row(key, str(end).encode())

        def close():
            self.closed += 1

        return SimpleNamespace(get_here=get_here, close=close, state_of=lambda of: MemberState(
            of, address not in self.cut_off, False, "", -1, ""))

    def asked_at(self, now_ms, end):
        self.now_ms = now_ms
        return asyncio.run(self.voters.states(end))


def test_each_voter_is_reported_with_its_end_offset():
    world = World(e1=7, e2=6, e3=None)
    assert world.asked_at(1000, end=7) == [
        Voter(1, 7, 1000, 1000), Voter(2, 6, 1000, -1), Voter(3, 0, 1000, -1)]
    assert world.closed == 3


@pytest.mark.parametrize("failure", [Unreachable("gone"), KeysError("it is full")])
def test_unresponsive_voter_is_reported_with_its_last_state(failure):
    world = World(e1=7, e2=7, e3=failure)
    assert world.asked_at(1000, end=7)[2] == Voter(3, -1, -1, -1)
    world.ends |= {"e2": failure, "e3": 8}
    assert world.asked_at(2000, end=8) == [
        Voter(1, 7, 2000, 1000), Voter(2, 7, 1000, 1000), Voter(3, 8, 2000, 2000)]
    assert world.closed == 6


def test_voter_cut_off_from_the_quorum_is_not_counted():
    world = World(e1=7, e2=7, e3=7)
    world.asked_at(1000, end=7)
    world.cut_off = {"e3"}
    assert world.asked_at(2000, end=7)[2] == Voter(3, 7, 1000, 1000)


def test_concurrent_caller_gets_the_same_result():
    world = World(e1=7, e2=7, e3=7)
    held, connect = threading.Event(), world.connect

    def connect_late(address):
        held.wait(60)
        return connect(address)
    world.voters._connect = connect_late

    async def scenario():
        waiting = [asyncio.ensure_future(world.voters.states(7)) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        held.set()
        answers = await asyncio.gather(*waiting[1:])
        assert all(answer is answers[0] for answer in answers) and waiting[0].cancelled()
        assert world.asked == 3
        await world.voters.states(7)
        assert world.asked == 6

    asyncio.run(scenario())


def test_failed_etcd_member_is_distinguished_from_running_ones(tmp_path):
    servers = Etcds(tmp_path)
    try:
        servers.start()
        keys = servers.keys(1.0)
        keys.transact([], [Put(KEY, b"5")])
        keys.close()
        servers.kill(2)
        voters = Voters(dict(enumerate(servers.addresses, 1)), lambda address: Etcd([address]),
                        KEY, lambda: 1000)

        async def scenario():
            while True:
                # That member may have been the leader; the put arrives later.
                found = await voters.states(5)
                if found[0].caught_up_ms == found[2].caught_up_ms == 1000:
                    return found
                await asyncio.sleep(0.05)
        assert asyncio.run(scenario())[1] == Voter(2, -1, -1, -1)
    finally:
        servers.close()
