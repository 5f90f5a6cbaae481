"""A node: pylog's own parts of a broker and a controller, composed around model logs and a model
network.

Owns: what a node's disk holds, and the process that runs there.
Called by: tests.sim.world.
Invariants: (1) what is not native is pylog's own: the composition is that of pylog.broker; (2) a
  process begins with what its disk holds, and nothing else.
Source: pylog.broker, pylog.metadata.controller_member, pylog.metadata.member.
"""

import asyncio
import random
from types import SimpleNamespace

from pylog._native.log import LogError
from pylog.api.controller import ControllerApi, HereOrNowhere, guarded
from pylog.api.metadata_log import MetadataLogApi, Observers
from pylog.log import partitions
from pylog.metadata.controller_member import ControllerMember
from pylog.metadata.image import Image
from pylog.metadata.member import MemberMetadata
from pylog.metadata.quorum import Quorum, QuorumLost
from pylog.peer.connection import key_of
from pylog.peer.controllers import Controllers, voters_of
from pylog.peer.dial import Dialled
from pylog.protocol.errors import ErrorCode
from pylog.replication.membership import Membership
from pylog.replication.throttles import Throttles
from pylog.server.publisher import Publisher
from tests.sim import fetchers
from tests.sim.keys import Client
from tests.sim.logs import NS, Files, MetadataFiles, ModelLog
from tests.sim.loop import Process
from tests.sim.network import End
from tests.sim.wire import Asked, Consume, Produce, Replied

BROKER_PORT, CONTROLLER_PORT = 9092, 9093
CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"


class Disk:
    """What outlives a process."""

    def __init__(self):
        self.partitions: dict = {}       # (topic id, index) -> Files
        self.metadata = MetadataFiles()
        self.clean_epoch = -1
        self.lost: set = set()           # (topic id, index) that a power cut took records of


class Node:
    """A machine of the cluster. roles: "broker", "controller"."""

    def __init__(self, world, id_, roles, settings):
        self.world, self.id, self.roles, self.settings = world, id_, roles, settings
        self.name = f"n{id_}"
        self.disk = Disk()
        self.process: NodeProcess | None = None
        self.flush_s = 0.002
        self.unsure = 0.0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        assert not self.alive, self.name
        self.process = NodeProcess(self)
        self.world.in_name_of(self.process, self.process.run())

    def kill(self, power: bool = False, silent: bool = False) -> None:
        """power: unflushed writes go too. silent: the host says nothing any more."""
        process, self.process = self.process, None
        if process is None:
            return
        process.alive = False
        for log in process.logs.all():
            log.files.high_watermark = self.world.random.randint(
                min(log.files.high_watermark, log.high_watermark), log.high_watermark)
            log.closed = True
        if silent:
            self.world.network.power_off(self.name)
        self.world.network.died(process)
        if power:
            self._lose()

    def _lose(self) -> None:
        choose = self.world.random
        for key, files in self.disk.partitions.items():
            before = len(files.records)
            files.lose(choose.randint(files.flushed, before))
            if len(files.records) < before:
                self.disk.lost.add(key)
        metadata = self.disk.metadata
        del metadata.batches[len(metadata.batches) - choose.randint(
            0, min(3, len(metadata.batches))):]
        metadata.high_watermark = min(metadata.high_watermark, metadata.end)


class Logs:
    """As LogManager, of one directory that works."""

    paths = ["/"]
    recovering = 0
    offline: tuple = ()

    def __init__(self, process):
        self._process, self._disk = process, process.node.disk
        self._topics: dict = {}          # name -> (topic id, [ModelLog or None])
        self.directories = [process]
        self.disks = SimpleNamespace(online=lambda place: True, usable=lambda: [(0, "/")])
        self.checkpointer = SimpleNamespace(cut=self._cut)

    def reconfigure(self) -> None:
        """Settings of all brokers changed, on which no log here depends."""

    def all(self):
        return [log for _, logs in self._topics.values() for log in logs if log is not None]

    def get(self, name, index):
        logs = self._topics.get(name, (None, ()))[1]
        return logs[index] if index < len(logs) else None

    def by_id(self, topic_id, index):
        for known, logs in self._topics.values():
            if known == topic_id:
                return logs[index] if index < len(logs) else None
        return None

    def place(self, name, index) -> int:
        return 0

    def is_offline(self, name, index) -> bool:
        return False

    def _open(self, topic_id, index, role):
        if role is None:
            return None
        world = self._process.node.world
        files = self._disk.partitions.setdefault((topic_id, index), Files())
        log = ModelLog(files, (topic_id, index), self._process.watcher,
                       lambda: int(world.loop.time() * NS), world.log_settings)
        partitions.assume(log, role)
        return log

    def create(self, name, topic_id, roles, overrides) -> None:
        self._topics[name] = topic_id, [
            self._open(topic_id, index, role) for index, role in enumerate(roles)]

    def _removed(self, topic_id, index, log) -> None:
        log.close()
        self._disk.partitions.pop((topic_id, index), None)
        self._disk.lost.discard((topic_id, index))

    def delete(self, name) -> None:
        topic_id, logs = self._topics.pop(name)
        for index, log in enumerate(logs):
            if log is not None:
                self._removed(topic_id, index, log)

    def drop(self, name, indexes) -> None:
        topic_id, logs = self._topics[name]
        for index in indexes:
            if logs[index] is not None:
                self._removed(topic_id, index, logs[index])
                logs[index] = None

    def assume(self, name, roles, added=()) -> None:
        topic_id, logs = self._topics[name]
        known = len(logs)
        logs += [None] * (len(roles) - known)
        for index, role in enumerate(roles):
            if role is not None and logs[index] is not None:
                partitions.assume(logs[index], role)
            elif role is not None and (index >= known or index in added):
                logs[index] = self._open(topic_id, index, role)

    def configure(self, name, overrides) -> None:
        pass

    def discard_branch(self, topic_id) -> None:
        pass

    def open_partitions(self, image, roles) -> None:
        """A start: what the image has no replica of here goes."""
        wanted = set()
        for topic in image.topics.values():
            self.create(topic.name, topic.id, roles(topic), {})
            wanted |= {(topic.id, index) for index, log in enumerate(self._topics[topic.name][1])
                       if log is not None}
        for key in set(self._disk.partitions) - wanted:
            del self._disk.partitions[key]

    def _cut(self, topic_id, index, log, cut, leader_epoch) -> None:
        if cut.truncate_to is not None:
            log.truncate(cut.truncate_to, leader_epoch)
        if cut.restart_at is not None:
            log.restart_at(cut.restart_at, leader_epoch)


class OfBroker:
    """What MemberMetadata has beside its log. Mixed in front of it."""

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
        return [bytes([self._node_id + 100]) * 16]

    @property
    def directory_ids(self):
        return {"/": self.directories[0]}

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
    """Follows the controllers over the network."""

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
    """One of the controllers, perhaps a broker too."""

    def __init__(self, process):
        self._prepare(process)
        world = process.node.world
        self._voters = list(voters_of(self._settings["controller.quorum.voters"]).values())
        self._voters = [SimpleNamespace(node_id=voter.id, host=voter.host, port=voter.port)
                        for voter in self._voters]
        self._member = self.office = self._standing = None
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

    def stand(self) -> None:
        self._standing = super().stand()
        self._standing.add_done_callback(self._process.node.world.ended)


class NodeProcess(Process):
    """One run of a node."""

    def __init__(self, node):
        super().__init__(f"{node.name}")
        self.node, self.host = node, node.name
        self.path = "/sim"               # It is its own log directory, to whoever opens a log.
        self.disk = node.disk
        self.etcd = None
        self.watcher = node.world.watcher.of(node)
        self.logs = Logs(self)
        self.membership: Membership | None = None
        self.metadata = None
        self._connections = 0
        self.stopping = False

    def now_ms(self) -> int:
        return int(self.node.world.loop.time() * 1000) + 1_700_000_000_000

    def flush_s(self) -> float:
        return self.node.world.random.uniform(0.5, 1.5) * self.node.flush_s

    async def run(self) -> None:
        """The start; everything goes on in tasks then."""
        world, settings, loop = self.node.world, self.node.settings, self.node.world.loop
        controls = "controller" in self.node.roles
        self.metadata = metadata = WithController(self) if controls else BrokerAlone(self)
        await metadata.join()
        publisher = Publisher(
            self.node.id, metadata, self.logs, SimpleNamespace(remove=lambda name: None),
            None, (), lambda: None)
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
            api = {**ControllerApi(HereOrNowhere(metadata), lambda number: None).handlers(),
                   **MetadataLogApi(metadata, Observers(), self.node.id, self.now_ms).handlers()}
            self.handlers = guarded(api)
            world.network.listen(self.node.name, CONTROLLER_PORT, self, ControllerConnection)
        world.in_name_of(self, publisher.run())
        metadata.stand()
        if self.membership is not None:
            self.membership.begin()
        world.in_name_of(self, self._flush_logs())

    async def _flush_logs(self) -> None:
        """Upkeep, which flushes now and then, and what leaders flush for who waits."""
        while True:
            await asyncio.sleep(1.0)
            for log in self.logs.all():
                log.flush()
                log.files.high_watermark = log.high_watermark

    async def leave(self) -> None:
        """A clean stop."""
        self.stopping = True
        clean = -1
        if self.membership is not None:
            epoch = self.membership.channel.broker_epoch
            await self.membership.leave()
            if self.membership.lifecycle.stage.name == "STOPPED":
                clean = epoch
        if "controller" in self.node.roles:
            await self.metadata.leave()
        for log in self.logs.all():
            log.flush()
            log.files.high_watermark = log.high_watermark
        self.node.disk.clean_epoch = clean
        self.node.kill()

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections


class Socket:
    """What a dial returns: an End in the shape of a socket."""

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


class Connection:
    """The server's side of a connection: answer() takes one request after the other."""

    def __init__(self, end: End):
        self.end, self.process = end, end.process
        self.number = self.process.next_connection()
        self._waiting: list = []
        self._task = None

    def data_received(self, asked) -> None:
        self._waiting.append(asked)
        if self._task is None:
            self._task = self.process.node.world.in_name_of(self.process, self._serve())

    async def _serve(self) -> None:
        while self._waiting:
            asked = self._waiting.pop(0)
            answer = await self.answer(asked)
            if answer is not None:
                self.end.write(answer)
        self._task = None

    def connection_lost(self, error) -> None:
        if self._task is not None:
            self._task.cancel()


class ControllerConnection(Connection):
    """On a controller's listener."""

    async def answer(self, asked):
        message = asked.message
        context = SimpleNamespace(connection=self.number, api_version=asked.version,
                                  local_host=self.process.host, local_port=CONTROLLER_PORT)
        if callable(message):
            # What an admin client wants: (the active controller) -> a coroutine.
            try:
                return Replied(asked.number, await message(HereOrNowhere(self.process.metadata)))
            except LogError as error:
                return Replied(asked.number, error)
        self.process.node.world.asked(self.process.node, message)
        result = self.process.handlers[key_of(message)](context, message)
        if asyncio.iscoroutine(result):
            result = await result
        return Replied(asked.number, result)

    def connection_lost(self, error) -> None:
        super().connection_lost(error)
        controller = self.process.metadata.controller
        if controller is not None:
            controller.connection_closed(self.number)


class BrokerConnection(Connection):
    """On a broker's listener: Fetch of followers, Produce and Fetch of clients."""

    async def answer(self, asked):
        if isinstance(asked, fetchers.FetchAsk):
            return await self._fetched(asked)
        assert isinstance(asked, Asked), asked
        message = asked.message
        if isinstance(message, Produce):
            return Replied(asked.number, await self._produced(message))
        if isinstance(message, Consume):
            return Replied(asked.number, self._consumed(message))
        return Replied(asked.number, self.process.metadata.image)

    async def _fetched(self, request):
        process, loop = self.process, asyncio.get_running_loop()
        now_ns, refused = int(loop.time() * NS), {}
        for ask in request.asks:
            log = process.logs.by_id(ask.topic_id, ask.index)
            if log is None:
                refused[ask] = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            error, may_join = fetchers.enter(log, ask, request, now_ns)
            if error:
                refused[ask] = error
            if may_join:
                loop.call_soon(process.membership.leadership.may_join, ask.topic_id, ask.index,
                               request.replica_id)
        until = loop.time() + request.wait_s
        while True:
            rows = [fetchers.Row(refused[ask]) if ask in refused else fetchers.read(
                process.logs.by_id(ask.topic_id, ask.index), ask)
                if process.logs.by_id(ask.topic_id, ask.index) is not None
                else fetchers.Row(ErrorCode.UNKNOWN_TOPIC_ID) for ask in request.asks]
            if loop.time() >= until or any(
                    row.error or row.diverging or row.records for row in rows):
                return fetchers.FetchAnswer(request.number, rows)
            await self._grown([process.logs.by_id(ask.topic_id, ask.index)
                               for ask in request.asks], until)

    @staticmethod
    async def _grown(logs, until) -> None:
        """Returns when something happens to one of the logs, or at the time `until`."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = loop.call_at(until, _done, waiter)
        for log in logs:
            if log is not None:
                log.waiters.append(waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    async def _produced(self, wanted):
        """(error, offset) as produce.c has them."""
        process, loop = self.process, asyncio.get_running_loop()
        log = process.logs.by_id(wanted.topic_id, wanted.index)
        if log is None or not log.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if wanted.acks == -1 and log.in_sync_count < log.in_sync_count_min:
            return ErrorCode.NOT_ENOUGH_REPLICAS, -1
        try:
            offset = log.append(wanted.payload)
        except LogError as error:
            return error.code, -1
        if wanted.acks != -1:
            return 0, offset
        resignations, until = log.resignations, loop.time() + wanted.wait_s
        loop.call_later(process.flush_s(), log.flush)
        acked = process.node.world.acks_when
        while loop.time() < until:
            if log.closed or log.resignations != resignations:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            if acked(log, offset) and (log.in_sync_count > 1 or log.flushed_offset > offset):
                if log.maximal_count < log.in_sync_count_min:
                    return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1
                return 0, offset
            await self._grown([log], until)
        return ErrorCode.REQUEST_TIMED_OUT, -1

    def _consumed(self, wanted):
        """(error, records below the high watermark from an offset on)."""
        log = self.process.logs.by_id(wanted.topic_id, wanted.index)
        if log is None or not log.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, []
        if wanted.offset > log.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE, []
        return 0, log.files.records[wanted.offset:log.high_watermark]


def _done(waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)
