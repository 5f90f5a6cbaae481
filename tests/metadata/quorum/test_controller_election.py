import asyncio
import errno
import itertools
import threading
import time

import pytest

from pylog._native.log.log import LogDir, LogError, Shortage
from pylog.metadata.log.metadata_log import Conflict
from pylog.metadata.quorum import controller_election
from pylog.metadata.quorum.controller_election import ControllerElection
from pylog.metadata.quorum.quorum_log import QuorumLog
from pylog.metadata.quorum.quorum_state import Quorum, QuorumLost
from pylog.peer.connection import Peer
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from tests.metadata.memory_keys import MemoryServers

PREFIXES = itertools.count(1)
WAIT_S = 60
TTL_S = 1
# A lease longer than any test, on machines of any speed.
LONG_S = 3600


@pytest.fixture
def prefix():
    return f"/office/{next(PREFIXES)}/"


def now_ms():
    return 1_700_000_000_000


class Node:
    """A controller without decisions: the interface that an election uses, and a listener."""

    def __init__(self, number, path, servers, prefix, ttl_s=TTL_S):
        self.number = number
        self.quorum = Quorum(servers.keys(ttl_s), prefix, 5.0, time.monotonic)
        path.mkdir(exist_ok=True)
        self.log = QuorumLog(LogDir(str(path)), None, now_ms, self.quorum)
        self.followed = []
        self.epochs = []
        self.is_appointed = False
        self.ttl_s = ttl_s

    async def begin(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.election = ControllerElection(self.log, self, self.number, "127.0.0.1", port,
                                           self.ttl_s)
        self.task = asyncio.create_task(self.election.run())
        self.writers = []
        return self

    async def serve(self, reader, writer):
        self.writers.append(writer)

    async def follow(self, batches):
        self.followed += [record.name for batch in batches for record in batch.records]

    async def reload_snapshot(self):
        batch = await asyncio.to_thread(lambda: next(self.log.read_committed(0)))
        self.followed = [record.name for record in batch.records]

    def learned(self, holder):
        self.known = holder

    async def become_active(self, epoch, heard):
        self.heard = heard
        self.epochs.append(epoch)
        self.failed = asyncio.Event()
        await self.decide(f"epoch {epoch}")
        self.is_appointed = True
        return self.failed

    async def step_down(self):
        self.is_appointed = False

    async def decide(self, name):
        try:
            await asyncio.to_thread(
                self.log.append, [messages.TopicRecord(name=name, topic_id=bytes(16))],
                self.epochs[-1], self.log.end_offset)
        except LogError:
            self.failed.set()
            raise
        self.followed.append(name)

    def save(self, offset):
        """Snapshot everything up to `offset`; the decisions are topics."""
        names = self.followed[:offset + 1]
        self.log.snapshot([messages.TopicRecord(name=name, topic_id=bytes(16)) for name in names],
                          offset, self.epochs[-1])
        self.log.trim(offset + 1)

    def go_deaf(self):
        """Simulate the end of its process: leases are not renewed, connections close, new ones are
        refused.
        """
        self.task.cancel()
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()

    async def end(self):
        self.go_deaf()
        await asyncio.gather(self.task, return_exceptions=True)
        self.quorum.close()


async def decides_until(holder, condition):
    """Other nodes may still be copying: they do not check again afterwards."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        await holder.decide("after")
        await asyncio.sleep(0.05)


async def until(condition, seconds=WAIT_S):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        await asyncio.sleep(0.005)
    return found


def in_cluster(path, servers, prefix, scenario, ttl_s=LONG_S):
    async def run():
        nodes = [await Node(number, path / str(number), servers, prefix, ttl_s).begin()
                 for number in (1, 2, 3)]
        try:
            await scenario(nodes)
        finally:
            for node in nodes:
                await node.end()

    asyncio.run(run())


def active(nodes):
    found = [node for node in nodes if node.is_appointed]
    assert len(found) <= 1, [node.number for node in found]
    return found[0] if found else None


def test_one_of_three_is_controller_and_the_others_replicate_its_decisions(
        tmp_path, servers, prefix):
    async def scenario(nodes):
        holder = await until(lambda: active(nodes))
        for number in range(20):
            await holder.decide(f"topic {number}")
        await until(lambda: all(node.followed == holder.followed for node in nodes))
        assert holder.followed == ["epoch 1", *(f"topic {number}" for number in range(20))]
        await until(lambda: all(node.election.holder == holder.election.holder for node in nodes))
        assert holder.election.holder.node_id == holder.number

    in_cluster(tmp_path, servers, prefix, scenario)


def test_standby_checks_on_notification_although_its_watch_is_silent(
        tmp_path, servers, prefix, monkeypatch):
    async def silent(quorum, stir):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Quorum, "watch", silent)
    monkeypatch.setattr(controller_election, "POLL_S", float("inf"))

    async def scenario(nodes):
        holder = await until(lambda: active(nodes))
        await holder.decide("news")
        for node in nodes:
            node.election.wake()
        await until(lambda: all(node.followed == ["epoch 1", "news"] for node in nodes))

    in_cluster(tmp_path, servers, prefix, scenario)


def test_controller_with_a_closed_listener_is_replaced_before_its_lease_ends(
        tmp_path, servers, prefix):
    async def scenario(nodes):
        first = await until(lambda: active(nodes))
        await first.decide("before")
        others = [node for node in nodes if node is not first]
        await until(lambda: all(node.followed == first.followed for node in others))
        # Its lease remains: a killed process releases nothing.
        first.quorum.resign = lambda term: None
        began = time.monotonic()
        first.go_deaf()
        second = await until(lambda: active(others))
        assert time.monotonic() - began < 30
        assert second.followed == ["epoch 1", "before", "epoch 2"]
        with pytest.raises(Conflict):
            await first.decide("too late")

    in_cluster(tmp_path, servers, prefix, scenario, ttl_s=60)


def test_hanging_controller_is_replaced_after_its_lease_and_becomes_standby(
        tmp_path, servers, prefix):
    async def scenario(nodes):
        first = await until(lambda: active(nodes))
        others = [node for node in nodes if node is not first]
        renew, term = first.quorum.renew, first.log.term
        first.quorum.renew = lambda term, ttl: time.sleep(TTL_S + 2) or renew(term, ttl)
        servers.end_lease(first.quorum.keys, term.lease)
        second = await until(lambda: active(others))
        await second.decide("after")
        await until(lambda: not first.is_appointed and first.followed == second.followed)
        assert active(nodes) is second

    in_cluster(tmp_path, servers, prefix, scenario, TTL_S)


def test_controller_resigns_after_a_failed_append(
        tmp_path, servers, prefix):
    async def scenario(nodes):
        first = await until(lambda: active(nodes))
        append, first.quorum.append = first.quorum.append, failing
        with pytest.raises(QuorumLost):
            await first.decide("nobody knows")
        first.quorum.append = append
        await until(lambda: any(node.epochs[-1:] == [2] and node.is_appointed for node in nodes))

    def failing(*_):
        raise QuorumLost("no answer")

    in_cluster(tmp_path, servers, prefix, scenario)


def test_new_controller_inherits_the_previous_hosts_silence(
        tmp_path, servers, prefix, monkeypatch):
    monkeypatch.setattr(Peer, "silent_s", lambda peer: 2.5)
    renew, renewed = Quorum.renew, []

    def renew_and_tell(quorum, term, ttl_s):
        renewed.append(renew(quorum, term, ttl_s))
        return renewed[-1]

    monkeypatch.setattr(Quorum, "renew", renew_and_tell)

    async def scenario(nodes):
        first = await until(lambda: active(nodes))
        assert first.heard is None
        others = [node for node in nodes if node is not first]
        await until(lambda: all(node.election.holder == first.election.holder for node in others))
        await until(lambda: len(first.writers) == 2)
        # Each term begins with a renewal: a later renewal finds no lease, and gets another one.
        await until(lambda: renewed)
        servers.end_lease(first.quorum.keys, renewed[0].lease)
        second = await until(lambda: active(others))
        assert (second.heard.node_id, second.heard.epoch) == (first.number, first.epochs[-1])
        assert second.heard.at_s <= asyncio.get_running_loop().time() - 2.5

    in_cluster(tmp_path, servers, prefix, scenario)


def test_stopping_controller_hands_over_immediately(tmp_path, servers, prefix):
    async def scenario(nodes):
        first = await until(lambda: active(nodes))
        first.task.cancel()
        await asyncio.gather(first.task, return_exceptions=True)
        assert not first.is_appointed
        view = await asyncio.to_thread(first.quorum.read_view)
        assert view.holder is None or view.holder.node_id != first.number
        await until(lambda: active([node for node in nodes if node is not first]))

    in_cluster(tmp_path, servers, prefix, scenario)


def test_controller_continues_when_the_quorum_leader_is_killed(tmp_path, servers, prefix):
    async def scenario(nodes):
        holder = await until(lambda: active(nodes))
        leader = await asyncio.to_thread(servers.leader)
        servers.kill(leader)
        try:
            for number in range(10):
                await holder.decide(f"topic {number}")
            await until(lambda: all(node.followed == holder.followed for node in nodes))
            assert active(nodes) is holder and holder.epochs == [1]
        finally:
            servers.start_member(leader)
            await asyncio.to_thread(servers.await_leader)

    in_cluster(tmp_path, servers, prefix, scenario)


def test_returning_node_reads_missed_records(tmp_path, servers, prefix):
    async def scenario(nodes):
        holder = await until(lambda: active(nodes))
        away = next(node for node in nodes if node is not holder)
        await away.end()
        for number in range(5):
            await holder.decide(f"topic {number}")
        del away.log
        again = await Node(
            away.number, tmp_path / str(away.number), servers, prefix).begin()
        nodes[nodes.index(away)] = again
        await until(lambda: again.log.end_offset == holder.log.end_offset)

    in_cluster(tmp_path, servers, prefix, scenario)


def test_long_paused_node_continues_from_the_newest_snapshot(
        tmp_path, servers, prefix):
    async def scenario(nodes):
        holder = await until(lambda: active(nodes))
        paused = next(node for node in nodes if node is not holder)
        await until(lambda: paused.followed == holder.followed)
        read_view = paused.quorum.read_view
        resumed = threading.Event()
        paused.quorum.read_view = lambda: resumed.wait() and read_view()
        for number in range(10):
            await holder.decide(f"topic {number}")
            if number % 4 == 3:
                await asyncio.to_thread(holder.save, holder.log.end_offset - 1)
        resumed.set()
        await until(lambda: paused.followed == holder.followed)
        assert not paused.task.done()
        await holder.decide("last")
        await until(lambda: paused.followed == holder.followed)

    in_cluster(tmp_path, servers, prefix, scenario)


@pytest.mark.parametrize("failure", [Shortage(0, 56, "no room"), OSError(errno.ENOSPC, "no room")])
def test_temporarily_unwritable_copy_is_retried(
        tmp_path, servers, prefix, monkeypatch, failure):
    monkeypatch.setattr(controller_election, "SHORTAGE_S", 0.01)

    async def scenario(nodes):
        holder = await until(lambda: active(nodes))
        short = next(node for node in nodes if node is not holder)
        copied, tries = short.log.catch_up, []

        def refused():
            tries.append(1)
            if len(tries) < 4:
                raise failure
            return copied()

        short.log.catch_up = refused
        await decides_until(holder, lambda: tries)
        await until(lambda: len(tries) >= 4 and short.followed == holder.followed)

    in_cluster(tmp_path, servers, prefix, scenario)


def test_failed_watch_does_not_replace_the_controller(
        tmp_path, servers, prefix, monkeypatch):
    monkeypatch.setattr(controller_election, "DIAL_AGAIN_S", 0.01)
    tries = []

    async def half_written(*_):
        tries.append(1)
        raise PeerError("a certificate that is half written") from ValueError()

    async def scenario(nodes):
        holder = await until(lambda: active(nodes))
        first = holder.log.term.epoch
        tries.clear()
        await until(lambda: len(tries) > 20)
        assert active(nodes) is holder and holder.log.term.epoch == first

    monkeypatch.setattr(Peer, "connect", half_written)
    in_cluster(tmp_path, servers, prefix, scenario)


def test_term_that_ends_during_a_snapshot_is_a_conflict(tmp_path, servers, prefix):
    async def scenario(nodes):
        log = (await until(lambda: active(nodes))).log
        log.end_term()
        for call in (lambda: log.snapshot([], log.end_offset - 1, 1), lambda: log.trim(0)):
            with pytest.raises(Conflict):
                call()

    in_cluster(tmp_path, servers, prefix, scenario)


def test_unrecoverable_error_ends_the_task(tmp_path, servers, prefix):
    async def scenario(nodes):
        holder = await until(lambda: active(nodes))
        other = next(node for node in nodes if node is not holder)

        def damaged():
            raise ValueError("the quorum's batch is damaged")

        other.log.catch_up = damaged
        await decides_until(holder, other.task.done)
        assert isinstance(other.task.exception(), ValueError)

    in_cluster(tmp_path, servers, prefix, scenario)


def test_quorum_without_its_keys_does_not_start_a_new_log(tmp_path, prefix, caplog):
    servers = MemoryServers()

    async def scenario(nodes):
        holder = await until(lambda: active(nodes))
        await holder.decide("kept")
        await until(lambda: all("kept" in node.followed for node in nodes))
        before, epochs = dict(servers.store.keys), [len(node.epochs) for node in nodes]
        servers.store.keys.clear()
        await until(lambda: all(node.quorum.lost_keys for node in nodes))
        await asyncio.sleep(3)
        assert not active(nodes) and servers.store.keys == {}
        assert [len(node.epochs) for node in nodes] == epochs
        lines = [row for row in caplog.records if "lost the cluster's keys" in row.getMessage()]
        assert len(lines) == len(nodes)
        assert not any(member.answers for member in nodes[0].quorum.members())
        servers.store.keys.update({key: entry for key, entry in before.items()
                                   if not key.endswith("controller")})
        holder = await until(lambda: active(nodes))
        await holder.decide("again")
        await until(lambda: all("again" in node.followed for node in nodes))
        assert not any(node.quorum.lost_keys for node in nodes)

    in_cluster(tmp_path, servers, prefix, scenario, ttl_s=3)
