"""The metadata of a broker whose controllers are other nodes.

Owns: the copy of the metadata log, the task that follows the active controller.
Invariants: partitions are opened from an image that contains everything committed when the start
  began; the cluster's identity comes from the controllers and is never generated here; the broker
  leads nothing before this run's registration is in force. Until then the image's leader is the
  previous run. A power loss may have taken that run's last records, and the same epoch would give
  their offsets to other records.
Source: KIP-631, KIP-595; Kafka's BrokerServer.
"""

import asyncio
import logging

from pylog import supervisor
from pylog._native.log.log import LogError
from pylog.eventloop.threads import in_thread
from pylog.log.errors import StartError
from pylog.metadata import meta_properties
from pylog.metadata.image.image import MetadataError
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.fetcher import Observer
from pylog.metadata.log.local_log import limits_of
from pylog.metadata.log.replica_log import ObservedLog
from pylog.metadata.service import MetadataService, local_roles
from pylog.peer import securing
from pylog.peer.connection import Peer
from pylog.peer.controllers import Controllers, voters_of
from pylog.peer.errors import PeerError
from pylog.protocol import messages

ENDPOINT_CONTROLLERS = 2
DESCRIBE_VERSION = 1
ASK_AGAIN_S = 0.2

log = logging.getLogger("pylog.metadata")


class MemberMetadata(MetadataService):
    """MetadataService with remote controllers; join() replaces open()."""

    replicates = True
    _log: ObservedLog

    def __init__(self, settings, logs, node_id: int, now_ms):
        super().__init__(settings, logs, node_id, now_ms)
        self.credentials = securing.towards_controllers(settings, now_ms)
        # The controllers are other nodes.
        self.controller = None  # type: ignore[assignment]
        self.controllers = Controllers(voters_of(settings["controller.quorum.voters"]))
        self._following: asyncio.Task | None = None

    async def join(self) -> None:
        """Format or read the log directories, follow the controllers until the tail has everything
        committed so far, and open the partitions. Raises StartError.
        """
        wait_s = self._settings["initial.broker.registration.timeout.ms"] / 1000
        paths = [path for _, path in self._logs.disks.usable()]
        meta_properties.check_first(paths)
        try:
            async with asyncio.timeout(wait_s):
                new_cluster_id = None
                if not meta_properties.cluster_of(paths):
                    new_cluster_id = await self._query_cluster_id()
                store, clean, known = self._open_directories(new_cluster_id)
                observer = self._open_copy(store, clean, known)
                self._following = asyncio.get_running_loop().create_task(
                    supervisor.restarting("metadata observer", observer.run))
                await observer.caught_up.wait()
                await self._note_membership(self._log.last_epoch)
        except TimeoutError:
            raise StartError(f"no controller was reached within {wait_s:.0f} s: "
                             f"{self._queried_voters}") from None
        # The image now has everything committed; from here on the publisher applies records.
        self.tail.begin()
        try:
            self._take_newest()
            await in_thread(self._open_partitions, store, clean, known)
        except (MetadataError, LogError) as error:
            raise StartError(str(error)) from error

    async def _note_membership(self, epoch: int) -> None:
        """Store in each log directory that it belongs to this cluster. Raises StartError."""
        found = meta_properties.Membership(
            self.cluster_id, self._node_id,
            ",".join(self._settings["controller.quorum.voters"]), epoch)
        for _, path in self._logs.disks.usable():
            stored = meta_properties.membership_of(path)
            if stored == found:
                continue
            try:
                await in_thread(meta_properties.write_membership, path, found)
            except OSError as error:
                problem = f"{path}/{meta_properties.MEMBERSHIP} cannot be written: {error}"
                if stored is None or stored._replace(voters=found.voters, epoch=epoch) != found:
                    raise StartError(problem) from error
                # An older stored epoch is harmless: a full disk must not prevent the start.
                log.warning(problem)

    def _take_newest(self) -> None:
        super()._take_newest()
        broker = self.tail.newest.brokers.get(self._node_id)
        self._last_epoch = broker.epoch if broker is not None else None

    def local_roles(self, topic) -> list:
        # The broker must not lead under the previous run's epoch.
        broker = self.tail.published.brokers.get(self._node_id)
        may_lead = broker is not None and broker.epoch != self._last_epoch
        return local_roles(topic, self._node_id, self.replicates, may_lead)

    def _open_copy(self, store, clean: frozenset, known: dict) -> Observer:
        try:
            self._log = ObservedLog(
                self._logs.directories[0],
                known.pop(ObservedLog.KEY, None) if 0 in clean else None, self._now_ms,
                **limits_of(self._settings))
            self.tail = Tail(self._stored_image(store))
            self.tail.replay(self._log.read_committed(self.tail.newest.offset + 1))
        except (MetadataError, LogError, OSError, ValueError) as error:
            raise self._unreadable(error) from error
        return Observer(
            self._log, self.tail, self.controllers, node_id=self._node_id,
            cluster_id=self.cluster_id, directory_id=self.directories[0],
            settings=self._settings, credentials=self.credentials)

    async def _query_cluster_id(self) -> str:
        """Return the cluster id of any controller that answers; never generate one here."""
        while True:
            requested = self.controllers.next()
            try:
                peer = await Peer.connect(
                    requested.host, requested.port, f"broker-{self._node_id}",
                    credentials=self.credentials)
                try:
                    response = await peer.call(messages.DescribeClusterRequest(
                        endpoint_type=ENDPOINT_CONTROLLERS), DESCRIBE_VERSION)
                finally:
                    peer.close()
                if not response.error_code and response.cluster_id:
                    return response.cluster_id
            except PeerError as error:
                log.info("a controller does not respond", extra={"reason": str(error)})
            self.controllers.failed(requested.id)
            await asyncio.sleep(ASK_AGAIN_S)

    @property
    def _queried_voters(self) -> str:
        return ", ".join(f"{voter.host}:{voter.port}"
                         for voter in self.controllers.voters.values())

    def start_election(self) -> asyncio.Task | None:
        """Start the controller's task once the listeners accept connections, until leave(). A
        broker without the controller role has none.
        """
        return None

    def wake(self) -> None:
        """Check the quorum for new records now. Nothing to do here: the controller pushes to
        observers.
        """

    async def leave(self) -> None:
        """Stop following the controller; call before close()."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
