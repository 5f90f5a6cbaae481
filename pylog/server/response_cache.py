"""Caches responses that depend only on the request and the metadata image.

Owns: cached frames, and requests that wait for a response in progress.
Invariants: a frame is used only with the image it was created from; frames and their keys use at
  most BYTES_MAX; a slow response is created once for all requests that arrive before it is
  complete.
Source: none. Without it, when many clients of a broker with thousands of partitions start at once,
  each would cause the same Metadata response to be created.
"""

from __future__ import annotations

import types

from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.protocol import api

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.metadata.image.image import Image
    from pylog.server.request_tasks import RequestTasks
    from pylog.server.response_sender import ResponseSender
    from pylog.server.services import Services

CACHED_APIS = frozenset((api.METADATA,))
BODY_BYTES_MAX = 4096
BYTES_MAX = 8 << 20


class SharedResponse:
    """A response in progress, created from `image`, and the other requests that wait for it."""

    __slots__ = ("image", "waiting")

    def __init__(self, image: Image):
        self.image = image
        self.waiting: list[RequestContext] = []


class FrameCache:
    """Frames by (api key, version, listener, …, body)."""

    def __init__(self) -> None:
        self._image: Image | None = None
        self._frames: dict[tuple, bytes] = {}
        self._bytes = 0
        self._in_progress: dict[tuple, SharedResponse] = {}

    def find(self, image: Image, key: tuple) -> bytes | None:
        """Return the frame for `key` and this image, or None. Drops the frames of another image."""
        if image is not self._image:
            self._image = image
            self._frames.clear()
            self._bytes = 0
        return self._frames.get(key)

    def add(self, image: Image, key: tuple, frame: bytes) -> None:
        """Add a frame. Ignores frames of another image, or longer than BYTES_MAX."""
        size = len(frame) + len(key[-1])
        if image is not self._image or size > BYTES_MAX:
            return
        if self._bytes + size > BYTES_MAX:
            self._frames.clear()
            self._bytes = 0
        self._frames[key] = frame
        self._bytes += size
        assert self._bytes <= BYTES_MAX, (self._bytes, size)

    def join(self, image: Image, key: tuple, context: RequestContext) -> bool:
        """Let a request wait for the response in progress. Return False if there is none."""
        shared = self._in_progress.get(key)
        if shared is None or shared.image is not image:
            return False
        shared.waiting.append(context)
        return True

    def begin(self, image: Image, key: tuple) -> SharedResponse:
        """Mark the response for `key` as in progress until end()."""
        shared = self._in_progress[key] = SharedResponse(image)
        return shared

    def end(self, key: tuple, shared: SharedResponse) -> None:
        # It may have been replaced by a response for another image.
        if self._in_progress.get(key) is shared:
            del self._in_progress[key]


class ResponseCache:
    """Sends cached responses, and caches new ones."""

    def __init__(self, services: Services, sender: ResponseSender, tasks: RequestTasks):
        self._metadata = services.metadata
        self._reactors = services.reactors
        self._quotas = services.quotas
        self._sender = sender
        self._tasks = tasks
        self._frames = FrameCache()

    def key_of(self, context: RequestContext, body: bytes) -> tuple | None:
        """Return what the response depends on besides the image, None if it is not cacheable."""
        if len(body) > BODY_BYTES_MAX or self._quotas.timed:
            return None
        if self._metadata.departures is not None and self._metadata.departures.any:
            return None
        return (context.api_key, context.api_version, context.listener, context.local_host,
                context.local_port, context.principal, body)

    def respond(self, context: RequestContext, key: tuple) -> bool:
        """Send the cached response, or let the request wait for the response in progress. Return
        False if there is none.
        """
        image = self._metadata.image
        frame = self._frames.find(image, key)
        if frame is not None:
            self._sender.send_frame(context, frame, context.taken_ns)
            return True
        if self._frames.join(image, key, context):
            context.parked_ns = context.taken_ns
            return True
        return False

    def add(self, context: RequestContext, result: Any, key: tuple) -> None:
        """Send and cache a handler's result. The results of cached APIs are responses or
        coroutines.
        """
        image = self._metadata.image
        if type(result) is types.CoroutineType:
            context.parked_ns = self._reactors.now_ns()
            self._tasks.start(
                self._respond_to_all(context, result, key, self._frames.begin(image, key)))
            return
        assert type(result) is not DeferredResponse, context.api_key
        frame = self._sender.respond(context, result)
        if frame is not None:
            self._frames.add(image, key, frame)

    async def _respond_to_all(self, context: RequestContext, coroutine: Coroutine, key: tuple,
                              shared: SharedResponse) -> None:
        """Send the coroutine's response to its request, and to all requests that joined it."""
        try:
            frame = await self._sender.respond_when_done(context, coroutine)
        finally:
            self._frames.end(key, shared)
        if frame is not None:
            self._frames.add(shared.image, key, frame)
        for other in shared.waiting:
            if frame is None:
                self._sender.refuse(other, "an earlier identical request was rejected")
            else:
                self._sender.send_frame(other, frame)
