"""Reports the log directories of this broker's replicas to the controller.

Owns: the assignments that the controller does not have yet, the current request.
Invariants: only directories that this broker registered are reported, and LOST for replicas without
  files, because the controller treats any other as failed; one request is in flight, and a pause
  follows a failed one; assignments that the image already has are not sent.
Source: KIP-858 (AssignReplicasToDirs); Kafka's AssignmentsManager.
"""

from __future__ import annotations

import asyncio
import logging

from pylog import supervisor
from pylog.metadata.image.image import LOST
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from typing import Any

    from pylog.log.manager import LogManager
    from pylog.metadata.image.image import Topic
    from pylog.replication.channel import ControllerChannel

REPLICAS_MAX = 2000  # per request, as in Kafka
AGAIN_S = 0.5

log = logging.getLogger("pylog.replication")


class Assignments:
    """directory_ids: {path: id} of this broker's log directories."""

    def __init__(self, node_id: int, channel: ControllerChannel, logs: LogManager,
                 directory_ids: dict[str, bytes]):
        self._node_id = node_id
        self._channel = channel
        self._logs = logs
        self._ids = [directory_ids.get(path) for path in logs.paths]
        self._waiting: dict[tuple[bytes, int], bytes] = {}
        self._sending: asyncio.Task | None = None

    def check(self, topic: Topic) -> None:
        """Report the directories of a topic's replicas that differ from the image."""
        for index, state in enumerate(topic.partitions):
            if self._node_id not in state.replicas:
                self._waiting.pop((topic.id, index), None)
                continue
            own = self._own(topic, index)
            reported = state.directories[state.replicas.index(self._node_id)] \
                if state.directories else None
            if own is None or own == reported:
                # The image already has this assignment.
                self._waiting.pop((topic.id, index), None)
            else:
                self._waiting[topic.id, index] = own
        if self._waiting and self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(
                supervisor.reporting("directory assignments", self._run()))

    def _own(self, topic: Topic, index: int) -> bytes | None:
        """Return the registered directory id of a replica, LOST if another program removed its
        files, None without a log or without an id.
        """
        if self._logs.lacks_files(topic.name, index):
            return LOST
        if self._logs.get(topic.name, index) is None:
            return None
        return self._ids[self._logs.dir_index(topic.name, index)]

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)
                keys = list(self._waiting)[:REPLICAS_MAX]
                requested = {key: self._waiting[key] for key in keys}
                try:
                    is_accepted = await self._send(requested)
                except Exception:
                    # Without a retry, nothing would be sent until another topic changes.
                    supervisor.report("directory assignments",
                                      "the log directories could not be reported to the controller")
                    is_accepted = False
                if not is_accepted:
                    # Pause after a failed request.
                    await asyncio.sleep(AGAIN_S)
        finally:
            self._sending = None

    async def _send(self, requested: dict[tuple[bytes, int], bytes]) -> bool:
        """Send one request. Returns False if it must be repeated."""
        try:
            response = await self._channel.call(self._request(requested))
        except PeerError as error:
            log.warning("cannot report log directories to the controller; retrying", extra={
                "reason": str(error)})
            return False
        if response.error_code:
            if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
                self._channel.send_heartbeats()
            return False
        for key, id_ in requested.items():
            if self._waiting.get(key) == id_:
                # The rejected partition was deleted or moved off this broker.
                del self._waiting[key]
        return True

    def _request(self, requested: dict[tuple[bytes, int], bytes]) -> Any:
        new = messages.AssignReplicasToDirsRequest
        directories: dict[bytes, dict[bytes, list]] = {}
        for (topic_id, index), id_ in requested.items():
            directories.setdefault(id_, {}).setdefault(topic_id, []).append(
                new.PartitionData(partition_index=index))
        return new(
            broker_id=self._node_id, broker_epoch=self._channel.broker_epoch,
            directories=[new.DirectoryData(id=id_, topics=[
                new.TopicData(topic_id=topic_id, partitions=rows)
                for topic_id, rows in topics.items()]) for id_, topics in directories.items()])

    async def close(self) -> None:
        """Cancel the current request and send no more."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
