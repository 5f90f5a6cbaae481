"""The asyncio clients, with pylog.client's names: `from pylog.client.aio import Consumer`.

Owns: the names; each is imported on first use.
Invariants: a client belongs to the loop that it was started on.
"""

from __future__ import annotations

import importlib

from pylog.client.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

TYPE_CHECKING = False  # Keeps imports lazy.
if TYPE_CHECKING:
    from pylog._native.client.columns import Record
    from pylog.client.admin.admin import Admin
    from pylog.client.consumer.aio_consumer import Consumer
    from pylog.client.producer.aio_producer import Producer
    from pylog.client.share.acknowledgements import Acknowledge
    from pylog.client.share.aio_share_consumer import ShareConsumer

_PLACES = {"Acknowledge": "pylog.client.share.acknowledgements",
           "ShareConsumer": "pylog.client.share.aio_share_consumer",
           "Admin": "pylog.client.admin.admin", "Consumer": "pylog.client.consumer.aio_consumer",
           "Producer": "pylog.client.producer.aio_producer",
           "Record": "pylog._native.client.columns"}

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
