"""Eligible leader replicas: whether a cluster keeps them, and what makes them void.

Owns: nothing.
Called by: metadata.controller, metadata.configs; the rest of them is in metadata.partition_change.
Invariants: (1) a replica was made eligible under the min.insync.replicas that is in force.
Source: KIP-966; Kafka's ConfigurationControlManager.
"""

from pylog.metadata.image import RESOURCE_TOPIC, Image
from pylog.protocol import messages

ELR_FEATURE = "eligible.leader.replicas.version"
MIN_IN_SYNC = "min.insync.replicas"


def cleared(image: Image, records: list) -> list:
    """What must follow the ConfigRecords of a decision. Keeps (1)."""
    if not image.features.get(ELR_FEATURE, 0):
        return []
    return [messages.ClearElrRecord(topic_name=(
        record.resource_name if record.resource_type == RESOURCE_TOPIC else ""))
        for record in records
        if type(record).__name__ == "ConfigRecord" and record.name == MIN_IN_SYNC]
