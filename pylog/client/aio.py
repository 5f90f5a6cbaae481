"""The clients for asyncio, under pylog.client's names: `from pylog.client.aio import Consumer`.

Owns: the names; each is imported when it is first used.
Called by: applications.
Invariants: (1) a client belongs to the loop that it was started on.
"""

from __future__ import annotations

import importlib
from typing import Any

from pylog.client.offsets import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

_PLACES = {"Admin": "pylog.client.administration", "Consumer": "pylog.client.aio_consumer",
           "Producer": "pylog.client.aio_producer", "Record": "pylog._native.columns"}

__all__ = ["OffsetAndMetadata", "OffsetAndTimestamp", "TopicPartition"]
__all__ += list(_PLACES)


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(place), name)
    globals()[name] = found
    return found
