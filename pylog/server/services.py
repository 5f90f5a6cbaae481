"""The parts of the broker that the request pipeline uses.

Owns: nothing.
Invariants: none of them changes while the broker runs.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False  # Types that only annotations use would cost startup time.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog._native.server.grants import Grants
    from pylog._native.server.reactor import Closed, Reactors
    from pylog.api.handler import Handler
    from pylog.config import Settings
    from pylog.config.client_quotas import ClientQuotas
    from pylog.coordinator.transactions.verification import Verification
    from pylog.eventloop.end_of_tick import EndOfTick
    from pylog.metadata.image.image import Topic
    from pylog.metadata.service import MetadataService
    from pylog.replication.forwarding import Forwarding
    from pylog.security.authorization.access import Access
    from pylog.server.connection_security import Guard
    from pylog.server.controller_listeners import ControllerListeners


class Services(NamedTuple):
    """handlers: by API key. metadata: has the current image. install: makes a topic available to
    the data plane; returns False while none of its logs is open. verification: of transactional
    produces. end_of_tick: ended after each slice of requests. security: returns the connection
    security, created on first use; None if no listener needs it. access: None allows everything.
    forwarding: to a remote controller; None if the controller is local. controller_listeners: None
    if there are none. connection_closed: called for connections that requested it. isr_candidate:
    called with (topic id, partition, broker) when a follower has caught up.
    """

    reactors: Reactors
    handlers: dict[int, Handler]
    metadata: MetadataService
    settings: Settings
    quotas: ClientQuotas
    grants: Grants
    install: Callable[[Topic], bool]
    verification: Verification
    end_of_tick: EndOfTick
    security: Callable[[], Guard] | None = None
    access: Access | None = None
    forwarding: Forwarding | None = None
    controller_listeners: ControllerListeners | None = None
    connection_closed: Callable[[Closed], None] | None = None
    isr_candidate: Callable[[bytes, int, int], None] | None = None

    def connection_security(self) -> Guard:
        """Return the connection security. Only it enables the events that need it."""
        assert self.security is not None
        return self.security()

    def is_controller_listener(self, listener: int) -> bool:
        """Return True if the number is that of a controller listener."""
        return self.controller_listeners is not None and self.controller_listeners.is_own(listener)
