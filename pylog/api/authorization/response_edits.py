"""Answers of handlers, changed before they leave: a row more, or less, whatever way they come.

Owns: nothing.
Invariants: (1) an answer in parts is changed part by part, and stays one.
Source: none.
"""

from __future__ import annotations

import types

from pylog.coordinator.runtime.deferred_reply import Pending

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.api.handler import Message, Result

_AWAITED = frozenset((types.CoroutineType, Pending))


def edited(result: Any, edit: Callable[[Message], None]) -> Result:
    """A handler's result, each message of it changed by edit()."""
    if type(result) is types.GeneratorType:
        return _edited_parts(result, edit)
    if type(result) is types.AsyncGeneratorType:
        return _later_edited_parts(result, edit)
    if type(result) in _AWAITED:
        return _later_edited(result, edit)
    edit(result)
    return result


async def _later_edited(result: Any, edit: Callable) -> Message:
    return edited(await result, edit)


def _edited_parts(parts: Any, edit: Callable) -> Any:
    for part in parts:
        if part is not None:
            edit(part)
        yield part


async def _later_edited_parts(parts: Any, edit: Callable) -> Any:
    async for part in parts:
        if part is not None:
            edit(part)
        yield part


def with_rows(result: Any, field: str, rows: list) -> Result:
    """A handler's result with more rows in an array of the answer."""
    if type(result) is types.GeneratorType:
        return _parts_with_rows(result, field, rows)
    if type(result) is types.AsyncGeneratorType:
        return _later_parts_with_rows(result, field, rows)
    if type(result) in _AWAITED:
        return _later_with_rows(result, field, rows)
    setattr(result, field, list(getattr(result, field) or ()) + rows)
    return result


async def _later_with_rows(result: Any, field: str, rows: list) -> Message:
    return with_rows(await result, field, rows)


def _parts_with_rows(parts: Any, field: str, rows: list) -> Any:
    kind = None
    for part in parts:
        if part is not None:
            kind = type(part)
        yield part
    if kind is not None:
        yield kind(**{field: rows})


async def _later_parts_with_rows(parts: Any, field: str, rows: list) -> Any:
    kind = None
    async for part in parts:
        if part is not None:
            kind = type(part)
        yield part
    if kind is not None:
        yield kind(**{field: rows})
