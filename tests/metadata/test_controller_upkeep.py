"""Periodic work of a controller, in virtual time: sessions, verdicts, leaders."""

import asyncio
import logging
import random
from types import SimpleNamespace

import pytest

from pylog._native.log.log import StorageError
from pylog.config import Settings
from pylog.metadata.controller import liveness_probe
from pylog.metadata.controller.active_controller import ActiveController
from pylog.metadata.controller.partitions import elections, topics
from pylog.metadata.image.image import Image
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.metadata_log import NotController
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.controller.test_broker_control import heartbeat, registered
from tests.metadata.memory import MemoryLog, NoLogs
from tests.metadata.virtual import run

SESSION_MS = 9000


class World(MemoryLog):
    """A controller of brokers 2 and 3 with a given result of is_gone(). `failure`: of each append;
    `tries`: their number.
    """

    def __init__(self, monkeypatch, gone=(), **settings):
        super().__init__()
        self.gone, self.judged, self.failure, self.tries = set(gone), [], None, 0
        super().append([*topics.bootstrap(Image()), registered(2, 2), registered(3, 3)],
                       self.elect(3), 0)
        self.tail = Tail(Image())
        self.tail.replay(self.read(0))
        self.controller = ActiveController(
            self, self.tail, NoLogs(), Settings({"broker.session.timeout.ms": str(SESSION_MS), **{
                name.replace("_", "."): value for name, value in settings.items()}}),
            random.Random(7), 1, "c")
        monkeypatch.setattr(liveness_probe, "is_gone", self.is_gone)

    async def is_gone(self, endpoints, listener):
        assert listener == "PLAINTEXT"
        self.judged.append(endpoints[0].port)
        await asyncio.sleep(0.1)
        return endpoints[0].port in self.gone

    def append(self, records, epoch, expected_end):
        self.tries += 1
        if self.failure is not None:
            raise self.failure
        return super().append(records, epoch, expected_end)

    def run(self, scenario, heard=None):
        async def go(loop):
            self.loop, self.began_s = loop, loop.time()
            await self.controller.begin(self.elect(1), previous=heard and SimpleNamespace(
                node_id=heard[0], at_s=loop.time() - heard[1]))
            await scenario()
            self.controller.resign()
        run(go)

    async def at(self, seconds):
        """Wait until this long after the beginning."""
        await asyncio.sleep(self.began_s + seconds - self.loop.time())

    async def beat(self, id_=2, connection=7, **fields):
        return await self.controller.heartbeat(
            heartbeat(id_, id_, **fields) if not fields else messages.BrokerHeartbeatRequest(
                broker_id=id_, broker_epoch=id_, current_metadata_offset=1000, **fields),
            connection)

    @property
    def fenced(self):
        return [broker.id for broker in self.tail.newest.brokers.values() if broker.fenced]


def test_silent_broker_is_fenced_exactly_after_its_session(monkeypatch, caplog):
    world = World(monkeypatch)

    async def go():
        await world.at(5)
        await world.beat(2)
        await world.at(8.9)
        assert world.fenced == []
        await world.at(9.1)
        assert world.fenced == [3]
        await world.at(13.9)
        assert world.fenced == [3]
        await world.at(14.1)
        assert world.fenced == [2, 3]

    world.run(go)
    assert [row.broker for row in caplog.records if row.getMessage() == "broker fenced"] == [3, 2]


def test_broker_silent_before_a_new_controller_term_is_fenced_one_session_later(monkeypatch):
    world = World(monkeypatch)

    async def go():
        await world.at(1.9)
        assert world.fenced == []
        await world.at(2.1)
        assert world.fenced == [3]

    world.run(go, heard=(3, 7))


def test_heartbeat_during_a_pending_verdict_prevents_fencing(monkeypatch, caplog):
    world = World(monkeypatch)

    async def go():
        await world.at(5)
        await world.beat(2)
        await world.at(8)
        async with world.controller._deciding:
            await world.at(9.5)
            assert not (await world.beat(3, 8)).error_code
        await world.at(10)
        assert world.fenced == []

    world.run(go)
    assert "broker fenced" not in caplog.text


def test_a_broker_of_this_process_is_not_fenced(monkeypatch):
    world = World(monkeypatch)
    world.controller._heartbeats.local_id = 2

    async def go():
        await world.at(20)
        assert world.fenced == [3]

    world.run(go)


def test_failed_append_is_retried_with_a_delay(monkeypatch, caplog):
    world = World(monkeypatch)

    async def go():
        await world.at(8)
        before, world.failure = world.tries, StorageError(5, 0, "planted")
        await world.at(10)
        assert 5 <= world.tries - before <= 11 and world.fenced == []
        world.failure = None
        await world.at(10.5)
        assert world.fenced == [2, 3]

    world.run(go)
    assert {row.levelno for row in caplog.records
            if row.getMessage().startswith("a broker without heartbeats")} == {logging.ERROR}


def test_former_controller_stops_without_an_alarm(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pylog.metadata")
    world = World(monkeypatch)

    async def go():
        await world.at(8)
        world.failure = NotController()
        await world.at(9.5)
        world.failure = None

    world.run(go)
    assert {row.levelno for row in caplog.records
            if row.getMessage().startswith("a broker without heartbeats")} == {logging.INFO}


def test_no_broker_is_fenced_after_the_term(monkeypatch):
    world = World(monkeypatch)

    async def go():
        await world.at(8)
        world.controller.resign()
        await world.at(30)
        assert world.fenced == []

    world.run(go)


def test_work_of_an_ended_term_is_left_to_the_next(monkeypatch):
    calls = []
    world = World(monkeypatch, broker_session_timeout_ms="3600000",
                  leader_imbalance_check_interval_seconds="70")

    def balanced(rules):
        calls.append(world.loop.time() - world.began_s)
        yield
        return []

    monkeypatch.setattr(elections, "balanced", balanced)

    async def go():
        await world.at(10)
        world.controller.resign()
        await world.at(20)
        await world.controller.begin(world.elect(1))
        await world.at(170)
        assert calls == pytest.approx([90, 160], abs=0.05)

    world.run(go)


@pytest.mark.parametrize(("name", "settings", "times"), [
    ("balanced", {"leader_imbalance_check_interval_seconds": "70"}, [70, 140, 210]),
    ("balanced", {"leader_imbalance_check_interval_seconds": "70",
                  "auto_leader_rebalance_enable": "false"}, []),
    ("unclean", {"unclean_leader_election_interval_ms": "80000"}, [80, 160])])
@pytest.mark.parametrize("failure", [None, RuntimeError("planted")])
def test_leaders_are_balanced_periodically_despite_errors(
        monkeypatch, name, settings, times, failure):
    calls = []
    world = World(monkeypatch, broker_session_timeout_ms="3600000", **settings)

    def elected(rules):
        calls.append(world.loop.time() - world.began_s)
        if failure is not None:
            raise failure
        yield
        return [messages.NoOpRecord()]

    monkeypatch.setattr(elections, name, elected)

    async def go():
        await world.at(230)
        assert calls == pytest.approx(times, abs=0.05)
        assert world.tries == (0 if failure is not None else len(times))

    world.run(go)


def test_a_session_of_hours_ends_after_hours(monkeypatch):
    world = World(monkeypatch, broker_session_timeout_ms="7200000")

    async def go():
        await world.at(7199.9)
        assert world.fenced == []
        await world.at(7200.1)
        assert world.fenced == [2, 3]

    world.run(go)


@pytest.mark.parametrize(("former", "judged", "fenced"), [
    (None, [], []), (2, [2], [2]), (3, [3], [3]), (4, [], [])])
def test_new_controller_probes_only_the_previous_controllers_broker(
        monkeypatch, former, judged, fenced):
    world = World(monkeypatch, gone=(2, 3))

    async def go():
        await world.at(1)
        assert world.judged == judged and world.fenced == fenced
        await world.at(8.9)
        assert world.fenced == fenced
        await world.at(9.1)
        assert world.fenced == [2, 3]

    world.run(go, heard=former and (former, 0))


def test_reachable_former_controller_keeps_its_broker_session(monkeypatch):
    world = World(monkeypatch)

    async def go():
        await world.at(5)
        assert world.judged == [2] and world.fenced == []

    world.run(go, heard=(2, 0))


def test_a_broker_that_sends_heartbeats_is_not_fenced_although_its_listener_refuses(monkeypatch):
    world = World(monkeypatch, gone=(2,))

    async def go():
        await world.beat(2)
        await world.at(1)
        assert world.judged == [2] and world.fenced == []
        world.controller.connection_closed(7)
        await asyncio.sleep(0.05)
        await world.beat(2, connection=8)
        await world.at(2)
        assert world.judged == [2, 2] and world.fenced == []
        world.controller.connection_closed(8)
        await world.at(3)
        assert world.fenced == [2]

    world.run(go, heard=(2, 0))


@pytest.mark.parametrize(("closed", "judged"), [(7, [2]), (8, []), (1, [])])
def test_broker_whose_heartbeat_connection_closes_is_probed(monkeypatch, closed, judged):
    world = World(monkeypatch)

    async def go():
        await world.beat(2)
        assert not (await world.controller.heartbeat(heartbeat(3, 3))).error_code
        await world.at(1)
        world.judged, world.gone = [], {2, 3}
        world.controller.connection_closed(closed)
        await world.at(2)
        assert world.judged == world.fenced == judged

    world.run(go)


def test_fenced_brokers_are_not_probed_nor_any_after_the_term(monkeypatch):
    world = World(monkeypatch)

    async def go():
        await world.beat(2, want_fence=True)
        await world.beat(3, 8)
        await world.at(1)
        world.judged.clear()
        world.controller.connection_closed(7)
        world.controller.resign()
        world.controller.connection_closed(8)
        await world.at(2)
        assert world.judged == []

    world.run(go)


def test_broker_that_reregisters_during_a_probe_is_not_fenced(monkeypatch):
    world = World(monkeypatch)

    async def go():
        await world.beat(2)
        await world.at(1)
        world.gone = {2}
        world.controller.connection_closed(7)
        await asyncio.sleep(0.05)
        epoch = world.tail.newest.brokers[2].epoch
        records = [messages.BrokerRegistrationChangeRecord(
            broker_id=2, broker_epoch=epoch, cordoned_log_dirs=[])]
        async with world.controller._deciding:
            await world.controller._commit(records)
        await world.at(2)
        assert world.fenced == []

    world.run(go)


def test_inactive_controller_rejects_heartbeats(monkeypatch):
    world = World(monkeypatch)

    async def go():
        world.controller.resign()
        assert (await world.beat(2)).error_code == E.NOT_CONTROLLER

    world.run(go)


def test_heartbeat_response_contains_the_brokers_state(monkeypatch):
    world = World(monkeypatch)

    async def go():
        answer = await world.beat(2)
        assert (answer.error_code, answer.is_fenced, answer.should_shut_down,
                answer.is_caught_up) == (0, False, False, True)
        answer = await world.controller.heartbeat(messages.BrokerHeartbeatRequest(
            broker_id=2, broker_epoch=2, current_metadata_offset=1), 7)
        assert (answer.error_code, answer.is_caught_up) == (0, False)
        answer = await world.beat(2, want_shut_down=True)
        assert (answer.is_fenced, answer.should_shut_down) == (True, True)
        assert not world.controller._heartbeats.is_alive(2, int(world.loop.time() * 1e9))

    world.run(go)
