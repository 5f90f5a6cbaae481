"""Partitions of existing topics: CreatePartitions (37), ElectLeaders (43),
AlterPartitionReassignments (45), ListPartitionReassignments (46).

Owns: nothing.
Invariants: a successful result is sent after the records are on disk and the logs are updated.
Source: KIP-195, KIP-460, KIP-455, KIP-860; responses as in Kafka 4.4.
"""

from __future__ import annotations

from pylog.metadata.controller.partitions import reassignments
from pylog.metadata.controller.partitions.partition_change import PREFERRED, UNCLEAN
from pylog.metadata.controller.partitions.partitions import Outcome
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.config.client_quotas import ClientQuotas
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.service import MetadataService

STRICT_QUOTA_VERSION = 3   # KIP-599


class PartitionsApi:
    """Changes of topics' partitions, decided by `controller`."""

    def __init__(self, controller: ActiveController, metadata: MetadataService, quotas:
                 ClientQuotas):
        self._controller = controller
        self._metadata = metadata
        self._quotas = quotas

    def handlers(self) -> dict[int, Handler]:
        return {
            api.CREATE_PARTITIONS: self.create_partitions,
            api.ELECT_LEADERS: self.elect_leaders,
            api.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
            api.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
        }

    async def create_partitions(self, context: RequestContext, request: Message) -> Message:
        """Increase topics' partition counts; one result per topic (KIP-195).

        Errors: REQUEST_TIMED_OUT without any change if timeout_ms <= 0; INVALID_PARTITIONS,
        INVALID_REPLICA_ASSIGNMENT, UNKNOWN_TOPIC_OR_PARTITION, THROTTLING_QUOTA_EXCEEDED from
        version 3 (KIP-599).
        """
        new = messages.CreatePartitionsResponse.CreatePartitionsTopicResult
        if request.timeout_ms <= 0:
            return messages.CreatePartitionsResponse(results=[
                new(name=name, error_code=ErrorCode.REQUEST_TIMED_OUT)
                for name in dict.fromkeys(topic.name for topic in request.topics)])
        mutations = self._quotas.mutations(
            context.principal, context.client_id, context.api_version >= STRICT_QUOTA_VERSION)
        results = await self._controller.create_partitions(request, mutations)
        if mutations is not None:
            context.throttle_ms = max(context.throttle_ms, mutations.throttle_ms())
        return messages.CreatePartitionsResponse(results=[
            new(name=name, error_code=outcome.error, error_message=outcome.message)
            for name, outcome in results])

    async def elect_leaders(self, context: RequestContext, request: Message) -> Message:
        """Elect leaders of the requested partitions, or of all (KIP-460).

        Errors: REQUEST_TIMED_OUT if timeout_ms <= 0; INVALID_REQUEST for an unknown election type.
        Per partition ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        ELIGIBLE_LEADERS_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION.
        """
        response = messages.ElectLeadersResponse
        election = request.election_type
        topics = None if request.topic_partitions is None else [
            (entry.topic, entry.partitions) for entry in request.topic_partitions]
        if request.timeout_ms <= 0 and topics:
            results = _timed_out(topics)
            # Version 0 has no top-level error.
            fault = ErrorCode.REQUEST_TIMED_OUT if context.api_version else ErrorCode.NONE
        elif topics != [] and election not in (PREFERRED, UNCLEAN):
            fault, text = ErrorCode.INVALID_REQUEST, f"Unknown election type {election}"
            results = [(name, [(index, Outcome(fault, text)) for index in indexes])
                       for name, indexes in topics or ()]
        else:
            fault = ErrorCode.NONE
            results = await self._controller.elect_leaders(election, topics)
        return response(error_code=fault, replica_election_results=[
            response.ReplicaElectionResult(topic=name, partition_result=[
                response.PartitionResult(partition_id=index, error_code=outcome.error,
                                         error_message=outcome.message)
                for index, outcome in outcomes])
            for name, outcomes in results])

    async def alter_partition_reassignments(
            self, context: RequestContext, request: Message) -> Message:
        """Start moving partitions to other brokers; null replicas cancel a move (KIP-455).

        Errors: REQUEST_TIMED_OUT if timeout_ms <= 0. Per partition INVALID_REPLICA_ASSIGNMENT,
        NO_REASSIGNMENT_IN_PROGRESS, UNKNOWN_TOPIC_OR_PARTITION.
        """
        response = messages.AlterPartitionReassignmentsResponse
        if not request.topics:
            return response(allow_replication_factor_change=True, error_message="")
        if request.timeout_ms <= 0:
            fault, results = ErrorCode.REQUEST_TIMED_OUT, _timed_out(
                (topic.name, [partition.partition_index for partition in topic.partitions])
                for topic in request.topics)
        else:
            fault, results = ErrorCode.NONE, await self._controller.alter_reassignments(request)
        return response(
            error_code=fault,
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None, responses=[
                response.ReassignableTopicResponse(name=name, partitions=[
                    response.ReassignablePartitionResponse(
                        partition_index=index, error_code=outcome.error,
                        error_message=outcome.message)
                    for index, outcome in outcomes])
                for name, outcomes in results])

    def list_partition_reassignments(self, context: RequestContext, request: Message) -> Message:
        """Return the requested partitions with a reassignment in progress, or all (KIP-455)."""
        response = messages.ListPartitionReassignmentsResponse
        topics = None if request.topics is None else [
            (topic.name, topic.partition_indexes) for topic in request.topics]
        return response(error_message=None, topics=[
            response.OngoingTopicReassignment(name=name, partitions=[
                response.OngoingPartitionReassignment(
                    partition_index=index, replicas=list(state.replicas),
                    adding_replicas=list(state.adding_replicas),
                    removing_replicas=list(state.removing_replicas))
                for index, state in moving])
            for name, moving in reassignments.under_way(self._metadata.image, topics)])


def _timed_out(topics) -> list:
    """Return results for a request without time: nothing is started. topics: (name, partition
    indexes) pairs.
    """
    outcome = Outcome(ErrorCode.REQUEST_TIMED_OUT)
    return [(name, [(index, outcome) for index in indexes]) for name, indexes in topics]
