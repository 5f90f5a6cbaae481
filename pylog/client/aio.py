"""The asyncio clients, with pylog.client's names: `from pylog.client.aio import Consumer`.

Owns: the names; each is imported on first use.
Invariants: a client belongs to the loop that it was started on.
"""

from __future__ import annotations

import importlib

from pylog.client.types import (
    OffsetAndMetadata, OffsetAndTimestamp, RecordMetadata, TopicPartition,
)

TYPE_CHECKING = False  # Keeps imports lazy.
if TYPE_CHECKING:
    from pylog._native.client.columns import Record
    from pylog.client import errors
    from pylog.client.admin.admin import Admin
    from pylog.client.admin.types import ConfigResource, NewTopic, ResourceType
    from pylog.client.consumer.aio_consumer import Consumer
    from pylog.client.consumer.aio_scan import scan
    from pylog.client.consumer.rebalance_listener import RebalanceListener
    from pylog.client.errors import KafkaError
    from pylog.client.interfaces import Deserializer, Serializer
    from pylog.client.producer.aio_producer import Producer
    from pylog.client.producer.delivery import Delivery, TableDelivery
    from pylog.client.share.acknowledgements import Acknowledge
    from pylog.client.share.aio_share_consumer import ShareConsumer

# Other names are those of pylog.client.
_MODULES = {"Admin": "pylog.client.admin.admin",
            "Consumer": "pylog.client.consumer.aio_consumer",
            "Producer": "pylog.client.producer.aio_producer",
            "ShareConsumer": "pylog.client.share.aio_share_consumer",
            "scan": "pylog.client.consumer.aio_scan"}

__all__ = ["Acknowledge", "Admin", "ConfigResource", "Consumer", "Delivery", "Deserializer",
           "KafkaError", "NewTopic", "OffsetAndMetadata", "OffsetAndTimestamp", "Producer",
           "RebalanceListener", "Record", "RecordMetadata", "ResourceType", "Serializer",
           "ShareConsumer", "TableDelivery", "TopicPartition", "errors", "scan"]


def _imported(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES.get(name, "pylog.client")), name)
    globals()[name] = found
    return found


if not TYPE_CHECKING:
    __getattr__ = _imported
