"""Call functions of the application on an event loop.

Owns: nothing.
Invariants: exceptions of these functions never reach the client's code, and the client's state is
  complete before and after the call; SystemExit and KeyboardInterrupt end an event loop of the
  application, as in asyncio, but not the loop that the blocking clients share.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

_LOG = logging.getLogger("pylog.client")


def call(what: str, function: Callable[..., Any], *given: Any) -> None:
    """Call function(*given) and log its exception. what: its name for the log."""
    try:
        function(*given)
    except (SystemExit, KeyboardInterrupt) as failure:
        _LOG.error("%s raised %r", what, failure)
        try:
            asyncio.get_running_loop().call_soon(_raise, failure)  # As in asyncio.
        except RuntimeError:
            pass  # No loop runs here.
    except BaseException:  # CancelledError too.
        _LOG.exception("%s failed", what)


def deserializer_of(given: Any) -> Callable[[bytes], Any] | None:
    """Return the function of a deserializer setting: an object, or a function of bytes."""
    found: Callable[[bytes], Any] | None = getattr(given, "deserialize", given)
    return found


def interceptors_of(given: Iterable[Any]) -> list[Any]:
    """Return the interceptors of a setting: each is an object, a class, or a dotted name."""
    return [_instance(one) for one in given]


def _instance(given: Any) -> Any:
    if isinstance(given, str):
        module, _, name = given.rpartition(".")
        given = getattr(importlib.import_module(module), name)
    return given() if isinstance(given, type) else given


def close_interceptors(interceptors: Iterable[Any]) -> None:
    """Call the close of each interceptor that has one."""
    for interceptor in interceptors:
        if hasattr(interceptor, "close"):
            call("an interceptor's close", interceptor.close)


def intercepted(interceptors: Iterable[Any], records: Any) -> Any:
    """Return a poll's records after each interceptor's on_consume.

    Raises its exception, and TypeError if it returns None: the poll would seem empty, and its
    records would be committed.
    """
    for interceptor in interceptors:
        records = interceptor.on_consume(records)
        if records is None:
            raise TypeError(f"{type(interceptor).__qualname__}.on_consume returned None: return "
                            "the records")
    return records


def _raise(failure: BaseException) -> None:
    raise failure
