"""Eligible leader replicas (ELR): if a cluster has them, and what invalidates them.

Owns: nothing.
Invariants: every ELR member was added under the min.insync.replicas in force; with ELR, all brokers
  use one min.insync.replicas.
Source: KIP-966; Kafka's ConfigurationControlManager.
"""

from pylog.config.values import format_value
from pylog.metadata.image import feature_levels
from pylog.metadata.image.image import RESOURCE_BROKER, RESOURCE_TOPIC, Image
from pylog.protocol import messages

ELR_FEATURE = feature_levels.ELR_FEATURE
MIN_IN_SYNC = "min.insync.replicas"


def cleared(image: Image, records: list) -> list:
    """Return the records that must follow a decision's ConfigRecords. They clear ELRs that were
    built under another min.insync.replicas.
    """
    if not image.features.get(ELR_FEATURE, 0):
        return []
    return [messages.ClearElrRecord(topic_name=(
        record.resource_name if record.resource_type == RESOURCE_TOPIC else ""))
        for record in records
        if type(record).__name__ == "ConfigRecord" and record.name == MIN_IN_SYNC]


def single_min_isr(image: Image, settings) -> list:
    """Return the records that give all brokers one min.insync.replicas."""
    records = [messages.ConfigRecord(resource_type=kind, resource_name=name, name=MIN_IN_SYNC,
                                     value=None)
               for (kind, name), values in image.configs.items()
               if kind == RESOURCE_BROKER and name and MIN_IN_SYNC in values]
    if MIN_IN_SYNC not in image.configs.get((RESOURCE_BROKER, ""), {}):
        records.append(messages.ConfigRecord(
            resource_type=RESOURCE_BROKER, resource_name="", name=MIN_IN_SYNC,
            value=format_value(settings[MIN_IN_SYNC])))
    return records
