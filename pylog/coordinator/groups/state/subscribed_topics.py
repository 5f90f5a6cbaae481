"""Resolve subscriptions in the current cluster: topic ids, shapes, and a metadata hash.

Owns: nothing.
Invariants: missing topics are ignored; the hash depends on topic ids, partitions and their racks,
  not on the order of names, and is 0 for no topics.
Source: KIP-848, KIP-1101 (metadata hash). Kafka uses another hash function: a hash written by Kafka
  differs once, which costs one additional assignment.
"""

from collections.abc import Iterable

from pylog.coordinator.groups.assignors.partitions import TopicShape
from pylog.metadata.image.image import Image, Topic


def topic_ids(image: Image, names: Iterable[str]) -> frozenset[bytes]:
    topics = image.topics
    return frozenset(topics[name].id for name in names if name in topics)


def shapes(image: Image, ids: Iterable[bytes]) -> dict[bytes, TopicShape]:
    racks = _racks(image)
    return {id_: TopicShape(len(topic.partitions), _racks_of(topic, racks) if racks else ())
            for id_ in ids if (topic := image.topics_by_id.get(id_)) is not None}


def metadata_hash(image: Image, names: Iterable[str]) -> int:
    """Return a signed 64-bit hash of the topics' metadata, independent of their order."""
    racks = tuple(sorted(_racks(image).items()))
    found = [_topic_hash(topic, racks) for name in sorted(names)
             if (topic := image.topics.get(name)) is not None]
    if not found:
        return 0
    return int.from_bytes(_digest(b"".join(found)), "big", signed=True)


def _racks(image: Image) -> dict[int, str]:
    return {id_: broker.rack for id_, broker in image.brokers.items() if broker.rack is not None}


def _racks_of(topic: Topic, racks: dict[int, str]) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(racks[id_] for id_ in partition.replicas if id_ in racks)
                 for partition in topic.partitions)


def _topic_hash(topic: Topic, racks: tuple[tuple[int, str], ...]) -> bytes:
    text = [topic.name, topic.id.hex(), str(len(topic.partitions))]
    if racks:
        text += [repr(sorted(partition)) for partition in _racks_of(topic, dict(racks))]
    return _digest("\0".join(text).encode("utf-8", "surrogatepass"))


def _digest(data: bytes) -> bytes:
    """Return 8 bytes of BLAKE2b."""
    from hashlib import blake2b  # Takes 1 ms, which a start does not need.

    return blake2b(data, digest_size=8).digest()
