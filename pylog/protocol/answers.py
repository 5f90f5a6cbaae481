"""Builds a response from parts. Each part is encoded immediately, and the total size is limited.

Owns: the encoded bytes of unfinished responses.
Invariants: a part's elements are encoded before the next part is created, except for the last
  element of each array, which the next part may continue; bytes are counted as they are encoded,
  and no response exceeds bytes_max; adjacent elements with the same key in two parts become one
  element.
Source: protocol.elements, for the arrays that grow.
"""

from pylog._native.protocol.encode import Encoded
from pylog._native.protocol.message import AnswerTooLong
from pylog.protocol import codec

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from typing import Any

# Top-level fields that a later part may set if the first part did not.
_OF_THE_WHOLE = ("error_code", "error_message", "next_cursor")
_PACK = 128  # Number of byte strings to join into one.


class ResponseWriter:
    """The response to one request."""

    def __init__(self, api_key: int, version: int, bytes_max: int):
        self.levels = codec.response_levels(api_key, version)
        self.bytes = 0
        self._bytes_max = bytes_max
        self._whole: Any = None
        self._top: _Array | None = None

    def add(self, part) -> None:
        """Add a part, a response message. Raises AnswerTooLong."""
        if not self.levels:
            assert self._whole is None, type(part)
            self._whole = part
            return
        name = self.levels[0][0]
        rows = getattr(part, name)
        if self._whole is None:
            self._whole = part
            if rows is None:
                return
            setattr(part, name, [])
            self._top = _Array(self, 0, getattr(part, name))
        else:
            self._take_over(part)
        if rows:
            assert self._top is not None, name
            self._top.add(rows)

    def finished(self):
        """Return the message after the last part."""
        if self._top is not None:
            self._top.close()
        return self._whole

    def count(self, size: int) -> None:
        """Count encoded bytes. Raises AnswerTooLong above bytes_max."""
        self.bytes += size
        if self.bytes > self._bytes_max:
            raise AnswerTooLong(f"the answer has more than {self._bytes_max} bytes")

    def _take_over(self, part) -> None:
        for name in _OF_THE_WHOLE:
            value = getattr(part, name, None)
            if value and not getattr(self._whole, name):
                setattr(self._whole, name, value)


class _Array:
    """One array of a response. `rows`: its encoded elements, without the open element."""

    __slots__ = ("_response", "_before", "_below", "_inner", "_keys", "_number", "_opened",
                 "_packed", "_program", "_rows")

    def __init__(self, response: ResponseWriter, number: int, rows: list):
        self._response = response
        self._number = number
        self._rows = rows
        _, self._keys, self._program = response.levels[number]
        self._below = response.levels[number + 1][0] if number + 1 < len(response.levels) else ""
        self._opened: Any = None  # Both are None, or neither.
        self._inner: _Array | None = None
        self._before = 0  # Size of the response before the open element.
        self._packed = 0  # Number of joined rows.

    def add(self, rows: list) -> None:
        if not self._below:
            self._put(rows)
            return
        first = 0
        if self._opened is not None and _is_same(self._opened, rows[0], self._keys):
            # The part continues the open element.
            first = 1
            inner = getattr(rows[0], self._below)
            assert self._inner is not None
            if inner:
                self._inner.add(inner)
            if getattr(rows[0], "error_code", 0):
                self._opened.error_code = rows[0].error_code
        if first < len(rows):
            self.close()
            if len(rows) - first > 1:
                self._put(rows[first:-1])
            self._open(rows[-1])

    def close(self) -> None:
        """Encode the open element."""
        if self._opened is None:
            return
        assert self._inner is not None
        self._inner.close()
        row, self._opened = self._opened, None
        self._response.bytes = self._before
        self._put([row])

    def _open(self, row) -> None:
        inner = None if isinstance(row, Encoded) else getattr(row, self._below)
        if inner is None:
            self._put([row])
            return
        setattr(row, self._below, [])
        self._before = self._response.bytes
        self._opened = row
        self._inner = _Array(self._response, self._number + 1, getattr(row, self._below))
        if inner:
            self._inner.add(inner)

    def _put(self, rows: list) -> None:
        # Encode now, before the next part is created.
        written = self._program.encoded_all(rows)
        self._rows.append(written)
        if len(self._rows) - self._packed >= _PACK:
            self._rows[self._packed:] = [self._program.encoded_all(self._rows[self._packed:])]
            self._packed += 1
        self._response.count(len(written))


def _is_same(row, other, keys: tuple) -> bool:
    return not isinstance(other, Encoded) and all(
        [getattr(row, key) == getattr(other, key) for key in keys])
