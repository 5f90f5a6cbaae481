"""Request handlers of controller listeners, and requests in envelopes.

Owns: nothing.
Invariants: a request in an envelope is handled as if it came directly from the principal and
  address in the envelope; an envelope may contain only requests of clients; only principals with
  ClusterAction may send one.
Source: KIP-590; Kafka's EnvelopeUtils.
"""

from __future__ import annotations

from pylog._native.server.reactor import RequestContext
from pylog.protocol import api, codec, messages
from pylog.protocol.errors import ErrorCode, ProtocolError
from pylog.security.principals import Principal

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pylog.api.handler import Handler, Message
    from pylog.security.authorization.access import Access
    from pylog.security.principals import Identities

IPV4_BYTES = 4
VERSION_BYTES, PRINCIPAL_VERSION = 2, 0
ADDRESS_BYTES = frozenset((IPV4_BYTES, 16))
# Requests between nodes, and requests that concern only their connection.
NOT_FORWARDED = frozenset((
    api.FETCH, api.SASL_HANDSHAKE, api.API_VERSIONS, api.SASL_AUTHENTICATE, api.ALTER_PARTITION,
    api.ENVELOPE, api.FETCH_SNAPSHOT, api.BROKER_REGISTRATION, api.BROKER_HEARTBEAT,
    api.ALLOCATE_PRODUCER_IDS, api.ASSIGN_REPLICAS_TO_DIRS, api.DESCRIBE_CLUSTER))


class ControllerListeners:
    """handlers: by api key. is_own: returns True for the number of a controller listener. access:
    None allows everything. identities: assigns numbers to principals in envelopes. is_active:
    returns True if this node is the active controller.
    """

    def __init__(self, handlers: dict[int, Handler], is_own: Callable[[int], bool],
                 access: Access | None, identities: Callable[[], Identities],
                 is_active: Callable[[], bool]):
        self.is_own = is_own
        self._access, self._identities = access, identities
        self._is_active = is_active
        self._handlers = {**handlers, api.ENVELOPE: self.open}
        self._respond: Callable[[RequestContext, bytes], Awaitable[bytes]] | None = None

    def respond_with(self, respond: Callable[[RequestContext, bytes], Awaitable[bytes]]) -> None:
        """answer: handles a request body and returns the response frame without its size; raises
        ProtocolError.
        """
        self._respond = respond

    def handler(self, api_key: int) -> Handler:
        """Return the handler. Raises ProtocolError for an api key that is not served here."""
        found = self._handlers.get(api_key)
        if found is None:
            raise ProtocolError(f"api key {api_key} is not served on a controller's listener")
        return found

    async def open(self, context: RequestContext, request: Message) -> Message:
        """Handle the request in an Envelope (58).

        Errors: CLUSTER_AUTHORIZATION_FAILED; NOT_CONTROLLER: the sender tries another controller;
        PRINCIPAL_DESERIALIZATION_FAILURE; INVALID_REQUEST: malformed, or not a request of clients.
        """
        response = messages.EnvelopeResponse
        if self._access is not None and not self._access.is_node(context):
            # Only principals with ClusterAction may send envelopes.
            return response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if not self._is_active():
            return response(error_code=ErrorCode.NOT_CONTROLLER)
        principal = _principal(request)
        if principal is None:
            return response(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
        try:
            frame = await self._respond_as(principal, context, request)
        except ProtocolError:
            return response(error_code=ErrorCode.INVALID_REQUEST)
        return response(error_code=ErrorCode.NONE, response_data=frame)

    async def _respond_as(self, principal: Principal, context: RequestContext,
                           request: Message) -> bytes:
        """Return the response frame of the request in an envelope, handled with the principal and
        address in the envelope. Raises ProtocolError.
        """
        respond, identities = self._respond, self._identities()
        assert respond is not None  # Set by RequestRunner.
        host = _address(bytes(request.client_host_address))
        number = identities.acquire(principal, host)
        try:
            return await respond(*_opened(context, request, host, number))
        finally:
            identities.release(number)


def _principal(request: Message) -> Principal | None:
    """Return the principal in an envelope, None if it cannot be decoded."""
    data = bytes(request.request_principal or b"")
    if data[:VERSION_BYTES] != PRINCIPAL_VERSION.to_bytes(VERSION_BYTES, "big"):
        return None
    try:
        found = codec.program("DefaultPrincipalData", PRINCIPAL_VERSION).decode(
            data, VERSION_BYTES)
    except ProtocolError:
        return None
    if not found.type or not found.name:
        return None
    return Principal(found.type, found.name, found.token_authenticated)


def _opened(context: RequestContext, request: Message, host: str,
            principal: int) -> tuple[RequestContext, bytes]:
    """Return the context and body of the request in an envelope. Raises ProtocolError."""
    data = bytes(request.request_data)
    key, version, correlation_id, client_id, at = codec.decode_request_header(data)
    low, high = api.OF_CONTROLLER.get(key, (1, 0))
    if key in NOT_FORWARDED or not low <= version <= high:
        raise ProtocolError(f"api key {key} in version {version} is not forwarded")
    return RequestContext(
        token=context.token, api_key=key, api_version=version, body=b"",
        connection=context.connection, listener=context.listener, correlation_id=correlation_id,
        client_id=client_id, local_host=context.local_host, local_port=context.local_port,
        peer_host=host, peer_port=0, principal=principal), data[at:]


def _address(packed: bytes) -> str:
    """Return an address as text. Raises ProtocolError."""
    if len(packed) not in ADDRESS_BYTES:
        raise ProtocolError(f"an address of {len(packed)} bytes")
    # Imported here because few nodes receive envelopes, and rarely.
    import ipaddress

    return str(ipaddress.ip_address(packed))
