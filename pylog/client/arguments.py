"""Validate arguments of client calls.

Owns: nothing.
Invariants: a str or bytes is never treated as a list of its characters; every type with
  `__index__`, such as a NumPy integer, is accepted as an int.
Source: none.
"""

from __future__ import annotations

import functools
import inspect
import operator
import warnings
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from pylog._native.protocol.message import Struct

T = TypeVar("T")


def several(name: str, given: Iterable[T], remedy: str | None = None) -> list[T]:
    """Return the items of a list argument. Raises TypeError for a str or bytes."""
    if isinstance(given, (str, bytes, bytearray)):
        raise TypeError(f"{name} takes a list, not {given!r}: {remedy or f'pass [{given!r}]'}")
    return list(given)


def whole(name: str, given: Any) -> int:
    """Return an integer. Raises TypeError."""
    try:
        return operator.index(given)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {given!r}") from None


def seconds(timeout: float | None, timeout_s: float | None) -> float | None:
    """Return the timeout of a call whose argument may still have its earlier name, timeout_s."""
    if timeout_s is None:
        return timeout
    warnings.warn("the argument timeout_s is now named timeout", DeprecationWarning, stacklevel=3)
    return timeout_s


def checks_iterables(kind: type[T]) -> type[T]:
    """Make each public coroutine of a class validate its Iterable arguments: never a str, and for
    Iterable[int] integers.
    """
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
    """Replace other integer types in a request by int. Returns True if there were any.

    Requests are encoded by native code, which accepts only int.
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
