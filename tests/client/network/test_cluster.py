"""The client's view of a cluster on simulated connections: no socket, no delay."""

import asyncio

import pytest

from pylog.client.config.settings import Settings
from pylog.client.errors import (
    ClosedError, KafkaConnectionError, KafkaTimeoutError, NoBrokersError, error,
)
from pylog.client.network import cluster as clusters
from pylog.client.network.cluster import Backoff, Cluster
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

RESPONSE = messages.MetadataResponse


class Made:
    """A connection that responds from `answers` (message class -> function of the request)."""

    def __init__(self, world, host, port):
        self.world, self.host, self.port = world, host, port
        self.usable, self.is_silent, self.request_count, self.used_s = True, False, 0, 0.0
        self.on_silence = None

    def version(self, kind, version_max=None):
        return self.world.versions.get(kind, 9)

    def send(self, request, *, version=None, timeout_s=None):
        self.world.asked.append((self.port, type(request).__name__, version, request))
        done = asyncio.get_running_loop().create_future()
        answer = self.world.answers[type(request)](request)
        if isinstance(answer, Exception):
            done.set_exception(answer)
        else:
            done.set_result(answer)
        return done

    def close(self):
        self.usable = False


class World:
    """Brokers 1 and 2 on ports 1 and 2; the bootstrap server is on port 9."""

    def __init__(self, monkeypatch, **settings):
        self.asked, self.opened, self.broken, self.versions = [], [], set(), {}
        self.topics, self.controller, self.nodes = {}, 1, {1: 1, 2: 2}
        self.answers = {messages.MetadataRequest: self.metadata}

        async def opened(host, port, settings, pool, traffic):
            self.opened.append(port)
            if port in self.broken:
                raise KafkaConnectionError(f"port {port}")
            return Made(self, host, port)

        monkeypatch.setattr(clusters.Connection, "open", opened)
        self.cluster = Cluster(Settings("admin", {
            "bootstrap.servers": "boot:9", "retry.backoff.ms": 1, "retry.backoff.max.ms": 1,
            "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 1, **settings}))

    def metadata(self, request):
        wanted = self.topics if request.topics is None else [row.name for row in request.topics]
        rows = []
        for name in wanted:
            leader, code = self.topics.get(name, (0, 3))
            rows.append(RESPONSE.MetadataResponseTopic(
                name=name, topic_id=b"t" * 16, error_code=code, partitions=[] if code else [
                    RESPONSE.MetadataResponsePartition(
                        partition_index=0, leader_id=leader, leader_epoch=1)]))
        return RESPONSE(controller_id=self.controller, topics=rows, brokers=[
            RESPONSE.MetadataResponseBroker(node_id=id_, host="h", port=port)
            for id_, port in self.nodes.items()])

    def run(self, work):
        return asyncio.run(asyncio.wait_for(work(self.cluster), 30))

    def kinds(self):
        return [kind for _, kind, _, _ in self.asked]


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_pauses_double_up_to_the_most_with_a_jitter_of_a_fifth(monkeypatch):
    given = []
    monkeypatch.setattr(clusters.random, "uniform", lambda *ends: given.append(ends) or 1.0)
    pauses = Backoff(0.1, 1.0)
    assert [round(pauses.next(), 9) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    pauses.reset()
    assert pauses.next() == 0.1 and set(given) == {(0.8, 1.2)}
    assert Backoff(2.0, 1.0).next() == 2.0
    pauses.failures = 5000
    assert pauses.next() == 1.0


def test_missing_topic_and_leader_are_awaited(world):
    async def work(cluster):
        with pytest.raises(KafkaTimeoutError):
            await cluster.topic("t", 0.05)
        world.topics["t"] = (1, 0)
        assert (await cluster.topic("t")).name == "t"
        before = len(world.asked)
        assert (await cluster.leader("t", 0)).leader == 1
        assert (await cluster.topic("t")).id == b"t" * 16
        assert len(world.asked) == before and cluster.interest == {"t"}

    world.run(work)
    request = world.asked[0][3]
    assert [row.name for row in request.topics] == ["t"] and request.allow_auto_topic_creation


@pytest.mark.parametrize("topics, code", [
    ({}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ({"t": (0, 29)}, 29),
    ({"t": (-1, 0)}, ErrorCode.LEADER_NOT_AVAILABLE),
    ({"t": (7, 0)}, ErrorCode.LEADER_NOT_AVAILABLE)])
def test_partition_without_a_leader_raises_with_the_reason(world, topics, code):
    world.topics = topics

    async def work(cluster):
        with pytest.raises(clusters.KafkaError, match="t") as caught:
            await cluster.leader("t", 0)
        assert caught.value.code == code

    world.run(work)


def test_only_retriable_errors_are_retried(world):
    failures = [error(ErrorCode.REQUEST_TIMED_OUT), error(ErrorCode.NOT_LEADER_OR_FOLLOWER)]

    async def work(cluster):
        tried = []

        async def attempt():
            tried.append(cluster._refresh_requested.is_set())
            if len(tried) <= len(failures):
                raise failures[len(tried) - 1]
            return "done"

        assert await cluster.retry(attempt) == "done"
        # Only the second failure suggests that the metadata is outdated.
        assert tried == [False, False, True]

        async def denied():
            tried.append(None)
            raise error(29)

        with pytest.raises(clusters.KafkaError) as caught:
            await cluster.retry(denied)
        assert caught.value.code == 29 and tried.count(None) == 1
        cluster.closed = True
        failures.append(error(ErrorCode.REQUEST_TIMED_OUT))
        tried[:] = [0, 0]
        with pytest.raises(clusters.KafkaError) as caught:
            await cluster.retry(attempt)
        assert caught.value is failures[2]

    world.run(work)


def test_broker_has_one_connection_per_channel(world):
    async def work(cluster):
        await cluster.refresh()
        assert world.opened == [9] and cluster.usable(1) is None
        first, again = await asyncio.gather(cluster.connection(1), cluster.connection(1))
        assert first is again is cluster.usable(1) and world.opened == [9, 1]
        other = await cluster.connection(1, clusters.FETCH)
        assert other is not first and world.opened == [9, 1, 1]
        first.close()
        assert cluster.usable(1) is None and await cluster.connection(1) is not first
        with pytest.raises(KafkaConnectionError, match="broker 5"):
            await cluster.connection(5)
        # Connections to a broker that has moved, and to one that is gone and silent, are closed.
        moved, gone = cluster.usable(1), await cluster.connection(2)
        gone.is_silent = True
        world.nodes = {1: 11}
        await cluster.refresh()
        assert (moved.usable, gone.usable, other.usable) == (False, False, False)
        await cluster.close()
        with pytest.raises(ClosedError):
            await cluster.connection(1)

    world.run(work)


def test_unreachable_brokers_are_skipped_and_reported_at_last(world):
    async def work(cluster):
        await cluster.refresh()
        boot = await cluster.any_connection()
        assert boot.port == 9
        boot.close()
        world.broken = {1, 9}
        assert (await cluster.any_connection()).port == 2
        cluster.usable(2).close()
        world.broken = {1, 2, 9}
        with pytest.raises(NoBrokersError):
            await cluster.any_connection()
        assert {1, 2, 9} <= set(world.opened)
        world.broken = {1, 2}
        assert (await cluster.any_connection()).port == 9

    world.run(work)


def test_hanging_bootstrap_server_does_not_block_the_others(monkeypatch):
    world = World(monkeypatch, **{"bootstrap.servers": "boot:7,boot:8,boot:9"})
    at_once = clusters.Connection.open

    async def opened(host, port, *given):
        if port != 8:
            world.opened.append(port)
            await asyncio.Event().wait()
        return await at_once(host, port, *given)

    monkeypatch.setattr(clusters.Connection, "open", opened)
    monkeypatch.setattr(clusters, "SILENCE_S", 0.01)
    monkeypatch.setattr(clusters.random, "sample", lambda some, count: list(reversed(some)))

    async def work(cluster):
        assert (await cluster.any_connection()).port == 8
        assert world.opened == [9, 8]
        world.nodes = {1: 9, 2: 7}
        await cluster.refresh()
        cluster.usable(-2).close()
        assert (await cluster.any_connection()).port == 8
        assert set(world.opened) == {7, 8, 9}
        await cluster.close()

    world.run(work)


def test_concurrent_first_requests_share_one_connection(world, monkeypatch):
    at_once = clusters.Connection.open

    async def opened(*given):
        await asyncio.sleep(0)
        return await at_once(*given)

    monkeypatch.setattr(clusters.Connection, "open", opened)

    async def work(cluster):
        made = await asyncio.gather(*[cluster.any_connection() for _ in range(20)])
        assert world.opened == [9] and len(set(map(id, made))) == 1
        await cluster.close()
        assert not made[0].usable

    world.run(work)


def test_least_busy_responsive_connection_is_used(world):
    async def work(cluster):
        await cluster.refresh()
        boot, one, two = (await cluster.any_connection(), await cluster.connection(1),
                          await cluster.connection(2))
        await cluster.connection(1, clusters.FETCH)
        boot.request_count, one.request_count, two.request_count = 3, 1, 2
        assert await cluster.any_connection() is one
        one.is_silent = True
        assert await cluster.any_connection() is two
        boot.is_silent = two.is_silent = True
        assert await cluster.any_connection() is one

    world.run(work)


def test_coordinators_are_cached_until_invalidated(world):
    answer = messages.FindCoordinatorResponse
    found = {"node": 2, "code": 0}
    world.answers[messages.FindCoordinatorRequest] = lambda request: answer(
        node_id=found["node"], error_code=found["code"], coordinators=[answer.Coordinator(
            key="g", node_id=found["node"], error_code=found["code"])])

    async def work(cluster):
        assert await cluster.coordinator(clusters.GROUP, "g") == 2
        assert await cluster.coordinator(clusters.GROUP, "g") == 2
        assert world.kinds().count("FindCoordinatorRequest") == 1
        cluster.forget_coordinator(clusters.GROUP, "g")
        cluster.forget_coordinator(clusters.GROUP, "other")
        world.versions[messages.FindCoordinatorRequest] = 3
        assert await cluster.coordinator(clusters.GROUP, "g") == 2
        asked = [row for row in world.asked if row[1] == "FindCoordinatorRequest"]
        assert [(version, request.key, list(request.coordinator_keys), request.key_type)
                for _, _, version, request in asked] == [(9, "", ["g"], 0), (3, "g", [], 0)]
        for node, code, expected in ((7, 0, ErrorCode.COORDINATOR_NOT_AVAILABLE), (2, 30, 30)):
            found.update(node=node, code=code)
            with pytest.raises(clusters.KafkaError) as caught:
                await cluster.coordinator(clusters.TRANSACTION, "x")
            assert caught.value.code == expected

    world.run(work)


def test_controller_is_one_of_the_brokers(world):
    async def work(cluster):
        assert await cluster.controller() == 1
        before = len(world.asked)
        assert await cluster.controller() == 1 and len(world.asked) == before
        world.controller = 7
        await cluster.refresh()
        with pytest.raises(clusters.KafkaError) as caught:
            await cluster.controller()
        assert caught.value.code == ErrorCode.NOT_CONTROLLER

    world.run(work)


def test_watchers_see_each_picture_and_a_newer_leader_at_once(world):
    world.topics["t"] = (1, 0)

    async def work(cluster):
        seen = []
        cluster.watchers.append(seen.append)
        assert cluster.add_topics(["t"]) and not cluster.add_topics(["t"])
        assert cluster._refresh_requested.is_set()
        await cluster.refresh()
        assert not cluster._refresh_requested.is_set()
        cluster.learn_leader("t", 0, 2, 2)
        cluster.learn_leader("t", 0, 1, 2)
        assert [picture.leader("t", 0) for picture in seen] == [1, 2]
        assert seen[-1] is cluster.metadata

    world.run(work)
