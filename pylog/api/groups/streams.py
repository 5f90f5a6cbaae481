"""Streams groups on the wire: StreamsGroupHeartbeat (88), StreamsGroupDescribe (89),
StreamsGroupTopologyDescriptionUpdate (93).

Owns: nothing.
Invariants: without streams.version 1, or with the protocol disabled, each request fails with
  UNSUPPORTED_VERSION; the response to a heartbeat is sent after its records are durable, and does
  not wait for internal topics.
Source: KIP-1071, KIP-1331 (descriptions of topologies).
"""

from __future__ import annotations

from pylog.api.groups.describe_parts import PART_ROWS, in_parts
from pylog.coordinator.groups.state.classic_group import STREAMS
from pylog.coordinator.groups.streams import (
    describe as streams_describe,
)
from pylog.coordinator.groups.streams import (
    heartbeat,
)
from pylog.coordinator.groups.streams import (
    topology as streams_topology,
)
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.metadata.controller.partitions.topics import topic_name_fault
from pylog.metadata.image.image import is_internal
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.security.authorizer import CLUSTER, CLUSTER_NAME, CREATE, TOPIC

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Iterator

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.api.groups.streams_topics import InternalTopics
    from pylog.config import Settings
    from pylog.config.client_quotas import ClientQuotas
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.coordinator.groups.streams.heartbeat import Result as HeartbeatResult
    from pylog.metadata.service import MetadataService
    from pylog.security.authorization.access import Access

FEATURE = "streams.version"
NOT_STORED = 1  # Status of a topology description.


def topology_fault(topology: Message) -> str | None:
    """Return the error of a topology with invalid topics, or None."""
    names = streams_topology.topics_of(topology)
    internal = [name for name in names if is_internal(name)]
    if internal:
        return (f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology "
                "is prohibited.")
    wrong = [name for name in names if topic_name_fault(name) is not None]
    return f"Topic names {','.join(wrong)} are not valid topic names." if wrong else None


class StreamsGroupsApi:
    """Streams groups, on the coordinator `groups`. access: None allows everything."""

    def __init__(self, groups: GroupCoordinator, metadata: MetadataService,
                 topics: InternalTopics, quotas: ClientQuotas, settings: Settings,
                 access: Access | None):
        self._groups = groups
        self._metadata = metadata
        self._topics = topics
        self._quotas = quotas
        self._access = access
        self._is_on = STREAMS in settings["group.coordinator.rebalance.protocols"]

    def handlers(self) -> dict[int, Handler]:
        return {
            api.STREAMS_GROUP_HEARTBEAT: self.heartbeat,
            api.STREAMS_GROUP_DESCRIBE: self.describe,
            api.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: self.update_topology_description,
        }

    def _is_served(self) -> bool:
        return self._is_on and self._metadata.image.features.get(FEATURE, 0) > 0

    def heartbeat(self, context: RequestContext, request: Message) -> Message | DeferredResponse:
        """Return the member's epoch, the group's status and, when they have changed, its tasks.
        Creates missing internal topics, if the client may.

        Errors: INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY, GROUP_MAX_SIZE_REACHED,
        GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID,
        FENCED_INSTANCE_ID, MESSAGE_TOO_LARGE,
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, UNSUPPORTED_VERSION.
        """
        if not self._is_served():
            return heartbeat.refusal(ErrorCode.UNSUPPORTED_VERSION)[0]
        fault = None if request.topology is None else topology_fault(request.topology)
        if fault is not None:
            return heartbeat.refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY, fault)[0]

        def shape(result: HeartbeatResult) -> Message:
            response, missing = result
            if missing:
                self._create(context, response, missing)
            return response

        client = heartbeat.Client(context.client_id or "", f"/{context.peer_host}",
                                       context.api_version)
        return self._groups.run(
            request.group_id, DeferredResponse(heartbeat.refusal, shape),
            heartbeat.heartbeat, request, client)

    def update_topology_description(self, context: RequestContext, request: Message) -> Message:
        """Reject the description of a topology. Like Kafka without a plug-in for them, brokerd
        stores none and requests none from members (KIP-1331).
        """
        return messages.StreamsGroupTopologyDescriptionUpdateResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            error_message="This broker does not store descriptions of topologies.")

    def _create(self, context: RequestContext, response: Message,
                missing: tuple[streams_topology.Missing, ...]) -> None:
        """Request internal topics; the response contains the reason if they cannot be created."""
        refused = [topic.name for topic in missing if not self._may_create(context, topic.name)]
        if refused:
            text = f"Unauthorized to CREATE on topics {', '.join(refused)}."
        else:
            text = self._topics.create(
                missing, 2 * response.heartbeat_interval_ms,
                self._quotas.mutations(context.principal, context.client_id, True))
        for status in response.status if text else ():
            if status.status_code == streams_topology.MISSING_INTERNAL:
                status.status_detail += f"; {text}"

    def _may_create(self, context: RequestContext, name: str) -> bool:
        access = self._access
        return access is None or access.may_besides(context, CREATE, CLUSTER, CLUSTER_NAME) \
            or access.may(context, CREATE, TOPIC, name)

    def describe(self, context: RequestContext, request: Message) -> Iterator[Message | None]:
        """Yield the groups with epochs, topology and members, in parts.

        Errors: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        UNSUPPORTED_VERSION per group.
        """
        served = self._is_served()

        def groups() -> Iterator[Message]:
            for group_id in request.group_ids:
                for group in self._described(group_id) if served else (
                        streams_describe.undescribed(group_id, ErrorCode.UNSUPPORTED_VERSION),):
                    if request.include_topology_description \
                            and group.error_code == ErrorCode.NONE:
                        group.topology_description_status = NOT_STORED
                    yield group

        return in_parts(messages.StreamsGroupDescribeResponse, groups(),
                        request.include_authorized_operations)

    def _described(self, group_id: str) -> Iterator[Message]:
        if not group_id:
            return iter((streams_describe.undescribed(group_id, ErrorCode.INVALID_GROUP_ID),))
        found, error = self._groups.query(
            group_id, heartbeat.described, group_id, PART_ROWS)
        return found or iter((streams_describe.undescribed(group_id, error),))
