"""This broker in a cluster: the parts that it needs if its controllers are other nodes.

Owns: the channel and its task, the parts that use them.
Invariants: a broker that is its own controller creates and imports none of this; a broker that
  stops completes the controlled shutdown before it closes anything.
Source: KIP-631; Kafka's BrokerServer.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial

from pylog import supervisor
from pylog.config import clusters
from pylog.log import replica_moves
from pylog.log.errors import StartError
from pylog.metadata.image.uuids import random_id
from pylog.peer.dial import dial
from pylog.protocol.errors import ErrorCode
from pylog.replication.assignments import Assignments
from pylog.replication.channel import ControllerChannel
from pylog.replication.departures import Departures
from pylog.replication.fetching import ReplicaFetchers
from pylog.replication.forwarding import Forwarding
from pylog.replication.leadership import Leadership
from pylog.replication.lifecycle import Lifecycle, Stage
from pylog.replication.registration import heartbeat, registration
from pylog.replication.remote_controller import RemoteController
from pylog.replication.replicas import Replicas

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.log.manager import LogManager
    from pylog.metadata.broker_service import MemberMetadata
    from pylog.peer.credentials import Credentials
    from pylog.replication.throttles import Throttles
    from pylog.security.principals import Principal

# If leadership is not handed over within this time, the broker stops as leader.
LEAVE_SECONDS = 300.0
TICK_SECONDS_MAX = 1.0

log = logging.getLogger("pylog.replication")


class Membership:
    """metadata: of this broker, after join(). addresses: [(listener, host, port)] as bound. now_ns:
    CLOCK_MONOTONIC, for the lag of followers. principal_of: see Forwarding. credentials: for
    connections to other brokers.
    """

    def __init__(self, node_id: int, settings: Any, metadata: MemberMetadata, logs: LogManager,
                 addresses: list, now_ns: Callable[[], int],
                 principal_of: Callable[[int], Principal | None],
                 credentials: Credentials | None, throttles: Throttles):
        self._node_id = node_id
        self._settings = settings
        self._metadata = metadata
        self._logs = logs
        self._addresses = addresses
        source = random.SystemRandom()
        self.lifecycle = Lifecycle(lambda: random_id(source), metadata.previous_epoch)
        self.channel = ControllerChannel(
            metadata.controllers, self.lifecycle, metadata.tail, node_id=node_id,
            settings=settings, credentials=metadata.credentials,
            registration=self._registration, heartbeat=self._heartbeat,
            is_ready=lambda: not logs.recovering, registered=self._registered)
        self.controller = RemoteController(
            self.channel, node_id, lambda offline: self.replicas.lose(metadata.image, offline))
        self.forwarding = Forwarding(self.channel, principal_of)
        self.departures = Departures(lambda: now_ns() / 1e9)
        self._fetchers = ReplicaFetchers(
            settings, node_id, lambda host, port: dial(host, port, now_ns, credentials),
            partial(replica_moves.cut, logs), self.departures, credentials, throttles.following)
        self.departures.refresh = self._fetchers.check_leaders
        self.leadership = Leadership(node_id, self.channel, settings, now_ns)
        self.assignments = Assignments(node_id, self.channel, logs, metadata.directory_ids)
        self.replicas = Replicas(node_id, logs, self.leadership, self._fetchers, self.assignments,
                                 throttles, settings.between_brokers, self.departures)
        self._tasks: list[asyncio.Task] = []
        self._catching_up: asyncio.Task | None = None

    def begin(self) -> None:
        """Register and start all tasks. The published image must be the one from which the
        partitions were opened.
        """
        image, loop = self._metadata.image, asyncio.get_running_loop()
        self.replicas.take_brokers(image)
        for topic in image.topics.values():
            self.replicas.begin(image, topic)
        self._tasks = [loop.create_task(supervisor.restarting(work, run)) for work, run in (
            ("broker heartbeats", self.channel.run), ("in-sync replicas", self._tick))]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(
                min(self._settings["replica.lag.time.max.ms"] / 2000, TICK_SECONDS_MAX))
            try:
                self.leadership.tick()
            except Exception:
                # Keep checking: lagging replicas would never leave an ISR otherwise.
                supervisor.report(
                    "in-sync replicas", "in-sync replicas could not be checked")

    def _registered(self, broker_epoch: int) -> None:
        self._metadata.wake()
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._catching_up = asyncio.get_running_loop().create_task(
            supervisor.restarting("registration", partial(self._fetch_as, broker_epoch)))

    async def _fetch_as(self, broker_epoch: int) -> None:
        """Start fetching with a new broker epoch once the registration, whose offset is the epoch,
        is in force.
        """
        await self._metadata.tail.wait(broker_epoch)
        self._fetchers.set_broker_epoch(broker_epoch)

    @property
    def is_unfenced(self) -> bool:
        """Return True if the last heartbeat's answer let this broker lead partitions."""
        return self.lifecycle.stage is Stage.RUNNING

    async def joined(self) -> None:
        """Return once the controller has unfenced this broker. Raises StartError."""
        wait_s = self._settings["initial.broker.registration.timeout.ms"] / 1000
        try:
            await asyncio.wait_for(self.channel.running.wait(), wait_s)
        except TimeoutError:
            refusal = self.lifecycle.refusal
            reason = ErrorCode.of(refusal).name if refusal else "it was not unfenced"
            raise StartError(
                f"the cluster did not accept this broker within {wait_s:.0f} s: {reason}") \
                from None

    async def register_again(self, addresses: list) -> None:
        """Register added or removed listeners; return once the image has them. addresses: as bound.
        """
        self._addresses = addresses
        wanted, tail = self._metadata.endpoints(addresses), self._metadata.tail
        self.lifecycle.amend()
        self.channel.send_heartbeats()
        while (own := tail.published.brokers.get(self._node_id)) is None \
                or [tuple(endpoint) for endpoint in own.endpoints] != wanted:
            await tail.wait(tail.published.offset + 1)

    async def cordon(self) -> None:
        """Report the cordoned directories; return once the image has them."""
        self.channel.send_heartbeats()
        metadata = self._metadata
        while not metadata.reports_cordons():
            await metadata.tail.wait(metadata.tail.published.offset + 1)

    def pause_moves(self) -> set[str]:
        """Stop fetching followed partitions that are about to switch to another directory. Returns
        their topics, to start again afterwards.
        """
        return self.replicas.pause(self._metadata.image, [
            (move.topic, move.partition) for move in self._logs.moves.all()
            if move.ready and not move.source.is_leader])

    async def leave(self) -> None:
        """Run the controlled shutdown, before anything is closed."""
        if self._tasks and self._settings["controlled.shutdown.enable"]:
            voters = self._settings["controller.quorum.voters"]
            # The etcds of this cluster's controllers need a majority; another quorum may not.
            needed = len(voters) // 2 + 1 if clusters.has_quorum(self._settings) \
                and not clusters.has_outer_quorum(self._settings) else 1
            await self.channel.leave(self._tasks[0], LEAVE_SECONDS, needed)

    async def close(self) -> None:
        """Stop all communication with the controller."""
        tasks = self._tasks if self._catching_up is None else [*self._tasks, self._catching_up]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.leadership.close()
        await self.assignments.close()
        self.channel.close()

    async def stop_fetching(self) -> None:
        """Stop the fetchers, before the logs are closed."""
        await self._fetchers.close()

    def _registration(self, wanted: Any) -> Any:
        metadata = self._metadata
        return registration(
            wanted, node_id=self._node_id, cluster_id=metadata.cluster_id,
            endpoints=metadata.endpoints(self._addresses), directories=metadata.directories,
            rack=self._settings["broker.rack"])

    def _heartbeat(self, wanted: Any) -> Any:
        metadata = self._metadata
        return heartbeat(
            wanted, metadata.image, node_id=self._node_id, cordoned_directories=metadata.cordoned,
            offline_directories=[
                id_ for path, id_ in metadata.directory_ids.items()
                if not self._logs.disks.online(self._logs.paths.index(path))])
