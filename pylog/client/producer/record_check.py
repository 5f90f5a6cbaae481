"""What is wrong with a record that cannot be sent, in words.

Owns: nothing.
Invariants: (1) no value is shown, only its type: it may be a secret.
Source: none.
"""

from __future__ import annotations

from typing import Any

from pylog.client.errors import SerializationError


def of(topic: Any, key: Any, value: Any, headers: Any, failure: Exception) -> SerializationError:
    """The error for a record whose key, value or headers native code did not take."""
    for name, given in (("key", key), ("value", value)):
        if given is not None and not _is_bytes(given):
            return SerializationError(
                f"{topic}: the {name} is of type {type(given).__name__}: send bytes, str or a "
                f"buffer, or give the producer a {name}.serializer")
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
