"""Checks what an application passes to a call of the client.

Owns: nothing.
Invariants: (1) a str or bytes is never read as a list of its characters; (2) everything with
  `__index__`, such as a NumPy integer, is accepted where an int is.
Source: none.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from pylog._native.message import Struct

T = TypeVar("T")


def several(name: str, given: Iterable[T], remedy: str | None = None) -> list[T]:
    """The items of an argument that takes several. Raises TypeError for a str or bytes."""
    if isinstance(given, (str, bytes, bytearray)):
        raise TypeError(f"{name} takes a list, not {given!r}: {remedy or f'pass [{given!r}]'}")
    return list(given)


def whole(name: str, given: Any) -> int:
    """An integer. Raises TypeError."""
    try:
        return operator.index(given)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {given!r}") from None


def checks_iterables(kind: type[T]) -> type[T]:
    """Has each public coroutine of a class check its arguments that are an Iterable. Keeps (1)
    and, where it is an Iterable[int], (2)."""
    for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction):
        plural = {argument: annotation.startswith("Iterable[int]")
                  for argument, annotation in method.__annotations__.items()
                  if annotation.startswith("Iterable[")}
        if plural and not name.startswith("_"):
            setattr(kind, name, _checking(method, plural))
    return kind


def _checking(method: Callable[..., Coroutine[Any, Any, Any]], plural: dict[str, bool]
              ) -> Callable[..., Coroutine[Any, Any, Any]]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    async def call(*given: Any, **more: Any) -> Any:
        bound = signature.bind(*given, **more)
        for name, are_numbers in plural.items():
            argument = bound.arguments.get(name)
            if argument is not None:
                items = several(name, argument)
                bound.arguments[name] = [whole(name, item) for item in items] \
                    if are_numbers else items
        return await method(*bound.args, **bound.kwargs)

    return call


def with_plain_integers(message: Any) -> bool:
    """Replaces the integers of other types in a request by ints; True when there were any.

    Requests are encoded by native code that takes ints only. Keeps (2).
    """
    found = False
    for name in type(message).__slots__:
        value = getattr(message, name)
        plain = _plain(value)
        if plain is not value:
            setattr(message, name, plain)
            found = True
        for item in plain if isinstance(plain, (list, tuple)) else (plain,):
            if isinstance(item, Struct):
                found |= with_plain_integers(item)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return items if any(one is not other for one, other in zip(items, value)) else value
    if isinstance(value, int) or not hasattr(value, "__index__"):
        return value
    return operator.index(value)
