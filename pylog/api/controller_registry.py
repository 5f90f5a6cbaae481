"""The handlers of controller listeners: the controller's own requests and those of other families,
decided here or refused.

Owns: nothing.
Invariants: (1) every api key that these listeners advertise has a handler, but for Envelope, which
  server.control opens.
Source: KIP-919 (what tools may ask a controller); Kafka 4.3's controller listener.
"""

from __future__ import annotations

from pylog.api import versions
from pylog.api.cluster import (
    broker_to_controller as controller, client_quotas as quotas, cluster, configs, metadata_log,
    partitions, quorum, topics,
)
from pylog.api.security import acls_and_users, delegation_tokens as tokens
from pylog.peer.controllers import voters_of
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from pylog._native.reactor import RequestContext
    from pylog.api import Handler, Message
    from pylog.api.security.sasl import AuthenticationApi
    from pylog.config import Settings
    from pylog.config.client_quotas import ClientQuotas
    from pylog.metadata.service import MetadataService
    from pylog.security.access import Access


def handlers(*, settings: Settings, metadata_service: MetadataService, observers: Any,
             client_quotas: ClientQuotas, registered: Callable[[], Awaitable[None]], node_id: int,
             now_ms: Callable[[], int], watch: Callable[[int], None],
             asker: Callable[[RequestContext], tokens.Asker], access: Access | None,
             authentication: Callable[[RequestContext], AuthenticationApi | None]
             ) -> dict[int, Handler]:
    """Api key -> handler. observers: metadata_log.Observers. watch: has the end of a connection
    reported. access: None, everything is allowed. The others as for api.handlers."""
    decider: Any = controller.HereOrNowhere(metadata_service)
    found: dict[int, Handler] = {}
    for family in (
            versions.VersionsApi(metadata_service, api.OF_CONTROLLER, True).handlers(),
            topics.TopicsApi(decider, client_quotas, settings).handlers(),
            configs.ConfigsApi(decider, metadata_service, settings, registered,
                               node_id).handlers(),
            partitions.PartitionsApi(decider, metadata_service, client_quotas).handlers(),
            quorum.QuorumApi(decider, metadata_service, settings, node_id, now_ms,
                             observers).handlers(),
            quotas.QuotasApi(decider, metadata_service).handlers(),
            acls_and_users.SecurityApi(decider, metadata_service, access is not None,
                                       authentication).handlers(),
            tokens.DelegationTokensApi(decider, metadata_service, settings, asker, access,
                                       now_ms).handlers(),
            controller.ControllerApi(decider, watch).handlers(),
            metadata_log.MetadataLogApi(metadata_service, observers, node_id, now_ms).handlers(),
            ControllersApi(metadata_service, settings, node_id).handlers()):
        assert not found.keys() & family.keys(), sorted(found.keys() & family.keys())
        found.update(family)
    served = {key: handle for key, handle in found.items() if key in api.OF_CONTROLLER}
    # Keeps (1).
    assert served.keys() | {api.ENVELOPE} == api.OF_CONTROLLER.keys(), sorted(served)
    guarded = controller.guarded(served)
    if access is None:
        return guarded
    # Imported here: not every controller asks what its clients may do.
    from pylog.api.authorization.rules import Rights

    return Rights(access, metadata_service, settings).around(guarded)


class ControllersApi:
    """DescribeCluster (60) for who dials a controller: the cluster's controllers."""

    def __init__(self, metadata: MetadataService, settings: Settings, node_id: int):
        self._metadata = metadata
        self._voters = voters_of(settings["controller.quorum.voters"])
        self._node_id = node_id

    def handlers(self) -> dict[int, Handler]:
        return {api.DESCRIBE_CLUSTER: self.describe_cluster}

    def describe_cluster(self, context: RequestContext, request: Message) -> Message:
        """The cluster's id and its controllers (KIP-919).

        MISMATCHED_ENDPOINT_TYPE (in version 0 INVALID_REQUEST): brokers' endpoints;
        UNSUPPORTED_ENDPOINT_TYPE: any other.
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
        # As it was dialled: the voters' setting may have a name that only the nodes know.
        nodes[self._node_id] = context.local_host, context.local_port
        return response(
            endpoint_type=kind, cluster_id=self._metadata.cluster_id,
            controller_id=self._node_id if deciding is not None and deciding.is_active else -1,
            brokers=[response.DescribeClusterBroker(
                broker_id=id_, host=host, port=port, rack=None)
                for id_, (host, port) in sorted(nodes.items())],
            cluster_authorized_operations=(
                cluster.CLUSTER_OPERATIONS if request.include_cluster_authorized_operations
                else cluster.NOT_ASKED))
