"""Clients' regular expressions, matched in bounded time for any expression and text.

Owns: nothing.
Invariants: a match takes at most STEPS_MAX steps for each character of the text, because it follows
  all alternatives in parallel without backtracking; an expression with more alternatives is
  rejected, and so are back references and lookaround, which need backtracking.
Source: K. Thompson, Regular expression search algorithm, 1968; KIP-1152 (RE2's expressions).
"""

from __future__ import annotations

import re

from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Test = Callable[[str], bool]

CHARACTERS_MAX = 1000
STEPS_MAX = 512
KNOWN_MAX = 4096  # cached steps
END = 0
_REPEATS = frozenset((constants.MAX_REPEAT, constants.MIN_REPEAT))
_AT_START = frozenset((constants.AT_BEGINNING, constants.AT_BEGINNING_STRING))
_AT_END = frozenset((constants.AT_END, constants.AT_END_STRING))
_CATEGORIES: dict[Any, Test] = {
    constants.CATEGORY_DIGIT: str.isdecimal,
    constants.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
    constants.CATEGORY_SPACE: str.isspace,
    constants.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    constants.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
    constants.CATEGORY_NOT_WORD: lambda character: not (character.isalnum() or character == "_"),
}


class Pattern:
    """An expression that is matched with complete texts. Raises re.error."""

    def __init__(self, text: str):
        if len(text) > CHARACTERS_MAX:
            raise re.error("the expression is too long")
        self._tests: list[tuple[Test, int] | None] = [None]  # transition out of a state
        self._free: list[list[int]] = [[]]  # states reachable without a character
        self._only: dict[int, object] = {}  # only at the start or the end
        self._left = STEPS_MAX
        try:
            tree = parser.parse(text)
            if tree.state.flags & ~re.UNICODE:
                raise re.error("flags are not supported")
            first = self._sequence(tree, END)
        except (RecursionError, OverflowError):
            raise re.error("the expression is too large") from None
        assert len(self._tests) == len(self._free) <= STEPS_MAX + 1
        self._first = self._reached((first,), constants.AT_BEGINNING)
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, text: str) -> bool:
        """Return True if the expression matches the complete text."""
        states = self._first
        for character in text:
            states = self._known.get((states, character)) or self._step(states, character)
            if not states:
                return False
        if not text:
            states = self._reached(states, constants.AT_BEGINNING, constants.AT_END)
        return END in self._reached(states, constants.AT_END)

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        found = []
        for state in states:
            transition = self._tests[state]
            if transition is not None and transition[0](character):
                found.append(transition[1])
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        reached = self._known[states, character] = self._reached(found)
        return reached

    def _reached(self, states: Iterable[int], *where: object) -> frozenset[int]:
        """Return the states and those reachable without a character. where: the position in the
        text.
        """
        found: set[int] = set()
        left = list(states)
        while left:
            state = left.pop()
            if state in found:
                continue
            found.add(state)
            if self._only.get(state) is None or self._only[state] in where:
                left += self._free[state]
        return frozenset(found)

    # ---- from the expression to states ----------------------------------------------------------

    def _charge(self) -> None:
        """Raise re.error if the expression has too many states."""
        if self._left == 0:
            raise re.error("the expression is too large")
        self._left -= 1

    def _state(self, free: list[int], test: tuple[Test, int] | None = None) -> int:
        self._charge()
        self._free.append(free)
        self._tests.append(test)
        return len(self._free) - 1

    def _sequence(self, parts: Any, then: int) -> int:
        """Return the first state of a sequence that leads to `then`."""
        for kind, value in reversed(list(parts)):
            then = self._part(kind, value, then)
        return then

    def _part(self, kind: Any, value: Any, then: int) -> int:
        if kind in _REPEATS:
            return self._repeat(value, then)
        if kind is constants.SUBPATTERN:
            _, added, removed, parts = value
            if added or removed:
                raise re.error("flags are not supported")
            return self._sequence(parts, then)
        if kind is constants.BRANCH:
            return self._state([self._sequence(branch, then) for branch in value[1]])
        if kind is constants.AT and value in _AT_START | _AT_END:
            state = self._state([then])
            self._only[state] = constants.AT_BEGINNING if value in _AT_START else constants.AT_END
            return state
        return self._state([], (_test(kind, value), then))

    def _repeat(self, value: Any, then: int) -> int:
        low, high, parts = value
        if high == constants.MAXREPEAT:
            loop = self._state([then])
            self._free[loop].append(self._sequence(parts, loop))
            then = loop
        else:
            end = then
            for _ in range(high - low):
                then = self._state([self._sequence(parts, then), end])
        for _ in range(low):
            self._charge()
            then = self._sequence(parts, then)
        return then


def _test(kind: Any, value: Any) -> Test:
    """Return a test for the characters that a part of an expression matches. Raises re.error."""
    if kind is constants.ANY:
        return lambda character: character != "\n"
    if kind is constants.LITERAL:
        return chr(value).__eq__
    if kind is constants.NOT_LITERAL:
        return chr(value).__ne__
    if kind is constants.RANGE:
        low, high = map(chr, value)
        return lambda character: low <= character <= high
    if kind is constants.CATEGORY:
        return _CATEGORIES[value]
    if kind is constants.IN:
        negated = value[0][0] is constants.NEGATE
        tests = [_test(*item) for item in value[negated:]]
        return lambda character: any(test(character) for test in tests) != negated
    raise re.error(f"{str(kind).lower()} is not supported")
