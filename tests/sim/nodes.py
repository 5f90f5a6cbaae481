"""A node: pylog's broker and controller code, composed around model logs and a model network.

Owns: a machine's clock, its process.
Invariants: only native code is modelled; the composition follows pylog.broker.
Source: pylog.broker, pylog.metadata.controller_service, pylog.metadata.broker_service.
"""

import asyncio
import random
from types import SimpleNamespace

from pylog._native.log.log import Shortage
from pylog.api.cluster.broker_to_controller import ControllerApi, LocalController, guarded
from pylog.api.cluster.metadata_log import MetadataLogApi, Observers
from pylog.api.cluster.topics import TopicsApi
from pylog.metadata.broker_service import MemberMetadata
from pylog.metadata.controller_service import ControllerMember
from pylog.metadata.image.image import Image
from pylog.metadata.quorum.quorum_state import Quorum, QuorumLost
from pylog.peer.controllers import Controllers, voters_of
from pylog.peer.dial import Dialled
from pylog.replication.membership import Membership
from pylog.replication.throttles import Throttles
from pylog.server.metadata_publisher import Publisher
from tests.sim.coordinators import Coordinators
from tests.sim.disks import Disk, Logs
from tests.sim.keys import Client
from tests.sim.logs import NS
from tests.sim.loop import Process
from tests.sim.network import End
from tests.sim.serving import (
    BROKER_PORT, CONTROLLER_PORT, BrokerConnection, ControllerConnection,
)

START_AGAIN_S = 1.0
NO_QUOTAS = SimpleNamespace(mutations=lambda *_: None)
WALL_MS = 1_700_000_000_000
CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"


class Node:
    """A machine of the cluster. roles: "broker", "controller"."""

    def __init__(self, world, id_, roles, settings):
        self.world, self.id, self.roles, self.settings = world, id_, roles, settings
        self.name = f"n{id_}"
        self.disk = Disk(world.flush_first)
        self.process: NodeProcess | None = None
        self.flush_s = 0.002
        self.unsure = 0.0
        self.clock_ms = 0  # Offset from the true time.

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        assert not self.alive, self.name
        self.disk.began()
        self.process = NodeProcess(self)
        self.world.in_name_of(self.process, self.process.run())

    def start_again(self) -> None:
        if not self.alive and self.world.network.hosts[self.name].powered:
            self.start()

    def kill(self, power: bool = False, silent: bool = False) -> None:
        """Kill the process.

        power: unflushed writes are lost too. silent: connections stay open without traffic.
        """
        process, self.process = self.process, None
        if process is None:
            return
        process.alive = False
        for log in process.logs.all():
            if not log.log_dir.offline:
                log.files.high_watermark = self.world.random.randint(
                    min(log.files.high_watermark, log.high_watermark), log.high_watermark)
            log.closed = True
        if silent:
            self.world.network.power_off(self.name)
        self.world.network.died(process)
        failed = [place for place, directory in enumerate(self.disk.directories)
                  if directory.offline]
        if power or failed:
            self.disk.forget(self.world.random, *(() if power else (failed,)))
        self.disk.release_deleted()

    def fail_directory(self, place: int) -> None:
        """Fail a log directory until the next start, which finds its flushed records only."""
        assert self.process is not None, self.name
        self.disk.directories[place].offline = True
        if place == 0:
            self.kill()
            return
        for log in self.process.logs.all():
            log.wake()

    def notice_deleted(self) -> None:
        """Take directories offline whose files were deleted, as the native log does."""
        for place in sorted(self.disk.deleted):
            if self.alive and not self.disk.directories[place].offline:
                self.fail_directory(place)


class OfBroker:
    """MemberMetadata's members beside the log. Mixed in before it."""

    replicates = True
    is_image_due = False
    cluster_id = CLUSTER_ID

    def _prepare(self, process) -> None:
        node = process.node
        self._settings, self._logs, self._node_id = node.settings, process.logs, node.id
        self._now_ms = process.now_ms
        self._random = random.Random(node.world.random.getrandbits(64))
        self.controllers = Controllers(voters_of(node.settings["controller.quorum.voters"]))
        self.controller = self.credentials = None
        self._first = ()
        self.previous_epoch, node.disk.clean_epoch = node.disk.clean_epoch, -1
        self._process = process
        self._following = None

    def _stored_image(self, store):
        return Image()

    @property
    def directories(self):
        return list(self.directory_ids.values())

    @property
    def directory_ids(self):
        ages = self._process.disk.ages
        return {path: bytes([self._node_id + 100 + 50 * place]) * 15 + bytes([ages[place]])
                for place, path in enumerate(self._logs.paths)}

    @property
    def image(self):
        return self.tail.published

    def take_broker_configs(self, image) -> None:
        pass

    def local_roles(self, topic):
        if "broker" not in self._settings["process.roles"]:
            return [None] * len(topic.partitions)
        return super().local_roles(topic)

    def endpoints(self, addresses):
        return [(name, host, port, 0) for name, host, port in addresses]


class BrokerAlone(OfBroker, MemberMetadata):
    """A broker that follows remote controllers."""

    def __init__(self, process):
        self._prepare(process)

    async def join(self) -> None:
        observer = self._open_copy(None, frozenset(), {})
        self._following = asyncio.get_running_loop().create_task(observer.run())
        await observer.caught_up.wait()
        self.tail.begin()
        self._take_newest()
        self._logs.open_partitions(self.tail.newest, self.local_roles)


class WithController(OfBroker, ControllerMember):
    """A controller, perhaps with a broker."""

    store = None  # A simulated start reads the whole log.

    def __init__(self, process):
        self._prepare(process)
        world = process.node.world
        self._voters = list(voters_of(self._settings["controller.quorum.voters"]).values())
        self._voters = [SimpleNamespace(node_id=voter.id, host=voter.host, port=voter.port)
                        for voter in self._voters]
        self._member = self.election = self._standing = None
        process.etcd = Client(world.etcd, process, world.random)
        process.etcd.unsure = process.node.unsure
        self._quorum = Quorum(process.etcd, "/pylog/", self._settings[
            "controller.quorum.request.timeout.ms"] / 1000, world.loop.time)
        self._quorum._pause = SimpleNamespace(wait=world.loop.block)

    async def join(self) -> None:
        while True:
            try:
                self._open_log(None, None)
                break
            except QuorumLost:
                await asyncio.sleep(0.2)
        await self._reach_the_end()
        self.tail.begin()
        self._take_newest()
        self._logs.open_partitions(self.tail.newest, self.local_roles)

    def start_election(self) -> asyncio.Task:
        election = super().start_election()
        election.add_done_callback(self._process.node.world.ended)
        return election


class NodeProcess(Process):
    """One run of a node."""

    def __init__(self, node):
        super().__init__(f"{node.name}")
        self.node, self.host = node, node.name
        self.path = str(node.disk.folder)  # The log sees the process as its directory.
        self.disk = node.disk
        self.etcd = None
        self.watcher = node.world.watcher.of(node)
        self.logs = Logs(self)
        self.membership: Membership | None = None
        self.coordinators: Coordinators | None = None
        self.metadata = None
        self._connections = 0
        self.stopping = False

    def now_ms(self) -> int:
        return int(self.node.world.loop.time() * 1000) + WALL_MS + self.node.clock_ms

    def flush_s(self) -> float:
        return self.node.world.random.uniform(0.5, 1.5) * self.node.flush_s

    async def run(self) -> None:
        """Start. All further work runs in tasks."""
        world, settings, loop = self.node.world, self.node.settings, self.node.world.loop
        controls = "controller" in self.node.roles
        if controls and not await world.members.join(self):
            self._start_again()
            return
        self.metadata = metadata = WithController(self) if controls else BrokerAlone(self)
        try:
            await metadata.join()
        except Shortage:
            self._start_again()
            return
        coordinators = self._coordinators() if "broker" in self.node.roles else ()
        publisher = Publisher(
            self.node.id, metadata, self.logs, SimpleNamespace(remove=lambda name: None),
            None, coordinators, lambda: None)
        if "broker" in self.node.roles:
            addresses = [("PLAINTEXT", self.node.name, BROKER_PORT)]
            world.network.listen(self.node.name, BROKER_PORT, self, BrokerConnection)
            self.membership = Membership(
                self.node.id, settings, metadata, self.logs, addresses,
                lambda: int(loop.time() * NS), lambda number: None, None,
                Throttles(settings, self.node.id, self.logs, self.now_ms))
            self.membership._fetchers._dial = lambda host, port: Dialled(Socket(
                world.network.dial(self, host, port)))
            publisher.replicas = self.membership.replicas
        if controls:
            here = LocalController(metadata)
            api = {**ControllerApi(here, lambda number: None).handlers(),
                   **MetadataLogApi(metadata, Observers(), self.node.id, self.now_ms).handlers(),
                   **TopicsApi(here, NO_QUOTAS, settings).handlers()}
            self.handlers = guarded(api)
            world.network.listen(self.node.name, CONTROLLER_PORT, self, ControllerConnection)
        world.in_name_of(self, publisher.run())
        metadata.start_election()
        if self.membership is not None:
            self.membership.begin()
        if self.coordinators is not None:
            self.coordinators.start()
        world.in_name_of(self, self._keep_up())

    def _start_again(self) -> None:
        """Exit as after a StartError, which brokerd logs, and restart."""
        self.node.kill()
        self.node.world.loop.call_later(START_AGAIN_S, self.node.start_again)

    def _coordinators(self) -> tuple:
        """Return the coordinators that topic changes concern."""
        if not self.node.world.coordinates:
            return ()
        self.coordinators = Coordinators(self)
        return self.coordinators.groups, self.coordinators.transactions

    async def _keep_up(self) -> None:
        """Run upkeep: flush periodically, and give up partitions on failed disks."""
        left: list = []
        while True:
            await asyncio.sleep(1.0)
            self.node.notice_deleted()
            if not self.alive:
                return
            self._settle()
            left += self.logs.take_failed()
            if left and await self.membership.controller.leave_offline(left):
                left = []

    def _settle(self) -> None:
        for log in self.logs.all():
            if not log.log_dir.offline:
                log.flush()
                log.files.high_watermark = log.high_watermark

    async def leave(self) -> None:
        """Stop cleanly."""
        self.stopping = True
        clean = -1
        if self.membership is not None:
            epoch = self.membership.channel.broker_epoch
            await self.membership.leave()
            if self.membership.lifecycle.stage.name == "STOPPED":
                clean = epoch
        if self.coordinators is not None:
            await self.coordinators.stop()
        if "controller" in self.node.roles:
            await self.metadata.leave()
        self._settle()
        self.node.disk.clean_epoch = clean
        self.node.kill()

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections


class Socket:
    """The result of a dial: an End with a socket's interface."""

    def __init__(self, end: End):
        self._end = end

    def setblocking(self, flag) -> None:
        pass

    def setsockopt(self, *arguments) -> None:
        pass

    def close(self) -> None:
        self._end.close()

    def detach(self) -> End:
        return self._end
