"""What the APIs of share groups ask the authorizer for.

Owns: nothing.
Called by: api.rights.
Invariants: (1) as api.rights.
Source: KafkaApis of Kafka 4.3, by its answers.
"""

from __future__ import annotations

from pylog.api import refusals
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.security.authorizer import DESCRIBE, GROUP, READ, TOPIC

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from pylog._native.reactor import RequestContext
    from pylog.api import Handler, Message, Result
    from pylog.security.access import Access

HIDDEN_TEXT = "The group has topics that the client may not describe."


class ShareRights:
    """On the requests of clients; other rights are rows of api.rights' table."""

    def __init__(self, access: Access):
        self._access = access

    def special(self) -> dict[int, Callable[[Handler, RequestContext, Message], Result]]:
        return {
            api.SHARE_GROUP_HEARTBEAT: self._heartbeat,
            api.SHARE_GROUP_DESCRIBE: self._describe,
            api.SHARE_FETCH: self._of_member,
            api.SHARE_ACKNOWLEDGE: self._of_member,
        }

    def _of_member(self, handle: Handler, context: RequestContext, request: Message) -> Result:
        """READ on the group; on topics it is the handler's affair."""
        if self._access.may(context, READ, GROUP, request.group_id or ""):
            return handle(context, request)
        return refusals.whole(context, request, ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def _heartbeat(self, handle: Handler, context: RequestContext, request: Message) -> Result:
        """READ on the group, DESCRIBE on all topics that are subscribed to."""
        if not self._access.may(context, READ, GROUP, request.group_id):
            return refusals.whole(context, request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for name in dict.fromkeys(request.subscribed_topic_names or ()):
            if not self._access.may(context, DESCRIBE, TOPIC, name):
                return messages.ShareGroupHeartbeatResponse(
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return handle(context, request)

    def _describe(self, handle: Handler, context: RequestContext,
                  request: Message) -> Iterator[Message | None]:
        """DESCRIBE on each group, and on the topics that its members have."""
        new = messages.ShareGroupDescribeResponse
        refused = [group_id for group_id in request.group_ids
                   if not self._access.may(context, DESCRIBE, GROUP, group_id)]
        request.group_ids = [name for name in request.group_ids if name not in set(refused)]
        yield new(groups=[new.DescribedGroup(
            group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            for group_id in refused])
        parts: Any = handle(context, request)
        for part in parts:
            if part is not None:
                self._hide_topics(context, part, request.include_authorized_operations)
            yield part

    def _hide_topics(self, context: RequestContext, part: Message, operations: bool) -> None:
        for number, row in enumerate(part.groups):
            names = {cell.topic_name for member in row.members
                     for cell in member.assignment.topic_partitions}
            if not all(self._access.may(context, DESCRIBE, TOPIC, name) for name in sorted(names)):
                part.groups[number] = type(row)(
                    group_id=row.group_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    error_message=HIDDEN_TEXT)
            elif operations and row.error_code == ErrorCode.NONE:
                row.authorized_operations = self._access.operations(context, GROUP, row.group_id)
