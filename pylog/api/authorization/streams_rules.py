"""The authorization of the Streams group APIs.

Owns: nothing.
Invariants: as in api.authorization.rules.
Source: KafkaApis of Kafka 4.4, by its responses.
"""

from __future__ import annotations

from pylog.api.authorization import denied_responses
from pylog.api.authorization.response_edits import edited, with_rows
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.security.authorizer import DESCRIBE, GROUP, READ, TOPIC

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message, Result
    from pylog.security.authorization.access import Access

HIDDEN_TEXT = "The described group uses topics that the client is not authorized to describe."


class StreamsRights:
    """Checks clients' requests. The handler checks CREATE for internal topics."""

    def __init__(self, access: Access):
        self._access = access

    def special(self) -> dict[int, Callable[[Handler, RequestContext, Message], Result]]:
        return {
            api.STREAMS_GROUP_HEARTBEAT: self._heartbeat,
            api.STREAMS_GROUP_DESCRIBE: self._describe,
        }

    def _heartbeat(self, handle: Handler, context: RequestContext, request: Message) -> Result:
        """Require READ on the group, DESCRIBE on all topics of the topology."""
        # Imported here: few brokers have Streams groups.
        from pylog.api.groups.streams import topology_fault
        from pylog.coordinator.groups.streams import topology as streams_topology

        if not self._access.may(context, READ, GROUP, request.group_id):
            return denied_responses.whole(context, request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        topology = request.topology
        if topology is not None and topology_fault(topology) is None and not all(
                self._access.may(context, DESCRIBE, TOPIC, name)
                for name in streams_topology.topics_of(topology)):
            return denied_responses.whole(context, request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return handle(context, request)

    def _describe(self, handle: Handler, context: RequestContext, request: Message) -> Result:
        """Require DESCRIBE on each group, and on the topics of its topology."""
        new = messages.StreamsGroupDescribeResponse
        refused = [group_id for group_id in request.group_ids
                   if not self._access.may(context, DESCRIBE, GROUP, group_id)]
        request.group_ids = [name for name in request.group_ids if name not in set(refused)]

        def edit(part: Message) -> None:
            for number, row in enumerate(part.groups):
                if row.topology is not None and not self._sees(context, row.topology):
                    part.groups[number] = new.DescribedGroup(
                        group_id=row.group_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                        error_message=HIDDEN_TEXT)
                elif request.include_authorized_operations and row.error_code == ErrorCode.NONE:
                    row.authorized_operations = self._access.operations(
                        context, GROUP, row.group_id)

        return with_rows(edited(handle(context, request), edit), "groups", [
            new.DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            for group_id in refused])

    def _sees(self, context: RequestContext, topology: Any) -> bool:
        from pylog.coordinator.groups.streams import topology as streams_topology

        return all(self._access.may(context, DESCRIBE, TOPIC, name)
                   for name in streams_topology.topics_of(topology))
