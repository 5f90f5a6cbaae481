"""Reads topics with a client that is not ours."""

import time
import uuid

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec


def new_topic(bootstrap: str, partitions: int = 1, **config) -> str:
    """Create a topic and return its name. It keeps old records: tests write such records."""
    config.setdefault("retention.ms", "-1")
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, partitions, 1, config=config)])
    made[name].result(30)
    return name


def await_markers(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Wait until a topic has no open transaction.

    EndTxn returns when the coordinator has decided; the markers are written after that.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = {TopicPartition(topic, partition): OffsetSpec.latest()
             for partition in range(partitions)}

    def ends(isolation):
        found = admin.list_offsets(asked, isolation_level=isolation)
        return [found[part].result(30).offset for part in asked]

    end_s = time.monotonic() + 60
    while (stable := ends(IsolationLevel.READ_COMMITTED)) != (
            last := ends(IsolationLevel.READ_UNCOMMITTED)):
        assert time.monotonic() < end_s, f"{topic} is stable to {stable} of {last}"
        time.sleep(0.02)


def read_topic(bootstrap: str, topic: str, partitions: int, isolation="read_committed") -> dict:
    """Return records per partition: (offset, key, value, timestamp ms, headers), to the end."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": isolation,
        "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 50,
    })
    found = {partition: [] for partition in range(partitions)}
    left = set(found)
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in found])
    try:
        while left:
            message = consumer.poll(20)
            assert message is not None, f"{topic} does not end"
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                left.discard(message.partition())
                continue
            found[message.partition()].append((
                message.offset(), message.key(), message.value(), message.timestamp()[1],
                message.headers() or []))
    finally:
        consumer.close()
    return found
