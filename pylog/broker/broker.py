"""Builds one broker from its settings, starts it, and shuts it down.

Owns: every long-lived object of the process, created and closed in a fixed order.
Invariants: a clean shutdown first completes requests in flight, then flushes, then writes the
  clean-shutdown marker; a failed start does not remove the marker of an earlier clean shutdown.
Source: KIP-631 (one node as broker and controller).
"""

from __future__ import annotations

import asyncio
import logging
import time

from pylog import supervisor
from pylog._native.log.io_pool import IO_THREADS_MAX, IoPool
from pylog._native.server.grants import Grants
from pylog._native.server.heartbeat_cache import Repeats
from pylog.api import registry
from pylog.api.services import ApiServices
from pylog.api.cluster.client_quotas import resolve_later
from pylog.broker.upkeep import Upkeep
from pylog.config.client_quotas import ANONYMOUS, ClientQuotas
from pylog.config.listeners import SASL_PROTOCOLS
from pylog.coordinator.groups.service import GroupCoordinator
from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.runtime.local_append import Markers
from pylog.coordinator.transactions.service import TransactionCoordinator
from pylog.coordinator.transactions.verification import Verification
from pylog.eventloop.end_of_tick import EndOfTick
from pylog.log.errors import StartError
from pylog.log.manager import LogManager
from pylog.metadata import meta_properties
from pylog.metadata.image.image import is_internal
from pylog.metadata.node import metadata_of
from pylog.server.metadata_publisher import Publisher
from pylog.server.network import Network
from pylog.server.request_queue import RequestQueue
from pylog.server.services import Services

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.server.reactor import Closed, RequestContext
    from pylog.api.security.sasl import AuthenticationApi
    from pylog.api.security.delegation_tokens import Asker
    from pylog.config import Settings
    from pylog.metadata.image.image import Image, Topic
    from pylog.peer.credentials import Credentials
    from pylog.broker.supervised_child import SupervisedChild
    from pylog.replication.membership import Membership
    from pylog.replication.throttles import Throttles
    from pylog.broker.readiness import Readiness
    from pylog.monitor.health import Health
    from pylog.monitor.server import Monitor, Pages
    from pylog.security.authorizer import Authorizer
    from pylog.server.audit_log_topic import AuditTopic
    from pylog.server.controller_listeners import ControllerListeners
    from pylog.server.connection_security import Guard
    from pylog.share.service import Sharing

log = logging.getLogger("pylog.broker")

DRAIN_MS_MAX = 5_000


def system_ms() -> int:
    """Return the wall-clock time in ms."""
    return time.time_ns() // 1_000_000


class Broker:
    """One node: its settings, its state, and all its parts."""

    def __init__(self, settings: Settings, now_ms: Callable[[], int] = system_ms, first=()):
        """now_ms: returns Unix time in ms. The other clock of control code is the event loop's
        time(), so a test that controls both can move all clocks. first: initial metadata records of
        a new cluster.
        """
        self.settings = settings
        self._first = first
        self.now_ms = now_ms
        self.node_id: int = settings["node.id"]
        self.grants = Grants()
        self.repeats = Repeats()
        self.io_pool = IoPool(min(settings["num.io.threads"], IO_THREADS_MAX))
        self.logs = LogManager(settings, self.io_pool, self.now_ms)
        self.metadata = metadata_of(
            settings, self.logs, self.node_id, self.now_ms, time.monotonic, first)
        self.membership: Membership | None = None  # Set by begin() if the controllers are remote.
        self.end_of_tick = EndOfTick()
        self.defer = self.end_of_tick.defer
        self.groups = GroupCoordinator(self)
        self.markers = Markers(self, self.groups)
        self.brokers = Brokers(self, self.markers)
        self.transactions = TransactionCoordinator(self, self.brokers.write)
        self.verification = Verification(
            self.transactions, self.brokers, self.logs, self.grants, settings, self.node_id)
        self._sharing: Sharing | None = None
        self.quotas = ClientQuotas(settings, time.monotonic_ns, self._user)
        self._guard: Guard | None = None
        self._authorizer = _authorizer_of(settings)
        self.throttles = self._new_throttles()  # None without other brokers.
        self.network = Network(settings, self.grants, self.io_pool, self.quotas.native,
                               needs_approval=self._authorizer is not None,
                               throttle=None if self.throttles is None else self.throttles.leading,
                               repeats=self.repeats)
        self.credentials = _credentials(settings, now_ms)  # For connections to other brokers.
        self._io_threads = settings["num.io.threads"]
        self.publisher = Publisher(
            self.node_id, self.metadata, self.logs, self.grants, self.quotas,
            [self.groups, self.transactions], self._apply_settings, self._apply_security)
        self.publisher.repeats = self.repeats
        self._publishing: asyncio.Task | None = None
        self._upkeep_tasks: list[asyncio.Task] = []
        self.monitor: Monitor | None = None  # As the next two, if metrics.listener is set.
        self._readiness: Readiness | None = None
        self._health: Health | None = None
        # The web console and the schema registry, if they are set up.
        self._children: list[SupervisedChild] = []
        self.broken = asyncio.Event()  # no disk is left to continue with

    @property
    def image(self) -> Image:
        """Return the cluster state that this broker has applied."""
        return self.metadata.image

    @property
    def cluster_id(self) -> str:
        return self.metadata.cluster_id

    @property
    def controller(self):
        """Return the active controller, or the client of a remote controller."""
        return self.metadata.controller if self.membership is None else self.membership.controller

    def install(self, topic: Topic) -> bool:
        """Make a topic available to the data plane. Return False while none of its logs is open."""
        logs = [self.logs.get(topic.name, index) for index in range(len(topic.partitions))]
        disk_failed = self.logs.any_offline(topic.name)
        if not any(logs) and not disk_failed and not self.settings.is_member:
            return False
        # In a cluster, a request to the wrong broker gets the right leader in the response.
        leaders = [(state.leader, state.leader_epoch) for state in topic.partitions] \
            if self.settings.is_member else None
        self.grants.install(topic.name, topic.id, logs, is_internal(topic.name), disk_failed,
                            leaders=leaders)
        return True

    def _name_nodes(self, image: Image) -> None:
        """Pass the other brokers' endpoints to the data plane."""
        self.grants.set_nodes(self.network.nodes(image))

    async def _start(self) -> None:
        """Open logs, metadata and listeners, and register. Raises StartError, OSError."""
        self.logs.open()
        meta_properties.complete_memberships([path for _, path in self.logs.disks.usable()])
        if self.settings.is_member:
            await self.metadata.join()
            assert self.throttles is not None
            self.throttles.take_settings()
        else:
            self.metadata.open(self._first)
        if self._authorizer is not None or any(
                listener.protocol in SASL_PROTOCOLS for listener in self.settings.all_listeners):
            self.guard().take(self.image.security)
        self.quotas.take(self.image.client_quotas)
        resolve_later(self.quotas)
        self._resize_io()
        self.network.open()
        if self.network.addresses:  # False if this node is only a controller.
            if self.settings.is_member:
                self.membership = self._member()
                self.publisher.replicas = self.membership.replicas
                self.publisher.membership = self.membership
                self.metadata.departures = self.membership.departures
                self.publisher.name_nodes = self._name_nodes
                self._name_nodes(self.image)
            else:
                self.metadata.register(self.network.addresses, self._first)

    def _member(self) -> Membership:
        # Imported here because a broker that is its own controller does not need it.
        from pylog.replication.membership import Membership

        assert self.throttles is not None
        return Membership(
            self.node_id, self.settings, self.metadata, self.logs, self.network.addresses,
            time.monotonic_ns, lambda number: (
                None if self._guard is None else self._guard.identities.principal(number)),
            self.credentials, self.throttles)

    def _new_throttles(self) -> Throttles | None:
        if not self.settings.is_member:
            return None
        # Imported here because a broker that is its own controller does not need it.
        from pylog.replication.throttles import Throttles

        return Throttles(self.settings, self.node_id, self.logs,
                         lambda: time.monotonic_ns() // 1_000_000)

    def _open_monitor(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer /livez and /readyz, long before the broker can serve clients. Raises StartError.
        """
        # Imported here: it adds 5 ms to startup, and not every broker exports metrics.
        from pylog.broker.readiness import Readiness
        from pylog.monitor.admission import KEYSTORE, TOKEN, Admission
        from pylog.monitor.health import Health
        from pylog.monitor.server import Monitor

        self._readiness = Readiness(
            self.settings, self.metadata, self.logs, self.network, lambda: self.membership)
        self._health = Health(self._readiness.checks(), self.now_ms, time.monotonic)
        monitor = Monitor(
            self.settings["metrics.listener"],
            Admission(self.settings[KEYSTORE], self.settings[TOKEN]), self._health,
            now_ms=self.now_ms, seconds=time.monotonic)
        monitor.open()
        monitor.start(loop)
        self.monitor = monitor

    def _pages(self, loop: asyncio.AbstractEventLoop) -> Pages:
        """Return the pages of the endpoint that show this broker's state."""
        # Imported here, as in _open_monitor().
        from pylog.monitor.cluster import ClusterView
        from pylog.monitor.collect import Collector
        from pylog.monitor.lag import GroupLags
        from pylog.monitor.server import Pages

        assert self.metadata.store is not None  # opened by open()
        groups = GroupLags(
            self.groups, self.logs, self.quotas, self.now_ms, time.monotonic, loop)
        cluster_view = ClusterView(
            self.metadata, self.settings, lambda: [] if self.membership is None else
            self.membership.leadership.led, time.monotonic_ns)
        return Pages(groups, Collector(
            groups, logs=self.logs, reactors=self.network.reactors, io_pool=self.io_pool,
            store=self.metadata.store,
            replicas=lambda: {} if self.membership is None else self.membership.replicas.stats(),
            shares=lambda: [] if self._sharing is None else self._sharing.samples(),
            audit_dropped=lambda: 0 if self._guard is None else self._guard.audit_dropped,
            cluster=cluster_view.samples, node_id=self.node_id, cluster_id=self.cluster_id,
            seconds=time.monotonic), cluster_view)

    async def _close_monitor(self) -> None:
        """Close the endpoint, as the last step: until then /readyz reports the shutdown."""
        if self.monitor is not None and self._health is not None:
            await self._health.close()
            await asyncio.get_running_loop().run_in_executor(None, self.monitor.stop)

    def _enter(self, phase: str) -> None:
        """Set the phase that /readyz reports, one of broker.readiness."""
        if self._readiness is not None:
            self._readiness.phase = phase

    def _apply_settings(self) -> list | None:
        """Apply changed settings to the composed parts. Blocks. Return the listeners' addresses if
        they changed, else None.
        """
        self._resize_io()
        if self.throttles is not None:
            self.throttles.take_settings()
        return self.network.addresses if self.network.apply() else None

    def guard(self) -> Guard:
        """Return the connection security, created on first use. Raises ConfigError, OSError."""
        if self._guard is None:
            # Imported here because not every broker authenticates clients.
            from pylog.server.connection_security import Guard

            self._guard = Guard(self.settings, self.metadata, self.grants, self.network,
                                self._authorizer, self.now_ms, self._audit_topic())
        return self._guard

    def _audit_topic(self) -> AuditTopic | None:
        """Return the audit log's topic, None if not configured. Raises ConfigError."""
        name = self.settings["audit.log.topic"]
        if not name:
            return None
        # Imported here because few brokers have one.
        from pylog.server.audit_log_topic import AuditTopic

        return AuditTopic(name, self, self.brokers)

    def sharing(self) -> Sharing:
        """Return the share groups, created on first use. Call after begin()."""
        if self._sharing is None:
            # Imported here because not every broker has share groups.
            from pylog.share.service import Sharing

            self._sharing = Sharing(self, self.groups, self.brokers)
            self._sharing.start()
            self.publisher.add_coordinator(self._sharing)
        return self._sharing

    def _asker(self, context: RequestContext) -> Asker:
        # Imported here because few brokers use delegation tokens.
        from pylog.api.security.delegation_tokens import Asker
        from pylog.security import principals

        principal = principals.ANONYMOUS if self._guard is None \
            else self._guard.identities.principal(context.principal)
        name = self.network.listener_name(context.listener)
        return Asker(principal, next(listener.protocol for listener in self.settings.all_listeners
                                     if listener.name == name))

    def _authentication(self, context: RequestContext) -> AuthenticationApi | None:
        name = self.network.listener_name(context.listener)
        if any(listener.name == name and listener.protocol in SASL_PROTOCOLS
               for listener in self.settings.all_listeners):
            return self.guard().authentication
        return None

    def _user(self, number: int) -> str:
        """Return the user name that quotas use for a principal number."""
        return ANONYMOUS if self._guard is None else self._guard.identities.principal(number).name

    def _apply_security(self, security: dict, changed: frozenset) -> None:
        if self._guard is not None:
            self._guard.take(security, changed)

    def _resize_io(self) -> None:
        if self.settings["num.io.threads"] != self._io_threads:
            self._io_threads = self.settings["num.io.threads"]
            self.io_pool.resize(min(self._io_threads, IO_THREADS_MAX))

    async def begin(self) -> None:
        """Start, and serve on the running event loop until end(). Raises StartError, OSError."""
        loop = asyncio.get_running_loop()
        try:
            if self.settings["metrics.listener"]:
                self._open_monitor(loop)
            await self._start()
            self._start_children()
        except BaseException:
            # A failed start keeps the clean-shutdown marker.
            if self.settings.is_member:
                await self.metadata.leave()
            self.metadata.close()
            await self._close_monitor()
            raise
        reactors = self.network.reactors
        loop.add_reader(reactors.fileno(), RequestQueue(self._services()).drain)
        self._publishing = loop.create_task(self.publisher.run())
        self._publishing.add_done_callback(self._task_ended)
        assert self.metadata.store is not None  # opened by _start()
        self.groups.start(self.metadata.store)
        self.markers.start()
        self.transactions.start()
        if self._guard is not None:
            self._guard.start()
        reactors.set_slow(self.settings["slow.request.threshold.ms"])
        self.network.start()
        if self.monitor is not None:
            self.monitor.attach(self._pages(loop))
        upkeep = self._upkeep()
        self._upkeep_tasks.append(
            loop.create_task(supervisor.restarting("upkeep", upkeep.run)))
        if self.logs.recovering:
            self._upkeep_tasks.append(loop.create_task(
                supervisor.restarting("recovered partitions", upkeep.serve_recovered)))
        if self.settings.is_member:
            standing = self.metadata.start_election()
            if standing is not None:
                standing.add_done_callback(self._task_ended)
        elif self.settings.controller_listeners:
            self.metadata.controller.tend()
        if self.membership is not None:
            self.membership.begin()
        self._enter("running")

    def _start_children(self) -> None:
        """Start the processes of the web console and of the schema registry. Raises StartError."""
        # Imported here because few brokers have them.
        if self.settings["console.listener"]:
            from pylog.broker.console_process import ConsoleProcess

            self._children.append(ConsoleProcess(self.settings, self.network.addresses))
        if self.settings["schema.registry.listener"]:
            from pylog.broker.registry_process import RegistryProcess

            self._children.append(RegistryProcess(self.settings, self.network.addresses))
        for child in self._children:
            child.start()

    async def joined(self) -> None:
        """Wait until clients can use this broker. Raises StartError, after end()."""
        if self.membership is not None:
            try:
                await self.membership.joined()
            except BaseException:
                # A failed start keeps the clean-shutdown marker.
                await self.end()
                raise

    def _services(self) -> Services:
        """Return what the request pipeline uses."""
        api_services = self._api_services()
        return Services(
            self.network.reactors, registry.handlers(api_services), self.metadata, self.settings,
            self.quotas, self.grants, self.install, self.verification, self.end_of_tick,
            security=self.guard, access=api_services.access,
            forwarding=None if self.membership is None else self.membership.forwarding,
            controller_listeners=self._control(api_services)
            if self.settings.controller_listeners else None,
            connection_closed=self._connection_closed,
            isr_candidate=None if self.membership is None else self.membership.leadership.may_join)

    def _api_services(self) -> ApiServices:
        """Return what the handlers of the APIs use."""
        return ApiServices(
            self.settings, self.metadata, self.controller, self.logs, self.groups,
            self.transactions, self.verification, self.markers, self.quotas,
            self.network.listener_name, self.publisher.registered, self.node_id, self.now_ms,
            self.sharing, self.network.reactors.set_interest, self._asker,
            forward=None if self.membership is None else self.membership.forwarding.send,
            access=None if self._authorizer is None else self.guard().access,
            repeats=self.repeats, authentication=self._authentication)

    def _control(self, services: ApiServices) -> ControllerListeners:
        """Return the request handlers of controller listeners."""
        # Imported here because not every node has such listeners.
        from pylog.api import controller_registry
        from pylog.api.cluster import metadata_log
        from pylog.server.controller_listeners import ControllerListeners

        handlers = controller_registry.handlers(services._replace(
            asker=lambda context: self._asker(context)._replace(protocol=None)),
            metadata_log.Observers())
        return ControllerListeners(handlers, self.network.is_controllers, services.access,
                                   lambda: self.guard().identities,
                                   lambda: self.metadata.controller is not None)

    def _connection_closed(self, event: Closed) -> None:
        if self._guard is not None:
            self._guard.closed(event)
        if self._sharing is not None:
            self._sharing.closed(event.connection)
        if self.settings.controller_listeners and self.metadata.controller is not None:
            self.metadata.controller.connection_closed(event.connection)

    async def end(self, drain_ms: int = DRAIN_MS_MAX) -> None:
        """Shut down cleanly. Requests in flight have drain_ms to complete."""
        loop = asyncio.get_running_loop()
        reactors = self.network.reactors
        self._enter("stopping")
        if self.membership is not None:
            await self.membership.leave()
        for task in self._upkeep_tasks:
            task.cancel()
        for child in self._children:
            await child.stop()
        if self.monitor is not None:
            await loop.run_in_executor(None, self.monitor.detach)
        reactors.stop_accepting()
        if self._sharing is not None:
            await self._sharing.stop()
        await self.transactions.stop()
        await self.groups.stop()
        if self._guard is not None:
            await self._guard.stop()
        self.markers.close()
        self.brokers.close()
        await loop.run_in_executor(None, reactors.stop, drain_ms)
        loop.remove_reader(reactors.fileno())
        # Their blocking calls in threads must complete.
        await asyncio.gather(*self._upkeep_tasks, return_exceptions=True)
        if self.settings.is_member:
            # Before the publisher: decisions in progress wait for it.
            await self.metadata.leave()
        if self._publishing is not None:
            await self.publisher.stop(self._publishing)
        if self.membership is not None:
            await self.membership.stop_fetching()
            await self.membership.close()
        self.stop()
        await self._close_monitor()

    def _task_ended(self, task: asyncio.Task) -> None:
        """Stop the broker: without this task no decision takes effect, and requests would wait
        forever.
        """
        if task.cancelled():
            return
        failure = task.exception()
        if isinstance(failure, StartError):
            # Its message tells the user what to do. A traceback would hide that.
            log.critical("brokerd stops: %s", failure)
        else:
            log.critical("brokerd stops: the metadata can no longer be followed",
                         exc_info=failure)
        self.broken.set()

    def _upkeep(self) -> Upkeep:
        return Upkeep(
            settings=self.settings, logs=self.logs, grants=self.grants, network=self.network,
            metadata=self.metadata, membership=self.membership,
            controller=lambda: self.controller, now_ms=self.now_ms,
            serve_topic=self._serve_topic, topic_moved=self._topic_moved,
            refresh_rights=self._refresh_rights, broken=self.broken)

    def _serve_topic(self, name: str) -> None:
        """Lead or follow a topic's logs that were opened or replaced."""
        topic = self.image.topics.get(name)
        if self.membership is not None and topic is not None:
            self.membership.replicas.begin(self.image, topic)

    def _topic_moved(self, name: str) -> None:
        """Serve a topic from the logs that replaced others."""
        topic = self.image.topics.get(name)
        if topic is None:
            return
        self._serve_topic(name)
        self.install(topic)
        if self._sharing is not None:
            self._sharing.topic_changed(topic)

    def _refresh_rights(self) -> None:
        if self._authorizer is not None and self.guard().reauthorize():
            self.repeats.void()

    def stop(self) -> None:
        """Flush, and write the clean-shutdown marker. Call after the reactors have stopped."""
        self.metadata.close()
        self.logs.close()
        if self._guard is not None:
            self._guard.close()


def _authorizer_of(settings: Settings) -> Authorizer | None:
    """Return the configured authorizer, None without one. Raises ConfigError."""
    if not settings["authorizer.class.name"]:
        return None
    # Imported here because not every broker has an authorizer.
    from pylog.security.authorization.access import authorizer_of

    return authorizer_of(settings, time.monotonic_ns)


def _credentials(settings: Settings, now_ms: Callable[[], int]) -> Credentials | None:
    """Return the credentials for other brokers, None for plain text. Raises ConfigError."""
    if not settings.is_member or "broker" not in settings["process.roles"]:
        return None
    # Imported here because a broker that is its own controller does not need it.
    from pylog.peer import securing

    return securing.between_brokers(settings, now_ms)
