"""The composition root: builds one broker from its settings, runs it, and takes it down.

Owns: every long-lived object of the process, in the order in which they are made and closed.
Called by: cli, testing.
Invariants: (1) the ready callback is called once the first request would be answered; (2) a clean
  stop
  answers what is in flight, then flushes, then leaves the clean-shutdown mark, in this order.
Source: KIP-631 (one node as broker and controller).
"""

import asyncio
import gc
import logging
import signal
import socket
import time

from pylog._native.grants import Grants
from pylog._native.log import IoPool
from pylog._native.reactor import Reactors
from pylog.api import HANDLERS
from pylog.coordinator.service import GroupCoordinator
from pylog.dispatch import Dispatcher
from pylog.log.errors import StartError
from pylog.log.manager import LogManager
from pylog.metadata.image import is_internal
from pylog.metadata.service import MetadataService
from pylog.protocol import api, tables

__all__ = ["Broker", "StartError", "run"]

log = logging.getLogger("pylog.broker")

DRAIN_MS_MAX = 5_000
UPKEEP_SECONDS = 1.0
NEVER_FLEXIBLE = 1 << 14


class Broker:
    """One node: its settings, its state, and what handlers may use."""

    def __init__(self, settings):
        self.settings = settings
        self.node_id: int = settings["node.id"]
        self.grants = Grants()
        self.io_pool = IoPool(settings["num.io.threads"])
        self.logs = LogManager(settings, self.io_pool, self.now_ms)
        self.controller = MetadataService(self)
        self.groups = GroupCoordinator(self)
        self.reactors = self._make_reactors()
        self.addresses: list[tuple[str, str, int]] = []
        self.monitor = None

    @staticmethod
    def now_ms() -> int:
        """Wall-clock time in milliseconds."""
        return time.time_ns() // 1_000_000

    @property
    def image(self):
        """The cluster's state as of the last applied metadata record."""
        return self.controller.image

    @property
    def cluster_id(self) -> str:
        return self.controller.cluster_id

    def install(self, topic) -> bool:
        """Lets the data plane use a topic unasked; False while no log of it is open."""
        logs = [self.logs.get(topic.name, index) for index in range(len(topic.partitions))]
        if not any(logs):
            return False
        self.grants.install(topic.name, topic.id, logs, is_internal(topic.name))
        return True

    def topic_changed(self, name: str) -> None:
        """A topic was deleted or its partitions changed: the next request for it asks again."""
        self.grants.remove(name)
        if name not in self.image.topics:
            self.groups.topic_deleted(name)

    def start(self) -> None:
        """Opens logs, metadata and listeners, and registers. Raises StartError, OSError."""
        self.logs.open()
        self.controller.open()
        backlog = self.settings["socket.listen.backlog.size"]
        for index, listener in enumerate(self.settings.listeners):
            try:
                port = self.reactors.listen(index, listener.host, listener.port, backlog)
            except OSError as error:
                raise StartError(f"cannot listen on {listener!r}: {error.strerror}") from error
            self.addresses.append((listener.name, listener.host or socket.gethostname(), port))
        self.controller.register(self.addresses)
        if self.settings["metrics.listener"]:
            self._open_monitor()

    def _open_monitor(self) -> None:
        # Imported here: it costs a start 5 ms, and not every broker is watched.
        from pylog.monitor.server import Monitor

        address = self.settings["metrics.listener"]
        try:
            self.monitor = Monitor(self, address, time.monotonic)
            self.monitor.open()
        except ValueError as error:
            raise StartError(str(error)) from error
        except OSError as error:
            raise StartError(f"cannot listen on metrics.listener {address}: {error.strerror}"
                             ) from error

    def stop(self) -> None:
        """Flushes and leaves the clean-shutdown mark, once the reactors have stopped (2)."""
        self.controller.close()
        self.logs.close()

    def _make_reactors(self) -> Reactors:
        settings = self.settings
        flexible = tables.flexible_from()
        versions = [(key, low, high, min(flexible[key], NEVER_FLEXIBLE))
                    for key, (low, high) in api.SERVED.items()]
        return Reactors(
            grants=self.grants, io_pool=self.io_pool, api_versions=versions,
            network_threads=settings["num.network.threads"],
            request_bytes_max=settings["socket.request.max.bytes"],
            connections_max=settings["max.connections"],
            connections_per_ip_max=settings["max.connections.per.ip"],
            idle_ms_max=settings["connections.max.idle.ms"],
            queued_requests_max=settings["queued.max.requests"],
            send_buffer_bytes=settings["socket.send.buffer.bytes"],
            receive_buffer_bytes=settings["socket.receive.buffer.bytes"],
            fetch_bytes_max=settings["fetch.max.bytes"],
            sessions_max=settings["max.incremental.fetch.session.cache.slots"])


def run(settings, ready=None) -> int:
    """Runs a broker until SIGTERM or SIGINT. Returns the exit code.

    ready: called with [(listener name, host, port)] when requests are answered. Raises StartError,
      OSError.
    """
    return asyncio.run(_serve(settings, ready))


async def _serve(settings, ready) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    broker = Broker(settings)
    broker.start()
    dispatcher = Dispatcher(broker, broker.reactors, HANDLERS)
    loop.add_reader(broker.reactors.fileno(), dispatcher.drain)
    broker.groups.start(broker.controller.store)
    broker.reactors.set_slow(settings["request.log.slow.ms"])
    broker.reactors.start()
    if broker.monitor is not None:
        broker.monitor.start(loop)
    upkeep = loop.create_task(_upkeep(broker))
    if ready is not None:
        ready(broker.addresses)
    # What a start made lives as long as the process: the collector need not look at it again.
    gc.freeze()
    await stopping.wait()
    upkeep.cancel()
    if broker.monitor is not None:
        await loop.run_in_executor(None, broker.monitor.stop)
    broker.reactors.stop_accepting()
    await broker.groups.stop()
    await loop.run_in_executor(None, broker.reactors.stop, DRAIN_MS_MAX)
    loop.remove_reader(broker.reactors.fileno())
    broker.stop()
    log.info("stopped")
    return 0


async def _upkeep(broker) -> None:
    """Rolls, retention, checkpoints: whatever is due, on a worker thread."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(UPKEEP_SECONDS)
        try:
            await loop.run_in_executor(None, broker.logs.upkeep, broker.now_ms())
        except Exception:
            # What failed is due again in a second; a broker without upkeep would fill its disk.
            log.exception("upkeep failed")
