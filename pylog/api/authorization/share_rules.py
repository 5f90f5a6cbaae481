"""The authorization of the share group APIs.

Owns: nothing.
Invariants: as in api.authorization.rules.
Source: KafkaApis of Kafka 4.4, by its responses.
"""

from __future__ import annotations

from pylog.api.authorization import denied_responses
from pylog.api.authorization.response_edits import edited, with_rows
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.security.authorizer import DELETE, DESCRIBE, GROUP, READ, TOPIC

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message, Result
    from pylog.security.authorization.access import Access

HIDDEN_TEXT = "The group has topics that the client may not describe."


class ShareRights:
    """Checks clients' requests; other permissions are rows of the table in api.authorization.rules.
    """

    def __init__(self, access: Access):
        self._access = access

    def special(self) -> dict[int, Callable[[Handler, RequestContext, Message], Result]]:
        return {
            api.SHARE_GROUP_HEARTBEAT: self._heartbeat,
            api.SHARE_GROUP_DESCRIBE: self._describe,
            api.SHARE_FETCH: self._of_member,
            api.SHARE_ACKNOWLEDGE: self._of_member,
            api.DESCRIBE_SHARE_GROUP_OFFSETS: self._describe_offsets,
            api.ALTER_SHARE_GROUP_OFFSETS: self._alter_offsets,
            api.DELETE_SHARE_GROUP_OFFSETS: self._delete_offsets,
        }

    def _of_member(self, handle: Handler, context: RequestContext, request: Message) -> Result:
        """Require READ on the group; the handler checks the topics."""
        if self._access.may(context, READ, GROUP, request.group_id or ""):
            return handle(context, request)
        return denied_responses.whole(context, request, ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def _heartbeat(self, handle: Handler, context: RequestContext, request: Message) -> Result:
        """Require READ on the group, DESCRIBE on all subscribed topics."""
        if not self._access.may(context, READ, GROUP, request.group_id):
            return denied_responses.whole(context, request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for name in dict.fromkeys(request.subscribed_topic_names or ()):
            if not self._access.may(context, DESCRIBE, TOPIC, name):
                return messages.ShareGroupHeartbeatResponse(
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return handle(context, request)

    def _describe(self, handle: Handler, context: RequestContext,
                  request: Message) -> Iterator[Message | None]:
        """Require DESCRIBE on each group, and on its members' topics."""
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

    def _describe_offsets(self, handle: Handler, context: RequestContext,
                          request: Message) -> Result:
        """Require DESCRIBE on each group and topic. In requests for all topics, hidden ones are
        omitted.
        """
        new = messages.DescribeShareGroupOffsetsResponse
        refused = [new.DescribeShareGroupOffsetsResponseGroup(
            group_id=group.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            for group in request.groups
            if not self._access.may(context, DESCRIBE, GROUP, group.group_id)]
        names = {row.group_id for row in refused}
        request.groups = [group for group in request.groups if group.group_id not in names]
        hidden: dict[str, list[Any]] = {}
        for group in request.groups:
            for topic in list(group.topics or ()):
                if not self._access.may(context, DESCRIBE, TOPIC, topic.topic_name):
                    group.topics.remove(topic)
                    hidden.setdefault(group.group_id, []).append(_hidden(new, topic))

        def edit(part: Message) -> None:
            for row in part.groups:
                row.topics = [topic for topic in row.topics if self._access.may(
                    context, DESCRIBE, TOPIC, topic.topic_name)]
                if row.error_code == ErrorCode.NONE:
                    row.topics += hidden.get(row.group_id, ())

        return with_rows(edited(handle(context, request), edit), "groups", refused)

    def _alter_offsets(self, handle: Handler, context: RequestContext,
                       request: Message) -> Result:
        """Require READ on the group and on each topic."""
        new = messages.AlterShareGroupOffsetsResponse
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return self._change_offsets(
            READ, handle, context, request,
            lambda topic: new.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, partitions=[
                    new.AlterShareGroupOffsetsResponsePartition(
                        partition_index=cell.partition_index, error_code=error,
                        error_message=error.message) for cell in topic.partitions]))

    def _delete_offsets(self, handle: Handler, context: RequestContext,
                        request: Message) -> Result:
        """Require DELETE on the group, READ on each topic."""
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return self._change_offsets(
            DELETE, handle, context, request,
            lambda topic: messages.DeleteShareGroupOffsetsResponse.
            DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, error_code=error, error_message=error.message))

    def _change_offsets(self, operation: int, handle: Handler, context: RequestContext,
                        request: Message, row_of: Callable[[Any], Any]) -> Result:
        if not self._access.may(context, operation, GROUP, request.group_id):
            return denied_responses.whole(context, request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        allowed, rows = [], []
        for topic in request.topics:
            if self._access.may(context, READ, TOPIC, topic.topic_name):
                allowed.append(topic)
            else:
                rows.append(row_of(topic))
        request.topics = allowed
        return with_rows(handle(context, request), "responses", rows) if rows \
            else handle(context, request)


def _hidden(new: Any, topic: Any) -> Any:
    """Return the row of a topic that the client may not describe."""
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return new.DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name, partitions=[
            new.DescribeShareGroupOffsetsResponsePartition(
                partition_index=index, start_offset=-1, lag=-1, error_code=error,
                error_message=error.message) for index in topic.partitions])
