"""Edits of handlers' responses before they are sent: added or removed rows, for every kind of
result.

Owns: nothing.
Invariants: a response in parts is edited part by part, and stays in parts.
Source: none.
"""

from __future__ import annotations

import types

from pylog.coordinator.runtime.deferred_response import DeferredResponse

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.api.handler import Message, Result

_AWAITED = frozenset((types.CoroutineType, DeferredResponse))


def edited(result: Any, edit: Callable[[Message], None]) -> Result:
    """Return a handler's result with edit() applied to each message."""
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
    """Return a handler's result with more rows in an array of the response."""
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
