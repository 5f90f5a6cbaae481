"""The type variables of clients and records.

Owns: nothing.
Invariants: importing this module costs nothing but the import of `typing`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Of consumers and their records: what deserializers return.
    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
    # Of producers: what serializers accept.
    KeyIn = TypeVar("KeyIn", default=bytes | bytearray | memoryview | str)
    ValueIn = TypeVar("ValueIn", default=bytes | bytearray | memoryview | str)
else:
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")
    KeyIn, ValueIn = TypeVar("KeyIn"), TypeVar("ValueIn")
