"""Partitions that follow leaders: connect, lose the connection, truncate, continue."""

import asyncio
import threading
import time

import pytest

from pylog import supervisor
from pylog._native.log import log
from pylog.log.checkpoint_writer import Checkpointer
from pylog.peer.dial import Dialled
from pylog.peer.errors import PeerError
from pylog.replication import fetching
from pylog.replication.departures import Departures
from pylog.replication.fetching import ReplicaFetchers
from pylog.replication.roles import Registered
from tests.native.log.test_log import NOW, TOPIC_ID, make, opened
from tests.native.server.fake_leader import FakeLeader, diverging, row

SETTINGS = {
    "num.replica.fetchers": 1, "replica.fetch.wait.max.ms": 500, "replica.fetch.min.bytes": 1,
    "replica.fetch.response.max.bytes": 1 << 20, "replica.fetch.max.bytes": 1 << 16,
    "replica.fetch.backoff.ms": 100, "replica.socket.timeout.ms": 20_000,
    "replica.socket.receive.buffer.bytes": 65536, "socket.request.max.bytes": 1 << 20,
    "replica.flush.before.fetch.enable": False,
}


# For logs without checkpoints.
CUTS = Checkpointer(None, None, list)


class Dialer:
    """Connections to fake leaders, by port; a port without one refuses.

    silent: the next dial sets `waits` and hangs until `back`.
    """

    def __init__(self):
        self.leaders = {}
        self.dialed = []
        self.login_ms = 0
        self.silent, self.waits, self.back = (threading.Event() for _ in range(3))

    def __call__(self, host, port):
        self.dialed.append(port)
        if self.silent.is_set():
            self.silent.clear()
            self.waits.set()
            self.back.wait(30)
            raise PeerError("no answer")
        if not self.leaders.get(port):
            raise PeerError(f"{host}:{port}: Connection refused")
        return Dialled(self.leaders[port].pop(0).far.dup(), None, self.login_ms)

    def expect(self, port):
        leader = FakeLeader()
        self.leaders.setdefault(port, []).append(leader)
        return leader


@pytest.fixture
def directory(tmp_path):
    return log.LogDir(tmp_path, 2)


@pytest.fixture
def dialer():
    return Dialer()


@pytest.fixture
def run(dialer):
    """Run a scenario with fetchers of broker 2, in a cluster with brokers 1 and 3."""
    def runs(scenario, broker_epoch=11):
        async def around():
            fetchers = ReplicaFetchers(SETTINGS, 2, dialer, CUTS.cut, Departures(time.monotonic))
            if broker_epoch is not None:
                fetchers.set_broker_epoch(broker_epoch)
            fetchers.set_nodes({1: Registered("one", 1, 5), 3: Registered("three", 3, 6)})
            try:
                async with asyncio.timeout(30):
                    await scenario(fetchers)
            finally:
                await fetchers.close()
        asyncio.run(around())
    return runs


def follower_of(directory, name="f", records=0):
    one = opened(directory, name)
    for _ in range(records):
        one.append(make(1), NOW)
    one.become_follower(4)
    return one


async def taken(leader):
    return await asyncio.to_thread(leader.take)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.002)


def test_leaders_are_dialed_until_reachable(run, dialer, directory):
    source, copy = opened(directory, "leader"), follower_of(directory)
    source.append(make(3), NOW)

    async def scenario(fetchers):
        fetchers.set_broker_epoch(12)
        fetchers.follow(copy, TOPIC_ID, "f", 0, 1, 4)
        await until(lambda: len(dialer.dialed) == 3)
        leader = dialer.expect(1)
        asked = await taken(leader)
        assert asked.replica_state.replica_epoch == 12
        leader.answer((TOPIC_ID, row(source.read(0), high_watermark=5)))
        await taken(leader)
        [(name, partition, leader_id, lag, answered_ns)] = fetchers.lag()
        assert (name, partition, leader_id, lag) == ("f", 0, 1, 2) and answered_ns > 0
    run(scenario)
    assert copy.read(0) == source.read(0)


def test_nothing_is_fetched_before_this_broker_is_registered(run, dialer, directory):
    async def scenario(fetchers):
        leader = dialer.expect(1)
        fetchers.follow(follower_of(directory), TOPIC_ID, "f", 0, 1, 4)
        await until(lambda: dialer.dialed)
        await asyncio.sleep(0.05)
        assert fetchers.stats()["requests"] == 0
        fetchers.set_broker_epoch(12)
        assert (await taken(leader)).replica_state.replica_epoch == 12
    run(scenario, broker_epoch=None)


def test_partitions_of_one_leader_share_a_connection(
        run, dialer, directory):
    async def scenario(fetchers):
        leader = dialer.expect(1)
        for index in range(3):
            fetchers.follow(follower_of(directory, f"f{index}"), TOPIC_ID, "f", index, 1, 4)
        await taken(leader)
        assert len(leader.partitions()) == 3
        for index in range(3):
            fetchers.unfollow(TOPIC_ID, index)
        fetchers.unfollow(TOPIC_ID, 9)
        with pytest.raises((EOFError, ConnectionError)):
            leader.far.close()
            await taken(leader)
        assert dialer.dialed == [1] and fetchers.lag() == []
    run(scenario)


def test_lost_connection_is_reopened(run, dialer, directory):
    async def scenario(fetchers):
        first = dialer.expect(1)
        fetchers.follow(follower_of(directory), TOPIC_ID, "f", 0, 1, 4)
        await taken(first)
        second = dialer.expect(1)
        first.close()
        assert (await taken(second)).session_epoch == 0
    run(scenario)
    assert dialer.dialed == [1, 1]


def test_leader_and_address_changes_are_followed(run, dialer, directory):
    copy = follower_of(directory)

    async def scenario(fetchers):
        first, second, third = dialer.expect(1), dialer.expect(3), dialer.expect(33)
        fetchers.follow(copy, TOPIC_ID, "f", 0, 1, 4)
        await taken(first)
        fetchers.follow(copy, TOPIC_ID, "f", 0, 3, 5)
        await taken(second)
        assert second.partitions()[0][1].current_leader_epoch == 5
        fetchers.set_nodes({1: Registered("one", 1, 5), 3: Registered("three", 33, 6)})
        await taken(third)
    run(scenario)
    assert dialer.dialed == [1, 3, 33]


def test_reregistered_leader_is_reconnected(run, dialer, directory):
    """The leader's machine may be gone: otherwise the fetcher would wait for its response."""
    copy = follower_of(directory)

    async def scenario(fetchers):
        first, second = dialer.expect(1), dialer.expect(1)
        fetchers.follow(copy, TOPIC_ID, "f", 0, 1, 4)
        await taken(first)
        fetchers.set_nodes({1: Registered("one", 1, 5), 3: Registered("three", 3, 8)})
        fetchers.set_nodes({1: Registered("one", 1, 9), 3: Registered("three", 3, 8)})
        await taken(second)
    run(scenario)
    assert dialer.dialed == [1, 1]


def test_connection_attempt_to_a_reregistered_leader_is_abandoned(run, dialer, directory):
    """The leader's machine may be gone and back: otherwise the fetcher would wait for the earlier
    dial.
    """
    copy = follower_of(directory)

    async def scenario(fetchers):
        dialer.silent.set()
        fetchers.follow(copy, TOPIC_ID, "f", 0, 1, 4)
        await asyncio.to_thread(dialer.waits.wait, 30)
        leader = dialer.expect(1)
        fetchers.set_nodes({1: Registered("one", 1, 9), 3: Registered("three", 3, 6)})
        await taken(leader)
        dialer.back.set()
    run(scenario)
    assert dialer.dialed == [1, 1]


def test_end_offsets_are_requested_at_the_leaders_listener(run, directory, monkeypatch):
    asked = []

    async def connect(host, port, **_):
        asked.append((host, port))
        raise PeerError("no answer")

    monkeypatch.setattr(fetching.Peer, "connect", connect)
    part = fetching.Partition(
        TOPIC_ID, "f", 0, follower_of(directory), 3, 4, None, fetching.Link(0, 3))

    async def scenario(fetchers):
        with pytest.raises(PeerError):
            await fetchers._ends_of(part)
    run(scenario)
    assert asked == [("three", 3)]


def test_diverging_log_is_truncated_and_continues(run, dialer, directory):
    copy = follower_of(directory, records=6)

    async def scenario(fetchers):
        leader = dialer.expect(1)
        fetchers.follow(copy, TOPIC_ID, "f", 0, 1, 4)
        await taken(leader)
        leader.answer((TOPIC_ID, diverging(0, 2)))
        await taken(leader)
        [(_, part)] = leader.partitions()
        assert (part.fetch_offset, part.last_fetched_epoch) == (2, 0)
    run(scenario)
    assert copy.end_offset == 2


def test_log_that_became_leader_is_not_truncated(run, dialer, directory):
    copy = follower_of(directory, records=6)
    cuts = []

    def late(*arguments):
        copy.become_leader(5)
        cuts.append(arguments)
        CUTS.cut(*arguments)

    async def scenario(fetchers):
        fetchers._cut = late
        leader = dialer.expect(1)
        fetchers.follow(copy, TOPIC_ID, "f", 0, 1, 4)
        await taken(leader)
        leader.answer((TOPIC_ID, diverging(0, 2)))
        await until(lambda: cuts)
    run(scenario)
    assert copy.end_offset == 6


def test_failed_truncation_is_retried(run, dialer, directory):
    copy = follower_of(directory, records=6)
    cuts = []

    def failing_once(*arguments):
        cuts.append(fetchers_of[0].stats()["failed"])
        if len(cuts) == 1:
            raise ValueError("planted")
        CUTS.cut(*arguments)

    fetchers_of = []
    before = supervisor.failures().get("replica fetcher", 0)

    async def scenario(fetchers):
        fetchers_of.append(fetchers)
        fetchers._cut = failing_once
        leader = dialer.expect(1)
        fetchers.follow(copy, TOPIC_ID, "f", 0, 1, 4)
        await taken(leader)
        leader.answer((TOPIC_ID, diverging(0, 2)))
        await taken(leader)
        assert fetchers.stats()["failed"] == 1
        leader.answer((TOPIC_ID, diverging(0, 2)))
        await taken(leader)
        [(_, part)] = leader.partitions()
        assert part.fetch_offset == 2
        leader.answer((TOPIC_ID, row(b"", high_watermark=2)))
        await taken(leader)
        assert fetchers.stats()["failed"] == 0
    run(scenario)
    assert copy.end_offset == 2 and len(cuts) == 2
    assert supervisor.failures()["replica fetcher"] == before + 1


def test_failed_notification_of_one_partition_does_not_stop_others(
        run, dialer, directory, monkeypatch):
    copies = [follower_of(directory, f"f{index}", records=6) for index in range(2)]
    real = ReplicaFetchers._begin_repair

    def failing(self, token, part, work):
        if part.partition == 0:
            work.close()
            raise ValueError("planted")
        real(self, token, part, work)
    monkeypatch.setattr(ReplicaFetchers, "_begin_repair", failing)

    async def scenario(fetchers):
        leader = dialer.expect(1)
        for index, copy in enumerate(copies):
            fetchers.follow(copy, TOPIC_ID, "f", index, 1, 4)
        while len((await taken(leader)).topics) == 0 or len(leader.partitions()) < 2:
            leader.answer()
        leader.answer((TOPIC_ID, diverging(0, 2)), (TOPIC_ID, diverging(0, 2, index=1)))
        await until(lambda: copies[1].end_offset == 2)
        assert copies[0].end_offset == 6
    run(scenario)


def test_follower_adopts_the_leaders_log_start(
        run, dialer, directory, monkeypatch):
    copy = follower_of(directory, records=6)

    async def ends_of(_self, _part):
        return 50, 90
    monkeypatch.setattr(ReplicaFetchers, "_ends_of", ends_of)

    async def scenario(fetchers):
        leader = dialer.expect(1)
        fetchers.follow(copy, TOPIC_ID, "f", 0, 1, 4)
        await taken(leader)
        leader.answer((TOPIC_ID, row(error_code=1)))
        await taken(leader)
        [(_, part)] = leader.partitions()
        assert (part.fetch_offset, part.log_start_offset) == (50, 50)
    run(scenario)
    assert (copy.start_offset, copy.end_offset) == (50, 50)


def test_native_fetcher_starts_with_the_first_followed_partition(run):
    async def scenario(fetchers):
        fetchers.set_broker_epoch(3)
        assert fetchers.stats() == {} and fetchers.lag() == []
    run(scenario)
