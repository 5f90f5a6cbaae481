"""Runs one request: authenticate, forward or answer from the cache, decode, handle, respond.

A request of SASL's raw tokens authenticates its connection, a request for a remote controller is
forwarded, and a cached response is sent again. All others are decoded (request_decoder) and passed
to the handler of their API key, which also checks the client's rights (api.authorization). The
result is sent by response_sender, which throttles and encodes, immediately or when it is available.

Owns: nothing.
Invariants: one response: each request gets exactly one response, or its connection is closed;
  request time quotas count the time of handlers, but not the time that they wait.
Source: KIP-124 and KIP-219 (quotas).
"""

from __future__ import annotations

import types

from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.eventloop import cpu_time
from pylog.protocol import api, codec
from pylog.protocol.elements import ELEMENTS
from pylog.protocol.errors import ProtocolError
from pylog.server.chunked_requests import AWAITED, PARTS, ChunkedRequests
from pylog.server.request_decoder import RequestDecoder
from pylog.server.request_forwarder import RequestForwarder
from pylog.server.response_cache import CACHED_APIS, ResponseCache

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler
    from pylog.server.request_tasks import RequestTasks
    from pylog.server.response_sender import ResponseSender
    from pylog.server.services import Services


class RequestRunner:
    """Runs requests with the handler of their API key."""

    def __init__(self, services: Services, sender: ResponseSender, tasks: RequestTasks):
        handlers = services.handlers
        assert handlers.keys() | {api.PRODUCE, api.FETCH} == api.SERVED.keys(), sorted(handlers)
        self._services = services
        self._reactors = services.reactors
        self._handlers = handlers
        self._quotas = services.quotas
        self._sender = sender
        self._tasks = tasks
        self._decoder = RequestDecoder(services.settings["request.entries.max"])
        self._chunks = ChunkedRequests(services, self._decoder)
        self._forwarder = RequestForwarder(services, sender, tasks)
        self._cache = ResponseCache(services, sender, tasks)
        if services.controller_listeners is not None:
            services.controller_listeners.respond_with(self.run_enclosed)

    def run(self, context: RequestContext) -> None:
        """Run a request up to its response or its first wait. Never raises."""
        assert not context.taken_ns, context.token
        try:
            context.taken_ns = self._reactors.now_ns()
            body = context.take_body()
            if context.api_version < 0:
                self._services.connection_security().authentication.raw_token(context, body)
                return
            if self._forwarder.takes(context, body):
                self._forwarder.start(context, body)
                return
            cache_key = self._cache.key_of(context, body) if context.api_key in CACHED_APIS \
                else None
            if cache_key is not None and self._cache.respond(context, cache_key):
                return
            result = self._handle_timed(context, body) if self._quotas.timed \
                else self._handle(context, body)
            if context.repeat is not None:
                context.keep_body(body)
            if cache_key is not None and context.cacheable:
                self._cache.add(context, result, cache_key)
            else:
                action = _RESULT_ACTIONS.get(type(result))
                if action is None:
                    self._sender.respond(context, result)
                else:
                    action(self, context, result)
        except ProtocolError as error:
            self._sender.refuse(context, error)
        except Exception:
            # Even after a bug, the request gets a response, and the other events are processed.
            self._sender.fail(context)

    async def run_enclosed(self, context: RequestContext, body: bytes) -> bytes:
        """Run a request from an envelope, and return the response frame without its size. Raises
        ProtocolError.
        """
        result = self._handle(context, body)
        response = await result if type(result) in AWAITED else result
        return codec.response_frame(
            context.api_key, context.api_version, context.correlation_id, response,
            size_prefix=False, bytes_max=self._sender.bytes_max)

    def _handle_timed(self, context: RequestContext, body: bytes) -> Any:
        """Call the handler, and count its time for the client's quota."""
        began_ns = self._quotas.clock_ns()
        result = self._handle(context, body)
        context.busy_ns = self._quotas.clock_ns() - began_ns
        if type(result) is types.CoroutineType:
            return cpu_time.timed(result, context, self._quotas.clock_ns)
        return result

    def _handle(self, context: RequestContext, body: bytes) -> Any:
        """Return the response or an awaitable."""
        handler = self._handler(context)
        elements = ELEMENTS.get(context.api_key)
        if elements is not None and len(body) > elements.short_bytes_max:
            return self._chunks.run_in_slices(context, handler, body)
        result = handler(context, self._decoder.decode(context, body, elements))
        return self._chunks.start_parts(context, result) if type(result) in PARTS else result

    def _handler(self, context: RequestContext) -> Handler:
        """Return the handler. Raises ProtocolError if the listener does not serve the request."""
        services = self._services
        if services.controller_listeners is not None \
                and services.controller_listeners.is_own(context.listener):
            return services.controller_listeners.handler(context.api_key)
        if context.api_key not in self._handlers:
            raise ProtocolError("a controller's request on another listener")
        return self._handlers[context.api_key]

    def _respond_deferred(self, context: RequestContext, pending: DeferredResponse) -> None:
        self._sender.respond_deferred(context, pending)

    def _respond_when_done(self, context: RequestContext, coroutine: Coroutine) -> None:
        context.parked_ns = self._reactors.now_ns()
        self._tasks.start(self._sender.respond_when_done(context, coroutine))


# The type of a handler's result selects the action; any other type is a response. Not bound
# methods: they would form a reference cycle that keeps a runner alive until garbage collection.
_RESULT_ACTIONS: dict[type, Callable[[RequestRunner, RequestContext, Any], None]] = {
    DeferredResponse: RequestRunner._respond_deferred,
    types.CoroutineType: RequestRunner._respond_when_done}
