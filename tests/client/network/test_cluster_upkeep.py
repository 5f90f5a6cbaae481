"""Metadata refreshes, reconnects and disconnects of a client, on a virtual clock."""

import asyncio

import pytest

from pylog.client.consumer import list_offsets
from pylog.client.errors import ClosedError, KafkaConnectionError, KafkaTimeoutError, error
from pylog.client.network import cluster as clusters
from pylog.client.network.cluster import ALL_TOPICS_VERSION, SILENCE_S, _noted
from pylog.client.types import TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.client.network.test_cluster import World

METADATA = messages.MetadataRequest


class Timed(World):
    """A world whose brokers record when they are requested and connected."""

    def __init__(self, monkeypatch, clock, **settings):
        super().__init__(monkeypatch, **settings)
        self.clock, self.asked_s, self.reached_s = clock, [], []
        self.answers[METADATA] = self.timed
        monkeypatch.setattr(clusters.random, "uniform", lambda *ends: 1.0)
        opened = clusters.Connection.open

        async def timed(host, port, *rest):
            self.reached_s.append((port, self.passed_s))
            made = await opened(host, port, *rest)
            made.used_s = clock.now_s
            return made

        monkeypatch.setattr(clusters.Connection, "open", timed)

    @property
    def passed_s(self):
        return round(self.clock.now_s - 1000, 3)

    def timed(self, request):
        self.asked_s.append(self.passed_s)
        return self.metadata(request)

    def run(self, work):
        async def whole():
            try:
                return await work(self.cluster)
            finally:
                await self.cluster.close()
        return self.clock.run(whole())


@pytest.fixture
def timed(monkeypatch, virtual_time):
    def made(**settings):
        return Timed(monkeypatch, virtual_time(clusters), **settings)
    return made


# Metadata.

def test_old_metadata_is_refreshed(timed):
    world = timed(**{"metadata.max.age.ms": 10_000})

    async def work(cluster):
        assert await cluster.start() is cluster and await cluster.start() is cluster
        await asyncio.sleep(35)

    world.run(work)
    assert world.asked_s == pytest.approx([10, 20, 30], abs=0.01)


@pytest.mark.parametrize("role, code, asked_s", [
    ("consumer", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [0, 1, 2, 3, 13]),
    ("consumer", ErrorCode.TOPIC_AUTHORIZATION_FAILED, [0, 10]),
    ("producer", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [0, 10])])
def test_metadata_of_a_missing_topic_is_refreshed_soon(timed, role, code, asked_s):
    world = timed(**{"metadata.max.age.ms": 10_000})
    world.cluster.settings.role = role
    world.topics["t"] = (0, code)

    async def work(cluster):
        await cluster.start()
        cluster.add_topics(["t"])
        await asyncio.sleep(2.5)
        world.topics["t"] = (1, 0)
        await asyncio.sleep(12)

    world.run(work)
    assert world.asked_s == pytest.approx(asked_s, abs=0.02)


def test_unused_topic_is_not_refreshed(timed):
    world = timed(**{"metadata.max.age.ms": 10_000})
    world.cluster.settings.role = "consumer"
    world.topics |= {"t": (1, 0), "gone": (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}

    async def work(cluster):
        await cluster.start()
        assert cluster.add_topics(["gone"]) and cluster.add_topics(["t"])
        await asyncio.sleep(1.5)
        assert not cluster.keep_topics(["t"]) and cluster.interest == {"t"}
        await asyncio.sleep(12)

    world.run(work)
    assert world.asked_s == pytest.approx([0, 1, 2, 12], abs=0.02)


def test_requested_metadata_is_refreshed_at_once_but_not_in_a_loop(timed):
    world = timed(**{"metadata.max.age.ms": 100_000, "retry.backoff.ms": 200,
                     "retry.backoff.max.ms": 1000})

    async def work(cluster):
        await cluster.start()
        await asyncio.sleep(1)
        for _ in range(10):
            cluster.request_refresh()
            await asyncio.sleep(0.05)

    world.run(work)
    assert world.asked_s == pytest.approx([1, 1.2, 1.4], abs=0.001)


def test_metadata_that_cannot_be_had_is_tried_for_ever_more_slowly(timed):
    world = timed(**{"metadata.max.age.ms": 10_000, "retry.backoff.ms": 100,
                     "retry.backoff.max.ms": 400})
    codes = [35] * 4 + [0]

    def refused(request):
        answer = world.timed(request)
        answer.error_code = codes.pop(0) if codes else 0
        return answer

    async def work(cluster):
        world.answers[METADATA] = refused
        await cluster.start()
        cluster.request_refresh()
        await asyncio.sleep(5)

    world.run(work)
    assert world.asked_s == pytest.approx([0, 0.1, 0.3, 0.7, 1.1], abs=0.001)


@pytest.mark.parametrize(("version", "may_create"), [
    (ALL_TOPICS_VERSION - 1, True), (ALL_TOPICS_VERSION, False)])
def test_old_brokers_are_sent_requests_that_allow_topic_creation(timed, version, may_create):
    world = timed()
    world.versions[METADATA] = version

    async def work(cluster):
        cluster.may_create_topics = False
        await cluster.refresh(["t"])
        cluster.wants_all_topics = True
        await cluster.refresh()

    world.run(work)
    some, every = (request for _, _, _, request in world.asked)
    assert [row.name for row in some.topics] == ["t"] and every.topics is None
    assert some.allow_auto_topic_creation is every.allow_auto_topic_creation is may_create


def test_unexpected_failure_does_not_end_refreshes(timed, caplog):
    world = timed(**{"metadata.max.age.ms": 10_000, "retry.backoff.ms": 1000,
                     "retry.backoff.max.ms": 1000})

    async def work(cluster):
        await cluster.start()
        world.answers[METADATA] = lambda request: RuntimeError("can't start new thread")
        await asyncio.sleep(15.5)
        world.answers[METADATA] = world.timed
        await asyncio.sleep(15)

    world.run(work)
    assert len(world.asked_s) == 2
    assert "no new metadata: RuntimeError: can't start new thread" in caplog.text


def test_request_during_a_refresh_triggers_the_next_one(timed):
    world = timed()

    async def work(cluster):
        boot = await cluster.any_connection()
        send = boot.send

        def slow(request, **more):
            done = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(
                1, lambda: done.set_result(send(request, **more).result()))
            return done

        boot.send = slow
        first = asyncio.create_task(cluster.refresh(["t"]))
        await asyncio.sleep(0.5)
        await cluster.refresh(["u"])
        assert first.done() and world.passed_s == 2

    world.run(work)
    assert [[row.name for row in request.topics] for _, _, _, request in world.asked] == [
        ["t"], ["t", "u"]]


def test_silent_broker_is_replaced_after_a_timeout(timed):
    world = timed()
    silent = []

    async def work(cluster):
        await cluster.refresh()
        boot = await cluster.any_connection()
        send = boot.send

        def never(request, *, version=None, timeout_s=None):
            boot.is_silent = True
            silent.append(world.passed_s)
            return asyncio.get_running_loop().create_future()

        boot.send = never
        await cluster.refresh()
        assert world.passed_s == SILENCE_S
        boot.send = send

    world.run(work)
    assert silent == [0] and world.asked[-1][0] in (1, 2)


def test_silent_single_broker_is_awaited(timed):
    world = timed()
    world.nodes = {}

    async def work(cluster):
        await cluster.refresh()
        boot = await cluster.any_connection()
        asked = []

        def slow(request, *, version=None, timeout_s=None):
            boot.is_silent = True
            asked.append(asyncio.get_running_loop().create_future())
            asyncio.get_running_loop().call_later(
                3 * SILENCE_S, asked[-1].set_result, world.metadata(request))
            return asked[-1]

        boot.send, world.broken = slow, {9}
        await cluster.refresh()
        assert world.passed_s == 3 * SILENCE_S and len(asked) == 1

    world.run(work)


def test_leader_of_a_listed_topic_is_refreshed_when_it_moves(timed):
    world = timed()
    world.topics = {"t": (1, 0)}

    async def work(cluster):
        async def ask():
            leader = (await cluster.leader("t", 0)).leader
            if leader != 2:
                raise error(ErrorCode.NOT_LEADER_OR_FOLLOWER)

        await cluster.start()
        assert list((await cluster.every_topic()).topics) == ["t"] and not cluster.interest
        world.topics["t"] = (2, 0)
        await cluster.retry(ask, 30)
        assert world.passed_s < 1

    world.run(work)


def test_concurrent_topic_requests_are_all_answered(timed):
    world = timed()
    world.topics = {"t": (1, 0), "u": (2, 0)}

    async def work(cluster):
        for found in await asyncio.gather(*[cluster.every_topic() for _ in range(3)]):
            assert list(found.topics) == ["t", "u"]
        await cluster.refresh(["u"])
        assert list(cluster.metadata.topics) == ["u"]

    world.run(work)


def test_leaders_of_many_topics_are_looked_up_together(timed):
    world = timed()
    parts = [TopicPartition(f"t{number}", 0) for number in range(50)]
    world.topics = {part.topic: (1, 0) for part in parts}

    async def ask(node, share):
        return dict.fromkeys(share, node)

    async def work(cluster):
        found = await list_offsets.by_leader(cluster, dict.fromkeys(parts), ask)
        assert found == dict.fromkeys(parts, 1)

    world.run(work)
    assert world.kinds() == ["MetadataRequest"] * 2


# Connections.

def test_unreachable_broker_is_retried_with_backoff(timed):
    world = timed(**{"reconnect.backoff.ms": 1000, "reconnect.backoff.max.ms": 4000})

    async def work(cluster):
        await cluster.refresh()
        world.broken = {1}
        for _ in range(5):
            with pytest.raises(KafkaConnectionError):
                await cluster.connection(1)
        world.broken = set()
        (await cluster.connection(1)).close()
        (await cluster.connection(1)).close()
        world.broken = {1}
        for _ in range(2):
            with pytest.raises(KafkaConnectionError):
                await cluster.connection(1)

    world.run(work)
    assert [at for port, at in world.reached_s if port == 1] == [0, 1, 3, 7, 11, 15, 15, 15, 16]


def test_backoff_of_one_broker_does_not_delay_others(timed):
    world = timed(**{"reconnect.backoff.ms": 1000, "reconnect.backoff.max.ms": 4000})

    async def work(cluster):
        await cluster.refresh()
        world.broken = {1}
        with pytest.raises(KafkaConnectionError):
            await cluster.connection(1)
        await cluster.connection(2)

    world.run(work)
    assert world.reached_s[-1] == (2, 0)


@pytest.mark.parametrize(("code", "wanted"), [
    (ErrorCode.NETWORK_EXCEPTION, True), (ErrorCode.SASL_AUTHENTICATION_FAILED, False)])
def test_missing_broker_marks_the_metadata_as_outdated(
        timed, monkeypatch, code, wanted):
    world = timed()

    async def fails(*_):
        raise error(code)

    async def work(cluster):
        with monkeypatch.context() as patched:
            patched.setattr(clusters.Connection, "open", fails)
            with pytest.raises(clusters.KafkaError):
                await cluster._reach(("h", 1), "h", 1)
            # There is no metadata yet that could be outdated.
            assert not cluster._refresh_requested.is_set()
        await cluster.refresh()
        monkeypatch.setattr(clusters.Connection, "open", fails)
        with pytest.raises(clusters.KafkaError):
            await cluster.connection(1)
        assert cluster._refresh_requested.is_set() is wanted

    world.run(work)


def test_silent_connection_triggers_a_metadata_refresh(timed):
    world = timed()

    async def work(cluster):
        await cluster.refresh()
        made = await cluster.connection(1)
        assert not cluster._refresh_requested.is_set()
        made.on_silence()
        assert cluster._refresh_requested.is_set()

    world.run(work)


def test_throttling_is_logged_and_triggers_no_metadata_refresh(timed, caplog):
    world = timed()

    async def work(cluster):
        await cluster.refresh()
        made = await cluster.connection(1)
        made.throttle_ms = 2500
        made.on_throttle()
        made.on_throttle()
        assert not cluster._refresh_requested.is_set()

    world.run(work)
    assert caplog.text.count("throttles this client by a quota, for 2.5 s") == 1


@pytest.mark.parametrize(("limit_ms", "after_s", "requests", "usable"), [
    (5000, 5, 0, True), (5000, 5.001, 0, False), (5000, 60, 1, True), (-1, 1000, 0, True),
    (0, 0.001, 0, False)])
def test_idle_connections_are_hung_up(timed, limit_ms, after_s, requests, usable):
    world = timed(**{"connections.max.idle.ms": limit_ms})

    async def work(cluster):
        await cluster.refresh()
        made = await cluster.connection(1)
        made.request_count = requests
        await asyncio.sleep(after_s)
        cluster._close_idle()
        assert made.usable is usable

    world.run(work)


# Close.

def test_a_client_that_closes_hangs_up_and_opens_nothing_more(timed, monkeypatch):
    world = timed()

    async def work(cluster):
        await cluster.start()
        await cluster.refresh()
        made = await cluster.connection(1)

        async def hangs(*_):
            await asyncio.sleep(1000)

        monkeypatch.setattr(clusters.Connection, "open", hangs)
        waiting = asyncio.create_task(cluster.connection(2))
        await asyncio.sleep(1)
        await cluster.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not made.usable and world.passed_s == 1
        assert cluster._refresher.cancelled() and not cluster._connections
        with pytest.raises(ClosedError):
            await cluster.connection(2)

    world.run(work)


def test_a_bootstrap_server_that_is_reached_after_the_end_is_hung_up(timed):
    world = timed()

    async def work(cluster):
        cluster.closed = True
        with pytest.raises(ClosedError):
            await cluster.any_connection()
        assert cluster._connections == {}

    world.run(work)


def test_failure_without_a_waiter_is_ignored(timed):
    async def work(cluster):
        task = asyncio.create_task(cluster.connection(77))
        await asyncio.sleep(0)
        _noted(task)
        assert task._log_traceback is False

    timed().run(work)


# Timeouts.

def test_timeout_contains_the_reason(timed):
    world = timed(**{"default.api.timeout.ms": 3000, "retry.backoff.ms": 1000,
                     "retry.backoff.max.ms": 1000})

    async def fails():
        raise error(ErrorCode.REQUEST_TIMED_OUT)

    async def work(cluster):
        for timeout_s, took_s in ((None, 3), (0.5, 0.5)):
            begin_s = world.passed_s
            with pytest.raises(KafkaTimeoutError, match="not done within .*: ") as found:
                await cluster.retry(fails, timeout_s)
            assert found.value.__cause__.code == ErrorCode.REQUEST_TIMED_OUT
            assert world.passed_s - begin_s == pytest.approx(took_s, abs=0.001)

    world.run(work)


def test_timeout_of_the_last_attempt_is_raised_unchanged(timed):
    late = KafkaTimeoutError("within")

    async def fails():
        raise late

    async def work(cluster):
        cluster.closed = True
        with pytest.raises(KafkaTimeoutError) as found:
            await cluster.retry(fails)
        assert found.value is late

    timed().run(work)


# Request targets.

def test_a_broker_may_have_the_number_zero(timed):
    world = timed()
    world.nodes, world.topics = {0: 1, 2: 2}, {"t": (0, 0)}

    async def work(cluster):
        await cluster.refresh(["t"])
        before = len(world.asked)
        assert (await cluster.leader("t", 0)).leader == 0 and len(world.asked) == before

    world.run(work)


def test_missing_partition_of_a_known_topic_is_unknown(timed):
    world = timed()
    world.topics = {"t": (1, 0)}

    async def work(cluster):
        with pytest.raises(clusters.KafkaError) as found:
            await cluster.leader("t", 5)
        assert found.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    world.run(work)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_find_coordinator_works_in_every_version(timed, version):
    answer = messages.FindCoordinatorResponse
    world = timed()
    world.versions[messages.FindCoordinatorRequest] = version
    world.answers[messages.FindCoordinatorRequest] = lambda request: answer(
        node_id=1, error_code=0) if version < 4 else answer(
        node_id=-1, coordinators=[answer.Coordinator(key="g", node_id=1, error_code=0)])

    async def work(cluster):
        assert await cluster.coordinator(clusters.GROUP, "g") == 1

    world.run(work)


def test_bootstrap_connections_belong_to_no_node(timed):
    """A newly discovered broker 0 gets a separate connection."""
    world = timed()
    world.nodes = {0: 1}

    async def work(cluster):
        boot = await cluster.any_connection()
        await cluster.refresh()
        assert cluster.usable(0) is None
        assert await cluster.connection(0) is not boot and boot.usable

    world.run(work)
