"""This broker as one of several: what a broker has besides when its controller is elsewhere.

Owns: the channel and its task, the parts that are built on them.
Called by: broker.
Invariants: (1) nothing here exists, or is imported, in a broker that is its own controller; (2) a
  broker that stops is let go by the controller before it closes anything.
Source: KIP-631; Kafka's BrokerServer.
"""

from __future__ import annotations

import asyncio
import random

from pylog.log.errors import StartError
from pylog.metadata.controller import random_id
from pylog.protocol.errors import ErrorCode
from pylog.replication.channel import ControllerChannel
from pylog.replication.forwarding import Forwarding
from pylog.replication.lifecycle import Lifecycle
from pylog.replication.registration import heartbeat, registration
from pylog.replication.remote_controller import RemoteController

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from typing import Any

    from pylog.log.manager import LogManager
    from pylog.metadata.member import MemberMetadata

# Leaderships are handed over within this, or the broker stops with them.
LEAVE_SECONDS = 300.0


class Membership:
    """metadata: of this broker, joined already. addresses: [(listener, host, port)] as bound."""

    def __init__(self, node_id: int, settings: Any, metadata: MemberMetadata, logs: LogManager,
                 addresses: list):
        self._node_id = node_id
        self._settings = settings
        self._metadata = metadata
        self._logs = logs
        self._addresses = addresses
        source = random.SystemRandom()
        self.lifecycle = Lifecycle(lambda: random_id(source), metadata.previous_epoch)
        self.channel = ControllerChannel(
            metadata.controllers, self.lifecycle, metadata.tail, node_id=node_id,
            settings=settings, registration=self._registration, heartbeat=self._heartbeat,
            is_ready=lambda: not logs.recovering)
        self.controller = RemoteController(self.channel, node_id)
        self.forwarding = Forwarding(self.channel)
        self._beating: asyncio.Task | None = None

    def begin(self) -> None:
        """Registers, and is a member from then on."""
        self._beating = asyncio.get_running_loop().create_task(self.channel.run())

    async def joined(self) -> None:
        """Returns once the controller has unfenced this broker. Raises StartError."""
        wait_s = self._settings["initial.broker.registration.timeout.ms"] / 1000
        try:
            await asyncio.wait_for(self.channel.running.wait(), wait_s)
        except TimeoutError:
            refusal = self.lifecycle.refusal
            reason = ErrorCode.of(refusal).name if refusal else "it was not unfenced"
            raise StartError(
                f"the cluster did not take this broker in within {wait_s:.0f} s: {reason}") \
                from None

    async def leave(self) -> None:
        """Keeps (2)."""
        if self._beating is not None and self._settings["controlled.shutdown.enable"]:
            await self.channel.leave(self._beating, LEAVE_SECONDS)

    async def close(self) -> None:
        """Speaks to the controller no more."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        self.channel.close()

    def _registration(self, wanted: Any) -> Any:
        metadata = self._metadata
        return registration(
            wanted, metadata.image, node_id=self._node_id, cluster_id=metadata.cluster_id,
            endpoints=metadata.endpoints(self._addresses), directories=metadata.directories,
            rack=self._settings["broker.rack"])

    def _heartbeat(self, wanted: Any) -> Any:
        return heartbeat(wanted, node_id=self._node_id, offline_directories=[
            id_ for path, id_ in self._metadata.directory_ids.items()
            if not self._logs.disks.online(self._logs.paths.index(path))])
