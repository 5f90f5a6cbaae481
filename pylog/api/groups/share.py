"""Share groups on the wire: ShareGroupHeartbeat (76), ShareGroupDescribe (77).

Owns: nothing.
Invariants: the response to a heartbeat is sent after its records are durable.
Source: KIP-932.
"""

from __future__ import annotations

from pylog.api.groups.describe_parts import in_parts
from pylog.coordinator.groups.share import heartbeat as share_heartbeat
from pylog.coordinator.groups.share.heartbeat import JOIN, LEAVE
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Iterator

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.coordinator.share.service import ShareCoordinator
    from pylog.metadata.service import MetadataService
    from pylog.protocol.errors import Error
    from pylog.share.group_config import GroupSettings
    from pylog.share.group_state_client import GroupStates

MEMBER_ID_CHARACTERS_MAX = 36


def is_member_id(member_id: str | None) -> bool:
    return member_id is not None and 0 < len(member_id) <= MEMBER_ID_CHARACTERS_MAX


class ShareGroupsApi:
    """Share groups, on the coordinator `groups`; states: of their share partitions."""

    def __init__(self, groups: GroupCoordinator, shares: ShareCoordinator, states: GroupStates,
                 group_settings: GroupSettings, metadata: MetadataService):
        self._groups = groups
        self._shares = shares
        self._states = states
        self._settings = group_settings
        self._metadata = metadata

    def handlers(self) -> dict[int, Handler]:
        return {
            api.SHARE_GROUP_HEARTBEAT: self.heartbeat,
            api.SHARE_GROUP_DESCRIBE: self.describe,
        }

    def heartbeat(self, context: RequestContext, request: Message) -> Message | DeferredResponse:
        """Add a member (epoch 0), extend its session, or remove it (epoch -1); return its epoch
        and, when it has changed, its assignment.

        Errors: INVALID_REQUEST, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH (the
        member must rejoin), GROUP_MAX_SIZE_REACHED, MESSAGE_TOO_LARGE (too many topics),
        UNSUPPORTED_VERSION (the cluster has no share groups), NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        def refusal(error: Error, text: str | None = None) -> Message:
            return messages.ShareGroupHeartbeatResponse(error_code=error, error_message=text)

        if not self._shares.is_enabled:
            return refusal(ErrorCode.UNSUPPORTED_VERSION)
        if not is_member_id(request.member_id):
            return refusal(ErrorCode.INVALID_REQUEST)
        fault = _heartbeat_fault(request)
        if fault is not None:
            return refusal(ErrorCode.INVALID_REQUEST, fault)
        image = self._metadata.image
        return self._groups.run(
            request.group_id, DeferredResponse(refusal), share_heartbeat.heartbeat, request,
            context.client_id or "", f"/{context.peer_host}", image.topics,
            self._settings.config_of(request.group_id), self._states)

    def describe(self, context: RequestContext, request: Message) -> Iterator[Message | None]:
        """Yield groups with their members and assignments.

        Errors per group: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS, UNSUPPORTED_VERSION.
        """
        return in_parts(messages.ShareGroupDescribeResponse,
                        map(self._described, request.group_ids),
                        request.include_authorized_operations)

    def _described(self, group_id: str) -> Message:
        row, error = None, ErrorCode.INVALID_GROUP_ID
        if not self._shares.is_enabled:
            error = ErrorCode.UNSUPPORTED_VERSION
        elif group_id:
            row, error = self._groups.query(
                group_id, share_heartbeat.described, group_id, self._metadata.image.topics_by_id)
        return row if row is not None else messages.ShareGroupDescribeResponse.DescribedGroup(
            group_id=group_id, error_code=error)


def _heartbeat_fault(request: Message) -> str | None:
    if not request.group_id:
        return "GroupId can't be empty."
    if request.rack_id is not None and not request.rack_id.strip():
        return "RackId can't be empty."
    if request.member_epoch == JOIN and not request.subscribed_topic_names:
        return "SubscribedTopicNames must be set in first request."
    if request.member_epoch < LEAVE:
        return "MemberEpoch is invalid."
    return None
