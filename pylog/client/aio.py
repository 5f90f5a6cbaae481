"""The clients for asyncio, under pylog.client's names: `from pylog.client.aio import Consumer`.

Owns: the names; each is imported when it is first used.
Invariants: (1) a client belongs to the loop that it was started on.
"""

from __future__ import annotations

import importlib

from pylog.client.offsets import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

TYPE_CHECKING = False  # Nothing is imported before it is used.
if TYPE_CHECKING:
    from pylog._native.columns import Record
    from pylog.client.acknowledgements import Acknowledge
    from pylog.client.administration import Admin
    from pylog.client.aio_consumer import Consumer
    from pylog.client.aio_producer import Producer
    from pylog.client.aio_share_consumer import ShareConsumer

_PLACES = {"Acknowledge": "pylog.client.acknowledgements",
           "ShareConsumer": "pylog.client.aio_share_consumer",
           "Admin": "pylog.client.administration", "Consumer": "pylog.client.aio_consumer",
           "Producer": "pylog.client.aio_producer", "Record": "pylog._native.columns"}

__all__ = ["Acknowledge", "Admin", "Consumer", "OffsetAndMetadata", "OffsetAndTimestamp",
           "Producer", "Record", "ShareConsumer", "TopicPartition"]


def _found(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(place), name)
    globals()[name] = found
    return found


if not TYPE_CHECKING:
    __getattr__ = _found
