"""Processes the reactors' events that are not requests.

Owns: nothing.
Invariants: an event that fails does not affect others; a connection that waits for its event is
  closed if the event fails.
"""

from __future__ import annotations

import logging

from pylog._native.server.reactor import (
    Closed, Connected, IsrCandidate, Miss, Slow, UnknownClient, Unsafe, Verify,
)
from pylog.server import request_log
from pylog.server.grant_decisions import GrantDecisions

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.server.reactor import Event
    from pylog.server.request_tasks import RequestTasks
    from pylog.server.services import Services

log = logging.getLogger("pylog.dispatch")


class EventProcessor:
    """Routes events by type."""

    def __init__(self, services: Services, tasks: RequestTasks):
        self._services = services
        self._tasks = tasks
        self._grants = GrantDecisions(services)

    def process(self, event: Event) -> None:
        """Process one event. Never raises."""
        services = self._services
        try:
            if type(event) is Miss:
                self._grants.decide(event)
            elif type(event) is Verify:
                self._tasks.start(self._grants.verify(event))
            elif type(event) is UnknownClient:
                services.quotas.install(event.principal, event.client_id)
                services.reactors.retry(event.connection)
            elif type(event) is Slow:
                request_log.slow(event)
            elif type(event) is IsrCandidate and services.isr_candidate is not None:
                services.isr_candidate(event.topic_id, event.partition, event.broker_id)
            elif type(event) is Unsafe:
                request_log.unsafe(event)
            elif type(event) is Connected:
                services.connection_security().connected(event)
            elif type(event) is Closed:
                assert services.connection_closed is not None  # Only set_interest() enables it.
                services.connection_closed(event)
        except Exception:
            # A bug. The other events of the poll must still be processed.
            log.exception("an event could not be handled", extra={"event": type(event).__name__})
            if isinstance(event, UnknownClient | Connected):
                # The connection waits for this response.
                services.reactors.close_connection(event.connection)
