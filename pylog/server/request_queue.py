"""Receives events from the reactors, and runs the requests among them in slices.

Owns: the queued requests.
Invariants: bounded slices: group requests run first, and requests of either kind occupy the event
  loop for at most SLICE_NS at a time; responses and deferred work of a slice are sent and done at
  its end, even if one of its requests fails.
"""

from __future__ import annotations

import asyncio
from collections import deque

from pylog._native.server.reactor import RequestContext
from pylog.server.event_processor import EventProcessor
from pylog.server.request_runner import RequestRunner
from pylog.server.request_tasks import RequestTasks
from pylog.server.response_sender import ResponseSender
from pylog.server.scheduling import GROUP_APIS, QUEUED_MAX, SLICE_NS

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog.server.services import Services


class RequestQueue:
    """Group requests and other requests, oldest first."""

    def __init__(self, services: Services):
        tasks = RequestTasks()
        self._reactors = services.reactors
        self._clock_ns = services.quotas.clock_ns
        self._end_of_tick = services.end_of_tick
        self._sender = ResponseSender(services)
        self._runner = RequestRunner(services, self._sender, tasks)
        self._events = EventProcessor(services, tasks)
        self._group_requests: deque[RequestContext] = deque()
        self._other_requests: deque[RequestContext] = deque()
        self._resuming = False  # resume() is scheduled.

    def drain(self) -> None:
        """Process available events and requests for at most one slice.

        Also takes events that arrive during the slice: work deferred to its end, such as appends
        and responses, then forms larger batches.
        """
        self._sender.hold()
        self._end_of_tick.begin()
        try:
            self._run_slice()
        finally:
            # Even after an exception, finish the deferred work and send the responses.
            self._end_of_tick.end()
            self._sender.flush()

    def _run_slice(self) -> None:
        clock_ns, run = self._clock_ns, self._runner.run
        group_requests, other_requests = self._group_requests, self._other_requests
        until_ns = clock_ns() + SLICE_NS
        while (self._poll() or group_requests) and clock_ns() < until_ns:
            while group_requests and clock_ns() < until_ns:
                run(group_requests.popleft())
        until_ns = clock_ns() + (SLICE_NS // 5 if group_requests else SLICE_NS)
        while other_requests:
            run(other_requests.popleft())
            if clock_ns() >= until_ns:
                break
        if (group_requests or other_requests) and not self._resuming:
            self._resuming = True  # Bounded slices: let other tasks of the event loop run.
            asyncio.get_running_loop().call_soon(self._resume)

    def _poll(self) -> bool:
        """Queue new requests, and process other events. Return False if there are none."""
        if max(len(self._group_requests), len(self._other_requests)) >= QUEUED_MAX:
            return False
        events = self._reactors.poll()
        for event in events:
            if type(event) is not RequestContext:
                self._events.process(event)
            elif event.api_key in GROUP_APIS:
                self._group_requests.append(event)
            else:
                self._other_requests.append(event)
        return bool(events)

    def _resume(self) -> None:
        self._resuming = False
        self.drain()
