"""Caches responses that depend only on the request and the metadata image.

Owns: cached frames, and requests that wait for a response in progress.
Invariants: a frame is used only with the image it was created from; frames and their keys use at
  most BYTES_MAX; a slow response is created once for all requests that arrive before it is
  complete.
Source: none. Without it, when many clients of a broker with thousands of partitions start at once,
  each would cause the same Metadata response to be created.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.reactor import RequestContext
    from pylog.metadata.image.image import Image

BODY_BYTES_MAX = 4096
BYTES_MAX = 8 << 20


class Making:
    """A response in progress, created from `image`, and the other requests that wait for it."""

    __slots__ = ("image", "waiting")

    def __init__(self, image: Image):
        self.image = image
        self.waiting: list[RequestContext] = []


class AnswerCache:
    """Frames by (api key, version, listener, …, body)."""

    def __init__(self) -> None:
        self._image: Image | None = None
        self._frames: dict[tuple, bytes] = {}
        self._bytes = 0
        self._making: dict[tuple, Making] = {}

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
        making = self._making.get(key)
        if making is None or making.image is not image:
            return False
        making.waiting.append(context)
        return True

    def begin(self, image: Image, key: tuple) -> Making:
        """Mark the response for `key` as in progress until end()."""
        making = self._making[key] = Making(image)
        return making

    def end(self, key: tuple, making: Making) -> None:
        # It may have been replaced by a response for another image.
        if self._making.get(key) is making:
            del self._making[key]
