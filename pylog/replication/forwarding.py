"""Forwards requests that only the active controller decides, unchanged.

Owns: nothing.
Invariants: the controller's response is returned byte for byte; every request that changes the
  cluster's state is forwarded, and requests about local state are answered here.
Source: KIP-590 (Envelope); the list of requests from Kafka 4.4's KafkaApis.
"""

from __future__ import annotations

import ipaddress

from pylog.peer.errors import PeerError
from pylog.protocol import api, codec, messages
from pylog.protocol.errors import ErrorCode
from pylog.security.principals import GONE

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.replication.channel import ControllerChannel
    from pylog.security.principals import Principal

# Every request that changes the cluster's state.
FORWARDED = frozenset((
    api.CREATE_TOPICS, api.DELETE_TOPICS, api.CREATE_PARTITIONS, api.ALTER_CONFIGS,
    api.INCREMENTAL_ALTER_CONFIGS, api.ELECT_LEADERS, api.ALTER_PARTITION_REASSIGNMENTS,
    api.LIST_PARTITION_REASSIGNMENTS, api.ALTER_CLIENT_QUOTAS, api.DESCRIBE_QUORUM,
    api.UPDATE_FEATURES, api.UNREGISTER_BROKER, api.UNREGISTER_CONTROLLER,
    api.REMOVE_RAFT_VOTER, api.CREATE_ACLS, api.DELETE_ACLS,
    api.ALTER_USER_SCRAM_CREDENTIALS))
# Config resources that this broker must check itself, because a remote controller cannot.
OWN_RESOURCES = frozenset((4, 8))  # broker, broker logger
PRINCIPAL_VERSION = 0


class Forwarding:
    """channel: to the active controller. principal_of: function from a request's principal number
    to the principal, None for the anonymous one.
    """

    def __init__(self, channel: ControllerChannel,
                 principal_of: Callable[[int], Principal | None]):
        self._channel = channel
        self._principal_of = principal_of

    def takes(self, context: RequestContext, body: bytes) -> bool:
        """Return True if the controller decides the request. Raises ProtocolError."""
        key = context.api_key
        if key not in FORWARDED:
            return False
        if key not in (api.ALTER_CONFIGS, api.INCREMENTAL_ALTER_CONFIGS):
            return True
        request = codec.decode_request(key, context.api_version, body)
        return not any(resource.resource_type in OWN_RESOURCES for resource in request.resources)

    async def send(self, context: RequestContext, request: Any) -> Any:
        """Forward a request that this broker has decoded; return the response. Raises PeerError."""
        key, version = context.api_key, context.api_version
        body = codec.encode_request(key, version, request)
        frame = await self.forward(context, body)
        _, at = codec.decode_response_header(key, version, frame[4:])
        return codec.decode_response(key, version, frame[4 + at:])

    async def forward(self, context: RequestContext, body: bytes) -> bytes:
        """Forward a request; return the response frame, including its size. Raises PeerError."""
        principal = self._principal_of(context.principal)
        if principal == GONE:
            raise PeerError("its connection has ended")
        header = codec.encode_request_header(
            context.api_key, context.api_version, context.correlation_id, context.client_id)
        response = await self._channel.call(messages.EnvelopeRequest(
            request_data=header + body,
            request_principal=_encoded(principal),
            client_host_address=ipaddress.ip_address(context.peer_host).packed))
        if response.error_code or response.response_data is None:
            raise PeerError(f"the controller rejected the request: "
                            f"{ErrorCode.of(response.error_code).name}")
        # Returned unchanged.
        return len(response.response_data).to_bytes(4, "big") + response.response_data


def _encoded(principal: Principal | None) -> bytes:
    data = messages.DefaultPrincipalData(type="User", name="ANONYMOUS")
    if principal is not None:
        data = messages.DefaultPrincipalData(
            type=principal.kind, name=principal.name, token_authenticated=principal.from_token)
    encoded = codec.program("DefaultPrincipalData", PRINCIPAL_VERSION).encode(data)
    return PRINCIPAL_VERSION.to_bytes(2, "big") + encoded
