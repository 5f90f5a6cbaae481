"""A cluster in one process, driven by a seed: its nodes, its clients and its faults.

Owns: the clock, the network, etcd's model, all events.
Invariants: the seed determines everything; recovery: all faults end, and the cluster must be
  healthy within HEAL_SECONDS after that.
Source: the simulations of FoundationDB and TigerBeetle.
"""

import logging
import random
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from pylog.config import Settings
from pylog.metadata.controller import decision_queue
from pylog.metadata.controller.partitions import topics
from pylog.metadata.quorum import quorum_state
from pylog.metadata.quorum.etcd_bootstrap import Joining
from pylog.metadata.controller_service import ControllerMember
from pylog.metadata.controller.partitions.eligible_leader_replicas import ELR_FEATURE
from pylog.metadata.image.image import NO_LEADER
from pylog.metadata.log.replica_log import ObservedLog
from pylog.metadata.quorum.quorum_state import Quorum
from pylog.metadata.quorum.quorum_log import QuorumLog
from pylog.protocol import messages
from tests.sim import transactors, wire
from tests.sim.etcd_members import Members
from tests.sim.faults import Faults
from tests.sim.clients import HOST, UNCLEAN, Admin, Client, Consumer, Producer
from tests.sim.keys import Store
from tests.sim.loop import OWNER, Loop, Wrong
from tests.sim.network import Network
from tests.sim.nodes import Node
from tests.sim.serving import CONTROLLER_PORT
from tests.sim.transactors import Ledger
from tests.sim.watcher import Watcher

CHAOS_SECONDS = 15.0
FAILOVER_SECONDS = 8.0
HEAL_SECONDS = 90.0
FULL_SECONDS = 60.0
QUIET_SECONDS = 4.0
QUIET_MESSAGES_MAX = 120  # Per second.
BLOCKING = (Quorum, QuorumLog, ControllerMember, decision_queue.Decider, Joining)


class World:
    """A run. faults: names of planted bugs (tests.sim.plants)."""

    def __init__(self, seed: int, faults=()):
        self.seed, self.faults = seed, frozenset(faults)
        self.random = random.Random(seed)
        choose = self.random
        self.loop = Loop(choose, _blocks)
        self.network = Network(self.loop, choose)
        self.loop.connect = self.network.connect
        self.combined = choose.random() < 0.5
        self.keeps_eligible = choose.random() < 0.8
        self.unclean = choose.random() < 0.15
        self.flush_first = choose.random() < 0.5
        # Maximum number of metadata records after the last snapshot.
        self.records_between_snapshots = choose.choice((10, 40, 40, 20_000))
        # With groups and transactions, every lost record is an error.
        self.coordinates = choose.random() < 0.2
        # Maximum clock error. The coordinator's clock decides when a transaction times out.
        self.clock_ms = 3_600_000
        if self.coordinates:
            self.unclean, self.flush_first, self.clock_ms = False, True, 3000
        # From a separate source, so that seeds without disasters keep their histories.
        self.disasters = self.random_of("disasters")
        self.has_disasters = self.disasters.random() > 0.7
        self.ledger = Ledger()
        self.log_settings = SimpleNamespace(
            min_isr=choose.choice((1, 2, 2)), flush_first=self.flush_first,
            lag_ns=choose.choice((1, 3)) * 1_000_000_000)
        self.nodes = self._made_nodes()
        self.brokers = [node for node in self.nodes.values() if "broker" in node.roles]
        self.controllers = [node for node in self.nodes.values() if "controller" in node.roles]
        self.network.host(HOST)
        for node in self.nodes.values():
            self.network.host(node.name)
        self.members = Members(self)
        self.etcd = Store(self.network, self.members.machines)
        # The broker whose disk loses unflushed records in a power loss.
        self.weak = choose.choice(self.brokers)
        self.watcher = Watcher(self)
        self.counts: dict = {}
        self._heard: dict = {}  # Broker id -> time of its last heartbeat to an active controller.
        self.producer_ids: set = set()
        self._number = 0

    def _made_nodes(self) -> dict:
        voters = ",".join(f"{id_}@n{id_}:{CONTROLLER_PORT}" for id_ in (
            (1, 2, 3) if self.combined else (4, 5, 6)))
        nodes = {}
        for id_ in (1, 2, 3) if self.combined else (1, 2, 3, 4, 5, 6):
            roles = ("broker", "controller") if self.combined else (
                ("broker",) if id_ < 4 else ("controller",))
            nodes[id_] = Node(self, id_, roles, self._settings(id_, roles, voters))
        return nodes

    def _settings(self, id_, roles, voters):
        listeners = {"broker": f"PLAINTEXT://n{id_}:9092",
                     "controller": f"CONTROLLER://n{id_}:{CONTROLLER_PORT}"}
        return Settings({
            "node.id": str(id_), "process.roles": ",".join(roles),
            "controller.quorum.voters": voters, "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners[role] for role in roles),
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "broker.heartbeat.interval.ms": "1000", "broker.session.timeout.ms": "3000",
            "replica.lag.time.max.ms": str(self.log_settings.lag_ns // 1_000_000),
            "min.insync.replicas": str(self.log_settings.min_isr),
            "unclean.leader.election.enable": str(self.unclean).lower(),
            "replica.flush.before.fetch.enable": str(self.flush_first).lower(),
            "leader.imbalance.check.interval.seconds": "5",
            "controller.quorum.fetch.snapshot.max.bytes": "2048",
            "offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2",
        })

    def random_of(self, purpose: str) -> random.Random:
        """Return a separate random source of this seed."""
        return random.Random(f"{purpose} of {self.seed}")

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def acks_when(self, log, offset: int) -> bool:
        """Return True if a producer with acks=all may be acknowledged."""
        return log.high_watermark > offset

    def record_request(self, node, message) -> None:
        """Record a request to a controller."""
        name = type(message).__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        if name == "BrokerHeartbeatRequest" and node.process.metadata.controller is not None:
            self._heard[message.broker_id] = self.loop.time()

    # ---- a run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the seed. Raises Wrong, AssertionError, and any unexpected exception of pylog."""
        with ExitStack() as stack:
            for node in self.nodes.values():
                stack.callback(node.disk.scrap)
            stack.callback(self.loop.close)
            stack.enter_context(wire.replaced(self._is_full))
            stack.enter_context(self.members.replaced())
            for kind in (QuorumLog, ObservedLog):
                stack.enter_context(mock.patch.object(
                    kind, "records_between_snapshots", self.records_between_snapshots))
            stack.enter_context(mock.patch.object(quorum_state, "CHUNK_BYTES", 1024))
            if not self.keeps_eligible:
                stack.enter_context(mock.patch.object(
                    topics, "bootstrap_cluster", _without_eligible))
            stack.enter_context(_errors_to(self.loop))
            self._begin()
            self._chaos()
            self._heal()
            self._look_whether_quiet()
            if self.random.random() < 0.25:
                self._fail_over()
                self._heal()
            if self.has_disasters:
                self._fill_disk()

    def _is_full(self, folder: str) -> bool:
        return any(node.disk.is_full and Path(folder).parent == node.disk.folder
                   for node in self.nodes.values())

    def in_name_of(self, process, coroutine):
        token = OWNER.set(process)
        task = self.loop.create_task(coroutine)
        OWNER.reset(token)
        task.add_done_callback(self.ended)
        return task

    def ended(self, task) -> None:
        """Fail if a task ended that must run forever, or failed."""
        if not task.cancelled() and task.exception() is not None and self.loop.failure is None:
            self.loop.failure = task.exception()

    def _begin(self) -> None:
        self.etcd.look_after_leases()
        self.members.begin()
        for node in self.nodes.values():
            node.start()
        self.admin = Admin(self, 0)
        self._until(self._all_serve, 30.0)
        self.in_name_of(self.admin, self.admin.decided(self.admin.create(
            self.random.randint(1, 6), 3)))
        self.in_name_of(self.admin, self.admin.decided(self.admin.create(
            self.random.randint(1, 2), self.random.randint(1, 3))))
        self.loop.run_for(0.5)
        self.clients: list[Client] = [Consumer(self, 1)] + [
            Producer(self, number, self.random.choice((1, -1, -1)), self.random.random() < 0.5)
            for number in range(2, 4 if self.coordinates else 6)]
        if self.coordinates:
            self._begin_to_coordinate()
        for client in [self.admin, *self.clients]:
            self.in_name_of(client, client.run())

    def _begin_to_coordinate(self) -> None:
        self.in_name_of(self.admin, self.admin.decided(self.admin.create(
            transactors.PARTITIONS, 3, transactors.TOPIC)))
        self._until(lambda: transactors.TOPIC in self.watcher.image.topics, 10.0)
        self.clients += [transactors.Transactor(self, 6), transactors.Transactor(self, 7),
                         transactors.Committer(self, 8)]

    def _all_serve(self) -> bool:
        image = self.watcher.image
        return all(node.id in image.brokers and not image.brokers[node.id].fenced
                   for node in self.brokers)

    def _until(self, condition, seconds: float) -> None:
        end = self.loop.time() + seconds
        while not condition():
            if self.loop.time() > end:
                raise Wrong(f"not within {seconds} s: {condition.__name__}")
            self.loop.run_for(0.2)

    def _chaos(self) -> None:
        faults, often = Faults(self), self.random.choice((0.5, 1.0, 1.0, 2.0, 4.0))
        end = self.loop.time() + CHAOS_SECONDS
        faults.begin()
        while self.loop.time() < end:
            self.loop.run_for(self.random.expovariate(often))
            faults.next()
        faults.over()

    def _heal(self) -> None:
        """End all faults and check the cluster. Keeps recovery."""
        for client in [self.admin, *self.clients]:
            client.alive = False
        began = self.loop.time()
        end, failure = began + HEAL_SECONDS, None
        while self.loop.time() < end:
            self.loop.run_for(1.0)
            for node in self.nodes.values():
                if node.alive and node.disk.deleted and all(
                        node.disk.directories[place].offline for place in node.disk.deleted):
                    node.kill()  # An operator restarts it: see Watcher.check_rest().
                if not node.alive:
                    node.start()
            self._elect_incomplete()
            try:
                self.watcher.check_rest()
                # Otherwise a broker that was unreachable may be fenced and unfenced once more.
                if late := [node.id for node in self.brokers
                            if self._heard.get(node.id, 0.0) < began]:
                    raise Wrong(f"no heartbeats of {late}")
                if self.coordinates:
                    self.ledger.check(self.watcher.records_of(transactors.TOPIC))
                return
            except (Wrong, KeyError, AttributeError) as wrong:
                failure = wrong
        raise Wrong(f"not well after {HEAL_SECONDS} s: {failure!r}")

    def _elect_incomplete(self) -> None:
        """Let an operator elect incomplete leaders where the only complete replica's directory was
        deleted.

        No broker elects one by itself.
        """
        if not self.has_disasters or not self._all_serve():
            return
        for topic in self.watcher.image.topics.values():
            indexes = [index for index, state in enumerate(topic.partitions)
                       if state.leader == NO_LEADER and any(
                           (topic.id, index) in self.nodes[id_].disk.lost
                           for id_ in state.replicas)]
            if indexes:
                operator = Admin(self, 9)
                self.in_name_of(operator, operator.decided(
                    lambda controller, name=topic.name, indexes=indexes:
                    controller.elect_leaders(UNCLEAN, [(name, indexes)])))

    def _fail_over(self) -> None:
        """Fail a broker or one of its disks without notice, with no other fault but wrong clocks.

        No election may depend on clocks.
        """
        node = self.random.choice(self.brokers)
        for other in self.nodes.values():
            other.clock_ms = self.random.randint(-self.clock_ms, self.clock_ms)
        if self.random.random() < 0.3 and (self.flush_first or node is self.weak):
            node.fail_directory(1)
            self.loop.run_for(FAILOVER_SECONDS)
            self.watcher.check_without_disk(node, 1)
            node.kill()
            return
        node.kill(silent=True)
        self.loop.run_for(FAILOVER_SECONDS)
        self.watcher.check_failover(node.id)
        self.network.hosts[node.name].powered = True

    def _fill_disk(self) -> None:
        """Fill the disk of one broker.

        The others accept acknowledged writes without it, and it follows again when space returns,
        without a restart.
        """
        node = self.disasters.choice(self.brokers)
        process, producer = node.process, Producer(self, 10, -1, False)
        node.disk.is_full = True
        committed = self.watcher.committed
        before = {key: len(committed[key]) for key in self._led_by_others(node)}
        self.clients.append(producer)
        self.in_name_of(producer, producer.run())

        def others_take_writes():
            return all(len(committed[key]) > count for key, count in before.items())
        self._until(others_take_writes, FULL_SECONDS)
        node.disk.is_full = False
        self._heal()
        if node.process is not process:
            raise Wrong(f"{node.name} ended although its disk has room again")

    def _led_by_others(self, node) -> list:
        """Return the partitions with a replica on `node` that are writable without it."""
        return [(topic.id, index) for topic in self.watcher.image.topics.values()
                if topic.name.startswith("t")
                for index, state in enumerate(topic.partitions)
                if state.leader != node.id and node.id in state.replicas
                and len(state.replicas) > self.log_settings.min_isr]

    def _look_whether_quiet(self) -> None:
        """Check that the cluster does not repeat requests when nothing changes."""
        self.loop.run_for(1.0)
        self.counts.clear()
        before, offset = self.network.sent, self.watcher.image.offset
        self.loop.run_for(QUIET_SECONDS)
        sent = self.network.sent - before
        for name in ("AlterPartitionRequest", "BrokerRegistrationRequest",
                     "AssignReplicasToDirsRequest"):
            if self.counts.get(name):
                raise Wrong(f"{self.counts[name]} {name} at rest")
        if self.watcher.image.offset > offset:
            raise Wrong("metadata changes at rest")
        if sent > QUIET_MESSAGES_MAX * QUIET_SECONDS:
            raise Wrong(f"{sent} messages within {QUIET_SECONDS} s at rest")


def _blocks(work) -> bool:
    return isinstance(getattr(work, "__self__", None), BLOCKING) or getattr(
        work, "__name__", "") == "<lambda>"


def _without_eligible(image, settings):
    return [record for record in _bootstrap(image, settings) if not (
        isinstance(record, messages.FeatureLevelRecord) and record.name == ELR_FEATURE)]


_bootstrap = topics.bootstrap_cluster
# Errors that pylog logs because of injected faults.
EXPECTED = frozenset((
    "metadata could not be appended", "a broker without heartbeats could not be fenced",
    "a stopped broker could not be fenced", "the preferred leaders could not be elected",
    "unclean elections failed",
    "the metadata log cannot be written; retrying", "a snapshot could not be written",
    "records from a leader cannot be appended", "a replica cannot follow",
    "a replica cannot be truncated", "the coordinator could not write",
    "cannot create an internal topic: its coordinators are not available until it exists"))
# A coordinator that cannot load because of its disk and one with wrong records log the same error.
OF_DISKS = frozenset(("its directory failed", "no room"))


class _errors_to(logging.Handler):
    """A handler that ends the run at the first logged error."""

    def __init__(self, loop):
        super().__init__(logging.ERROR)
        self._loop = loop

    def emit(self, record) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if record.msg in EXPECTED and (error is None or hasattr(error, "code")) \
                or record.name == "pylog.coordinator" \
                and getattr(record, "reason", None) in OF_DISKS:
            return
        if self._loop.failure is None and not self._loop.closed:
            if isinstance(error, Wrong):
                self._loop.failure = error
                return
            wrong = Wrong(f"{record.name}: {record.getMessage()}: {error!r}")
            wrong.__cause__ = error
            self._loop.failure = wrong

    def __enter__(self):
        self._log = logging.getLogger("pylog")
        self._before = self._log.level, self._log.propagate
        self._log.setLevel(logging.ERROR)
        self._log.propagate = False
        self._log.addHandler(self)

    def __exit__(self, *_):
        self._log.removeHandler(self)
        self._log.level, self._log.propagate = self._before
        self._log.setLevel(self._before[0])


def run(seed: int, faults=()) -> World:
    """Run a seed. Raises any error found."""
    world = World(seed, faults)
    world.run()
    return world
