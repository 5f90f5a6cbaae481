"""Groups of KIP-848 on the wire: ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69).

Owns: nothing.
Invariants: without group.version 1, or with the protocol disabled, each request fails with
  UNSUPPORTED_VERSION; a member's expressions match only topics that it may describe.
Source: KIP-848; KIP-1071 has separate requests.
"""

from __future__ import annotations

from pylog._native.server.heartbeat_cache import Repeat
from pylog.api.groups.describe_parts import PART_ROWS, in_parts
from pylog.coordinator.groups import describe as group_describe
from pylog.coordinator.groups.consumer import heartbeat
from pylog.coordinator.groups.state.classic_group import CONSUMER
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.security.authorizer import DESCRIBE, TOPIC

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Iterator

    from pylog._native.server.heartbeat_cache import Repeats
    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.config import Settings
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.metadata.service import MetadataService
    from pylog.security.authorization.access import Access

FEATURE = "group.version"


class ConsumerGroupsApi:
    """Groups of the new protocol, on the coordinator `groups`. access: None allows everything.
    repeats: cache of heartbeat responses; None: no cache.
    """

    def __init__(self, groups: GroupCoordinator, metadata: MetadataService, settings: Settings,
                 access: Access | None, repeats: Repeats | None = None):
        self._groups = groups
        self._metadata = metadata
        self._access = access
        # With an audit log, every request must reach the handler.
        self._repeats = None if access is not None and access.is_audited else repeats
        self._is_on = CONSUMER in settings["group.coordinator.rebalance.protocols"]

    def handlers(self) -> dict[int, Handler]:
        return {
            api.CONSUMER_GROUP_HEARTBEAT: self.consumer_group_heartbeat,
            api.CONSUMER_GROUP_DESCRIBE: self.consumer_group_describe,
        }

    def _is_served(self) -> bool:
        return self._is_on and self._metadata.image.features.get(FEATURE, 0) > 0

    def consumer_group_heartbeat(self, context: RequestContext,
                                 request: Message) -> Message | DeferredResponse:
        """Return the member's epoch and, when it has changed or is requested, its assignment.

        Errors: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION,
        GROUP_MAX_SIZE_REACHED, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
        FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        if not self._is_served():
            return heartbeat.refusal(ErrorCode.UNSUPPORTED_VERSION)
        sees = None if self._access is None else self._access.seen_by(context, DESCRIBE, TOPIC)
        repeat = None if self._repeats is None else Repeat(self._repeats)
        client = heartbeat.Client(
            context.client_id or "", f"/{context.peer_host}", sees, repeat)
        pending = self._groups.run(
            request.group_id, DeferredResponse(heartbeat.refusal), heartbeat.heartbeat,
            request,
            context.api_version, client)
        if repeat is not None and repeat.is_offered:
            context.repeat = repeat
        return pending

    def consumer_group_describe(self, context: RequestContext,
                                request: Message) -> Iterator[Message | None]:
        """Yield the groups with epochs and members, in parts.

        Errors: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS
        per group.
        """
        served = self._is_served()

        def groups() -> Iterator[Message]:
            for group_id in request.group_ids:
                yield from self._described(group_id) if served else (
                    group_describe.refused_consumers(group_id, ErrorCode.UNSUPPORTED_VERSION),)

        return in_parts(messages.ConsumerGroupDescribeResponse, groups(),
                        request.include_authorized_operations)

    def _described(self, group_id: str) -> Iterator[Message]:
        """Return the rows of one group, at most PART_ROWS members each, or one row with an error.
        """
        if not group_id:
            return iter((group_describe.refused_consumers(group_id, ErrorCode.INVALID_GROUP_ID),))
        found, error = self._groups.query(
            group_id, group_describe.described_consumers, group_id, PART_ROWS)
        return found or iter((group_describe.refused_consumers(group_id, error),))
