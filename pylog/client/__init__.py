"""A client for Kafka-protocol brokers that returns records as columns or one at a time.

Owns: the public names; each is imported on first use.
Invariants: importing this package imports neither numpy nor pyarrow; `pylog.client.aio` has the
  same names for asyncio.
"""

from __future__ import annotations

import importlib

from pylog import installation

installation.check()

TYPE_CHECKING = False  # Keeps imports lazy.
if TYPE_CHECKING:
    from pylog._native.client.columns import Record
    from pylog.client import errors
    from pylog.client.admin.blocking import Admin
    from pylog.client.consumer.consumer import Consumer
    from pylog.client.producer.delivery import Delivery, TableDelivery
    from pylog.client.admin.types import ConfigResource, NewTopic, ResourceType
    from pylog.client.errors import KafkaError
    from pylog.client.interfaces import Deserializer, Serializer
    from pylog.client.consumer.rebalance_listener import RebalanceListener
    from pylog.client.types import (
        OffsetAndMetadata, OffsetAndTimestamp, RecordMetadata, TopicPartition,
    )
    from pylog.client.producer.producer import Producer
    from pylog.client.consumer.scan import scan
    from pylog.client.share.acknowledgements import Acknowledge
    from pylog.client.share.share_consumer import ShareConsumer


_MODULES = {
    "Admin": "admin.blocking", "Consumer": "consumer.consumer", "Producer": "producer.producer",
    "TopicPartition": "types", "OffsetAndMetadata": "types", "OffsetAndTimestamp": "types",
    "KafkaError": "errors", "RebalanceListener": "consumer.rebalance_listener",
    "NewTopic": "admin.types",
    "ConfigResource": "admin.types", "ResourceType": "admin.types",
    "Delivery": "producer.delivery", "RecordMetadata": "types",
    "TableDelivery": "producer.delivery", "Deserializer": "interfaces", "Serializer": "interfaces",
    "scan": "consumer.scan",
    "ShareConsumer": "share.share_consumer", "Acknowledge": "share.acknowledgements",
}
_NATIVE = {"Record": "pylog._native.client.columns"}

__all__ = ["Acknowledge", "Admin", "ConfigResource", "Consumer", "Delivery", "Deserializer",
           "KafkaError", "NewTopic", "OffsetAndMetadata", "OffsetAndTimestamp", "Producer",
           "RebalanceListener", "Record", "RecordMetadata", "ResourceType", "Serializer",
           "ShareConsumer", "TableDelivery", "TopicPartition", "errors", "scan"]


def _imported(name: str) -> object:
    if name == "errors":
        return importlib.import_module("pylog.client.errors")
    if name not in _MODULES and name not in _NATIVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _NATIVE.get(name) or f"{__name__}.{_MODULES[name]}"
    found = getattr(importlib.import_module(module), name)
    globals()[name] = found
    return found


if not TYPE_CHECKING:
    __getattr__ = _imported
