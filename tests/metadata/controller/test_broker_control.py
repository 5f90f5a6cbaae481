import asyncio
import random
import socket
import threading
from types import SimpleNamespace

from pylog.testing.ports import free_port
from pylog.config import Settings
from pylog.metadata.controller.partitions import topics
from pylog.metadata.controller.active_controller import ActiveController
from pylog.metadata.image.image import Image
from pylog.metadata.quorum.quorum_state import QuorumLost
from pylog.metadata.image.loader import Tail
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.metadata.memory import MemoryLog, NoLogs


def registered(broker_id: int, port: int):
    """Return the registration of an active broker, as an earlier controller wrote it."""
    new = messages.RegisterBrokerRecord
    return new(broker_id=broker_id, incarnation_id=bytes([broker_id]) * 16, broker_epoch=broker_id,
               end_points=[new.BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=port,
                                              security_protocol=0)],
               features=[], rack=None, fenced=False, in_controlled_shutdown=False,
               log_dirs=[bytes([broker_id]) * 16])


def test_new_controller_immediately_fences_the_broker_that_ended_with_the_previous_controller():
    async def run():
        with socket.create_server(("127.0.0.1", 0)) as alive:
            # A client listener that cannot be reached from here proves nothing.
            living, ended, refusing = registered(2, alive.getsockname()[1]), \
                registered(3, free_port()), free_port()
            living.end_points.insert(0, messages.RegisterBrokerRecord.BrokerEndpoint(
                name="EXTERNAL", host="127.0.0.1", port=refusing, security_protocol=0))
            log = MemoryLog()
            log.append([*topics.bootstrap(Image()), living, ended], log.elect(3), 0)
            tail = Tail(Image())
            tail.replay(log.read(0))
            settings = Settings({"broker.session.timeout.ms": "600000"})
            decider = ActiveController(log, tail, NoLogs(), settings, random.Random(7), 1, "c")
            heard = SimpleNamespace(node_id=3, at_s=asyncio.get_running_loop().time())
            await decider.begin(log.elect(1), previous=heard)
            async with asyncio.timeout(20):
                while not tail.newest.brokers[3].fenced:
                    await asyncio.sleep(0.01)
            # A heartbeat connection of the running broker closes: the broker is probed, and not
            # fenced.
            assert not (await decider.heartbeat(heartbeat(2, 2), 7)).error_code
            decider.connection_closed(7)
            await asyncio.sleep(1)
            assert not tail.newest.brokers[2].fenced
            decider.resign()
    asyncio.run(run())


def test_unavailable_quorum_is_not_retried_in_a_loop_for_a_silent_broker(caplog):
    tries = []

    class Away(MemoryLog):
        def append(self, records, epoch, expected_end):
            if self.is_away:
                tries.append(records)
                raise QuorumLost("planted")
            return super().append(records, epoch, expected_end)

    async def run():
        log = Away()
        log.is_away = False
        log.append([*topics.bootstrap(Image()), registered(2, 1)], log.elect(3), 0)
        tail = Tail(Image())
        tail.replay(log.read(0))
        settings = Settings({"broker.session.timeout.ms": "1"})
        decider = ActiveController(log, tail, NoLogs(), settings, random.Random(7), 1, "c")
        await decider.begin(log.elect(1))
        log.is_away = True
        async with asyncio.timeout(20):
            while len(tries) < 3:
                await asyncio.sleep(0.01)
        began_s, count = asyncio.get_running_loop().time(), len(tries)
        await asyncio.sleep(1)
        passed_s = asyncio.get_running_loop().time() - began_s
        assert len(tries) - count <= passed_s / 0.1 + 1
        decider.resign()

    asyncio.run(run())
    assert "Traceback" not in caplog.text


class Held(MemoryLog):
    """If `goes_on` is set, appends wait for it."""

    goes_on: threading.Event | None = None

    def append(self, records, epoch, expected_end):
        if self.goes_on is not None:
            assert self.goes_on.wait(20)
        return super().append(records, epoch, expected_end)


def heartbeat(broker_id: int, epoch: int):
    return messages.BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=1000)


def a_controller(log, *brokers_):
    """Return a controller of brokers whose sessions do not expire."""
    log.append([*topics.bootstrap(Image()), *brokers_], log.elect(3), 0)
    tail = Tail(Image())
    tail.replay(log.read(0))
    return ActiveController(
        log, tail, NoLogs(), Settings({"broker.session.timeout.ms": "600000"}), random.Random(7),
        1, "c"), tail


def test_broker_that_disconnects_during_its_heartbeat_is_fenced():
    async def run():
        log, gone = Held(), registered(2, free_port())
        gone.fenced = True
        decider, tail = a_controller(log, gone)
        await decider.begin(log.elect(1))
        log.goes_on = threading.Event()
        beating = asyncio.ensure_future(decider.heartbeat(heartbeat(2, 2), 7))
        await asyncio.sleep(0.05)
        decider.connection_closed(7)
        log.goes_on.set()
        assert (await beating).error_code == ErrorCode.NETWORK_EXCEPTION
        assert not tail.newest.brokers[2].fenced
        async with asyncio.timeout(20):
            while not tail.newest.brokers[2].fenced:
                await asyncio.sleep(0.01)
        decider.resign()
    asyncio.run(run())


def test_heartbeat_after_its_connection_closed_does_not_extend_the_session():
    async def run():
        log = MemoryLog()
        decider, tail = a_controller(log, registered(2, free_port()))
        await decider.begin(log.elect(1))
        assert not (await decider.heartbeat(heartbeat(2, 2), 7)).error_code
        decider.connection_closed(7)
        assert (await decider.heartbeat(heartbeat(2, 2), 7)).error_code
        async with asyncio.timeout(20):
            while not tail.newest.brokers[2].fenced:
                await asyncio.sleep(0.01)
        # An outdated heartbeat does not unfence it.
        assert (await decider.heartbeat(heartbeat(2, 2), 7)).error_code
        assert tail.newest.brokers[2].fenced
        assert not (await decider.heartbeat(heartbeat(2, 2), 8)).error_code
        assert not tail.newest.brokers[2].fenced
        decider.resign()
    asyncio.run(run())
