"""Requests of brokers and tools to the active controller on its own listener: BrokerRegistration
(62), BrokerHeartbeat (63), UnregisterBroker (64), AlterPartition (56), AllocateProducerIds (67),
AssignReplicasToDirs (73); and other families' requests that controllers serve.

Owns: nothing.
Invariants: a node that is not the active controller responds with NOT_CONTROLLER in the API's own
  format.
Source: KIP-631, KIP-497, KIP-858, KIP-730, KIP-919; responses as in Kafka 4.4.
"""

from __future__ import annotations

import types

from pylog._native.log.log import LogError
from pylog.metadata.log.metadata_log import NOT_CONTROLLER, NotController
from pylog.protocol import api, messages

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message, Result
    from pylog.metadata.service import MetadataService


class LocalController:
    """The active controller for handlers; raises NotController while another node is active."""

    def __init__(self, metadata: MetadataService):
        self._metadata = metadata

    def __getattr__(self, name: str) -> Any:
        controller = self._metadata.controller
        if controller is None or not controller.is_active:
            raise NotController()
        return getattr(controller, name)


class ControllerApi:
    """The requests of brokers. watch: requests a notification when a connection closes."""

    def __init__(self, controller: Any, watch: Callable[[int], object]):
        self._controller = controller
        self._watch = watch
        self._watched: dict[int, int] = {}     # Broker id -> the connection of its heartbeats.

    def handlers(self) -> dict[int, Handler]:
        return {
            api.BROKER_REGISTRATION: self._decided_by("register_broker"),
            api.BROKER_HEARTBEAT: self.heartbeat,
            api.UNREGISTER_BROKER: self._decided_by("unregister"),
            api.UNREGISTER_CONTROLLER: self._decided_by("unregister_controller"),
            api.ALTER_PARTITION: self.alter_partition,
            api.ALLOCATE_PRODUCER_IDS: self._decided_by("allocate_producer_ids"),
            api.ASSIGN_REPLICAS_TO_DIRS: self._decided_by("assign_directories"),
        }

    def _decided_by(self, decision: str) -> Handler:
        def handle(context: RequestContext, request: Message) -> Result:
            return getattr(self._controller, decision)(request)
        return handle

    def heartbeat(self, context: RequestContext, request: Message) -> Result:
        """Return the broker's fencing state and if it may stop (KIP-631)."""
        if context.connection and self._watched.get(request.broker_id) != context.connection:
            self._watched[request.broker_id] = context.connection
            self._watch(context.connection)
        return self._controller.heartbeat(request, context.connection)

    def alter_partition(self, context: RequestContext, request: Message) -> Result:
        """Decide the ISR changes that a leader requests (KIP-497, KIP-903)."""
        return self._controller.alter_partition(request, context.api_version)


def guarded(handlers: dict[int, Handler]) -> dict[int, Handler]:
    """Wrap the handlers: NotController becomes the response NOT_CONTROLLER."""
    return {key: _guarded(key, handle) for key, handle in handlers.items()}


def _guarded(key: int, handle: Handler) -> Handler:
    def handle_here(context: RequestContext, request: Message) -> Result:
        try:
            result = handle(context, request)
        except LogError as error:
            return _refusal(key, request, error)
        if type(result) is types.CoroutineType:
            return _awaited(key, request, result)
        return result
    return handle_here


async def _awaited(key: int, request: Message, coroutine: Coroutine) -> Message:
    try:
        return await coroutine
    except LogError as error:
        return _refusal(key, request, error)


def _refusal(key: int, request: Message, error: LogError) -> Message:
    if error.code != NOT_CONTROLLER or key not in _REFUSALS:
        raise error
    return _REFUSALS[key](request)


def _whole(response: str) -> Callable[[Message], Message]:
    """Return a function that creates a response with one error for the whole request."""
    def refusal(request: Message) -> Message:
        return getattr(messages, response)(error_code=NOT_CONTROLLER)
    return refusal


def _create_topics(request: Message) -> Message:
    response = messages.CreateTopicsResponse
    return response(topics=[response.CreatableTopicResult(
        name=topic.name, error_code=NOT_CONTROLLER) for topic in request.topics])


def _delete_topics(request: Message) -> Message:
    response = messages.DeleteTopicsResponse
    requested = [(topic.name, topic.topic_id) for topic in request.topics] or [
        (name, bytes(16)) for name in request.topic_names]
    return response(responses=[response.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=NOT_CONTROLLER) for name, topic_id in requested])


def _create_partitions(request: Message) -> Message:
    response = messages.CreatePartitionsResponse
    return response(results=[response.CreatePartitionsTopicResult(
        name=topic.name, error_code=NOT_CONTROLLER) for topic in request.topics])


def _alter_configs(request: Message) -> Message:
    response = messages.AlterConfigsResponse
    return response(responses=[response.AlterConfigsResourceResponse(
        error_code=NOT_CONTROLLER, resource_type=resource.resource_type,
        resource_name=resource.resource_name) for resource in request.resources])


def _incremental_alter_configs(request: Message) -> Message:
    response = messages.IncrementalAlterConfigsResponse
    return response(responses=[response.AlterConfigsResourceResponse(
        error_code=NOT_CONTROLLER, resource_type=resource.resource_type,
        resource_name=resource.resource_name) for resource in request.resources])


def _alter_client_quotas(request: Message) -> Message:
    response = messages.AlterClientQuotasResponse
    return response(entries=[response.EntryData(
        error_code=NOT_CONTROLLER, entity=[response.EntityData(
            entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity])
        for entry in request.entries])


_REFUSALS: dict[int, Callable[[Message], Message]] = {
    api.CREATE_TOPICS: _create_topics,
    api.DELETE_TOPICS: _delete_topics,
    api.CREATE_PARTITIONS: _create_partitions,
    api.ALTER_CONFIGS: _alter_configs,
    api.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    api.ALTER_CLIENT_QUOTAS: _alter_client_quotas,
    api.ELECT_LEADERS: _whole("ElectLeadersResponse"),
    api.ALTER_PARTITION_REASSIGNMENTS: _whole("AlterPartitionReassignmentsResponse"),
    api.LIST_PARTITION_REASSIGNMENTS: _whole("ListPartitionReassignmentsResponse"),
    api.UPDATE_FEATURES: _whole("UpdateFeaturesResponse"),
    api.DESCRIBE_QUORUM: _whole("DescribeQuorumResponse"),
    api.REMOVE_RAFT_VOTER: _whole("RemoveRaftVoterResponse"),
    api.BROKER_REGISTRATION: _whole("BrokerRegistrationResponse"),
    api.BROKER_HEARTBEAT: _whole("BrokerHeartbeatResponse"),
    api.UNREGISTER_BROKER: _whole("UnregisterBrokerResponse"),
    api.UNREGISTER_CONTROLLER: _whole("UnregisterControllerResponse"),
    api.ALTER_PARTITION: _whole("AlterPartitionResponse"),
    api.ALLOCATE_PRODUCER_IDS: _whole("AllocateProducerIdsResponse"),
    api.ASSIGN_REPLICAS_TO_DIRS: _whole("AssignReplicasToDirsResponse"),
}
