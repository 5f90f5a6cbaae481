"""Explain why a record cannot be sent.

Owns: nothing.
Invariants: errors show a value's type, never the value: it may be a secret.
Source: none.
"""

from __future__ import annotations

from typing import Any

from pylog.client.errors import SerializationError


def of(topic: Any, key: Any, value: Any, headers: Any, failure: Exception) -> SerializationError:
    """Return the error for a record whose key, value or headers native code rejected."""
    for name, given in (("key", key), ("value", value)):
        if given is not None and not _is_bytes(given):
            return SerializationError(
                f"{topic}: the {name} is of type {type(given).__name__}",
                remedy=f"send bytes, str or a buffer, or give the producer a {name}.serializer")
    return SerializationError(f"{topic}: headers are (name, bytes) pairs: {failure}"
                              if headers else f"{topic}: {failure}")


def _is_bytes(given: Any) -> bool:
    if isinstance(given, (bytes, str)):
        return True
    try:
        memoryview(given)
    except TypeError:
        return False
    return True
