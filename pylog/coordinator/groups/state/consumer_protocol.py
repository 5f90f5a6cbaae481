"""The embedded consumer protocol of classic members: subscriptions and assignments of Kafka's
consumers.

Owns: nothing.
Invariants: unknown later versions are parsed as the latest known version; unreadable bytes raise
  ProtocolError.
Source: KIP-429, KIP-792, KIP-881 (versions 1 to 3).
"""

from typing import Any

from pylog.coordinator.groups.assignors.partitions import Assignment
from pylog.metadata.image.image import Image
from pylog.protocol import codec, messages
from pylog.protocol.errors import ProtocolError

VERSION_MAX = 3
SUBSCRIPTION, ASSIGNMENT = "ConsumerProtocolSubscription", "ConsumerProtocolAssignment"


def version_of(data: bytes) -> int:
    """Parse a versioned message. Raises ProtocolError."""
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        raise ProtocolError("a member's metadata has no version")
    return min(version, VERSION_MAX)


def subscription(data: bytes) -> Any:
    """Parse a ConsumerProtocolSubscription. Raises ProtocolError."""
    return codec.program(SUBSCRIPTION, version_of(data)).decode(data, 2)


def assignment(data: bytes) -> Any:
    """Parse a ConsumerProtocolAssignment; no bytes give an empty one. Raises ProtocolError."""
    if not data:
        return messages.ConsumerProtocolAssignment()
    return codec.program(ASSIGNMENT, version_of(data)).decode(data, 2)


def assignment_bytes(image: Image, held: Assignment, metadata: bytes) -> bytes:
    """Encode an assignment in the version of the member's `metadata`, without deleted topics.

    Uses the first version if `metadata` is unreadable: only the member's first protocol was
    validated when it joined. Never raises.
    """
    new = messages.ConsumerProtocolAssignment
    try:
        version = version_of(metadata)
    except ProtocolError:
        version = 0
    made = new(user_data=None, assigned_partitions=[
        new.TopicPartition(topic=topic.name, partitions=sorted(partitions))
        for topic_id, partitions in held.items()
        if (topic := image.topics_by_id.get(topic_id)) is not None])
    return codec.program(ASSIGNMENT, version).encode(made, version.to_bytes(2, "big"))


def by_id(image: Image, rows: Any) -> dict[bytes, frozenset[int]]:
    """Convert [(topic, partitions)] rows to {topic id: partitions}, without deleted topics."""
    return {image.topics[row.topic].id: frozenset(row.partitions) for row in rows or ()
            if row.topic in image.topics}
