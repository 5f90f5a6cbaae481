"""Fetches of share group members, and acknowledgements: ShareFetch (78), ShareAcknowledge (79).

Owns: nothing.
Invariants: the response to an acknowledgement is sent when it is durable; a request with a
  different session epoch changes nothing; a client gets no records of topics that it may not read.
Source: KIP-932, KIP-1222 (renewal), KIP-1206 (how records are acquired).
"""

from __future__ import annotations

import asyncio

from pylog.api.groups.share import is_member_id
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.share.acknowledgement_types import RENEW
from pylog.share.in_flight import Wanted
from pylog.share.manager import WAIT_MS_MAX, Fetch, Row
from pylog.share.sessions import FINAL, INITIAL

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.api.cluster.cluster import Addresses
    from pylog.config import Settings
    from pylog.config.client_quotas import ClientQuotas
    from pylog.coordinator.share.service import ShareCoordinator
    from pylog.metadata.service import MetadataService
    from pylog.protocol.errors import Error
    from pylog.share.manager import SharePartitions
    from pylog.share.sessions import TopicIdPartition, Session
    from pylog.share.share_partition import Acknowledgements

RENEWS_SINCE = 2
EXACT = 1  # ShareAcquireMode: record_limit
_MOVED = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))


class ShareFetchApi:
    """may_read: (context, topic's name) -> True if the client may read it; None allows everything.
    watch: requests a notification when a connection closes.
    """

    def __init__(self, partitions: SharePartitions, shares: ShareCoordinator,
                 addresses: Addresses, metadata: MetadataService, settings: Settings,
                 watch: Callable[[int], object], quotas: ClientQuotas,
                 may_read: Callable[[RequestContext, str], bool] | None = None):
        self._partitions = partitions
        self._shares = shares
        self._addresses = addresses
        self._metadata = metadata
        self._settings = settings
        self._watch = watch
        self._quotas = quotas
        self._may_read = may_read

    def handlers(self) -> dict[int, Handler]:
        return {
            api.SHARE_FETCH: self.fetch,
            api.SHARE_ACKNOWLEDGE: self.acknowledge,
        }

    async def fetch(self, context: RequestContext, request: Message) -> Message:
        """Apply the request's acknowledgements, then acquire records for the member, waiting for
        some.

        Errors: INVALID_REQUEST, SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH,
        SHARE_SESSION_LIMIT_REACHED, UNSUPPORTED_VERSION (no share groups here). Per partition:
        UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
        TOPIC_AUTHORIZATION_FAILED, COORDINATOR_NOT_AVAILABLE; for acknowledgements those of
        acknowledge().
        """
        new = messages.ShareFetchResponse
        error = self._fault(request) or _renewal_fault(context, request)
        if error is not None:
            return new(error_code=error)
        group_id, member_id = request.group_id, request.member_id
        rows = _acknowledgements(request)
        session, error = self._session(context, request, bool(rows))
        if error == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            # Otherwise clients would retry in a busy loop.
            await asyncio.sleep(min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000)
        if session is None:
            return new(error_code=error)
        acknowledged = await self._acknowledged(
            context, group_id, member_id, rows, request, _renews(context, request))
        fetched: dict[TopicIdPartition, Row] = {}
        if request.share_session_epoch == FINAL:
            self._partitions.end_session(group_id, member_id)
        elif not _renews(context, request):
            fetched = await self._fetched(context, request, session)
        return self._response(context, group_id, session, fetched, acknowledged)

    async def acknowledge(self, context: RequestContext, request: Message) -> Message:
        """Acknowledge acquired records: accepted, released, rejected, or renewed.

        Errors: INVALID_REQUEST, SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH. Per
        partition: INVALID_RECORD_STATE (not acquired by this member), INVALID_REQUEST (invalid
        ranges or types), UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
        """
        new = messages.ShareAcknowledgeResponse
        error: Error | None = self._fault(request)
        if error is None:
            _, found = (None, ErrorCode.INVALID_SHARE_SESSION_EPOCH) \
                if request.share_session_epoch == INITIAL else self._partitions.sessions.find(
                    request.group_id, request.member_id, request.share_session_epoch)
            error = None if found == ErrorCode.NONE else found
        if error is not None:
            return new(error_code=error)
        rows = _acknowledgements(request)
        acknowledged = await self._acknowledged(
            context, request.group_id, request.member_id, rows, request,
            _renews(context, request))
        if request.share_session_epoch == FINAL:
            self._partitions.end_session(request.group_id, request.member_id)
        topics: dict[bytes, list[Any]] = {}
        moved: set[int] = set()
        for (topic_id, index), (code, text) in acknowledged.items():
            row = new.PartitionData(partition_index=index, error_code=code, error_message=text)
            row.current_leader = self._leader(new, (topic_id, index), code, moved)
            topics.setdefault(topic_id, []).append(row)
        return new(
            acquisition_lock_timeout_ms=self._partitions.settings.lock_ms(request.group_id),
            responses=[new.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=cells)
                       for topic_id, cells in topics.items()],
            node_endpoints=self._nodes(context, new, moved))

    # ---- sessions -------------------------------------------------------------------------------

    def _fault(self, request: Message) -> Error | None:
        if not self._shares.is_enabled:
            return ErrorCode.UNSUPPORTED_VERSION
        if request.group_id is None or not is_member_id(request.member_id):
            return ErrorCode.INVALID_REQUEST
        return None

    def _session(self, context: RequestContext, request: Message,
                 acknowledges: bool) -> tuple[Session | None, Error]:
        """Return (the session of a ShareFetch, NONE), or (None, the error). With a different
        session epoch nothing changes.
        """
        sessions, epoch = self._partitions.sessions, request.share_session_epoch
        group_id, member_id = request.group_id, request.member_id
        topic_partitions = [(bytes(topic.topic_id),
                             cell.partition_index) for topic in request.topics
                  for cell in topic.partitions]
        if epoch == INITIAL:
            if acknowledges:
                return None, ErrorCode.INVALID_REQUEST
            session = self._partitions.begin_session(
                group_id, member_id, topic_partitions, context.connection)
            if session is None:
                return None, ErrorCode.SHARE_SESSION_LIMIT_REACHED
            self._watch(context.connection)
            return session, ErrorCode.NONE
        session, error = sessions.find(group_id, member_id, epoch)
        if session is not None and epoch != FINAL:
            if not sessions.add(session, topic_partitions):
                # The client starts another session, if there is room.
                self._partitions.end_session(group_id, member_id)
                return None, ErrorCode.SHARE_SESSION_LIMIT_REACHED
            sessions.forget(session, ((bytes(topic.topic_id), index)
                                      for topic in request.forgotten_topics_data
                                      for index in topic.partitions))
        return session, error

    # ---- acknowledgements -----------------------------------------------------------------------

    async def _acknowledged(self, context: RequestContext, group_id: str, member_id: str,
                            rows: dict[TopicIdPartition, Acknowledgements], request: Message,
                            renews: bool) -> dict[TopicIdPartition, tuple[Error, str | None]]:
        """Return partition -> (NONE, None) or (error, message)."""
        kind_max = RENEW if context.api_version >= RENEWS_SINCE else RENEW - 1
        found: dict[TopicIdPartition, tuple[Error, str | None]] = {}
        requested = []
        for topic_partition, batches in rows.items():
            error = self._partition_fault(context, topic_partition)
            if error == ErrorCode.NONE and not _are_batches(batches, kind_max, renews):
                error = ErrorCode.INVALID_REQUEST
            if error == ErrorCode.NONE:
                requested.append(topic_partition)
            else:
                found[topic_partition] = error, None
        if len(requested) == 1:
            topic_partition, = requested
            found[topic_partition] = await self._partitions.acknowledge(
                group_id, member_id, topic_partition, rows[topic_partition])
        else:
            found.update(zip(requested, await asyncio.gather(*(self._partitions.acknowledge(
                group_id, member_id, topic_partition,
                rows[topic_partition]) for topic_partition in requested)), strict=True))
        return found

    def _partition_fault(self, context: RequestContext, topic_partition: TopicIdPartition) -> Error:
        """Return the error of a topic that does not exist or that the client may not read, else
        NONE.
        """
        topic = self._metadata.image.topics_by_id.get(topic_partition[0])
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self._may_read is not None and not self._may_read(context, topic.name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not 0 <= topic_partition[1] < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    # ---- fetches --------------------------------------------------------------------------------

    async def _fetched(self, context: RequestContext, request: Message,
                       session: Session) -> dict[TopicIdPartition, Row]:
        found: dict[TopicIdPartition, Row] = {}
        topic_partitions = []
        for topic_partition in session.partitions:
            error = self._partition_fault(context, topic_partition)
            if error == ErrorCode.NONE:
                topic_partitions.append(topic_partition)
            else:
                found[topic_partition] = Row(error)
        if not topic_partitions or request.max_records <= 0 or request.max_bytes <= 0:
            return found
        client_id = (context.client_id or "").encode()
        bytes_max = max(1, self._quotas.fetch_bytes_max(context.principal, client_id, min(
            request.max_bytes, self._settings["fetch.max.bytes"],
            self._settings["control.response.bytes.max"] // 2)))
        turn = request.share_session_epoch % len(topic_partitions)
        found.update(await self._partitions.fetch(Fetch(
            session, Wanted(
                request.member_id, request.max_records, max(1, request.batch_size),
                context.api_version >= RENEWS_SINCE and request.share_acquire_mode == EXACT),
            request.max_wait_ms, min(request.min_bytes, bytes_max), bytes_max),
            topic_partitions[turn:] + topic_partitions[:turn]))
        size = sum(len(row.acquired.records) for row in found.values())
        if size:
            # Send acquired records now, because their lock timeout runs; throttle the client
            # afterwards.
            context.throttle_ms = max(context.throttle_ms, self._quotas.charge_fetch(
                context.principal, client_id, size))
        return found

    def _response(self, context: RequestContext, group_id: str, session: Session,
                  fetched: dict[TopicIdPartition, Row],
                  acknowledged: dict[TopicIdPartition, tuple[Error, str | None]]) -> Message:
        new = messages.ShareFetchResponse
        topics: dict[bytes, list[Any]] = {}
        moved: set[int] = set()
        unreported = [key for key, is_due in list(session.partitions.items()) if is_due]
        for topic_partition in dict.fromkeys([*fetched, *acknowledged, *unreported]):
            row = fetched.get(topic_partition, Row(ErrorCode.NONE))
            is_included = session.includes(topic_partition, bool(row.acquired.rows), row.error)
            if not is_included and topic_partition not in acknowledged:
                continue
            cell = new.PartitionData(
                partition_index=topic_partition[1], error_code=row.error, error_message=row.text,
                records=row.acquired.records, acquired_records=[new.AcquiredRecords(
                    first_offset=part.first, last_offset=part.last, delivery_count=part.deliveries)
                    for part in row.acquired.rows])
            if topic_partition in acknowledged:
                cell.acknowledge_error_code, cell.acknowledge_error_message = \
                    acknowledged[topic_partition]
            error = row.error or cell.acknowledge_error_code
            cell.current_leader = self._leader(new, topic_partition, error, moved)
            topics.setdefault(topic_partition[0], []).append(cell)
        return new(
            acquisition_lock_timeout_ms=self._partitions.settings.lock_ms(group_id),
            responses=[new.ShareFetchableTopicResponse(topic_id=topic_id, partitions=cells)
                       for topic_id, cells in topics.items()],
            node_endpoints=self._nodes(context, new, moved))

    # ---- leaders elsewhere ----------------------------------------------------------------------

    def _leader(self, new: Any, topic_partition: TopicIdPartition, error: Error,
                moved: set[int]) -> Any:
        """Return the leader of a partition that is led by another broker, else empty fields."""
        topic = self._metadata.image.topics_by_id.get(topic_partition[0])
        if error not in _MOVED or topic is None or topic_partition[1] >= len(topic.partitions):
            return new.LeaderIdAndEpoch()
        state = topic.partitions[topic_partition[1]]
        moved.add(state.leader)
        return new.LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)

    def _nodes(self, context: RequestContext, new: Any, moved: set[int]) -> list[Any]:
        return [new.NodeEndpoint(node_id=id_, host=host, port=port, rack=rack)
                for id_, host, port, rack, _ in (self._addresses.of(context) if moved else ())
                if id_ in moved]


def _renews(context: RequestContext, request: Message) -> bool:
    return context.api_version >= RENEWS_SINCE and bool(request.is_renew_ack)


def _renewal_fault(context: RequestContext, request: Message) -> Error | None:
    """Return the error of a fetch with renewals that also requests records."""
    if _renews(context, request) and (request.max_bytes or request.min_bytes
                                      or request.max_records or request.max_wait_ms):
        return ErrorCode.INVALID_REQUEST
    return None


def _acknowledgements(request: Message) -> dict[TopicIdPartition, Acknowledgements]:
    return {(bytes(topic.topic_id), cell.partition_index): [
        (row.first_offset, row.last_offset, row.acknowledge_types)
        for row in cell.acknowledgement_batches]
        for topic in request.topics for cell in topic.partitions if cell.acknowledgement_batches}


def _are_batches(rows: Iterable[tuple[int, int, Any]], kind_max: int, renews: bool) -> bool:
    """Return True if the acknowledged ranges ascend and their types are allowed."""
    before = -1
    for first, last, types in rows:
        if first > last or first < before or not types \
                or len(types) not in (1, last - first + 1) \
                or min(types) < 0 or max(types) > kind_max or not renews and RENEW in types:
            return False
        before = last
    return True
