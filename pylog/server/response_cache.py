"""Answers that are given again to whoever asks the same, while the image stays what it is.

Owns: the frames of answers, and who waits for one that is being made.
Invariants: (1) an answer is given only while the image is the one it was made from; (2) the frames
  take BYTES_MAX at most, with what was asked; (3) an answer that takes long is made once for all
  who ask for it meanwhile.
Source: Kafka has none: a broker of thousands of partitions whose clients all start at once is
  asked for the same Metadata by each of them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from pylog._native.reactor import RequestContext
    from pylog.metadata.image.image import Image

BODY_BYTES_MAX = 4096
BYTES_MAX = 8 << 20


class Making:
    """An answer that is being made from `image`, and the others who wait for it."""

    __slots__ = ("image", "waiting")

    def __init__(self, image: Image):
        self.image = image
        self.waiting: list[RequestContext] = []


class AnswerCache:
    """Frames by what was asked, and where: (..., body)."""

    def __init__(self) -> None:
        self._image: Image | None = None
        self._frames: dict[tuple, bytes] = {}
        self._bytes = 0
        self._making: dict[tuple, Making] = {}

    def find(self, image: Image, key: tuple) -> bytes | None:
        """The frame that answers `key`. Keeps (1)."""
        if image is not self._image:
            self._image = image
            self._frames.clear()
            self._bytes = 0
        return self._frames.get(key)

    def add(self, image: Image, key: tuple, frame: bytes) -> None:
        """Keeps (1), (2): a frame of another image, or one that is too long, is not taken."""
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
        """Lets a request wait for the answer that is being made; False when there is none (3)."""
        making = self._making.get(key)
        if making is None or making.image is not image:
            return False
        making.waiting.append(context)
        return True

    def begin(self, image: Image, key: tuple) -> Making:
        """The answer to `key` is being made from now on, until end()."""
        making = self._making[key] = Making(image)
        return making

    def end(self, key: tuple, making: Making) -> None:
        # Another image may have begun another one.
        if self._making.get(key) is making:
            del self._making[key]
