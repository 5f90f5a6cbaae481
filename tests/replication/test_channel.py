"""The connection to the active controller, across controller changes."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from pylog.peer.connection import Peer
from pylog.peer.controllers import Controller, Controllers
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.replication.channel import GONE_S, ControllerChannel, Line
from pylog.replication.lifecycle import Lifecycle
from pylog.testing.ports import free_port

WAIT_S = 20


class Asked(asyncio.Queue):
    """What a broker asked, with its channel and the task of its heartbeats."""

    channel: ControllerChannel
    task: asyncio.Task


class Silent:
    """A controller that accepts requests and never responds, like one that hangs or is cut off."""

    def __init__(self):
        self.asked = asyncio.Event()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _take(self, reader, writer):
        await reader.read(1)
        self.asked.set()
        await reader.read()
        writer.close()

    def close(self):
        self._server.close()


def test_dial_is_cancelled_when_another_controller_is_active(monkeypatch):
    async def never(*arguments, **options):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Peer, "connect", never)

    async def scene():
        controllers = Controllers({1: Controller(1, "h", 1), 2: Controller(2, "h", 2)})
        controllers.learned(1, 5)
        line = Line(controllers, "test", timeout_s=3600)
        asking = [asyncio.create_task(line.send(messages.DescribeClusterRequest()))
                  for _ in range(2)]
        await asyncio.sleep(0)
        controllers.learned(2, 6)
        for task in asking:
            with pytest.raises(PeerError, match="no longer the active controller"):
                await asyncio.wait_for(task, WAIT_S)

    asyncio.run(scene())


def test_request_is_cancelled_when_another_controller_is_active():
    async def scene():
        silent = Silent()
        port = await silent.start()
        controllers = Controllers({1: Controller(1, "127.0.0.1", port),
                                   2: Controller(2, "127.0.0.1", 1)})
        controllers.learned(1, 5)
        line = Line(controllers, "test", timeout_s=3600)
        asking = asyncio.create_task(line.send(messages.DescribeClusterRequest()))
        await asyncio.wait_for(silent.asked.wait(), WAIT_S)
        controllers.learned(2, 6)
        with pytest.raises(PeerError, match="no longer the active controller"):
            await asyncio.wait_for(asking, WAIT_S)
        assert controllers.next().id == 2
        line.close()
        silent.close()

    asyncio.run(scene())


def test_newly_active_controller_gets_a_heartbeat_at_once(monkeypatch):
    async def scene():
        controllers = Controllers({1: Controller(1, "h", 1), 2: Controller(2, "h", 2)})
        controllers.learned(1, 5)
        async with beating(monkeypatch, controllers) as asked:
            said = [await asyncio.wait_for(asked.get(), WAIT_S) for _ in range(3)]
            assert said == [(1, "register"), (1, "beat"), (1, "beat")]
            controllers.learned(2, 6)
            assert await asyncio.wait_for(asked.get(), WAIT_S) == (2, "beat")

    asyncio.run(scene())


def test_heartbeats_continue_after_any_result(monkeypatch, caplog):
    async def scene():
        controllers = Controllers({1: Controller(1, "h", 1)})
        failures = [RuntimeError("nobody expects it"), PeerError("nobody is there")]
        async with beating(monkeypatch, controllers, failures=failures) as asked:
            said = [await asyncio.wait_for(asked.get(), WAIT_S) for _ in range(4)]
            assert said == [(1, "register"), (1, "register"), (1, "register"), (1, "beat")]

    asyncio.run(scene())
    assert [record.exc_info is not None for record in caplog.records
            if record.levelname in ("ERROR", "WARNING")] == [True, False]


async def leaves(monkeypatch, controllers, needed, seconds) -> bool:
    """Return True if a broker that the controllers do not release stops within `seconds`."""
    async with beating(monkeypatch, controllers, keeps_broker=True) as asked:
        for _ in range(3):
            await asyncio.wait_for(asked.get(), WAIT_S)
        leaving = asyncio.create_task(asked.channel.leave(asked.task, 3600, needed))
        done, _ = await asyncio.wait([leaving], timeout=seconds)
        leaving.cancel()
        return bool(done)


@pytest.mark.parametrize(("running", "needed", "is_given_up"), [
    (1, 2, True), (2, 2, False), (1, 1, False), (0, 1, True)])
def test_a_controlled_shutdown_ends_once_too_few_controllers_run(
        monkeypatch, running, needed, is_given_up):
    async def scene():
        servers = [await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
                   for _ in range(running)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        ports += [free_port() for _ in range(3 - running)]
        controllers = Controllers({number: Controller(number, "127.0.0.1", port)
                                   for number, port in enumerate(ports, 1)})
        controllers.learned(1, 5)
        assert is_given_up == await leaves(
            monkeypatch, controllers, needed, WAIT_S if is_given_up else 3 * GONE_S)
        for server in servers:
            server.close()

    asyncio.run(scene())


@contextlib.asynccontextmanager
async def beating(monkeypatch, controllers, failures=(), keeps_broker=False):
    """A broker that registers and sends heartbeats. Returns a queue of (the controller, its
    request). failures: of the first requests; later requests succeed.
    """
    asked, left = Asked(), list(failures)

    async def send(line, message):
        asked.put_nowait((controllers.next().id, message))
        if left:
            raise left.pop(0)
        return SimpleNamespace(error_code=0, broker_epoch=10, is_fenced=False,
                               should_shut_down=not keeps_broker)

    monkeypatch.setattr(Line, "send", send)
    every_ms = 3_600_000  # No test waits for the next heartbeat.
    channel = ControllerChannel(
        controllers, Lifecycle(lambda: bytes(16)),
        SimpleNamespace(published=SimpleNamespace(offset=10)), node_id=1,
        settings={"broker.heartbeat.interval.ms": every_ms,
                  "broker.session.timeout.ms": 2 * every_ms,
                  "controller.socket.timeout.ms": every_ms},
        registration=lambda wanted: "register", heartbeat=lambda wanted: "beat",
        is_ready=lambda: True, registered=lambda epoch: None)
    asked.channel, asked.task = channel, asyncio.create_task(channel.run())
    try:
        yield asked
    finally:
        asked.task.cancel()
