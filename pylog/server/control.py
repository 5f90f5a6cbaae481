"""Controller listeners: which handlers they have, and what comes in envelopes.

Owns: nothing.
Called by: broker (makes it), server.dispatch (uses it).
Invariants: (1) what an envelope holds is answered as if it had come by itself, from the principal
  and the address that it names; (2) an envelope holds only what clients may send.
Source: KIP-590; Kafka's EnvelopeUtils.
"""

from __future__ import annotations

from pylog._native.reactor import RequestContext
from pylog.protocol import api, codec, messages
from pylog.protocol.errors import ErrorCode, ProtocolError

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pylog.api import Handler, Message

IPV4_BYTES = 4
ADDRESS_BYTES = frozenset((IPV4_BYTES, 16))
# Keeps (2): the requests between nodes, and those of a connection itself.
NOT_FORWARDED = frozenset((
    api.FETCH, api.SASL_HANDSHAKE, api.API_VERSIONS, api.SASL_AUTHENTICATE, api.ALTER_PARTITION,
    api.ENVELOPE, api.FETCH_SNAPSHOT, api.BROKER_REGISTRATION, api.BROKER_HEARTBEAT,
    api.ALLOCATE_PRODUCER_IDS, api.ASSIGN_REPLICAS_TO_DIRS, api.DESCRIBE_CLUSTER))


class ControllerListeners:
    """handlers: by api key. is_own: says of a listener's number whether it is one of them."""

    def __init__(self, handlers: dict[int, Handler], is_own: Callable[[int], bool]):
        self.is_own = is_own
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
        """The answer to what is in an Envelope (58). INVALID_REQUEST: no request that clients send,
        or not one that can be read."""
        response, answer = messages.EnvelopeResponse, self._answer
        assert answer is not None      # The dispatcher set it before it served.
        try:
            inner, body = _opened(context, request)
            # Keeps (1).
            return response(error_code=ErrorCode.NONE,
                            response_data=await answer(inner, body))
        except ProtocolError:
            return response(error_code=ErrorCode.INVALID_REQUEST)


def _opened(context: RequestContext, request: Message) -> tuple[RequestContext, bytes]:
    """The request in an envelope. Raises ProtocolError."""
    if len(request.client_host_address) not in ADDRESS_BYTES:
        raise ProtocolError(f"an address of {len(request.client_host_address)} bytes")
    data = bytes(request.request_data)
    key, version, correlation_id, client_id, at = codec.decode_request_header(data)
    low, high = api.OF_CONTROLLER.get(key, (1, 0))
    if key in NOT_FORWARDED or not low <= version <= high:
        raise ProtocolError(f"api key {key} in version {version} is not forwarded")
    return RequestContext(
        token=context.token, api_key=key, api_version=version, body=b"",
        connection=context.connection, listener=context.listener, correlation_id=correlation_id,
        client_id=client_id, local_host=context.local_host, local_port=context.local_port,
        peer_host=_address(bytes(request.client_host_address)), peer_port=0,
        principal=context.principal), data[at:]


def _address(packed: bytes) -> str:
    # Imported here: an envelope comes now and then, and to few nodes.
    import ipaddress

    return str(ipaddress.ip_address(packed))
