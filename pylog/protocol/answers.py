"""An answer that grows from parts of it, each written down at once, within a bound.

Owns: what is written of the answers that are being made.
Called by: dispatch; one thread at a time.
Invariants: (1) a part's elements are bytes before the next part is made; (2) the bytes are counted
  as they come, and no answer grows beyond bytes_max; (3) neighbouring parts of one element, by
  its key, become one element.
Source: protocol.elements, for the arrays that grow.
"""

from pylog._native.message import AnswerTooLong
from pylog.protocol import codec

# What a part says of the whole answer; the first part says the rest.
_OF_THE_WHOLE = ("error_code", "error_message", "next_cursor")


class Answer:
    """The answer to one request."""

    def __init__(self, api_key: int, version: int, bytes_max: int):
        self._levels = codec.answered_levels(api_key, version)
        self._open = [None] * len(self._levels)
        self._bytes_max = bytes_max
        self._whole = None
        self.bytes = 0

    @property
    def whole(self):
        """The message, once a part was added."""
        return self._whole

    def add(self, part) -> None:
        """Takes the elements of a response that is a part of this one. Raises AnswerTooLong."""
        if not self._levels:
            assert self._whole is None, type(part)
            self._whole = part
            return
        name = self._levels[0][0]
        rows = getattr(part, name)
        if self._whole is None:
            self._whole = part
            if rows is None:
                return
            setattr(part, name, [])
        else:
            self._take_over(part)
        self._grow(0, getattr(self._whole, name), rows or [])

    def _take_over(self, part) -> None:
        for name in _OF_THE_WHOLE:
            told = getattr(part, name, None)
            if told and not getattr(self._whole, name):
                setattr(self._whole, name, told)

    def _grow(self, number: int, into: list, rows: list) -> None:
        if not rows:
            return
        _, keys, program = self._levels[number]
        if number + 1 == len(self._levels):
            into.append(self._written(program, rows))
            return
        below = self._levels[number + 1][0]
        opened = self._open[number]
        first = 0
        if opened is not None and _is_same(opened, rows[0], keys):
            # Keeps (3).
            self._grow(number + 1, getattr(opened, below), getattr(rows[0], below))
            if getattr(rows[0], "error_code", 0):
                opened.error_code = rows[0].error_code
            first = 1
        if first == len(rows):
            return
        if len(rows) - first > 1:
            into.append(self._written(program, rows[first:-1]))
        last = self._open[number] = rows[-1]
        into.append(last)
        if number + 2 < len(self._levels):
            self._open[number + 1] = None
        inner = getattr(last, below)
        setattr(last, below, [])
        self._grow(number + 1, getattr(last, below), inner)

    def _written(self, program, rows: list):
        # Keeps (1), (2).
        written = program.encoded_all(rows)
        self.bytes += len(written)
        if self.bytes > self._bytes_max:
            raise AnswerTooLong(f"{program.title}: more than {self._bytes_max} bytes")
        return written


def _is_same(one, other, keys: tuple) -> bool:
    return all(getattr(one, key) == getattr(other, key) for key in keys)
