"""Controller listeners: which handlers they have, and what comes in envelopes.

Owns: nothing.
Invariants: (1) what an envelope holds is answered as if it had come by itself, from the principal
  and the address that it names; (2) an envelope holds only what clients may send; (3) only who may
  act as a node opens one.
Source: KIP-590; Kafka's EnvelopeUtils.
"""

from __future__ import annotations

from pylog._native.reactor import RequestContext
from pylog.protocol import api, codec, messages
from pylog.protocol.errors import ErrorCode, ProtocolError
from pylog.security.identities import Principal

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pylog.api import Handler, Message
    from pylog.security.access import Access
    from pylog.security.identities import Identities

IPV4_BYTES = 4
VERSION_BYTES, PRINCIPAL_VERSION = 2, 0
ADDRESS_BYTES = frozenset((IPV4_BYTES, 16))
# Keeps (2): the requests between nodes, and those of a connection itself.
NOT_FORWARDED = frozenset((
    api.FETCH, api.SASL_HANDSHAKE, api.API_VERSIONS, api.SASL_AUTHENTICATE, api.ALTER_PARTITION,
    api.ENVELOPE, api.FETCH_SNAPSHOT, api.BROKER_REGISTRATION, api.BROKER_HEARTBEAT,
    api.ALLOCATE_PRODUCER_IDS, api.ASSIGN_REPLICAS_TO_DIRS, api.DESCRIBE_CLUSTER))


class ControllerListeners:
    """handlers: by api key. is_own: says of a listener's number whether it is one of them.
    access: None, everything is allowed. identities: gives numbers to who is in envelopes.
    is_active: whether the active controller is here."""

    def __init__(self, handlers: dict[int, Handler], is_own: Callable[[int], bool],
                 access: Access | None, identities: Callable[[], Identities],
                 is_active: Callable[[], bool]):
        self.is_own = is_own
        self._access, self._identities = access, identities
        self._is_active = is_active
        self._handlers = {**handlers, api.ENVELOPE: self.open}
        self._answer: Callable[[RequestContext, bytes], Awaitable[bytes]] | None = None

    def answer_with(self, answer: Callable[[RequestContext, bytes], Awaitable[bytes]]) -> None:
        """answer: a request's body to the answer's frame without its size; raises ProtocolError."""
        self._answer = answer

    def handler(self, api_key: int) -> Handler:
        """Raises ProtocolError for what is not served here."""
        found = self._handlers.get(api_key)
        if found is None:
            raise ProtocolError(f"api key {api_key} is not served on a controller's listener")
        return found

    async def open(self, context: RequestContext, request: Message) -> Message:
        """The answer to what is in an Envelope (58).

        CLUSTER_AUTHORIZATION_FAILED; NOT_CONTROLLER: its sender asks another one;
        PRINCIPAL_DESERIALIZATION_FAILURE; INVALID_REQUEST: no request that clients send, or not one
        that can be read.
        """
        response = messages.EnvelopeResponse
        if self._access is not None and not self._access.is_node(context):
            # Keeps (3).
            return response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if not self._is_active():
            return response(error_code=ErrorCode.NOT_CONTROLLER)
        principal = _principal(request)
        if principal is None:
            return response(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
        try:
            frame = await self._answered_to(principal, context, request)
        except ProtocolError:
            return response(error_code=ErrorCode.INVALID_REQUEST)
        return response(error_code=ErrorCode.NONE, response_data=frame)

    async def _answered_to(self, principal: Principal, context: RequestContext,
                           request: Message) -> bytes:
        """The frame that answers what is in an envelope. Raises ProtocolError. Keeps (1)."""
        answer, identities = self._answer, self._identities()
        assert answer is not None      # The dispatcher set it before it served.
        host = _address(bytes(request.client_host_address))
        number = identities.lend(principal, host)
        try:
            return await answer(*_opened(context, request, host, number))
        finally:
            identities.give_back(number)


def _principal(request: Message) -> Principal | None:
    """Who an envelope's request is from, None when it cannot be read."""
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
    """The request in an envelope, from a host, and its body. Raises ProtocolError."""
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
    """Raises ProtocolError."""
    if len(packed) not in ADDRESS_BYTES:
        raise ProtocolError(f"an address of {len(packed)} bytes")
    # Imported here: an envelope comes now and then, and to few nodes.
    import ipaddress

    return str(ipaddress.ip_address(packed))
