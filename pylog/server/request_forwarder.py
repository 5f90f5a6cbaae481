"""Forwards requests that belong to a remote controller.

Owns: nothing.
Invariants: a request on a controller listener is for this controller, active or not.
Source: KIP-590.
"""

from __future__ import annotations

from pylog.peer.errors import PeerError

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.server.reactor import RequestContext
    from pylog.server.request_tasks import RequestTasks
    from pylog.server.response_sender import ResponseSender
    from pylog.server.services import Services


class RequestForwarder:
    """Forwards requests to the active controller, if that is not this broker."""

    def __init__(self, services: Services, sender: ResponseSender, tasks: RequestTasks):
        self._services = services
        self._forwarding = services.forwarding
        self._sender = sender
        self._tasks = tasks

    def takes(self, context: RequestContext, body: bytes) -> bool:
        """Return True if the request belongs to a remote controller. Raises ProtocolError."""
        return self._forwarding is not None \
            and not self._services.is_controller_listener(context.listener) \
            and self._forwarding.takes(context, body)

    def start(self, context: RequestContext, body: bytes) -> None:
        """Forward the request, and send the controller's response when it arrives."""
        context.parked_ns = context.taken_ns
        self._tasks.start(self._forward(context, body))

    async def _forward(self, context: RequestContext, body: bytes) -> None:
        assert self._forwarding is not None
        try:
            frame = await self._forwarding.forward(context, body)
        except PeerError as error:
            self._sender.refuse(context, error)
        except Exception:
            self._sender.fail(context)
        else:
            self._sender.send_frame(context, frame)
