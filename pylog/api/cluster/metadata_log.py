"""The metadata log for observers: Fetch (1), FetchSnapshot (59) of `__cluster_metadata`.

Owns: the state of the observers, for DescribeQuorum.
Invariants: nothing above the high watermark is sent; an observer behind the log's start is directed
  to the newest snapshot, an observer with diverging records to the point of divergence; the fetch
  of an up-to-date observer waits for new records or for its timeout; silent observers are removed,
  and there are at most OBSERVERS_MAX.
Source: KIP-595, KIP-630, KIP-1166 (the observer's high watermark); Kafka's KafkaRaftClient.
"""

from __future__ import annotations

from collections import namedtuple

from pylog._native.log.log import LogError
from pylog.eventloop.threads import in_thread
from pylog.metadata.image.state_store import METADATA_LOG_ID
from pylog.metadata.log.local_log import TOPIC
from pylog.metadata.log.metadata_log import NotController
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.metadata.service import MetadataService

WITH_IDS = 13            # Versions of Fetch that name topics by their ids.
FETCH_WITH_ENDPOINTS, SNAPSHOT_WITH_ENDPOINTS = 16, 1
BYTES_MAX = 8 << 20  # of one response
WAIT_MS_MAX = 60_000
OBSERVERS_MAX = 1000
OBSERVER_MS_MAX = 300_000

Observer = namedtuple("Observer", (
    "id", "directory_id", "end_offset", "fetched_ms", "caught_up_ms"))
Observer.__doc__ = "An observer of the metadata log, as of its last fetch; wall clock."


class Observers:
    """The observers, by id and directory. Removes silent ones."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], Observer] = {}

    def report(self, id_: int, directory_id: bytes, offset: int, end: int, now_ms: int) -> None:
        """Record that an observer fetched from `offset` while the log ended at `end`."""
        if id_ < 0:
            return
        before = self._known.pop((id_, directory_id), None)
        caught_up_ms = now_ms if offset >= end else before.caught_up_ms if before else -1
        self._known[id_, directory_id] = Observer(id_, directory_id, offset, now_ms, caught_up_ms)
        if len(self._known) > OBSERVERS_MAX:
            del self._known[next(iter(self._known))]

    def now(self, now_ms: int) -> list[Observer]:
        """Return the observers with a recent fetch, by id."""
        for key, observer in list(self._known.items()):
            if now_ms - observer.fetched_ms > OBSERVER_MS_MAX:
                del self._known[key]
        return sorted(self._known.values())


class MetadataLogApi:
    """metadata: has the active controller, if it is on this node. now_ms: the wall clock."""

    def __init__(self, metadata: MetadataService, observers: Observers, node_id: int,
                 now_ms: Callable[[], int]):
        self._metadata = metadata
        self._observers = observers
        self._node_id = node_id
        self._now_ms = now_ms

    def handlers(self) -> dict[int, Handler]:
        return {api.FETCH: self.fetch, api.FETCH_SNAPSHOT: self.fetch_snapshot}

    async def fetch(self, context: RequestContext, request: Message) -> Message:
        """Return records of the metadata log from an offset on, or the offset to restart from.

        Errors for the whole response: INCONSISTENT_CLUSTER_ID, INVALID_REQUEST. For the partition:
        NOT_LEADER_OR_FOLLOWER without the active controller, FENCED_LEADER_EPOCH and
        UNKNOWN_LEADER_EPOCH with the right epoch, INVALID_REQUEST.
        """
        response = messages.FetchResponse
        fault = self._fault(request, context.api_version)
        if fault != ErrorCode.NONE:
            return response(error_code=fault, responses=[])
        topic = request.topics[0]
        requested = topic.partitions[0]
        end = self._metadata.tail.newest.offset + 1
        self._report_observer(request, requested, end)
        row = await self._read(context, request, requested)
        answer = response(error_code=ErrorCode.NONE, session_id=0, responses=[
            response.FetchableTopicResponse(
                topic=topic.topic, topic_id=topic.topic_id, partitions=[row])])
        if row.current_leader.leader_id >= 0 and context.api_version >= FETCH_WITH_ENDPOINTS:
            answer.node_endpoints = [response.NodeEndpoint(
                node_id=row.current_leader.leader_id, host=context.local_host,
                port=context.local_port)]
        return answer

    def _fault(self, request, version: int) -> int:
        if not self._is_own(request.cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        topics = request.topics
        if len(topics) != 1 or len(topics[0].partitions) != 1 \
                or topics[0].partitions[0].partition != 0:
            return ErrorCode.INVALID_REQUEST
        is_it = bytes(topics[0].topic_id) == METADATA_LOG_ID if version >= WITH_IDS \
            else topics[0].topic == TOPIC
        return ErrorCode.NONE if is_it else ErrorCode.INVALID_REQUEST

    def _is_own(self, cluster_id: str | None) -> bool:
        return cluster_id is None or cluster_id == self._metadata.cluster_id

    def _report_observer(self, request, requested, end: int) -> None:
        replica = request.replica_state.replica_id if request.replica_state is not None else -1
        replica = max(replica, request.replica_id)
        if replica != self._node_id:
            self._observers.report(
                replica, bytes(requested.replica_directory_id), requested.fetch_offset, end,
                self._now_ms())

    async def _read(self, context, request, requested) -> Message:
        """Return the partition's row of a FetchResponse."""
        try:
            controller = self._controller()
            fault = _epoch_fault(requested.current_leader_epoch, controller.epoch)
            if fault == ErrorCode.NONE and min(
                    requested.fetch_offset, requested.last_fetched_epoch, request.max_wait_ms) < 0:
                fault = ErrorCode.INVALID_REQUEST
            if fault != ErrorCode.NONE:
                return self._row(controller, fault)
            row = self._elsewhere(controller, requested)
            if row is not None:
                return row
            requested_high_watermark = requested.high_watermark
            end = self._metadata.tail.newest.offset + 1
            if requested.fetch_offset >= end and not requested_high_watermark < end:
                # An up-to-date observer waits for new records.
                await controller.committed_beyond(
                    requested.fetch_offset, min(request.max_wait_ms, WAIT_MS_MAX) / 1000)
                self._controller()
            return await self._records(controller, requested, min(request.max_bytes, BYTES_MAX))
        except LogError as error:
            return messages.FetchResponse.PartitionData(
                partition_index=0, high_watermark=-1, records=b"", error_code=(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code == ErrorCode.NOT_CONTROLLER
                    else ErrorCode.of(error.code)))

    def _controller(self):
        """Return the active controller. Raises NotController."""
        controller = self._metadata.controller
        if controller is None or not controller.is_active:
            raise NotController()
        return controller

    def _elsewhere(self, controller, requested) -> Message | None:
        """Return the response to an observer that cannot continue at its offset, None for others.
        Raises NotController if an observer has more records of this epoch than possible.
        """
        metadata_log, offset = controller.log, requested.fetch_offset
        epoch = requested.last_fetched_epoch
        if metadata_log.start_offset == 0 and offset == 0:
            return None
        response = messages.FetchResponse
        snapshot = metadata_log.snapshot_id
        if snapshot is not None and (
                offset < metadata_log.start_offset or epoch < snapshot[1]
                or offset == metadata_log.start_offset == snapshot[0] and epoch != snapshot[1]):
            return self._row(controller, ErrorCode.NONE, snapshot_id=response.SnapshotId(
                end_offset=snapshot[0], epoch=snapshot[1]))
        if snapshot is not None and (offset, epoch) == snapshot:
            return None
        known, end = metadata_log.end_for_epoch(epoch)
        if known == epoch and offset <= end:
            return None
        if known == controller.epoch and not metadata_log.is_whole:
            # Its own append, whose result it has not received yet, but the observer has.
            raise NotController()
        if known < 0:
            # An epoch that does not exist in this log: the newest one may be common.
            newest = self._metadata.tail.newest
            known, end = newest.epoch, newest.offset + 1
        return self._row(controller, ErrorCode.NONE, diverging_epoch=response.EpochEndOffset(
            epoch=known, end_offset=end))

    async def _records(self, controller, requested, bytes_max: int) -> Message:
        end, data = self._metadata.tail.newest.offset + 1, b""
        if requested.fetch_offset < end:
            # Read only below the high watermark.
            data = await in_thread(
                controller.log.read_range, requested.fetch_offset, end,
                max(1, min(bytes_max, requested.partition_max_bytes)))
        return self._row(controller, ErrorCode.NONE, records=data)

    def _row(self, controller, error: int, **fields) -> Message:
        response = messages.FetchResponse
        end = self._metadata.tail.newest.offset + 1
        return response.PartitionData(**{
            "partition_index": 0, "error_code": error, "high_watermark": -1 if error else end,
            "log_start_offset": controller.log.start_offset, "records": b"",
            "current_leader": response.LeaderIdAndEpoch(
                leader_id=self._node_id, leader_epoch=controller.epoch), **fields})

    async def fetch_snapshot(self, context: RequestContext, request: Message) -> Message:
        """Return bytes of the newest snapshot.

        Errors for the whole response: INCONSISTENT_CLUSTER_ID, INVALID_REQUEST; for the partition:
        SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE and the errors of fetch().
        """
        response = messages.FetchSnapshotResponse
        if not self._is_own(request.cluster_id):
            return response(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[])
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return response(error_code=ErrorCode.INVALID_REQUEST, topics=[])
        topic = request.topics[0]
        requested = topic.partitions[0]
        row = response.PartitionSnapshot(index=requested.partition, snapshot_id=(
            response.SnapshotId(end_offset=requested.snapshot_id.end_offset,
                                epoch=requested.snapshot_id.epoch)), unaligned_records=b"")
        endpoints = []
        if topic.name != TOPIC or requested.partition != 0:
            row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            row.error_code = await self._read_snapshot(row, requested, request.max_bytes)
            if row.current_leader.leader_id >= 0 \
                    and context.api_version >= SNAPSHOT_WITH_ENDPOINTS:
                endpoints = [response.NodeEndpoint(
                    node_id=self._node_id, host=context.local_host, port=context.local_port)]
        return response(error_code=ErrorCode.NONE, node_endpoints=endpoints, topics=[
            response.TopicSnapshot(name=topic.name, partitions=[row])])

    async def _read_snapshot(self, row, requested, bytes_max: int) -> int:
        """Fill the row. Returns the error code."""
        try:
            controller = self._controller()
        except NotController:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        row.current_leader = messages.FetchSnapshotResponse.LeaderIdAndEpoch(
            leader_id=self._node_id, leader_epoch=controller.epoch)
        fault = _epoch_fault(requested.current_leader_epoch, controller.epoch)
        if fault != ErrorCode.NONE:
            return fault
        if requested.position < 0:
            return ErrorCode.POSITION_OUT_OF_RANGE
        wanted = requested.snapshot_id.end_offset, requested.snapshot_id.epoch
        try:
            found = await in_thread(
                controller.log.snapshot_part, wanted, requested.position,
                max(1, min(bytes_max, BYTES_MAX)))
        except OSError:
            found = None
        if found is None:
            return ErrorCode.SNAPSHOT_NOT_FOUND
        row.size, row.unaligned_records = found
        row.position = requested.position
        return ErrorCode.NONE if requested.position < row.size else ErrorCode.POSITION_OUT_OF_RANGE


def _epoch_fault(requested: int, epoch: int) -> int:
    """Return the error of a request for an epoch; -1 matches any."""
    if requested < 0 or requested == epoch:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if requested < epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
