"""Sends responses: throttles the client, encodes the response, and queues it with the reactors.

Owns: the count of queued responses.
Invariants: all responses of handlers pass through respond(); the responses of one loop iteration
  are flushed together; no response exceeds control.response.bytes.max.
Source: KIP-511 (ApiVersions in any version), KIP-124 and KIP-219 (quotas).
"""

from __future__ import annotations

import asyncio
import functools
import logging

from pylog._native.protocol.message import AnswerTooLong
from pylog.protocol import api, codec
from pylog.protocol.errors import ErrorCode, ProtocolError

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.coordinator.runtime.deferred_response import DeferredResponse
    from pylog.server.services import Services

log = logging.getLogger("pylog.dispatch")

RESPONSE_VERSION_UNSUPPORTED = 0  # For unknown versions of ApiVersions (KIP-511).
QUEUED_RESPONSES_MAX = 64  # Before a flush.


class ResponseSender:
    """Sends the responses of requests, and closes connections whose request failed."""

    def __init__(self, services: Services):
        self._reactors = services.reactors
        self._quotas = services.quotas
        self.bytes_max = services.settings["control.response.bytes.max"]
        self._queued = 0  # Responses since the last flush.
        self._flush_is_due = False  # A flush follows in this loop iteration.

    def hold(self) -> None:
        """Queue the following responses. The caller calls flush() in this loop iteration."""
        self._flush_is_due = True

    def flush(self) -> None:
        """Send the queued responses."""
        self._flush_is_due = False
        self._queued = 0
        self._reactors.flush_replies()

    def respond(self, context: RequestContext, response: Any) -> bytes | None:
        """Send a response. Return its frame, None if it failed. Never raises."""
        began_ns = self._reactors.now_ns()
        version = context.api_version
        if context.api_key == api.API_VERSIONS and not api.is_served(18, version):
            version = RESPONSE_VERSION_UNSUPPORTED
        try:
            throttle_ms = self._throttle_ms(context)
            if throttle_ms and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = throttle_ms
            frame = codec.response_frame(
                context.api_key, version, context.correlation_id, response,
                bytes_max=self.bytes_max)
            # As in Kafka: respond immediately, then mute the connection, also for old clients.
            if context.closes:
                self._reactors.reply(context.token, frame, close=True)
            else:
                self._queue(context, frame, throttle_ms)
                if context.repeat is not None and not throttle_ms and not response.error_code:
                    context.answer_again(frame)
        except AnswerTooLong as error:
            self.refuse(context, error)
            return None
        except Exception:
            self.fail(context)
            return None
        self._count(context, began_ns, getattr(response, "error_code", 0))
        return frame

    def respond_deferred(self, context: RequestContext, pending: DeferredResponse) -> None:
        """Send the response when it is available."""
        if not pending.is_set:
            context.parked_ns = self._reactors.now_ns()
        pending.then(functools.partial(self.respond, context))

    async def respond_when_done(
            self, context: RequestContext, awaitable: Awaitable) -> bytes | None:
        """Await a response and send it. Return its frame, None if it failed."""
        try:
            response = await awaitable
        except ProtocolError as error:
            self.refuse(context, error)
        except Exception:
            self.fail(context)
        else:
            return self.respond(context, response)
        return None

    def send_frame(self, context: RequestContext, frame: bytes, began_ns: int = 0) -> None:
        """Send an encoded response without an error. began_ns: when it was available; 0: now."""
        self._queue(context, frame, 0)
        self._count(context, began_ns or self._reactors.now_ns(), ErrorCode.NONE)

    def refuse(self, context: RequestContext, error: object) -> None:
        """Log the reason, and close the connection."""
        log.info("request refused", extra={
            "peer": context.peer_host, "api": context.api_key, "version": context.api_version,
            "reason": str(error)})
        self._reactors.reply(context.token, None, close=True)
        self._count(context, self._reactors.now_ns(), ErrorCode.INVALID_REQUEST)

    def fail(self, context: RequestContext) -> None:
        """A bug: log it with its traceback and close the connection."""
        log.exception("request failed", extra={
            "peer": context.peer_host, "api": context.api_key, "version": context.api_version})
        self._reactors.reply(context.token, None, close=True)
        self._count(context, self._reactors.now_ns(), ErrorCode.UNKNOWN_SERVER_ERROR)

    def _queue(self, context: RequestContext, frame: bytes, throttle_ms: int) -> None:
        self._reactors.queue_reply(context.token, frame, context.correlation_id, throttle_ms)
        self._queued += 1
        if self._queued >= QUEUED_RESPONSES_MAX:
            self._queued = 0
            self._reactors.flush_replies()
        elif not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def _throttle_ms(self, context: RequestContext) -> int:
        if not context.busy_ns:
            return context.throttle_ms
        return max(context.throttle_ms, self._quotas.charge_time(
            context.principal, (context.client_id or "").encode(), context.busy_ns))

    def _count(self, context: RequestContext, began_ns: int, error_code: int) -> None:
        """Record the request's time. The time of awaitables counts as parked, including their work.
        """
        parked_ns = began_ns - context.parked_ns if context.parked_ns else 0
        self._reactors.answered(
            context.api_key, context.taken_ns - context.began_ns,
            self._reactors.now_ns() - context.taken_ns - parked_ns, parked_ns, error_code)
