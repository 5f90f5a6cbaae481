"""Leaderships and batches, read from the files of a controller and a broker."""

from pylog._native.records import batch
from pylog.metadata.image.snapshot import encoded
from pylog.protocol import messages
from tests.chaos.history import Partition
from tests.chaos.reigns import (
    METADATA,
    SEQUENCES,
    Append,
    Leadership,
    appends_of,
    batches_of,
    leaderships_of,
)

TOPIC, GONE = bytes(15) + b"\1", bytes(15) + b"\2"
A = Partition("orders", 0)
ROOM = bytes(4096)


def segment(data, place: Partition, number: int, *parts: bytes) -> None:
    folder = data / f"{place.topic}-{place.partition}"
    folder.mkdir(exist_ok=True)
    (folder / f"{number:020}.log").write_bytes(b"".join(parts))


def of_records(now_ms: int, base_offset: int, *records) -> bytes:
    return batch.build([(None, encoded(record), now_ms, []) for record in records],
                       base_offset=base_offset, leader_epoch=1)


def change(**fields):
    return messages.PartitionChangeRecord(topic_id=TOPIC, partition_id=0, **fields)


def of_partition(topic_id: bytes, **fields):
    return messages.PartitionRecord(
        topic_id=topic_id, partition_id=0, replicas=[1, 2], isr=[1, 2], removing_replicas=[],
        adding_replicas=[], partition_epoch=0, directories=[bytes(16)] * 2, **fields)


def test_leaderships_begin_at_leader_change_records(tmp_path):
    segment(tmp_path, METADATA, 0, of_records(
        1000, 0, messages.NoOpRecord(), messages.TopicRecord(name="orders", topic_id=TOPIC),
        of_partition(TOPIC, leader=1, leader_epoch=0)))
    segment(tmp_path, METADATA, 3, of_records(2000, 3, change(isr=[1])),
            of_records(3000, 4, change(isr=[1, 2])), of_records(4000, 5, change(leader=2, isr=[2])))
    assert leaderships_of(tmp_path) == {A: [Leadership(0, 1, 1.0), Leadership(1, 2, 4.0)]}


def test_deleted_topic_does_not_affect_other_topics(tmp_path):
    segment(tmp_path, METADATA, 0, of_records(
        1000, 0, messages.TopicRecord(name="orders", topic_id=TOPIC),
        of_partition(TOPIC, leader=1, leader_epoch=0),
        messages.TopicRecord(name="made", topic_id=GONE),
        of_partition(GONE, leader=2, leader_epoch=0), messages.RemoveTopicRecord(topic_id=GONE)))
    assert leaderships_of(tmp_path)[A] == [Leadership(0, 1, 1.0)]


def test_batches_are_read_up_to_preallocated_space(tmp_path):
    one = batch.build([(None, b"x", 1, [])] * 3, base_offset=4, leader_epoch=2, producer_id=7,
                      producer_epoch=1, base_sequence=(1 << 31) - 2)
    marker = batch.build([(b"\0\0\0\1", b"", 1, [])], base_offset=7, leader_epoch=3, producer_id=7,
                         producer_epoch=1, attributes=batch.TRANSACTIONAL | batch.CONTROL)
    segment(tmp_path, A, 4, one, ROOM)
    segment(tmp_path, A, 7, marker, marker[:70])
    assert appends_of(tmp_path, A) == [Append(4, 6, 2, 7, 1, (1 << 31) - 2, 0, False),
                                       Append(7, 7, 3, 7, 1, -1, SEQUENCES - 1, True)]


def test_missing_partition_has_no_appends(tmp_path):
    assert list(batches_of(tmp_path, A)) == []
    assert leaderships_of(tmp_path) == {}
