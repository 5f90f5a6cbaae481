"""The handlers of controller listeners: the controller's own requests, and other families' requests
that the active controller handles and others reject.

Owns: nothing.
Invariants: every api key that controller listeners advertise has a handler, except Envelope, which
  server.controller_listeners handles.
Source: KIP-919 (requests of tools to controllers); Kafka 4.4's controller listener.
"""

from __future__ import annotations

from pylog.api import versions
from pylog.api.cluster import (
    broker_to_controller, client_quotas, cluster, configs, metadata_log,
    partitions, quorum, topics,
)
from pylog.api.security import acls_and_users, delegation_tokens
from pylog.peer.controllers import voters_of
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.api.services import ApiServices
    from pylog.config import Settings
    from pylog.metadata.service import MetadataService


def handlers(services: ApiServices, observers: Any) -> dict[int, Handler]:
    """Return handlers by api key. observers: metadata_log.Observers."""
    settings, metadata_service, access = services.settings, services.metadata, services.access
    quotas, node_id, now_ms = services.client_quotas, services.node_id, services.now_ms
    decider: Any = broker_to_controller.LocalController(metadata_service)
    found: dict[int, Handler] = {}
    for family in (
            versions.VersionsApi(metadata_service, api.OF_CONTROLLER, True, node_id,
                                 services.is_login_in_progress).handlers(),
            topics.TopicsApi(decider, quotas, settings).handlers(),
            configs.ConfigsApi(decider, metadata_service, settings, services.registered,
                               node_id).handlers(),
            partitions.PartitionsApi(decider, metadata_service, quotas).handlers(),
            quorum.QuorumApi(decider, metadata_service, settings, node_id, now_ms,
                             observers).handlers(),
            client_quotas.QuotasApi(decider, metadata_service).handlers(),
            acls_and_users.SecurityApi(decider, metadata_service, access is not None,
                                       services.authentication).handlers(),
            delegation_tokens.DelegationTokensApi(
                decider, metadata_service, settings, services.asker, access, now_ms).handlers(),
            broker_to_controller.ControllerApi(decider, services.watch).handlers(),
            metadata_log.MetadataLogApi(metadata_service, observers, node_id, now_ms).handlers(),
            ControllersApi(metadata_service, settings, node_id).handlers()):
        assert not found.keys() & family.keys(), sorted(found.keys() & family.keys())
        found.update(family)
    served = {key: handle for key, handle in found.items() if key in api.OF_CONTROLLER}
    # Every advertised api key has a handler.
    assert served.keys() | {api.ENVELOPE} == api.OF_CONTROLLER.keys(), sorted(served)
    guarded = broker_to_controller.guarded(served)
    if access is None:
        return guarded
    # Imported here because not every controller has an authorizer.
    from pylog.api.authorization.rules import Rights

    return Rights(access, metadata_service, settings).around(guarded)


class ControllersApi:
    """DescribeCluster (60) on controller listeners: describes the controllers."""

    def __init__(self, metadata: MetadataService, settings: Settings, node_id: int):
        self._metadata = metadata
        self._voters = voters_of(settings["controller.quorum.voters"])
        self._node_id = node_id

    def handlers(self) -> dict[int, Handler]:
        return {api.DESCRIBE_CLUSTER: self.describe_cluster}

    def describe_cluster(self, context: RequestContext, request: Message) -> Message:
        """Return the cluster's id and its controllers (KIP-919).

        Errors: MISMATCHED_ENDPOINT_TYPE (in version 0 INVALID_REQUEST) if brokers are requested;
        UNSUPPORTED_ENDPOINT_TYPE for other types.
        """
        response = messages.DescribeClusterResponse
        kind = request.endpoint_type
        if kind == cluster.ENDPOINT_BROKERS:
            return response(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if context.api_version
                else ErrorCode.INVALID_REQUEST, error_message=(
                    "The request was sent to an endpoint of type CONTROLLER, but we wanted an "
                    "endpoint of type BROKER"))
        if kind != cluster.ENDPOINT_CONTROLLERS:
            return response(error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                            error_message=f"Unsupported endpoint type {kind}")
        deciding = self._metadata.controller
        nodes = {id_: (voter.host, voter.port) for id_, voter in self._voters.items()}
        # Use the address that the client connected to: controller.quorum.voters may contain a name
        # that only the nodes can resolve.
        nodes[self._node_id] = context.local_host, context.local_port
        return response(
            endpoint_type=kind, cluster_id=self._metadata.cluster_id,
            controller_id=self._node_id if deciding is not None and deciding.is_active else -1,
            brokers=[response.DescribeClusterBroker(
                broker_id=id_, host=host, port=port, rack=None)
                for id_, (host, port) in sorted(nodes.items())],
            cluster_authorized_operations=(
                cluster.CLUSTER_OPERATIONS if request.include_cluster_authorized_operations
                else cluster.NOT_REQUESTED))
